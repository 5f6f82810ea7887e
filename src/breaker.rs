use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    clock::{Clock, Timestamp},
    error::{StoreError, StoreErrorKind},
    sync::{mutex::Mutex, random},
};

static FAILOVERS: AtomicU32 = AtomicU32::new(0);

/// Open circuits then admit a probe call at once.
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "reported by sentinels"))]
pub(crate) fn failed_over() {
    FAILOVERS.fetch_add(1, Ordering::Relaxed);
}

pub(crate) trait CircuitTelemetry: fmt::Debug + Send + Sync {
    fn opened(&self, error: &StoreError);

    fn closed(&self, rejected: u64);
}

/// A broken connection fails all calls in flight, but counts once. A missed deadline does not count if the store
/// completed another call meanwhile: then this process was probably slow.
#[derive(Debug, Clone)]
pub(crate) struct Breaker(Arc<Circuit>);

#[derive(Debug)]
struct Circuit {
    is_open: AtomicBool,
    failures: AtomicU32,
    losses: AtomicU32,
    /// Only the first few successes during a call are counted, so that not every call writes to memory that all others
    /// read.
    answers: AtomicU32,
    openings: AtomicU32,
    rejected: AtomicU64,
    trial: Mutex<Trial>,
    failovers: &'static AtomicU32,
    clock: Clock,
    log: Arc<dyn CircuitTelemetry>,
}

/// The state of a limiter's circuit breaker, returned by [`Limiter::circuit`](crate::Limiter::circuit).
///
/// ```
/// use tower_quota::CircuitState;
///
/// fn status(circuit: Option<CircuitState>) -> String {
///     match circuit {
///         Some(CircuitState::Open { error, .. }) => format!("limits are not enforced: {error}"),
///         Some(_) => "the store is called".to_owned(),
///         None => "each server has its own circuit".to_owned(),
///     }
/// }
/// assert_eq!(status(Some(CircuitState::Closed)), "the store is called");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CircuitState {
    /// The store is called for every decision.
    Closed,
    /// The store has failed and is not called, except for one probe call at a time.
    Open {
        /// When the circuit opened, by the limiter's [clock](crate::LimiterBuilder::clock).
        since: Timestamp,
        /// The error of the last failed call.
        error: StoreError,
    },
}

#[derive(Debug, Default)]
struct Trial {
    opened: Option<(Timestamp, StoreError)>,
    at: Timestamp,
    pause: Duration,
    is_running: bool,
    ends: Timestamp,
    failovers: u32,
}

#[derive(Debug)]
pub(crate) enum Admission {
    Closed(Known),
    HalfOpen(TrialGuard),
    Rejected,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    losses: u32,
    answers: u32,
    openings: u32,
}

impl Breaker {
    const FAILURES: u32 = 5;
    const ANSWERS: u32 = 8;
    const FIRST_PAUSE: Duration = Duration::from_millis(100);
    const LONGEST_PAUSE: Duration = Duration::from_millis(500);
    const LONGEST_TRIAL: Duration = Duration::from_secs(1);

    pub(crate) fn new(clock: Clock, log: Arc<dyn CircuitTelemetry>) -> Self {
        Self::of(&FAILOVERS, clock, log)
    }

    fn of(failovers: &'static AtomicU32, clock: Clock, log: Arc<dyn CircuitTelemetry>) -> Self {
        Self(Arc::new(Circuit {
            is_open: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            losses: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            openings: AtomicU32::new(0),
            rejected: AtomicU64::new(0),
            trial: Mutex::default(),
            failovers,
            clock,
            log,
        }))
    }

    #[inline]
    pub(crate) fn admit(&self) -> Admission {
        match self.0.is_open.load(Ordering::Acquire) {
            false => self.0.closed(),
            true => self.probe(),
        }
    }

