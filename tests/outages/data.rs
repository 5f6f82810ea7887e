//! The server responds, but has lost data or scripts, is full, has been replaced, or rejects our credentials.

use super::{fault::Fault, scenario::run};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_scripts_again_and_again() {
    run(Fault::ScriptFlush).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_everything_again_and_again() {
    run(Fault::FlushAll).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_out_of_memory() {
    run(Fault::OutOfMemory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_saves_fail() {
    run(Fault::NotSaved).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loads_its_data() {
    run(Fault::Loading).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_become_a_replica() {
    run(Fault::Replica).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_has_lost_its_primary() {
    run(Fault::ReplicaWithoutData).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_is_not_right_any_more() {
    run(Fault::WrongPassword).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_was_taken_away() {
    run(Fault::NoPermission).await;
}
