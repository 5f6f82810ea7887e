//! Responses of real services, as their documentation shows them or as people have reported them, and what a client
//! reads from them. Names, tokens and addresses are replaced; a `Date` that was not reported is ours.

use ratelimit_fields::Unit;
use tower::ServiceExt;
use tower_ratelimit_client::{LimitFields, Profile};

use super::*;

/// Name, quota, remaining units, and milliseconds until the reset.
type Told = (Option<&'static str>, Option<u64>, Option<u64>, Option<u64>);

/// Reads the fields of a response.
fn read(profile: &Profile, status: u16, fields: &str) -> Advice {
    let caps = Caps::new(seconds(86_400), 1_000_000).unwrap();
    let status = StatusCode::from_u16(status).unwrap();
    Advice::read_as(profile, status, &headers(&lines(fields)), exchange(0, 0), &caps)
}

/// Asserts the limits and the milliseconds of `Retry-After`, and that a 429 is a rejection.
#[track_caller]
fn assert_read(profile: &Profile, status: u16, fields: &str, limits: &[Told], retry_after: Option<u64>) {
    let advice = read(profile, status, fields);
    let millis = |wait: Option<Duration>| wait.map(|wait| u64::try_from(wait.as_millis()).unwrap());
    let told = advice.limits().iter();
    let told = told.map(|limit| (limit.name(), limit.quota(), limit.remaining(), millis(limit.reset())));
    assert_eq!(told.collect::<Vec<_>>(), limits, "{fields}");
    assert_eq!(millis(advice.retry_after()), retry_after, "{fields}");
    assert!(advice.ignored().is_empty(), "{advice:?}");
    if status != 403 {
        assert_eq!(advice.is_rejection(), status == 429, "{fields}");
    }
}

/// api.github.com, documentation of 2013, in hub4j/github-api#220.
#[test]
fn a_rejection_by_github_with_403_is_waited_for() {
    let fields = "date: Tue, 20 Aug 2013 14:50:41 GMT | x-ratelimit-limit: 60 | x-ratelimit-remaining: 0 | \
        x-ratelimit-reset: 1377013266";
    // Without the status in the profile, it is an ordinary response with an exhausted limit.
    for (profile, name) in [
        (Profile::github(), None),
        (Profile::x_rate_limit(), Some("x-ratelimit")),
    ] {
        assert_read(
            &profile,
            403,
            fields,
            &[(name, Some(60), Some(0), Some(3_025_000))],
            None,
        );
        assert_eq!(read(&profile, 403, fields).is_rejection(), name.is_none());
    }
}

/// jdalrymple/gitbeaker#3411, of September 2023. GitLab sends Unix times in the fields of the drafts.
#[test]
fn gitlab_is_read_with_and_without_a_profile() {
    let fields = "date: Fri, 15 Sep 2023 15:28:06 GMT | ratelimit-limit: 2000 | ratelimit-observed: 1 | \
        ratelimit-remaining: 1999 | ratelimit-reset: 1694791726 | ratelimit-resettime: Fri, 15 Sep 2023 15:28:46 GMT";
    let by_date = LimitFields::new()
        .with_used("ratelimit-observed")
        .with_quota("ratelimit-limit");
    let by_date = Profile::new().with_limit(by_date.with_reset("ratelimit-resettime"));
    for profile in [Profile::new(), Profile::x_rate_limit(), by_date] {
        assert_read(
            &profile,
            200,
            fields,
            &[(None, Some(2_000), Some(1_999), Some(40_000))],
            None,
        );
    }
}

/// docs.x.com/fundamentals/rate-limits; elizaOS/agent-twitter-client#68 for a 429 with remaining units.
#[test]
fn x_sends_unix_times_and_rejects_although_units_remain() {
    let fields = "date: Tue, 16 Jan 2024 15:55:00 GMT | x-rate-limit-limit: 900 | x-rate-limit-remaining: 847 | \
        x-rate-limit-reset: 1705420800";
    for status in [200, 429] {
        let limits = [(Some("x-rate-limit"), Some(900), Some(847), Some(300_000))];
        assert_read(&Profile::x_rate_limit(), status, fields, &limits, None);
    }
}

/// Reddit sends fractions. The feed, observed in September 2026, and the API, praw-dev/praw#2046 of January 2025, whose
/// reset is 0 in the last second of a window.
#[test]
fn reddit_sends_fractions_and_a_reset_of_zero() {
    let limit = |reset| (Some("x-ratelimit"), None, Some(0), Some(reset));
    let allowed = "x-ratelimit-remaining: 0.0 | x-ratelimit-reset: 40";
    assert_read(&Profile::x_rate_limit(), 200, allowed, &[limit(40_000)], None);
    let rejected = "x-ratelimit-used: 1000 | x-ratelimit-remaining: 0.0 | x-ratelimit-reset: 0";
    assert_read(&Profile::x_rate_limit(), 429, rejected, &[limit(0)], None);
}

/// docs.discord.com/developers/topics/rate-limits.
#[test]
fn discord_names_its_limits_and_sends_fractions() {
    let fields = "retry-after: 65 | x-ratelimit-limit: 10 | x-ratelimit-remaining: 0 | \
        x-ratelimit-reset: 1470173023.123 | x-ratelimit-reset-after: 64.57 | x-ratelimit-bucket: abcd1234 | \
        x-ratelimit-scope: user";
    let bucket = LimitFields::new()
        .with_name_field("x-ratelimit-bucket")
        .with_quota("x-ratelimit-limit")
        .with_remaining("x-ratelimit-remaining")
        .with_reset("x-ratelimit-reset-after");
    let limits = [(Some("abcd1234"), Some(10), Some(0), Some(64_570))];
    assert_read(&Profile::new().with_limit(bucket), 429, fields, &limits, Some(65_000));
}

/// nozzlegear/ShopifySharp#350 of April 2019 and MONEI/Shopify-api-node#135.
#[test]
fn shopify_sends_used_calls_and_a_wait_with_a_fraction() {
    let calls = LimitFields::new().with_used("X-Shopify-Shop-Api-Call-Limit");
    let profile = Profile::new().with_limit(calls);
    let fields = "http_x_shopify_shop_api_call_limit: 1/40 | x-shopify-shop-api-call-limit: 1/40";
    assert_read(&profile, 200, fields, &[(None, Some(40), Some(39), None)], None);
    let fields = "x-shopify-shop-api-call-limit: 40/40 | retry-after: 2.0";
    assert_read(&profile, 429, fields, &[(None, Some(40), Some(0), None)], Some(2_000));
}

/// BigCommerce sends milliseconds: its documentation, whose 429 has only the reset, and a response of September 2020.
#[test]
fn bigcommerce_sends_milliseconds() {
    let requests = LimitFields::new()
        .with_quota("x-rate-limit-requests-quota")
        .with_remaining("x-rate-limit-requests-left")
        .with_reset_ms("x-rate-limit-time-reset-ms");
    let profile = Profile::new().with_limit(requests);
    let fields = "date: Sun, 13 Sep 2020 23:03:21 GMT | x-rate-limit-requests-left: 447 | \
        x-rate-limit-time-reset-ms: 20649 | x-rate-limit-requests-quota: 450 | x-rate-limit-time-window-ms: 30000";
    assert_read(
        &profile,
        200,
        fields,
        &[(None, Some(450), Some(447), Some(20_649))],
        None,
    );
    let fields = "date: Mon, 03 Feb 2017 20:36:00 GMT | x-rate-limit-time-reset-ms: 15000";
    assert_read(&profile, 429, fields, &[(None, None, Some(0), Some(15_000))], None);
}

/// Azure: the documentation of App Configuration, and openai/openai-python#937 of December 2023.
#[test]
fn azure_sends_a_wait_in_milliseconds_or_a_reset_of_another_name() {
    let fields = "retry-after-ms: 10 | content-type: application/problem+json; charset=utf-8";
    assert_read(
        &Profile::new().with_retry_after_ms("retry-after-ms"),
        429,
        fields,
        &[],
        Some(10),
    );
    let tokens = LimitFields::new().with_name("tokens").with_unit(Unit::tokens());
    let profile = Profile::open_ai().with_limit(tokens.with_reset("x-rate-limit-reset-tokens"));
    let fields = "x-rate-limit-reset-tokens: 55 | x-ratelimit-remaining-requests: 299";
    let requests = (Some("requests"), None, Some(299), None);
    assert_read(
        &profile,
        429,
        fields,
        &[requests, (Some("tokens"), None, Some(0), Some(55_000))],
        None,
    );
}

/// Jira Cloud: jira.atlassian.com/browse/JRACLOUD-69262. Jira Data Center: ahungry/org-jira#365 of December 2024.
/// Confluence Data Center sends `Retry-After: 0` while tokens are left.
#[test]
fn atlassian_sends_dates_without_seconds_and_waits_of_zero() {
    let profile = Profile::x_rate_limit();
    let fields = "date: Mon, 10 May 2021 10:59:12 GMT | retry-after: 48 | x-ratelimit-limit: 350 | \
        x-ratelimit-remaining: 0 | x-ratelimit-reset: 2021-05-10T11:00Z | x-ratelimit-nearlimit: true | \
        ratelimit-reason: jira-quota-based";
    let limits = [(Some("x-ratelimit"), Some(350), Some(0), Some(48_000))];
    assert_read(&profile, 429, fields, &limits, Some(48_000));
    let fields = "x-ratelimit-limit: 5 | x-ratelimit-remaining: 1 | x-ratelimit-fillrate: 5 | \
        x-ratelimit-interval-seconds: 1 | retry-after: 0";
    for status in [200, 429] {
        assert_read(
            &profile,
            status,
            fields,
            &[(Some("x-ratelimit"), Some(5), Some(1), None)],
            Some(0),
        );
    }
}

/// Okta and Zendesk, from their documentation; Zendesk repeats its numbers.
#[test]
fn fields_of_several_names_are_read_together() {
    let (profile, name) = (Profile::x_rate_limit(), Some("x-rate-limit"));
    let fields = "date: Thu, 31 Dec 2020 23:59:30 GMT | x-rate-limit-limit: 1200 | x-rate-limit-remaining: 1199 | \
        x-rate-limit-reset: 1609459200";
    assert_read(
        &profile,
        200,
        fields,
        &[(name, Some(1_200), Some(1_199), Some(30_000))],
        None,
    );
    let fields = "x-rate-limit: 700 | ratelimit-limit: 700 | x-rate-limit-remaining: 699 | ratelimit-remaining: 699 | \
        ratelimit-reset: 41";
    let limits = [
        (None, Some(700), Some(699), Some(41_000)),
        (name, None, Some(699), None),
    ];
    assert_read(&profile, 200, fields, &limits, None);
}

/// Stripe, docs.stripe.com/rate-limits, sends no wait. Sentry, getsentry/sentry#7919, sent fractions, and Moneybird,
/// picqer/moneybird-php-client#200, sends Unix times.
#[test]
fn services_without_fields_of_their_own_are_read_without_a_profile() {
    for (fields, retry_after) in [
        ("stripe-rate-limited-reason: global-rate", None),
        ("retry-after: 292.052427053", Some(293_000)),
        (
            "date: Wed, 15 Apr 2020 11:35:00 GMT | retry-after: 1586950800",
            Some(300_000),
        ),
    ] {
        assert_read(&Profile::new(), 429, fields, &[], retry_after);
    }
}

/// A limit that Canvas has exhausted is a 403 with a fraction.
#[tokio::test(start_paused = true)]
async fn a_described_service_is_obeyed_by_the_layer() {
    let profile = Profile::new()
        .with_limit(LimitFields::new().with_remaining("x-rate-limit-remaining"))
        .with_exhausted_rejection(StatusCode::FORBIDDEN);
    let script = Script::new([
        (
            200,
            lines("x-rate-limit-remaining: 600.0 | x-request-cost: 1.6971074750005457"),
        ),
        (403, vec!["x-rate-limit-remaining: 0.0"]),
        (403, vec!["x-rate-limit-remaining: 0.0"]),
        (403, vec!["x-rate-limit-remaining: 599.3"]),
        (200, vec!["x-rate-limit-remaining: 598.0"]),
    ]);
    let builder = builder().profile("canvas.example", profile);
    let client = script.client(builder.retries(3, |body: &String| Some(body.clone())));
    let get = || client.clone().oneshot(get("https://canvas.example/"));
    assert_eq!(get().await.unwrap().status(), 200);
    // The second request is rejected twice, and its third answer means that access is denied.
    assert_eq!(get().await.unwrap().status(), 403);
    assert_eq!(get().await.unwrap().status(), 200);
    assert_eq!(script.times(), [0, 0, 1, 3, 3]);
}
