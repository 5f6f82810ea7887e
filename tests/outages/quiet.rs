//! A quiet service: connections end while nothing is sent, and the next request is still decided.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::sleep;

use super::{
    harness::{Scene, eventually},
    scenario::rest,
};

/// No request comes for longer than a connection may be idle, and then one does: it is decided.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_idle_connections_of_a_quiet_service_costs_no_decision() {
    let scene = Scene::start().await;
    let before = scene.resources().await;
    scene.record.take_totals();
    let connections = || -> BTreeSet<String> {
        let list = scene.command("CLIENT LIST TYPE normal");
        let others = list.lines().filter(|line| !line.contains("cmd=client"));
        others
            .filter_map(|line| line.split(' ').next())
            .map(str::to_owned)
            .collect()
    };
    for _ in 0..4 {
        let idle = connections();
        assert!(!idle.is_empty(), "the service has no connection");
        scene.command("CONFIG SET timeout 1");
        eventually("the server closes them", async || connections().is_disjoint(&idle)).await;
        // A request that meets the end of its connection may be lost.
        scene.command("CONFIG SET timeout 0");
        scene.ask_all().await;
    }
    let counts = scene.record.take_totals().counts;
    assert_eq!((counts.undecided, counts.unasked), (0, 0), "{counts:?}");
    scene.close_chapter(0).await;
    rest(&scene, before).await;
}

/// Also with connections that a proxy or the server cuts: the end of a connection is noticed when it happens, not when
/// a request needs the connection.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_quiet_service_that_are_closed_cost_no_decision() {
    let scene = Scene::start().await;
    let before = scene.resources().await;
    scene.record.take_totals();
    for round in 0..20 {
        match round % 3 {
            0 => scene.cut().await,
            1 => scene.reset().await,
            _ => _ = scene.command("CLIENT KILL TYPE normal"),
        }
        sleep(Duration::from_millis(100)).await;
        scene.ask_all().await;
    }
    let counts = scene.record.take_totals().counts;
    assert_eq!((counts.undecided, counts.unasked), (0, 0), "{counts:?}");
    scene.close_chapter(0).await;
    rest(&scene, before).await;
}
