//! When the next request may be sent, according to earlier responses.

use tower_ratelimit_client::{Acquire, Pacing, Profile, SendPermit, Strategy, Wait};

use super::*;

pub(super) struct Scene(Pacing);

impl Scene {
    fn new(strategy: Strategy) -> Self {
        Self(Pacing::new(strategy, Caps::default()))
    }

    #[track_caller]
    pub(super) fn send(&mut self, now: u64) -> SendPermit {
        match self.0.try_acquire(at(now)) {
            Acquire::Ready(dispatch) => dispatch,
            Acquire::Wait(wait) => panic!("it has to wait: {wait:?}"),
        }
    }

    #[track_caller]
    pub(super) fn wait(&mut self, now: u64) -> Wait {
        match self.0.try_acquire(at(now)) {
            Acquire::Ready(dispatch) => panic!("nothing keeps it: {dispatch:?}"),
            Acquire::Wait(wait) => wait,
        }
    }

    fn answer(&mut self, now: u64, dispatch: SendPermit, lines: &[&str]) {
        let is_rejection = lines.iter().any(|line| line.starts_with("retry-after"));
        let advice = advice_of(if is_rejection { 429 } else { 200 }, lines);
        self.0.record_response(dispatch, &advice, at(now));
    }

    /// Sends and is answered at once.
    #[track_caller]
    pub(super) fn exchange(&mut self, now: u64, lines: &[&str]) {
        let dispatch = self.send(now);
        self.answer(now, dispatch, lines);
    }

    /// Like `exchange`, with a server that sends the fields of `profile`.
    #[track_caller]
    pub(super) fn exchange_as(&mut self, profile: &Profile, status: u16, now: u64, lines: &[&str]) {
        let dispatch = self.send(now);
        let status = StatusCode::from_u16(status).unwrap();
        let advice = Advice::read_as(profile, status, &headers(lines), exchange(now, 0), &Caps::default());
        self.0.record_response(dispatch, &advice, at(now));
    }

    /// Sends all requests that are admitted now, without responses.
    pub(super) fn burst(&mut self, now: u64) -> Vec<SendPermit> {
        let mut sent = Vec::new();
        while let Acquire::Ready(dispatch) = self.0.try_acquire(at(now)) {
            sent.push(dispatch);
            assert!(sent.len() < 1_000, "nothing keeps them");
        }
        sent
    }

    /// Returns `true` if `requests` requests are admitted now.
    pub(super) fn burst_of(&mut self, now: u64, requests: usize) -> bool {
        (0..requests).all(|_| matches!(self.0.try_acquire(at(now)), Acquire::Ready(_)))
    }

    fn left(&self, now: u64) -> Vec<u64> {
        let limits = self.0.limits(at(now));
        limits.iter().map(|limit| limit.remaining().unwrap()).collect()
    }
}

pub(super) fn waiting() -> Scene {
    Scene::new(Strategy::Greedy)
}

/// F16
#[test]
fn a_server_that_says_nothing_holds_nothing_back() {
    let mut scene = waiting();
    for now in 0..500 {
        let _in_flight = scene.send(0);
        scene.exchange(now, &[]);
    }
}

