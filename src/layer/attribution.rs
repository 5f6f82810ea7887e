//! Attribution: the keys whose quota a request uses.

use std::sync::Arc;

use http::request::Parts;
use smallvec::SmallVec;

use crate::{
    access::KeyedRequest,
    decision::Outcome,
    error::{ConfigError, ConfigErrorKind},
    key::KeyExtractor,
    mistake::Diagnostics,
    partition::{PartitionId, PartitionKey, Scope},
    policy::MAX_NAME,
    telemetry::LayerTelemetry,
};

/// The treatment of a request without a key, or without one of the
/// [named keys](crate::RateLimitLayerBuilder::named_key).
///
/// A client may be able to have no key by what it sends: see
/// [`trusted_proxies`](crate::key::ClientIp::trusted_proxies). So no choice but [`Allow`](Self::Allow) lets a request
/// without a key escape the limits.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// # run(async {
/// let layer = |on_missing_key| RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .on_missing_key(on_missing_key)
///     .build();
///
/// let shared = layer(MissingKey::Share)?;
/// send(&shared, Request::get("/from/one")).await;
/// let another = send(&shared, Request::get("/from/another")).await;
/// assert_eq!(another.headers()["ratelimit"], r#""hour";r=98;t=3528"#);
///
/// let uncounted = send(&layer(MissingKey::Allow)?, Request::get("/")).await;
/// assert_eq!(uncounted.status(), 200);
/// assert!(!uncounted.headers().contains_key("ratelimit"));
///
/// assert_eq!(send(&layer(MissingKey::Reject)?, Request::get("/")).await.status(), 403);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// Pass it on, uncounted. Policies that count by a key that is found apply all the same.
    Allow,
    /// Reject it with status 403.
    Reject,
    /// Count it in one partition that all such requests share, and no other. The default. A client that can send
    /// requests without a key can use up the quota of that partition, and of no caller who has a key.
    #[default]
    Share,
}