    fn probe(&self) -> Admission {
        let circuit = &self.0;
        let mut trial = circuit.trial.lock();
        // Another call may have closed the circuit.
        if !circuit.is_open.load(Ordering::Acquire) {
            return circuit.closed();
        }
        let (now, failovers) = (circuit.clock.now(), circuit.failovers.load(Ordering::Relaxed));
        let is_too_early = now < if trial.is_running { trial.ends } else { trial.at };
        if is_too_early && failovers == trial.failovers {
            circuit.rejected.fetch_add(1, Ordering::Relaxed);
            return Admission::Rejected;
        }
        trial.is_running = true;
        trial.ends = now.saturating_add(Self::LONGEST_TRIAL);
        trial.failovers = failovers;
        Admission::HalfOpen(TrialGuard(Arc::clone(circuit)))
    }

    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "used by the breakers of Redis cluster nodes")
    )]
    pub(crate) fn is_closed(&self) -> bool {
        !self.0.is_open.load(Ordering::Acquire)
    }

    pub(crate) fn state(&self) -> CircuitState {
        match self.0.trial.lock().opened.clone() {
            Some((since, error)) => CircuitState::Open { since, error },
            None => CircuitState::Closed,
        }
    }

    pub(crate) fn record(&self, admission: Admission, error: Option<&StoreError>) {
        // The store was not called, so a probe call has no result.
        if error.is_some_and(|error| error.kind() == StoreErrorKind::Overloaded) {
            return;
        }
        let failure = error.filter(|error| error.opens_circuit());
        match (admission, failure) {
            (Admission::Closed(known), None) => self.0.succeeded(known),
            (Admission::Closed(known), Some(error)) => {
                // An older call says nothing about the present state of the store.
                let is_of_now = known.openings == self.0.openings.load(Ordering::Relaxed);
                if is_of_now && self.0.is_news(known, error) {
                    self.0.failed(error);
                }
            }
            (Admission::HalfOpen(trial), None) => trial.0.close(),
            (Admission::HalfOpen(trial), Some(error)) => trial.0.stay_open(error),
            (Admission::Rejected, _) => {}
        }
    }

    /// An immediate success does not show that slow calls would succeed, and all threads would write to `answers`.
    #[inline]
    pub(crate) fn record_at_once(&self, admission: Admission, error: Option<&StoreError>) {
        match (&admission, error) {
            (Admission::Closed(_), None) => self.0.end_row(),
            _ => self.record(admission, error),
        }
    }
}

impl Circuit {
    #[inline]
    fn closed(&self) -> Admission {
        Admission::Closed(Known {
            losses: self.losses.load(Ordering::Relaxed),
            answers: self.answers.load(Ordering::Relaxed),
            openings: self.openings.load(Ordering::Relaxed),
        })
    }

    fn is_news(&self, known: Known, error: &StoreError) -> bool {
        match error.kind() {
            // The first call represents all calls in flight at the time.
            StoreErrorKind::Unreachable => is_first(&self.losses, known.losses),
            StoreErrorKind::TimedOut => self.answers.load(Ordering::Relaxed) == known.answers,
            _ => true,
        }
    }

    fn succeeded(&self, known: Known) {
        let answers = self.answers.load(Ordering::Relaxed);
        if answers.wrapping_sub(known.answers) < Breaker::ANSWERS {
            is_first(&self.answers, answers);
        }
        self.end_row();
    }

    #[inline]
    fn end_row(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    // ## Closed => (Closed | Open)
    fn failed(&self, error: &StoreError) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 < Breaker::FAILURES {
            return;
        }
        let mut trial = self.trial.lock();
        if !self.is_open.load(Ordering::Acquire) {
            trial.pause = Breaker::FIRST_PAUSE;
            let now = self.clock.now();
            trial.at = now.saturating_add(jittered(trial.pause));
            trial.opened = Some((now, error.clone()));
            trial.failovers = self.failovers.load(Ordering::Relaxed);
            self.openings.fetch_add(1, Ordering::Relaxed);
            self.is_open.store(true, Ordering::Release);
            self.log.opened(error);
        }
    }

