//! `tower-rate-limiter`: a layer for each window on one multiplexed connection, the only kind that it takes.

use std::error::Error;

use http::{Request, Response};
use redis::{Client, aio::MultiplexedConnection};
use tower_rate_limiter::{
    DefaultResponseFactory, FixedWindow, GcraQuota, KeyExtractor, MemoryGcra, MemoryStore, RateLimitError,
    RateLimitFields, RateLimitLayer, RateLimitPolicy, RedisGcra, RedisStore,
};

use super::{Answer, BoxFuture, Connected, Local, Peer, Tables, USER, Window, Windows, limited, limited_thrice};

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
    tables: Tables::All,
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
        tables: Tables::Costs,
        connect: |url, windows| connect(url, windows, RateLimitFields::Disabled, gcra),
        ..GCRA
    },
];

pub(super) const LOCALS: [Local; 2] = [
    Local {
        name: "tower-rate-limiter, fixed",
        package: Some("tower-rate-limiter"),
        fields: "RateLimit, all windows",
        one: |window| limited(local_layer(window, local_fixed), answer),
        three: |windows| limited_thrice(windows.map(|window| local_layer(window, local_fixed)), answer),
    },
    Local {
        name: "tower-rate-limiter, GCRA",
        package: Some("tower-rate-limiter"),
        fields: "RateLimit, all windows",
        one: |window| limited(local_layer(window, local_gcra), answer),
        three: |windows| limited_thrice(windows.map(|window| local_layer(window, local_gcra)), answer),
    },
];

type BoxError = Box<dyn Error + Send + Sync>;

fn gcra(connection: MultiplexedConnection, window: Window) -> Result<RedisGcra, BoxError> {
    Ok(RedisGcra::new(connection, quota(window)?).with_namespace(NAMESPACE))
}

fn quota(window: Window) -> Result<GcraQuota, BoxError> {
    Ok(GcraQuota::new(window.quota, window.length, window.quota)?)
}

fn local_fixed(window: Window) -> Result<FixedWindow<MemoryStore>, BoxError> {
    Ok(FixedWindow::new(
        MemoryStore::new(),
        window.quota.into(),
        window.length,
    )?)
}

fn local_gcra(window: Window) -> Result<MemoryGcra, BoxError> {
    Ok(MemoryGcra::new(quota(window)?))
}

fn local_layer<P: RateLimitPolicy>(
    window: Window,
    policy: fn(Window) -> Result<P, BoxError>,
) -> RateLimitLayer<UserId, P, DefaultResponseFactory> {
    let layer = policy(window).and_then(|policy| layer(window, RateLimitFields::default(), policy));
    layer.expect("the settings are sound")
}

fn layer<P: RateLimitPolicy>(
    window: Window,
    fields: RateLimitFields,
    policy: P,
) -> Result<RateLimitLayer<UserId, P, DefaultResponseFactory>, BoxError> {
    let builder = RateLimitLayer::builder(UserId).policy_name(window.name);
    Ok(builder.rate_limit_fields(fields).with_policy(policy).build()?)
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
        let layer = |window| layer(window, fields, policy(connection.clone(), window)?);
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
