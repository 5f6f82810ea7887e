//! The example `grpc`: its client and its server on a connection. The timers of the client do not wait in real time.

#[path = "../../examples/grpc/src/main.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod example;

use std::time::Duration;

use tokio::sync::watch;
use tonic::{Code, Status};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
use tonic_types::StatusExt;
use tower_quota::{
    MemoryStore,
    clock::{Clock, Timestamp},
};

use self::example::{PatientClient, flip};
use super::grpc::client_of;
use crate::listener;

/// The example's server.
struct Example {
    url: String,
    health: watch::Sender<ServingStatus>,
}

impl Example {
    async fn start(clock: Clock) -> Self {
        let (listener, address) = listener().await;
        let store = MemoryStore::builder().clock(clock).build().unwrap();
        let (health, changes) = watch::channel(ServingStatus::Serving);
        tokio::spawn(example::serve(listener, store, changes).unwrap());
        Self {
            url: format!("http://{address}"),
            health,
        }
    }
}

/// The policies that reject, and the delays.
type Rejections = Vec<(Vec<String>, Duration)>;

fn rejections<const N: usize>(rejections: [(&str, u64); N]) -> Rejections {
    let rejection = |(policy, millis): (&str, _)| (vec![policy.to_owned()], Duration::from_millis(millis));
    rejections.map(rejection).into()
}

fn rejection(status: &Status) -> Rejections {
    assert_eq!(status.code(), Code::ResourceExhausted);
    let violations = status.get_details_quota_failure().unwrap().violations.into_iter();
    let policies = violations.map(|violation| violation.quota_id).collect();
    let delay = status.get_details_retry_info().unwrap().retry_delay.unwrap();
    vec![(policies, delay)]
}

#[tokio::test(start_paused = true)]
async fn a_rejected_call_passes_after_the_delay_that_its_status_specifies() {
    let example = Example::start(Clock::tokio()).await;
    let mut client = PatientClient::connect(example.url).unwrap();
    for _ in 0..6 {
        assert_eq!(client.check().await.unwrap(), ServingStatus::Serving);
    }
    assert_eq!(client.rejections, rejections([("checks", 250), ("checks", 250)]));
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_at_the_sixth_message_and_the_client_opens_another_one() {
    let example = Example::start(Clock::tokio()).await;
    let mut client = PatientClient::connect(example.url).unwrap();
    let mut read = Vec::new();
    let each = |status| {
        read.push(status);
        example.health.send_modify(flip);
    };
    client.watch(7, each).await.unwrap();
    let (on, off) = (ServingStatus::Serving, ServingStatus::NotServing);
    assert_eq!(read, [on, off, on, off, on, off, on]);
    assert_eq!(client.rejections, rejections([("messages", 200), ("messages", 200)]));
}

#[tokio::test]
async fn each_method_has_its_own_limits_and_streams_have_slots() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let example = Example::start(clock).await;
    let mut client = client_of(example.url.clone());
    for _ in 0..4 {
        client.check(HealthCheckRequest::default()).await.unwrap();
    }
    let rejected = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(rejection(&rejected), rejections([("checks", 250)]));

    let mut streams = Vec::new();
    for _ in 0..2 {
        let stream = client.watch(HealthCheckRequest::default()).await.unwrap();
        streams.push(stream.into_inner());
    }
    for stream in &mut streams {
        assert!(stream.message().await.unwrap().is_some());
    }
    let rejected = client.watch(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(rejection(&rejected), rejections([("open streams", 1_000)]));
}

/// The client waits for a second, in which the server sees that the streams are cancelled.
#[tokio::test(start_paused = true)]
async fn a_cancelled_stream_releases_its_slot() {
    let example = Example::start(Clock::tokio()).await;
    for _ in 0..3 {
        let mut client = PatientClient::connect(example.url.clone()).unwrap();
        client.watch(1, |_| {}).await.unwrap();
    }
}
