//! Rule sets on real servers.

use test_kit::{RedisServer, shared_server};
use tower_quota::{RedisStore, RedisStoreBuilder};
use tower_quota_fleet::{RedisRules, RulesPublisher};

pub(crate) const GUIDE: &str = include_str!("../../docs/fleet.md");

pub(crate) const PRODUCTION: &str = include_str!("../../../../docs/PRODUCTION.md");

/// The key of a rule set of the usual prefix.
pub(crate) fn key(set: &str, kind: &str) -> String {
    format!("rules:{{quota:{set}}}:{kind}")
}

pub(crate) fn rules_at(servers: RedisStoreBuilder, set: &str) -> RedisRules {
    RedisRules::new(servers, set).unwrap()
}

/// A rule set of the shared server.
pub(crate) fn rules(set: &str) -> RedisRules {
    rules_at(RedisStore::builder(shared_server().url()), set)
}

pub(crate) fn publisher_at(servers: RedisStoreBuilder, set: &str) -> RulesPublisher {
    RulesPublisher::new(rules_at(servers, set), "alice")
}

/// A publisher of a rule set of the shared server.
pub(crate) fn publisher(set: &str) -> RulesPublisher {
    RulesPublisher::new(rules(set), "alice")
}

/// The words of a documentation after `ACL SETUSER` and a name, up to the end of the block.
pub(crate) fn documented_user(documentation: &'static str, name: &str) -> Vec<&'static str> {
    let (_, rules) = documentation.split_once(&format!("ACL SETUSER {name} ")).unwrap();
    rules.split("```").next().unwrap().split_whitespace().collect()
}

/// Adds a user, and returns the URL with its password.
pub(crate) fn add_user(server: &RedisServer, name: &str, rules: &[&str]) -> String {
    server.set_user(name, rules);
    format!("redis://{name}:password@127.0.0.1:{}/", server.port())
}
