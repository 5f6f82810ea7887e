//! Networks and partition keys that are allowed or blocked, by rules that can change at any time.

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

/// Clients that pass uncounted and clients that are rejected, by rules that can change while the service runs.
///
/// Give it to [`access_list`](crate::RateLimitLayerBuilder::access_list), and keep a clone, which is cheap and shares its
/// rules, to change them: from an administrator's route, a watched file, or whatever finds out who attacks. Several
/// layers may have the same list.
///
/// A rejected request has the status 403 or, as
/// [`blocked_status`](crate::RateLimitLayerBuilder::blocked_status) says, 429, and the outcome
/// [`Outcome::Blocked`](crate::Outcome::Blocked); for one that passes uncounted it is
/// [`Outcome::Unlimited`](crate::Outcome::Unlimited). No store is asked about either, neither carries `RateLimit` fields,
/// and the key of a request is looked for only if the list has rules about keys. The time of a look-up does not
/// depend on the number of rules; it never waits, not even for a change of the rules.
///
/// Rules are those of this process: they are neither stored nor shared with other instances, and do not end by
/// themselves. Another source, such as a follower of a fleet (the package `tower-quota-fleet`), adds its own in an
/// [overlay](Self::overlay), for those clients that no rule of this process is about.
///
/// ```
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_quota::{Access, AccessList, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, key};
///
/// # tokio_test::block_on(async {
/// let access = AccessList::new(key::client_ip());
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .access_list(access.clone())
///     .build()?;
/// let service = ServiceBuilder::new()
///     .layer(limits)
///     .service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
///
/// let request = || Request::get("/").header("x-user-id", "mallory").body(()).unwrap();
/// assert_eq!(service.clone().oneshot(request()).await?.status(), 200);
///
/// access.update(|rules| {
///     rules.set_network("203.0.113.0/24", Access::Block)?;
///     rules.set_key(PartitionKey::new("x-user-id", "mallory"), Access::Block)
/// })?;
/// assert_eq!(service.oneshot(request()).await?.status(), 403);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct AccessList(Arc<Shared>);

struct Shared {
    client_ip: ClientIp,
    rules: ArcSwap<AccessRules>,
    /// The rules of all overlays together, for callers that no rule of this process is about.
    overlaid: ArcSwap<AccessRules>,
    /// Held during a change, so that two of them at the same time do not lose one.
    changing: Mutex<()>,
    /// Held while `overlaid` is made of them.
    overlays: Mutex<Vec<Overlaid>>,
}

/// The rules of one overlay.
pub(super) struct Overlaid {
    pub(super) owner: Arc<()>,
    /// The names of the overlays that may succeed it, once its owner has left it.
    pub(super) left_as: Option<Vec<String>>,
    pub(super) rules: AccessRules,
}

/// The answer of an [`AccessList`] for a request.
///
/// ```
/// use tower_quota::{Access, AccessRules};
///
/// let mut rules = AccessRules::new();
/// rules.set_network("2001:db8::/32", Access::Block)?;
/// rules.set_network("2001:db8:1::/48", Access::Allow)?;
/// rules.set_network("2001:db8:1:2::/64", Access::Limit)?;
///
/// let of = |address: &str| rules.access(address.parse().ok(), None);
/// assert_eq!(of("2001:db8:2::1"), Access::Block);
/// assert_eq!(of("2001:db8:1::1"), Access::Allow);
/// assert_eq!(of("2001:db8:1:2::1"), Access::Limit);
/// assert_eq!(of("192.0.2.1"), Access::default());
/// assert_eq!(Access::Block.to_string(), "block");
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
///
/// With the feature `serde`, it is read and written as the same text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize, serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Access {
    /// It passes uncounted.
    Allow,
    /// It is rejected, and nothing is counted.
    Block,
    /// It is counted as if there were no rule, which is the default: for a network within one that is allowed or
    /// blocked.
    #[default]
    Limit,
}

impl fmt::Display for Access {
    /// Writes `allow`, `block` or `limit`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Block => "block",
            Self::Limit => "limit",
        })
    }
}

impl AccessList {
    /// A list without rules, for clients whose addresses are found by `client_ip`.
    ///
    /// Behind a proxy, `client_ip` has to name it as [trusted](ClientIp::trusted_proxies), or all requests have the
    /// proxy's address. A client that the field does not show has no address here: no network holds it. The prefix
    /// lengths by which `client_ip` groups clients have no effect here.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::{Access, AccessList, key::{ForwardingField, PeerAddress}};
    ///
    /// # run(async {
    /// let proxied = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.1"]);
    /// let access = AccessList::new(proxied);
    /// access.update(|rules| rules.set_network("203.0.113.0/24", Access::Block))?;
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .access_list(access)
    ///     .build()?;
    ///
    /// let proxy = PeerAddress(SocketAddr::from(([10, 0, 0, 1], 4711)));
    /// let from = |client| Request::get("/").extension(proxy).header("x-forwarded-for", client);
    /// assert_eq!(send(&layer, from("203.0.113.9")).await.status(), 403);
    /// assert_eq!(send(&layer, from("198.51.100.7")).await.status(), 200);
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

