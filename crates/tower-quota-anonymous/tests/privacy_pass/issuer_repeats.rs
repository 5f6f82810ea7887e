//! Rations of credentials. Requests whose answers were lost are sent again, and not charged again.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::Full;
use test_kit::{RedisServer, RemoteStore, TestStore, shared_server};
use tokio::{
    sync::Semaphore,
    task::{JoinHandle, yield_now},
};
use tower::{Layer, ServiceExt};
use tower_quota::{
    Access, AccessList, Algorithm, Direction, Limiter, Measurement, MemoryStore, MissingKey, PartitionKey, Plan,
    QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore, Rules, Settlement, Store, StoreError,
    StoreErrorKind, StoreFuture, Tiers, clock::Clock, key,
};
use tower_quota_anonymous::{CredentialRequest, Issuer, IssuerKey, KeySet, Profile, Token};

use crate::{
    holder::challenged,
    instances,
    issuer::{content, hours, keys, message, noon, post, send, twin},
};

/// Two credentials a day for each account, and none without one.
fn ration(store: impl Store) -> RateLimitLayerBuilder {
    rationed(store).policy(QuotaPolicy::per_day("credentials", 2))
}

fn rationed(store: impl Store) -> RateLimitLayerBuilder {
    RateLimitLayerBuilder::from(
        Limiter::builder(store)
            .on_missing_key(MissingKey::Reject)
            .deadline(Duration::from_secs(60)),
    )
    .scope("credentials")
    .key(key::header("x-account"))
}

/// An issuer, its ration, and the request of a client.
#[derive(Clone)]
struct Scene {
    issuer: Issuer,
    ration: RateLimitLayer,
    message: Vec<u8>,
}

impl Scene {
    fn new(ration: RateLimitLayerBuilder) -> Self {
        let ration = ration.build().unwrap();
        let issuer = Issuer::builder(ration.clone()).keys(keys()).build().unwrap();
        Self::of(issuer, ration)
    }

    fn of(issuer: Issuer, ration: RateLimitLayer) -> Self {
        let message = message(issuer.keys().iter().next().unwrap());
        Self {
            issuer,
            ration,
            message,
        }
    }

    /// Another request, whose proof fails: the issuer responds with 422 if the account may have a credential.
    fn other(&self, number: u8) -> Vec<u8> {
        let mut message = self.message.clone();
        *message.last_mut().unwrap() ^= number;
        message
    }

    fn request(account: &str, message: &[u8]) -> Request<Full<Bytes>> {
        let mut request = post(message.to_vec());
        request.headers_mut().insert("x-account", account.parse().unwrap());
        request
    }

    async fn response(&self, account: &str, message: &[u8]) -> Response<Full<Bytes>> {
        send(&self.issuer, Self::request(account, message)).await
    }

    async fn send(&self, account: &str, message: &[u8]) -> u16 {
        self.response(account, message).await.status().as_u16()
    }

    /// The status of the account's request.
    async fn ask(&self, account: &str) -> u16 {
        self.send(account, &self.message).await
    }

    /// The status of the request of Alice, who is in this team.
    async fn ask_for(&self, team: &str) -> u16 {
        let mut request = Self::request("alice", &self.message);
        request.headers_mut().insert("x-team", team.parse().unwrap());
        send(&self.issuer, request).await.status().as_u16()
    }

    fn asking(&self, account: &'static str) -> JoinHandle<u16> {
        let scene = self.clone();
        tokio::spawn(async move { scene.ask(account).await })
    }

    async fn asked(&self, account: &str, times: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..times {
            statuses.push(self.ask(account).await);
        }
        statuses
    }

    /// The remaining units of the account under each policy.
    async fn allowances(&self, account: &str) -> Vec<u64> {
        let account = PartitionKey::new("x-account", account);
        let decision = self.ration.limiter().caller(&account).peek().await.unwrap().unwrap();
        decision.allowances().map(|policy| policy.remaining()).collect()
    }

    /// The credentials that the account may still have.
    async fn remaining(&self, account: &str) -> u64 {
        self.allowances(account).await[0]
    }
}

