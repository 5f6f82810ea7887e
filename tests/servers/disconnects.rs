//! Clients that disconnect, lie about their content, or never finish: nothing stays held, and what was transferred is
//! charged.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::Incoming;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::yield_now,
    time::timeout,
};
use tower::ServiceBuilder;
use tower_quota::{
    Algorithm, Direction, Limiter, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder,
    Store,
    content::{RequestContentBody, RequestContentLayer},
    key,
};

use crate::{RemoteStore, Server};

const SLOTS: QuotaPolicy = QuotaPolicy::concurrent("slots", 4);

type Frames = stream::Iter<std::iter::RepeatWith<fn() -> Result<Frame<Bytes>, Infallible>>>;
type Answer = Either<Full<Bytes>, StreamBody<Frames>>;

fn zeros() -> Result<Frame<Bytes>, Infallible> {
    Ok(Frame::data(Bytes::from_static(&[0; 1_000])))
}

/// Reads the request body to its end, and responds with an endless stream if the path is `/endless`.
async fn transfer(request: Request<RequestContentBody<Incoming>>) -> Result<Response<Answer>, Infallible> {
    let is_endless = request.uri().path() == "/endless";
    let mut body = request.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    let endless: fn() -> _ = zeros;
    let frames = StreamBody::new(stream::iter(std::iter::repeat_with(endless)));
    Ok(Response::new(match is_endless {
        true => Either::Right(frames),
        false => Either::Left(Full::default()),
    }))
}

/// A server with one more policy, and a look at what alice has left.
struct Scene {
    server: Server,
    limits: RateLimitLayer,
}

impl Scene {
    async fn new(store: impl Store, policy: &QuotaPolicy) -> Self {
        let limits = RateLimitLayerBuilder::from(Limiter::builder(store).deadline(Duration::from_secs(60)))
            .scope("disconnects")
            .key(key::header("x-user-id"))
            .policy(policy.clone())
            .policy(SLOTS)
            .build()
            .unwrap();
        let service = ServiceBuilder::new()
            .layer(RequestContentLayer::new())
            .layer(limits.clone())
            .service_fn(transfer);
        let server = Server::hyper(service).await;
        Self { server, limits }
    }

    /// With a store that decides at once, and with a remote store.
    async fn both(policy: QuotaPolicy) -> [Self; 2] {
        [
            Self::new(MemoryStore::new(), &policy).await,
            Self::new(RemoteStore::<1>::default(), &policy).await,
        ]
    }

    async fn connect(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.server.address).await.unwrap();
        let head = request.replacen('\n', "\nhost: localhost\nx-user-id: alice\n", 1);
        stream.write_all(head.replace('\n', "\r\n").as_bytes()).await.unwrap();
        stream
    }

    async fn left(&self) -> Vec<u64> {
        let alice = PartitionKey::new("x-user-id", "alice");
        let left = self.limits.limiter().caller(&alice).peek().await.unwrap().unwrap();
        left.allowances().map(|allowance| allowance.remaining()).collect()
    }

    /// The server has to notice what its client does.
    async fn until(&self, what: &str, condition: impl Fn(&[u64]) -> bool) {
        let wait = async {
            while !condition(&self.left().await) {
                yield_now().await;
            }
        };
        let in_time = timeout(Duration::from_secs(30), wait).await;
        assert!(in_time.is_ok(), "{what}: {:?}", self.left().await);
    }
}

#[tokio::test]
async fn who_announces_more_than_comes_is_charged_for_what_came_and_keeps_no_slot() {
    for scene in Scene::both(QuotaPolicy::per_day("bytes", 10_000).with_content_bytes(Direction::Request)).await {
        let client = scene
            .connect("POST / HTTP/1.1\ncontent-length: 9000\n\nten bytes.")
            .await;
        scene
            .until("all that was announced is charged", |left| left == [1_000, 3])
            .await;
        drop(client);
        scene.until("ten bytes have come", |left| left == [9_990, 4]).await;
    }
}

#[tokio::test]
async fn an_upload_that_never_ends_is_charged_while_it_goes_on_and_keeps_no_slot_afterwards() {
    for scene in Scene::both(QuotaPolicy::per_day("bytes", 100_000).with_content_bytes(Direction::Request)).await {
        let mut client = scene.connect("POST / HTTP/1.1\ntransfer-encoding: chunked\n\n").await;
        let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1_000));
        for _ in 0..2_000 {
            client.write_all(chunk.as_bytes()).await.unwrap();
        }
        scene.until("an instalment is charged", |left| left == [0, 3]).await;
        assert_eq!(scene.server.get_as("alice", "/").await.status(), 429);
        assert_eq!(scene.server.get_as("bob", "/").await.status(), 200);
        drop(client);
        scene.until("the slot is free", |left| left == [0, 4]).await;
    }
}

#[tokio::test]
async fn who_goes_away_while_a_response_is_sent_is_charged_for_what_was_sent_and_keeps_no_slot() {
    for scene in Scene::both(QuotaPolicy::per_day("bytes", 1_000_000_000).with_content_bytes(Direction::Response)).await
    {
        let mut client = scene.connect("GET /endless HTTP/1.1\n\n").await;
        let mut bytes = vec![0; 3_000_000];
        client.read_exact(&mut bytes).await.unwrap();
        scene
            .until("instalments are charged", |left| left[0] <= 998_000_000 && left[1] == 3)
            .await;
        drop(client);
        scene.until("the slot is free", |left| left[1] == 4).await;
        assert!(scene.left().await[0] <= 997_010_000, "{:?}", scene.left().await);
    }
}

/// L20, X34
#[tokio::test]
async fn a_client_that_disconnects_in_the_queue_leaves_its_place_taken_and_no_slot() {
    let queue = QuotaPolicy::per_day("queue", 1).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 3 });
    for scene in Scene::both(queue).await {
        assert_eq!(scene.server.get_as("alice", "/").await.status(), 200);
        scene.until("the first has left its slot", |left| left == [3, 4]).await;
        for places in [2, 1, 0] {
            let waiting = scene.connect("GET / HTTP/1.1\n\n").await;
            scene.until("one waits", |left| left == [places, 3]).await;
            drop(waiting);
            scene.until("its slot is free", |left| left == [places, 4]).await;
        }
        assert_eq!(scene.server.get_as("alice", "/").await.status(), 429);
    }
}
