//! Cached rejections: how many a processor makes in a second, and what the cache costs admitted requests.
//!
//!     cargo bench -p tower-quota-tests --bench rejections
//!
//! One key, whose quota of one a day is exhausted, and a store that completes asynchronously, like a remote one, but on
//! the first poll. All sides are whole requests through the layer, including the making of the request, in turns.
//!
//! - *rejected*: the response has a status only, so that little more than the decision is measured, or all that a rejection
//!   has: fields, `Retry-After` and the problem. Beside them the same rejections by a `MemoryStore`, which answers at once and
//!   so is never cached.
//! - *passed*: requests of a key with plenty, without the cache, with an empty one, and while another key is rejected.
//! - At the end, how many rejections of the one key all processors make together.
//!
//! `SIDE=2` makes the requests of one side of *rejected* alone, by its place in the table from 0 on, for a profiler; `TIMES`
//! is how many (10 000).

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod rounds;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Empty;
use test_kit::RemoteStore;
use tower::{Layer, Service, service_fn};
use tower_quota::{
    Limiter, LimiterBuilder, MemoryStore, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, ResponseFields, Store,
    key,
};

use self::rounds::Side;

const USER: HeaderName = HeaderName::from_static("x-user-id");
const ROUNDS: usize = 21;
/// The requests in one turn of a side.
const TURN: u32 = 10_000;

type Body = Empty<Bytes>;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime without threads");
    let _context = runtime.enter();
    let alone = rounds::setting("SIDE", usize::MAX);
    if let Some(side) = rejecting(rounds::setting("TIMES", TURN)).get_mut(alone) {
        side.measure();
        return;
    }
    let rounds = if rounds::is_asked_for() { ROUNDS } else { 1 };
    rejected(rounds);
    passed(rounds);
    together(&runtime);
}

/// One request a day.
const ONE: QuotaPolicy = QuotaPolicy::per_day("day", 1);
/// More than are ever used here.
const PLENTY: QuotaPolicy = QuotaPolicy::per_second("second", 10).with_burst_capacity(500_000_000);

/// A layer with this policy. A `PUT` costs more than it ever lets pass.
fn layer(store: impl Store, policy: QuotaPolicy) -> RateLimitLayerBuilder {
    layer_of(Limiter::builder(store), policy)
}

fn layer_of(limiter: LimiterBuilder, policy: QuotaPolicy) -> RateLimitLayerBuilder {
    RateLimitLayerBuilder::from(limiter)
        .scope("bench")
        .key(key::header(USER.as_str()))
        .cost_by(|request| if request.method == Method::PUT { u64::MAX } else { 1 })
        .policy(policy)
}

/// Responses have a status and nothing else.
fn bare(builder: RateLimitLayerBuilder) -> RateLimitLayerBuilder {
    builder
        .response_fields(ResponseFields::none())
        .respond_with(|rejection| {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = rejection.status();
            response
        })
}

fn build(builder: RateLimitLayerBuilder) -> RateLimitLayer {
    builder.build().expect("the settings are sound")
}

/// A layer whose quota for alice is used up.
fn exhausted(builder: RateLimitLayerBuilder) -> RateLimitLayer {
    let layer = build(builder);
    assert_eq!(send(&mut layer.layer(service_fn(answer)), "alice"), StatusCode::OK);
    layer
}

fn answer(_: Request<Body>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new(Empty::new())))
}

fn send<S, B>(service: &mut S, user: &'static str) -> StatusCode
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut request = Request::new(Empty::new());
    request.headers_mut().insert(USER, HeaderValue::from_static(user));
    let response = service.call(request).now_or_never().expect("nothing here waits");
    response.expect("nothing here fails").status()
}

/// Nanoseconds for each request.
fn side<'a, S, B>(name: &'static str, mut service: S, user: &'static str, status: StatusCode, times: u32) -> Side<'a>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + 'a,
{
    Side::new(name, move || {
        let start = Instant::now();
        for _ in 0..times {
            assert_eq!(send(&mut service, user), status);
        }
        start.elapsed().as_nanos() as f64 / f64::from(times)
    })
}