#[tokio::test]
async fn a_rate_limit_rations_by_account_so_that_two_accounts_behind_one_address_have_a_credential_each() {
    let scene = Scene::new(rationed(MemoryStore::new()).policy(QuotaPolicy::per_day("credentials", 1)));
    for account in ["alice", "bob"] {
        let issued = scene.response(account, &scene.message).await;
        assert_eq!(issued.status(), 200);
        assert_eq!(issued.headers()["ratelimit"], r#""credentials";r=0;t=86400"#);
        assert_eq!(issued.headers()["ratelimit-policy"], r#""credentials";q=1;w=86400"#);
        assert_eq!(content(issued).await.len(), Profile::P256.response_len());

        let rejected = scene.response(account, &scene.other(1)).await;
        assert_eq!(rejected.status(), 429);
        assert!(rejected.headers().contains_key("retry-after"));
        assert!(rejected.headers().contains_key("ratelimit"));
        let problem: serde_json::Value = serde_json::from_slice(&content(rejected).await).unwrap();
        assert_eq!(problem["violated-policies"][0], "credentials");
    }
    assert_eq!(send(&scene.issuer, post(scene.message)).await.status(), 403);
}

/// A credential outlasts an outage, so none is issued uncounted, regardless of the layer's failure mode.
#[tokio::test]
async fn nothing_is_issued_uncounted_while_the_store_is_unavailable() {
    let scene = Scene::new(ration(TestStore::failing(StoreErrorKind::Unreachable)));
    let response = scene.response("alice", &scene.message).await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
}

#[tokio::test]
async fn a_request_is_charged_once_and_answered_four_times_and_the_fifth_is_charged_again() {
    let scene = Scene::new(ration(MemoryStore::new()));
    let first = scene.response("alice", &scene.message).await;
    assert_eq!(first.status(), 200);
    assert_eq!(first.headers()["ratelimit"], r#""credentials";r=1;t=43200"#);
    for _ in 0..3 {
        let again = scene.response("alice", &scene.message).await;
        assert_eq!(again.status(), 200);
        assert!(!again.headers().contains_key("ratelimit"));
        assert_eq!(content(again).await.len(), Profile::P256.response_len());
    }
    assert_eq!(scene.remaining("alice").await, 1);
    assert_eq!(scene.ask("alice").await, 200);
    assert_eq!(scene.remaining("alice").await, 0);
    assert_eq!(scene.ask("alice").await, 429);
}

#[tokio::test]
async fn policies_by_another_key_charge_the_same_bytes_for_each_of_its_values() {
    let ration = rationed(MemoryStore::new()).named_key("team", key::header("x-team"));
    let scene = Scene::new(ration.policy(QuotaPolicy::per_day("team", 1).keyed_by("team")));
    assert_eq!([scene.ask_for("red").await, scene.ask_for("red").await], [200, 200]);
    assert_eq!(scene.send("alice", &scene.other(1)).await, 403);
    for _ in 0..4 {
        assert_eq!(scene.ask_for("blue").await, 200);
    }
    assert_eq!(scene.ask_for("blue").await, 429);
}

#[tokio::test]
async fn a_request_of_another_key_is_another_one() {
    let ration = ration(MemoryStore::new()).build().unwrap();
    let key = IssuerKey::generate(Profile::P256).unwrap();
    let [first, second] = [twin(&key), key].map(|key| {
        let mut keys = KeySet::new();
        keys.insert(key, ..);
        Issuer::builder(ration.clone()).keys(keys).build().unwrap()
    });
    let scene = Scene::of(first, ration);
    assert_eq!(scene.ask("alice").await, 200);
    assert_eq!(scene.remaining("alice").await, 1);
    let other = Scene {
        issuer: second,
        ..scene.clone()
    };
    assert_eq!(other.ask("alice").await, 200);
    assert_eq!(scene.remaining("alice").await, 0);
    assert_eq!([scene.ask("alice").await, other.ask("alice").await], [200, 200]);
}

#[tokio::test]
async fn what_cannot_be_read_is_not_charged_and_what_fails_its_proof_is_charged_once() {
    let scene = Scene::new(ration(MemoryStore::new()));
    assert_eq!(scene.send("alice", &scene.message[1..]).await, 422);
    assert_eq!(scene.remaining("alice").await, 2);
    let forged = scene.other(1);
    for remaining in [1, 1, 1, 1, 0] {
        assert_eq!(scene.send("alice", &forged).await, 422);
        assert_eq!(scene.remaining("alice").await, remaining);
    }
    assert_eq!(scene.send("alice", &forged).await, 429);
}

#[tokio::test]
async fn however_late_repeats_are_they_end_one_window_after_the_charge() {
    let clock = Clock::manual(noon());
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let hourly = QuotaPolicy::per_hour("credentials", 1).with_algorithm(Algorithm::SlidingWindowLog);
    let scene = Scene::new(rationed(store).policy(hourly));
    for _ in 0..3 {
        assert_eq!(scene.ask("alice").await, 200);
        clock.advance(hours(1) - Duration::from_micros(1));
        assert_eq!(scene.asked("alice", 3).await, [200; 3]);
        assert_eq!(scene.ask("alice").await, 429);
        clock.advance(Duration::from_micros(1));
        assert_eq!(scene.remaining("alice").await, 1);
        // A request after the window is charged again.
        assert_eq!(scene.ask("alice").await, 200);
        assert_eq!(scene.remaining("alice").await, 0);
        assert_eq!(scene.ask("alice").await, 429);
        clock.advance(hours(1));
    }
}

/// A client would hardly have noticed before a window of a second is over.
#[tokio::test]
async fn repeats_are_possible_for_a_minute_at_least_and_for_31_days_at_most() {
    let clock = Clock::manual(noon());
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let month = Duration::from_secs(31 * 86_400);
    for (policy, lasts) in [
        (QuotaPolicy::per_second("second", 2), Duration::from_secs(60)),
        (QuotaPolicy::new("year", 2, month * 12), month),
        (QuotaPolicy::per_calendar_month("month", 2, "UTC"), month),
    ] {
        let scene = Scene::new(rationed(store.clone()).scope(policy.name()).policy(policy));
        assert_eq!(scene.ask("alice").await, 200);
        clock.advance(lasts - Duration::from_secs(1));
        let remaining = scene.remaining("alice").await;
        assert_eq!(scene.ask("alice").await, 200);
        assert_eq!(scene.remaining("alice").await, remaining);
        clock.advance(Duration::from_secs(1));
        let remaining = scene.remaining("alice").await;
        assert_eq!(scene.ask("alice").await, 200);
        assert_eq!(scene.remaining("alice").await, remaining - 1);
    }
}

#[tokio::test]
async fn an_exhausted_account_gets_no_credential_by_new_bytes_however_many_come_at_once() {
    let scene = Scene::new(rationed(RemoteStore::<3>::default()).policy(QuotaPolicy::per_day("credentials", 1)));
    let messages: Vec<_> = (1..=50).map(|number| scene.other(number)).collect();
    let all = || join_all(messages.iter().map(|message| scene.send("alice", message)));
    let statuses = all().await;
    assert_eq!(statuses.iter().filter(|status| **status == 422).count(), 1);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 49);
    // The one that was charged may be repeated.
    let granted = |statuses: Vec<u16>| statuses.into_iter().filter(|status| *status != 429).count();
    let mut repeated = 0;
    for _ in 0..5 {
        repeated += granted(all().await);
    }
    assert_eq!(repeated, 3);
}

#[tokio::test]
async fn of_equal_requests_at_once_one_is_charged_and_an_exhausted_account_gets_nothing() {
    let scene = Scene::new(rationed(RemoteStore::<3>::default()).policy(QuotaPolicy::per_day("credentials", 1)));
    let all = |account| join_all((0..50).map(move |_| account).map(|account| scene.ask(account)));
    let mut issued = 0;
    for _ in 0..5 {
        let statuses = all("alice").await;
        assert!(statuses.iter().all(|status| matches!(status, 200 | 429)));
        issued += statuses.iter().filter(|status| **status == 200).count();
    }
    assert_eq!(issued, 4);

    assert_eq!(scene.send("bob", &scene.other(1)).await, 422);
    for _ in 0..2 {
        assert_eq!(all("bob").await, [429; 50]);
    }
}

#[tokio::test]
async fn of_two_or_four_equal_requests_at_once_all_but_one_are_refunded() {
    for number in [2, 4] {
        let nine = QuotaPolicy::per_day("credentials", 9);
        let scene = Scene::new(rationed(RemoteStore::<3>::default()).policy(nine));
        let statuses = join_all((0..number).map(|_| scene.ask("alice"))).await;
        assert_eq!(statuses, vec![200; number]);
        assert_eq!(scene.remaining("alice").await, 8);
    }
}

/// A cached rejection shows only the policies that reject.
#[tokio::test]
async fn a_repeat_is_found_by_all_partitions_of_its_request_also_after_a_cached_rejection() {
    let ration = rationed(RemoteStore::<1>::default()).named_key("team", key::header("x-team"));
    let ration = ration.policy(QuotaPolicy::per_hour("account", 1));
    let scene = Scene::new(ration.policy(QuotaPolicy::per_day("team", 9).keyed_by("team")));
    for status in [200, 200, 200, 200, 429] {
        assert_eq!(scene.ask_for("red").await, status);
    }
}

#[tokio::test]
async fn a_repeat_is_refunded_in_custom_units_too_and_whatever_the_program_takes_for_its_cost() {
    let ration = rationed(MemoryStore::new())
        .policy(QuotaPolicy::per_day("credentials", 9))
        .policy(QuotaPolicy::per_day("points", 100).with_unit("points"))
        .unit_cost("points", |_| 10)
        .actual_cost(|_| Some(3));
    let scene = Scene::new(ration);
    for _ in 0..4 {
        assert_eq!(scene.ask("alice").await, 200);
        assert_eq!(scene.allowances("alice").await, [6, 90]);
    }
}

#[tokio::test]
async fn a_repeat_is_found_after_the_rules_have_changed_the_order_of_their_policies() {
    let [account, team] = [
        QuotaPolicy::per_day("account", 1),
        QuotaPolicy::per_day("team", 9).keyed_by("team"),
    ];
    let ration = rationed(MemoryStore::new()).named_key("team", key::header("x-team"));
    let scene = Scene::new(ration.policy(account.clone()).policy(team.clone()));
    assert_eq!(scene.ask_for("red").await, 200);
    let reordered = Rules::new().policy(team).policy(account);
    scene.ration.limiter().rules().replace(reordered).unwrap();
    assert_eq!(scene.ask_for("red").await, 200);
}

#[tokio::test]
async fn a_repeat_stays_charged_in_leaky_buckets_with_a_queue_and_in_policies_that_count_bytes() {
    let queue = QuotaPolicy::per_second("queue", 1_000).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 9 });
    let bytes = QuotaPolicy::per_day("bytes", 1_000_000).with_content_bytes(Direction::Request);
    let store = MemoryStore::builder().clock(Clock::manual(noon())).build().unwrap();
    let scene = Scene::new(ration(store).policy(queue).policy(bytes));
    let length = scene.message.len() as u64;
    for charged in 1..=4 {
        let mut request = Scene::request("alice", &scene.message);
        request.headers_mut().insert("content-length", length.into());
        assert_eq!(send(&scene.issuer, request).await.status(), 200);
        let allowances = [1, 10 - charged, 1_000_000 - charged * length];
        assert_eq!(scene.allowances("alice").await, allowances);
    }
}

