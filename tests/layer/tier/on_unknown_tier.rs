//! While the tier of a user is unknown: which requests wait, for how long, and how they are counted afterwards.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use http::Request;
use test_kit::{Answered, RemoteStore, call, hello, memory};
use tokio_test::task::{self, Spawn};
use tower::Layer;
use tower_quota::{
    Limiter, LimiterBuilder, MemoryStore, Outcome, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Tiers, key,
    tier::{OnUnknownTier, TierLayerBuilder},
};

use super::support::{MILLISECOND, Mood, SECOND, Scene, UserId, settle};
use crate::TextBody;

/// A service that limits users by their plan in a database: 2 requests a minute for free users, 20 for paying users.
struct Limited {
    scene: Scene,
    limits: RateLimitLayer,
}

fn limited(limiter: LimiterBuilder) -> RateLimitLayerBuilder {
    RateLimitLayerBuilder::from(limiter)
        .decision_in_response()
        .scope("api")
        .key(key::extension::<UserId>())
}

/// The number of requests that may wait for lookups.
const MAX_WAITING: usize = 4_096;

/// The parts of a response that a test looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    status: u16,
    policy: String,
    waited: Duration,
}

impl Limited {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(settings: impl FnOnce(TierLayerBuilder) -> TierLayerBuilder) -> Self {
        let scene = Scene::with(settings);
        let store = memory(&scene.time.clock);
        let tiers = Tiers::resolved()
            .tier("free", [QuotaPolicy::per_minute("minute", 2)])
            .tier("pro", [QuotaPolicy::per_minute("minute", 20)])
            .tier("trial", [QuotaPolicy::per_minute("minute", 5)]);
        // With a remote store, rejections are cached.
        let limiter = Limiter::builder(RemoteStore::<1>(store)).clock(scene.time.clock.clone());
        let limits = limited(limiter).tiers(tiers).build().unwrap();
        Self { scene, limits }
    }

    async fn send(&self, request: Request<TextBody>) -> (Seen, Outcome) {
        let start = self.scene.time.now();
        self.scene.time.sync();
        let response = call(self.scene.layer.layer(self.limits.layer(hello())), request).await;
        let seen = Seen {
            status: response.code(),
            policy: response.field("ratelimit-policy").to_owned(),
            waited: self.scene.time.now() - start,
        };
        (seen, response.outcome())
    }

    async fn request(&self, user: u64) -> Seen {
        let request = Request::builder().extension(UserId(user)).body(TextBody::default());
        self.send(request.unwrap()).await.0
    }

    /// Requests that have been polled once, and wait.
    fn waiting(&self, users: impl IntoIterator<Item = u64>) -> Vec<Spawn<impl Future<Output = Seen>>> {
        let request = |user| {
            let mut request = task::spawn(self.request(user));
            assert!(request.poll().is_pending());
            request
        };
        users.into_iter().map(request).collect()
    }

    /// Returns the responses to `requests` concurrent requests.
    async fn burst(&self, user: u64, requests: usize) -> Vec<Seen> {
        join_all((0..requests).map(|_| self.request(user))).await
    }
}

