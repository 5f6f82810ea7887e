//! A Redis that is some way off: how many requests pass uncounted, and what the layer adds to them.

use std::{
    array,
    convert::Infallible,
    fmt,
    future::{Future, Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Request, Response};
use redis::{IntoConnectionInfo, io::tcp::TcpSettings};
use test_kit::{Mode, Proxy, RedisServer};
use tokio::runtime::{self, Runtime};
use tower::{Layer, Service, service_fn, util::ServiceFn};
use tower_quota::{QuotaPolicy, RateLimit, RateLimitLayer, RedisStore, key};

use super::{
    example::{
        generator::Load,
        options::{Mode as LoadMode, Options},
        tally::Tally,
        users::UserId,
    },
    table::{Table, percent},
};

const RATE: u64 = 1_500;
const SECONDS: u64 = 2;
const ROUNDS: usize = 7;

/// The default of a layer.
const DEADLINE: Duration = Duration::from_millis(50);

/// There and back, at least and at most, in milliseconds.
const WAYS: [(u64, u64); 5] = [(20, 20), (24, 24), (30, 30), (40, 40), (25, 35)];

type Inner = ServiceFn<fn(Request<String>) -> Ready<Result<Response<String>, Infallible>>>;

pub fn measure(runtime: &Runtime, table: &mut Table) {
    let server = RedisServer::start();
    // The way must not wait for the instance's processors more than it has to.
    let outside = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for (least, most) in WAYS {
        let proxy = outside.block_on(Proxy::start(server.port()));
        proxy.set_mode(mode(least, most));
        let name = format!("Redis {} away, {RATE} requests a second", distance(least, most));
        table.progress(&format!("  {name}: {ROUNDS} rounds of {SECONDS} s each, in turn"));
        let [bare, alone, shared] = rounds(runtime, &proxy);
        let nearest = most + 10;
        let wanted = format!("≤ 1 % uncounted, ≤ 0.5 points more than with one decision per call, p99 ≤ {nearest} ms");
        let pairs = shared.uncounted.iter().zip(&alone.uncounted);
        let is_met = median(shared.uncounted.iter().copied()) <= 1.0
            && median(pairs.map(|(shared, alone)| shared - alone)) <= 0.5
            && median(shared.p99.iter().copied()) <= nearest as f64;
        for (what, rounds) in [("one `PING` each", &bare), ("one decision per call", &alone)] {
            table.add(format!("{name}: {what}"), rounds.to_string(), "for comparison", true);
        }
        table.add(name, shared.to_string(), wanted, is_met);
    }
}

/// The rounds of one kind of service, in their order: shares in percent, and milliseconds.
#[derive(Default)]
struct Rounds {
    uncounted: Vec<f64>,
    p99: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, tally: &Tally, uncounted: u64) {
        self.uncounted.push(percent(uncounted, tally.answered()));
        self.p99
            .push(tally.latencies().percentile(99.0).as_secs_f64() * 1_000.0);
    }
}

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uncounted = median(self.uncounted.iter().copied());
        write!(
            f,
            "{uncounted:.2} % uncounted, p99 {:.1} ms",
            median(self.p99.iter().copied())
        )
    }
}

/// The median, because a brief stall of the machine spoils one round. Consecutive rounds are compared with each other.
fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<_> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// `PING`, one decision per call, and shared calls, in turn.
fn rounds(runtime: &Runtime, proxy: &Proxy) -> [Rounds; 3] {
    let late = Arc::new(AtomicU64::new(0));
    let bare = runtime.block_on(bare(proxy, Arc::clone(&late)));
    let (alone, shared) = (instance(proxy, Some(1)), instance(proxy, None));
    // Connections are opened, and the script is loaded.
    for service in [&alone, &shared] {
        run(runtime, service);
    }
    let mut rounds = <[Rounds; 3]>::default();
    for _ in 0..ROUNDS {
        let pings = run(runtime, &bare);
        rounds[0].add(&pings, late.swap(0, Ordering::Relaxed));
        for (service, rounds) in [&alone, &shared].into_iter().zip(&mut rounds[1..]) {
            let tally = run(runtime, service);
            rounds.add(&tally, tally.failed_open.count());
        }
    }
    rounds
}

/// A service that only sends `PING` to the server, and counts the replies that arrive after the default deadline.
async fn bare(
    proxy: &Proxy,
    late: Arc<AtomicU64>,
) -> impl Service<
    Request<String>,
    Response = Response<String>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<String>, Infallible>> + Send + 'static,
> + Clone
+ Send
+ 'static {
    let at_once = TcpSettings::default().set_nodelay(true);
    let server = proxy.url().into_connection_info().unwrap().set_tcp_settings(at_once);
    let client = redis::Client::open(server).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    service_fn(move |_| {
        let (mut connection, late) = (connection.clone(), Arc::clone(&late));
        async move {
            let asked = Instant::now();
            let _: String = redis::cmd("PING").query_async(&mut connection).await.unwrap();
            late.fetch_add(u64::from(asked.elapsed() > DEADLINE), Ordering::Relaxed);
            Ok(Response::default())
        }
    })
}

fn distance(least: u64, most: u64) -> String {
    match least == most {
        true => format!("{most} ms"),
        false => format!("{least}–{most} ms"),
    }
}

/// Half of it each way.
fn mode(least: u64, most: u64) -> Mode {
    let half = |milliseconds| Duration::from_micros(milliseconds * 500);
    match least == most {
        true => Mode::Delay(half(most)),
        false => Mode::Jitter(half(least), half(most)),
    }
}

fn inner() -> Inner {
    service_fn(|_| ready(Ok(Response::default())))
}

/// One instance with default settings, but for how many decisions share a call.
fn instance(proxy: &Proxy, decisions: Option<usize>) -> RateLimit<Inner> {
    let builder = RedisStore::builder(proxy.url());
    let builder = match decisions {
        Some(decisions) => builder.decisions_per_call(decisions),
        None => builder,
    };
    let layer = RateLimitLayer::builder(builder.build().unwrap())
        .scope("distance")
        .key(key::extension::<UserId>())
        .policy(QuotaPolicy::per_second("second", 1_000))
        .policy(QuotaPolicy::per_minute("minute", 10_000))
        .policy(QuotaPolicy::per_day("day", 1_000_000))
        .build()
        .unwrap();
    layer.layer(inner())
}

fn run<S, B>(runtime: &Runtime, service: &S) -> Tally
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let options = Options {
        rate: RATE,
        seconds: SECONDS,
        users: 10_000,
        skew: 0.0,
        mode: LoadMode::Normal,
        redis_url: None,
        p99: 5,
        decisions_per_call: 1,
        delay: 0,
        outputs: Default::default(),
    };
    let mut load = Load::start(runtime, array::from_fn(|_| service.clone()), &options, 0);
    let length = Duration::from_secs(SECONDS);
    let mut tally = load.watch(length, length, |_| {});
    tally.add(&load.finish().1);
    tally
}
