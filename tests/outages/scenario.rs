//! What every scenario does and asserts.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_quota::StoreErrorKind;

use super::{
    fault::Fault,
    harness::{Resources, Scene},
    load::{Counts, Load, SLOTS},
    machine::Stopwatch,
};

/// How hard a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The store goes on deciding: only deadlines may be missed.
    DecidesOn,
    /// Some requests are not decided.
    SomeUndecided,
    /// Circuits open: requests go on without the store being asked.
    CircuitOpens,
    /// Requests are not decided, and each of them asks: the fault is not one of the store.
    Rejects,
}

/// One fault under load.
pub async fn run(fault: Fault, effect: Effect) {
    let scene = Scene::start().await;
    let before = scene.resources().await;
    let load = Load::start(&scene.clients, &scene.chapter);
    sleep(Duration::from_millis(200)).await;
    suffer(&scene, fault, effect).await;
    load.stop().await;
    rest(&scene, before).await;
}

/// One fault, until limits hold again.
pub async fn suffer(scene: &Scene, fault: Fault, effect: Effect) {
    let counts = || -> Vec<Counts> {
        (0..scene.clients.len())
            .map(|number| scene.record.of_instance(number))
            .collect()
    };
    let (began, before, errors) = (Instant::now(), counts(), scene.record.errors());
    fault.happen(scene).await;
    let healed = Stopwatch::start();
    scene.until_limits_hold(Some(healed)).await;
    eprintln!("{fault:?}: limits hold after {:?}", healed.elapsed());
    let attempts = scene.most_attempts_in_a_second(began);
    let after = counts();
    eprintln!(
        "{fault:?}: {before:?}\n {after:?}\n {attempts} attempts, {:?} longest {:?} most {}",
        scene.record.errors(),
        scene.record.longest_wait(),
        scene.record.most_inside()
    );
    let unasked = before
        .iter()
        .zip(&after)
        .map(|(before, after)| after.unasked - before.unasked);
    let undecided = before
        .iter()
        .zip(&after)
        .map(|(before, after)| after.undecided - before.undecided);
    let new_errors = |kind| scene.record.errors().get(&kind).copied() > errors.get(&kind).copied();
    match effect {
        Effect::DecidesOn => {
            let kinds = [
                StoreErrorKind::Rejected,
                StoreErrorKind::Unavailable,
                StoreErrorKind::Unreachable,
            ];
            assert!(!kinds.into_iter().any(new_errors), "{:?}", scene.record.errors());
        }
        Effect::SomeUndecided => assert!(undecided.sum::<u64>() > 0),
        Effect::CircuitOpens => assert!(unasked.sum::<u64>() > 0),
        Effect::Rejects => assert!(new_errors(StoreErrorKind::Rejected)),
    }
    scene.assert_ledger_is_right(fault.losses() > 0).await;
    let most = SLOTS * (1 + fault.losses());
    assert!(
        scene.record.most_inside() <= most,
        "{} inside",
        scene.record.most_inside()
    );
}

/// When the load is over, nothing of it is left.
pub async fn rest(scene: &Scene, before: Resources) {
    scene.until_limits_hold(None).await;
    scene.assert_no_slot_is_held().await;
    scene.assert_nothing_is_left_over(before).await;
}
