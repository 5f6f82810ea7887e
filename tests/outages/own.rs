//! Nothing is wrong with the server or the way to it: the process has too much to do, or its callers leave.

use super::{fault::Fault, scenario::run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_starved() {
    run(Fault::Starved).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_who_are_gone_before_the_decision() {
    run(Fault::Cancelled).await;
}
