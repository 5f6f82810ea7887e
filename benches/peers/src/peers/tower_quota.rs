//! The crate itself, as its README sets it up.

use http::Response;
use tower_quota::{
    ConfigError, Decision, MemoryStore, Outcome, QuotaPolicy, RateLimitLayer, RedisStore, ResponseFields, Store, key,
};

use super::{Answer, BoxFuture, Connected, Limiter, Local, Peer, Tables, USER, Window, Windows, limited};

const WITH_FIELDS: Peer = Peer {
    name: "tower-quota",
    package: Some("tower-quota"),
    algorithm: "token bucket",
    atomic: "yes",
    fields: "RateLimit, all windows",
    failure: "open",
    tables: Tables::All,
    connect: |url, windows| connect(url, windows, ResponseFields::draft11()),
};

pub(super) const PEERS: [Peer; 2] = [
    WITH_FIELDS,
    Peer {
        name: "tower-quota, no fields",
        fields: "none",
        tables: Tables::Costs,
        connect: |url, windows| connect(url, windows, ResponseFields::none()),
        ..WITH_FIELDS
    },
];

pub(super) const LOCALS: [Local; 2] = [
    Local {
        name: "tower-quota",
        package: Some("tower-quota"),
        fields: "RateLimit, all windows",
        one: |window| local(&[window], ResponseFields::draft11()),
        three: |windows| local(&windows, ResponseFields::draft11()),
    },
    Local {
        name: "tower-quota, no fields",
        package: Some("tower-quota"),
        fields: "none",
        one: |window| local(&[window], ResponseFields::none()),
        three: |windows| local(&windows, ResponseFields::none()),
    },
];

fn connect(url: String, windows: Windows, fields: ResponseFields) -> BoxFuture<Connected> {
    Box::pin(async move {
        let layer = layer(RedisStore::new(url)?, &windows, fields)?;
        Ok(limited(layer, answer))
    })
}

fn local(windows: &[Window], fields: ResponseFields) -> Limiter {
    let layer = layer(MemoryStore::new(), windows, fields);
    limited(layer.expect("the settings are sound"), answer)
}

fn layer(store: impl Store, windows: &[Window], fields: ResponseFields) -> Result<RateLimitLayer, ConfigError> {
    let builder = RateLimitLayer::builder(store)
        .scope("peers")
        .key(key::header(USER))
        .response_fields(fields);
    let builder = windows.iter().fold(builder, |builder, window| {
        builder.policy(QuotaPolicy::new(window.name, window.quota.into(), window.length))
    });
    builder.build()
}

fn answer<B>(response: &Response<B>) -> Answer {
    let decision = response.extensions().get::<Decision>();
    Answer::of(response, || {
        decision.is_none_or(|decision| decision.outcome() == Outcome::Allowed)
    })
}
