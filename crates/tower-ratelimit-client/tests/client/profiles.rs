//! Fields of well-known services, each parsed as documented, and recorded responses of these services.

use httpdate::fmt_http_date;
use proptest::prelude::*;
use ratelimit_fields::Unit;
use tower_ratelimit_client::{Limit, LimitFields, Profile};

use super::{
    pacing::{Scene, waiting},
    *,
};

fn profiles() -> [Profile; 5] {
    [
        Profile::new(),
        Profile::github(),
        Profile::open_ai(),
        Profile::anthropic(),
        Profile::x_rate_limit(),
    ]
}

fn read(profile: Profile, status: u16, lines: &[&str]) -> Advice {
    let status = StatusCode::from_u16(status).unwrap();
    Advice::read_as(&profile, status, &headers(lines), exchange(0, 0), &Caps::default())
}

/// Name, unit, quota, units left, and seconds until the reset.
type Told<'a> = (Option<&'a str>, &'a str, Option<u64>, Option<u64>, Option<u64>);

fn told(limit: &Limit) -> Told<'_> {
    let (quota, reset) = (limit.quota(), limit.reset().map(|reset| reset.as_secs()));
    (limit.name(), limit.unit().as_str(), quota, limit.remaining(), reset)
}

/// The head of a real response: blog.csdn.net/u010674101/article/details/118020728, of November 2019, when the resource was
/// not sent yet.
const GITHUB: &str = "date: Thu, 28 Nov 2019 09:05:44 GMT | x-ratelimit-limit: 60 | \
    x-ratelimit-remaining: 58 | x-ratelimit-reset: 1574935544";

/// The head of a real response: community.openai.com/t/1268905, of May 2025.
const OPEN_AI: &str = "x-ratelimit-limit-requests: 5000 | x-ratelimit-limit-tokens: 160000 | \
    x-ratelimit-limit-tokens_usage_based: 160000 | x-ratelimit-remaining-requests: 4999 | \
    x-ratelimit-remaining-tokens: 159976 | x-ratelimit-remaining-tokens_usage_based: 159976 | \
    x-ratelimit-reset-requests: 12ms | x-ratelimit-reset-tokens: 9ms | \
    x-ratelimit-reset-tokens_usage_based: 9ms";

/// The head of a real response, which the tests of the R package tidyllm have recorded in August 2025
/// (tests/testthat/claude/api.anthropic.com/v1/messages-e050b5-POST.R).
const ANTHROPIC: &str = "date: Thu, 21 Aug 2025 12:41:00 GMT | \
    anthropic-ratelimit-input-tokens-limit: 80000 | anthropic-ratelimit-input-tokens-remaining: 80000 | \
    anthropic-ratelimit-input-tokens-reset: 2025-08-21T12:40:59Z | \
    anthropic-ratelimit-output-tokens-limit: 16000 | anthropic-ratelimit-output-tokens-remaining: 16000 | \
    anthropic-ratelimit-output-tokens-reset: 2025-08-21T12:41:00Z | \
    anthropic-ratelimit-requests-limit: 1000 | anthropic-ratelimit-requests-remaining: 999 | \
    anthropic-ratelimit-requests-reset: 2025-08-21T12:40:59Z | anthropic-ratelimit-tokens-limit: 96000 | \
    anthropic-ratelimit-tokens-remaining: 96000 | anthropic-ratelimit-tokens-reset: 2025-08-21T12:40:59Z";