    /// The rules as they are now. Later changes do not show in them.
    pub fn rules(&self) -> Arc<AccessRules> {
        self.0.rules.load_full()
    }

    /// Returns the current rules of all [overlays](Self::overlay) together.
    ///
    /// They apply to requests that match no rule of the program.
    /// Where two overlays have different rules about the same network or key, [`Block`](Access::Block) goes before
    /// [`Allow`](Access::Allow), and that before [`Limit`](Access::Limit). All overlays together may have more rules than one
    /// [`AccessRules`] may.
    pub fn overlay_rules(&self) -> Arc<AccessRules> {
        self.0.overlaid.load_full()
    }

    /// Takes these rules in place of all others, at one moment: a request sees either the old ones or the new ones.
    ///
    /// ```
    /// use tower_quota::{Access, AccessList, AccessRules, key};
    ///
    /// let access = AccessList::new(key::client_ip());
    /// let before = access.rules();
    ///
    /// let mut rules = AccessRules::new();
    /// rules.set_network("203.0.113.0/24", Access::Block)?;
    /// access.replace(rules);
    /// assert_eq!((before.len(), access.rules().len()), (0, 1));
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    pub fn replace(&self, rules: AccessRules) {
        let _changing = self.0.changing.lock();
        self.0.rules.store(Arc::new(rules));
    }

    /// Changes the rules, all at one moment. Returns what the closure returns; if that is an error, nothing changes.
    ///
    /// The closure is given a copy of the rules: make many changes in one call rather than in many. Changes wait for each
    /// other, so the closure must not change the same list in another way.
    ///
    /// ```
    /// use tower_quota::{Access, AccessList, key};
    ///
    /// let access = AccessList::new(key::client_ip());
    /// let error = access.update(|rules| {
    ///     rules.set_network("203.0.113.0/24", Access::Block)?;
    ///     rules.set_network("example.com", Access::Block)
    /// });
    /// assert_eq!(error.unwrap_err().to_string(), "access rules: \"example.com\" is not an address or a network");
    /// // All of it or nothing.
    /// assert!(access.rules().is_empty());
    ///
    /// let removed = access.update(|rules| rules.remove_network("203.0.113.0/24"))?;
    /// assert!(!removed);
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The address that the closure returns.
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

    /// The answer about a key alone, where there is no request and no address.
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

/// The rules of an [`AccessList`], about networks and partition keys.
///
/// The most specific network that holds an address wins: the one with the longest prefix. Where a network and a key say
/// different things, [`Block`](Access::Block) goes before [`Allow`](Access::Allow), and that before
/// [`Limit`](Access::Limit). A request that no rule is about is limited.
///
/// There are no more than 1 000 000 rules.
///
/// ```
/// use tower_quota::{Access, AccessRules, PartitionKey};
///
/// let mut rules = AccessRules::new();
/// rules.set_network("0.0.0.0/0", Access::Block)?;
/// rules.set_network("10.0.0.0/8", Access::Allow)?;
/// rules.set_network("10.9.0.0/16", Access::Limit)?; // the guests' network
/// rules.set_key(PartitionKey::new("user", "mallory"), Access::Block)?;
///
/// let of = |address: &str| rules.access(address.parse().ok(), None);
/// assert_eq!(of("192.0.2.1"), Access::Block);
/// assert_eq!(of("10.1.2.3"), Access::Allow);
/// assert_eq!(of("10.9.2.3"), Access::Limit);
/// let mallory = PartitionKey::new("user", "mallory");
/// assert_eq!(rules.access("10.1.2.3".parse().ok(), Some(&mallory)), Access::Block);
///
/// assert_eq!(rules.len(), 4);
/// assert!(rules.remove_key(&mallory));
/// assert!(rules.remove_network("10.9.0.0/16")?);
/// assert_eq!(rules.access("10.9.2.3".parse().ok(), Some(&mallory)), Access::Allow);
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

    /// No rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the rule about a network, `"192.0.2.0/24"` or a bare address, in place of one about the same network.
    ///
    /// IPv4-mapped networks and those of `64:ff9b::/96` are IPv4 networks, and `::/0` holds no IPv4 address. An
    /// IPv6 subscriber has a whole network, at least a /64: a rule about one address does not stop it.
    ///
    /// A client whose address is unknown is in no network, not even in that of the proxy which has sent its request. A
    /// client can make itself unknown where [trusted proxies](ClientIp::trusted_proxies) append to what it sends; where a
    /// blocked client must not get through like that, also [block unknown addresses](Self::block_unknown_addresses).
    ///
    /// ```
    /// use tower_quota::{Access, AccessRules};
    ///
    /// let mut rules = AccessRules::new();
    /// rules.set_network("192.0.2.0/24", Access::Block)?;
    /// assert_eq!(rules.access("192.0.2.1".parse().ok(), None), Access::Block);
    /// // The same network, written in another way.
    /// rules.set_network("::ffff:192.0.2.0/120", Access::Allow)?;
    /// assert_eq!((rules.len(), rules.access("192.0.2.1".parse().ok(), None)), (1, Access::Allow));
    ///
    /// let error = rules.set_network("192.0.2.0/33", Access::Block).unwrap_err();
    /// assert_eq!(error.to_string(), "access rules: \"192.0.2.0/33\" is not an address or a network");
    /// // One address, or all of the network?
    /// let error = rules.set_network("192.0.2.77/24", Access::Block).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "access rules: \"192.0.2.77/24\" has bits after its prefix; write \"192.0.2.0/24\" or \"192.0.2.77\"",
    /// );
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the network cannot be read, or there are too many rules.
    pub fn set_network(&mut self, network: impl AsRef<str>, access: Access) -> Result<(), ConfigError> {
        let network = read(network.as_ref())?;
        if self.networks.get(network).is_none() {
            self.check_room(1)?;
        }
        self.networks.insert(network, access);
        Ok(())
    }

