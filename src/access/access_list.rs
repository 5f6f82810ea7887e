use std::{collections::HashMap, fmt, net::IpAddr, sync::Arc};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use http::request::Parts;
use ipnet::IpNet;

use super::{keyed_request::KeyedRequest, networks::Networks};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    key::{self, ClientIp, KeyExtractor},
    mistake::Diagnostics,
    partition::PartitionKey,
    sync::mutex::Mutex,
};

/// Rules that allow or block clients by network or partition key, at run time.
///
/// Pass the list to [`access_list`](crate::RateLimitLayerBuilder::access_list), and keep a clone to change its rules.
/// Clones share their rules, and layers can share a list.
///
/// ```
/// use tower_quota::{Access, AccessList, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, key};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let access = AccessList::new(key::client_ip());
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .access_list(access.clone())
///     .build()?;
/// # let request = || http::Request::get("/").header("x-user-id", "mallory");
/// # assert_eq!(set_up::send(&layer, request()).await.status(), 200);
///
/// // Later, while the service runs:
/// access.update(|rules| {
///     rules.set_network("203.0.113.0/24", Access::Block)?;
///     rules.set_key(PartitionKey::new("x-user-id", "mallory"), Access::Block)
/// })?;
/// # assert_eq!(set_up::send(&layer, request()).await.status(), 403);
/// # let address = tower_quota::key::PeerAddress(([203, 0, 113, 9], 4711).into());
/// # assert_eq!(set_up::send(&layer, http::Request::get("/").extension(address)).await.status(), 403);
/// # Ok(()) });
/// ```
///
/// Blocked requests are rejected with the [`blocked_status`](crate::RateLimitLayerBuilder::blocked_status). Allowed
/// requests pass uncounted. In both cases, the store is not called, and no `RateLimit` fields are added.
///
/// Rules are local to the process and do not expire. Other sources, such as a fleet follower (`tower-quota-fleet`), add
/// their rules as an [overlay](Self::overlay), which applies to clients that match no local rule. Lookups take constant
/// time and never block.
#[derive(Clone)]
pub struct AccessList(Arc<Shared>);

struct Shared {
    client_ip: ClientIp,
    rules: ArcSwap<AccessRules>,
    overlaid: ArcSwap<AccessRules>,
    changing: Mutex<()>,
    overlays: Mutex<Vec<Overlaid>>,
}

pub(super) struct Overlaid {
    pub(super) owner: Arc<()>,
    /// The names of overlays that may replace these rules.
    pub(super) left_as: Option<Vec<String>>,
    pub(super) rules: AccessRules,
}

/// The treatment of a client by an [`AccessList`]. With the feature `serde`, it is serialized as its `Display` text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize, serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Access {
    /// The request passes uncounted.
    Allow,
    /// The request is rejected and not counted.
    Block,
    /// The request is rate-limited as if no rule matched. Use this for a network within an allowed or blocked one. The
    /// default.
    #[default]
    Limit,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Block => "block",
            Self::Limit => "limit",
        })
    }
}

impl AccessList {
    /// Creates a list without rules, which gets client addresses from `client_ip`, without its prefix lengths.
    ///
    /// Behind a proxy, `client_ip` must [trust the proxy](ClientIp::trusted_proxies). Otherwise, all requests have the
    /// proxy's address.
    ///
    /// ```
    /// use tower_quota::{AccessList, key::{self, ForwardingField}};
    ///
    /// let client_ip = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.1"]);
    /// let access = AccessList::new(client_ip);
    /// # use tower_quota::*;
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// # access.update(|rules| rules.set_network("203.0.113.0/24", Access::Block))?;
    /// # let layer = RateLimitLayer::builder(MemoryStore::new())
    /// #     .scope("api")
    /// #     .key(key::header("x-user-id"))
    /// #     .policy(QuotaPolicy::per_hour("hour", 100))
    /// #     .access_list(access)
    /// #     .build()?;
    /// # let proxy = key::PeerAddress(([10, 0, 0, 1], 4711).into());
    /// # let from = |client| http::Request::get("/").extension(proxy).header("x-forwarded-for", client);
    /// # assert_eq!(set_up::send(&layer, from("203.0.113.9")).await.status(), 403);
    /// # assert_eq!(set_up::send(&layer, from("198.51.100.7")).await.status(), 200);
    /// # Ok(()) });
    /// ```
    pub fn new(client_ip: ClientIp) -> Self {
        Self(Arc::new(Shared {
            client_ip,
            rules: ArcSwap::default(),
            overlaid: ArcSwap::default(),
            changing: Mutex::default(),
            overlays: Mutex::default(),
        }))
    }

