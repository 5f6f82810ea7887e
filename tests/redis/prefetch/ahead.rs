//! Batches that are fetched before the previous one is exhausted, so that no request of a busy caller waits for a
//! distant store.

use std::task::Poll;

use super::*;

/// One way to the store. There and back it is 80 ms.
const WAY: Duration = Duration::from_millis(40);
const INSTANCES: usize = 4;
const BATCH: u64 = 500;
const DEADLINE: Duration = Duration::from_millis(250);
/// For stores that are farther away.
const PATIENT: Duration = Duration::from_secs(5);

/// Instances with a distant store, in Tokio's virtual time.
struct Fleet {
    clock: Clock,
    store: TestStore,
    layers: Vec<RateLimitLayer>,
}

impl Fleet {
    /// It is the beginning of a minute.
    async fn new(policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        Self::far(WAY, INSTANCES, DEADLINE, policies.into_iter().collect()).await
    }

    /// Starts `instances` instances, with a latency of `way` to the store in each direction.
    async fn far(way: Duration, instances: usize, deadline: Duration, policies: Vec<QuotaPolicy>) -> Self {
        let clock = Clock::tokio();
        let store = TestStore::new(memory(&clock), Timing::Far(way));
        let limiter = || Limiter::builder(store.clone()).clock(clock.clone()).deadline(deadline);
        let layers = (0..instances).map(|_| layer_of(limiter(), policies.clone())).collect();
        let fleet = Self { clock, store, layers };
        fleet.pass_to_the_next_minute().await;
        fleet
    }

    async fn pass_to_the_next_minute(&self) {
        let into_it = self.clock.now().as_micros() % 60_000_000;
        pass(Duration::from_micros(60_000_000 - into_it)).await;
    }

    /// Requests of one caller, one each 5 ms to each of these instances.
    async fn send(&self, instances: &[usize], seconds: u64) -> Vec<(Duration, Outcome)> {
        let mut requests = Vec::new();
        for _ in 0..seconds * 200 {
            for instance in instances {
                let layer = self.layers[*instance].clone();
                requests.push(tokio::spawn(async move {
                    let start = Instant::now();
                    let outcome = outcome(&layer).await;
                    (start.elapsed(), outcome)
                }));
            }
            pass(Duration::from_millis(5)).await;
        }
        join_all(requests).await.into_iter().map(Result::unwrap).collect()
    }

    async fn left(&self) -> u64 {
        left(&self.layers[0]).await
    }
}

fn bucket(quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_minute("p", quota).with_prefetch(BATCH)
}

fn window(quota: u64) -> QuotaPolicy {
    bucket(quota).with_algorithm(Algorithm::FixedWindow)
}

const ALL: [usize; INSTANCES] = [0, 1, 2, 3];

fn waited(requests: &[(Duration, Outcome)]) -> usize {
    requests.iter().filter(|(wait, _)| !wait.is_zero()).count()
}

fn passed(requests: &[(Duration, Outcome)]) -> usize {
    let allowed = requests.iter().filter(|(_, outcome)| *outcome == Outcome::Allowed);
    allowed.count()
}

/// L11: 800 requests a second of 1 000 that are allowed.
#[tokio::test(start_paused = true)]
async fn no_request_of_a_busy_caller_waits_after_two_round_trips_and_there_are_few_calls() {
    for way in [40, 100, 125] {
        for policies in [
            vec![bucket(60_000)],
            vec![window(60_000), bucket(60_000).with_name("q")],
        ] {
            let fleet = Fleet::far(Duration::from_millis(way), INSTANCES, PATIENT, policies).await;
            let first = fleet.send(&ALL, 2).await;
            // Requests wait for one round trip until the store has decided the first request of an instance, and for
            // another one until the first batch arrives. A request is sent every 5 ms.
            let most = INSTANCES * 2 * (2 * way / 5 + 1) as usize;
            assert!(waited(&first) <= most, "{way}: {}", waited(&first));
            assert_eq!(passed(&first), first.len());

            let calls = fleet.store.calls() + fleet.store.settlements();
            let then = fleet.send(&ALL, 15).await;
            assert_eq!((waited(&then), passed(&then)), (0, then.len()), "{way}");
            let calls = fleet.store.calls() + fleet.store.settlements() - calls;
            assert!(calls * 50 <= then.len(), "{way}: {calls} of {}", then.len());
        }
    }
}

