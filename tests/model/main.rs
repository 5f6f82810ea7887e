//! The whole layer against a model: settings, requests and faults by chance.
//!
//! The model (`expected`) is written from the documentation. It predicts each decision, the remaining units of every
//! policy, the fields that clients receive, and the result of each charge: actual costs, reports, cancelled requests,
//! permits, refunds, resets, top-ups, new rules. The algorithms come from the model of the stores
//! (`tests/redis/model`), which shares no formula with the crate.
//!
//! Where documents leave room, the model takes what it sees if that is within the room: a rejection that the cache gives
//! 20 ms too long, and the moment at which the circuit breaker tries again. Not modeled are prefetched units, bytes,
//! calendars, jitter, partial grants, forecasts, reports to leaky buckets, a store that answers after the deadline, and clocks
//! that step back.
//!
//! The runs are the same each time, unless `MODEL_RUNS` is their number:
//! `MODEL_RUNS=10000 cargo test -p tower-quota-tests --all-features --test model`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(clippy::too_many_lines, reason = "a step and its model stand together")]
#![allow(unreachable_pub, reason = "nothing here is part of the crate's interface")]

#[path = "../redis/model/mod.rs"]
mod accounts;
mod expected;
mod fields;
mod handler;
mod remote;
mod scene;
mod settings;
mod steps;

use std::fmt;

use proptest::{
    prelude::*,
    test_runner::{FileFailurePersistence, RngSeed},
};

use self::{
    scene::Scene,
    settings::{Setting, settings},
    steps::{Step, steps},
};

/// The number of runs, of up to 40 steps each.
const RUNS: u32 = 250;
const STEPS: usize = 40;

fn config() -> ProptestConfig {
    let (cases, rng_seed) = match std::env::var("MODEL_RUNS") {
        Ok(runs) => (runs.parse().expect("MODEL_RUNS is a number"), RngSeed::Random),
        Err(_) => (RUNS, RngSeed::Fixed(0)),
    };
    ProptestConfig {
        cases,
        rng_seed,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

struct Run {
    setting: Setting,
    steps: Vec<Step>,
}

/// A line for each limiter, for the layers, and for each step.
impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limiters = self.setting.limiters.iter().map(|limiter| format!("{limiter:?}"));
        let Setting {
            layers,
            is_remote,
            has_fallback,
            ..
        } = &self.setting;
        let rest = format!("{layers:?}, remote: {is_remote}, fallback: {has_fallback}");
        let steps = self.steps.iter().map(|step| format!("{step:?}"));
        limiters
            .chain([rest])
            .chain(steps)
            .try_for_each(|line| write!(f, "\n{line}"))
    }
}

fn all_runs() -> impl Strategy<Value = Run> {
    (steps(STEPS), settings()).prop_map(|(steps, setting)| Run { setting, steps })
}

proptest! {
    #![proptest_config(config())]

    /// A8, A13, B4, B6, C2, D4, D6, D18, E2, L4, L9, L10, L27, L28, X7, X34, X41, X42
    #[test]
    fn whatever_happens_the_layer_decides_and_tells_what_documents_promise(run in all_runs()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let Some(mut scene) = Scene::new(&run.setting) else {
                return Ok(());
            };
            for step in &run.steps {
                scene.take(step).await?;
            }
            scene.finish().await
        })?;
    }
}