#[tokio::test]
async fn a_repeat_is_refunded_in_prefetched_units_too() {
    let policy = QuotaPolicy::per_day("credentials", 100).with_prefetch(10);
    let policy = policy.with_algorithm(Algorithm::FixedWindow);
    let scene = Scene::new(rationed(RemoteStore::<1>::default()).policy(policy));
    assert_eq!(scene.asked("alice", 4).await, [200; 4]);
    let flushed = scene.ration.limiter().flush(Duration::from_secs(5)).await;
    assert!(flushed.is_ok());
    assert_eq!(scene.remaining("alice").await, 99);
}

#[tokio::test]
async fn new_rules_with_another_window_end_the_repeats_of_what_was_charged_before() {
    let scene = Scene::new(rationed(MemoryStore::new()).policy(QuotaPolicy::per_hour("credentials", 1)));
    assert_eq!(scene.asked("alice", 2).await, [200, 200]);
    let daily = Rules::new().policy(QuotaPolicy::per_day("credentials", 1));
    scene.ration.limiter().rules().replace(daily).unwrap();
    assert_eq!(scene.ask("alice").await, 429);
}

#[tokio::test]
async fn a_repeat_of_an_exhausted_account_is_granted_and_locks_it_out() {
    let clock = Clock::manual(noon());
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let policy = QuotaPolicy::per_hour("credentials", 1).with_lockout(hours(100));
    let scene = Scene::new(rationed(store).policy(policy));
    assert_eq!(scene.asked("alice", 2).await, [200, 200]);
    clock.advance(hours(2));
    assert_eq!(scene.send("alice", &scene.other(1)).await, 429);
    clock.advance(hours(99));
    assert_eq!(scene.send("alice", &scene.other(1)).await, 422);
}