    // ## Half-open => Closed
    fn close(&self) {
        let mut trial = self.trial.lock();
        trial.is_running = false;
        trial.opened = None;
        self.failures.store(0, Ordering::Relaxed);
        // Another probe may have closed the circuit.
        if self.is_open.swap(false, Ordering::AcqRel) {
            self.log.closed(self.rejected.swap(0, Ordering::Relaxed));
        }
    }

    // ## Half-open => Open
    fn stay_open(&self, error: &StoreError) {
        let mut trial = self.trial.lock();
        trial.is_running = false;
        if let Some((_, last)) = &mut trial.opened {
            last.clone_from(error);
        }
        trial.pause = (trial.pause * 2).min(Breaker::LONGEST_PAUSE);
        trial.at = self.clock.now().saturating_add(jittered(trial.pause));
    }

    // ## Half-open => Open
    fn cancel_trial(&self) {
        let mut trial = self.trial.lock();
        if trial.is_running {
            trial.is_running = false;
            trial.at = self.clock.now().saturating_add(jittered(Breaker::FIRST_PAUSE));
        }
    }
}

fn is_first(count: &AtomicU32, known: u32) -> bool {
    let next = known.wrapping_add(1);
    count
        .compare_exchange(known, next, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

#[derive(Debug)]
pub(crate) struct TrialGuard(Arc<Circuit>);

impl Drop for TrialGuard {
    fn drop(&mut self) {
        self.0.cancel_trial();
    }
}

/// So that instances do not retry in lockstep.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause / 2 + (pause / 2).mul_f64(f64::from(random::number()) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Silent;

    impl CircuitTelemetry for Silent {
        fn opened(&self, _: &StoreError) {}

        fn closed(&self, _: u64) {}
    }

    fn failure() -> StoreError {
        StoreError::new(StoreErrorKind::TimedOut, "test")
    }

    fn manual() -> (Clock, Breaker) {
        let clock = Clock::manual(Timestamp::from_micros(0));
        (clock.clone(), Breaker::new(clock, Arc::new(Silent)))
    }

    fn opened() -> (Clock, Breaker) {
        let (clock, breaker) = manual();
        for _ in 0..Breaker::FAILURES {
            breaker.record(breaker.admit(), Some(&failure()));
        }
        (clock, breaker)
    }

    #[test]
    fn the_state_says_since_when_it_is_open_and_the_last_error() {
        let (clock, breaker) = opened();
        clock.advance(Duration::from_secs(60));
        let trial = breaker.admit();
        breaker.record(trial, Some(&StoreError::new(StoreErrorKind::Unreachable, "no route")));
        let CircuitState::Open { since, error } = breaker.state() else {
            panic!("it has failed five times");
        };
        assert_eq!(
            (since, &*error.to_string()),
            (Timestamp::from_micros(0), "store unreachable: no route")
        );

        clock.advance(Duration::from_secs(60));
        breaker.record(breaker.admit(), None);
        assert!(matches!(breaker.state(), CircuitState::Closed));
    }

    #[test]
    fn it_stays_closed_while_failures_are_not_in_a_row() {
        let (_, breaker) = manual();
        for _ in 0..10 {
            for _ in 1..Breaker::FAILURES {
                breaker.record(breaker.admit(), Some(&failure()));
            }
            breaker.record(breaker.admit(), None);
        }
        assert!(matches!(breaker.admit(), Admission::Closed { .. }));
    }

    #[test]
    fn failures_in_a_row_open_it_and_script_errors_never_do() {
        let (_, breaker) = opened();
        assert!(matches!(breaker.admit(), Admission::Rejected));

        let (_, breaker) = manual();
        for _ in 0..100 {
            breaker.record(breaker.admit(), Some(&StoreError::new(StoreErrorKind::Failed, "test")));
        }
        assert!(matches!(breaker.admit(), Admission::Closed { .. }));
    }

    fn unreachable() -> StoreError {
        StoreError::new(StoreErrorKind::Unreachable, "test")
    }

    #[test]
    fn what_was_under_way_when_a_connection_broke_fails_once() {
        let (_, breaker) = manual();
        for _ in 1..Breaker::FAILURES {
            let under_way: Vec<_> = (0..100).map(|_| breaker.admit()).collect();
            for admission in under_way {
                breaker.record(admission, Some(&unreachable()));
            }
            assert!(matches!(breaker.admit(), Admission::Closed { .. }));
        }
        breaker.record(breaker.admit(), Some(&unreachable()));
        assert!(matches!(breaker.admit(), Admission::Rejected));
    }

    #[test]
    fn a_missed_deadline_says_nothing_against_a_store_that_has_answered_others_meanwhile() {
        let (_, breaker) = manual();
        for _ in 0..3 {
            let late: Vec<_> = (0..100).map(|_| breaker.admit()).collect();
            breaker.record(breaker.admit(), None);
            for admission in late {
                breaker.record(admission, Some(&failure()));
            }
            assert!(matches!(breaker.admit(), Admission::Closed { .. }));
        }
        // A call that started after the last response counts.
        let late: Vec<_> = (0..Breaker::FAILURES).map(|_| breaker.admit()).collect();
        for admission in late {
            breaker.record(admission, Some(&failure()));
        }
        assert!(matches!(breaker.admit(), Admission::Rejected));
    }

    #[test]
    fn an_answer_counts_also_if_its_call_began_before_the_one_that_is_late() {
        let (_, breaker) = manual();
        let (first, second) = (breaker.admit(), breaker.admit());
        breaker.record(first, None);
        let late: Vec<_> = (0..100).map(|_| breaker.admit()).collect();
        breaker.record(second, None);
        for admission in late {
            breaker.record(admission, Some(&failure()));
        }
        assert!(matches!(breaker.admit(), Admission::Closed { .. }));
    }

    #[test]
    fn what_the_store_was_not_asked_for_neither_opens_nor_closes_it_nor_begins_the_count_again() {
        let overloaded = StoreError::new(StoreErrorKind::Overloaded, "test");
        let (_, breaker) = manual();
        for _ in 0..Breaker::FAILURES {
            assert!(matches!(breaker.admit(), Admission::Closed { .. }));
            breaker.record(breaker.admit(), Some(&overloaded));
            breaker.record(breaker.admit(), Some(&failure()));
        }
        assert!(matches!(breaker.admit(), Admission::Rejected));

        let (clock, breaker) = opened();
        clock.advance(Breaker::FIRST_PAUSE);
        breaker.record(breaker.admit(), Some(&overloaded));
        assert!(matches!(breaker.admit(), Admission::Rejected));
        clock.advance(Breaker::FIRST_PAUSE);
        assert!(matches!(breaker.admit(), Admission::HalfOpen(_)));
    }

    #[test]
    fn calls_under_way_together_that_get_no_answer_open_it_at_once() {
        let (_, breaker) = manual();
        let under_way: Vec<_> = (0..Breaker::FAILURES).map(|_| breaker.admit()).collect();
        for admission in under_way {
            breaker.record(admission, Some(&failure()));
        }
        assert!(matches!(breaker.admit(), Admission::Rejected));
    }

    #[test]
    fn what_was_under_way_when_the_circuit_opened_does_not_open_it_again() {
        let (clock, breaker) = manual();
        let mut under_way: Vec<_> = (0..3 * Breaker::FAILURES).map(|_| breaker.admit()).collect();
        for admission in under_way.drain(..Breaker::FAILURES as usize) {
            breaker.record(admission, Some(&failure()));
        }
        clock.advance(Breaker::FIRST_PAUSE);
        breaker.record(breaker.admit(), None);
        for admission in under_way {
            breaker.record(admission, Some(&failure()));
        }
        assert!(matches!(breaker.admit(), Admission::Closed { .. }));
        for _ in 0..Breaker::FAILURES {
            breaker.record(breaker.admit(), Some(&failure()));
        }
        assert!(matches!(breaker.admit(), Admission::Rejected));
    }

    #[test]
    fn after_the_pause_one_call_tries_and_the_others_do_not_wait_for_it() {
        let (clock, breaker) = opened();
        clock.advance(Breaker::FIRST_PAUSE);
        let trial = breaker.admit();
        assert!(matches!(trial, Admission::HalfOpen(_)));
        assert!(matches!(breaker.admit(), Admission::Rejected));
        breaker.record(trial, None);
        assert!(matches!(breaker.admit(), Admission::Closed { .. }));
    }

    #[test]
    fn a_failover_lets_one_call_try_at_once_although_another_one_may_hang() {
        let failovers: &'static AtomicU32 = Box::leak(Box::default());
        let breaker = Breaker::of(failovers, Clock::manual(Timestamp::from_micros(0)), Arc::new(Silent));
        failovers.fetch_add(1, Ordering::Relaxed);
        for _ in 0..Breaker::FAILURES {
            breaker.record(breaker.admit(), Some(&failure()));
        }
        for _ in 0..2 {
            assert!(matches!(breaker.admit(), Admission::Rejected));
            failovers.fetch_add(1, Ordering::Relaxed);
            let Admission::HalfOpen(trial) = breaker.admit() else {
                panic!("there was a failover");
            };
            std::mem::forget(trial);
        }
        assert!(matches!(breaker.admit(), Admission::Rejected));
    }

    #[test]
    fn failures_from_before_a_try_that_succeeded_are_forgotten() {
        let (clock, breaker) = opened();
        clock.advance(Breaker::FIRST_PAUSE);
        breaker.record(breaker.admit(), None);
        for _ in 1..Breaker::FAILURES {
            breaker.record(breaker.admit(), Some(&failure()));
            assert!(matches!(breaker.admit(), Admission::Closed { .. }));
        }
    }

    #[test]
    fn a_failed_try_doubles_the_pause_up_to_its_bound() {
        let (clock, breaker) = opened();
        let mut pause = Breaker::FIRST_PAUSE;
        for _ in 0..6 {
            clock.advance(pause);
            breaker.record(breaker.admit(), Some(&failure()));
            pause = (pause * 2).min(Breaker::LONGEST_PAUSE);
            clock.advance(pause / 2 - Duration::from_micros(1));
            assert!(matches!(breaker.admit(), Admission::Rejected), "{pause:?}");
        }
        assert_eq!(pause, Breaker::LONGEST_PAUSE);
    }

    #[test]
    fn a_cancelled_try_leaves_the_circuit_open_and_lets_another_call_try_soon() {
        let (clock, breaker) = opened();
        for _ in 0..5 {
            clock.advance(Breaker::LONGEST_PAUSE);
            breaker.record(breaker.admit(), Some(&failure()));
        }
        clock.advance(Breaker::LONGEST_PAUSE);
        for _ in 0..5 {
            drop(breaker.admit());
            assert!(matches!(breaker.admit(), Admission::Rejected));
            clock.advance(Breaker::FIRST_PAUSE);
            assert!(matches!(breaker.admit(), Admission::HalfOpen(_)));
            clock.advance(Breaker::FIRST_PAUSE);
        }
        breaker.record(breaker.admit(), Some(&failure()));
        clock.advance(Breaker::LONGEST_PAUSE / 2 - Duration::from_micros(1));
        assert!(matches!(breaker.admit(), Admission::Rejected));
    }

    #[test]
    fn a_clock_that_jumps_back_does_not_panic() {
        let (clock, breaker) = opened();
        clock.set(Timestamp::from_micros(0));
        assert!(matches!(breaker.admit(), Admission::Rejected));
    }

    #[test]
    fn a_jittered_pause_lies_between_half_of_it_and_all_of_it() {
        for _ in 0..1_000 {
            let pause = jittered(Breaker::FIRST_PAUSE);
            assert!((Breaker::FIRST_PAUSE / 2..=Breaker::FIRST_PAUSE).contains(&pause));
        }
    }
}