    /// Blocks clients whose address is not known, or no longer does; they are limited unless you say so. A rule that
    /// [allows](Access::Allow) their key does not help them.
    ///
    /// You want it to admit some networks only, and beside networks that are blocked: the address is unknown if the
    /// request does not show its peer (a Unix socket, say), or if a trusted proxy has sent a field in which the client
    /// [cannot be read](ClientIp::trusted_proxies). Test it behind your proxies first: one that hides its clients, as with
    /// `for=unknown`, has all of them blocked.
    ///
    /// ```
    /// use tower_quota::{Access, AccessRules};
    ///
    /// let mut rules = AccessRules::new();
    /// rules.set_network("203.0.113.0/24", Access::Block)?;
    /// assert_eq!(rules.access(None, None), Access::Limit);
    /// rules.block_unknown_addresses(true);
    /// assert_eq!(rules.access(None, None), Access::Block);
    /// assert_eq!(rules.access("192.0.2.1".parse().ok(), None), Access::Limit);
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    pub fn block_unknown_addresses(&mut self, block: bool) {
        self.blocks_unknown = block;
    }

    /// Sets the rule about a partition key, in place of one about the same key. It applies to requests for which the
    /// layer's [`key`](crate::RateLimitLayerBuilder::key) is equal as a whole.
    ///
    /// # Errors
    ///
    /// If there are too many rules.
    pub fn set_key(&mut self, key: PartitionKey, access: Access) -> Result<(), ConfigError> {
        if !self.keys.contains_key(&key) {
            self.check_room(1)?;
        }
        self.keys.insert(key, access);
        Ok(())
    }

    /// Removes the rule about exactly this network, and returns whether there was one. Rules about networks within it
    /// and around it stay.
    ///
    /// # Errors
    ///
    /// If the network cannot be read.
    pub fn remove_network(&mut self, network: impl AsRef<str>) -> Result<bool, ConfigError> {
        Ok(self.networks.remove(read(network.as_ref())?).is_some())
    }

    /// Removes the rule about this key, and returns whether there was one.
    pub fn remove_key(&mut self, key: &PartitionKey) -> bool {
        self.keys.remove(key).is_some()
    }

    /// The number of rules, about networks and keys together: at most 1 000 000. The one about unknown addresses does
    /// not count.
    pub fn len(&self) -> usize {
        self.networks.len() + self.keys.len()
    }

    /// Returns `true` if there is no rule.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !self.blocks_unknown
    }

    /// The answer for a client with this address and this key; `None` for what is not known of it.
    pub fn access(&self, address: Option<IpAddr>, key: Option<&PartitionKey>) -> Access {
        self.find(address, key).unwrap_or_default()
    }

    /// The answer of the rules about a client, if there are any.
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

    /// Adds the rules of `other`, about networks, keys and unknown addresses.
    ///
    /// Where both have a rule about the same network or key, [`Block`](Access::Block) goes before [`Allow`](Access::Allow), and
    /// that before [`Limit`](Access::Limit). Clients without an address are blocked if one of them blocks these.
    ///
    /// ```
    /// use tower_quota::{Access, AccessRules};
    ///
    /// let (mut rules, mut others) = (AccessRules::new(), AccessRules::new());
    /// rules.set_network("203.0.113.0/24", Access::Block)?;
    /// others.set_network("203.0.113.0/24", Access::Allow)?;
    /// others.set_network("198.51.100.0/24", Access::Allow)?;
    /// rules.merge(&others)?;
    /// assert_eq!((rules.len(), rules.access("203.0.113.1".parse().ok(), None)), (2, Access::Block));
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ConfigErrorKind::AccessRules`] if both together have more than 1,000,000 rules. Nothing is added then.
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
            1 => format!("access rules: one more is more than {most}"),
            more => format!("access rules: {more} more are more than {most}"),
        };
        Err(ConfigError::new(ConfigErrorKind::AccessRules, message))
    }
}

impl fmt::Debug for AccessRules {
    /// Shows no networks and no keys, which may identify a person.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessRules")
            .field("networks", &self.networks.len())
            .field("keys", &self.keys.len())
            .finish()
    }
}

/// Of two answers about the same client, the one that holds.
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