#[tokio::test]
async fn a_repeat_is_not_refunded_by_a_limit_around_the_issuer() {
    let scene = Scene::new(ration(MemoryStore::new()));
    let around = rationed(MemoryStore::new())
        .policy(QuotaPolicy::per_day("requests", 9))
        .policy(QuotaPolicy::concurrent("slots", 9));
    let around = Scene {
        ration: around.build().unwrap(),
        ..scene.clone()
    };
    let service = around.ration.layer(scene.issuer.clone());
    for left in [8, 7, 6] {
        let request = Scene::request("alice", &scene.message);
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 200);
        assert_eq!(around.remaining("alice").await, left);
        assert_eq!(scene.remaining("alice").await, 1);
    }
}

#[tokio::test]
async fn a_caller_that_may_have_no_credential_any_more_gets_no_repeat() {
    let list = AccessList::new(key::client_ip());
    let scene = Scene::new(ration(MemoryStore::new()).access_list(list.clone()));
    assert_eq!(scene.asked("alice", 2).await, [200, 200]);
    let alice = PartitionKey::new("x-account", "alice");
    let set = |access| {
        list.update(|rules| rules.set_key(alice.clone(), access)).unwrap();
    };
    set(Access::Block);
    assert_eq!(scene.ask("alice").await, 403);
    set(Access::Limit);
    assert_eq!(scene.ask("alice").await, 200);
    let closed = Rules::new().policy(QuotaPolicy::per_day("credentials", 0));
    scene.ration.limiter().rules().replace(closed).unwrap();
    assert_eq!(scene.ask("alice").await, 429);
    // One repeat is left.
    let open = Rules::new().policy(QuotaPolicy::per_day("credentials", 2));
    scene.ration.limiter().rules().replace(open).unwrap();
    assert_eq!(scene.ask("alice").await, 200);
    assert_eq!(scene.remaining("alice").await, 1);
}