    /// Returns a snapshot of the current rules.
    pub fn rules(&self) -> Arc<AccessRules> {
        self.0.rules.load_full()
    }

    /// Returns the rules of all [overlays](Self::overlay), combined as by [`AccessRules::merge`]. They may exceed the
    /// maximum of one [`AccessRules`].
    pub fn overlay_rules(&self) -> Arc<AccessRules> {
        self.0.overlaid.load_full()
    }

    /// Replaces all rules atomically.
    pub fn replace(&self, rules: AccessRules) {
        let _changing = self.0.changing.lock();
        self.0.rules.store(Arc::new(rules));
    }

    /// Changes the rules atomically, and returns the result of `change`.
    ///
    /// If `change` returns an error, no rule changes. `change` gets a copy of all rules, so make many changes in one
    /// call. Changes are serialized, so `change` must not change the same list through another handle.
    pub fn update<T, E>(&self, change: impl FnOnce(&mut AccessRules) -> Result<T, E>) -> Result<T, E> {
        let _changing = self.0.changing.lock();
        let mut rules = AccessRules::clone(&self.0.rules.load());
        let result = change(&mut rules)?;
        self.0.rules.store(Arc::new(rules));
        Ok(result)
    }

    pub(super) fn change_overlays(&self, change: impl FnOnce(&mut Vec<Overlaid>)) {
        let mut overlays = self.0.overlays.lock();
        change(&mut overlays);
        let mut all = AccessRules::new();
        overlays.iter().for_each(|overlaid| all.add(&overlaid.rules));
        self.0.overlaid.store(Arc::new(all));
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.0.client_ip.check()
    }

    pub(crate) fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        self.0.client_ip.diagnose(request, findings);
    }

    /// Callers without a request have no address.
    pub(crate) fn access_of_key(&self, key: &PartitionKey) -> Access {
        let (own, overlaid) = (self.0.rules.load(), self.0.overlaid.load());
        let access = [&**own, &**overlaid]
            .iter()
            .find_map(|rules| rules.keys.get(key).copied());
        access.unwrap_or_default()
    }

    pub(crate) fn access(&self, caller: &KeyedRequest<'_>) -> Access {
        let (own, overlaid) = (self.0.rules.load(), self.0.overlaid.load());
        let both = [&**own, &**overlaid];
        let address = || self.0.client_ip.believed(caller.request);
        let by_network = both.iter().any(|rules| rules.look_at_addresses()).then(address);
        let by_key = both.iter().any(|rules| !rules.keys.is_empty()).then(|| caller.key());
        let (address, key) = (by_network.flatten(), by_key.flatten());
        both.iter()
            .find_map(|rules| rules.find(address, key))
            .unwrap_or_default()
    }
}

impl fmt::Debug for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessList").field(&self.0.rules.load()).finish()
    }
}

