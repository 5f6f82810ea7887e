use super::{RateLimitLayerBuilder, Source};
use crate::{error::ConfigErrorKind, key::KeyExtractor, layer::attribution::Extractor, limiter::MissingKey};

/// # Advanced: attribution
impl RateLimitLayerBuilder {
    /// Adds a key, for policies that are [keyed by](crate::QuotaPolicy::keyed_by) it.
    ///
    /// Names must be unique and not empty. Each request is charged to the partitions of all keys in one decision:
    /// either to all of them or to none. Equal values of different keys [are different
    /// callers](crate::QuotaPolicy::keyed_by). Requests without this key share one partition, unless
    /// [`on_missing_key`](Self::on_missing_key) is set. A layer of a [limiter](crate::RateLimitLayer::with_limiter)
    /// must extract exactly the keys that the limiter [names](crate::LimiterBuilder::named_key).
    pub fn named_key(mut self, name: impl Into<String>, key: impl KeyExtractor) -> Self {
        let name = name.into();
        self.source = match self.source {
            Source::Settings(limiter) => Source::Settings(Box::new(limiter.named_key(name.clone()))),
            built => built,
        };
        self.keys.named.push((name, Extractor::new(key)));
        self
    }

    /// Sets how requests without a key are handled. See [`MissingKey`]. Default: [`MissingKey::Share`].
    pub fn on_missing_key(self, missing: MissingKey) -> Self {
        self.limiter(ConfigErrorKind::Key, "missing key", |limiter| {
            limiter.on_missing_key(missing)
        })
    }
}
