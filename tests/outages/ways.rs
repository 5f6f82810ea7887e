//! The way to the server is long, cut, or loses what goes through it.

use std::time::Duration;

use super::{fault::Fault, scenario::run};

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_takes_20_ms_there_and_back() {
    run(Fault::Delayed(Duration::from_millis(10))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_takes_40_ms_there_and_back() {
    run(Fault::Delayed(Duration::from_millis(20))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_takes_25_to_35_ms_there_and_back() {
    run(Fault::Jittered(
        Duration::from_micros(12_500),
        Duration::from_micros(17_500),
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_loses_bytes_of_replies() {
    run(Fault::BytesLost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_takes_200_ms_there_and_back() {
    run(Fault::Delayed(Duration::from_millis(100))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_again_and_again() {
    run(Fault::Cut).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_inside_of_replies() {
    run(Fault::CutInsideReplies).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_reset_again_and_again() {
    run(Fault::Reset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_and_rejected() {
    run(Fault::Rejected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_swallows_everything() {
    run(Fault::Swallowed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_swallows_replies() {
    run(Fault::RepliesSwallowed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_swallows_requests() {
    run(Fault::RequestsSwallowed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_alone() {
    run(Fault::OneInstanceAlone).await;
}