/// Sends requests for five seconds, and returns how many units are held after each of the delays.
async fn held_after(fleet: &Fleet, millis: [u64; 2]) -> [u64; 2] {
    let used = passed(&fleet.send(&[0], 5).await) as u64;
    fleet.store.set(Timing::AtOnce);
    let start = Instant::now();
    let mut held = [0; 2];
    for (held, millis) in held.iter_mut().zip(millis) {
        pass(Duration::from_millis(millis).saturating_sub(start.elapsed())).await;
        *held = 60_000 - used - fleet.left().await;
    }
    held
}

/// Four round trips, a second at least, and a tenth of the window or 5 s at most.
#[tokio::test(start_paused = true)]
async fn the_farther_the_store_is_the_longer_units_are_held() {
    for (way, window_secs, shortest, longest) in [
        (1, 60, 0, 1_000),
        (125, 60, 0, 1_000),
        (400, 60, 1_900, 3_200),
        (400, 20, 0, 2_000),
        (800, 600, 2_500, 5_000),
    ] {
        let policy = QuotaPolicy::new("p", 60_000, Duration::from_secs(window_secs));
        let policy = policy.with_algorithm(Algorithm::FixedWindow).with_prefetch(BATCH);
        let fleet = Fleet::far(Duration::from_millis(way), 1, PATIENT, vec![policy]).await;
        let [before, after] = held_after(&fleet, [shortest, longest + 60]).await;
        assert!(before > 0 && after == 0, "{way} {window_secs}: {before} {after}");
    }
}

/// A store that is stopped for a moment is not farther away.
#[tokio::test(start_paused = true)]
async fn units_are_held_no_longer_because_a_few_answers_were_slow() {
    let fleet = Fleet::far(WAY, 1, PATIENT, vec![window(60_000)]).await;
    let mut used = passed(&fleet.send(&[0], 2).await);
    fleet.store.set(Timing::Far(Duration::from_millis(450)));
    used += passed(&fleet.send(&[0], 2).await);
    fleet.store.set(Timing::Far(WAY));
    used += passed(&fleet.send(&[0], 2).await);
    pass(Duration::from_millis(1_100)).await;
    assert_eq!(fleet.left().await, 60_000 - used as u64);
}

/// L11
#[tokio::test(start_paused = true)]
async fn a_caller_who_is_spread_over_twenty_instances_has_at_least_99_of_100_units_of_a_fixed_window() {
    for (way, quota, batch) in [(0, 6_000, 600), (40, 6_000, 100), (125, 6_000, 600)] {
        let policy = QuotaPolicy::per_minute("p", quota)
            .with_algorithm(Algorithm::FixedWindow)
            .with_prefetch(batch);
        let fleet = Fleet::far(Duration::from_millis(way), 20, PATIENT, vec![policy]).await;
        // Twice the quota within 50 s, evenly.
        let pause = Duration::from_secs(50) * 20 / (2 * quota as u32);
        let requests = fleet.layers.iter().zip(0..).map(|(layer, number)| async move {
            pass(pause * number / 20).await;
            let mut sent = Vec::new();
            for _ in 0..2 * quota / 20 {
                let layer = layer.clone();
                sent.push(tokio::spawn(async move { (Duration::ZERO, outcome(&layer).await) }));
                pass(pause).await;
            }
            let requests: Vec<_> = join_all(sent).await.into_iter().map(Result::unwrap).collect();
            passed(&requests) as u64
        });
        let passed: u64 = join_all(requests).await.into_iter().sum();
        assert!((quota * 99 / 100..=quota).contains(&passed), "{way} {batch}: {passed}");
    }
}

/// Found with stalls of 0.12 s and a deadline of 50 ms: a tenth of a window was charged and out of reach of all instances.
#[tokio::test(start_paused = true)]
async fn a_batch_that_arrives_after_the_deadline_is_spent_or_goes_back() {
    for (late, is_spent) in [(100, true), (400, true), (800, false), (4_000, false)] {
        let fleet = busy().await;
        let told = Arc::new(Semaphore::new(0));
        fleet.store.set(Timing::Told(Arc::clone(&told)));
        let mut used = 600 + until_it_asks(&fleet).await as u64;
        pass(DEADLINE + Duration::from_millis(late)).await;
        fleet.store.set(Timing::AtOnce);
        told.add_permits(1);
        pass(Duration::from_millis(60)).await;
        let held = 60_000 - used - fleet.left().await;
        assert_eq!(held > 0, is_spent, "{late}: {held}");

        assert_eq!(passed_at_once(&fleet.layers[0], 3), 3);
        used += 3;
        pass(Duration::from_millis(1_200)).await;
        assert_eq!(fleet.left().await, 60_000 - used, "{late}");
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }
}

