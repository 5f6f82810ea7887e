//! The dialect of draft-07, and what limiters of Node.js send in it.

use std::time::Duration;

use http::HeaderMap;
use ratelimit_fields::{
    Dialect, FieldErrorKind as Kind, Hints, MAX_INTEGER, MAX_ITEMS, MAX_LENGTH, RetryAfter, draft07::RateLimit,
};

use crate::headers;

fn limit(value: &str) -> RateLimit {
    RateLimit::parse([value]).unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn malformed(value: &str) -> Kind {
    RateLimit::parse([value]).expect_err(value).kind()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// N1, N2, N3, N4, N13: the examples of the draft.
#[test]
fn the_limits_of_the_examples_are_read_and_written_letter_by_letter() {
    let examples = "\
        limit=100, remaining=50, reset=5
        limit=10, remaining=0, reset=10
        limit=10, remaining=1, reset=7
        limit=1, remaining=1, reset=36000
        limit=10000, remaining=10000, reset=10
        limit=100, remaining=0, reset=50
        limit=100, remaining=0, reset=48
        limit=5000, remaining=100, reset=36000
        limit=100, remaining=60, reset=58
        limit=100, remaining=20, reset=56
        limit=100, remaining=0, reset=5
        limit=100, remaining=99, reset=50
        limit=10, remaining=9, reset=50
        limit=0, remaining=0, reset=20
        limit=15, remaining=15, reset=40
        limit=10, reset=1
        limit=12, remaining=6, reset=1";
    for value in examples.lines().map(str::trim) {
        assert_eq!(limit(value).to_string(), value);
        assert_eq!(limit(value).to_header_value(), value);
    }
    let field = limit("limit=100, remaining=20, reset=56");
    assert_eq!((field.limit(), field.remaining()), (100, Some(20)));
    assert_eq!(field.reset(), seconds(56));
    assert_eq!(limit("limit=10, reset=1").remaining(), None);
}

/// N2, N4
#[test]
fn a_dictionary_without_limit_or_reset_is_malformed() {
    assert_eq!(malformed("remaining=4, reset=60"), Kind::Missing);
    assert_eq!(malformed("limit=5, remaining=4"), Kind::Missing);
    assert_eq!(malformed("policy=a"), Kind::Missing);
}

/// N6, N7
#[test]
fn numbers_of_the_dictionary_are_integers_of_at_most_15_digits() {
    for value in [
        "limit=-5, remaining=4, reset=60",
        "limit=5, remaining=-1, reset=60",
        "limit=5, remaining=4, reset=-1",
    ] {
        assert_eq!(malformed(value), Kind::Range, "{value}");
    }
    for value in [
        "limit=5.0, remaining=4, reset=60",
        "limit=\"5\", remaining=4, reset=60",
        "limit, remaining=4, reset=60",
        "limit=5, remaining=(4), reset=60",
        "limit=5, remaining=?1, reset=60",
        "limit=5, remaining=4, reset=soon",
    ] {
        assert_eq!(malformed(value), Kind::Type, "{value}");
    }
    for value in [
        "limit=1000000000000000, reset=1",
        "limit=5 remaining=4",
        "limit=5,",
        "limit=",
        "Limit=5, reset=1",
    ] {
        assert_eq!(malformed(value), Kind::Syntax, "{value}");
    }
    assert_eq!(malformed(""), Kind::Empty);
    assert_eq!(RateLimit::parse([""; 0]).unwrap_err().kind(), Kind::Empty);

    let error = RateLimit::new(MAX_INTEGER + 1, seconds(1)).unwrap_err();
    let message = "RateLimit: limit is 1000000000000000, outside 0..=999999999999999";
    assert_eq!(error.to_string(), message);
    let field = RateLimit::new(MAX_INTEGER, Duration::MAX).unwrap();
    assert_eq!(field.to_string(), "limit=999999999999999, reset=999999999999999");
    assert!(field.with_remaining(MAX_INTEGER + 1).is_err());
    let field = RateLimit::new(1, Duration::from_millis(200)).unwrap();
    assert_eq!(field.reset(), seconds(1));
}

/// N8, N9: other keys are for others, and parameters have no meaning.
#[test]
fn other_keys_and_all_parameters_are_ignored() {
    let plain = limit("limit=5, remaining=4, reset=60");
    for value in [
        "reset=60, remaining=4, limit=5",
        "limit=5;w=60, remaining=4;a=?0, reset=60;b",
        "limit=5, remaining=4, reset=60, acme-burst=1000, policy=\"a\", x=(1 2);y, z",
        "limit=5,remaining=4,reset=60",
        "  limit=5 ,  remaining=4\t,reset=60 ",
    ] {
        assert_eq!(limit(value), plain, "{value}");
        assert_eq!(limit(value).to_string(), "limit=5, remaining=4, reset=60");
    }
    // RFC 8941, section 3.2: the last one counts, also where another one had no number.
    assert_eq!(limit("limit=9, limit=\"x\", remaining=4, reset=60, limit=5"), plain);
    assert_eq!(malformed("limit=5, remaining=4, reset=60, limit=x"), Kind::Type);
}

/// N10
#[test]
fn several_lines_are_one_dictionary() {
    let lines = ["limit=5", "remaining=4, reset=60"];
    assert_eq!(RateLimit::parse(lines), Ok(limit("limit=5, remaining=4, reset=60")));
    let (first, second) = (
        ("RateLimit", "limit=5, remaining=0, reset=9"),
        ("ratelimit", "remaining=4"),
    );
    let one = limit("limit=5, remaining=4, reset=9");
    assert_eq!(RateLimit::read(&headers(&[first, second])), Ok(Some(one)));
    assert_eq!(RateLimit::read(&HeaderMap::new()), Ok(None));
}

/// N11: RFC 8941 has readers support 1 024 members.
#[test]
fn a_dictionary_that_is_too_long_or_has_too_many_members_is_malformed() {
    let members = |count: usize| {
        let others = (2..count).map(|number| format!(",k{number}"));
        format!("limit=5,reset=60{}", others.collect::<String>())
    };
    assert!(RateLimit::parse([members(MAX_ITEMS)]).is_ok());
    assert_eq!(malformed(&members(MAX_ITEMS + 1)), Kind::Size);
    let spaces = " ".repeat(MAX_LENGTH);
    assert_eq!(malformed(&format!("limit=5, reset=60{spaces}")), Kind::Size);
}

/// N12, K18
#[test]
fn the_first_key_tells_the_dialect() {
    for (value, dialect) in [
        ("limit=5, remaining=4, reset=60", Some(Dialect::Draft07)),
        ("  limit=5", Some(Dialect::Draft07)),
        ("reset=60, limit=5", Some(Dialect::Draft07)),
        ("acme-x=1, limit=5, reset=60", Some(Dialect::Draft07)),
        ("limit;r=5", Some(Dialect::EditorsCopy)),
        ("limit, reset=5", Some(Dialect::EditorsCopy)),
        ("Limit=5", Some(Dialect::EditorsCopy)),
        ("=5", None),
        ("?1", None),
    ] {
        assert_eq!(Dialect::detect([value]), dialect, "{value}");
    }
}

/// N1, N5, N12
#[test]
fn a_response_in_draft_07_is_read() {
    let read = Hints::read(&headers(&[
        ("RateLimit", "limit=50, remaining=9, reset=30"),
        ("RateLimit-Policy", "50;w=60, 1000;w=3600"),
    ]));
    assert_eq!(read.dialect(), Some(Dialect::Draft07));
    let [only] = read.limits() else { panic!("{read:?}") };
    assert_eq!((only.name(), only.partition_key()), (None, None));
    assert_eq!((only.quota(), only.remaining()), (Some(50), Some(9)));
    assert_eq!(only.reset(), Some(seconds(30)));
    let policies = read.policies().iter().map(|policy| (policy.quota(), policy.window()));
    assert!(
        policies.eq([(50, Some(seconds(60))), (1_000, Some(seconds(3_600)))]),
        "{read:?}"
    );

    let read = Hints::read(&headers(&[
        ("RateLimit", "limit=50, remaining=x, reset=30"),
        ("Retry-After", "3"),
    ]));
    assert!(read.limits().is_empty() && read.retry_after().is_some());
    assert_eq!(read.ignored()[0].to_string(), "RateLimit: remaining is not an Integer");
}

/// X37: the numbers of draft-06 beside the dictionary.
#[test]
fn limits_of_draft_06_and_draft_07_both_hold_unless_they_are_the_same() {
    let count = |numbers: [&str; 3]| {
        let lines = [
            ("RateLimit", "limit=50, remaining=9, reset=30"),
            ("RateLimit-Policy", "50;w=60, 1000;w=3600"),
            ("RateLimit-Limit", numbers[0]),
            ("RateLimit-Remaining", numbers[1]),
            ("RateLimit-Reset", numbers[2]),
        ];
        Hints::read(&headers(&lines)).limits().len()
    };
    assert_eq!(count(["50", "9", "30"]), 1);
    for other in [["51", "9", "30"], ["50", "8", "30"], ["50", "9", "31"]] {
        assert_eq!(count(other), 2, "{other:?}");
    }
}

/// The heads in a file of `tests/fields/recorded`, whose first line names their source.
fn recorded(file: &str) -> Vec<(u16, HeaderMap)> {
    let (source, heads) = file.split_once("\n\n").unwrap();
    assert!(source.starts_with("# "), "{source}");
    let heads = heads.split("\n\n").map(|head| {
        let (status, fields) = head.trim_end().split_once('\n').unwrap();
        let fields: Vec<_> = fields.lines().map(|line| line.split_once(": ").unwrap()).collect();
        (status.split(' ').nth(1).unwrap().parse().unwrap(), headers(&fields))
    });
    heads.collect()
}

/// N14: two requests a minute, and three were sent, to express-rate-limit and to hono-rate-limiter in each of their dialects.
#[test]
fn what_limiters_of_node_send_is_read() {
    use Dialect::{Draft06, Draft07, Draft11};
    let minute = seconds(60);
    for (file, dialect) in [
        (include_str!("recorded/express-rate-limit-draft-6.txt"), Draft06),
        (include_str!("recorded/express-rate-limit-draft-7.txt"), Draft07),
        (include_str!("recorded/express-rate-limit-draft-8.txt"), Draft11),
        (include_str!("recorded/hono-rate-limiter-draft-6.txt"), Draft06),
        (include_str!("recorded/hono-rate-limiter-draft-7.txt"), Draft07),
    ] {
        let told = recorded(file).into_iter().map(|(status, headers)| {
            let hints = Hints::read(&headers);
            assert_eq!(hints.dialect(), Some(dialect), "{file}");
            assert!(hints.ignored().is_empty(), "{hints:?}");
            let ([limit], [policy]) = (hints.limits(), hints.policies()) else {
                panic!("{hints:?}")
            };
            assert_eq!((policy.quota(), policy.window()), (2, Some(minute)));
            assert_eq!(limit.reset(), Some(minute));
            (status, limit.remaining(), hints.retry_after())
        });
        let rejected = (429, Some(0), Some(RetryAfter::after(minute)));
        assert!(
            told.eq([(200, Some(1), None), (200, Some(0), None), rejected]),
            "{file}"
        );
    }
}