#[tokio::test]
async fn what_is_not_counted_is_issued_as_often_as_it_is_asked_for() {
    let scene = Scene::new(ration(MemoryStore::new()));
    scene.ration.limiter().rules().disable();
    assert_eq!(scene.asked("alice", 6).await, [200; 6]);
    scene.ration.limiter().rules().enable();
    assert_eq!(scene.remaining("alice").await, 2);
    assert_eq!(scene.ask("alice").await, 200);
    assert_eq!(scene.remaining("alice").await, 1);

    let tiers = Tiers::from_fn(|request| request.headers.get("x-account")?.to_str().ok())
        .tier("alice", [QuotaPolicy::per_day("credentials", 1)])
        .unlimited("admin");
    let scene = Scene::new(rationed(MemoryStore::new()).tiers(tiers));
    assert_eq!(scene.asked("admin", 6).await, [200; 6]);
    assert_eq!(scene.asked("alice", 5).await, [200, 200, 200, 200, 429]);
}

#[tokio::test]
async fn a_repeat_is_answered_while_its_caller_is_locked_out_and_takes_no_slot() {
    let policy = QuotaPolicy::per_day("credentials", 1).with_lockout(hours(100));
    let scene = Scene::new(rationed(MemoryStore::new()).policy(policy));
    assert_eq!(scene.asked("alice", 5).await, [200, 200, 200, 200, 429]);

    let slots = ration(MemoryStore::new()).policy(QuotaPolicy::concurrent("slots", 1));
    let scene = Scene::new(slots);
    let one_at_a_time = scene.asked("alice", 4).await;
    assert_eq!(one_at_a_time, [200; 4]);
    assert_eq!(scene.send("alice", &scene.other(1)).await, 422);
    assert_eq!(scene.send("alice", &scene.other(2)).await, 429);

    // A limit on concurrent requests alone is no ration.
    let scene = Scene::new(rationed(MemoryStore::new()).policy(QuotaPolicy::concurrent("slots", 1)));
    assert_eq!(scene.asked("alice", 6).await, [200; 6]);
}

