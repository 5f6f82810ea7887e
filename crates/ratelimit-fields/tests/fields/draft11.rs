//! The dialect of draft-11.

use std::time::Duration;

use http::HeaderMap;
use ratelimit_fields::{
    ExtensionValue, FieldErrorKind as Kind, Hints, MAX_INTEGER, MAX_ITEMS, MAX_LENGTH, Unit,
    draft11::{LimitItem, PolicyItem, RateLimit, RateLimitPolicy},
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn policy(value: &str) -> RateLimitPolicy {
    RateLimitPolicy::parse([value]).unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn limit(value: &str) -> RateLimit {
    RateLimit::parse([value]).unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn malformed_policy(value: &str) -> Kind {
    RateLimitPolicy::parse([value]).expect_err(value).kind()
}

fn malformed_limit(value: &str) -> Kind {
    RateLimit::parse([value]).expect_err(value).kind()
}

/// B1, B4, B5, B6, B8
#[test]
fn limits_are_written_from_what_they_mean() {
    let item = LimitItem::new("default", 300_000_000)
        .unwrap()
        .with_reset(Duration::from_millis(59_001))
        .with_partition_key(*b"App-999");
    let written = RateLimit::new([item]).unwrap().to_string();
    assert_eq!(written, r#""default";r=300000000;t=60;pk=:QXBwLTk5OQ==:"#);
    let endless = LimitItem::new("default", 1).unwrap().with_reset(Duration::MAX);
    assert_eq!(endless.reset(), Some(seconds(MAX_INTEGER)));
}

/// A4
#[test]
fn lists_are_read_with_and_without_spaces_where_they_may_be() {
    let spaced = policy(r#""burst";q=100;w=60, "daily";q=1000;w=86400"#);
    for value in [
        r#""burst";q=100;w=60,"daily";q=1000;w=86400"#,
        r#""burst"; q=100;  w=60 ,	"daily";q=1000;w=86400"#,
        r#"  "burst";q=100;w=60, "daily";q=1000;w=86400  "#,
    ] {
        assert_eq!(policy(value), spaced, "{value}");
    }
    assert_eq!(malformed_policy(r#""burst" ;q=100"#), Kind::Syntax);
}

/// A1
#[test]
fn a_field_without_items_is_neither_read_nor_written() {
    assert_eq!(malformed_policy(""), Kind::Empty);
    assert_eq!(malformed_limit("  "), Kind::Empty);
    assert_eq!(RateLimit::new([]).unwrap_err().kind(), Kind::Empty);
    assert_eq!(RateLimitPolicy::new([]).unwrap_err().kind(), Kind::Empty);
}

/// A6, A7, A10, A15, A16, X3, X4
#[test]
fn a_policy_without_quota_or_with_parameters_of_wrong_type_or_range_is_malformed() {
    for (value, kind) in [
        (r#""default";w=10"#, Kind::Missing),
        (r#""default";l=100"#, Kind::Missing),
        (r#""d";q=-1"#, Kind::Range),
        (r#""d";q=1.5"#, Kind::Type),
        (r#""d";q="100""#, Kind::Type),
        (r#""d";q"#, Kind::Type),
        (r#""d";q=1;qu=content-bytes"#, Kind::Type),
        (r#""d";q=1;w=0"#, Kind::Range),
        (r#""d";q=1;w=-5"#, Kind::Range),
        (r#""d";q=1;w=0.5"#, Kind::Type),
        (r#""d";q=1;pk="u1""#, Kind::Type),
        (r#""d";q=1;pk=u1"#, Kind::Type),
        (r#""d";q=1000000000000000"#, Kind::Syntax),
    ] {
        assert_eq!(malformed_policy(value), kind, "{value}");
    }
}

/// B3, B6, F1, F2, X5, X6: one bad item spoils the list.
#[test]
fn a_limit_list_with_anything_wrong_in_it_is_malformed_as_a_whole() {
    for (value, kind) in [
        (r#""quota";t=1"#, Kind::Missing),
        (r#""d";r=1;t=-1"#, Kind::Range),
        (r#""d";r=1;t=1.5"#, Kind::Type),
        (r#""a";r=1, "b";r=x"#, Kind::Type),
        (r#"("a" "b");r=1"#, Kind::Item),
        (r#""d";r=50,"#, Kind::Syntax),
        (r#""d";R=50"#, Kind::Syntax),
        (r#""d";r=1000000000000000"#, Kind::Syntax),
        (r#""d";r=-1"#, Kind::Range),
        ("???", Kind::Syntax),
    ] {
        assert_eq!(malformed_limit(value), kind, "{value}");
    }
}

/// A25
#[test]
fn of_a_parameter_that_appears_twice_the_last_one_counts() {
    assert_eq!(policy(r#""d";q=1;q=5"#).items()[0].quota(), 5);
    assert_eq!(policy(r#""d";q=x;q=5"#).items()[0].quota(), 5);
    assert_eq!(limit(r#""d";r=9;t=1;r=0"#).items()[0].remaining(), 0);
}

/// A18, A22, B10, J15, X31
#[test]
fn parameters_that_the_draft_does_not_define_are_comments() {
    let field = policy(r#""sliding";q=100;w=60;burst=1000;comment="sliding";a;b=1.5;c=@7;d=%"%c3%bc";e=:YQ==:"#);
    let item = &field.items()[0];
    assert_eq!((item.quota(), item.window()), (100, Some(seconds(60))));
    let shown = item.extensions().map(|(name, value)| format!("{name}={value};"));
    let expected = r#"burst=1000;comment="sliding";a=?1;b=1.5;c=@7;d=%"%c3%bc";e=:YQ==:;"#;
    assert_eq!(shown.collect::<String>(), expected);
    assert_eq!(item.extension("a").unwrap().as_bool(), Some(true));
    assert_eq!(item.extension("comment").unwrap().as_str(), Some("sliding"));
    assert_eq!(item.extension("e").unwrap().as_bytes(), Some(b"a".as_slice()));

    // Here `q` is a comment.
    let field = limit(r#""sliding";q=12;r=6;t=1"#);
    let item = &field.items()[0];
    assert_eq!((item.remaining(), item.reset()), (6, Some(seconds(1))));
    assert_eq!(item.extension("q").unwrap().as_integer(), Some(12));
}

/// A19, B10, J14, K11
#[test]
fn extension_parameters_are_written_with_a_vendor_prefix_unless_told_otherwise() {
    let item = || PolicyItem::new("default", 100).unwrap();
    let field = RateLimitPolicy::new([item().with_extension("acme-burst", 20).unwrap()]).unwrap();
    assert_eq!(field.to_string(), r#""default";q=100;acme-burst=20"#);
    let field = RateLimitPolicy::new([item().with_unprefixed_extension("burst", 20).unwrap()]).unwrap();
    assert_eq!(field.to_string(), r#""default";q=100;burst=20"#);

    for name in ["burst", "-burst", "acme-", "Acme-burst", "acme burst", "", "q"] {
        let error = item().with_extension(name, 20).unwrap_err();
        assert_eq!(error.kind(), Kind::Extension, "{name}");
    }
    for name in ["q", "qu", "w", "pk", "B", ""] {
        let error = item().with_unprefixed_extension(name, 20).unwrap_err();
        assert_eq!(error.kind(), Kind::Extension, "{name}");
    }
    let limit = LimitItem::new("a", 1).unwrap();
    assert!(limit.with_unprefixed_extension("pk", true).is_err());
}

/// A25
#[test]
fn an_extension_that_is_set_twice_is_written_once() {
    let item = LimitItem::new("a", 1).unwrap();
    let token = ExtensionValue::token("x").unwrap();
    let values = [("acme-a", 1.into()), ("acme-b", true.into()), ("acme-a", token)];
    let set = |item: LimitItem, (name, value): (&str, ExtensionValue)| item.with_extension(name, value).unwrap();
    let field = RateLimit::new([values.into_iter().fold(item, set)]).unwrap();
    assert_eq!(field.to_string(), r#""a";r=1;acme-a=x;acme-b"#);
}

/// A9, A10, F17, X2
#[test]
fn units_are_those_of_the_registry_and_others_are_kept_as_unknown() {
    let unit = |value: &str| policy(value).items()[0].unit().clone();
    for value in [r#""a";q=1"#, r#""a";q=1;qu="requests""#, r#""a";q=1;qu="request""#] {
        assert_eq!(unit(value), Unit::Requests, "{value}");
        assert_eq!(policy(value).to_string(), r#""a";q=1"#);
    }
    assert_eq!(unit(r#""a";q=1;qu="concurrent-requests""#), Unit::ConcurrentRequests);
    let tokens = unit(r#""x";q=5;qu="tokens""#);
    assert!(!tokens.is_known());
    assert_eq!(tokens.as_str(), "tokens");
}

/// A7, A15, A24
#[test]
fn values_that_cannot_be_written_are_rejected() {
    let window = |window| PolicyItem::new("a", 1).unwrap().with_window(window);
    let messages = [
        PolicyItem::new("a", MAX_INTEGER + 1).unwrap_err(),
        PolicyItem::new("ü", 1).unwrap_err(),
        LimitItem::new("a\r\nset-cookie: b", 1).unwrap_err(),
        window(Duration::ZERO).unwrap_err(),
        window(Duration::from_millis(1_500)).unwrap_err(),
    ];
    let expected = [
        "RateLimit-Policy: q is 1000000000000000, outside 0..=999999999999999",
        "RateLimit-Policy: policy name is not printable ASCII",
        "RateLimit: policy name is not printable ASCII",
        "RateLimit-Policy: w is 0, outside 1..=999999999999999",
        "RateLimit-Policy: w is not a whole number of seconds",
    ];
    assert_eq!(messages.map(|error| error.to_string()), expected);
}

/// RFC 9651, sections 3.1 to 3.3: what every reader of structured fields has to support.
#[test]
fn fields_of_the_least_sizes_that_readers_support_are_read() {
    let octets = vec![0xa5; 16_384];
    let limit = LimitItem::new("a", MAX_INTEGER)
        .unwrap()
        .with_partition_key(octets.clone());
    let field = RateLimit::new([limit]).unwrap();
    let read = RateLimit::parse([field.to_header_value()]).unwrap();
    assert_eq!(read.items()[0].partition_key(), Some(&*octets));

    // All that one item can have at once.
    let name = "n".repeat(1_024);
    let key = |number: usize| format!("k{number:063}");
    let mut policy = PolicyItem::new(&name, MAX_INTEGER).unwrap().with_partition_key(octets);
    for number in 0..253 {
        let value = ExtensionValue::integer(MAX_INTEGER).unwrap();
        policy = policy.with_unprefixed_extension(&key(number), value).unwrap();
    }
    let text = ExtensionValue::string(&"s".repeat(1_024)).unwrap();
    policy = policy.with_unprefixed_extension(&key(253), text).unwrap();
    let field = RateLimitPolicy::new([policy]).unwrap();
    let value = field.to_header_value();
    assert_eq!(RateLimitPolicy::parse([&value]), Ok(field));
    let headers = HeaderMap::from_iter([(RateLimitPolicy::NAME, value)]);
    assert_eq!(Hints::read(&headers).policies()[0].name(), Some(&*name));

    let of_name = |number: usize| format!("{number:064}");
    let item = |number| format!(r#""{}";r={MAX_INTEGER};t={MAX_INTEGER}"#, of_name(number));
    let items: Vec<_> = (0..1_024).map(item).collect();
    for lines in [items.clone(), vec![items.join(", ")], vec![items.join(",")]] {
        let read = RateLimit::parse(lines).unwrap();
        assert_eq!(read.items().len(), 1_024);
        assert_eq!(read.items()[1_023].name(), of_name(1_023));
    }
}

/// F12, I7: the maximum cost of a field from an untrusted peer.
#[test]
fn fields_that_are_too_long_are_malformed() {
    let items = |count: usize| vec![r#""a";r=1"#; count];
    assert_eq!(RateLimit::parse(items(MAX_ITEMS)).unwrap().items().len(), MAX_ITEMS);
    let error = RateLimit::parse(items(MAX_ITEMS + 1)).unwrap_err();
    assert_eq!(error.kind(), Kind::Size);
    let error = RateLimit::parse([items(MAX_ITEMS + 1).join(",")]).unwrap_err();
    assert_eq!(error.to_string(), "RateLimit: more than 1024 items");

    let long = |length: usize| format!(r#""{}";r=1"#, "a".repeat(length - 6));
    assert!(RateLimit::parse([long(MAX_LENGTH)]).is_ok());
    let error = RateLimit::parse([long(MAX_LENGTH + 1)]).unwrap_err();
    assert_eq!(error.to_string(), "RateLimit: longer than 131072 bytes");
    // Two bytes between each two lines.
    let lines = |length: usize| [r#""a";r=1"#.to_owned(), long(length - 2 - 7)];
    assert!(RateLimit::parse(lines(MAX_LENGTH)).is_ok());
    assert_eq!(RateLimit::parse(lines(MAX_LENGTH + 1)).unwrap_err().kind(), Kind::Size);
    assert_eq!(RateLimit::parse(vec![""; 100_000]).unwrap_err().kind(), Kind::Size);

    let item = LimitItem::new(&"a".repeat(MAX_LENGTH), 1).unwrap();
    assert_eq!(RateLimit::new([item]).unwrap_err().kind(), Kind::Size);
    let many = vec![LimitItem::new("a", 1).unwrap(); MAX_ITEMS + 1];
    assert_eq!(RateLimit::new(many).unwrap_err().kind(), Kind::Size);
}

/// I9: what was received is not repeated, so that it cannot forge a line of a log.
#[test]
fn errors_say_which_item_and_which_parameter_is_wrong() {
    for (value, message) in [
        (r#""a";q=1, "b";w=1"#, "RateLimit-Policy: item 2: q is missing"),
        (r#""a";q=1;qu=x"#, "RateLimit-Policy: item 1: qu is not a String"),
        (
            r#"("a");q=1"#,
            "RateLimit-Policy: item 1: not an item, but an inner list",
        ),
        ("a;q=1", "RateLimit-Policy: item 1: not an item with a String"),
        (
            r#""a";q=1,"#,
            "RateLimit-Policy: not a structured field: trailing comma at index 7",
        ),
    ] {
        assert_eq!(RateLimitPolicy::parse([value]).unwrap_err().to_string(), message);
    }
}