/// Rules of an [`AccessList`] for networks and partition keys, at most 1,000,000.
///
/// For an address, the rule for the network with the longest prefix applies. If the rules for the network and the key
/// differ, [`Block`](Access::Block) takes precedence over [`Allow`](Access::Allow), and `Allow` over
/// [`Limit`](Access::Limit).
///
/// ```
/// use tower_quota::{Access, AccessRules, PartitionKey};
///
/// let mut rules = AccessRules::new();
/// rules.set_network("0.0.0.0/0", Access::Block)?;
/// rules.set_network("10.0.0.0/8", Access::Allow)?;
/// rules.set_network("10.9.0.0/16", Access::Limit)?; // the guests' network
/// rules.set_key(PartitionKey::new("user", "mallory"), Access::Block)?;
/// rules.block_unknown_addresses(true);
///
/// let of = |address: &str| rules.access(address.parse().ok(), None);
/// assert_eq!(of("192.0.2.1"), Access::Block);
/// assert_eq!(of("10.1.2.3"), Access::Allow);
/// assert_eq!(of("10.9.2.3"), Access::Limit);
/// assert_eq!(rules.access(None, None), Access::Block);
///
/// let mallory = PartitionKey::new("user", "mallory");
/// assert_eq!(rules.access("10.1.2.3".parse().ok(), Some(&mallory)), Access::Block);
/// # assert_eq!(rules.len(), 4);
/// # assert!(rules.remove_key(&mallory));
/// # assert!(rules.remove_network("10.9.0.0/16")?);
/// # assert!(!rules.remove_network("10.9.0.0/16")?);
/// # assert_eq!(rules.access("10.9.2.3".parse().ok(), Some(&mallory)), Access::Allow);
/// # rules.block_unknown_addresses(false);
/// # assert_eq!(rules.access(None, None), Access::default());
/// # let mut others = AccessRules::new();
/// # others.set_network("10.0.0.0/8", Access::Block)?;
/// # others.set_network("2001:db8::/32", Access::Allow)?;
/// # rules.merge(&others)?;
/// # let of = |address: &str| rules.access(address.parse().ok(), None).to_string();
/// # assert_eq!((rules.len(), of("10.1.2.3"), of("2001:db8::1")), (3, "block".into(), "allow".into()));
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone, Default)]
pub struct AccessRules {
    networks: Networks<Access>,
    keys: HashMap<PartitionKey, Access, RandomState>,
    blocks_unknown: bool,
}

impl AccessRules {
    const MAX_RULES: usize = 1_000_000;