#[test]
fn responses_that_services_have_sent_are_read() {
    let (most, now) = (Some(10_000), Some(0));
    let github: &[Told] = &[(None, "requests", Some(60), Some(58), Some(600))];
    let open_ai: &[Told] = &[
        (Some("requests"), "requests", Some(5_000), Some(4_999), now),
        (Some("tokens"), "tokens", most, most, now),
    ];
    let anthropic: &[Told] = &[
        (Some("requests"), "requests", Some(1_000), Some(999), now),
        (Some("tokens"), "tokens", most, most, now),
        (Some("input-tokens"), "tokens", most, most, now),
        (Some("output-tokens"), "tokens", most, most, now),
    ];
    // The caps are 10,000 units and ten minutes.
    for (profile, lines, expected) in [
        (Profile::github(), GITHUB, github),
        (Profile::open_ai(), OPEN_AI, open_ai),
        (Profile::anthropic(), ANTHROPIC, anthropic),
    ] {
        let advice = read(profile, 200, &super::lines(lines));
        assert_eq!(advice.limits().iter().map(told).collect::<Vec<_>>(), expected);
        assert!(advice.ignored().is_empty(), "{advice:?}");
        assert_eq!((advice.retry_after(), advice.dialect()), (None, None));
    }
    let exact = read(Profile::open_ai(), 200, &lines(OPEN_AI)).limits()[0].reset();
    assert_eq!(exact, Some(Duration::from_millis(12)));
}

/// The recorded responses of express-rate-limit have `X-RateLimit-*` beside the fields of draft-06.
#[test]
fn the_fields_of_a_profile_are_read_beside_those_of_the_drafts() {
    let recorded = include_str!("../../../ratelimit-fields/tests/fields/recorded/express-rate-limit-draft-6.txt");
    let head = recorded.split("\n\n").nth(1).unwrap();
    let lines: Vec<&str> = head.lines().skip(1).collect();
    let advice = read(Profile::x_rate_limit(), 200, &lines);
    // The moment is rounded up to a second, and so is the date: here it looks a second later.
    let told = advice.limits().iter().map(told);
    let expected = [(None, Some(60)), (Some("x-ratelimit"), Some(61))];
    assert!(
        told.eq(expected.map(|(name, reset)| (name, "requests", Some(2), Some(1), reset))),
        "{advice:?}"
    );
    assert_eq!(read(Profile::new(), 200, &lines).limits().len(), 1);
}

#[test]
fn each_profile_reads_its_own_fields_and_no_others() {
    let all: Vec<&str> = [lines(GITHUB), lines(OPEN_AI), lines(ANTHROPIC).split_off(1)].concat();
    let count = |profile| read(profile, 200, &all).limits().len();
    assert_eq!(profiles().map(count), [0, 1, 2, 4, 1]);
    assert!(read(Profile::new(), 200, &all).is_empty());
}

#[test]
fn a_moment_is_compared_with_the_date_of_the_response_else_with_the_clock_of_this_computer() {
    let reset = |lines: &[&str]| read(Profile::github(), 200, lines).limits()[0].reset();
    let lines = [
        "x-ratelimit-remaining: 1",
        "x-ratelimit-reset: 1700000040",
        "date: Tue, 14 Nov 2023 22:13:30 GMT",
    ];
    assert_eq!(reset(&lines), Some(seconds(30)));
    assert_eq!(reset(&lines[..2]), Some(seconds(40)));
    let past = ["x-ratelimit-remaining: 0", "x-ratelimit-reset: 1699999999"];
    assert_eq!(reset(&past), Some(Duration::ZERO));
    let fraction = ["x-ratelimit-remaining: 0", "x-ratelimit-reset: 1700000000.5"];
    assert_eq!(reset(&fraction), Some(Duration::from_millis(500)));
}

/// Azure OpenAI has sent -1 and 0 (learn.microsoft.com/answers/questions/5625878), and seconds without a unit.
#[test]
fn malformed_fields_are_ignored_each_by_itself_and_named() {
    let fields = "x-ratelimit-limit-tokens: -1 | x-ratelimit-remaining-tokens: -1 | x-ratelimit-reset-tokens: 0 | \
        x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 17";
    let advice = read(Profile::open_ai(), 200, &lines(fields));
    let requests = (Some("requests"), "requests", None, Some(0), Some(17));
    let tokens = (Some("tokens"), "tokens", None, None, Some(0));
    assert_eq!(advice.limits().iter().map(told).collect::<Vec<_>>(), [requests, tokens]);
    let ignored: Vec<_> = advice.ignored().iter().map(ToString::to_string).collect();
    let expected = ["limit", "remaining"].map(|field| format!("x-ratelimit-{field}-tokens: not a number"));
    assert_eq!(ignored, expected);
}

