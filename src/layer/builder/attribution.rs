use super::{RateLimitLayerBuilder, Source};
use crate::{error::ConfigErrorKind, key::KeyExtractor, layer::attribution::Extractor, limiter::MissingKey};

/// # Advanced: attribution
impl RateLimitLayerBuilder {
    /// Adds a key, for policies that are [keyed by](crate::QuotaPolicy::keyed_by) it.
    ///
    /// Names must be unique and not empty. Each request is charged to the partitions of all keys in one decision:
    /// either to all of them or to none. Requests without this key share one partition, unless
    /// [`on_missing_key`](Self::on_missing_key) is set. A layer of a [limiter](crate::RateLimitLayer::with_limiter)
    /// must extract exactly the keys that the limiter [names](crate::LimiterBuilder::named_key).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .named_key("team", key::header("x-team"))
    ///     .named_key("everybody", key::from_fn(|_| Some(PartitionKey::new("everybody", ""))))
    ///     .policy(QuotaPolicy::per_hour("user", 60))
    ///     .policy(QuotaPolicy::per_hour("team", 100).keyed_by("team"))
    ///     .policy(QuotaPolicy::per_second("all", 5_000).keyed_by("everybody"))
    ///     .build()?;
    ///
    /// let request = |user| Request::get("/").header("x-user-id", user).header("x-team", "red");
    /// send(&layer, request("alice")).await;
    /// let bob = send(&layer, request("bob")).await;
    /// assert!(bob.headers()["ratelimit"].to_str()?.starts_with(r#""user";r=59;t=3540, "team";r=98;"#));
    /// # Ok(()) });
    /// ```
    pub fn named_key(mut self, name: impl Into<String>, key: impl KeyExtractor) -> Self {
        let name = name.into();
        self.source = match self.source {
            Source::Settings(limiter) => Source::Settings(Box::new(limiter.named_key(name.clone()))),
            built => built,
        };
        self.keys.named.push((name, Extractor::new(key)));
        self
    }

    /// Sets how requests without a key are handled. Default: [`MissingKey::Share`]. See [`MissingKey`] for examples.
    pub fn on_missing_key(self, missing: MissingKey) -> Self {
        self.limiter(ConfigErrorKind::Key, "missing key", |limiter| {
            limiter.on_missing_key(missing)
        })
    }
}
