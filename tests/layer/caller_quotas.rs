//! Individual quotas of callers.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use proptest::prelude::*;
use test_kit::{Answered, limits, limits_of, memory, request, send};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    Algorithm, CallerQuotas, Capacity, ChargeTime, ConfigErrorKind, Outcome, Refund, ResolvedTier, Rules, RulesHandle,
    Scope, Tiers, ToPartitionKey, tier::TierLayer,
};

use super::*;

const MINUTE: QuotaPolicy = QuotaPolicy::per_minute("minute", 100).with_caller_quotas(10..=10_000);

fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

fn quotas(quota: u64) -> CallerQuotas {
    CallerQuotas::new().quota("minute", quota)
}

/// A request of a user with individual quotas.
fn request_with(user: &str, quotas: CallerQuotas) -> Request<String> {
    let mut request = request(user);
    request.extensions_mut().insert(quotas);
    request
}

async fn policy_of(layer: &RateLimitLayer, request: Request<String>) -> String {
    send(layer, request).await.field("ratelimit-policy").to_owned()
}

#[tokio::test]
async fn a_caller_has_its_own_quota_in_field_decision_and_problem_and_others_have_that_of_the_rules() {
    let layer = limits(memory(&clock())).policy(MINUTE).build().unwrap();
    for left in (0..12).rev() {
        let response = send(&layer, request_with("acme", quotas(12))).await;
        assert_eq!(response.remaining(), [("minute".to_owned(), left)]);
    }
    let rejected = send(&layer, request_with("acme", quotas(12))).await;
    assert_eq!(rejected.code(), 429);
    assert_eq!(rejected.field("ratelimit-policy"), r#""minute";q=12;w=60"#);
    assert_eq!(rejected.field("retry-after"), "5");
    assert_eq!(rejected.decision().violated().next().unwrap().policy().quota(), 12);

    let bob = send(&layer, request("bob")).await;
    assert_eq!(bob.field("ratelimit-policy"), r#""minute";q=100;w=60"#);
    assert_eq!(bob.field("ratelimit"), r#""minute";r=99;t=60"#);
    // Used units stay used when the numbers change.
    let later = send(&layer, request("acme")).await;
    assert_eq!(later.field("ratelimit"), r#""minute";r=87;t=53"#);
}

#[tokio::test]
async fn numbers_are_brought_within_the_bounds_of_the_policy_and_unknown_names_change_nothing() {
    let closable = QuotaPolicy::per_hour("hour", 5).with_caller_quotas(0..=50);
    let fixed = QuotaPolicy::per_day("day", 1_000);
    let builder = limits(memory(&clock())).policy(MINUTE).policy(closable).policy(fixed);
    let layer = builder.build().unwrap();
    let unknown = CallerQuotas::new().quota("whatever", 1).burst_capacity("hour", 7);
    let cases = [
        (quotas(0), [10, 5, 1_000]),
        (quotas(u64::MAX), [10_000, 5, 1_000]),
        (quotas(77).quota("hour", 51).quota("day", 5), [77, 50, 1_000]),
        (quotas(77).quota("minute", 78), [78, 5, 1_000]),
        (unknown, [100, 5, 1_000]),
    ];
    for (number, (quotas, expected)) in cases.into_iter().enumerate() {
        let response = send(&layer, request_with(&format!("user{number}"), quotas)).await;
        let told = response.decision().allowances().map(|own| own.policy().quota());
        assert_eq!(told.collect::<Vec<_>>(), expected, "{number}");
    }
    let closed = send(&layer, request_with("closed", CallerQuotas::new().quota("hour", 0))).await;
    assert_eq!((closed.code(), closed.field("retry-after")), (429, ""));
}

/// Prefetched units come from the caller's policy, and never exceed its quota.
#[tokio::test]
async fn a_policy_that_prefetches_more_than_the_caller_may_use_prefetches_less_of_it() {
    let policy = MINUTE.with_prefetch(50);
    let layer = limits(memory(&clock())).policy(policy).build().unwrap();
    let response = send(&layer, request_with("acme", quotas(20))).await;
    assert_eq!(response.field("ratelimit-policy"), r#""minute";q=20;w=60"#);
}

#[tokio::test]
async fn bounds_that_are_no_quotas_of_the_policy_are_errors_of_build() {
    let strict = MINUTE
        .with_algorithm(Algorithm::StrictTokenBucket)
        .with_burst_capacity(20);
    #[expect(clippy::reversed_empty_ranges, reason = "that is the error")]
    let cases = [
        (
            MINUTE.with_caller_quotas(10..=5),
            ConfigErrorKind::Quota,
            "caller quotas 10..=5: lower bound exceeds upper bound",
        ),
        (
            MINUTE.with_caller_quotas(0..=u64::MAX),
            ConfigErrorKind::Quota,
            "largest caller quota 18446744073709551615 is outside",
        ),
        (
            strict,
            ConfigErrorKind::BurstCapacity,
            "caller quotas 10..=10000: burst capacity 20 exceeds quota 10",
        ),
    ];
    for (policy, kind, message) in cases {
        let error = limits(memory(&clock())).policy(policy).build().unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().starts_with(r#"policy "minute": "#), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
}

/// A request's own extension takes precedence.
#[tokio::test]
async fn the_source_of_tiers_answers_with_the_quotas_of_a_caller_too() {
    let tiers = Tiers::resolved()
        .tier("free", [QuotaPolicy::per_minute("minute", 10)])
        .tier("premium", [MINUTE]);
    let layer = limits(memory(&clock())).tiers(tiers).build().unwrap();
    let premium = || ResolvedTier::new("premium");
    let contract = || Some(premium().with_quotas(quotas(5_000)));
    for (tier, mut request, quota) in [
        (contract(), request("acme"), 5_000),
        (contract(), request_with("acme", quotas(6_000)), 6_000),
        (Some(premium()), request("bob"), 100),
        (None, request("carol"), 10),
        // The tier of carol lets no caller have its own.
        (None, request_with("carol", quotas(6_000)), 10),
    ] {
        tier.and_then(|tier| request.extensions_mut().insert(tier));
        let expected = format!(r#""minute";q={quota};w=60"#);
        assert_eq!(policy_of(&layer, request).await, expected);
    }
}

/// Each level has the numbers of its policy, in one decision.
#[tokio::test]
async fn organisation_team_and_user_have_their_own_numbers_in_one_decision() {
    let limiter = Limiter::builder(memory(&clock()))
        .named_key("organisation")
        .named_key("team");
    let policy = |name| QuotaPolicy::per_day(name, 100).with_caller_quotas(1..=100_000);
    let rules = Rules::new()
        .policy(policy("of organisation").keyed_by("organisation"))
        .policy(policy("of team").keyed_by("team"))
        .policy(policy("of user"));
    let limiter = limiter.scope("levels").rules(rules).build().unwrap();
    let acme = CallerQuotas::new().quota("of organisation", 10_000).quota("of team", 3);
    let of = |user: &str, team: &str| {
        let caller = limiter.caller(user).keyed_by("organisation", "acme");
        caller.keyed_by("team", team).quotas(acme.clone())
    };
    let left = |decision: &tower_quota::Decision| -> Vec<u64> {
        decision.allowances().map(|allowance| allowance.remaining()).collect()
    };
    assert_eq!(left(&of("alice", "red").check().await), [9_999, 2, 99]);
    assert_eq!(left(&of("bob", "red").check().await), [9_998, 1, 99]);
    assert_eq!(left(&of("alice", "blue").check().await), [9_997, 2, 98]);
    of("carol", "red").check().await;
    let rejected = of("dave", "red").check().await;
    assert_eq!(rejected.outcome(), Outcome::Rejected);
    assert!(rejected.violated().map(|by| by.policy().name()).eq(["of team"]));
    // Nothing was taken from the other levels.
    assert_eq!(left(&of("eve", "green").peek().await.unwrap().unwrap())[0], 9_996);
}

#[tokio::test]
async fn reduced_capacity_top_ups_new_rules_and_a_trial_apply_to_the_quotas_of_a_caller() {
    let percent = Arc::new(AtomicU8::new(100));
    let capacity = Arc::clone(&percent);
    let layer = limits(memory(&clock()))
        .policy(MINUTE)
        .capacity(move |_| match capacity.load(Ordering::Relaxed) {
            100 => Capacity::full(),
            percent => Capacity::reduced_to(percent).unwrap(),
        })
        .build()
        .unwrap();
    let acme = || request_with("acme", quotas(1_000));
    assert_eq!(policy_of(&layer, acme()).await, r#""minute";q=1000;w=60"#);
    percent.store(50, Ordering::Relaxed);
    assert_eq!(policy_of(&layer, acme()).await, r#""minute";q=500;w=60"#);
    percent.store(100, Ordering::Relaxed);

    let caller = layer.limiter().caller(&PartitionKey::new("x-user-id", "acme"));
    let topped_up = |quotas: CallerQuotas| quotas.top_up("minute", 7, Timestamp::from_micros(u64::MAX));
    let acme = || request_with("acme", topped_up(quotas(1_000)));
    assert_eq!(policy_of(&layer, acme()).await, r#""minute";q=1007;w=60"#);
    let peeked = caller.quotas(topped_up(quotas(1_000))).peek().await.unwrap().unwrap();
    assert_eq!(peeked.allowances().next().unwrap().policy().quota(), 1_007);
    let other = || request_with("acme", topped_up(CallerQuotas::new()));
    assert_eq!(policy_of(&layer, other()).await, r#""minute";q=107;w=60"#);

    let rules: RulesHandle = layer.limiter().rules();
    let minute = QuotaPolicy::per_minute("minute", 100);
    let lower = Rules::new().policy(minute.clone().with_caller_quotas(1..=600));
    rules.roll_out(100, lower).unwrap();
    // Top-ups, too, stay within the bounds.
    assert_eq!(policy_of(&layer, acme()).await, r#""minute";q=600;w=60"#);
    rules.replace(Rules::new().policy(minute)).unwrap();
    assert_eq!(policy_of(&layer, acme()).await, r#""minute";q=100;w=60"#);
}

#[tokio::test]
async fn quotas_and_top_ups_end_at_their_moment_and_what_was_used_stays_used() {
    let clock = clock();
    let builder = limits_of(Limiter::builder(memory(&clock)).clock(clock.clone()));
    let day = QuotaPolicy::per_day("day", 3).with_algorithm(Algorithm::FixedWindow);
    let layer = builder.policy(day.with_caller_quotas(1..=100)).build().unwrap();
    let after = |seconds| clock.now().saturating_add(Duration::from_secs(seconds));
    let own = CallerQuotas::new().quota("day", 10).until(after(20));
    let own = own.top_up("day", 4, after(10)).top_up("day", 2, after(30));
    let own = own.top_up("other", 50, after(30));
    // The fourth is rejected.
    for (quota, remaining) in [(16, 15), (12, 10), (5, 2), (3, 0)] {
        let response = send(&layer, request_with("acme", own.clone())).await;
        let day = response.decision().allowances().next().unwrap();
        assert_eq!((day.policy().quota(), day.remaining()), (quota, remaining));
        clock.advance(Duration::from_secs(10));
    }
}

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::TokenBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowCounter,
    Algorithm::SlidingWindowLog,
    Algorithm::LeakyBucketMeter,
];

proptest! {
    /// Two instances may know different numbers for a while.
    #[test]
    fn instances_that_know_different_numbers_of_a_caller_admit_no_more_than_the_larger_one(
        algorithm in prop::sample::select(ALGORITHMS.to_vec()),
        requests in prop::collection::vec((any::<bool>(), 0_u64..8), 1..120),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let policy = QuotaPolicy::per_minute("minute", 5).with_algorithm(algorithm).with_caller_quotas(1..=100);
            let scene = || {
                let clock = clock();
                let limiter = || Limiter::builder(memory(&clock));
                (limits_of(limiter()).policy(policy.clone()).build().unwrap(), clock)
            };
            let ((mixed, clock), (alone, other_clock)) = (scene(), scene());
            let (mut admitted, mut admitted_alone) = (0, 0);
            for (is_larger, seconds) in requests {
                clock.advance(Duration::from_secs(seconds));
                other_clock.advance(Duration::from_secs(seconds));
                let of = |quota| request_with("acme", quotas(quota));
                admitted += usize::from(send(&mixed, of(if is_larger { 20 } else { 5 })).await.code() == 200);
                admitted_alone += usize::from(send(&alone, of(20)).await.code() == 200);
                prop_assert!(admitted <= admitted_alone, "{admitted} of {admitted_alone}");
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn months_begin_on_the_day_of_the_caller_and_other_windows_do_not() {
    let clock = Clock::manual(Timestamp::from_micros(1_774_000_000_000_000)); // 20 March 2026, 09:46:40 UTC
    let layer = limits(memory(&clock))
        .policy(QuotaPolicy::per_calendar_month("month", 5, "UTC").with_caller_quotas(1..=100))
        .policy(QuotaPolicy::per_calendar_week("week", 5, "UTC").with_caller_quotas(1..=100))
        .policy(QuotaPolicy::per_calendar_month("fixed", 9, "UTC"))
        .build()
        .unwrap();
    let wait = async |quotas: CallerQuotas| {
        let response = send(&layer, request_with("acme", quotas)).await;
        let mut windows = response
            .decision()
            .allowances()
            .map(|own| own.full_after().unwrap().as_secs());
        std::array::from_fn::<_, 3, _>(|_| windows.next().unwrap())
    };
    let usual = wait(CallerQuotas::new()).await;
    let billed = wait(CallerQuotas::new().month_begins(25)).await;
    let last = wait(CallerQuotas::new().month_begins(31)).await;
    assert_eq!([usual[0], billed[0], last[0]], [1_001_600, 396_800, 915_200]);
    assert_eq!(usual[1..], billed[1..]);
    let clamped = [0, 1, 200, 31].map(|day| CallerQuotas::new().month_begins(day));
    assert!(clamped[0] == clamped[1] && clamped[2] == clamped[3]);
}

#[test]
fn quotas_are_read_and_written_as_json() {
    let text = r#"{"policies":{"hour":{"burst_capacity":7},"minute":{"quota":5000}},"month_begins":15,"until":9,"top_ups":[{"policy":"minute","units":5,"until":8}]}"#;
    let moment = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
    let quotas = CallerQuotas::new().burst_capacity("hour", 7).quota("minute", 5_000);
    let quotas = quotas.month_begins(15).until(moment(9)).top_up("minute", 5, moment(8));
    assert_eq!(serde_json::to_string(&quotas).unwrap(), text);
    assert_eq!(serde_json::from_str::<CallerQuotas>(text).unwrap(), quotas);
    assert_eq!(serde_json::from_str::<CallerQuotas>("{}").unwrap(), CallerQuotas::new());
    for wrong in [
        r#"{"quota": 5}"#,
        r#"{"month_begins": "15"}"#,
        r#"{"policies": {"a": {"quota": -1}}}"#,
    ] {
        assert!(serde_json::from_str::<CallerQuotas>(wrong).is_err(), "{wrong}");
    }
}

/// The source of the quotas may fail while the source of the plans responds.
#[tokio::test]
async fn quotas_whose_source_fails_stay_for_ten_minutes_and_are_those_of_the_plan_afterwards() {
    let (clock, is_down) = (clock(), Arc::new(AtomicU8::new(0)));
    let down = Arc::clone(&is_down);
    let contract = move || match down.load(Ordering::Relaxed) {
        0 => Ok(Some(quotas(5_000))),
        _ => Err("connection refused"),
    };
    let user = |request: &http::request::Parts| request.headers.get("x-user-id")?.to_str().ok().map(str::to_owned);
    let tiers = TierLayer::from_fn(user, move |_| {
        let contract = contract();
        async move { Ok::<_, Infallible>(Some(ResolvedTier::new("premium").with_quotas_or_last(contract))) }
    });
    let tiers = tiers.clock(clock.clone()).build().unwrap();
    let premium = QuotaPolicy::per_minute("minute", 200).with_caller_quotas(10..=10_000);
    let of_plans = Tiers::resolved().tier("free", [MINUTE]).tier("premium", [premium]);
    let limits = limits(memory(&clock)).tiers(of_plans).build().unwrap();
    let policy = async |user: &str| {
        let service = tiers.layer(limits.layer(test_kit::hello()));
        let response = test_kit::call(service, request(user)).await;
        response.field("ratelimit-policy").to_owned()
    };
    assert_eq!(policy("acme").await, r#""minute";q=5000;w=60"#);
    is_down.store(1, Ordering::Relaxed);
    for (seconds, quota) in [(61, 5_000), (300, 5_000), (298, 5_000), (61, 200)] {
        clock.advance(Duration::from_secs(seconds));
        let expected = format!(r#""minute";q={quota};w=60"#);
        assert_eq!(policy("acme").await, expected, "after {seconds} s");
    }
    // A new customer has the plan at once.
    assert_eq!(policy("other").await, r#""minute";q=200;w=60"#);
    is_down.store(0, Ordering::Relaxed);
    // The source is called again soon, in the background.
    clock.advance(Duration::from_secs(8));
    for user in ["acme", "other"] {
        policy(user).await;
        tokio::task::yield_now().await;
        assert_eq!(policy(user).await, r#""minute";q=5000;w=60"#);
    }
}

#[tokio::test]
async fn a_digest_of_the_key_is_enough_to_forget_a_user() {
    let calls = Arc::new(AtomicU8::new(0));
    let seen = Arc::clone(&calls);
    let tiers = TierLayer::by_extension(move |_: u64| {
        seen.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>(Some("premium")) }
    });
    let tiers = tiers.build().unwrap();
    let service = tiers.layer(service_fn(async |_| Ok::<_, Infallible>(Response::new(()))));
    let ask = async || {
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(7_u64);
        service.clone().oneshot(request).await.unwrap();
        calls.load(Ordering::Relaxed)
    };
    let digest = |user: u64| Scope::new("tiers").partition(&user.to_partition_key());
    assert_eq!((ask().await, ask().await), (1, 1));
    tiers.cache().forget_digest(digest(8));
    assert_eq!(ask().await, 1);
    tiers.cache().forget_digest(digest(7));
    assert_eq!(ask().await, 2);
}

/// A number outside the bounds is replaced by the nearest one first, and no top-up lowers anything.
#[tokio::test]
async fn top_ups_are_added_to_what_a_caller_has_without_them() {
    let policy = |quota, bounds| QuotaPolicy::per_minute("minute", quota).with_caller_quotas(bounds);
    let (bursty, strict) = (policy(100, 1..=1_000), policy(100, 10..=1_000));
    let strict = strict
        .with_algorithm(Algorithm::StrictTokenBucket)
        .with_burst_capacity(5);
    for (policy, own, units, expected) in [
        (policy(100, 10..=10_000), Some(0), 500, (510, 510)),
        (policy(100, 10..=10_000), Some(5), 500, (510, 510)),
        (policy(100, 0..=10_000), Some(0), 500, (0, 0)),
        (policy(1_000, 1..=500), None, 100, (1_000, 1_000)),
        (policy(5, 10..=500), None, 1, (6, 6)),
        (policy(100, 1..=150), None, 100, (150, 150)),
        (bursty.with_burst_capacity(5_000), None, 1, (101, 5_000)),
        (strict, Some(500), 6, (506, 11)),
    ] {
        let own = own.map_or_else(CallerQuotas::new, quotas);
        let topped_up = own.top_up("minute", units, Timestamp::from_micros(u64::MAX));
        assert_eq!(numbers_of(policy, topped_up).await, expected, "{units}");
    }
}

/// The quota and the burst capacity of a caller, or 0 if the policy is closed.
async fn numbers_of(policy: QuotaPolicy, quotas: CallerQuotas) -> (u64, u64) {
    let layer = limits(memory(&clock())).policy(policy).build().unwrap();
    let acme = PartitionKey::new("x-user-id", "acme");
    let caller = layer.limiter().caller(&acme).quotas(quotas);
    let decision = caller.peek().await.unwrap().unwrap();
    let own = decision.allowances().next().unwrap().policy().clone();
    let capacity = if own.quota() == 0 { 0 } else { own.burst_capacity() };
    (own.quota(), capacity)
}

#[tokio::test]
async fn numbers_that_cannot_be_counted_are_rounded_down_and_do_not_become_those_of_the_plan() {
    const MONTH: Duration = Duration::from_secs(30 * 86_400);
    let policy = QuotaPolicy::new("month", 100, MONTH).with_caller_quotas(100..=10_000_000_000_000);
    let layer = limits(memory(&clock())).policy(policy).build().unwrap();
    let own = CallerQuotas::new().quota("month", 2_167_352_246_349);
    let own = own.top_up("month", 2_681_219_746_061, Timestamp::from_micros(u64::MAX));
    let acme = PartitionKey::new("x-user-id", "acme");
    let decision = layer.limiter().caller(&acme).quotas(own).peek().await.unwrap().unwrap();
    let quota = decision.allowances().next().unwrap().policy().quota();
    assert!((4_840_000_000_000..=4_848_571_992_410).contains(&quota), "{quota}");
}

#[test]
fn a_source_that_answers_after_another_one_has_failed_is_believed() {
    let failed = || ResolvedTier::new("premium").with_quotas_or_last(Err::<Option<CallerQuotas>, _>("down"));
    let expected = ResolvedTier::new("premium").with_quotas(quotas(9));
    assert_eq!(failed().with_quotas_or_last(Ok::<_, &str>(Some(quotas(9)))), expected);
    assert_eq!(failed().with_quotas(quotas(9)), expected);
}

#[tokio::test]
async fn a_refund_of_a_month_that_another_day_has_ended_does_not_come_back() {
    let clock = Clock::manual(Timestamp::from_micros(1_772_712_000_000_000)); // 5 March 2026, 12:00 UTC
    let month = QuotaPolicy::per_calendar_month("month", 100, "UTC").with_caller_quotas(1..=100);
    let limiter = Limiter::builder(memory(&clock))
        .scope("refunds")
        .policy(month)
        .build()
        .unwrap();
    let acme = || limiter.caller("acme").cost(100);
    let charged = clock.now();
    assert!(acme().check().await.outcome().is_admitted());
    clock.advance(Duration::from_secs(15 * 86_400));
    let billed = || acme().quotas(CallerQuotas::new().month_begins(18));
    assert!(billed().check().await.outcome().is_admitted(), "a month has begun");
    let refund = Refund::new(100, ChargeTime::At(charged));
    acme().refund(&refund).await.unwrap();
    assert_eq!(billed().check().await.outcome(), Outcome::Rejected);
}

#[tokio::test]
async fn fields_announce_when_a_month_ends_after_the_day_has_changed_and_it_ends_then() {
    let clock = Clock::manual(Timestamp::from_micros(1_783_987_200_000_000)); // 14 July 2026
    let month = QuotaPolicy::per_calendar_month("month", 3, "UTC").with_caller_quotas(1..=100);
    let layer = limits(memory(&clock)).policy(month).build().unwrap();
    let ask = async |day| send(&layer, request_with("acme", CallerQuotas::new().month_begins(day))).await;
    for (day, left) in [(5, 2), (15, 1)] {
        assert_eq!(ask(day).await.remaining(), [("month".to_owned(), left)]);
    }
    assert_eq!(ask(15).await.field("ratelimit"), r#""month";r=0;t=86400"#);
    for (day, wait) in [(15, "86400"), (5, "1900800"), (15, "86400")] {
        let rejected = ask(day).await;
        assert_eq!((rejected.code(), rejected.field("retry-after")), (429, wait));
        assert_eq!(rejected.field("ratelimit"), format!(r#""month";r=0;t={wait}"#));
    }
    clock.advance(Duration::from_secs(86_400));
    assert_eq!(ask(5).await.code(), 429);
    assert_eq!(ask(15).await.remaining(), [("month".to_owned(), 2)]);
    assert_eq!(ask(5).await.remaining(), [("month".to_owned(), 1)]);
}
