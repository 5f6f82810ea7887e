//! The actions and assertions of every scenario.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_quota::StoreErrorKind;

use super::{
    callers::SLOTS,
    fault::{Effect, Fault, STEADY},
    harness::{Resources, Scene},
    load::Load,
    machine::Stopwatch,
    record::{Counts, Totals},
};

/// One fault under load.
pub async fn run(fault: Fault) {
    let scene = Scene::start().await;
    if !is_known(&scene, fault) {
        return;
    }
    let before = scene.resources().await;
    let load = Load::start(&scene.clients);
    sleep(Duration::from_millis(200)).await;
    let _ = suffer(&scene, fault).await;
    load.stop().await;
    rest(&scene, before).await;
}

/// Returns `false` for faults that an old server does not support: Redis has users since version 6, and the rest since
/// 6.2.
fn is_known(scene: &Scene, fault: Fault) -> bool {
    match fault {
        Fault::WrongPassword | Fault::NoPermission => scene.has_users,
        Fault::ClientPauseWrite => scene.server(|server| server.command(&["CLIENT", "PAUSE", "1", "WRITE"]) == "OK"),
        Fault::Loading => !scene
            .command("CONFIG GET loading-process-events-interval-bytes")
            .is_empty(),
        _ => true,
    }
}

/// The time after a fault within which limits hold again.
pub const RECOVERY: Duration = Duration::from_secs(2);

/// The time after which a request has its answer, on a machine with more to do.
const LATEST: Duration = Duration::from_secs(1);

/// A busy machine may bunch this many times as many attempts to connect within a second. One attempt for each request
/// would be more.
const BUNCHED: usize = 5;

/// The effects of a fault.
#[derive(Debug)]
pub struct Suffered {
    fault: Fault,
    pub during: Totals,
    pub held_after: Duration,
    /// The most attempts of one instance to connect within a second, in all and from the second one on.
    attempts: usize,
    later_attempts: usize,
}

impl Suffered {
    /// Returns the bounds that were missed and that only an idle machine can meet. `make outages` and the soak
    /// use them.
    pub fn missed_bounds(&self) -> Vec<String> {
        let (counts, waited) = (self.during.counts, self.during.longest_wait);
        let effect = self.fault.effect();
        let opens = effect == Effect::CircuitOpens;
        let stays_closed = effect == Effect::StaysClosed;
        let bounds = [
            (
                self.held_after > RECOVERY,
                format!("limits hold after {:?}", self.held_after),
            ),
            // The process makes itself late where its circuits stay closed.
            (
                waited >= LATEST && !stays_closed,
                format!("a request waited {waited:?}"),
            ),
            (
                self.attempts > self.fault.most_attempts_in_a_second(),
                format!("{} attempts to connect in a second", self.attempts),
            ),
            (
                opens && self.later_attempts > STEADY,
                format!("{} attempts to connect in a later second", self.later_attempts),
            ),
            (
                opens && counts.unasked <= counts.undecided,
                format!("{} not asked, {} undecided", counts.unasked, counts.undecided),
            ),
            (
                stays_closed && counts.unasked > 0,
                format!("{} not asked", counts.unasked),
            ),
        ];
        let missed = bounds.into_iter().filter(|(is_missed, _)| *is_missed);
        missed.map(|(_, what)| what).collect()
    }
}

/// One fault, until limits hold again.
pub async fn suffer(scene: &Scene, fault: Fault) -> Suffered {
    // A late server may have opened a circuit already.
    scene.until_decided().await;
    let began = Instant::now();
    scene.record.take_totals();
    scene.record.fault_begins();
    fault.happen(scene).await;
    scene.record.fault_ends();
    let (ended, healed) = (Instant::now(), Stopwatch::start());
    scene.until_limits_hold().await;
    let held_after = healed.elapsed();
    let during = scene.record.take_totals();
    let attempts = scene.most_attempts_in_a_second(began..Instant::now());
    let later_attempts = scene.most_attempts_in_a_second(began + Duration::from_secs(1)..ended);
    // Shown when an assertion fails.
    eprintln!(
        "{fault:?}: {during:?}, {attempts} attempts in a second, {later_attempts} later, limits hold after {held_after:?}"
    );
    assert_effect(fault.effect(), &during);
    let most = BUNCHED * fault.most_attempts_in_a_second();
    assert!(attempts <= most, "{attempts} attempts");
    assert!(
        fault.effect() != Effect::LosesWhatWasUnderWay || attempts > 0,
        "no connection was lost"
    );
    let most = SLOTS * (1 + fault.losses());
    assert!(during.most_inside <= most, "{} inside", during.most_inside);
    scene.close_chapter(fault.losses()).await;
    Suffered {
        fault,
        during,
        held_after,
        attempts,
        later_attempts,
    }
}

fn assert_effect(effect: Effect, during: &Totals) {
    let Counts {
        undecided,
        missed,
        unasked,
        ..
    } = during.counts;
    // A machine may be so busy that deadlines are missed for want of it. That opens circuits, and ends connections.
    let is_late = missed >= 5;
    let stays_closed = unasked == 0 || is_late;
    let is_excused = |kind: StoreErrorKind| is_late && kind == StoreErrorKind::Unreachable;
    let only = |kinds: &[StoreErrorKind]| {
        let mut errors = during.errors.keys();
        errors.all(|kind| kinds.contains(kind) || is_excused(*kind))
    };
    let is_as_expected = match effect {
        Effect::DecidesOn => only(&[]),
        Effect::LosesWhatWasUnderWay => stays_closed && only(&[StoreErrorKind::Unreachable]),
        Effect::SomeUndecided => undecided > 0 && only(&[]),
        Effect::CircuitOpens => unasked > 0,
        Effect::StaysClosed => stays_closed && only(&[]),
        Effect::LosesReplies => only(&[StoreErrorKind::Unreachable, StoreErrorKind::Unavailable]),
        Effect::Rejects => {
            undecided > 0 && stays_closed && only(&[StoreErrorKind::Failed, StoreErrorKind::OutOfMemory])
        }
    };
    assert!(is_as_expected, "{effect:?}");
}

/// When the load is over, nothing of it is left.
pub async fn rest(scene: &Scene, before: Resources) {
    scene.until_limits_hold().await;
    scene.assert_no_slot_is_held().await;
    scene.assert_nothing_is_left_over(before).await;
}
