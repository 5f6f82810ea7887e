//! Reading the responses of arbitrary servers.

use std::time::Duration;

use ratelimit_fields::{Dialect, Hints, LimitHint, PolicyHint, RetryAfter};

use crate::headers;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn hints(lines: &[(&str, &str)]) -> Hints {
    Hints::read(&headers(lines))
}

/// The fields of draft-06 for one limit.
fn draft06(numbers: [&str; 3]) -> [(&'static str, &str); 3] {
    let [quota, remaining, reset] = numbers;
    [
        ("RateLimit-Limit", quota),
        ("RateLimit-Remaining", remaining),
        ("RateLimit-Reset", reset),
    ]
}

/// Name, quota, remaining units, and seconds until the reset.
type Limit<'a> = (Option<&'a str>, Option<u64>, Option<u64>, Option<u64>);

fn limits(hints: &Hints) -> Vec<Limit<'_>> {
    let limits = hints.limits().iter();
    limits
        .map(|limit| {
            let reset = limit.reset().map(|reset| reset.as_secs());
            (limit.name(), limit.quota(), limit.remaining(), reset)
        })
        .collect()
}

/// Name, quota, unit, and seconds of the window.
fn policies(hints: &Hints) -> Vec<(Option<&str>, u64, &str, Option<u64>)> {
    let policies = hints.policies().iter();
    policies
        .map(|policy| {
            let window = policy.window().map(|window| window.as_secs());
            (policy.name(), policy.quota(), policy.unit().as_str(), window)
        })
        .collect()
}

