//! `barnacle-rs`: several limits in one script, as its README shows under "Multiple limits", with the user as the
//! identity. Its stores are those that `from_url` makes. It can not leave its fields out.

use barnacle_rs::{
    BarnacleKey, BarnacleLayer, BarnacleStore, FredBarnacleStore, Identity, Limit, RateLimitScope, RedisBarnacleStore,
};

use super::{Answer, BoxFuture, Connected, Peer, USER, Windows, limited};

const FRED: Peer = Peer {
    name: "barnacle-rs (fred)",
    package: Some("barnacle-rs"),
    algorithm: "fixed window",
    atomic: "yes",
    fields: "X-RateLimit, one window",
    failure: "closed, 503",
    connect: |url, windows| Box::pin(async move { layer(FredBarnacleStore::from_url(&url).await?, windows) }),
};

pub(super) const PEERS: [Peer; 2] = [
    FRED,
    Peer {
        name: "barnacle-rs (deadpool)",
        connect: connect_deadpool,
        ..FRED
    },
];

fn connect_deadpool(url: String, windows: Windows) -> BoxFuture<Connected> {
    Box::pin(async move { layer(RedisBarnacleStore::from_url(&url)?, windows) })
}

fn layer(store: impl BarnacleStore + 'static, windows: Windows) -> Connected {
    let limits = windows.map(|window| {
        Limit::new(window.quota, window.length).with_scope(RateLimitScope::Named(window.name.to_owned()))
    });
    let layer = BarnacleLayer::<_, ()>::builder()
        .with_store(store)
        .with_limits(limits)
        .with_identifier(|parts, ()| {
            let user = parts.headers.get(USER)?.to_str().ok()?;
            Some(Identity::new(BarnacleKey::Custom(user.to_owned())))
        })
        .build()?;
    // It fails closed: what is passed on was counted.
    Ok(limited(layer, |response| Answer::of(response, || true)))
}
