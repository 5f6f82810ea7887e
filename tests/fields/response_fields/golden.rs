//! All fields of a response in each dialect, for each outcome, with each option. The rows are in `golden.txt`; a row
//! with an option is omitted if it equals the row without the option. Options that only leave fields out have no rows.
//!
//! After an intended change, write the rows with `UPDATE_GOLDEN=1 cargo test -p tower-quota-tests --all-features --test
//! fields golden`, and review the difference.

use std::{env, fs};

use test_kit::TestStore;
use tower_quota::{Exemption, FailureMode, StoreErrorKind, fields::EmitWhen};

use super::*;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fields/response_fields/golden.txt");

/// The names of the dialects. The last one writes no fields.
const NAMES: [&str; 8] = [
    "draft-11",
    "draft-11 and 06",
    "in between",
    "draft-07",
    "draft-06",
    "legacy",
    "legacy, Unix",
    "none",
];

fn named_dialects() -> impl Iterator<Item = (&'static str, ResponseFields)> {
    NAMES
        .into_iter()
        .zip(dialects().into_iter().chain([ResponseFields::none()]))
}

type Change = fn(ResponseFields) -> ResponseFields;

const OPTIONS: [(&str, Change); 3] = [
    ("tightest only", ResponseFields::tightest_only),
    ("halved", |fields| fields.map_remaining(|own| own.remaining() / 2)),
    ("rate cap", |fields| fields.within_rate()),
];

/// Returns `true` if an option omits this field from the response to a request with this outcome.
type Omission = fn(&str, &str) -> bool;

const OMISSIONS: [(Change, Omission); 4] = [
    (ResponseFields::without_limits, |field, _| is_limit(field)),
    (ResponseFields::without_policies, |field, _| field == "ratelimit-policy"),
    (
        |fields| fields.emit_when(EmitWhen::NearExhaustion(50)),
        |field, outcome| is_ours(field) && ["admitted", "shadow", "custom unit"].contains(&outcome),
    ),
    (
        |fields| fields.emit_when(EmitWhen::Rejected),
        |field, outcome| is_ours(field) && !["rejected", "rejected for good", "closed"].contains(&outcome),
    ),
];

fn is_ours(field: &str) -> bool {
    field.contains("ratelimit")
}

fn is_limit(field: &str) -> bool {
    is_ours(field) && field != "ratelimit-policy"
}

const OUTCOMES: [&str; 11] = [
    "admitted",
    "nearly exhausted",
    "redirect",
    "rejected",
    "rejected for good",
    "closed",
    "shadow",
    "custom unit",
    "exempt",
    "undecided",
    "unavailable",
];

/// The answer to the last request of a caller with 10 units in a minute, of which 40 seconds are left, and 100 in an hour.
async fn answer(fields: ResponseFields, outcome: &str) -> Answer {
    let scene = Scene::new();
    scene.wait(20);
    let first = match outcome {
        "closed" => minute(0),
        "shadow" => minute(10).shadow(),
        "custom unit" => minute(10).with_unit("tokens"),
        _ => minute(10),
    };
    let second = if outcome == "closed" { 0 } else { 100 };
    let policies = [first, fixed(QuotaPolicy::per_hour("hour", second))];
    let builder = match outcome {
        "undecided" | "unavailable" => scene.builder_on(TestStore::failing(StoreErrorKind::Unreachable), policies),
        _ => scene.builder(policies),
    };
    let mode = match outcome {
        "unavailable" => FailureMode::Closed,
        _ => FailureMode::Open,
    };
    let builder = builder.exempt(Exemption::path("/exempt")).failure_mode(mode);
    let builder = match outcome {
        "custom unit" => builder.unit_cost("tokens", |_| 4),
        _ => builder,
    };
    let layer = builder.response_fields(fields).build().unwrap();
    if ["rejected", "shadow"].contains(&outcome) {
        take(&layer, 10).await;
    }
    let (mut request, mut response) = (costing(1), ok());
    match outcome {
        "nearly exhausted" => request = costing(9),
        "redirect" => {
            request = costing(9);
            *response.status_mut() = StatusCode::SEE_OTHER;
        }
        "rejected for good" => request = costing(11),
        "exempt" => *request.uri_mut() = "/exempt".parse().unwrap(),
        _ => {}
    }
    send(&layer, request, response).await
}

/// All fields but the type of the content, and those that are left out.
fn shown(answer: &Answer, is_left_out: impl Fn(&str) -> bool) -> String {
    let is_shown = |name: &str| name != "content-type" && !is_left_out(name);
    let fields = answer.headers().iter().filter(|(name, _)| is_shown(name.as_str()));
    let mut shown: Vec<_> = fields
        .map(|(name, value)| format!(" | {name}: {}", value.to_str().unwrap()))
        .collect();
    shown.sort();
    format!("{}{}", answer.code(), shown.concat())
}

/// A7, A9, A10, A23, B15, D5, D6, D8, D9, J28, K9, K12, K17, N20
#[tokio::test]
async fn each_outcome_has_the_fields_of_the_golden_table_in_each_dialect_with_each_option() {
    let mut rows = String::new();
    for (dialect, fields) in named_dialects() {
        for outcome in OUTCOMES {
            let answered = answer(fields.clone(), outcome).await;
            for (with, is_left_out) in OMISSIONS {
                let with = answer(with(fields.clone()), outcome).await;
                let expected = shown(&answered, |field| is_left_out(field, outcome));
                assert_eq!(shown(&with, |_| false), expected, "{dialect}, {outcome}");
            }
            let plain = shown(&answered, |_| false);
            rows += &format!("{dialect}, {outcome}: {plain}\n");
            for (option, with) in OPTIONS {
                let shown = shown(&answer(with(fields.clone()), outcome).await, |_| false);
                if shown != plain {
                    rows += &format!("{dialect}, {outcome}, {option}: {shown}\n");
                }
            }
        }
    }
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(FILE, rows).unwrap();
        return;
    }
    let golden = fs::read_to_string(FILE).unwrap();
    for (row, golden) in rows.lines().zip(golden.lines()) {
        assert_eq!(row, golden);
    }
    assert_eq!(rows.lines().count(), golden.lines().count());
}

/// A redirect apart, of which a decision knows nothing.
#[tokio::test]
async fn a_decision_has_the_fields_of_the_response_without_a_layer_too() {
    for (dialect, fields) in named_dialects() {
        for outcome in OUTCOMES.into_iter().filter(|outcome| *outcome != "redirect") {
            let answer = answer(fields.clone(), outcome).await;
            let mut expected = answer.headers().clone();
            expected.remove("content-type");
            assert_eq!(fields.to_headers(answer.decision()), expected, "{dialect}, {outcome}");
        }
    }
}

#[tokio::test]
async fn a_policy_that_a_dialect_cannot_express_leaves_the_other_fields_of_a_decision() {
    let policies = [minute(10), QuotaPolicy::per_hour("hour", 10)];
    let layer = Scene::new().layer(ResponseFields::draft11(), policies);
    let answer = send(&layer, costing(1), ok()).await;
    let headers = ResponseFields::draft06().to_headers(answer.decision());
    assert_eq!(headers["ratelimit-remaining"], "9");
    assert!(!headers.contains_key("ratelimit-policy"));
}