/// K18, X1
#[test]
fn the_first_bare_item_tells_the_dialect() {
    for (value, dialect) in [
        (r#""a";r=1"#, Some(Dialect::Draft11)),
        (r#"  "a";r=1"#, Some(Dialect::Draft11)),
        ("a;r=1", Some(Dialect::EditorsCopy)),
        ("*a;r=1", Some(Dialect::EditorsCopy)),
        ("100;w=1", Some(Dialect::Draft06)),
        ("-1;w=1", Some(Dialect::Draft06)),
        ("(a)", None),
        (":YQ==:", None),
        ("", None),
    ] {
        assert_eq!(Dialect::detect([value]), dialect, "{value}");
    }
    assert_eq!(Dialect::detect([""; 0]), None);
}

/// A5, A22, B11, K18
#[test]
fn a_response_in_draft_11_is_read() {
    let policy = r#""burst";q=10;w=1, "peruser";q=65535;qu="content-bytes";w=10;pk=:YQ==:"#;
    let hints = hints(&[
        ("RateLimit", r#""burst";r=9;t=1"#),
        ("RateLimit", r#""peruser";r=60000;t=8;pk=:YQ==:"#),
        ("RateLimit-Policy", policy),
    ]);
    assert_eq!(hints.dialect(), Some(Dialect::Draft11));
    let (burst, peruser, key) = (Some("burst"), Some("peruser"), Some(&b"a"[..]));
    let expected = [(burst, None, Some(9), Some(1)), (peruser, None, Some(60_000), Some(8))];
    assert_eq!(limits(&hints), expected);
    let expected = [
        (burst, 10, "requests", Some(1)),
        (peruser, 65_535, "content-bytes", Some(10)),
    ];
    assert_eq!(policies(&hints), expected);
    assert!(hints.limits().iter().map(LimitHint::partition_key).eq([None, key]));
    assert!(hints.policies().iter().map(PolicyHint::partition_key).eq([None, key]));
    assert!(hints.ignored().is_empty());
    assert_eq!(hints.retry_after(), None);
}

/// K2, K3, K5, K7, K14, K18
#[test]
fn a_response_in_the_in_between_dialect_is_read() {
    let hints = hints(&[
        ("RateLimit", "default;r=999;pk=trial-121323, quota;t=1"),
        ("RateLimit-Policy", "peruser;l=65535;w=10;pk=user123;qu=bytes"),
    ]);
    assert_eq!(hints.dialect(), Some(Dialect::EditorsCopy));
    assert_eq!(hints.limits()[0].partition_key(), Some(&b"trial-121323"[..]));
    assert_eq!(limits(&hints)[1], (Some("quota"), None, None, Some(1)));
    assert_eq!(policies(&hints), [(Some("peruser"), 65_535, "content-bytes", Some(10))]);
    assert!(hints.ignored().is_empty());
}

/// J4, J10, J20, J25, K18
#[test]
fn a_response_in_draft_06_is_read_with_or_without_what_is_left() {
    let all = hints(&[
        ("Ratelimit-Limit", "5000"),
        ("Ratelimit-Remaining", "100"),
        ("Ratelimit-Reset", "36000"),
        ("Ratelimit-Policy", "1000;w=3600, 5000;w=86400"),
    ]);
    assert_eq!(all.dialect(), Some(Dialect::Draft06));
    assert_eq!(limits(&all), [(None, Some(5_000), Some(100), Some(36_000))]);
    assert_eq!(all.limits()[0].partition_key(), None);
    assert_eq!(policies(&all)[1], (None, 5_000, "requests", Some(86_400)));

    let without = hints(&[("RateLimit-Limit", "10"), ("RateLimit-Reset", "1")]);
    assert_eq!(limits(&without), [(None, Some(10), None, Some(1))]);
    let malformed = hints(&[("RateLimit-Limit", "100, 100;w=60"), ("RateLimit-Reset", "1")]);
    assert_eq!(limits(&malformed), [(None, None, None, Some(1))]);
    assert_eq!(malformed.ignored()[0].field(), "RateLimit-Limit");
}

/// K17: both dialects describe the same limit, so only the limit with a name is returned.
#[test]
fn draft_11_counts_where_draft_06_stands_beside_it() {
    let [quota, remaining, reset] = draft06(["100", "60", "58"]);
    let with = |list| hints(&[("RateLimit", list), quota, remaining, reset]);
    let both = with(r#""default";r=60;t=58"#);
    assert_eq!(both.dialect(), Some(Dialect::Draft11));
    assert_eq!(limits(&both), [(Some("default"), None, Some(60), Some(58))]);
    let malformed = with(r#""default""#);
    assert_eq!(malformed.dialect(), Some(Dialect::Draft06));
    assert_eq!(malformed.limits()[0].quota(), Some(100));
}

/// B15, F10, X37: a gateway and the service behind it, without policies.
#[test]
fn limits_in_two_dialects_both_hold() {
    let lists = [r#""edge";r=999;t=60"#, "edge;r=999;t=60"];
    for (list, dialect) in lists.into_iter().zip([Dialect::Draft11, Dialect::EditorsCopy]) {
        let [quota, remaining, reset] = draft06(["10", "0", "60"]);
        let both = hints(&[("RateLimit", list), quota, remaining, reset]);
        assert_eq!(both.dialect(), Some(dialect));
        let edge = (Some("edge"), None, Some(999), Some(60));
        assert_eq!(limits(&both), [edge, (None, Some(10), Some(0), Some(60))]);
    }
}

/// X37: where anything is different, it may be another limit.
#[test]
fn the_numbers_of_draft_06_are_another_limit_unless_they_say_the_same() {
    let count = |numbers: [&str; 3]| {
        let list = [
            ("RateLimit", r#""a";r=60;t=58, "b";r=7"#),
            ("RateLimit-Policy", r#""a";q=100;w=60"#),
        ];
        let lines = list.into_iter().chain(draft06(numbers));
        let present: Vec<_> = lines.filter(|(_, value)| !value.is_empty()).collect();
        hints(&present).limits().len()
    };
    assert_eq!(count(["", "", ""]), 2);
    for same in [["100", "60", "58"], ["", "60", "58"], ["", "", "58"], ["100", "7", ""]] {
        assert_eq!(count(same), 2, "{same:?}");
    }
    for other in [
        ["99", "60", "58"],
        ["100", "59", "58"],
        ["100", "60", "59"],
        ["100", "7", "58"],
    ] {
        assert_eq!(count(other), 3, "{other:?}");
    }
    // A limit in another unit or of another partition is not the request limit of draft-06, so both are returned.
    for (list, policy) in [
        (r#""a";r=0;t=9"#, r#""a";q=5;qu="tokens""#),
        (r#""a";r=0;t=9"#, r#""a";q=5;qu="content-bytes""#),
        (r#""a";r=0;t=9;pk=:YQ==:"#, r#""a";q=5"#),
    ] {
        let [quota, remaining, reset] = draft06(["5", "0", "9"]);
        let both = hints(&[
            ("RateLimit", list),
            ("RateLimit-Policy", policy),
            quota,
            remaining,
            reset,
        ]);
        assert_eq!(both.limits().len(), 2, "{list} {policy}");
    }
}

/// F1, X5: one malformed field does not spoil the other.
#[test]
fn a_malformed_field_is_ignored_as_a_whole_and_the_others_are_used() {
    let limits = hints(&[
        ("RateLimit", r#""a";r=1, "b";r=x"#),
        ("RateLimit-Policy", r#""a";q=1"#),
        ("Retry-After", "5"),
    ]);
    assert!(limits.limits().is_empty());
    assert_eq!(limits.policies().len(), 1);
    assert_eq!(limits.retry_after(), Some(RetryAfter::after(seconds(5))));
    let ignored: Vec<_> = limits.ignored().iter().map(ToString::to_string).collect();
    assert_eq!(ignored, ["RateLimit: item 2: r is not an Integer"]);

    let policies = hints(&[
        ("RateLimit", r#""a";r=1"#),
        ("RateLimit-Policy", r#""a";w=1"#),
        ("Retry-After", "soon"),
    ]);
    assert_eq!(policies.limits().len(), 1);
    assert!(policies.policies().is_empty());
    assert_eq!(policies.retry_after(), None);
    let ignored: Vec<&str> = policies.ignored().iter().map(|error| error.field()).collect();
    assert_eq!(ignored, ["Retry-After", "RateLimit-Policy"]);
}

/// A2, B1, K1, K6, K13, K18
#[test]
fn lists_that_mix_dialects_or_speak_none_are_ignored() {
    for value in [
        r#""a";r=1, b;r=2"#,
        r#"b;r=2, "a";r=1"#,
        "problemPolicy;r=0, t=10",
        "(a);r=1",
        "",
        "100;r=1",
    ] {
        let hints = hints(&[("RateLimit", value)]);
        assert!(hints.limits().is_empty(), "{value}");
        assert_eq!(hints.dialect(), None, "{value}");
        assert_eq!(hints.ignored().len(), 1, "{value}");
    }
    for value in ["10;w=1, a;q=1", r#"a;q=1, "b";q=1"#, r#""b";q=1, 10;w=1"#, "?1"] {
        let hints = hints(&[("RateLimit-Policy", value)]);
        assert!(hints.policies().is_empty(), "{value}");
        assert_eq!(hints.ignored().len(), 1, "{value}");
    }
}

/// B16: a reader knows no bound of `r`.
#[test]
fn more_units_than_the_quota_of_their_policy_are_no_mistake() {
    let hints = hints(&[("ratelimit", r#""p";r=500"#), ("ratelimit-policy", r#""p";q=100;w=60"#)]);
    assert_eq!(hints.limits()[0].remaining(), Some(500));
    assert_eq!(hints.policies()[0].quota(), 100);
    assert!(hints.ignored().is_empty());
}

/// F5, F16, J30
#[test]
fn fields_of_no_document_are_not_read() {
    let unread =
        "X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset X-Rate-Limit-Reset x-ratelimit-limit-minute";
    let lines: Vec<_> = unread.split(' ').map(|name| (name, "100")).collect();
    assert_eq!(hints(&lines), Hints::default());
}

/// H1, H2
#[test]
fn the_limits_of_a_response_from_a_cache_are_ignored() {
    let lines = |age| {
        vec![
            ("age", age),
            ("ratelimit", r#""default";r=0;t=50"#),
            ("ratelimit-policy", r#""default";q=1"#),
            ("retry-after", "5"),
        ]
    };
    let cached = hints(&lines("30"));
    assert!(cached.limits().is_empty() && cached.policies().is_empty() && cached.ignored().is_empty());
    assert_eq!(cached.retry_after(), Some(RetryAfter::after(seconds(5))));
    for age in ["0", "00", "unknown", "-1", ""] {
        assert_eq!(hints(&lines(age)).limits().len(), 1, "{age}");
    }
    let in_draft_06 = hints(&[("age", "1"), ("ratelimit-limit", "1"), ("ratelimit-reset", "1")]);
    assert_eq!(in_draft_06, Hints::default());
}
