//! Documents, from JSON to rules and back.

use std::time::Duration;

use serde_json::json;
use tower_quota::{
    Access, Algorithm, Direction, PartitionId, QuotaPolicy, Rules,
    calendar::{CalendarPeriod, CalendarWindow, Weekday},
    fields::ExtensionValue,
};
use tower_quota_fleet::{AccessEntry, FleetErrorKind as Kind, Rollout, RulesDocument, RulesVersion};

fn minute(quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_minute("minute", quota)
}

/// A document with all that one can have.
pub(crate) fn whole() -> RulesDocument {
    let window = CalendarWindow::new(
        CalendarPeriod::Week {
            begins: Weekday::Sunday,
        },
        "Africa/Cairo",
    );
    let policies = [
        minute(60).with_burst_capacity(60).with_prefetch(5).show_partition_key(),
        QuotaPolicy::per_second("strict", 10)
            .with_algorithm(Algorithm::StrictTokenBucket)
            .with_lockout(Duration::from_secs(900))
            .hidden(),
        QuotaPolicy::per_hour("queue", 10).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 3 }),
        QuotaPolicy::per_hour("bytes", 1_000)
            .with_content_bytes(Direction::Response)
            .with_algorithm(Algorithm::FixedWindow)
            .shadow(),
        QuotaPolicy::concurrent("slots", 3).shadow().visible().keyed_by("team"),
        QuotaPolicy::per_hour("tokens", 1_000)
            .with_unit("tokens")
            .with_extension("acme-burst", 20)
            .with_extension("acme-flag", true)
            .with_extension("acme-text", ExtensionValue::string("x").unwrap()),
        QuotaPolicy::per_calendar("week", 5, window),
        QuotaPolicy::per_calendar_month("month", 5, "UTC").hidden(),
        QuotaPolicy::per_day("closed", 0),
    ];
    let tiers = Rules::new().tier("free", policies).unlimited("admin");
    let blocked = AccessEntry::network("203.0.113.0/24", Access::Block).with_expiry(1_795_378_641);
    RulesDocument::new(RulesVersion::MAX_NUMBER, tiers)
        .with_author("Ana María")
        .with_time(1_795_378_041)
        .with_roll_out(
            Rollout::new(10, Rules::new().policy(minute(5))).with_partitions([PartitionId::from_bytes([7; 16])]),
        )
        .switched_off(true)
        .with_access([blocked, AccessEntry::key("x-user-id", "mallory", Access::Allow)])
        .blocking_unknown_addresses(true)
}

const RULES: &str = r#"{"policies": [{"name": "a", "quota": 1, "window_seconds": 60}]}"#;

/// Fields of a document with invalid values, and the resulting errors. `RULES` is a placeholder for rules.
const MISTAKES: &str = r#"
format: 0 => format 0 is outside 1..
format: "1" => format: invalid type: string "1", expected u64 at line 1 column
version: 0 => version 0 is outside 1..=9007199254740991
version: 9007199254740992 => version 9007199254740992 is outside
author: 5 => author: invalid type: integer `5`, expected a string at line 1
author: "a\nb" => author: longer than 256 bytes, or contains a control character
time: "now" => time: invalid type: string "now", expected u64
rules: 7 => rules: invalid type: integer `7`, expected rules: a map with `policies` or `tiers`
roll_out: {"percent": 10} => roll_out: missing field `rules`
roll_out: {"percent": 256, "rules": RULES} => roll_out: percent: invalid value: integer `256`
roll_out: {"percent": 101, "rules": RULES} => roll_out: percent 101 is outside 0..=100
roll_out: {"percent": 1, "partitions": ["7"], "rules": RULES} => partitions: "7" is not 32 hex
switched_off: "yes" => switched_off: invalid type: string "yes", expected a boolean
access: [{"access": "block"}] => access: a rule requires either `network` or `key`
access: [{"network": "::1"}] => access: missing field `access`
access: [{"network": "::1", "access": "deny"}] => access: unknown variant `deny`, expected one of
access: [{"network": "::1", "access": "block", "until": "x"}] => until: invalid type: string "x"
access: [{"key": {"kind": "a"}, "access": "block"}] => access: missing field `value`
accesses: [] => unknown field `accesses`, expected one of `format`, `version`"#;

#[test]
fn a_document_with_a_mistake_is_an_error_that_names_the_place() {
    let long = format!("\"{}\"", "a".repeat(257));
    let too_long = ("author", &*long, "author: longer than 256 bytes");
    let mistakes = MISTAKES.trim().lines().map(|line| {
        let (value, expected) = line.split_once(" => ").unwrap();
        let (field, value) = value.split_once(": ").unwrap();
        (field, value, expected)
    });
    for (field, value, expected) in mistakes.chain([too_long]) {
        let mut document = json!({"format": 1, "version": 2});
        document["rules"] = serde_json::from_str(RULES).unwrap();
        document[field] = serde_json::from_str(&value.replace("RULES", RULES)).unwrap();
        let json = document.to_string();
        let error = RulesDocument::parse(json.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), Kind::Malformed, "{json}");
        let error = error.to_string();
        assert!(error.starts_with("rules document: "), "{json}: {error}");
        assert!(error.contains(expected), "{json}: {error}");
    }
}

