//! Requests per second of an Axum service on loopback: bare, with this layer on memory, and with tower_governor.
//!
//!     cargo bench --bench axum
//!
//! The handler answers "hello". The client is in the same process: one thread with 64 connections, each with one
//! request under way, which writes prepared bytes and reads no more of a response than it must. The services run on a
//! Tokio runtime with as many threads as there are cores and share these with the client. So what a layer costs is
//! shown next to the work of sockets and HTTP on both sides, as it is in a real service, and the ratios say how much
//! of the throughput is left.
//!
//! The key is the text of a header, one of 10 000 users at random, and burst capacities are so large that all
//! requests pass: a response that is not 200 ends the run. Our layer always sends fields; tower_governor is shown
//! with and without. The services are measured in turns, `ROUNDS` (31) times for `SECONDS` (0.25) each; the table
//! shows medians.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod rounds;

use std::{
    cell::Cell,
    io,
    net::{Ipv4Addr, SocketAddr},
    str,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing::get};
use futures_util::future::try_join_all;
use governor::middleware::NoOpMiddleware;
use http::Request;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{self, Runtime},
};
use tower_governor::{GovernorError, GovernorLayer, governor::GovernorConfigBuilder, key_extractor::KeyExtractor};
use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};

use self::rounds::Side;

const CONNECTIONS: u64 = 64;
const USERS: usize = 10_000;
const USER: &str = "x-user-id";
/// Units that may be used at one moment: more than are ever used here.
const PLENTY: u32 = 500_000_000;
const POLICIES: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("second", 10).with_burst_capacity(PLENTY as u64),
    QuotaPolicy::per_minute("minute", 100).with_burst_capacity(PLENTY as u64),
    QuotaPolicy::per_day("day", 5_000).with_burst_capacity(PLENTY as u64),
];

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let (rounds, seconds) = (rounds::setting("ROUNDS", 31), rounds::setting("SECONDS", 0.25));
    let length = Duration::from_secs_f64(seconds);
    let server = Runtime::new().expect("the runtime starts");
    let client = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the runtime starts");
    let requests: Vec<_> = (0..USERS)
        .map(|user| format!("GET / HTTP/1.1\r\nhost: localhost\r\n{USER}: user-{user:08}\r\n\r\n"))
        .collect();

    let mut sides: Vec<_> = services()
        .into_iter()
        .map(|(name, service)| {
            let address = serve(&server, service);
            let (client, requests) = (&client, &requests);
            Side::new(name, move || {
                let responses = client.block_on(load(address, requests, length));
                responses.unwrap_or_else(|error| panic!("{name}: {error}"))
            })
        })
        .collect();
    // A round that meets all users and does not count.
    rounds::measure(1, &mut sides);
    let values = rounds::measure(rounds, &mut sides);
    rounds::print(&format!("{rounds} rounds of {length:?}"), "requests/s", &sides, &values);
}

fn services() -> [(&'static str, Router); 5] {
    let hello = || Router::new().route("/", get(|| async { "hello" }));
    let quota = |policies: &[QuotaPolicy]| {
        let builder = RateLimitLayer::builder(MemoryStore::new())
            .scope("bench")
            .key(key::header(USER));
        let builder = policies
            .iter()
            .cloned()
            .fold(builder, |builder, policy| builder.policy(policy));
        hello().layer(builder.build().expect("the settings are sound"))
    };
    let mut config = GovernorConfigBuilder::default().key_extractor(User);
    config.per_millisecond(100).burst_size(PLENTY);
    let plain: GovernorLayer<User, NoOpMiddleware<_>, Body> =
        GovernorLayer::new(config.finish().expect("the settings are sound"));
    let with_fields: GovernorLayer<User, _, Body> =
        GovernorLayer::new(config.use_headers().finish().expect("the settings are sound"));
    [
        ("bare", hello()),
        ("tower-quota, one window", quota(&POLICIES[..1])),
        ("tower-quota, three windows", quota(&POLICIES)),
        ("tower_governor, one window, no fields", hello().layer(plain)),
        ("tower_governor, one window, fields", hello().layer(with_fields)),
    ]
}

fn serve(server: &Runtime, service: Router) -> SocketAddr {
    let listener = server
        .block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    server.spawn(async { axum::serve(listener, service).await });
    address
}

/// Responses per second.
async fn load(address: SocketAddr, requests: &[String], length: Duration) -> io::Result<f64> {
    let is_over = Cell::new(false);
    let connections = (1..=CONNECTIONS).map(|seed| ask(address, requests, seed, &is_over));
    let start = Instant::now();
    let timer = async {
        tokio::time::sleep(length).await;
        is_over.set(true);
        Ok(())
    };
    let (counts, ()) = tokio::try_join!(try_join_all(connections), timer)?;
    Ok(counts.iter().sum::<u64>() as f64 / start.elapsed().as_secs_f64())
}

/// Sends requests of random users one after the other until it is over, and counts the responses.
async fn ask(address: SocketAddr, requests: &[String], seed: u64, is_over: &Cell<bool>) -> io::Result<u64> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut count, mut random) = (0, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut buffer = [0; 2048];
    while !is_over.get() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        stream.write_all(requests[random as usize % USERS].as_bytes()).await?;
        let mut filled = 0;
        while !is_whole_response(&buffer[..filled])? {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        count += 1;
    }
    Ok(count)
}

/// Whether this is all of a response that ends with the body of the handler. Anything but that and 200 is an error.
fn is_whole_response(bytes: &[u8]) -> io::Result<bool> {
    const STATUS: &[u8] = b"HTTP/1.1 200 OK\r\n";
    const END: &[u8] = b"\r\n\r\nhello";
    let is_prefix = bytes.iter().zip(STATUS).all(|(byte, expected)| byte == expected);
    if is_prefix && bytes.len() < 2048 {
        return Ok(bytes.ends_with(END));
    }
    let message = str::from_utf8(bytes).unwrap_or("a response that is not text");
    Err(io::Error::other(message.to_owned()))
}

/// The same key as ours, in the way in which tower_governor's own example takes one from a header.
#[derive(Clone, Debug)]
struct User;

impl KeyExtractor for User {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let value = request.headers().get(USER).and_then(|value| value.to_str().ok());
        value.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}