#[test]
fn times_in_other_forms_and_fields_with_two_lines_are_malformed() {
    for (profile, fields, reset) in [
        (Profile::github(), "x-ratelimit", "tomorrow"),
        (Profile::x_rate_limit(), "x-ratelimit", "-4"),
        (Profile::anthropic(), "anthropic-ratelimit-requests", "60 seconds"),
    ] {
        let lines = [format!("{fields}-remaining: 5"), format!("{fields}-reset: {reset}")];
        let advice = read(profile, 200, &lines.each_ref().map(String::as_str));
        let limit = &advice.limits()[0];
        assert_eq!((limit.remaining(), limit.reset()), (Some(5), None));
        assert!(advice.ignored()[0].to_string().ends_with("not a time"));
    }
    let lines = ["x-ratelimit-remaining: 5", "x-ratelimit-remaining: 9"];
    let twice = read(Profile::github(), 200, &lines);
    assert_eq!((twice.limits().len(), twice.ignored().len()), (0, 1));
    let message = "x-ratelimit-remaining: more than one line";
    assert_eq!(twice.ignored()[0].to_string(), message);
    for resource in ["", &"a".repeat(65)] {
        let line = format!("x-ratelimit-resource: {resource}");
        let advice = read(Profile::github(), 200, &["x-ratelimit-remaining: 5", &line]);
        assert_eq!(advice.limits()[0].name(), None);
    }
}

#[test]
fn retry_after_counts_first_whatever_the_profile() {
    for profile in profiles() {
        let fields = "retry-after: 7 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 1700000500 | \
            x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 6m0s | \
            anthropic-ratelimit-requests-remaining: 0 | anthropic-ratelimit-requests-reset: 2023-11-14T22:20:00Z";
        let mut scene = waiting();
        scene.exchange_as(&profile, 429, 0, &lines(fields));
        assert_eq!(scene.wait(0).until(), at(7), "{profile:?}");
    }
}

/// A profile that describes a field of the drafts reads what their strict parser rejects.
#[test]
fn a_field_of_the_drafts_that_a_profile_reads_has_one_error_or_none() {
    let lines = |reset| ["ratelimit-remaining: 5", reset];
    for (reset, expected) in [
        ("ratelimit-reset: 1700000030.5", Duration::from_millis(30_500)),
        ("ratelimit-reset: 2023-11-14T22:13:50Z", seconds(30)),
        ("ratelimit-reset: 30s", seconds(30)),
    ] {
        let strict = read(Profile::new(), 200, &lines(reset));
        let read_strictly = (strict.limits()[0].reset(), strict.ignored().len());
        assert_eq!(read_strictly, (None, 1), "{reset}");
        let lenient = read(Profile::x_rate_limit(), 200, &lines(reset));
        assert_eq!(lenient.limits()[1].reset(), Some(expected), "{reset}");
        assert!(lenient.ignored().is_empty(), "{reset}");
    }
    let malformed = read(Profile::x_rate_limit(), 200, &lines("ratelimit-reset: soon"));
    assert_eq!((malformed.limits().len(), malformed.ignored().len()), (1, 1));
}

