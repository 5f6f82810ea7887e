//! Properties for any server and any order of events.

use std::time::Instant;

use proptest::{collection::vec, prelude::*, test_runner::FileFailurePersistence};
use tower_ratelimit_client::{Acquire, Pacing, SendPermit, Strategy as Pace};

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Ask,
    Answer(usize, Answer),
    Lose(usize),
    TakeBack(usize),
    PassMillis(u64),
}

/// The names, units and seconds of limits, the seconds to wait, and whether it is a rejection.
type Answer = (Vec<(u8, u64, u64)>, Option<u64>, bool);

fn step() -> impl Strategy<Value = Step> {
    let limit = (0..3_u8, 0..12_u64, 0..20_u64);
    let retry_after = proptest::option::weighted(0.1, 0..30_u64);
    let answer = (vec(limit, 0..4), retry_after, proptest::bool::weighted(0.2));
    prop_oneof![
        8 => Just(Step::Ask),
        5 => (any::<usize>(), answer).prop_map(|(which, answer)| Step::Answer(which, answer)),
        1 => any::<usize>().prop_map(Step::Lose),
        1 => any::<usize>().prop_map(Step::TakeBack),
        3 => (0..4_000_u64).prop_map(Step::PassMillis),
    ]
}

/// The allowance of a response: a number of requests until a time, or until a newer response.
#[derive(Debug)]
struct Promise {
    name: u8,
    heard_at: u64,
    until: Instant,
    left: u64,
}

/// An arbitrary server, and what the client owes to it.
struct Scene {
    pacing: Pacing,
    now: Instant,
    in_flight: Vec<(u64, SendPermit)>,
    sent: u64,
    promises: Vec<Promise>,
    blocked_until: Instant,
}

impl Scene {
    fn new(pace: Pace) -> Self {
        Self {
            pacing: Pacing::new(pace, Caps::default()),
            now: at(0),
            in_flight: Vec::new(),
            sent: 0,
            promises: Vec::new(),
            blocked_until: at(0),
        }
    }