fn seen(status: u16, quota: u64, waited: Duration) -> Seen {
    let policy = format!(r#""minute";q={quota};w=60"#);
    Seen { status, policy, waited }
}

fn assert_waited(responses: &[Seen], wait: Duration) {
    assert!(
        responses.iter().all(|response| response.waited == wait),
        "{responses:?}"
    );
}

/// The number of requests that reach the inner service for each status.
fn by_status(responses: &[Seen]) -> HashMap<u16, usize> {
    let mut count = HashMap::new();
    for response in responses {
        *count.entry(response.status).or_default() += 1;
    }
    count
}

/// L5
#[tokio::test(start_paused = true)]
async fn the_first_burst_of_a_paying_user_passes_while_the_database_takes_its_time() {
    let service = Limited::new();
    service.scene.source.set(1, "pro");
    service.scene.source.mood(Mood::AnswersAfter(200 * MILLISECOND));
    let responses = service.burst(1, 10).await;
    assert_eq!(responses, vec![seen(200, 20, 200 * MILLISECOND); 10]);
    assert_eq!(service.scene.source.asked(), 1, "one look-up for all of them");
}

#[tokio::test(start_paused = true)]
async fn after_a_wait_in_vain_requests_are_counted_in_the_first_tier_and_later_ones_in_their_own() {
    let service = Limited::new();
    service.scene.source.set(1, "pro");
    service.scene.source.mood(Mood::AnswersAfter(1_500 * MILLISECOND));
    let responses = service.burst(1, 10).await;
    assert_waited(&responses, SECOND);
    assert_eq!(by_status(&responses), HashMap::from([(200, 2), (429, 8)]));
    assert_eq!(
        service.request(1).await,
        seen(429, 2, Duration::ZERO),
        "no other request waits"
    );
    service.scene.time.pass(500 * MILLISECOND).await;
    // The rejection of the first tier is not held against the tier that the user has paid for.
    assert_eq!(service.request(1).await, seen(200, 20, Duration::ZERO));
    assert_eq!(service.scene.source.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn invented_users_are_all_counted_while_the_database_is_stopped() {
    const USERS: u64 = 10_000;

    let service = Limited::with(|builder| builder.max_look_ups(100));
    service.scene.source.mood(Mood::Hangs);
    let responses = join_all((0..USERS).map(|user| service.request(user))).await;
    let waited = responses.iter().filter(|response| !response.waited.is_zero()).count();
    assert_eq!(waited, MAX_WAITING, "the number of requests that wait is bounded");
    assert!(responses.iter().all(|response| response.waited <= SECOND));
    assert_eq!(service.scene.source.asked(), 100, "and so is that of look-ups");
    let is_counted = |response: &Seen| response.policy == r#""minute";q=2;w=60"#;
    assert!(
        responses
            .iter()
            .all(|response| response.status == 200 && is_counted(response))
    );

    // And none of them has more than the quota of the first tier.
    service.scene.time.pass(10 * SECOND).await;
    for user in [0, 50, 500, 5_000] {
        let responses = service.burst(user, 10).await;
        assert_eq!(by_status(&responses), HashMap::from([(200, 1), (429, 9)]), "{user}");
    }
}

#[tokio::test(start_paused = true)]
async fn users_who_find_no_place_for_their_look_up_wait_for_one() {
    let service = Limited::with(|builder| builder.max_look_ups(2));
    service.scene.source.mood(Mood::AnswersAfter(200 * MILLISECOND));
    for user in 0..20 {
        service.scene.source.set(user, "pro");
    }
    let responses = join_all((0..20).map(|user| service.request(user))).await;
    let expected = |user| match user {
        // Two look-ups at a time, for 200 ms each.
        0..8 => seen(200, 20, (u32::try_from(user).unwrap() / 2 + 1) * 200 * MILLISECOND),
        _ => seen(200, 2, SECOND),
    };
    // The answer for users 8 and 9 comes at the moment when the wait is over.
    for (user, response) in responses.iter().enumerate().filter(|(user, _)| !(8..10).contains(user)) {
        assert_eq!(*response, expected(user), "{user}");
    }
    assert!((10..=12).contains(&service.scene.source.asked()));
}

/// The pause grew as after failures of the source, although the source was never called.
#[tokio::test(start_paused = true)]
async fn a_user_who_found_no_place_twice_asks_for_one_again_after_the_shortest_pause() {
    let service = Limited::with(|builder| builder.max_look_ups(1));
    for user in [1, 2] {
        service.scene.source.set(user, "pro");
    }
    // The clock must be right when a wait ends, because the pause begins at that time.
    let in_vain = async |users: &[u64]| {
        let requests = service.waiting(users.iter().copied());
        service.scene.time.pass(SECOND).await;
        join_all(requests).await
    };
    service.scene.source.mood(Mood::AnswersAfter(4_500 * MILLISECOND));
    assert_eq!(in_vain(&[1, 2]).await, [seen(200, 2, SECOND), seen(200, 2, SECOND)]);
    let again = service.request(2).await;
    assert_eq!(again.waited, Duration::ZERO, "it does not wait again at once");
    service.scene.time.pass(SECOND).await;
    assert_eq!(in_vain(&[2]).await[0].waited, SECOND);
    service.scene.time.pass(SECOND).await;
    service.scene.source.mood(Mood::AnswersAfter(200 * MILLISECOND));
    assert_eq!(service.request(2).await, seen(200, 20, 700 * MILLISECOND));
    assert_eq!(service.scene.source.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_gives_its_place_among_the_waiting_to_another_one() {
    let service = Limited::new();
    service.scene.source.set(1, "pro");
    service.scene.source.mood(Mood::AnswersAfter(200 * MILLISECOND));
    let mut waiting = service.waiting([1; MAX_WAITING]);
    assert_eq!(
        service.request(1).await,
        seen(200, 2, Duration::ZERO),
        "there is no place left"
    );
    waiting.pop();
    assert_eq!(service.request(1).await, seen(200, 20, 200 * MILLISECOND));
    assert_eq!(service.scene.source.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_look_up_whose_requests_are_all_cancelled_leaves_the_queue_when_their_wait_would_be_over() {
    let service = Limited::with(|builder| builder.max_look_ups(1));
    service.scene.source.mood(Mood::Hangs);
    drop(service.waiting(1..=2));
    settle().await;
    service.scene.time.pass(SECOND).await;
    assert_eq!((service.scene.source.asked(), service.scene.source.running()), (1, 1));
    service.scene.time.pass(9 * SECOND).await;
    assert_eq!(service.scene.source.running(), 0);
    service.scene.source.mood(Mood::Answers);
    service.scene.source.set(2, "pro");
    assert_eq!(service.request(2).await, seen(200, 20, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_tier_for_unknown_users_is_theirs_at_once_or_after_the_wait() {
    let millis = 300 * MILLISECOND;
    for (on_unknown_tier, wait) in [
        (OnUnknownTier::tier("trial"), Duration::ZERO),
        (OnUnknownTier::wait(millis).then_tier("trial"), millis),
    ] {
        let service = Limited::with(|builder| builder.on_unknown_tier(on_unknown_tier));
        service.scene.source.set(1, "pro");
        service.scene.source.mood(Mood::AnswersAfter(400 * MILLISECOND));
        let responses = service.burst(1, 10).await;
        assert_waited(&responses, wait);
        assert_eq!(by_status(&responses), HashMap::from([(200, 5), (429, 5)]));
        service.scene.time.pass(400 * MILLISECOND - wait).await;
        assert_eq!(service.request(1).await, seen(200, 20, Duration::ZERO));
        // A user known to have no tier is in the first tier.
        assert_eq!(service.request(2).await.waited, wait);
        service.scene.time.pass(400 * MILLISECOND).await;
        assert_eq!(service.request(2).await, seen(200, 2, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_users_pass_uncounted_only_where_the_application_says_so() {
    for (on_unknown_tier, wait) in [
        (OnUnknownTier::pass_uncounted(), Duration::ZERO),
        (OnUnknownTier::wait(SECOND).then_admit_uncounted(), SECOND),
    ] {
        let service = Limited::with(|builder| builder.on_unknown_tier(on_unknown_tier));
        service.scene.source.mood(Mood::Hangs);
        let responses = service.burst(1, 10).await;
        let uncounted = Seen {
            status: 200,
            policy: String::new(),
            waited: wait,
        };
        assert_eq!(responses, vec![uncounted; 10]);
        // Requests without a user are counted, and so are users without a tier.
        let (nobody, outcome) = service.send(Request::new(TextBody::default())).await;
        assert_eq!((nobody, outcome), (seen(200, 2, Duration::ZERO), Outcome::Allowed));
        service.scene.source.mood(Mood::Answers);
        service.request(2).await;
        settle().await;
        assert_eq!(service.request(2).await.policy, r#""minute";q=2;w=60"#);
    }
}

/// A layer that gets tiers from another source ignores the result of a `TierLayer`.
#[tokio::test(start_paused = true)]
async fn requests_that_pass_uncounted_are_still_counted_by_layers_that_know_the_tier_otherwise() {
    let mut service = Limited::with(|builder| builder.on_unknown_tier(OnUnknownTier::pass_uncounted()));
    service.scene.source.mood(Mood::Hangs);
    let by_closure = Tiers::from_fn(|_| None).tier("all", [QuotaPolicy::per_minute("minute", 7)]);
    let other = || limited(Limiter::builder(MemoryStore::new()));
    for limits in [
        other().tiers(by_closure),
        other().policy(QuotaPolicy::per_minute("minute", 7)),
    ] {
        service.limits = limits.build().unwrap();
        assert_eq!(service.request(1).await, seen(200, 7, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn places_among_the_waiting_come_back_whatever_becomes_of_their_requests() {
    let service = Limited::with(|builder| builder.max_look_ups(2));
    let answers = Mood::AnswersAfter(10 * MILLISECOND);
    let moods = [Mood::Fails, Mood::Hangs, Mood::Panics, answers];
    for (user, mood) in (0..).zip(moods.into_iter().cycle().take(40)) {
        service.scene.source.mood(mood);
        let request = |user| tokio_test::task::spawn(service.request(user));
        let mut requests: Vec<_> = [user, user, user + 100, user + 200].into_iter().map(request).collect();
        for request in &mut requests {
            let _ = request.poll();
        }
        // Some requests are cancelled while they wait, and some while their lookup is queued.
        drop(requests.split_off(usize::try_from(user).unwrap() % 5));
        join_all(requests).await;
        service.scene.time.pass(20 * SECOND).await;
    }
    service.scene.source.mood(Mood::AnswersAfter(200 * MILLISECOND));
    let responses = service.burst(1_000, MAX_WAITING + 1).await;
    let waited = responses.iter().filter(|response| response.waited == 200 * MILLISECOND);
    assert_eq!(waited.count(), MAX_WAITING);
}