/// docs.github.com: a secondary limit has a `Retry-After`, has no remaining units, or requires a wait of one minute.
#[test]
fn a_secondary_limit_of_github_is_waited_for() {
    let wait = |status, lines: &[&str]| read(Profile::github(), status, lines).retry_after();
    let left = ["x-ratelimit-remaining: 4000", "x-ratelimit-reset: 1700000500"];
    assert_eq!(wait(429, &left), Some(seconds(60)));
    assert_eq!(wait(429, &["retry-after: 5", left[0]]), Some(seconds(5)));
    assert_eq!(wait(403, &["retry-after: 5", left[0]]), Some(seconds(5)));
    // The primary limit: its reset determines the wait.
    assert_eq!(wait(429, &["x-ratelimit-remaining: 0", left[1]]), None);
    // A 403 can also mean missing permissions.
    assert_eq!(wait(403, &left), None);
    assert_eq!(wait(200, &left), None);
    assert_eq!(wait(429, &["age: 9", left[0]]), None);
    assert_eq!(read(Profile::open_ai(), 429, &left).retry_after(), None);
    let (caps, status) = (Caps::new(seconds(20), 9).unwrap(), StatusCode::TOO_MANY_REQUESTS);
    let capped = Advice::read_as(&Profile::github(), status, &headers(&left), exchange(0, 0), &caps);
    assert_eq!(capped.retry_after(), Some(seconds(20)));
}

#[test]
fn a_client_waits_while_no_tokens_are_left_and_not_before() {
    let after = |left: u64| -> Scene {
        let fields = "x-ratelimit-remaining-requests: 50 | x-ratelimit-reset-requests: 1s";
        let fields = format!("{fields} | x-ratelimit-remaining-tokens: {left} | x-ratelimit-reset-tokens: 40s");
        let mut scene = waiting();
        scene.exchange_as(&Profile::open_ai(), 200, 0, &lines(&fields));
        scene
    };
    assert_eq!(after(3).burst(0).len(), 50);
    assert_eq!(after(0).wait(0).until(), at(40));
    let mut scene = after(0);
    let _trial = scene.send(40);
    assert!(!scene.wait(40).is_certain());
}

