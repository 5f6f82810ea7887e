//! The contract between services: which one is ready, which one is called, and what a cancelled request releases.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tower::{ServiceExt, limit::ConcurrencyLimit};
use tower_layer::Layer;
use tower_ratelimit_client::{Client, ClientError, NoRetries, Retry};
use tower_test::mock::{self, Handle, SendResponse};

use super::*;

type Mock = mock::Mock<Request<String>, Response<()>>;
type MockHandle = Handle<Request<String>, Response<()>>;

const URI: &str = "http://a.example/";

fn response(lines: &[&str]) -> Response<()> {
    let mut response = Response::new(());
    *response.headers_mut() = headers(lines);
    response
}

fn rejection() -> Response<()> {
    Response::builder()
        .status(429)
        .header("retry-after", "20")
        .body(())
        .unwrap()
}

/// A client in front of a mock, after an answer with these fields.
async fn after(layer: ClientLayer, lines: &[&str]) -> (Client<Mock, NoRetries>, MockHandle) {
    let (mock, mut handle) = mock::pair();
    let client = layer.layer(mock);
    let mut first = pending(client.clone().oneshot(get(URI)));
    next(&mut handle).await.send_response(response(lines));
    assert_ready_ok!(first.poll());
    (client, handle)
}

/// A service that takes one request at a time.
fn limited() -> (ConcurrencyLimit<Mock>, MockHandle) {
    let (mock, handle) = mock::pair();
    (ConcurrencyLimit::new(mock, 1), handle)
}

async fn next(handle: &mut MockHandle) -> SendResponse<Response<()>> {
    handle.next_request().await.unwrap().1
}

fn known(client: &Client<Mock, NoRetries>) -> (Option<u64>, u64, usize) {
    let known = client.layer().origin_status(&parts(URI)).unwrap();
    let left = known.limits().first().and_then(|limit| limit.remaining());
    (left, known.in_flight(), known.waiting())
}

/// Programs spawn requests and share clients.
#[test]
fn clients_and_their_futures_go_from_thread_to_thread() {
    fn assert_send<T: Send>(_: T) {}
    fn assert_sync<T: Sync>(_: &T) {}
    let builder = builder().retries(1, |body: &String| Some(body.clone()));
    let mut client = Script::new([(200, vec![])]).client(builder);
    assert_sync(&client);
    assert_send(client.call(get(URI)));
    assert_send(client);
}

