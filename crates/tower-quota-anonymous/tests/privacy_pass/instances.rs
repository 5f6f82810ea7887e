//! Instances of an origin with a store of their choice, and tokens for them.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tower_quota::Store;
use tower_quota_anonymous::{IssuerKey, OriginLayer, OriginLayerBuilder, Profile, Token, TokenChallenge};

use crate::holder::{Issuer, challenged, with_token};

/// An origin, of this many tokens for each credential in a window.
pub(crate) fn origin(key: &IssuerKey, limit: u32, window: Duration) -> OriginLayerBuilder {
    OriginLayer::builder("issuer.example", &[7; 32])
        .origin("api.example")
        .key(key.clone())
        .policy("anonymous", limit, window)
}

/// An instance of an origin, of 1 000 tokens for each credential in a day.
pub(crate) fn instance(key: &IssuerKey, store: impl Store) -> OriginLayerBuilder {
    origin(key, 1_000, Duration::from_secs(86_400))
        // A process that is kept from running must not fail open here.
        .deadline(Duration::from_secs(30))
        .max_queued(1_000)
        .store(store)
}

pub(crate) fn new_key() -> IssuerKey {
    IssuerKey::generate(Profile::P256).unwrap()
}

pub(crate) async fn send(layer: &OriginLayer, request: Request<String>) -> Response<Bytes> {
    test_kit::send(layer, request).await
}

pub(crate) async fn status(layer: &OriginLayer, token: &Token) -> u16 {
    send(layer, with_token(Request::new(String::new()), token))
        .await
        .status()
        .as_u16()
}

async fn challenge(layer: &OriginLayer) -> TokenChallenge {
    challenged(&send(layer, Request::new(String::new())).await)
}

/// Tokens of one new credential.
pub(crate) async fn tokens(layer: &OriginLayer, key: &IssuerKey, count: u32) -> Vec<Token> {
    let challenge = challenge(layer).await;
    let holder = Issuer(key.clone()).holder(&challenge);
    (0..count).map(|nonce| holder.token(&challenge, nonce)).collect()
}