/// A key as the builder got it, and the name of its type.
pub(super) type NewKey = (Box<dyn KeyExtractor>, &'static str);

/// The settings of an [`Attribution`], as the builder got them.
#[derive(Default)]
pub(super) struct AttributionSettings {
    pub(super) scope: Option<String>,
    /// One, or `build()` fails.
    pub(super) keys: Vec<NewKey>,
    pub(super) named_keys: Vec<(String, NewKey)>,
    pub(super) digest_key: Option<[u8; 32]>,
    pub(super) readable_keys: bool,
    pub(super) no_key: MissingKey,
}

impl AttributionSettings {
    pub(super) fn build(self) -> Result<Attribution, ConfigError> {
        let error = |kind, message: &str| ConfigError::new(kind, message);
        let scope_name = self.scope.filter(|scope| !scope.is_empty());
        let scope_name = scope_name.ok_or_else(|| error(ConfigErrorKind::Scope, "scope: it is missing or empty"))?;
        if scope_name.len() > MAX_NAME {
            let message = format!(
                "scope: it has {} bytes; at most {MAX_NAME} are allowed",
                scope_name.len()
            );
            return Err(error(ConfigErrorKind::Scope, &message));
        }
        let scope = match &self.digest_key {
            None => Scope::new(&scope_name),
            Some(key) if !self.readable_keys => Scope::with_digest_key(&scope_name, key),
            Some(_) => {
                let message = "readable keys: a digest key is set, which is to hide who has called";
                return Err(error(ConfigErrorKind::Key, message));
            }
        };
        let mut keys = self.keys.into_iter();
        let main = keys.next();
        let main = main.ok_or_else(|| error(ConfigErrorKind::Key, "key: it is missing"))?;
        if keys.next().is_some() {
            let message = "key: it is set twice; combine two keys by `or_else` or `and`, or use `named_key`";
            return Err(error(ConfigErrorKind::Key, message));
        }
        main.0.check()?;
        check_names(&self.named_keys)?;
        let named = self.named_keys.into_iter();
        Ok(Attribution {
            main: Key::new(&scope, String::new(), main),
            named: named.map(|(name, key)| Key::new(&scope, name, key)).collect(),
            scope,
            scope_name,
            has_digest_key: self.digest_key.is_some(),
            readable_keys: self.readable_keys,
            no_key: self.no_key,
        })
    }
}

fn check_names(keys: &[(String, NewKey)]) -> Result<(), ConfigError> {
    for (index, (name, (key, _))) in keys.iter().enumerate() {
        if name.is_empty() || keys[..index].iter().any(|(other, _)| other == name) {
            let message = format!("key {name:?}: the name is empty or used twice; names must be unique");
            return Err(ConfigError::new(ConfigErrorKind::Key, message));
        }
        key.check()?;
    }
    Ok(())
}

/// The scope of a layer, and the keys by which its policies count.
pub(super) struct Attribution {
    pub(super) scope: Scope,
    pub(super) scope_name: String,
    main: Key,
    named: Vec<Key>,
    has_digest_key: bool,
    readable_keys: bool,
    no_key: MissingKey,
}

/// A key by which some policies count. The main one has no name.
struct Key {
    name: String,
    extractor: Box<dyn KeyExtractor>,
    type_name: &'static str,
    /// The partition of the requests without this key.
    shared_partition: PartitionId,
}

impl Key {
    fn new(scope: &Scope, name: String, (extractor, type_name): NewKey) -> Self {
        Self {
            shared_partition: scope.partition(&PartitionKey::own("no key", name.as_bytes())),
            name,
            extractor,
            type_name,
        }
    }
}

/// The attribution of a request by one key: `None` if policies that count by it do not apply; the outcome of a rejection.
pub(super) type Attributed = Result<Option<Holder>, Outcome>;

/// The holder of a quota, as stores know it.
#[derive(Clone)]
pub(super) struct Holder {
    pub(super) partition: PartitionId,
    /// The text that operators read in place of the digest, if they want one.
    pub(super) label: Option<Arc<str>>,
}

impl Attribution {
    /// A partition that only layers of the same scope have.
    pub(super) fn own_partition(&self) -> PartitionId {
        self.main.shared_partition
    }

    /// The type of a key: keys of different types hardly ever lead to the same partition.
    pub(super) fn type_of(&self, named: Option<usize>) -> &'static str {
        self.key(named).type_name
    }

    /// The names of all keys but the main one.
    pub(super) fn names(&self) -> Vec<String> {
        self.named.iter().map(|key| key.name.clone()).collect()
    }

    /// Returns `true` if a client could find an address from the digest of a key by trying all addresses.
    pub(super) fn may_show_address(&self, named: Option<usize>) -> bool {
        !self.has_digest_key && self.key(named).extractor.may_be_address()
    }

    /// The request with its main key, which is not extracted before it is needed.
    pub(super) fn caller<'a>(&'a self, request: &'a Parts) -> KeyedRequest<'a> {
        KeyedRequest::new(request, &*self.main.extractor)
    }

    /// Attributes a request by the main key, or by the named one at this position.
    pub(super) fn attribute(
        &self,
        caller: &KeyedRequest<'_>,
        named: Option<usize>,
        log: &LayerTelemetry,
    ) -> Attributed {
        if log.is_watching() {
            let mut findings = Diagnostics::default();
            self.key(named).extractor.diagnose(caller.request, &mut findings);
            log.found(&self.scope_name, findings);
        }
        let holder = match named {
            None => caller.key().map(|key| self.holder(key)),
            Some(index) => {
                let key = self.named[index].extractor.extract(caller.request);
                key.map(|key| self.holder(&key))
            }
        };
        match holder {
            Some(holder) => Ok(Some(holder)),
            None => self.missing(named, log),
        }
    }

    /// The attribution of a request without the main key, or without the named one at this position.
    pub(super) fn missing(&self, named: Option<usize>, log: &LayerTelemetry) -> Attributed {
        log.no_key(&self.scope_name);
        match self.no_key {
            MissingKey::Allow => Ok(None),
            MissingKey::Reject => Err(Outcome::MissingKey),
            MissingKey::Share => Ok(Some(Holder {
                partition: self.key(named).shared_partition,
                label: None,
            })),
        }
    }

    pub(super) fn holder(&self, key: &PartitionKey) -> Holder {
        Holder {
            partition: self.scope.partition(key),
            label: self.readable_keys.then(|| self.label(key)).flatten(),
        }
    }

    /// The partition in which a message about a caller is counted, so that it is found out when it is repeated.
    pub(super) fn message<'a>(
        &self,
        keys: impl Iterator<Item = (Option<&'a str>, &'a Holder)>,
        id: &str,
    ) -> PartitionId {
        let mut keys: SmallVec<[_; 2]> = keys.collect();
        keys.sort_unstable_by_key(|(name, _)| *name);
        let about = keys.into_iter().map(|(name, holder)| {
            let about = PartitionKey::own("given back", &holder.partition.to_bytes());
            let about = about.and(PartitionKey::new("id", id));
            // Two keys may lead to the same partition.
            match name {
                None => about,
                Some(name) => about.and(PartitionKey::new("key", name)),
            }
        });
        let about = about.reduce(PartitionKey::and);
        self.scope
            .partition(&about.unwrap_or_else(|| PartitionKey::own("given back", &[])))
    }

    fn key(&self, named: Option<usize>) -> &Key {
        named.map_or(&self.main, |index| &self.named[index])
    }

    /// `scope/kind:value`; a text that is too long to be read stays a digest.
    fn label(&self, key: &PartitionKey) -> Option<Arc<str>> {
        const MAX_LENGTH: usize = 200;

        let scope = PartitionKey::new("scope", &self.scope_name).and(key.clone());
        scope.to_text(MAX_LENGTH).map(Arc::from)
    }
}