/// Nothing that is charged before a window ends may be spent after it, so there is a round trip to wait for.
#[tokio::test(start_paused = true)]
async fn where_a_fixed_window_ends_requests_wait_for_a_round_trip_at_most_and_the_quota_holds_in_each() {
    let fleet = Fleet::new([window(60_000)]).await;
    pass(Duration::from_secs(56)).await;
    fleet.send(&ALL, 2).await;
    let at_the_border = fleet.send(&ALL, 4).await;
    assert_eq!(passed(&at_the_border), at_the_border.len());
    assert!(waited(&at_the_border) <= INSTANCES * 18, "{}", waited(&at_the_border));
    let longest = at_the_border.iter().map(|(wait, _)| *wait).max().unwrap();
    assert!(longest <= 2 * WAY + Duration::from_millis(2), "{longest:?}");
}

/// L11
#[tokio::test(start_paused = true)]
async fn all_of_a_quota_is_used_by_one_instance_while_the_others_are_idle() {
    for policy in [bucket(2_400), window(2_400)] {
        let is_window = policy.algorithm() == Algorithm::FixedWindow;
        let fleet = Fleet::new([policy]).await;
        let mut total = passed(&fleet.send(&ALL, 1).await);
        // More than there is, within the minute.
        let rest = fleet.send(&[0], 12).await;
        total += passed(&rest);
        // A bucket has been refilled by 40 units a second, of which the last few may not have been requested yet.
        let given = if is_window { 0 } else { 13 * 40 };
        assert!((2_400 + given - 2..=2_400 + given).contains(&total), "{total}");
        // Further requests pass one by one, and wait.
        for (_, outcome) in rest {
            assert!(matches!(outcome, Outcome::Allowed | Outcome::Rejected));
        }
    }
}

/// L11
#[tokio::test(start_paused = true)]
async fn however_large_the_load_no_window_sees_more_than_its_quota_and_no_bucket_more_than_it_gives_with_a_second_before()
 {
    let fleet = Fleet::new([window(6_000)]).await;
    assert_eq!(passed(&fleet.send(&ALL, 12).await), 6_000);

    // 6 000 at once, and 100 a second. What was charged a second ago may be spent now.
    let fleet = Fleet::new([bucket(6_000)]).await;
    let passed = passed(&fleet.send(&ALL, 15).await);
    assert!((6_000 + 14 * 100..=6_000 + 16 * 100).contains(&passed), "{passed}");
}

#[tokio::test(start_paused = true)]
async fn what_is_held_and_under_way_is_no_more_than_a_block() {
    let fleet = Fleet::new([window(60_000)]).await;
    let mut used = 0;
    for _ in 0..600 {
        used += passed(&join_all((0..3).map(|_| async { (Duration::ZERO, outcome(&fleet.layers[0]).await) })).await);
        pass(Duration::from_millis(7)).await;
        let held = 60_000 - fleet.left().await as usize - used;
        assert!(held <= BATCH as usize, "{held}");
    }
}

/// An instance in the middle of its load: a batch is available, and the next one is in flight.
async fn busy() -> Fleet {
    let fleet = Fleet::new([window(60_000)]).await;
    fleet.send(&[0], 3).await;
    fleet
}

/// Sends requests until the instance requests a batch. Returns how many passed without waiting.
async fn until_it_asks(fleet: &Fleet) -> usize {
    let calls = fleet.store.calls();
    let mut requests = 0;
    while fleet.store.calls() == calls {
        assert_eq!(passed_at_once(&fleet.layers[0], 1), 1);
        requests += 1;
        pass(Duration::from_millis(5)).await;
    }
    requests
}

/// Requests that are decided at once, and allowed.
fn passed_at_once(layer: &RateLimitLayer, requests: usize) -> usize {
    let at_once = (0..requests).filter(|_| outcome(layer).now_or_never() == Some(Outcome::Allowed));
    at_once.count()
}

