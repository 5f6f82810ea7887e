//! A client reads the same limit from each dialect that a server may speak.

use super::{
    pacing::{Scene, waiting},
    *,
};

/// Lines that report one limit with `remaining` units and a reset in `reset` seconds, in each dialect.
fn fields(dialect: &str, remaining: u64, reset: u64) -> String {
    match dialect {
        "draft-11" => format!(r#"ratelimit: "a";r={remaining};t={reset}"#),
        "in-between" => format!("ratelimit: a;r={remaining};t={reset}"),
        "draft-06" => {
            format!("ratelimit-limit: 10 | ratelimit-remaining: {remaining} | ratelimit-reset: {reset}")
        }
        "draft-07" => format!("ratelimit: limit=10, remaining={remaining}, reset={reset}"),
        other => panic!("{other}"),
    }
}

const DIALECTS: [&str; 4] = ["draft-11", "in-between", "draft-06", "draft-07"];

fn exchange(scene: &mut Scene, now: u64, fields: &str, more: &[&str]) {
    scene.exchange(now, &[&lines(fields), more].concat());
}

/// F3, F4, F5, F6, J21, K14, N21: the draft's `10`, `1` and `7`, and a rejection nevertheless; then a response without
/// remaining units, and a response without fields.
#[test]
fn nothing_that_a_limit_says_is_a_promise() {
    for dialect in DIALECTS {
        let mut scene = waiting();
        exchange(&mut scene, 0, &fields(dialect, 1, 7), &[]);
        exchange(&mut scene, 0, &fields(dialect, 1, 7), &["retry-after: 7"]);
        // A unit was left, and it was rejected.
        assert_eq!(scene.wait(0).until(), at(7), "{dialect}");
        exchange(&mut scene, 7, &fields(dialect, 0, 7), &[]);
        // The reset has brought nothing back.
        assert_eq!(scene.wait(7).until(), at(14), "{dialect}");
        let _trial = scene.send(14);
        assert!(!scene.wait(14).is_certain(), "{dialect}: one tries after the reset");
        // Without new fields, the old ones expire.
        scene.exchange(30, &[]);
        assert!(scene.burst_of(30, 20), "{dialect}");
    }
}

/// F7, F8, F9, F10, J22, J24, K14, N21
#[test]
fn units_and_waits_hold_and_the_policy_steers_nothing() {
    for (dialect, policy) in DIALECTS.into_iter().zip([
        r#"ratelimit-policy: "a";q=1000;w=1"#,
        "ratelimit-policy: a;q=1000;w=1",
        "ratelimit-policy: 10;w=1",
        "ratelimit-policy: 10;w=1",
    ]) {
        let mut scene = waiting();
        exchange(&mut scene, 0, &fields(dialect, 5, 10), &[policy]);
        assert_eq!(scene.burst(0).len(), 5, "{dialect}");
        assert_eq!(scene.wait(3).until(), at(10), "{dialect}");
        for wait in ["retry-after: 20", "retry-after: Tue, 14 Nov 2023 22:13:40 GMT"] {
            let mut scene = waiting();
            exchange(&mut scene, 0, &fields(dialect, 0, 40), &[wait]);
            assert_eq!(scene.wait(19).until(), at(20), "{dialect} {wait}");
            scene.exchange(20, &[]);
        }
    }
}

/// F11, H1, H2, K14, N21
#[test]
fn time_on_the_way_is_taken_off_and_caches_are_ignored() {
    for dialect in DIALECTS {
        let dated = format!("date: Tue, 14 Nov 2023 22:13:20 GMT | {}", fields(dialect, 5, 10));
        let caps = Caps::default().trust_dates(true);
        let advice = Advice::read(StatusCode::OK, &headers(&lines(&dated)), super::exchange(2, 2), &caps);
        assert_eq!(advice.limits()[0].reset(), Some(seconds(8)), "{dialect}");

        for (age, limits) in [("age: 30", 0), ("age: 0", 1)] {
            let advice = advice_of(200, &[&[age], &lines(&fields(dialect, 0, 50))[..]].concat());
            assert_eq!(advice.limits().len(), limits, "{dialect} {age}");
        }
    }
}

/// F1, F12, F13, I7, J25, K14, N21
#[test]
fn what_is_malformed_is_ignored_and_what_is_absurd_is_capped() {
    for (dialect, malformed) in DIALECTS.into_iter().zip([
        r#"ratelimit: "a";r=0;t=10, "b";r=x"#,
        "ratelimit: a;r=0;t=10, b;r=x",
        "ratelimit-remaining: x",
        "ratelimit: limit=10, remaining=x, reset=10",
    ]) {
        let mut scene = waiting();
        scene.exchange(0, &[malformed]);
        assert!(scene.burst_of(0, 20), "{dialect}");
        let mut scene = waiting();
        exchange(&mut scene, 0, &fields(dialect, 0, 1_000_000), &[]);
        assert_eq!(scene.wait(0).until(), at(600), "{dialect}");
    }
}
