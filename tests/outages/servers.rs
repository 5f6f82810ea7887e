//! The server is away, stands still or does other things.

use super::{
    fault::Fault,
    scenario::{Effect, run},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_and_comes_back_empty() {
    run(Fault::KilledAndEmpty, Effect::CircuitOpens).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped_and_goes_on() {
    run(Fault::Stopped, Effect::CircuitOpens).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_for_a_quarter_of_a_second_now_and_then() {
    run(Fault::Blocked, Effect::SomeUndecided).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_busy_with_a_script_of_somebody_else() {
    run(Fault::Busy, Effect::CircuitOpens).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_pauses_all_commands() {
    run(Fault::ClientPauseAll, Effect::CircuitOpens).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_pauses_writes() {
    run(Fault::ClientPauseWrite, Effect::CircuitOpens).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_closes_all_connections_again_and_again() {
    run(Fault::ClientsKilled, Effect::SomeUndecided).await;
}