/// The sides of *rejected*, with `times` requests per turn.
fn rejecting<'a>(times: u32) -> [Side<'a>; 5] {
    let status = StatusCode::TOO_MANY_REQUESTS;
    let limited = |name, layer: RateLimitLayer| side(name, layer.layer(service_fn(answer)), "alice", status, times);
    [
        side("no layer", service_fn(answer), "alice", StatusCode::OK, times),
        limited(
            "cached, status only",
            exhausted(bare(layer(RemoteStore::<0>::default(), ONE))),
        ),
        limited(
            "cached, fields and problem",
            exhausted(layer(RemoteStore::<0>::default(), ONE)),
        ),
        limited(
            "MemoryStore, status only",
            exhausted(bare(layer(MemoryStore::new(), ONE))),
        ),
        limited(
            "MemoryStore, fields and problem",
            exhausted(layer(MemoryStore::new(), ONE)),
        ),
    ]
}

fn rejected(rounds: usize) {
    let mut sides = rejecting(TURN);
    let values = rounds::measure(rounds, &mut sides);
    rounds::print("rejected", "ns", &sides, &values);
}

fn passed(rounds: usize) {
    let plenty = |name, builder| {
        let service = build(builder).layer(service_fn(answer));
        side(name, service, "bob", StatusCode::OK, TURN)
    };
    let attacked = build(layer(RemoteStore::<0>::default(), PLENTY));
    let mut attack = attacked.clone().layer(service_fn(answer));
    let mut attack = move || {
        let mut request = Request::put("/").body(Empty::new()).expect("it is a path");
        request.headers_mut().insert(USER, HeaderValue::from_static("mallory"));
        let response = attack.call(request).now_or_never().expect("nothing here waits");
        assert!(response.is_ok_and(|response| response.status() == StatusCode::TOO_MANY_REQUESTS));
    };
    let mut beside = attacked.layer(service_fn(answer));
    let mut sides = [
        plenty(
            "without the cache",
            layer_of(Limiter::builder(RemoteStore::<0>::default()).rejection_cache(0), PLENTY),
        ),
        plenty("with an empty cache", layer(RemoteStore::<0>::default(), PLENTY)),
        Side::new("while another key is rejected", move || {
            attack();
            let start = Instant::now();
            for _ in 0..TURN {
                assert_eq!(send(&mut beside, "bob"), StatusCode::OK);
            }
            start.elapsed().as_nanos() as f64 / f64::from(TURN)
        }),
    ];
    let values = rounds::measure(rounds, &mut sides);
    rounds::print("passed", "ns", &sides, &values);
}

/// All processors reject the same key.
fn together(runtime: &tokio::runtime::Runtime) {
    const TIME: Duration = Duration::from_millis(500);

    let sides = [
        (
            "cached, status only",
            exhausted(bare(layer(RemoteStore::<0>::default(), ONE))),
        ),
        (
            "cached, fields and problem",
            exhausted(layer(RemoteStore::<0>::default(), ONE)),
        ),
        (
            "MemoryStore, status only",
            exhausted(bare(layer(MemoryStore::new(), ONE))),
        ),
    ];
    println!("\nrejections of one key");
    let most = thread::available_parallelism().map_or(1, usize::from);
    for ((name, layer), threads) in sides.iter().flat_map(|side| [1, most].map(|threads| (side, threads))) {
        let reject = || {
            let _context = runtime.enter();
            let mut service = layer.layer(service_fn(answer));
            let (start, mut count) = (Instant::now(), 0_u64);
            while start.elapsed() < TIME {
                for _ in 0..100 {
                    assert_eq!(send(&mut service, "alice"), StatusCode::TOO_MANY_REQUESTS);
                }
                count += 100;
            }
            count as f64 / start.elapsed().as_secs_f64()
        };
        let rates: Vec<f64> = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(reject)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("it does not panic"))
                .collect()
        });
        let sum: f64 = rates.iter().sum();
        println!(
            "  {name}, {threads} threads: {sum:.0} a second, {:.0} by each",
            sum / threads as f64
        );
    }
}
