//! Fields beside those that another server has sent.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use ratelimit_fields::{
    LayerFields, MAX_ITEMS, MAX_LENGTH, RetryAfter,
    draft11::{RateLimit, RateLimitPolicy},
    merge_into,
};

use crate::headers;

const NOW: SystemTime = UNIX_EPOCH;

fn limits(value: &str) -> LayerFields {
    LayerFields::new().with_rate_limit(&RateLimit::parse([value]).unwrap())
}

fn policies(value: &str) -> LayerFields {
    LayerFields::new().with_rate_limit_policy(&RateLimitPolicy::parse([value]).unwrap())
}

/// Returns the value after merging, which must be at most one line.
fn merged(inner: &[(&str, &str)], own: &LayerFields, name: &str) -> String {
    let mut headers = headers(inner);
    merge_into(&mut headers, own, NOW);
    assert!(headers.get_all(name).iter().count() <= 1);
    headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned()
}

fn merged_limits(inner: &str, own: &str) -> String {
    merged(&[("ratelimit", inner)], &limits(own), "ratelimit")
}

fn merged_policies(inner: &str, own: &str) -> String {
    merged(&[("ratelimit-policy", inner)], &policies(own), "ratelimit-policy")
}

/// Merges the pairs of a text, which are separated by lines, and compares the results with what is behind `=>`.
fn assert_merged(merged: fn(&str, &str) -> String, pairs: &str) {
    for line in pairs.trim().lines() {
        let (pair, shown) = line.split_once(" => ").unwrap();
        let (inner, own) = pair.trim().split_once(" + ").unwrap();
        assert_eq!(merged(inner, own), shown, "{line}");
    }
}