    /// Creates an empty set of rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the rule for a network, such as `"192.0.2.0/24"`, or for an address.
    ///
    /// Replaces a rule for the same network. IPv4-mapped networks, and networks in `64:ff9b::/96`, are IPv4 networks.
    /// `::/0` contains no IPv4 address. Block at least the /64 of an IPv6 subscriber, who can change addresses within
    /// it.
    ///
    /// ```
    /// use tower_quota::{Access, AccessRules};
    ///
    /// let mut rules = AccessRules::new();
    /// rules.set_network("192.0.2.0/24", Access::Block)?;
    /// rules.set_network("::ffff:192.0.2.0/120", Access::Allow)?; // the same network
    /// assert_eq!(rules.access("192.0.2.1".parse().ok(), None), Access::Allow);
    ///
    /// // Ambiguous: one address or the whole network?
    /// let error = rules.set_network("192.0.2.77/24", Access::Block).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     r#"access rules: "192.0.2.77/24" has host bits set; use "192.0.2.0/24" or "192.0.2.77""#,
    /// );
    /// # assert_eq!(rules.len(), 1);
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigErrorKind::AccessRules`] if the network cannot be parsed, or if there are too many rules.
    ///
    /// # Security
    ///
    /// Clients with an unknown address match no network, not even that of their proxy. Clients can hide their address
    /// if [trusted proxies](ClientIp::trusted_proxies) append to a field that clients send: to enforce a block against
    /// them, also [block unknown addresses](Self::block_unknown_addresses).
    pub fn set_network(&mut self, network: impl AsRef<str>, access: Access) -> Result<(), ConfigError> {
        let network = read(network.as_ref())?;
        if self.networks.get(network).is_none() {
            self.check_room(1)?;
        }
        self.networks.insert(network, access);
        Ok(())
    }

    /// Sets whether clients with an unknown address are blocked. Default: they are limited.
    ///
    /// Use this if only some networks are allowed, or to prevent blocked clients from hiding their address. Clients
    /// whose key is [allowed](Access::Allow) are also blocked. The address is unknown if the request has no peer
    /// address (for example, with a Unix socket), or if a trusted proxy sent a field that [does not identify the
    /// client](ClientIp::trusted_proxies). Test this behind your proxies first: if one hides its clients, as with
    /// `for=unknown`, all of them are blocked.
    pub fn block_unknown_addresses(&mut self, block: bool) {
        self.blocks_unknown = block;
    }

    /// Sets the rule for a partition key, replacing a rule for the same key. Fails with
    /// [`ConfigErrorKind::AccessRules`] if there are too many rules.
    ///
    /// The rule matches requests whose whole [`key`](crate::RateLimitLayerBuilder::key) is equal.
    pub fn set_key(&mut self, key: PartitionKey, access: Access) -> Result<(), ConfigError> {
        if !self.keys.contains_key(&key) {
            self.check_room(1)?;
        }
        self.keys.insert(key, access);
        Ok(())
    }

    /// Removes the rule for exactly this network. Returns whether there was one. Fails with
    /// [`ConfigErrorKind::AccessRules`] if the network cannot be parsed.
    pub fn remove_network(&mut self, network: impl AsRef<str>) -> Result<bool, ConfigError> {
        Ok(self.networks.remove(read(network.as_ref())?).is_some())
    }

    /// Removes the rule for a key. Returns whether there was one.
    pub fn remove_key(&mut self, key: &PartitionKey) -> bool {
        self.keys.remove(key).is_some()
    }

    /// Returns the number of rules for networks and keys.
    pub fn len(&self) -> usize {
        self.networks.len() + self.keys.len()
    }

    /// Returns whether there are no rules and unknown addresses are not blocked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !self.blocks_unknown
    }

    /// Returns the treatment of a client with this address and key, each `None` if unknown.
    pub fn access(&self, address: Option<IpAddr>, key: Option<&PartitionKey>) -> Access {
        self.find(address, key).unwrap_or_default()
    }

    fn find(&self, address: Option<IpAddr>, key: Option<&PartitionKey>) -> Option<Access> {
        let address = address.map(key::canonical);
        let by_network = match address {
            Some(address) => self.networks.longest_match(address),
            None => self.blocks_unknown.then_some(&Access::Block),
        };
        let by_key = key.and_then(|key| self.keys.get(key));
        match (by_network, by_key) {
            (Some(access), other) | (other, Some(access)) => Some(prefer(other.copied(), *access)),
            (None, None) => None,
        }
    }

    /// Adds the rules of `other`. Conflicting rules have the precedence described [above](Self). Unknown addresses are
    /// blocked if either set blocks them.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigErrorKind::AccessRules`], and adds nothing, if both together have more than 1,000,000 rules.
    pub fn merge(&mut self, other: &Self) -> Result<(), ConfigError> {
        self.check_room(other.len())?;
        self.add(other);
        Ok(())
    }

    fn add(&mut self, other: &Self) {
        for (network, access) in other.networks.iter() {
            let before = self.networks.get(network);
            self.networks.insert(network, prefer(before.copied(), *access));
        }
        for (key, access) in &other.keys {
            let before = self.keys.get(key);
            self.keys.insert(key.clone(), prefer(before.copied(), *access));
        }
        self.blocks_unknown |= other.blocks_unknown;
    }

    fn look_at_addresses(&self) -> bool {
        self.blocks_unknown || !self.networks.is_empty()
    }

    fn check_room(&self, more: usize) -> Result<(), ConfigError> {
        let most = Self::MAX_RULES;
        if self.len() + more <= most {
            return Ok(());
        }
        let message = match more {
            1 => format!("access rules: limit of {most} rules exceeded"),
            more => format!("access rules: adding {more} rules exceeds the limit of {most}"),
        };
        Err(ConfigError::new(ConfigErrorKind::AccessRules, message))
    }
}

impl fmt::Debug for AccessRules {
    /// Omits networks and keys, which may identify a person.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessRules")
            .field("networks", &self.networks.len())
            .field("keys", &self.keys.len())
            .finish()
    }
}

fn prefer(one: Option<Access>, other: Access) -> Access {
    match (one, other) {
        (Some(Access::Block), _) | (_, Access::Block) => Access::Block,
        (Some(Access::Allow), _) | (_, Access::Allow) => Access::Allow,
        (Some(Access::Limit) | None, Access::Limit) => Access::Limit,
    }
}

fn read(network: &str) -> Result<IpNet, ConfigError> {
    key::network(network)
        .map_err(|error| ConfigError::new(ConfigErrorKind::AccessRules, format!("access rules: {error}")))
}
