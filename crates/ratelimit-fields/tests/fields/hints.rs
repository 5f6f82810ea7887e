//! Reading the responses of arbitrary servers.

use std::time::Duration;

use ratelimit_fields::{Dialect, Hints, RetryAfter, Unit};

use crate::headers;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn hints(lines: &[(&str, &str)]) -> Hints {
    Hints::read(&headers(lines))
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
    let hints = hints(&[
        ("RateLimit", r#""burst";r=9;t=1"#),
        ("RateLimit", r#""peruser";r=60000;t=8;pk=:YQ==:"#),
        (
            "RateLimit-Policy",
            r#""burst";q=10;w=1, "peruser";q=65535;qu="content-bytes";w=10;pk=:YQ==:"#,
        ),
    ]);
    assert_eq!(hints.dialect(), Some(Dialect::Draft11));
    let [burst, peruser] = hints.limits() else {
        panic!("{hints:?}")
    };
    assert_eq!(
        (burst.name(), burst.remaining(), burst.reset()),
        (Some("burst"), Some(9), Some(seconds(1)))
    );
    assert_eq!((burst.quota(), burst.partition_key()), (None, None));
    assert_eq!(peruser.partition_key(), Some(b"a".as_slice()));
    let [burst, peruser] = hints.policies() else {
        panic!("{hints:?}")
    };
    assert_eq!(
        (burst.name(), burst.quota(), burst.unit()),
        (Some("burst"), 10, &Unit::Requests)
    );
    assert_eq!(
        (peruser.unit(), peruser.window()),
        (&Unit::ContentBytes, Some(seconds(10)))
    );
    assert_eq!(peruser.partition_key(), Some(b"a".as_slice()));
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
    assert_eq!(hints.limits()[0].partition_key(), Some(b"trial-121323".as_slice()));
    assert_eq!(
        (hints.limits()[1].remaining(), hints.limits()[1].reset()),
        (None, Some(seconds(1)))
    );
    assert_eq!(
        (hints.policies()[0].quota(), hints.policies()[0].unit()),
        (65_535, &Unit::ContentBytes)
    );
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
    let [limit] = all.limits() else { panic!("{all:?}") };
    assert_eq!(
        (limit.quota(), limit.remaining(), limit.reset()),
        (Some(5000), Some(100), Some(seconds(36_000)))
    );
    assert_eq!((limit.name(), limit.partition_key()), (None, None));
    assert_eq!(
        (all.policies()[1].quota(), all.policies()[1].window()),
        (5000, Some(seconds(86_400)))
    );
    assert_eq!(
        (all.policies()[1].name(), all.policies()[1].unit()),
        (None, &Unit::Requests)
    );

    let without = hints(&[("RateLimit-Limit", "10"), ("RateLimit-Reset", "1")]);
    assert_eq!(without.limits()[0].remaining(), None);
    assert_eq!(without.limits()[0].reset(), Some(seconds(1)));

    let malformed = hints(&[("RateLimit-Limit", "100, 100;w=60"), ("RateLimit-Reset", "1")]);
    assert_eq!(
        (malformed.limits()[0].quota(), malformed.limits()[0].reset()),
        (None, Some(seconds(1)))
    );
    assert_eq!(malformed.ignored()[0].field(), "RateLimit-Limit");
}

/// K17: both dialects describe the same limit, so only the limit with a name is returned.
#[test]
fn draft_11_counts_where_draft_06_stands_beside_it() {
    let lines = [
        ("RateLimit", r#""default";r=60;t=58"#),
        ("RateLimit-Limit", "100"),
        ("RateLimit-Remaining", "60"),
        ("RateLimit-Reset", "58"),
    ];
    let both = hints(&lines);
    assert_eq!(both.dialect(), Some(Dialect::Draft11));
    assert_eq!(both.limits().len(), 1);
    assert_eq!(both.limits()[0].name(), Some("default"));

    let mut malformed = lines;
    malformed[0].1 = r#""default""#;
    let malformed = hints(&malformed);
    assert_eq!(malformed.dialect(), Some(Dialect::Draft06));
    assert_eq!(malformed.limits()[0].quota(), Some(100));
}

/// B15, F10, X37: a gateway and the service behind it, without policies.
#[test]
fn limits_in_two_dialects_both_hold() {
    for (list, dialect) in [
        (r#""edge";r=999;t=60"#, Dialect::Draft11),
        ("edge;r=999;t=60", Dialect::EditorsCopy),
    ] {
        let both = hints(&[
            ("RateLimit", list),
            ("RateLimit-Limit", "10"),
            ("RateLimit-Remaining", "0"),
            ("RateLimit-Reset", "60"),
        ]);
        assert_eq!(both.dialect(), Some(dialect));
        let [edge, upstream] = both.limits() else {
            panic!("{both:?}")
        };
        assert_eq!((edge.name(), edge.remaining()), (Some("edge"), Some(999)));
        assert_eq!((upstream.name(), upstream.quota()), (None, Some(10)));
        assert_eq!((upstream.remaining(), upstream.reset()), (Some(0), Some(seconds(60))));
    }
}

/// X37: where anything is different, it may be another limit.
#[test]
fn the_numbers_of_draft_06_are_another_limit_unless_they_say_the_same() {
    let count = |numbers: [&str; 3]| {
        let lines = [
            ("RateLimit", r#""a";r=60;t=58, "b";r=7"#),
            ("RateLimit-Policy", r#""a";q=100;w=60"#),
            ("RateLimit-Limit", numbers[0]),
            ("RateLimit-Remaining", numbers[1]),
            ("RateLimit-Reset", numbers[2]),
        ];
        let present: Vec<_> = lines.into_iter().filter(|(_, value)| !value.is_empty()).collect();
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
        let both = hints(&[
            ("RateLimit", list),
            ("RateLimit-Policy", policy),
            ("RateLimit-Limit", "5"),
            ("RateLimit-Remaining", "0"),
            ("RateLimit-Reset", "9"),
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
    assert_eq!(limits.ignored().len(), 1);
    assert_eq!(
        limits.ignored()[0].to_string(),
        "RateLimit: item 2: r is not an Integer"
    );

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
    let nothing = hints(&[
        ("X-RateLimit-Limit", "100"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "1700000000"),
        ("X-Rate-Limit-Reset", "1"),
        ("x-ratelimit-limit-minute", "10"),
    ]);
    assert_eq!(nothing, Hints::default());
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
