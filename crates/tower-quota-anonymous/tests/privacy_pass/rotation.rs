//! Keys change while an origin runs.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::clock::{Clock, Timestamp};
use tower_quota_anonymous::{Challenge, IssuerKey, KeySet, OriginLayer, OriginLayerBuilder, Profile};

use crate::{
    holder::{self, challenged, with_token},
    instances::send,
};

const MINUTE: Duration = Duration::from_secs(60);

/// A window of a minute begins.
const BORDER: Timestamp = Timestamp::from_micros(1_700_000_040_000_000);

fn after(minutes: f64) -> Timestamp {
    BORDER.saturating_add(MINUTE.mul_f64(minutes))
}

fn origin(keys: KeySet, clock: &Clock) -> OriginLayerBuilder {
    OriginLayer::builder("issuer.example", &[7; 32])
        .origin("api.example")
        .keys(keys)
        .policy("anonymous", 5, MINUTE)
        .clock(clock.clone())
}

/// An old key and the next one, whose time begins in the middle of the second window.
fn changing() -> (KeySet, [IssuerKey; 2]) {
    let mut keys = KeySet::new();
    keys.insert(keys.generate(Profile::P256).unwrap(), ..after(2.6));
    keys.insert(keys.generate(Profile::P256).unwrap(), after(1.5)..);
    let both: Vec<_> = keys.iter().cloned().collect();
    (keys, both.try_into().unwrap())
}

/// The public keys in the challenges of this moment.
async fn shown(layer: &OriginLayer) -> Vec<Vec<u8>> {
    let response = send(layer, Request::new(String::new())).await;
    let challenges = Challenge::from_headers(response.headers()).into_iter();
    challenges
        .map(|challenge| challenge.token_key().unwrap().to_vec())
        .collect()
}

/// A key that changed within a window would be a second allowance in it.
#[tokio::test]
async fn an_origin_shows_a_key_from_the_first_window_that_begins_in_its_time() {
    let (keys, [old, new]) = changing();
    let clock = Clock::manual(BORDER);
    let layer = origin(keys, &clock).build().unwrap();
    for (minutes, key) in [
        (0.0, &old),
        (1.0, &old),
        (1.9, &old),
        (2.0, &new),
        (2.9, &new),
        (9.0, &new),
    ] {
        clock.set(after(minutes));
        assert_eq!(shown(&layer).await, [key.public_key().as_bytes()], "{minutes}");
    }
}

#[tokio::test]
async fn before_the_first_key_begins_an_origin_shows_that_one() {
    let mut keys = KeySet::new();
    keys.insert(keys.generate(Profile::P256).unwrap(), after(2.0)..);
    keys.insert(keys.generate(Profile::P256).unwrap(), after(1.0)..);
    let second = keys.iter().nth(1).unwrap().public_key().as_bytes().to_vec();
    let layer = origin(keys, &Clock::manual(BORDER)).build().unwrap();
    assert_eq!(shown(&layer).await, [second]);
}

#[tokio::test]
async fn keys_are_replaced_while_an_origin_runs_and_tokens_of_a_key_pass_until_it_is_taken_away() {
    let (keys, [old, new]) = changing();
    let mut first = KeySet::new();
    first.insert(old.clone(), ..);
    let clock = Clock::manual(BORDER);
    let layer = origin(first, &clock).build().unwrap();
    // A service that was made before hears of it, too.
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let service = layer.layer(inner);
    let status = async |key: &IssuerKey, nonce| {
        let challenge = challenged(&send(&layer, Request::new(String::new())).await);
        let token = holder::Issuer(key.clone()).holder(&challenge).token(&challenge, nonce);
        let response = service
            .clone()
            .oneshot(with_token(Request::new(String::new()), &token))
            .await;
        response.unwrap().status().as_u16()
    };
    assert_eq!((status(&old, 0).await, status(&new, 0).await), (200, 401));
    layer.replace_keys(keys).unwrap();
    assert_eq!((status(&old, 1).await, status(&new, 1).await), (200, 200));
    // Its time is over, and it is still in the set.
    clock.set(after(3.0));
    assert_eq!((status(&old, 2).await, status(&new, 2).await), (200, 200));
    let mut last = KeySet::new();
    last.insert(new.clone(), ..);
    layer.replace_keys(last).unwrap();
    assert_eq!((status(&old, 3).await, status(&new, 3).await), (401, 200));
}

#[test]
fn a_set_that_cannot_work_is_rejected_and_the_origin_keeps_its_keys() {
    let (keys, [old, new]) = changing();
    let layer = origin(keys, &Clock::manual(BORDER)).build().unwrap();
    let (id, mut short) = (old.key_id(), KeySet::new());
    short.insert(old, ..after(2.5));
    short.insert(new, after(1.5)..);
    assert_eq!(
        layer.replace_keys(short).unwrap_err().to_string(),
        format!(r#"tokens "anonymous": key {id} and the next key must overlap for longer than window 60s"#)
    );
    assert_eq!(layer.keys().iter().len(), 2);
}
