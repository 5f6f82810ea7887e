//! A name that does not resolve, and one that comes to mean another server: how long after that limits hold.

use std::time::Duration;

use test_kit::{RedisServer, load::assert_limit_holds, load::outcome, load::until_decided};
use tokio::{runtime::Runtime, task::block_in_place};
use tower_quota::Outcome;

use super::{
    load::DEADLINE,
    machine::Stopwatch,
    resolver::{Name, five_a_day},
    scenario::RECOVERY,
    table::Table,
};

pub fn measure(runtime: &Runtime, table: &mut Table) {
    let wanted = "limits hold within 2 s";
    table.run(runtime, "a name that did not resolve", wanted, async {
        let (server, name) = (block_in_place(RedisServer::start), Name::default());
        let layer = five_a_day(name.store(), DEADLINE);
        while outcome(&layer, "before").await != Outcome::FailedOpen {}
        name.now_means(server.port());
        let resolved = Stopwatch::start();
        until_decided(&layer, "someone").await;
        let measured = held_after(resolved);
        assert_limit_holds(&layer, "after", 5).await;
        block_in_place(|| drop(server));
        measured
    });
    table.run(runtime, "a name that means another server", wanted, async {
        let (old, new) = block_in_place(|| (RedisServer::start(), RedisServer::start()));
        let name = Name::of(old.port());
        let layer = five_a_day(name.store(), DEADLINE);
        until_decided(&layer, "someone").await;
        name.now_means(new.port());
        block_in_place(|| old.kill());
        let ended = Stopwatch::start();
        until_decided(&layer, "someone").await;
        let measured = held_after(ended);
        block_in_place(|| drop((old, new)));
        measured
    });
}

fn held_after(healed: Stopwatch) -> (String, bool) {
    let held_after: Duration = healed.elapsed();
    (format!("{:.2} s", held_after.as_secs_f64()), held_after <= RECOVERY)
}
