//! Every fault of the outage tests: how long after its end limits hold again.

use std::time::Duration;

use tokio::{runtime::Runtime, time::sleep};

use super::{
    fault::Fault,
    harness::Scene,
    load::Load,
    scenario::{rest, suffer},
    table::Table,
};

const WANTED: &str = "limits hold within 2 s; waits and attempts to connect within their bounds";

pub fn measure(runtime: &Runtime, table: &mut Table) {
    for fault in Fault::ALL {
        table.run(runtime, &format!("{fault:?}"), WANTED, async move {
            let scene = Scene::start().await;
            let before = scene.resources().await;
            let load = Load::start(&scene.clients);
            sleep(Duration::from_millis(200)).await;
            let suffered = suffer(&scene, fault).await;
            load.stop().await;
            rest(&scene, before).await;
            let counts = suffered.during.counts;
            let text = format!(
                "{:.2} s; {} decided, {} not, {} not asked",
                suffered.held_after.as_secs_f64(),
                counts.allowed + counts.rejected,
                counts.undecided,
                counts.unasked
            );
            let missed = suffered.missed_bounds();
            let is_met = missed.is_empty();
            let parts: Vec<_> = [text].into_iter().chain(missed).collect();
            (parts.join("; "), is_met)
        });
    }
}
