//! Rejections: the time of one, and how many all processors make in a second.
//!
//!     cargo bench -p tower-quota-tests --bench rejections
//!
//! All sides are whole requests through the layer, including the making of the request, of one caller whose quota is
//! exhausted. A `MemoryStore` decides each; one that completes asynchronously, like a remote store, but on the first
//! poll, leaves all but one to the rejection cache. The response has a status only, or all that a rejection has: fields,
//! `Retry-After` and the problem. The sides are measured in turns; the end has the rejections per second of one thread,
//! and of as many as there are processors.
//!
//! `SIDE=2` makes the requests of one side alone, by its place in the table from 0 on, for a profiler; `TIMES` is how
//! many (10,000).

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod limits;
mod rounds;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Empty;
use test_kit::RemoteStore;
use tower::{Layer, Service, service_fn};
use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, ResponseFields, Store};

use self::{
    limits::{POLICIES, USER},
    rounds::Side,
};

const ROUNDS: usize = 21;
/// One request a day.
const ONE: QuotaPolicy = QuotaPolicy::per_day("day", 1);

type Body = Empty<Bytes>;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime without threads");
    let _context = runtime.enter();
    let mut sides = sides(rounds::setting("TIMES", 10_000));
    let alone = rounds::setting("SIDE", usize::MAX);
    if let Some(side) = sides.get_mut(alone) {
        side.measure();
        return;
    }
    let rounds = if rounds::is_asked_for() { ROUNDS } else { 1 };
    let values = rounds::measure(rounds, &mut sides);
    rounds::print("rejected", "ns", &sides, &values);
    together(&runtime);
}

/// A layer whose quota for the caller is exhausted.
fn exhausted(
    store: impl Store,
    policies: impl IntoIterator<Item = QuotaPolicy>,
    has_status_only: bool,
) -> RateLimitLayer {
    let mut builder = limits::builder(store, policies);
    if has_status_only {
        builder = builder
            .response_fields(ResponseFields::none())
            .respond_with(|rejection| {
                let mut response = Response::new(Bytes::new());
                *response.status_mut() = rejection.status();
                response
            });
    }
    let layer = builder.build().expect("the settings are sound");
    assert_eq!(send(&mut layer.layer(service_fn(answer))), StatusCode::OK);
    layer
}

fn in_memory(policies: impl IntoIterator<Item = QuotaPolicy>, has_status_only: bool) -> RateLimitLayer {
    exhausted(MemoryStore::new(), policies, has_status_only)
}

fn cached(has_status_only: bool) -> RateLimitLayer {
    exhausted(RemoteStore::<0>::default(), [ONE], has_status_only)
}

fn answer(_: Request<Body>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new(Empty::new())))
}

fn send<S, B>(service: &mut S) -> StatusCode
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut request = Request::new(Empty::new());
    request.headers_mut().insert(USER, HeaderValue::from_static("alice"));
    let response = service.call(request).now_or_never().expect("nothing here waits");
    response.expect("nothing here fails").status()
}

/// Nanoseconds for each request.
fn side<'a, S, B>(name: &'static str, mut service: S, status: StatusCode, times: u32) -> Side<'a>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + 'a,
{
    Side::new(name, move || {
        let start = Instant::now();
        for _ in 0..times {
            assert_eq!(send(&mut service), status);
        }
        start.elapsed().as_nanos() as f64 / f64::from(times)
    })
}

fn sides<'a>(times: u32) -> Vec<Side<'a>> {
    let [second, minute, _] = POLICIES;
    // No unit is restored while they are measured.
    let all = ["one", "two", "three"].map(|name| QuotaPolicy::per_day(name, 1));
    let rejecting = [
        ("MemoryStore, one window", in_memory([ONE], false)),
        (
            "MemoryStore, one of three windows",
            in_memory([second, minute, ONE], false),
        ),
        ("MemoryStore, all three windows", in_memory(all, false)),
        ("MemoryStore, one window, status only", in_memory([ONE], true)),
        ("cached", cached(false)),
        ("cached, status only", cached(true)),
    ];
    let rejecting = rejecting.map(|(name, layer)| {
        let service = layer.layer(service_fn(answer));
        side(name, service, StatusCode::TOO_MANY_REQUESTS, times)
    });
    let mut sides = vec![side("no layer", service_fn(answer), StatusCode::OK, times)];
    sides.extend(rejecting);
    sides
}

/// All processors reject the same caller.
fn together(runtime: &tokio::runtime::Runtime) {
    const TIME: Duration = Duration::from_millis(500);

    let sides = [
        ("cached, status only", cached(true)),
        ("cached, fields and problem", cached(false)),
        ("MemoryStore, status only", in_memory([ONE], true)),
    ];
    println!("\nrejections of one caller");
    let most = thread::available_parallelism().map_or(1, usize::from);
    for ((name, layer), threads) in sides.iter().flat_map(|side| [1, most].map(|threads| (side, threads))) {
        let reject = || {
            let _context = runtime.enter();
            let mut service = layer.layer(service_fn(answer));
            let (start, mut count) = (Instant::now(), 0_u64);
            while start.elapsed() < TIME {
                for _ in 0..100 {
                    assert_eq!(send(&mut service), StatusCode::TOO_MANY_REQUESTS);
                }
                count += 100;
            }
            count as f64 / start.elapsed().as_secs_f64()
        };
        let sum: f64 = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(reject)).collect();
            let rates = threads.into_iter().map(|thread| thread.join());
            rates.map(|rate| rate.expect("it does not panic")).sum()
        });
        println!(
            "  {name}, {threads} threads: {sum:.0} a second, {:.0} by each",
            sum / threads as f64
        );
    }
}