#[test]
fn limits_of_a_response_from_a_cache_are_ignored() {
    for profile in profiles() {
        let all = [
            vec!["age: 30"],
            lines(GITHUB),
            lines(OPEN_AI),
            lines(ANTHROPIC).split_off(1),
        ]
        .concat();
        assert!(read(profile.clone(), 200, &all).is_empty(), "{profile:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_origin_has_its_own_profile() {
    let fields = "x-ratelimit-remaining: 0 | x-ratelimit-reset: 90 | \
        x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 20s";
    let script = Script::new([(200, lines(fields))]);
    let profiles = builder()
        .profile("open.example", Profile::open_ai())
        .profile("Legacy.example", Profile::x_rate_limit())
        .profile("legacy.example:8443", Profile::open_ai())
        .profile("[::1]:80", Profile::x_rate_limit());
    let client = script.client(profiles);
    let seconds_of_two = async |request: Request<String>| {
        let start = Instant::now();
        for _ in 0..2 {
            tower::ServiceExt::oneshot(client.clone(), request.clone())
                .await
                .unwrap();
        }
        start.elapsed().as_secs()
    };
    for (uri, expected) in [
        ("https://open.example/", 20),
        ("http://OPEN.example:81/", 20),
        ("https://legacy.example/", 90),
        ("https://legacy.example:8443/", 20),
        ("http://[::1]/", 90),
        ("http://[::1]:81/", 0),
        ("https://other.example/", 0),
        ("https://notopen.example/", 0),
    ] {
        assert_eq!(seconds_of_two(get(uri)).await, expected, "{uri}");
    }
    assert_eq!(script.times().len(), 16);

    // A request without a host in its URI goes to the host of its `Host` field.
    let mut request = get("/");
    request.headers_mut().insert("host", "open.example".parse().unwrap());
    assert_eq!(seconds_of_two(request).await, 20);
}

#[test]
fn invalid_origins_and_fields_and_origins_that_are_set_twice_are_errors() {
    let error = |origins: &[&str]| {
        let set = |builder: ClientLayerBuilder, origin: &&str| builder.profile(origin, Profile::github());
        let built = origins.iter().fold(builder(), set).build();
        built.map(drop).map_err(|error| error.to_string())
    };
    let mistaken = "|https://a.example|a.example/|user@a.example|a.example:|a.example:99999|a b|größe.example";
    for text in mistaken.split('|') {
        let expected = format!("client: profile {text:?} is not a host with an optional port");
        assert_eq!(error(&[text]), Err(expected));
    }
    let fields = LimitFields::new().with_quota("x-quota").with_reset("x reset");
    for (profile, field) in [
        (Profile::new().with_limit(fields), "x reset"),
        (Profile::github().with_retry_after_ms(""), ""),
    ] {
        let error = builder().profile("a.example", profile).build().unwrap_err();
        let message = format!("client: profile of \"a.example\": {field:?} is not a field name");
        assert_eq!(error.to_string(), message);
    }
    let twice = "client: profile \"A.example\" is set twice";
    assert_eq!(error(&["a.example", "A.example"]), Err(twice.to_owned()));
    let right = ["a.example", "a.example:80", "b.example", "[::1]", "127.0.0.1:8080"];
    assert_eq!(error(&right), Ok(()));
}

/// Formats a moment as in RFC 3339.
fn rfc3339(moment: u64, offset_minutes: i64) -> String {
    let local = moment.checked_add_signed(offset_minutes * 60).unwrap();
    let date = fmt_http_date(UNIX_EPOCH + seconds(local));
    let [_, day, month, year, time, _] = date.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{date}")
    };
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = months.find(month).unwrap() / 3 + 1;
    let sign = if offset_minutes < 0 { '-' } else { '+' };
    let (hours, minutes) = (offset_minutes.abs() / 60, offset_minutes.abs() % 60);
    format!("{year}-{month:02}-{day}T{time}{sign}{hours:02}:{minutes:02}")
}

proptest! {
    #[test]
    fn moments_of_rfc_3339_agree_with_dates_of_http(
        now in 86_400..253_402_000_000_u64, wait in 0..600_u64, offset in -1_439..1_440_i64,
    ) {
        let moment = std::time::UNIX_EPOCH + seconds(now);
        let date = format!("date: {}", fmt_http_date(moment));
        let reset = format!("anthropic-ratelimit-requests-reset: {}", rfc3339(now + wait, offset));
        let advice = read(Profile::anthropic(), 200, &["anthropic-ratelimit-requests-remaining: 1", &date, &reset]);
        prop_assert_eq!(advice.limits()[0].reset(), Some(seconds(wait)), "{}", reset);
    }

    /// No client waits forever, regardless of the server's response.
    #[test]
    fn no_text_makes_a_profile_panic_or_a_client_wait_longer_than_the_cap(
        values in proptest::collection::vec("[0-9a-zTZµ:+./ -]{0,30}", 6), status in proptest::sample::select(vec![200, 403, 429]),
    ) {
        let names = [
            ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
            ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
            [
                "anthropic-ratelimit-requests-limit",
                "anthropic-ratelimit-requests-remaining",
                "anthropic-ratelimit-requests-reset",
            ],
        ];
        let fields = names.concat().into_iter().zip(values.iter().cycle());
        let fields = fields.filter_map(|(name, value)| {
            Some((HeaderName::from_static(name), http::HeaderValue::from_bytes(value.as_bytes()).ok()?))
        });
        let fields: HeaderMap = fields.collect();
        let status = StatusCode::from_u16(status).unwrap();
        let described = LimitFields::new()
            .with_name_field("x-ratelimit-limit")
            .with_used("x-ratelimit-remaining")
            .with_reset_ms("x-ratelimit-reset");
        let described = Profile::new()
            .with_limit(described)
            .with_retry_after("x-ratelimit-reset-tokens")
            .with_rejection(StatusCode::OK);
        for profile in profiles().into_iter().chain([described]) {
            let advice = Advice::read_as(&profile, status, &fields, exchange(0, 0), &Caps::default());
            for limit in advice.limits() {
                prop_assert!(limit.reset().is_none_or(|reset| reset <= seconds(600)));
                prop_assert!(limit.remaining().is_none_or(|remaining| remaining <= 10_000));
                prop_assert!(limit.unit() == &Unit::Requests || limit.unit().as_str() == "tokens");
            }
            prop_assert!(advice.retry_after().is_none_or(|wait| wait <= seconds(600)));
        }
    }
}