    fn take(&mut self, which: usize) -> Option<(u64, SendPermit)> {
        let count = self.in_flight.len();
        (count > 0).then(|| self.in_flight.swap_remove(which % count))
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask => self.ask(),
            Step::PassMillis(millis) => self.now += Duration::from_millis(millis),
            Step::Lose(which) => {
                if let Some((_, dispatch)) = self.take(which) {
                    self.pacing.record_loss(dispatch);
                }
            }
            Step::TakeBack(which) => {
                if let Some((number, dispatch)) = self.take(which) {
                    self.pacing.cancel(dispatch);
                    let before = self.promises.iter_mut().filter(|promise| promise.heard_at < number);
                    before.for_each(|promise| promise.left += 1);
                }
            }
            Step::Answer(which, answer) => {
                if let Some((number, dispatch)) = self.take(which) {
                    self.answer(number, dispatch, answer);
                }
            }
        }
    }

    fn ask(&mut self) {
        let Acquire::Ready(dispatch) = self.pacing.try_acquire(self.now) else {
            return;
        };
        // F8: nothing is sent before `Retry-After`, or within a second of a rejection.
        assert!(self.now >= self.blocked_until);
        self.sent += 1;
        self.in_flight.push((self.sent, dispatch));
        for promise in self.promises.iter_mut().filter(|promise| promise.until > self.now) {
            assert!(promise.left > 0, "F7, F15: one too many for {promise:?}");
            promise.left -= 1;
        }
    }

    fn answer(&mut self, number: u64, dispatch: SendPermit, (limits, retry_after, is_rejection): Answer) {
        // Each limit has a line of its own. Any status but 429 makes `Retry-After` apply.
        let lines = limits
            .iter()
            .map(|(name, r, t)| format!(r#"ratelimit: "{name}";r={r};t={t}"#));
        let lines: Vec<_> = lines
            .chain(retry_after.map(|wait| format!("retry-after: {wait}")))
            .collect();
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let advice = advice_of(if is_rejection { 429 } else { 500 }, &lines);
        self.pacing.record_response(dispatch, &advice, self.now);

        let (heard_at, now) = (self.sent, self.now);
        for (name, left, t) in limits {
            // The answer to a request that was sent later takes the place of what was heard before.
            self.promises
                .retain(|promise| promise.name != name || promise.heard_at >= number);
            let until = now + seconds(t);
            self.promises.push(Promise {
                name,
                heard_at,
                until,
                left,
            });
        }
        if is_rejection {
            self.blocked_until = self.blocked_until.max(self.now + seconds(1));
        }
        if let Some(wait) = retry_after.filter(|wait| *wait > 0) {
            self.blocked_until = self.blocked_until.max(self.now + seconds(wait));
            for promise in &mut self.promises {
                promise.until = promise.until.min(self.blocked_until);
            }
        }
    }
}

fn pace() -> impl Strategy<Value = Pace> {
    prop_oneof![
        Just(Pace::Greedy),
        (1..=100_u8).prop_map(|below_percent| Pace::Pace { below_percent })
    ]
}

/// A server that reports its limit correctly: a fixed window.
struct FixedWindow {
    quota: u64,
    seconds: u64,
    used: u64,
    ends: Instant,
}

impl FixedWindow {
    /// Returns `true` if a request passes, then the units that are left, and for how many seconds.
    fn decide(&mut self, now: Instant) -> (bool, u64, u64) {
        if now >= self.ends {
            (self.used, self.ends) = (0, now + seconds(self.seconds));
        }
        let passes = self.used < self.quota;
        self.used += u64::from(passes);
        let reset = (self.ends - now).as_millis().div_ceil(1_000);
        (passes, self.quota - self.used, u64::try_from(reset).unwrap())
    }
}

/// A request in flight.
struct Call {
    number: u64,
    /// In milliseconds.
    decided_at: u64,
    answered_at: u64,
    answer: Option<(bool, u64, u64)>,
    dispatch: SendPermit,
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// F7, F8, F15: with arbitrary responses in arbitrary order.
    #[test]
    fn never_more_than_what_is_left_is_sent_within_a_window(pace in pace(), steps in vec(step(), 1..200)) {
        let mut scene = Scene::new(pace);
        for step in steps {
            scene.step(step);
        }
    }

    /// F13, I7
    #[test]
    fn no_wait_is_ever_longer_than_the_cap(pace in pace(), cap in 1..700_u64, steps in vec((0..u64::MAX, 0..u64::MAX, any::<bool>()), 1..20)) {
        let caps = Caps::new(seconds(cap), 10).unwrap();
        let mut pacing = Pacing::new(pace, caps).with_jitter(100);
        let mut now = at(0);
        for (r, t, rejected) in steps {
            let fields = match rejected {
                true => headers(&[&format!("retry-after: {t}")]),
                false => headers(&[&format!(r#"ratelimit: "a";r={};t={}"#, r % 3, t >> 15)]),
            };
            let dispatch = loop {
                match pacing.try_acquire(now) {
                    Acquire::Ready(dispatch) => break dispatch,
                    Acquire::Wait(wait) => {
                        prop_assert!(wait.until() > now);
                        prop_assert!(wait.until() <= now + seconds(cap));
                        now = wait.until();
                    }
                }
            };
            let exchange = exchange(0, 0);
            let advice = Advice::read(StatusCode::TOO_MANY_REQUESTS, &fields, exchange, &caps);
            pacing.record_response(dispatch, &advice, now);
        }
    }

    /// After the nth rejection in a row, and whatever the server sends, nothing is sent for a second. Without a wait,
    /// nothing is sent for 2ⁿ⁻¹ seconds, and never is a wait longer than the cap.
    #[test]
    fn no_rejection_is_followed_by_a_request_within_a_second(
        cap in 1..700_u64,
        percent in 0..=100_u8,
        answers in proptest::collection::vec(proptest::sample::select(vec![
            "", "retry-after: 0", "retry-after: 3", "retry-after: 0.7", r#"ratelimit: "a";r=0;t=0"#, r#"ratelimit: "a";r=0;t=2"#,
            "ratelimit-reset: 1700000000", "ratelimit-reset: 5",
        ]), 1..16),
    ) {
        let caps = Caps::new(seconds(cap), 10).unwrap();
        let mut pacing = Pacing::new(Pace::Greedy, caps).with_jitter(percent);
        let mut now = at(0);
        for (count, line) in answers.into_iter().enumerate() {
            let Acquire::Ready(permit) = pacing.try_acquire(now) else { panic!("it has waited") };
            let lines: Vec<&str> = [line].into_iter().filter(|line| !line.is_empty()).collect();
            let advice = Advice::read(StatusCode::TOO_MANY_REQUESTS, &headers(&lines), exchange(0, 0), &caps);
            pacing.record_response(permit, &advice, now);
            let Acquire::Wait(wait) = pacing.try_acquire(now) else { panic!("a rejection is waited for") };
            let shortest = match line {
                "" | "retry-after: 0" => 1 << count,
                _ => 1,
            };
            // Jitter shortens only the longest wait.
            let longest = seconds(cap).mul_f64(1.0 / (1.0 + f64::from(percent) / 100.0));
            prop_assert!(wait.until() - now >= seconds(shortest).min(longest).max(seconds(1)));
            prop_assert!(wait.until() - now <= seconds(cap));
            now = wait.until();
        }
    }

    /// A client that is alone with a truthful server is never rejected after the first response, even if requests and
    /// responses take different times.
    #[test]
    fn a_truthful_server_never_rejects(
        quota in 1..20_u64,
        window in 1..5_u64,
        tasks in 1..8_usize,
        delays in vec((0..700_u64, 0..700_u64), 100),
    ) {
        let mut server = FixedWindow { quota, seconds: window, used: 0, ends: at(0) };
        let mut pacing = Pacing::new(Pace::Greedy, Caps::default());
        let mut delays = delays.into_iter().cycle();
        let mut calls: Vec<Call> = Vec::new();
        let (mut sent, mut sent_blindly, mut answered) = (0, 0, 0);
        for millis in 0..20_000 {
            let now = at(0) + Duration::from_millis(millis);
            for call in calls.iter_mut().filter(|call| call.decided_at == millis) {
                call.answer = Some(server.decide(now));
            }
            let (there, on_the_way) = calls.into_iter().partition(|call| call.answered_at == millis);
            calls = on_the_way;
            let there: Vec<Call> = there;
            for call in there {
                let (passed, left, reset) = call.answer.unwrap();
                prop_assert!(passed || call.number <= sent_blindly, "request {} is rejected", call.number);
                let field = format!(r#"ratelimit: "a";r={left};t={reset}"#);
                pacing.record_response(call.dispatch, &advice_of(if passed { 200 } else { 429 }, &[&field]), now);
                answered += 1;
            }
            while calls.len() < tasks {
                let Acquire::Ready(dispatch) = pacing.try_acquire(now) else { break };
                let (there, back) = delays.next().unwrap();
                sent += 1;
                let decided_at = millis + 1 + there;
                calls.push(Call { number: sent, decided_at, answered_at: decided_at + 1 + back, answer: None, dispatch });
            }
            if answered == 0 {
                sent_blindly = sent;
            }
        }
        // Each window has at least one request that tries, and three exchanges of at most 1.4 seconds.
        prop_assert!(answered >= 20 / (window + 5), "it goes on: {answered}");
    }

    /// I7: with arbitrary fields.
    #[test]
    fn no_header_makes_it_panic(
        status in 100..600_u16,
        fields in vec(("(ratelimit|ratelimit-policy|ratelimit-remaining|ratelimit-reset|retry-after|age|date|grpc-status)", "[ -~]{0,40}"), 0..8),
        received in 0..=i64::MAX as u64,
        elapsed in any::<u64>(),
        trusts in any::<bool>(),
    ) {
        let mut map = HeaderMap::new();
        for (name, value) in &fields {
            map.append(HeaderName::try_from(name.as_str()).unwrap(), value.parse().unwrap());
        }
        let caps = Caps::default().trust_dates(trusts);
        let exchange = Exchange { received: UNIX_EPOCH + seconds(received), elapsed: seconds(elapsed) };
        let advice = Advice::read(StatusCode::from_u16(status).unwrap(), &map, exchange, &caps);
        prop_assert!(advice.retry_after() <= Some(caps.max_wait()));
        let mut pacing = Pacing::new(Pace::pace(), caps).with_jitter(100);
        let now = at(0);
        let Acquire::Ready(dispatch) = pacing.try_acquire(now) else { panic!("nothing is known") };
        pacing.record_response(dispatch, &advice, now);
        let _ = pacing.try_acquire(now);
    }
}
