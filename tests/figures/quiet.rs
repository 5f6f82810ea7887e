//! A quiet service in front of a Redis that closes idle connections after a second.

use std::time::Duration;

use tokio::{runtime::Runtime, task::block_in_place, time::sleep};
use tower_quota::Outcome;

use super::{
    callers::{Caller, Kind},
    harness::Scene,
    table::Table,
};

const REQUESTS: u64 = 23;

pub fn measure(runtime: &Runtime, table: &mut Table) {
    let wanted = "none uncounted";
    table.run(runtime, "one request a second, `timeout 1`", wanted, async {
        let scene = Scene::start().await;
        scene.command("CONFIG SET timeout 1");
        let mut uncounted = 0;
        for turn in 0..REQUESTS {
            // Some come just as a connection is closed.
            sleep(Duration::from_millis(950 + 11 * turn)).await;
            let outcome = scene.clients[0].ask(Caller::new(Kind::Quiet, 0)).await;
            uncounted += u64::from(outcome == Outcome::FailedOpen);
        }
        block_in_place(|| drop(scene));
        (format!("{uncounted} of {REQUESTS} uncounted"), uncounted == 0)
    });
}
