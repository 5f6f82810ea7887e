//! Requests per second of an Axum service on loopback: bare, with this layer on memory, and with tower_governor.
//!
//!     cargo bench -p tower-quota-tests --bench axum
//!
//! The handler answers "hello". Like `wrk`, the client is a separate process: one thread with 64 connections, each with
//! one request in flight. It writes prepared bytes and reads only as much of a response as it must. The services run on
//! a Tokio runtime with as many threads as there are cores, and share the cores with the client. The first table shows
//! how much of the throughput remains. The second one counts only the time of the service's threads (Linux), which
//! excludes the client and is hardly affected by other load on the machine.
//!
//! The key is the text of a header, one of 10,000 users at random, and burst capacities are so large that all
//! requests pass: a response that is not 200 ends the run. All layers send fields. The services are measured in turns,
//! `ROUNDS` (31) times for `SECONDS` (0.25) each; the table shows medians.
//!
//! A layer that only sets two fields of the same length as ours shows how much a layer could still improve. `SIDE=3`
//! calls a single service, given by its position in the table from 0 on, for a profiler.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod limits;
mod rounds;

use std::{
    cell::{Cell, RefCell},
    env, io,
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
    str,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing::get};
use futures_util::future::try_join_all;
use http::{HeaderValue, Response};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{self, Runtime},
};
use tower::util::MapResponseLayer;
use tower_governor::GovernorLayer;

use self::{
    limits::{USER, User, governor, layer},
    rounds::{Random, Side, own_seconds},
};

const CONNECTIONS: u64 = 64;
const USERS: usize = 10_000;

fn main() {
    if let Ok(address) = env::var(CLIENT) {
        return client(address.parse().expect("the parent gives an address"));
    }
    if !rounds::is_asked_for() {
        return;
    }
    let rounds = rounds::setting("ROUNDS", 31);
    let server = Runtime::new().expect("the runtime starts");
    if let Some((_, service)) = services().into_iter().nth(rounds::setting("SIDE", usize::MAX)) {
        let (responses, _) = ask_from_another_process(serve(&server, service));
        println!("{responses} responses");
        return;
    }
    let throughputs = RefCell::new(vec![Vec::new(); SERVICES]);
    let mut sides: Vec<_> = services()
        .into_iter()
        .enumerate()
        .map(|(index, (name, service))| {
            let (address, throughputs) = (serve(&server, service), &throughputs);
            Side::new(name, move || {
                let before = own_seconds();
                let (responses, seconds) = ask_from_another_process(address);
                throughputs.borrow_mut()[index].push(responses / seconds);
                responses / (own_seconds() - before)
            })
        })
        .collect();
    // A round that meets all users and does not count.
    rounds::measure(1, &mut sides);
    throughputs.borrow_mut().iter_mut().for_each(Vec::clear);
    let by_processor = rounds::measure(rounds, &mut sides);
    let throughputs = throughputs.borrow();
    let throughputs: Vec<_> = throughputs
        .iter()
        .map(|values| values.iter().copied().collect())
        .collect();
    let title = |what| format!("{rounds} rounds, {what}");
    rounds::print(&title("throughput"), "requests/s", &sides, &throughputs);
    rounds::print(&title("by processor time"), "requests/s", &sides, &by_processor);
}

/// The environment variable that makes this process the client, with the address to call.
const CLIENT: &str = "ASK";

/// Sends requests for a while, and prints the number of responses and the seconds.
fn client(address: SocketAddr) {
    let length = Duration::from_secs_f64(rounds::setting("SECONDS", 0.25));
    let client = runtime::Builder::new_current_thread().enable_all().build();
    let requests: Vec<_> = (0..USERS)
        .map(|user| format!("GET / HTTP/1.1\r\nhost: localhost\r\n{USER}: user-{user:08}\r\n\r\n"))
        .collect();
    let responses = client
        .expect("the runtime starts")
        .block_on(load(address, &requests, length));
    let (count, seconds) = responses.unwrap_or_else(|error| panic!("{address}: {error}"));
    println!("{count} {seconds}");
}

/// The number of responses, and the seconds in which they came.
fn ask_from_another_process(address: SocketAddr) -> (f64, f64) {
    let own = env::current_exe().expect("this program is a file");
    let client = Command::new(own)
        .env(CLIENT, address.to_string())
        .stderr(Stdio::inherit())
        .output();
    let client = client.expect("the client starts");
    let printed = String::from_utf8(client.stdout).expect("it prints numbers");
    let mut numbers = printed.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(count)), Some(Ok(seconds))) => (count, seconds),
        _ => panic!("the client printed {printed:?}"),
    }
}

const SERVICES: usize = 5;

fn services() -> [(&'static str, Router); SERVICES] {
    let hello = || Router::new().route("/", get(|| async { "hello" }));
    let governor = GovernorLayer::<User, _, Body>::new(governor());
    [
        ("bare", hello()),
        (
            "a layer that sets two fields",
            hello().layer(MapResponseLayer::new(with_two_fields)),
        ),
        ("tower_governor, one window", hello().layer(governor)),
        ("tower-quota, one window", hello().layer(layer(1))),
        ("tower-quota, three windows", hello().layer(layer(3))),
    ]
}

/// Fields as long as ours of three windows, one of them made for each response.
fn with_two_fields(response: Response<Body>) -> Response<Body> {
    const LIMITS: &str =
        r#""second";r=499999999;t=49999999, "minute";r=499999999;t=299999999, "day";r=499999999;t=8639999999"#;
    const POLICIES: &str = r#""second";q=10;w=1, "minute";q=100;w=60, "day";q=5000;w=86400"#;

    let (mut head, body) = response.into_parts();
    let limits = HeaderValue::from_str(LIMITS).expect("it is ASCII");
    head.headers.insert("ratelimit", limits);
    head.headers
        .insert("ratelimit-policy", HeaderValue::from_static(POLICIES));
    Response::from_parts(head, body)
}

fn serve(server: &Runtime, service: Router) -> SocketAddr {
    let listener = server
        .block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    server.spawn(async { axum::serve(listener, service).await });
    address
}

/// The number of responses, and the seconds in which they came.
async fn load(address: SocketAddr, requests: &[String], length: Duration) -> io::Result<(u64, f64)> {
    let is_over = Cell::new(false);
    let connections = (1..=CONNECTIONS).map(|seed| ask(address, requests, seed, &is_over));
    let start = Instant::now();
    let timer = async {
        tokio::time::sleep(length).await;
        is_over.set(true);
        Ok(())
    };
    let (counts, ()) = tokio::try_join!(try_join_all(connections), timer)?;
    Ok((counts.iter().sum(), start.elapsed().as_secs_f64()))
}

/// Sends requests of random users one after the other until it is over, and counts the responses.
async fn ask(address: SocketAddr, requests: &[String], seed: u64, is_over: &Cell<bool>) -> io::Result<u64> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut count, mut buffer) = (0, [0; 2048]);
    for random in Random::new(seed) {
        if is_over.get() {
            break;
        }
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

/// Returns `true` if this is all of a response that ends with the body of the handler. Anything but that and 200 is an error.
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
