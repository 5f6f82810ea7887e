//! `tower-rate-limiter`: a layer for each window on one multiplexed connection, the only kind that it takes.

use std::error::Error;

use http::{Request, Response};
use redis::{Client, aio::MultiplexedConnection};
use tower_rate_limiter::{
    FixedWindow, GcraQuota, KeyExtractor, RateLimitError, RateLimitFields, RateLimitLayer, RateLimitPolicy, RedisGcra,
    RedisStore,
};

use super::{Answer, BoxFuture, Connected, Peer, USER, Window, Windows, limited_thrice};

const NAMESPACE: &str = "peers";

const FIXED_WINDOW: Peer = Peer {
    name: if cfg!(feature = "tower-rate-limiter-lua") {
        "tower-rate-limiter x3, fixed, script"
    } else {
        "tower-rate-limiter x3, fixed"
    },
    package: Some("tower-rate-limiter"),
    algorithm: "fixed window",
    atomic: "no",
    fields: "RateLimit, all windows",
    failure: "closed, 503",
    connect: |url, windows| {
        connect(url, windows, RateLimitFields::default(), |connection, window| {
            let store = RedisStore::new(connection).with_namespace(NAMESPACE);
            Ok(FixedWindow::new(store, window.quota.into(), window.length)?)
        })
    },
};

const GCRA: Peer = Peer {
    name: "tower-rate-limiter x3, GCRA",
    algorithm: "GCRA",
    connect: |url, windows| connect(url, windows, RateLimitFields::default(), gcra),
    ..FIXED_WINDOW
};

pub(super) const PEERS: [Peer; 3] = [
    FIXED_WINDOW,
    GCRA,
    Peer {
        name: "tower-rate-limiter x3, GCRA, no fields",
        fields: "none",
        connect: |url, windows| connect(url, windows, RateLimitFields::Disabled, gcra),
        ..GCRA
    },
];

type BoxError = Box<dyn Error + Send + Sync>;

fn gcra(connection: MultiplexedConnection, window: Window) -> Result<RedisGcra, BoxError> {
    let quota = GcraQuota::new(window.quota, window.length, window.quota)?;
    Ok(RedisGcra::new(connection, quota).with_namespace(NAMESPACE))
}

/// It fails closed: what is passed on was counted.
fn answer<B>(response: &Response<B>) -> Answer {
    Answer::of(response, || true)
}

fn connect<P>(
    url: String,
    windows: Windows,
    fields: RateLimitFields,
    policy: fn(MultiplexedConnection, Window) -> Result<P, BoxError>,
) -> BoxFuture<Connected>
where
    P: RateLimitPolicy + Clone + Send + Sync + 'static,
    P::Future: Send,
{
    Box::pin(async move {
        let connection = Client::open(url)?.get_multiplexed_async_connection().await?;
        let layer = |window: Window| -> Result<_, BoxError> {
            let builder = RateLimitLayer::builder(UserId).policy_name(window.name);
            let policy = policy(connection.clone(), window)?;
            Ok(builder.rate_limit_fields(fields).with_policy(policy).build()?)
        };
        let [second, minute, day] = windows;
        let layers = [layer(second)?, layer(minute)?, layer(day)?];
        Ok(limited_thrice(layers, answer))
    })
}

#[derive(Clone, Copy, Debug)]
struct UserId;

impl KeyExtractor for UserId {
    type Key = String;

    fn extract<B>(&self, request: &Request<B>) -> Result<String, RateLimitError> {
        let user = request.headers().get(USER).and_then(|value| value.to_str().ok());
        let missing = || RateLimitError::Key("missing_user_id".to_owned(), format!("{USER} is required"));
        user.map(str::to_owned).ok_or_else(missing)
    }
}