#[test]
fn a_document_that_is_cut_off_or_no_json_is_an_error_with_line_and_column() {
    let json = whole().to_json().unwrap();
    for end in (0..json.len() - 1).filter(|end| json.is_char_boundary(*end)) {
        let error = RulesDocument::parse(&json.as_bytes()[..end]).unwrap_err().to_string();
        assert!(error.contains("at line "), "{end}: {error}");
    }
    let others = "null|[]|1|\"format\"|format: 1|\u{feff}{}|{}x|{\"format\": 1, \"format\": 1}";
    for other in others.split('|').map(str::as_bytes).chain([&[0xff; 100][..]]) {
        let error = RulesDocument::parse(other).unwrap_err().to_string();
        assert!(error.contains("at line 1 column "), "{other:?}: {error}");
    }
    // Depth takes no stack.
    let brackets = "[".repeat(RulesDocument::MAX_LENGTH - 100);
    for before in ["{\"format\": 1, \"x\": ", "{\"format\": ", ""] {
        let error = RulesDocument::parse(format!("{before}{brackets}").as_bytes()).unwrap_err();
        assert_eq!(error.kind(), Kind::Malformed);
    }
}

#[test]
fn a_document_above_the_largest_length_is_neither_read_nor_written() {
    let mut longest = RulesDocument::new(1, Rules::new().policy(minute(1))).to_json().unwrap();
    longest.extend(std::iter::repeat_n(' ', RulesDocument::MAX_LENGTH - longest.len()));
    assert!(RulesDocument::parse(longest.as_bytes()).is_ok());
    longest.push(' ');
    let error = RulesDocument::parse(longest.as_bytes()).unwrap_err();
    assert_eq!(error.kind(), Kind::TooLong);
    assert_eq!(error.to_string(), "rules document: longer than 1048576 bytes");

    let entry = |number: u32| AccessEntry::network(number.to_string(), Access::Block);
    let document = whole().with_access((0..30_000).map(entry));
    assert_eq!(document.to_json().unwrap_err().kind(), Kind::TooLong);
}

#[test]
fn rules_that_no_layer_could_carry_out_are_found_without_a_layer() {
    let rules = |policies: &[QuotaPolicy]| policies.iter().cloned().fold(Rules::new(), Rules::policy);
    let of_team = QuotaPolicy::per_hour("team", 9).keyed_by("team").with_unit("tokens");
    let document = |rules| RulesDocument::new(1, rules);
    for valid in [
        rules(&[minute(1), of_team]),
        Rules::new().tier("free", [minute(0)]).unlimited("admin"),
    ] {
        let tried = document(valid.clone()).with_roll_out(Rollout::new(1, valid));
        tried.check().unwrap();
    }
    let network =
        |network: &str| document(rules(&[minute(1)])).with_access([AccessEntry::network(network, Access::Block)]);
    let too_large = document(rules(&[minute(1)])).with_roll_out(Rollout::new(1, rules(&[minute(u64::MAX)])));
    let wrong_network = "access rules: \"203.0.113.0/33\" is not an IP address or network";
    for (invalid, expected) in [
        (document(Rules::new()), "policies: at least one is required"),
        (
            too_large,
            "roll_out: policy \"minute\": quota 18446744073709551615 is outside 0..=999999999999999",
        ),
        (network("203.0.113.0/33"), wrong_network),
    ] {
        let error = invalid.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_the_format_cannot_express_is_not_written() {
    let token = ExtensionValue::token("sugar").unwrap();
    let error = |version, policy| {
        RulesDocument::new(version, Rules::new().policy(policy))
            .to_json()
            .unwrap_err()
    };
    let half = QuotaPolicy::new("half", 1, Duration::from_millis(1_500));
    let token = minute(1).with_extension("acme-x", token);
    let unit = minute(1).with_unit("a name of more than 24 characters");
    for (policy, expected) in [
        (half, "policy \"half\": window 1.5s is not a whole number of seconds"),
        (
            token,
            "policy \"minute\": extension \"acme-x\": sugar cannot be serialized",
        ),
        (unit, "has more than 24 characters"),
    ] {
        let error = error(1, policy).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let version = error(0, minute(1)).to_string();
    assert_eq!(version, "rules document: version 0 is outside 1..=9007199254740991");
}
