//! tower-quota
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")
)]

#[macro_use]
mod telemetry;

mod algorithm;
pub mod clock;
mod decision;
mod error;
mod fields;
mod guard;
pub mod key;
mod layer;
mod partition;
mod plan;
mod policy;
mod quota;
mod rejection;
mod store;

#[cfg(feature = "redis")]
pub use self::store::redis::{RedisStore, RedisStoreBuilder};
pub use self::{
    decision::{Allowance, Decision, Outcome},
    error::{ConfigError, ConfigErrorKind, StoreError, StoreErrorKind},
    guard::FailureMode,
    layer::{NoKey, RateLimit, RateLimitBody, RateLimitLayer, RateLimitLayerBuilder, ResponseFuture},
    partition::{PartitionId, PartitionKey, ToPartitionKey},
    plan::{Charge, Plan},
    policy::Tiers,
    quota::{CheckedPolicies, CheckedPolicy, QuotaPolicy},
    rejection::Rejection,
    store::{
        AcquireFuture, Store,
        memory::{MemoryStore, MemoryStoreBuilder},
    },
};
