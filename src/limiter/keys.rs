use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use smallvec::SmallVec;

use super::recent::RecentScope;
use crate::{
    decision::{Outcome, Plan},
    error::{ConfigError, ConfigErrorKind},
    partition::{PartitionId, PartitionKey, Scope, readable_scope},
    policy::{MAX_NAME, PolicySet},
    sync::mutex::Mutex,
    telemetry::LayerTelemetry,
};

/// The treatment of requests without a key, or without a [named key](crate::RateLimitLayerBuilder::named_key). Clients
/// may be able to send such requests: see [`trusted_proxies`](crate::key::ClientIp::trusted_proxies). Only
/// [`Allow`](Self::Allow) lets them bypass the limits.
///
/// ```
/// use tower_quota::{MemoryStore, MissingKey, QuotaPolicy, RateLimitLayer, key};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .on_missing_key(MissingKey::Reject)
///     .build()?;
/// # assert_eq!(set_up::send(&layer, http::Request::get("/")).await.status(), 403);
/// # assert!(set_up::is_counted(&layer, http::Request::get("/").header("x-user-id", "alice")).await);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// Does not count the request against policies that use the missing key. Other policies still apply.
    Allow,
    /// Rejects the request with status 403.
    Reject,
    /// Counts all such requests in one shared partition, which clients can exhaust. The default.
    #[default]
    Share,
}

#[derive(Debug, Default)]
pub(super) struct KeysSettings {
    pub(super) scope: Option<String>,
    pub(super) named: Vec<String>,
    pub(super) digest_key: Option<[u8; 32]>,
    pub(super) readable_keys: bool,
    pub(super) missing_key: MissingKey,
}

impl KeysSettings {
    pub(super) fn build(&self) -> Result<Keys, ConfigError> {
        let error = |kind, message: &str| ConfigError::new(kind, message);
        let scope_name = self.scope.as_ref().filter(|scope| !scope.is_empty());
        let scope_name = scope_name.ok_or_else(|| error(ConfigErrorKind::Scope, "scope: missing or empty"))?;
        if scope_name.len() > MAX_NAME {
            let message = format!("scope: length {} exceeds {MAX_NAME} bytes", scope_name.len());
            return Err(error(ConfigErrorKind::Scope, &message));
        }
        let scope = match &self.digest_key {
            None => Scope::new(scope_name),
            Some(key) if !self.readable_keys => Scope::with_digest_key(scope_name, key),
            Some(_) => {
                let message = "readable_keys and digest_key cannot be combined";
                return Err(error(ConfigErrorKind::Key, message));
            }
        };
        self.check_names()?;
        let readable = |name| self.readable_keys.then(|| readable_scope(scope_name, name));
        let named = self
            .named
            .iter()
            .map(|name| KeyScope::new(scope.keyed_by(name), readable(Some(name))));
        Ok(Keys {
            named: named.collect(),
            main: KeyScope::new(scope, readable(None)),
            scope_name: scope_name.clone(),
            missing_key: self.missing_key,
            seen: SeenKinds::default(),
        })
    }

    fn check_names(&self) -> Result<(), ConfigError> {
        for (index, name) in self.named.iter().enumerate() {
            if name.is_empty() || self.named[..index].contains(name) {
                let message = format!("key {name:?}: empty or duplicate name; names must be unique");
                return Err(ConfigError::new(ConfigErrorKind::Key, message));
            }
        }
        Ok(())
    }
}

pub(crate) struct Keys {
    pub(super) scope_name: String,
    main: KeyScope,
    named: Vec<KeyScope>,
    missing_key: MissingKey,
    seen: SeenKinds,
}

struct KeyScope {
    scope: RecentScope,
    readable: Option<String>,
    shared: PartitionId,
}

impl KeyScope {
    fn new(scope: Scope, readable: Option<String>) -> Self {
        Self {
            shared: scope.partition(&PartitionKey::own("no key", b"")),
            scope: RecentScope::new(scope),
            readable,
        }
    }

    fn label(&self, key: &PartitionKey) -> Option<Arc<str>> {
        const MAX_LENGTH: usize = 200;

        let scope = self.readable.as_ref()?;
        let key = key.to_text(MAX_LENGTH.checked_sub(scope.len() + 1)?)?;
        Some(format!("{scope}/{key}").into())
    }
}