/// Units that seemed exhausted because of requests in flight are available when all responses have arrived.
#[test]
fn nothing_that_is_left_is_lost_when_all_are_answered() {
    let mut scene = waiting();
    let sent: Vec<_> = (0..10).map(|_| scene.send(0)).collect();
    // In any order: the lowest value is the last one that the server sent.
    for (left, dispatch) in [7, 9, 4, 8, 6, 5, 12, 11, 10, 13].into_iter().zip(sent) {
        let field = format!(r#"ratelimit: "a";r={left};t=60"#);
        scene.answer(1, dispatch, &[&field]);
    }
    assert_eq!(scene.left(1), [4]);
    assert_eq!(scene.burst(1).len(), 4);
}

/// E9, X32: an answer that has a limit twice is one answer, and the other one may have known less.
#[test]
fn a_limit_that_is_said_twice_counts_once() {
    let mut scene = waiting();
    let (first, second) = (scene.send(0), scene.send(0));
    scene.answer(0, first, &[r#"ratelimit: "a";r=5;t=60, "a";r=6;t=60"#]);
    scene.answer(0, second, &[]);
    assert_eq!(scene.left(0), [4]);
}

/// F4: after the window, no units are known to be restored.
#[test]
fn after_the_window_one_request_at_a_time_tries() {
    let mut scene = waiting();
    scene.exchange(0, &[r#"ratelimit: "a";r=0;t=30"#]);
    assert_eq!(scene.wait(29).until(), at(30));
    assert!(scene.wait(29).is_certain());

    let trial = scene.send(30);
    assert!(!scene.wait(30).is_certain());
    scene.answer(31, trial, &[]);
    let trial = scene.send(31);
    scene.wait(31);
    scene.answer(32, trial, &[r#"ratelimit: "a";r=20;t=30"#]);
    assert_eq!(scene.burst(32).len(), 20);
}

#[test]
fn a_trial_that_is_not_answered_or_lost_makes_room_for_the_next() {
    let mut scene = waiting();
    scene.exchange(0, &[r#"ratelimit: "a";r=0;t=30"#]);
    let trial = scene.send(30);
    scene.0.record_loss(trial);
    let _hangs = scene.send(30);
    assert_eq!(scene.wait(30).until(), at(35));
    let _next = scene.send(35);
    scene.wait(35);
}

/// F5: the next response may have no fields. Known limits expire, and nothing fails.
#[test]
fn a_limit_of_which_nothing_more_is_heard_is_forgotten() {
    let mut scene = waiting();
    scene.exchange(0, &[r#"ratelimit: "a";r=0;t=30"#]);
    scene.exchange(30, &[]);
    let _trial = scene.send(59);
    scene.wait(59);
    assert_eq!(scene.0.limits(at(60)), []);
    assert!(matches!(scene.0.try_acquire(at(60)), Acquire::Ready(_)));
    assert!(matches!(scene.0.try_acquire(at(60)), Acquire::Ready(_)));
}

/// F5, F15: if a server repeats one limit but not the other, the other expires at the end of its window.
#[test]
fn a_limit_that_is_not_repeated_holds_until_its_window_is_over() {
    let mut scene = waiting();
    scene.exchange(0, &[r#"ratelimit: "a";r=9;t=60, "b";r=1;t=10"#]);
    scene.exchange(1, &[r#"ratelimit: "a";r=8;t=59"#]);
    assert_eq!(scene.wait(1).until(), at(10));
    scene.exchange(10, &[r#"ratelimit: "a";r=7;t=50"#]);
    assert_eq!(scene.burst(10).len(), 7);
}

/// F8: also over a window that ends earlier, and over the fields of other responses.
#[test]
fn retry_after_wins_over_the_window() {
    let mut scene = waiting();
    scene.exchange(0, &[r#"ratelimit: "a";r=5;t=1, "b";r=0;t=500"#, "retry-after: 20"]);
    assert_eq!(scene.wait(2).until(), at(20));
    scene.exchange(20, &[r#"ratelimit: "a";r=5;t=1"#]);
    assert_eq!(scene.burst(20).len(), 5);
}

/// Without any fields, waiting requests must not all be released at once.
#[test]
fn after_a_rejection_one_request_at_a_time_tries_until_one_is_none() {
    let mut scene = waiting();
    let late = scene.send(0);
    scene.exchange(0, &["retry-after: 20"]);
    scene.answer(1, late, &[]);
    // An answer of a request that was sent before says nothing.
    assert_eq!(scene.wait(1).until(), at(20));
    let trial = scene.send(20);
    scene.wait(20);
    scene.answer(21, trial, &["retry-after: 3"]);
    assert_eq!(scene.wait(21).until(), at(24));
    scene.exchange(24, &[]);
    let _one = scene.send(24);
    let _two = scene.send(24);
}

/// F12
#[test]
fn more_units_than_the_cap_are_not_believed() {
    let caps = Caps::new(seconds(600), 100).unwrap();
    let mut scene = Scene(Pacing::new(Strategy::Greedy, caps));
    let dispatch = scene.send(0);
    let fields = headers(&[r#"ratelimit: "a";r=999999999999999;t=1"#]);
    let advice = Advice::read(StatusCode::OK, &fields, exchange(0, 0), &caps);
    scene.0.record_response(dispatch, &advice, at(0));
    assert_eq!(scene.burst(0).len(), 100);
}

/// F19: as fewer are left, the rate gets lower.
#[test]
fn pacing_begins_when_units_run_low() {
    let mut scene = Scene::new(Strategy::pace());
    scene.exchange(
        0,
        &lines(r#"ratelimit: "sliding";r=8;t=10 | ratelimit-policy: "sliding";q=12;w=86400"#),
    );
    // The first of six, which is half, begins the pace.
    assert_eq!(scene.burst(0).len(), 3);
    assert!(scene.wait(0).until() > at(1));
    assert!(scene.wait(0).until() < at(2));
    // F10, F18: the policy is not needed, and its window is of no interest.
    let mut scene = Scene::new(Strategy::pace());
    scene.exchange(0, &[r#"ratelimit: "a";r=12;t=10"#]);
    assert_eq!(scene.burst(0).len(), 7);
}

/// F17: units that are unknown, or unknown in size, are kept, and hold nothing back while any are left.
#[test]
fn units_of_unknown_size_hold_nothing_back_while_any_are_left() {
    let mut scene = waiting();
    let list = r#"ratelimit: "b";r=1;t=9, "x";r=1;t=9, "c";r=50"#;
    let policies = r#""b";q=9;qu="content-bytes", "x";q=5;qu="tokens", "c";q=5;qu="concurrent-requests""#;
    scene.exchange(0, &[list, &format!("ratelimit-policy: {policies}")]);
    // The unit is known from then on, though the policy is not repeated.
    scene.exchange(1, &[list]);
    let _sent: Vec<_> = (0..10).map(|_| scene.send(1)).collect();
    assert_eq!(scene.left(1), [1, 1, 50]);
    let limits = scene.0.limits(at(1));
    let units: Vec<_> = limits.iter().map(|limit| limit.unit().as_str()).collect();
    assert_eq!(units, ["content-bytes", "tokens", "concurrent-requests"]);
}

/// F7, F17: no bytes are left, so that no request fits.
#[test]
fn used_up_bytes_hold_requests_back_until_the_window_is_over() {
    let policy = r#"ratelimit-policy: "b";q=9;qu="content-bytes";w=60"#;
    let mut scene = waiting();
    scene.exchange(0, &[r#"ratelimit: "b";r=500;t=60"#, policy]);
    let (early, late) = (scene.send(0), scene.send(0));
    scene.answer(1, late, &[r#"ratelimit: "b";r=0;t=59"#, policy]);
    assert_eq!(scene.wait(1).until(), at(60));
    // An answer that was made before may have known less.
    scene.answer(2, early, &[r#"ratelimit: "b";r=200;t=58"#, policy]);
    assert_eq!(scene.wait(2).until(), at(60));
    assert!(scene.wait(2).is_certain());
    // Then one tries.
    let trial = scene.send(60);
    scene.wait(60);
    scene.answer(61, trial, &[r#"ratelimit: "b";r=400;t=60"#]);
    assert_eq!((0..50).map(|_| scene.send(61)).count(), 50);
}

/// F7: of slots, those that this client holds count.
#[test]
fn no_more_requests_are_on_their_way_than_slots_were_left() {
    let policy = r#"ratelimit-policy: "c";q=5;qu="concurrent-requests""#;
    let mut scene = waiting();
    scene.exchange(0, &[r#"ratelimit: "c";r=3"#, policy]);
    let mut sent = scene.burst(0);
    assert_eq!(sent.len(), 3);
    assert!(!scene.wait(0).is_certain(), "each answer may free a slot");
    scene.0.record_loss(sent.pop().unwrap());
    sent.extend(scene.burst(0));
    assert_eq!(sent.len(), 3);

    // Another client has taken the rest.
    scene.answer(1, sent.pop().unwrap(), &[r#"ratelimit: "c";r=0"#]);
    scene.wait(1);
    scene.0.cancel(sent.pop().unwrap());
    scene.wait(1);
    scene.0.record_loss(sent.pop().unwrap());
    // A single one finds out.
    let trial = scene.send(1);
    scene.wait(1);
    scene.answer(2, trial, &[r#"ratelimit: "c";r=0;t=7"#]);
    assert_eq!(scene.wait(2).until(), at(9));
    let _trial = scene.send(9);
    scene.wait(9);
    // The trial request never gets a response, so the limit eventually expires.
    let _sent: Vec<_> = (0..9).map(|_| scene.send(60)).collect();
}

/// X37: a gateway has plenty, and the service behind it, which speaks another dialect, has nothing.
#[test]
fn limits_in_two_dialects_both_hold_requests_back() {
    let mut scene = waiting();
    let numbers = ["ratelimit-limit: 10", "ratelimit-remaining: 0", "ratelimit-reset: 60"];
    scene.exchange(0, &[&[r#"ratelimit: "edge";r=999;t=60"#][..], &numbers].concat());
    assert_eq!(scene.wait(0).until(), at(60));
    assert_eq!(scene.left(0), [999, 0]);
}

/// X29: without the units left there is nothing to obey; without a window, one at a time tries from the start.
#[test]
fn what_is_missing_never_fails() {
    let mut scene = waiting();
    scene.exchange(0, &["ratelimit: quota;t=1", "ratelimit-policy: quota;l=10;w=1"]);
    scene.exchange(0, &["ratelimit-reset: 10"]);
    assert_eq!(scene.0.limits(at(0)), []);
    scene.exchange(0, &[r#"ratelimit: "a";r=0"#]);
    let _trial = scene.send(0);
    scene.wait(0);
}

/// E9, E10
#[test]
fn only_the_partition_of_these_requests_holds_them_back() {
    let both = [r#"ratelimit: "u";r=0;t=9;pk=:YQ==:, "u";r=9;t=9;pk=:Yg==:"#];
    let of = |key: &str| Scene(Pacing::new(Strategy::Greedy, Caps::default()).with_partition_key(key));
    let mut scene = of("a");
    scene.exchange(0, &both);
    assert_eq!(scene.wait(0).until(), at(9));
    let mut scene = of("b");
    scene.exchange(0, &both);
    assert_eq!(scene.burst(0).len(), 9);
    // E11: a limit whose key the server does not show may apply to any caller, including this one.
    for mut scene in [of("c"), waiting()] {
        scene.exchange(0, &both);
        assert_eq!(scene.wait(0).until(), at(9));
    }
}

#[test]
fn the_partition_key_is_not_shown() {
    let pacing = Pacing::new(Strategy::Greedy, Caps::default()).with_partition_key("a secret");
    let secret = format!("{:?}", b"a secret");
    assert!(!format!("{pacing:?}").contains(&secret));
}

/// F7: the server counts each at more than one unit, or another client takes from the same quota.
#[test]
fn units_that_others_take_are_taken_off() {
    let mut scene = waiting();
    scene.exchange(0, &[r#"ratelimit: "a";r=100;t=60"#]);
    scene.exchange(0, &[r#"ratelimit: "a";r=90;t=60"#]);
    assert_eq!(scene.left(0), [90]);
    let (_on_its_way, dispatch) = (scene.send(0), scene.send(0));
    scene.answer(0, dispatch, &[r#"ratelimit: "a";r=50;t=60"#]);
    assert_eq!(scene.left(0), [49]);
}

#[test]
fn what_is_cached_of_a_server_is_bounded() {
    let mut scene = Scene::new(Strategy::Observe);
    for round in 0..10 {
        let items: Vec<_> = (0..200).map(|item| format!(r#""{round}-{item}";r=5;t=600"#)).collect();
        scene.exchange(0, &[&format!("ratelimit: {}", items.join(", "))]);
    }
    assert_eq!(scene.0.limits(at(0)).len(), 32);
    let mut scene = waiting();
    scene.exchange(0, &[&format!(r#"ratelimit: "{}";r=0;t=60"#, "n".repeat(257))]);
    assert_eq!(scene.0.limits(at(0)), []);
}

/// I6: clients whose wait is capped at the same time differ, too.
#[test]
fn jitter_spreads_clients_even_where_their_wait_is_the_longest_one() {
    let caps = Caps::new(seconds(100), 100).unwrap();
    let waits = |percent, lines: &[&str]| {
        let wait = |_| {
            let mut scene = Scene(Pacing::new(Strategy::Greedy, caps).with_jitter(percent));
            scene.exchange(0, lines);
            scene.wait(0).until() - at(0)
        };
        let mut waits: Vec<Duration> = (0..200).map(wait).collect();
        waits.sort_unstable();
        waits
    };
    for lines in [
        &["retry-after: 100"][..],
        &["retry-after: 86400"],
        &[r#"ratelimit: "a";r=0;t=100"#],
    ] {
        for (percent, earliest) in [(10, 90), (25, 80), (100, 50)] {
            let waits = waits(percent, lines);
            assert!(waits[0] >= seconds(earliest), "{lines:?} {waits:?}");
            assert!(waits[199] <= seconds(100), "{lines:?} {waits:?}");
            let width = seconds(100) - seconds(earliest);
            assert!(waits[199] - waits[0] > width / 2, "{lines:?} {waits:?}");
        }
        assert_eq!(waits(0, lines)[0], seconds(100));
    }
    // Jitter only lengthens a shorter wait, up to the cap.
    for (percent, wait, latest) in [(10, 80, 88), (100, 90, 100)] {
        let waits = waits(percent, &[&format!("retry-after: {wait}")]);
        assert!(waits[0] >= seconds(wait) && waits[199] <= seconds(latest), "{waits:?}");
        assert!(waits[199] - waits[0] > seconds(latest - wait) / 2, "{waits:?}");
    }
}

/// F4: a trial request that was not sent has used nothing, so nothing is refunded.
#[test]
fn however_many_that_try_are_not_sent_only_one_tries_at_a_time() {
    let mut scene = Scene::new(Strategy::Greedy);
    scene.exchange(0, &[r#"ratelimit: "a";r=0;t=10"#]);
    for _ in 0..3 {
        let trial = scene.send(10);
        scene.0.cancel(trial);
        assert_eq!(scene.left(10), [0]);
    }
    assert_eq!(scene.burst(10).len(), 1);
}

/// Events before the server reported the remaining units do not count.
#[test]
fn a_unit_comes_back_although_others_tried_in_vain_before_there_was_one() {
    let mut scene = Scene::new(Strategy::Greedy);
    scene.exchange(0, &[r#"ratelimit: "a";r=0;t=10"#]);
    let trial = scene.send(10);
    scene.0.record_loss(trial);
    scene.exchange(10, &[r#"ratelimit: "a";r=2;t=10"#]);
    let unsent = scene.send(10);
    assert_eq!(scene.left(10), [1]);
    scene.0.cancel(unsent);
    assert_eq!(scene.left(10), [2]);
}

/// A bug in a program, which may cause wrong numbers but must not cause a panic.
#[test]
fn a_dispatch_that_another_pacing_has_given_is_no_reason_to_panic() {
    let (mut scene, mut other) = (Scene::new(Strategy::Greedy), Scene::new(Strategy::Greedy));
    let dispatches = [other.send(0), other.send(0), other.send(0)];
    for (dispatch, report) in dispatches.into_iter().zip(0..) {
        match report {
            0 => scene.answer(0, dispatch, &[r#"ratelimit: "a";r=3;t=10"#]),
            1 => scene.0.cancel(dispatch),
            _ => scene.0.record_loss(dispatch),
        }
        assert_eq!(scene.0.in_flight(), 0);
    }
    let _own = scene.send(0);
    assert_eq!(scene.0.in_flight(), 1);
}
