//! Settings of attribution: keys beside the main one, and the names of callers in stores.

use std::any::type_name_of_val;

use super::RateLimitLayerBuilder;
use crate::{key::KeyExtractor, layer::MissingKey};

/// # Advanced: attribution
impl RateLimitLayerBuilder {
    /// Another key, for policies that are [counted by](crate::QuotaPolicy::keyed_by) it. Names must be unique and not
    /// empty.
    ///
    /// A request then uses the quota of several partitions, in one decision: of all of them or of none. Where it has no
    /// such key, [`on_missing_key`](Self::on_missing_key) says what happens: it shares the quota of all that have none, or these policies
    /// do not apply to it, or it is rejected.
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
        let type_name = type_name_of_val(&key);
        let key = (Box::new(key) as Box<dyn KeyExtractor>, type_name);
        self.attribution.named_keys.push((name.into(), key));
        self
    }

    /// Sets the treatment of requests without a key. Default: [`MissingKey::Share`]. See [`MissingKey`] for an example of each.
    pub fn on_missing_key(mut self, no_key: MissingKey) -> Self {
        self.attribution.no_key = no_key;
        self
    }

    /// A secret that goes into the digests under which stores know callers. Default: none, so that the digest depends
    /// on the scope alone.
    ///
    /// You want it if others can read the store and must not find out, by trying names, who has called; and if a policy
    /// [shows its partition key](crate::QuotaPolicy::show_partition_key), since then every client can try them. It has to be the
    /// same in all instances; with another secret, every caller starts with a full quota.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let store = MemoryStore::new();
    /// let builder = || {
    ///     let builder = RateLimitLayer::builder(store.clone()).scope("api").key(key::header("x-user-id"));
    ///     builder.policy(QuotaPolicy::per_hour("hour", 10))
    /// };
    /// let alice = || Request::get("/").header("x-user-id", "alice");
    ///
    /// send(&builder().digest_key([7; 32]).build()?, alice()).await;
    /// let with_the_secret = send(&builder().digest_key([7; 32]).build()?, alice()).await;
    /// assert_eq!(with_the_secret.headers()["ratelimit"], r#""hour";r=8;t=2880"#);
    /// let without = send(&builder().build()?, alice()).await;
    /// assert_eq!(without.headers()["ratelimit"], r#""hour";r=9;t=3240"#);
    /// # Ok(()) });
    /// ```
    pub fn digest_key(mut self, key: [u8; 32]) -> Self {
        self.attribution.digest_key = Some(key);
        self
    }

    /// Names callers in the keys of Redis, as `quota:{scope:api/user:alice}`, instead of by digests. Default: digests.
    ///
    /// You want it while you look for a mistake, or where operators search Redis by name. A person who can read Redis
    /// then reads who has called, and keys are longer; a key that would be longer than 200 bytes stays a digest. All
    /// instances need the same setting: with another one, every caller starts with a full quota. In-memory stores have
    /// no such keys. It cannot be set together with a [`digest_key`](Self::digest_key), which is there to hide names.
    ///
    /// ```
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    /// let builder = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60))
    ///     .readable_keys();
    ///
    /// let error = builder.digest_key([7; 32]).build().unwrap_err();
    /// assert_eq!(error.to_string(), "readable keys: a digest key is set, which is to hide who has called");
    /// ```
    pub fn readable_keys(mut self) -> Self {
        self.attribution.readable_keys = true;
        self
    }
}