/// A runtime with two threads: the test's thread, and a blocking thread that is occupied until `free` is called.
fn with_a_taken_thread<F: Future>(test: impl FnOnce(Box<dyn FnOnce()>) -> F) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    let (free, freed) = mpsc::channel::<()>();
    let taken = runtime.spawn_blocking(move || freed.recv());
    runtime.block_on(test(Box::new(move || free.send(()).unwrap())));
    runtime.block_on(taken).unwrap().unwrap();
}

/// An issuer with a single place, and a ration.
fn crowded(ration: RateLimitLayerBuilder) -> Scene {
    let ration = ration.build().unwrap();
    let issuer = Issuer::builder(ration.clone()).keys(keys()).threads(1).max_queued(0);
    Scene::of(issuer.build().unwrap(), ration)
}

/// Waits until the account's request has been charged and has its place: tasks of one thread take turns.
async fn has_place(scene: &Scene, account: &str) {
    while scene.remaining(account).await == 2 {
        yield_now().await;
    }
    for _ in 0..10 {
        yield_now().await;
    }
}

#[test]
fn a_granted_request_without_a_place_gets_503_and_is_answered_without_a_charge_when_it_comes_again() {
    with_a_taken_thread(async |free| {
        let scene = crowded(ration(MemoryStore::new()));
        let alice = scene.asking("alice");
        has_place(&scene, "alice").await;
        // Any number of attempts is allowed, because none was answered.
        for _ in 0..6 {
            let response = scene.response("bob", &scene.message).await;
            assert_eq!(response.status(), 503);
            assert_eq!(response.headers()["retry-after"], "1");
            assert!(!response.headers().contains_key("ratelimit"));
            assert_eq!(scene.remaining("bob").await, 1);
        }
        // A stranger is rejected with 403, and the directory is served.
        assert_eq!(send(&scene.issuer, post(scene.message.clone())).await.status(), 403);
        free();
        assert_eq!(alice.await.unwrap(), 200);
        assert_eq!(scene.asked("bob", 3).await, [200; 3]);
        assert_eq!(scene.remaining("bob").await, 1);
        assert_eq!(scene.ask("bob").await, 200);
        assert_eq!(scene.remaining("bob").await, 0);
    });
}

#[test]
fn a_client_that_disconnects_while_its_credential_is_made_gets_it_without_a_charge_when_it_asks_again() {
    with_a_taken_thread(async |free| {
        let scene = crowded(ration(MemoryStore::new()));
        let alice = scene.asking("alice");
        has_place(&scene, "alice").await;
        alice.abort();
        assert!(alice.await.unwrap_err().is_cancelled());
        free();
        // Work that has begun keeps its place to the end.
        while scene.ask("alice").await == 503 {
            yield_now().await;
        }
        assert_eq!(scene.remaining("alice").await, 1);
    });
}

