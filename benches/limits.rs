//! The layer in memory and tower_governor, with the same key and with limits that all requests pass.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every benchmark includes this module and uses a part of it"
)]

use http::{HeaderName, Request};
use tower_governor::{
    GovernorError,
    governor::{GovernorConfig, GovernorConfigBuilder},
    key_extractor::KeyExtractor,
};
use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Store, key};

pub const USER: HeaderName = HeaderName::from_static("x-user-id");
/// A burst capacity that is never exhausted here.
pub const PLENTY: u32 = 500_000_000;
/// Realistic rates, so that the state of a caller does not expire between two of its requests.
pub const POLICIES: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("second", 10).with_burst_capacity(PLENTY as u64),
    QuotaPolicy::per_minute("minute", 100).with_burst_capacity(PLENTY as u64),
    QuotaPolicy::per_day("day", 5_000).with_burst_capacity(PLENTY as u64),
];

pub fn builder(store: impl Store, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayerBuilder {
    let builder = RateLimitLayer::builder(store)
        .scope("bench")
        .key(key::header(USER.as_str()));
    policies
        .into_iter()
        .fold(builder, |builder, policy| builder.policy(policy))
}

/// A layer with fields.
pub fn layer(windows: usize) -> RateLimitLayer {
    let builder = builder(MemoryStore::new(), POLICIES.into_iter().take(windows));
    builder.build().expect("the settings are sound")
}

/// tower_governor with fields.
pub fn governor() -> GovernorConfig<User, governor::middleware::StateInformationMiddleware> {
    let mut config = GovernorConfigBuilder::default().key_extractor(User);
    config.per_millisecond(100).burst_size(PLENTY);
    config.use_headers().finish().expect("the settings are sound")
}

/// Extracts the same key as `key::header`, like the header example of tower_governor.
#[derive(Clone, Debug)]
pub struct User;

impl KeyExtractor for User {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let value = request.headers().get(USER).and_then(|value| value.to_str().ok());
        value.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}