/// G1, G2, G3
#[test]
fn own_items_are_added_to_the_list_of_the_inner_service() {
    let limits_of_both = r#""default";r=50;t=30 + "edge";r=4;t=20 => "default";r=50;t=30, "edge";r=4;t=20"#;
    assert_merged(merged_limits, limits_of_both);
    let policies_of_both = r#""daily";q=1000;w=86400 + "edge";q=10;w=1 => "daily";q=1000;w=86400, "edge";q=10;w=1"#;
    assert_merged(merged_policies, policies_of_both);
    let lines = [("ratelimit", r#""a";r=1"#), ("ratelimit", r#""b";r=2"#)];
    let shown = merged(&lines, &limits(r#""c";r=3"#), "ratelimit");
    assert_eq!(shown, r#""a";r=1, "b";r=2, "c";r=3"#);
}

/// G2: if the inner service sends no fields, the own fields are written unchanged.
#[test]
fn own_fields_are_written_where_there_are_none() {
    let own = limits(r#""edge";r=4;t=20"#).with_retry_after(RetryAfter::after(Duration::from_secs(20)));
    let mut headers = HeaderMap::new();
    merge_into(&mut headers, &own, NOW);
    assert_eq!(headers["ratelimit"], r#""edge";r=4;t=20"#);
    assert_eq!(headers["retry-after"], "20");
    assert_eq!(headers.len(), 2);

    let before = headers.clone();
    merge_into(&mut headers, &LayerFields::new(), NOW);
    assert_eq!(headers, before);
}

/// G1, G4: a limit that never resets does not get a reset, and all that have the name and the key count.
#[test]
fn of_one_name_on_both_sides_the_lower_number_and_the_later_reset_are_shown() {
    assert_merged(
        merged_limits,
        r#"
        "default";r=50;t=30 + "default";r=4;t=20 => "default";r=4;t=30
        "default";r=4;t=20 + "default";r=50;t=30 => "default";r=4;t=30
        "default";r=4;t=30 + "default";r=50;t=20 => "default";r=4;t=30
        "default";r=4 + "default";r=3;t=20 => "default";r=3
        "default";r=4;t=30 + "default";r=3 => "default";r=3;t=30
        "a";r=9, "a";r=1 + "a";r=5 => "a";r=5, "a";r=1"#,
    );
    assert_merged(
        merged_policies,
        r#"
        "default";q=50;w=30 + "default";q=4;w=20 => "default";q=4;w=30
        "default";q=4;w=20 + "default";q=50;w=30 => "default";q=4;w=30
        "default";q=4 + "default";q=3;w=20 => "default";q=3"#,
    );
}

/// E9: each partition has a separate quota.
#[test]
fn items_of_other_partitions_are_other_items() {
    assert_merged(
        merged_limits,
        r#"
        "u";r=9;pk=:YQ==:, "u";r=9 + "u";r=1;pk=:Yg==: => "u";r=9;pk=:YQ==:, "u";r=9, "u";r=1;pk=:Yg==:
        "u";r=9;pk=:YQ==: + "u";r=1;pk=:YQ==: => "u";r=1;pk=:YQ==:"#,
    );
}

/// G5: the unit of a limit comes from its policy.
#[test]
fn an_item_whose_unit_is_not_known_is_never_altered() {
    let tokens = r#""x";q=5;qu="tokens""#;
    assert_eq!(merged_policies(tokens, r#""x";q=1"#), format!(r#"{tokens}, "x";q=1"#));
    assert_eq!(merged_policies(tokens, tokens), format!("{tokens}, {tokens}"));

    let shown = |policy| {
        let inner = [("ratelimit", r#""x";r=50"#), ("ratelimit-policy", policy)];
        merged(&inner, &limits(r#""x";r=4"#), "ratelimit")
    };
    let beside = r#""x";r=50, "x";r=4"#;
    assert_eq!(shown(tokens), beside);
    assert_eq!(shown(r#""x";q=99;qu="content-bytes""#), beside);
    assert_eq!(shown(r#""x";q=99, "x";q=99;qu="content-bytes";pk=:YQ==:"#), beside);
    assert_eq!(shown("???"), beside);
    assert_eq!(shown(r#""x";q=99;qu="request""#), r#""x";r=4"#);
    assert_eq!(shown(r#""other";q=99;qu="tokens""#), r#""x";r=4"#);
}

/// G5: two sides that use one word need not mean the same.
#[test]
fn a_limit_whose_unit_neither_side_knows_is_not_altered() {
    let tokens = r#""x";q=5;qu="tokens""#;
    let own = limits(r#""x";r=4"#).with_rate_limit_policy(&RateLimitPolicy::parse([tokens]).unwrap());
    let inner = [("ratelimit", r#""x";r=50"#), ("ratelimit-policy", tokens)];
    assert_eq!(merged(&inner, &own, "ratelimit"), r#""x";r=50, "x";r=4"#);
}

/// G4, G5: numbers of different units cannot be compared.
#[test]
fn items_of_different_units_are_shown_side_by_side() {
    let bytes = r#""x";q=9;qu="content-bytes""#;
    assert_eq!(merged_policies(r#""x";q=5"#, bytes), format!(r#""x";q=5, {bytes}"#));
    let own = limits(r#""x";r=1"#).with_rate_limit_policy(&RateLimitPolicy::parse([bytes]).unwrap());
    let beside = merged(&[("ratelimit", r#""x";r=5"#)], &own, "ratelimit");
    assert_eq!(beside, r#""x";r=5, "x";r=1"#);
    let inner = [("ratelimit", r#""x";r=5"#), ("ratelimit-policy", bytes)];
    assert_eq!(merged(&inner, &own, "ratelimit"), r#""x";r=1"#);
    assert_eq!(merged(&inner, &own, "ratelimit-policy"), bytes);
}

/// G2: parameters, their order and their types included.
#[test]
fn inner_items_keep_all_their_parameters() {
    let inner = r#""a";acme-x=1.5;t=9;r=5;qu=tok;d=@7;c=%"%c3%bc";e"#;
    assert_eq!(merged_limits(inner, r#""b";r=1"#), format!(r#"{inner}, "b";r=1"#));
    assert_eq!(
        merged_limits(inner, r#""a";r=1;t=1;acme-y=2"#),
        r#""a";acme-x=1.5;t=9;r=1;qu=tok;d=@7;c=%"%c3%bc";e"#
    );
    let inner = r#""a";w=60;qu="requests";q=5"#;
    assert_eq!(merged_policies(inner, r#""b";q=1"#), format!(r#"{inner}, "b";q=1"#));
}

/// G1: where the inner service is stricter already, its lines stay as they are.
#[test]
fn lines_that_need_no_change_are_not_touched() {
    let lines = [("ratelimit", r#""a";r=1;t=9,"b";r=2"#), ("ratelimit", r#"  "c";r=3"#)];
    let mut merged = headers(&lines);
    merge_into(&mut merged, &limits(r#""a";r=1;t=9, "c";r=7"#), NOW);
    assert_eq!(merged, headers(&lines));
}

/// G9, K17, X1
#[test]
fn malformed_fields_and_those_of_other_dialects_are_neither_changed_nor_merged() {
    for inner in r#"???||"a";t=1|("a");r=1|default;r=50;t=30|"a";r=1, b;r=2"#.split('|') {
        assert_eq!(merged_limits(inner, r#""edge";r=4;t=20"#), inner);
    }
    for inner in ["10;w=1, 50;w=60", "burst;q=100;w=60", r#""a";q=1;w=0"#] {
        assert_eq!(merged_policies(inner, r#""edge";q=4;w=20"#), inner);
    }
    // Each field by itself.
    let own = limits(r#""edge";r=4"#).with_rate_limit_policy(&RateLimitPolicy::parse([r#""edge";q=9"#]).unwrap());
    let policy = ("ratelimit-policy", r#""a";q=1"#);
    let inner = [("ratelimit", "???"), policy, ("ratelimit-limit", "7")];
    assert_eq!(merged(&inner, &own, "ratelimit"), "???");
    assert_eq!(merged(&inner, &own, "ratelimit-policy"), r#""a";q=1, "edge";q=9"#);
    assert_eq!(merged(&inner, &own, "ratelimit-limit"), "7");
}

/// X39: one field has one dialect.
#[test]
fn a_dictionary_becomes_an_item_named_upstream() {
    let own =
        limits(r#""edge";r=4;t=20"#).with_rate_limit_policy(&RateLimitPolicy::parse([r#""edge";q=9;w=20"#]).unwrap());
    for (dictionary, policy, limits, policies) in [
        (
            "limit=5, remaining=3, reset=60",
            "5;w=60",
            r#""upstream";r=3;t=60, "edge";r=4;t=20"#,
            r#""upstream";q=5;w=60, "edge";q=9;w=20"#,
        ),
        // The policy of the limit has its name, and the others have their quotas behind it.
        (
            "limit=5, remaining=3, reset=60, acme=1",
            r#"10;w=1;burst=1000, 5;w=60;comment="sliding window";q=7;pk=x"#,
            r#""upstream";r=3;t=60, "edge";r=4;t=20"#,
            r#""upstream-10";q=10;w=1;burst=1000, "upstream";q=5;w=60;comment="sliding window", "edge";q=9;w=20"#,
        ),
        // A limit without a policy, and a window of zero, which carries no information.
        (
            "limit=0, remaining=0, reset=20",
            "15;w=0",
            r#""upstream";r=0;t=20, "edge";r=4;t=20"#,
            r#""upstream-15";q=15, "upstream";q=0, "edge";q=9;w=20"#,
        ),
    ] {
        let inner = [("ratelimit", dictionary), ("ratelimit-policy", policy)];
        assert_eq!(merged(&inner, &own, "ratelimit"), limits);
        assert_eq!(merged(&inner, &own, "ratelimit-policy"), policies);
        let mut once = headers(&inner);
        merge_into(&mut once, &own, NOW);
        let mut twice = once.clone();
        merge_into(&mut twice, &own, NOW);
        assert_eq!(once, twice);
    }
    // The quota is not lost where there is no policy, nor where only policies are added.
    let inner = [("ratelimit", "limit=5, remaining=3, reset=60")];
    let shown = merged(&inner, &own, "ratelimit-policy");
    assert_eq!(shown, r#""upstream";q=5, "edge";q=9;w=20"#);
    let policies = policies(r#""edge";q=9"#);
    assert_eq!(merged(&inner, &policies, "ratelimit"), r#""upstream";r=3;t=60"#);
    let shown = merged(&inner, &policies, "ratelimit-policy");
    assert_eq!(shown, r#""upstream";q=5, "edge";q=9"#);
}

/// X39: nothing is made up, and nothing is touched for nothing.
#[test]
fn a_dictionary_that_has_no_form_in_draft_11_stays() {
    let own = limits(r#""edge";r=4;t=20"#);
    let whole = "limit=5, remaining=3, reset=60";
    let beside = |dictionary, policy, own: &LayerFields| {
        let inner = [("ratelimit", dictionary), ("ratelimit-policy", policy)];
        ["ratelimit", "ratelimit-policy"].map(|name| merged(&inner, own, name))
    };
    let mistaken = "limit=5, remaining=x, reset=60";
    for dictionary in ["limit=5, reset=60", "limit=5, remaining=3", mistaken] {
        assert_eq!(beside(dictionary, "5;w=60", &own), [dictionary, "5;w=60"]);
    }
    let wait = LayerFields::new().with_retry_after(RetryAfter::after(Duration::from_secs(1)));
    assert_eq!(beside(whole, "5;w=60", &wait)[0], whole);
    // Policies that are malformed, or have names already, are left alone.
    for policy in ["5;w=60, 5;w=1", "???", r#""a";q=5;w=60"#] {
        let shown = [r#""upstream";r=3;t=60, "edge";r=4;t=20"#, policy];
        assert_eq!(beside(whole, policy, &own), shown);
    }
}

/// G4, X39: an own limit with this name and the limit of the other server become one item.
#[test]
fn an_own_limit_named_upstream_is_joined_with_the_dictionary() {
    let own = limits(r#""upstream";r=4;t=90"#);
    let inner = [("ratelimit", "limit=5, remaining=3, reset=60")];
    assert_eq!(merged(&inner, &own, "ratelimit"), r#""upstream";r=3;t=90"#);
}

/// G2: a list that readers would reject to read would take the inner items with it.
#[test]
fn a_list_that_would_get_too_long_stays_as_it_is() {
    let inner = vec![r#""a";r=1"#; MAX_ITEMS].join(", ");
    assert_eq!(merged_limits(&inner, r#""edge";r=4"#), inner);
    let inner = format!(r#""{}";r=1"#, "a".repeat(MAX_LENGTH - 14));
    assert_eq!(merged_limits(&inner, r#""edge";r=4"#), inner);
}

/// G8
#[test]
fn retry_after_is_only_lengthened() {
    let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
    let date = "Sun, 06 Nov 1994 08:49:57 GMT";
    let shown = |inner: &str, own: RetryAfter| {
        let mut headers = headers(&[("retry-after", inner)]);
        merge_into(&mut headers, &LayerFields::new().with_retry_after(own), now);
        headers["retry-after"].to_str().unwrap().to_owned()
    };
    let after = |seconds| RetryAfter::after(Duration::from_secs(seconds));
    assert_eq!(shown("30", after(10)), "30");
    assert_eq!(shown("10", after(30)), "30");
    assert_eq!(shown(date, after(10)), date);
    assert_eq!(shown(date, after(21)), "21");
    assert_eq!(shown("10", RetryAfter::parse([date]).unwrap()), date);
    assert_eq!(shown("21", RetryAfter::parse([date]).unwrap()), "21");
    assert_eq!(shown("Sun, 06 Nov 1994 08:00:00 GMT", after(1)), "1");
    // The meaning is unknown.
    assert_eq!(shown("soon", after(1)), "soon");
    // A client may take either of two lines.
    for (own, expected) in [(30, &["10", "60"][..]), (90, &["90"])] {
        let mut headers = headers(&[("retry-after", "10"), ("retry-after", "60")]);
        merge_into(&mut headers, &LayerFields::new().with_retry_after(after(own)), now);
        assert!(headers.get_all("retry-after").iter().eq(expected), "{headers:?}");
    }
}
