//! Several instances of an origin and what they know of spent tokens: with a store, without one, and while it comes and goes.

use std::time::Duration;

use http::Request;
use test_kit::{TestStore, Timing};
use tower_quota::{
    FailureMode, StoreErrorKind,
    clock::{Clock, Timestamp},
};
use tower_quota_anonymous::{IssuerKey, OriginLayer, OriginLayerBuilder, Profile, Token, TokenChallenge};

use crate::{
    holder::{Issuer, challenged, with_token},
    instances::{self, origin},
};

const MINUTE: Duration = Duration::from_secs(60);

/// A window of a minute begins.
const BORDER: Timestamp = Timestamp::from_micros(1_700_000_040_000_000);

const DOWN: Timing = Timing::Failing(StoreErrorKind::Unreachable);

/// Two instances of an origin with one store.
struct Site {
    issuer: Issuer,
    clock: Clock,
    store: TestStore,
    instances: [OriginLayer; 2],
}

impl Site {
    fn new(set: impl Fn(OriginLayerBuilder) -> OriginLayerBuilder) -> Self {
        let key = IssuerKey::generate(Profile::P256).unwrap();
        let clock = Clock::manual(BORDER);
        let store = TestStore::on(&clock);
        let instance = |_| {
            let builder = origin(&key, 100, MINUTE).store(store.clone());
            set(builder.clock(clock.clone())).build().unwrap()
        };
        Self {
            instances: [0, 1].map(instance),
            issuer: Issuer(key),
            clock,
            store,
        }
    }

    async fn status(&self, instance: usize, token: &Token) -> u16 {
        instances::status(&self.instances[instance], token).await
    }

    async fn challenge(&self) -> TokenChallenge {
        challenged(&instances::send(&self.instances[0], Request::new(String::new())).await)
    }

    /// Tokens of one credential for the window of this moment.
    async fn tokens(&self, count: u32) -> Vec<Token> {
        instances::tokens(&self.instances[0], &self.issuer.0, count).await
    }
}

/// M31
#[tokio::test]
async fn what_one_instance_has_accepted_the_other_rejects() {
    let site = Site::new(|builder| builder);
    let tokens = site.tokens(2).await;
    assert_eq!(site.status(0, &tokens[0]).await, 200);
    assert_eq!(site.status(1, &tokens[0]).await, 429);
    assert_eq!(site.status(1, &tokens[1]).await, 200);
    assert_eq!(site.status(0, &tokens[1]).await, 429);
    // Two layers with other settings that accept the same challenge are no other place to spend a token in.
    let again = origin(&site.issuer.0, 7, MINUTE)
        .grace(Duration::ZERO)
        .clock_skew(Duration::from_secs(30))
        .optional()
        .store(site.store.clone())
        .clock(site.clock.clone())
        .build()
        .unwrap();
    assert_eq!(instances::status(&again, &tokens[0]).await, 429);
}

/// A fixed window of the store would end at one of its borders, and the tag would be new behind it.
#[tokio::test]
async fn a_tag_spent_before_a_border_stays_spent_behind_it_on_all_instances() {
    let site = Site::new(|builder| builder);
    site.clock.advance(MINUTE);
    let next = site.challenge().await;
    site.clock.set(BORDER);
    let tokens = site.tokens(2).await;
    let ahead = site.issuer.holder(&next).token(&next, 0);

    // At the last microsecond of the window, tokens for its challenge and for the next challenge are accepted.
    site.clock.advance(MINUTE - Duration::from_micros(1));
    assert_eq!(site.status(0, &tokens[0]).await, 200);
    assert_eq!(site.status(0, &ahead).await, 200);

    site.clock.advance(Duration::from_micros(1));
    assert_eq!(site.status(1, &tokens[0]).await, 429);
    assert_eq!(site.status(1, &ahead).await, 429);
    // As long as an origin accepts it: to the end of grace, and of the window in whose grace it is.
    site.clock.advance(Duration::from_millis(14_900));
    assert_eq!(site.status(1, &tokens[0]).await, 429);
    assert_eq!(site.status(1, &tokens[1]).await, 200);
    site.clock.advance(MINUTE);
    assert_eq!(site.status(1, &ahead).await, 429);
}

/// M38
#[tokio::test]
async fn without_its_store_a_closed_origin_answers_503() {
    let site = Site::new(|builder| builder.failure_mode(FailureMode::Closed));
    let tokens = site.tokens(2).await;
    site.store.set(DOWN);
    for _ in 0..2 {
        let replay = with_token(Request::new(String::new()), &tokens[0]);
        let response = instances::send(&site.instances[0], replay).await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
        assert!(!response.headers().contains_key("www-authenticate"));
        let problem: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        let uri = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
        assert_eq!(problem["type"], uri);
    }
    // The store has not seen it, so it is good when the store is back.
    site.store.set(Timing::AtOnce);
    assert_eq!(site.status(0, &tokens[0]).await, 200);
}

/// Tags that the store has recorded are evicted; tags that only this process has recorded stay.
#[tokio::test]
async fn a_full_memory_does_not_hinder_an_origin_whose_store_answers() {
    let site = Site::new(|builder| builder.max_tags(2));
    let tokens = site.tokens(8).await;
    for token in &tokens[..4] {
        assert_eq!(site.status(0, token).await, 200);
    }
    site.store.set(DOWN);
    for (token, status) in tokens[4..].iter().zip([200, 200, 503, 503]) {
        assert_eq!(site.status(0, token).await, status);
    }
    // A token that was accepted without the store stays known when the store answers again.
    site.store.set(Timing::AtOnce);
    site.clock.advance(Duration::from_secs(1));
    assert_eq!(site.status(0, &tokens[6]).await, 200);
    for token in &tokens[4..7] {
        assert_eq!(site.status(0, token).await, 429);
    }
}
