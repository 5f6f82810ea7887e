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
    let before = scene.resources().await;
    let load = Load::start(&scene.clients);
    sleep(Duration::from_millis(200)).await;
    let _ = suffer(&scene, fault).await;
    load.stop().await;
    rest(&scene, before).await;
}

/// The effects of a fault.
#[derive(Debug)]
pub struct Suffered {
    pub during: Totals,
    pub held_after: Duration,
}

/// One fault, until limits hold again.
pub async fn suffer(scene: &Scene, fault: Fault) -> Suffered {
    let began = Instant::now();
    scene.record.take_totals();
    fault.happen(scene).await;
    let (ended, healed) = (Instant::now(), Stopwatch::start());
    scene.until_limits_hold(Some(healed)).await;
    let held_after = healed.elapsed();
    let during = scene.record.take_totals();
    let attempts = scene.most_attempts_in_a_second(began..Instant::now());
    let later = scene.most_attempts_in_a_second(began + Duration::from_secs(1)..ended);
    // Shown when an assertion fails.
    eprintln!(
        "{fault:?}: {during:?}, {attempts} attempts in a second, {later} later, limits hold after {held_after:?}"
    );
    assert_effect(fault.effect(), &during);
    assert!(attempts <= fault.most_attempts_in_a_second(), "{attempts} attempts");
    assert!(
        fault.effect() != Effect::LosesWhatWasUnderWay || attempts > 0,
        "no connection was lost"
    );
    assert!(
        fault.effect() != Effect::CircuitOpens || later <= STEADY,
        "{later} attempts"
    );
    let most = SLOTS * (1 + fault.losses());
    assert!(during.most_inside <= most, "{} inside", during.most_inside);
    scene.close_chapter(fault.losses()).await;
    Suffered { during, held_after }
}

fn assert_effect(effect: Effect, during: &Totals) {
    let Counts {
        undecided,
        missed,
        unasked,
        ..
    } = during.counts;
    // Unless the machine is so busy that deadlines are missed for want of it.
    let stays_closed = unasked == 0 || missed >= 5;
    let only = |kinds: &[StoreErrorKind]| during.errors.keys().all(|kind| kinds.contains(kind));
    let is_as_expected = match effect {
        Effect::DecidesOn => only(&[]),
        Effect::LosesWhatWasUnderWay => stays_closed && only(&[StoreErrorKind::Unreachable]),
        Effect::SomeUndecided => undecided > 0 && only(&[]),
        Effect::CircuitOpens => unasked > undecided,
        Effect::StaysClosed => unasked == 0 && only(&[]),
        Effect::LosesReplies => only(&[StoreErrorKind::Unreachable, StoreErrorKind::Unavailable]),
        Effect::Rejects => undecided > 0 && stays_closed && only(&[StoreErrorKind::Failed]),
    };
    assert!(is_as_expected, "{effect:?}");
}

/// When the load is over, nothing of it is left.
pub async fn rest(scene: &Scene, before: Resources) {
    scene.until_limits_hold(None).await;
    scene.assert_no_slot_is_held().await;
    scene.assert_nothing_is_left_over(before).await;
}