/// The service's only permit is free while a request is queued, and is acquired again when the request may be sent.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_holds_no_service_that_is_ready() {
    let layer = builder().build().unwrap();
    let (_, _handle) = after(layer.clone(), &[r#"ratelimit: "a";r=0;t=10"#]).await;
    let (limited, mut handle) = limited();
    let mut client = layer.layer(limited.clone());
    client.ready().await.unwrap();
    let mut waiting = pending(client.call(get(URI)));

    // Another request takes the place, and still has it when the turn comes.
    let mut other = pending(limited.oneshot(get(URI)));
    let respond = next(&mut handle).await;
    tokio::time::advance(seconds(11)).await;
    assert_pending!(waiting.poll());
    respond.send_response(response(&[]));
    assert_ready_ok!(other.poll());

    assert!(waiting.is_woken());
    assert_pending!(waiting.poll());
    next(&mut handle).await.send_response(response(&[]));
    assert_ready_ok!(waiting.poll());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_sent_lets_its_ready_service_go() {
    let layer = builder().queue_timeout(Duration::ZERO).build().unwrap();
    let (_, _handle) = after(layer.clone(), &[r#"ratelimit: "a";r=0;t=10"#]).await;
    let (limited, mut handle) = limited();
    let mut client = layer.layer(limited.clone());
    client.ready().await.unwrap();
    client.call(get(URI)).await.unwrap_err();
    let mut other = pending(limited.oneshot(get(URI)));
    next(&mut handle).await.send_response(response(&[]));
    assert_ready_ok!(other.poll());
}

#[tokio::test(start_paused = true)]
async fn it_is_ready_when_its_service_is_and_fails_when_that_fails() {
    let (mut client, mut handle) = after(builder().build().unwrap(), &[]).await;
    handle.allow(0);
    let mut ready = pending(async move { client.ready().await.map(drop) });
    handle.send_error("broken");
    assert!(matches!(assert_ready!(ready.poll()), Err(ClientError::Inner(_))));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_before_it_is_called_gives_the_unit_back() {
    let (client, mut handle) = after(builder().build().unwrap(), &[r#"ratelimit: "a";r=0;t=10"#]).await;
    let mut waiting = pending(client.clone().oneshot(get(URI)));
    handle.allow(0);
    tokio::time::advance(seconds(11)).await;
    assert_pending!(waiting.poll());
    assert_eq!(known(&client), (Some(0), 1, 0));
    handle.send_error("broken");
    assert!(matches!(assert_ready!(waiting.poll()), Err(ClientError::Inner(_))));
    assert_eq!(known(&client).1, 0);
}

/// The first in line is cancelled, at any point of its way: the next has its turn without delay.
#[tokio::test(start_paused = true)]
async fn who_gives_up_leaves_the_line_to_the_next() {
    let (client, mut handle) = after(builder().build().unwrap(), &[r#"ratelimit: "a";r=0;t=10"#]).await;
    let wait = |path: &str| pending(client.clone().oneshot(get(&format!("{URI}{path}"))));
    let (first, second, mut third, mut fourth) = (wait("1"), wait("2"), wait("3"), wait("4"));
    drop(second);
    assert_eq!(known(&client).2, 3);
    drop(first);
    assert!(third.is_woken());
    assert_pending!(third.poll());
    handle.allow(0);
    tokio::time::advance(seconds(11)).await;
    // Its turn has come, and its service is not ready.
    assert!(third.is_woken());
    assert_pending!(third.poll());
    assert_eq!(known(&client), (Some(0), 1, 1));
    assert_pending!(fourth.poll());
    drop(third);
    assert!(fourth.is_woken());
    assert_pending!(fourth.poll());
    handle.allow(1);
    assert_pending!(fourth.poll());
    let (request, respond) = handle.next_request().await.unwrap();
    assert_eq!(request.uri().path(), "/4");
    respond.send_response(response(&[]));
    assert_ready_ok!(fourth.poll());
    assert_eq!(known(&client), (Some(0), 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_after_it_was_sent_stays_counted() {
    let (client, mut handle) = after(builder().build().unwrap(), &[r#"ratelimit: "a";r=2;t=10"#]).await;
    let sent = pending(client.clone().oneshot(get(URI)));
    let _respond = next(&mut handle).await;
    assert_eq!(known(&client), (Some(1), 1, 0));
    drop(sent);
    assert_eq!(known(&client), (Some(1), 0, 0));
}

/// F8: also for a request whose turn had come, but not its service.
#[tokio::test(start_paused = true)]
async fn a_rejection_that_comes_while_the_service_is_not_ready_keeps_the_request() {
    let (client, mut handle) = after(builder().build().unwrap(), &[r#"ratelimit: "a";r=0;t=10"#]).await;
    let mut trial = task::spawn(client.clone().oneshot(get(URI)));
    let mut other = task::spawn(client.clone().oneshot(get(URI)));
    assert_pending!(trial.poll());
    assert_pending!(other.poll());
    tokio::time::advance(seconds(11)).await;
    assert_pending!(trial.poll());
    let respond = next(&mut handle).await;
    // The answer does not come, so that another one may try, of which the service is not ready.
    handle.allow(0);
    assert_pending!(other.poll());
    tokio::time::advance(seconds(6)).await;
    assert_pending!(other.poll());
    assert_eq!(known(&client).1, 2);

    respond.send_response(rejection());
    assert_ready_ok!(trial.poll());
    handle.allow(1);
    assert_pending!(other.poll());
    assert_eq!((known(&client).1, known(&client).2), (0, 1), "back in line");
    tokio::time::advance(seconds(21)).await;
    handle.allow(1);
    assert_pending!(other.poll());
    next(&mut handle).await.send_response(response(&[]));
    assert_ready_ok!(other.poll());
}

/// The request was admitted and had acquired the service's permit; both are released while it waits again.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_sent_back_into_the_line_lets_its_ready_service_go() {
    let layer = builder().build().unwrap();
    let (client, mut handle) = after(layer.clone(), &[r#"ratelimit: "a";r=0;t=10"#]).await;
    let (limited, mut limited_handle) = limited();
    let mut occupied = pending(limited.clone().oneshot(get(URI)));
    let occupation = next(&mut limited_handle).await;

    let mut trial = task::spawn(client.clone().oneshot(get(URI)));
    let mut other = task::spawn(layer.layer(limited.clone()).oneshot(get(URI)));
    // The service is ready at first, and busy when the turn comes.
    assert_pending!(other.poll());
    occupation.send_response(response(&[]));
    assert_ready_ok!(occupied.poll());
    assert_pending!(other.poll());
    assert_pending!(trial.poll());
    let mut busy = pending(limited.clone().oneshot(get(URI)));
    let occupation = next(&mut limited_handle).await;
    tokio::time::advance(seconds(11)).await;
    assert_pending!(other.poll());
    tokio::time::advance(seconds(6)).await;
    assert_pending!(trial.poll());
    let respond = next(&mut handle).await;

    respond.send_response(rejection());
    assert_ready_ok!(trial.poll());
    occupation.send_response(response(&[]));
    assert_ready_ok!(busy.poll());
    assert!(other.is_woken());
    assert_pending!(other.poll());
    let mut free = pending(limited.oneshot(get(URI)));
    next(&mut limited_handle).await.send_response(response(&[]));
    assert_ready_ok!(free.poll());
}

/// An answer wakes the first in line, and so does one that never comes.
#[tokio::test(start_paused = true)]
async fn no_wake_up_is_lost() {
    let (client, mut handle) = after(builder().build().unwrap(), &[r#"ratelimit: "a";r=1;t=60"#]).await;
    let spawn = || pending(client.clone().oneshot(get(URI)));
    let mut last_unit = spawn();
    let respond = next(&mut handle).await;
    let (mut first, mut second, mut third) = (spawn(), spawn(), spawn());
    respond.send_response(response(&[r#"ratelimit: "a";r=2;t=60"#]));
    assert_ready_ok!(last_unit.poll());
    for waiting in [&mut first, &mut second, &mut third] {
        assert!(waiting.is_woken());
        assert_pending!(waiting.poll());
    }
    assert_eq!(known(&client), (Some(0), 2, 1));
    let _first = next(&mut handle).await;
    let respond = next(&mut handle).await;
    respond.send_response(response(&[r#"ratelimit: "a";r=3;t=60"#]));
    assert_ready_ok!(second.poll());
    assert!(third.is_woken());
    assert_pending!(third.poll());
    assert_eq!(known(&client), (Some(1), 2, 0));
}

/// A layer outside that catches panics keeps the service.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_closure_releases_the_ready_service() {
    async fn panics<R: Retry<String> + Clone>(builder: ClientLayerBuilder<R>) {
        let (limited, _handle) = limited();
        let mut client = builder.build().unwrap().layer(limited.clone());
        client.ready().await.unwrap();
        let call = AssertUnwindSafe(|| client.call(get(URI)));
        assert!(catch_unwind(call).is_err());
        assert_ready_ok!(task::spawn(limited.ready_oneshot()).poll());
    }

    panics(builder().partition_by(|_| panic!("from outside"))).await;
    panics(builder().retries(1, |_: &String| panic!("from outside"))).await;
}
