//! The crate itself, as its README sets it up.

use http::Response;
use tower_quota::{Decision, Outcome, QuotaPolicy, RateLimitLayer, RedisStore, ResponseFields, key};

use super::{Answer, BoxFuture, Connected, Peer, USER, Windows, limited};

const WITH_FIELDS: Peer = Peer {
    name: "tower-quota",
    package: Some("tower-quota"),
    algorithm: "token bucket",
    atomic: "yes",
    fields: "RateLimit, all windows",
    failure: "open",
    connect: |url, windows| connect(url, windows, ResponseFields::draft11()),
};

pub(super) const PEERS: [Peer; 2] = [
    WITH_FIELDS,
    Peer {
        name: "tower-quota, no fields",
        fields: "none",
        connect: |url, windows| connect(url, windows, ResponseFields::none()),
        ..WITH_FIELDS
    },
];

fn connect(url: String, windows: Windows, fields: ResponseFields) -> BoxFuture<Connected> {
    Box::pin(async move {
        let builder = RateLimitLayer::builder(RedisStore::new(url)?)
            .scope("peers")
            .key(key::header(USER))
            .response_fields(fields);
        let builder = windows.iter().fold(builder, |builder, window| {
            builder.policy(QuotaPolicy::new(window.name, window.quota.into(), window.length))
        });
        Ok(limited(builder.build()?, answer))
    })
}

fn answer<B>(response: &Response<B>) -> Answer {
    let decision = response.extensions().get::<Decision>();
    Answer::of(response, || {
        decision.is_none_or(|decision| decision.outcome() == Outcome::Allowed)
    })
}
