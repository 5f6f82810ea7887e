//! The server is unavailable, hangs, or is busy with other things.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    fault::Fault,
    harness::Scene,
    load::Load,
    scenario::{rest, run},
};

/// L8, L9
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_and_comes_back_empty() {
    run(Fault::KilledAndEmpty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped_and_goes_on() {
    run(Fault::Stopped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_for_a_quarter_of_a_second_now_and_then() {
    run(Fault::Blocked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_busy_with_a_script_of_somebody_else() {
    run(Fault::Busy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_pauses_all_commands() {
    run(Fault::ClientPauseAll).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_pauses_writes() {
    run(Fault::ClientPauseWrite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_all_connections_again_and_again() {
    run(Fault::ClientsKilled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_idle_connections_under_load() {
    run(Fault::ClosedWhenIdle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_connections_others_have_taken() {
    run(Fault::Full).await;
}

/// L8, L9
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_yet_when_the_service_starts() {
    let scene = Scene::with_server_down().await;
    let load = Load::start(&scene.clients);
    sleep(Duration::from_millis(500)).await;
    let during = scene.record.take_totals();
    assert_eq!((during.counts.allowed, during.counts.rejected), (0, 0));
    assert!(during.counts.unasked > 0, "{during:?}");
    scene.restart();
    scene.until_limits_hold().await;
    load.stop().await;
    let resources = scene.resources().await;
    assert!(resources.connections <= 2 * scene.clients.len(), "{resources:?}");
    rest(&scene, resources).await;
}