#[test]
fn a_slot_of_a_concurrency_policy_is_held_until_the_credential_is_made() {
    with_a_taken_thread(async |free| {
        let scene = crowded(ration(MemoryStore::new()).policy(QuotaPolicy::concurrent("slots", 1)));
        let alice = scene.asking("alice");
        has_place(&scene, "alice").await;
        assert_eq!(scene.send("alice", &scene.other(1)).await, 429);
        free();
        assert_eq!(alice.await.unwrap(), 200);
        assert_eq!(scene.send("alice", &scene.other(1)).await, 422);
    });
}

/// A store that answers a call only if it is let: the calls of a first request are the charge and its note.
#[derive(Clone, Debug)]
struct Gated {
    store: MemoryStore,
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    /// The number of the call that fails.
    fails: usize,
}

impl Gated {
    fn new(fails: usize) -> Self {
        Self {
            store: MemoryStore::new(),
            begun: Arc::default(),
            ended: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            fails,
        }
    }

    async fn wait_for(calls: &AtomicUsize, number: usize) {
        while calls.load(Ordering::SeqCst) < number {
            yield_now().await;
        }
    }
}

impl Store for Gated {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        let gated = self.clone();
        StoreFuture::boxed(async move {
            let number = gated.begun.fetch_add(1, Ordering::SeqCst) + 1;
            gated.gate.acquire().await.unwrap().forget();
            let answer = match number == gated.fails {
                true => Err(StoreError::new(StoreErrorKind::Unreachable, "injected")),
                false => gated.store.acquire(plan).await,
            };
            gated.ended.fetch_add(1, Ordering::SeqCst);
            answer
        })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.store.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.store.reset(plan)
    }
}

#[tokio::test]
async fn a_client_that_disconnects_at_any_call_of_the_store_is_charged_once() {
    for call in 1..=2 {
        let store = Gated::new(0);
        let scene = Scene::new(ration(store.clone()));
        let asking = scene.asking("alice");
        store.gate.add_permits(call - 1);
        Gated::wait_for(&store.begun, call).await;
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        store.gate.add_permits(1_000);
        Gated::wait_for(&store.ended, 2).await;
        assert_eq!(scene.remaining("alice").await, 1);
        assert_eq!(scene.ask("alice").await, 200);
        assert_eq!(scene.remaining("alice").await, 1, "cancelled at call {call}");
    }
}

#[tokio::test]
async fn while_the_store_does_not_answer_nothing_is_issued_and_a_note_that_it_has_lost_is_no_credential() {
    // The number of the call that fails, and what becomes of three equal requests.
    for (fails, statuses, remaining) in [
        (0, [200, 200, 200], 1),
        // The charge.
        (1, [503, 200, 200], 1),
        // The note: the second request is charged, too.
        (2, [200, 200, 200], 0),
        // The charge of the second request.
        (3, [200, 503, 200], 1),
        // Its note: it is charged as a first one.
        (4, [200, 200, 200], 0),
        // The charge of a repeat: the same.
        (5, [200, 200, 200], 0),
    ] {
        let store = Gated::new(fails);
        store.gate.add_permits(1_000);
        let scene = Scene::new(ration(store));
        assert_eq!(scene.asked("alice", 3).await, statuses, "call {fails} fails");
        assert_eq!(scene.remaining("alice").await, remaining, "call {fails} fails");
    }
}