#[tokio::test(start_paused = true)]
async fn a_call_ahead_that_fails_harms_no_request_and_is_made_again_after_a_pause() {
    let fleet = busy().await;
    fleet.store.set(Timing::FailingLater(StoreErrorKind::Unreachable));
    until_it_asks(&fleet).await;
    let calls = fleet.store.calls();
    // An eighth of a second has no other call, and the store is back after it.
    assert_eq!(passed_at_once(&fleet.layers[0], 5), 5);
    pass(Duration::from_millis(60)).await;
    assert_eq!(passed_at_once(&fleet.layers[0], 5), 5);
    assert_eq!(fleet.store.calls(), calls);
    fleet.store.set(Timing::Far(Duration::from_millis(5)));
    pass(Duration::from_millis(70)).await;
    let then = fleet.send(&[0], 5).await;
    assert_eq!((waited(&then), passed(&then)), (0, then.len()));
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_unavailable_what_is_held_is_spent_with_few_calls_and_then_the_failure_mode_holds() {
    let fleet = busy().await;
    fleet.store.set(Timing::FailingLater(StoreErrorKind::Unreachable));
    let calls = fleet.store.calls();
    let requests = fleet.send(&[0], 1).await;
    let held = passed(&requests);
    assert!(held >= 16, "{held}");
    assert!(requests[..held].iter().all(|(_, outcome)| *outcome == Outcome::Allowed));
    let then = &requests[held..];
    assert!(then.iter().all(|(_, outcome)| *outcome == Outcome::FailedOpen));
    // The circuit opens after five.
    assert!(fleet.store.calls() - calls <= 8, "{}", fleet.store.calls() - calls);

    fleet.store.set(Timing::Far(WAY));
    pass(Duration::from_secs(1)).await;
    fleet.send(&[0], 2).await;
    let then = fleet.send(&[0], 5).await;
    assert_eq!((waited(&then), passed(&then)), (0, then.len()));
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_ends_while_a_batch_is_under_way_gives_all_back() {
    let mut fleet = busy().await;
    let used = 600 + until_it_asks(&fleet).await as u64;
    fleet.layers.remove(0);
    pass(Duration::from_millis(1_200)).await;
    assert_eq!(fleet.left().await, 60_000 - used);
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_under_way_while_a_window_ends_is_charged_to_one_window_and_spent_in_that_one() {
    for before in (0..120).step_by(5) {
        let fleet = Fleet::new([window(600)]).await;
        fleet.send(&[0], 2).await;
        pass(Duration::from_millis(58_000 - before)).await;
        let mut windows = [400, 0];
        let mut requests = Vec::new();
        for _ in 0..60 {
            let (layer, clock) = (fleet.layers[0].clone(), fleet.clock.clone());
            requests.push(tokio::spawn(async move {
                let decision = send(&layer, 1).await;
                assert_eq!(decision.outcome(), Outcome::Allowed);
                // The store's window is that in which it was charged.
                (decision.decided_at().unwrap().as_micros() / 60_000_000, clock.now())
            }));
            pass(Duration::from_millis(5)).await;
        }
        let this = fleet.clock.now().as_micros() / 60_000_000;
        for request in join_all(requests).await {
            let (window, answered) = request.unwrap();
            windows[usize::from(window == this)] += 1;
            // Units of the previous window are not spent in the next one, but a response may still be in flight.
            let is_late = window < this && answered.as_micros() / 60_000_000 == this;
            assert!(!is_late || answered.as_micros() % 60_000_000 <= 41_000, "{answered:?}");
        }
        pass(Duration::from_millis(1_200)).await;
        assert_eq!(fleet.left().await, 600 - windows[1], "{before}");
    }
}

/// The fields may show less than is left, by the units that other instances hold, and never more than was left before.
#[tokio::test(start_paused = true)]
async fn what_is_shown_never_grows_within_a_window_whichever_batch_a_request_is_spent_from() {
    let fleet = Fleet::new([window(60_000)]).await;
    let (mut used, mut shown) = (0, u64::MAX);
    for number in 0..3_000 {
        let units = [1, 1, 7, 1, 30, 2][number % 6];
        let decision = send(&fleet.layers[0], units).await;
        used += units;
        assert!(remaining(&decision) <= 60_000 - used, "{used} {decision:?}");
        assert!(remaining(&decision) <= shown.saturating_add(30), "{shown} {decision:?}");
        shown = remaining(&decision);
        pass(Duration::from_millis(2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_while_a_batch_is_under_way_leaves_nothing_of_it() {
    let fleet = busy().await;
    until_it_asks(&fleet).await;
    fleet.layers[0].limiter().caller("alice").reset().await.unwrap();
    pass(Duration::from_millis(1_200)).await;
    // The call has reached the store after the reset: its units stay charged and are not refunded.
    let charged = 60_000 - fleet.left().await;
    assert!(charged <= BATCH, "{charged}");
    let settlements = fleet.store.settlements();
    fleet.send(&[0], 1).await;
    pass(Duration::from_millis(1_200)).await;
    assert_eq!(fleet.left().await, 60_000 - charged - 200);
    assert!(fleet.store.settlements() <= settlements + 2);
}

#[tokio::test(start_paused = true)]
async fn new_rules_are_not_served_by_a_batch_that_was_under_way() {
    let fleet = busy().await;
    let used = 600 + until_it_asks(&fleet).await as u64;
    let new = Rules::new().policy(window(1_000));
    fleet.layers[0].limiter().rules().replace(new).unwrap();
    let requests = fleet.send(&[0], 4).await;
    assert_eq!(passed(&requests) as u64, 1_000 - used);
}

/// Their clients have gone before there is an answer.
#[tokio::test(start_paused = true)]
async fn cancelled_requests_stay_charged_and_keep_no_batch_from_the_others() {
    let fleet = busy().await;
    let mut used = 600;
    for number in 0..600 {
        let mut request = Box::pin(outcome(&fleet.layers[0]));
        used += 1;
        match futures_util::poll!(&mut request) {
            Poll::Ready(outcome) => assert_eq!(outcome, Outcome::Allowed),
            Poll::Pending if number % 2 == 0 => drop(request),
            Poll::Pending => assert_eq!(request.await, Outcome::Allowed),
        }
        pass(Duration::from_millis(4)).await;
    }
    pass(Duration::from_millis(1_200)).await;
    assert_eq!(fleet.left().await, 60_000 - used);
}

/// As little as one batch in a second of such a caller. One who is away for longer than a batch lasts is as a new one.
#[tokio::test(start_paused = true)]
async fn a_slow_caller_is_charged_by_each_request_and_nothing_is_fetched_ahead() {
    for pause in [950, 3_000] {
        let fleet = Fleet::new([window(60_000)]).await;
        for _ in 0..18 {
            assert_eq!(outcome(&fleet.layers[0]).await, Outcome::Allowed);
            pass(Duration::from_millis(pause)).await;
        }
        assert_eq!((fleet.store.calls(), fleet.store.settlements()), (18, 0), "{pause}");
        assert_eq!(fleet.left().await, 60_000 - 18);
    }
}

/// The time of a call would be longer than that in which its units may be spent.
#[tokio::test(start_paused = true)]
async fn with_windows_of_a_second_and_a_store_so_far_away_requests_wait_and_limits_hold() {
    let policy = QuotaPolicy::per_second("p", 1_000).with_prefetch(BATCH);
    let fleet = Fleet::new([policy]).await;
    let requests = fleet.send(&ALL, 20).await;
    assert_eq!(passed(&requests), requests.len());
    pass(Duration::from_secs(3)).await;
    assert_eq!(fleet.left().await, 1_000);
}

#[derive(Clone, Debug)]
struct Burst {
    instance: usize,
    costs: Vec<Cost>,
    then: u64,
}

fn bursts() -> impl Strategy<Value = Vec<Burst>> {
    let then = prop_oneof![4 => 0..20_u64, 1 => 0..2_500_u64];
    let burst = (0..INSTANCES, prop::collection::vec(cost(), 1..12), then);
    let burst = burst.prop_map(|(instance, costs, then)| Burst { instance, costs, then });
    prop::collection::vec(burst, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// L11: for any load and latency, at any time.
    #[test]
    fn no_window_sees_more_than_its_quota_and_no_unit_is_lost_however_far_the_store_is(
        bursts in bursts(),
        // A request makes up to three calls within its deadline: for a batch, alone, and alone with the remainder of a
        // batch.
        way in prop_oneof![Just(0_u64), 1..40_u64],
    ) {
        let (quota, batch) = (600, 80);
        let policy = QuotaPolicy::new("p", quota, Duration::from_secs(1_000_000_000))
            .with_algorithm(Algorithm::FixedWindow)
            .with_prefetch(batch);
        paused().block_on(async {
            let fleet = Fleet::new([policy]).await;
            fleet.store.set(Timing::Far(Duration::from_millis(way)));
            let mut requests = Vec::new();
            for burst in bursts {
                for cost in burst.costs {
                    let layer = fleet.layers[burst.instance].clone();
                    requests.push(tokio::spawn(async move {
                        let decision = send_for(&layer, "alice", cost).await;
                        assert!(matches!(decision.outcome(), Outcome::Allowed | Outcome::Rejected));
                        if decision.outcome() == Outcome::Allowed { cost.actual } else { 0 }
                    }));
                }
                pass(Duration::from_millis(burst.then)).await;
            }
            let spent: u64 = join_all(requests).await.into_iter().map(Result::unwrap).sum();
            assert!(spent <= quota, "{spent}");
            pass(Duration::from_millis(1_500)).await;
            assert_eq!(fleet.left().await, quota - spent);
            assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
        });
    }
}