#[derive(Default)]
struct SeenKinds {
    of_requests: Mutex<Vec<Kinds>>,
    requests: AtomicU32,
    given: AtomicU32,
}

/// The kinds of the parts of a key.
struct Kinds(Vec<Vec<u8>>);

impl Kinds {
    fn are_of(&self, key: &PartitionKey) -> bool {
        key.kinds_of_parts().eq(self.0.iter().map(Vec::as_slice))
    }
}

impl SeenKinds {
    /// With fewer, the kinds may be incomplete: all early requests may be anonymous.
    const REQUESTS: u32 = 500;
    /// Further calls only read the counter.
    const GIVEN: u32 = 1_000;
    const KINDS: usize = 16;

    fn note(&self, key: &PartitionKey) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut seen = self.of_requests.lock();
        if seen.len() < Self::KINDS && !seen.iter().any(|kinds| kinds.are_of(key)) {
            seen.push(Kinds(key.kinds_of_parts().map(<[u8]>::to_vec).collect()));
        }
    }

    fn other(&self, key: &PartitionKey) -> Option<String> {
        if self.requests.load(Ordering::Relaxed) < Self::REQUESTS || self.given.load(Ordering::Relaxed) >= Self::GIVEN {
            return None;
        }
        let seen = self.of_requests.lock();
        if seen.len() == Self::KINDS {
            return None;
        }
        self.given.fetch_add(1, Ordering::Relaxed);
        let is_seen = seen.iter().any(|kinds| kinds.are_of(key));
        (!is_seen).then(|| key.kinds())
    }
}

/// `Ok(None)` if policies with this key do not apply.
pub(crate) type Attributed = Result<Option<Holder>, Outcome>;

#[derive(Clone)]
pub(crate) struct Holder {
    pub(crate) partition: PartitionId,
    pub(crate) label: Option<Arc<str>>,
}

impl Holder {
    #[inline]
    pub(super) fn extend(&self, plan: Option<Plan>, policies: &PolicySet, cost: u64) -> Plan {
        let (policies, partition) = (policies.clone(), self.partition);
        let plan = match plan {
            Some(plan) => plan.and(policies, partition),
            None => Plan::new(policies, partition, cost),
        };
        match &self.label {
            Some(label) => plan.labelled(partition, label),
            None => plan,
        }
    }
}

impl Keys {
    /// Limiters with another scope or digest key have another partition.
    pub(crate) fn own_partition(&self) -> PartitionId {
        self.main.shared
    }

    pub(crate) fn note(&self, key: &PartitionKey) {
        self.seen.note(key);
    }

    pub(super) fn given(&self, key: &PartitionKey, log: &LayerTelemetry) -> Holder {
        if let Some(kind) = self.seen.other(key) {
            log.key_of_another_kind(&kind);
        }
        self.holder(None, key)
    }

    pub(crate) fn missing(&self, named: Option<usize>, log: &LayerTelemetry) -> Attributed {
        log.no_key();
        self.without(named)
    }

    pub(crate) fn without(&self, named: Option<usize>) -> Attributed {
        match self.missing_key {
            MissingKey::Allow => Ok(None),
            MissingKey::Reject => Err(Outcome::MissingKey),
            MissingKey::Share => Ok(Some(Holder {
                partition: self.scope(named).shared,
                label: None,
            })),
        }
    }

    #[inline]
    pub(crate) fn holder(&self, named: Option<usize>, key: &PartitionKey) -> Holder {
        let scope = self.scope(named);
        Holder {
            partition: scope.scope.partition(key),
            label: scope.label(key),
        }
    }

    #[inline]
    fn scope(&self, named: Option<usize>) -> &KeyScope {
        named.map_or(&self.main, |index| &self.named[index])
    }

    /// The partition in which a message is recorded. Messages of different kinds are independent.
    pub(super) fn message<'a>(
        &self,
        holders: impl Iterator<Item = &'a Holder>,
        kind: &'static str,
        id: &str,
    ) -> PartitionId {
        let mut partitions: SmallVec<[_; 2]> = holders.map(|holder| holder.partition).collect();
        partitions.sort_unstable();
        let about = partitions
            .into_iter()
            .map(|partition| PartitionKey::own(kind, &partition.to_bytes()));
        self.main
            .scope
            .scope
            .partition(&about.fold(PartitionKey::new("id", id), PartitionKey::and))
    }
}
