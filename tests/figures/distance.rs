//! A Redis that is some way off: how many requests pass uncounted, and what the layer adds to them.

use std::{
    array,
    convert::Infallible,
    future::{Ready, ready},
    time::Duration,
};

use http::{Request, Response};
use tokio::runtime::{self, Runtime};
use tower::{Layer, service_fn, util::ServiceFn};
use tower_quota::{QuotaPolicy, RateLimit, RateLimitLayer, RedisStore, key};

use super::{
    example::{
        generator::Load,
        options::{Mode as LoadMode, Options},
        progress::Progress,
        support::{Mode, Proxy, RedisServer},
        tally::Tally,
        users::UserId,
    },
    table::{Table, milliseconds, percent},
};

const RATE: u64 = 1_500;
const SECONDS: u64 = 7;

/// There and back, at least and at most, in milliseconds.
const WAYS: [(u64, u64); 5] = [(20, 20), (24, 24), (30, 30), (40, 40), (25, 35)];

type Inner = ServiceFn<fn(Request<()>) -> Ready<Result<Response<String>, Infallible>>>;

struct Shares {
    uncounted: f64,
    p99: Duration,
}

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
        let [alone, shared] = [Some(1), None].map(|decisions| {
            let name = format!("{} away, {}", distance(least, most), calls(decisions));
            table.progress(&format!("  {name}: {SECONDS} s of {RATE} requests a second"));
            load(runtime, &proxy, decisions)
        });
        let most = Duration::from_millis(most);
        let told = |shares: &Shares| format!("{:.2} % uncounted, p99 {}", shares.uncounted, milliseconds(shares.p99));
        let is_near = |shares: &Shares| shares.p99 <= most + Duration::from_millis(10);
        let name = format!(
            "Redis {} away, {RATE} requests a second",
            distance(least, most.as_millis() as u64)
        );
        table.add(
            format!("{name}, one decision per call"),
            told(&alone),
            "for comparison",
            true,
        );
        table.add(
            name,
            told(&shared),
            format!(
                "≤ 1 % uncounted, ≤ 0.5 points more than with one decision per call, p99 ≤ {} ms",
                most.as_millis() + 10
            ),
            shared.uncounted <= 1.0 && shared.uncounted <= alone.uncounted + 0.5 && is_near(&shared),
        );
    }
}

fn distance(least: u64, most: u64) -> String {
    match least == most {
        true => format!("{most} ms"),
        false => format!("{least}–{most} ms"),
    }
}

fn calls(decisions: Option<usize>) -> &'static str {
    match decisions {
        Some(_) => "one decision per call",
        None => "shared calls",
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

fn load(runtime: &Runtime, proxy: &Proxy, decisions: Option<usize>) -> Shares {
    let service = instance(proxy, decisions);
    // Connections are opened, and the script is loaded.
    run(runtime, &service, 2);
    let tally = run(runtime, &service, SECONDS);
    Shares {
        uncounted: percent(tally.failed_open.count(), tally.answered()),
        p99: tally.latencies().percentile(99.0),
    }
}

fn run(runtime: &Runtime, service: &RateLimit<Inner>, seconds: u64) -> Tally {
    let options = Options {
        rate: RATE,
        seconds,
        users: 10_000,
        skew: 0.0,
        mode: LoadMode::Normal,
        redis_url: None,
        decisions_per_call: 1,
        delay: 0,
    };
    let mut load = Load::start(runtime, array::from_fn(|_| service.clone()), &options);
    let mut tally = load.watch(Duration::from_secs(seconds), &mut Progress::new(), "  ");
    tally.add(&load.finish().1);
    tally
}