#[tokio::test]
async fn two_instances_on_one_redis_share_what_was_charged() {
    let (server, keys) = (shared_server(), keys());
    let instance = |_| {
        let store = RedisStore::new(server.url()).unwrap();
        let one = QuotaPolicy::per_day("credentials", 1);
        let ration = rationed(store).scope("shared credentials").policy(one).build().unwrap();
        let issuer = Issuer::builder(ration.clone()).keys(keys.clone()).build().unwrap();
        Scene::of(issuer, ration)
    };
    let [first, second] = [0, 1].map(instance);
    let asked = async |scene: &Scene| scene.send("alice", &first.message).await;
    assert_eq!(asked(&first).await, 200);
    assert_eq!(asked(&second).await, 200);
    assert_eq!(asked(&second).await, 200);
    assert_eq!(asked(&first).await, 200);
    assert_eq!([asked(&first).await, asked(&second).await], [429, 429]);

    let both = || join_all((0..40).map(|number| [&first, &second][number % 2].send("bob", &first.message)));
    let issued = |statuses: Vec<u16>| statuses.into_iter().filter(|status| *status == 200).count();
    assert_eq!(issued(both().await) + issued(both().await), 4);
}

#[tokio::test]
async fn a_note_of_what_was_charged_takes_at_most_240_bytes_of_redis_for_one_window() {
    let server = RedisServer::start();
    let store = RedisStore::new(server.url()).unwrap();
    let scene = Scene::new(ration(store));
    assert_eq!(scene.asked("alice", 4).await, [200; 4]);
    let names = server.command(&["KEYS", "*"]);
    let notes: Vec<&str> = names.split_whitespace().filter(|name| name.contains(":log:")).collect();
    assert_eq!(notes.len(), 1);
    let bytes: u64 = server.command(&["MEMORY", "USAGE", notes[0]]).parse().unwrap();
    assert!(bytes <= 240, "{bytes}");
    let left: u64 = server.command(&["PTTL", notes[0]]).parse().unwrap();
    assert!(left <= 86_400_000 + 60_000, "{left}");
}

/// M32: the tag depends on the secret of the request, the nonce and the context, and not on the answer.
#[tokio::test]
async fn two_answers_to_one_request_are_worth_as_much_as_one_and_cannot_be_told_apart_from_it() {
    let scene = Scene::new(ration(MemoryStore::new()));
    for key in scene.issuer.keys().iter() {
        let (profile, account) = (key.profile(), key.profile().to_string());
        let origin = instances::instance(key, MemoryStore::new()).build().unwrap();
        let challenge = challenged(&instances::send(&origin, http::Request::new(String::new())).await);
        let request = CredentialRequest::new(key.public_key(), &challenge.request_context(&key.key_id())).unwrap();
        let mut credentials = Vec::new();
        for _ in 0..2 {
            let response = scene.response(&account, &request.to_message()).await;
            assert_eq!(response.status(), 200);
            credentials.push(request.finalize(&content(response).await).unwrap());
        }
        assert_eq!(scene.remaining(&account).await, 1);

        let context = challenge.presentation_context(&key.key_id());
        let token = |credential: usize, nonce| {
            let presented = credentials[credential].present(&context, nonce, 1_000).unwrap();
            Token::new(&challenge, key.key_id(), nonce, presented.as_bytes().to_vec()).unwrap()
        };
        let (element, scalar) = (profile.element_len(), profile.scalar_len());
        let parts = |token: &Token| {
            let (elements, scalars) = token.presentation().split_at(4 * element);
            let parts = elements.chunks(element).chain(scalars.chunks(scalar));
            parts.map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        // The tag comes fourth. All other values differ, as they do between two tokens of one credential.
        let equal = |one: &Token, other: &Token| {
            let (one, other) = (parts(one), parts(other));
            assert_eq!(one.len(), 9);
            (0..one.len())
                .filter(|part| other.contains(&one[*part]))
                .collect::<Vec<_>>()
        };
        let [one, other] = [token(0, 7), token(1, 7)];
        assert_eq!(equal(&one, &other), [3]);
        assert_eq!(equal(&one, &token(0, 7)), [3]);
        assert!(equal(&one, &token(1, 8)).is_empty());
        assert!(equal(&one, &token(0, 8)).is_empty());

        assert_eq!(instances::status(&origin, &one).await, 200);
        assert_eq!(instances::status(&origin, &other).await, 429);
        assert_eq!(instances::status(&origin, &token(1, 8)).await, 200);
        assert_eq!(instances::status(&origin, &token(0, 8)).await, 429);
    }
}
