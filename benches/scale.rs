//! The inputs of docs/SCALE.md, and its tables.
//!
//!     cargo bench -p tower-quota-tests --bench scale
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`. Each line is the median of `ROUNDS` (5)
//! rounds of `DECISIONS` (100,000) for 50,000 users. The server time is the CPU time of its process (`INFO cpu`), which
//! includes reading, scripts and writing. The instance time is the CPU time of this process (`schedstat`, on Linux
//! only), which has one task for each request in flight. Bytes come from `INFO stats` and, for memory, from the
//! growth of `used_memory` with `CALLERS` (200,000) users.
//!
//! For prefetch, set `PREFETCHED` (0.01) to the result of `cargo bench -p tower-quota-tests --bench prefetch` for a
//! round trip of 80 ms.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

#[path = "scale/model.rs"]
mod model;
mod rounds;

use std::{convert::Infallible, time::Duration};

use futures_util::{StreamExt, stream};
use http::{Request, Response};
use test_kit::RedisServer;
use tokio::{runtime::Runtime, time::timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    Limiter, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayerBuilder, RedisStore, Scope, Store, key,
};

use self::rounds::{
    Values, own_seconds,
    server::{flush, info, reset_statistics, script_calls, seconds},
};

const USERS: u64 = 50_000;
const POLICIES: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("second", 1_000),
    QuotaPolicy::per_minute("minute", 10_000),
    QuotaPolicy::per_day("day", 500_000),
];

/// The resources that one decision took.
#[derive(Clone, Copy, Default)]
struct Took {
    server_micros: f64,
    instance_micros: f64,
    bytes: f64,
    together: f64,
}

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let (server, runtime) = (RedisServer::start(), Runtime::new().expect("the runtime starts"));
    println!(
        "{:44} {:>10} {:>12} {:>8} {:>10}",
        "a decision about", "server us", "instance us", "bytes", "in a call"
    );
    let line = |name: &str, policies: usize, partitions: usize, together: Option<usize>, tasks: usize| {
        let took = median(|| {
            let plan = |user| plan(policies, partitions, user);
            within(&runtime, decide(&server, plan, together, tasks))
        });
        print(name, took)
    };
    line("one policy, alone in a call", 1, 1, Some(1), 64);
    let alone = line("three policies, alone", 3, 1, Some(1), 64);
    line("three policies and one of another partition", 3, 2, Some(1), 64);
    line("one policy, shared calls", 1, 1, None, 512);
    let shared = line("three policies, shared", 3, 1, None, 512);
    line("the same and one of another partition, shared", 3, 2, None, 512);
    let whole = |name: &str, policies: &[QuotaPolicy], users| {
        let took = median(|| within(&runtime, layer(&server, policies, users)));
        print(name, took)
    };
    let layer = whole("the whole layer, three policies, shared", &POLICIES, USERS);
    let hot = QuotaPolicy::per_minute("minute", 1_000_000_000).with_prefetch(10_000);
    whole("the whole layer, one hot caller, prefetch", &[hot], 1);
    let one = within(&runtime, memory(&server, 1));
    let caller = within(&runtime, memory(&server, 3));
    println!("bytes of memory for a caller: {one:.0} with one policy, {caller:.0} with three\n");

    let prefetched = rounds::setting("PREFETCHED", 0.01);
    let values = [
        format!("{:.1}", alone.server_micros),
        format!("{:.1}", shared.server_micros),
        format!("{:.0}", shared.together),
        format!("{:.0}", alone.bytes),
        format!("{:.0}", shared.bytes),
        format!("{caller:.0}"),
        format!("{:.1}", layer.instance_micros),
        prefetched.to_string(),
    ];
    let page = page(&values);
    let inputs = model::Inputs::read(&page).expect("all of them are there");
    println!("{page}\n{}", inputs.tables());
}

/// Panics if a round hangs: a store without a layer has no deadline, so it would wait forever for a lost reply. The
/// longest round takes about ten seconds.
fn within<T>(runtime: &Runtime, round: impl Future<Output = T>) -> T {
    const PATIENCE: Duration = Duration::from_secs(300);

    let round = runtime.block_on(async { timeout(PATIENCE, round).await });
    round.expect("a round ends within five minutes; is the server overloaded?")
}

/// The table of the inputs, as the page has it.
fn page(values: &[String]) -> String {
    let rows = model::NAMES.iter().zip(values);
    let rows = rows.map(|(name, value)| format!("| {name} | {value} |\n"));
    format!("| input | measured |\n|---|---|\n{}", rows.collect::<String>())
}

fn print(name: &str, took: Took) -> Took {
    println!(
        "{name:44} {:>10.2} {:>12.2} {:>8.0} {:>10.1}",
        took.server_micros, took.instance_micros, took.bytes, took.together
    );
    took
}

/// The median of each figure.
fn median(mut measure: impl FnMut() -> Took) -> Took {
    let rounds: Vec<_> = (0..rounds::setting("ROUNDS", 5)).map(|_| measure()).collect();
    let of = |figure: fn(&Took) -> f64| rounds.iter().map(figure).collect::<Values>().median();
    Took {
        server_micros: of(|took| took.server_micros),
        instance_micros: of(|took| took.instance_micros),
        bytes: of(|took| took.bytes),
        together: of(|took| took.together),
    }
}

fn policies(number: usize) -> PolicySet {
    PolicySet::new(POLICIES[..number].iter().cloned()).expect("the policies are valid")
}

fn plan(number: usize, partitions: usize, user: u64) -> Plan {
    let scope = Scope::new("scale");
    let partition = |kind: &str| scope.partition(&PartitionKey::new(kind, user.to_le_bytes()));
    let plan = Plan::new(policies(number), partition("user"), 1);
    match partitions {
        1 => plan,
        _ => {
            let address = PolicySet::new([QuotaPolicy::per_minute("address", 100_000)]);
            plan.and(address.expect("the policy is valid"), partition("address"))
        }
    }
}

async fn decide(server: &RedisServer, plan: impl Fn(u64) -> Plan, together: Option<usize>, tasks: usize) -> Took {
    flush(server);
    let builder = RedisStore::builder(server.url());
    let builder = match together {
        Some(decisions) => builder.decisions_per_call(decisions),
        None => builder,
    };
    let store = builder.build().expect("the settings are valid");
    store.decide(plan(0)).await.expect("the server answers");
    took(server, async |decisions| {
        let decisions = stream::iter(0..decisions).map(|number| store.decide(plan(number % USERS)));
        let mut decisions = decisions.buffer_unordered(tasks);
        while let Some(decision) = decisions.next().await {
            decision.expect("the server answers");
        }
    })
    .await
}

/// Requests through a layer with these policies.
async fn layer(server: &RedisServer, policies: &[QuotaPolicy], users: u64) -> Took {
    flush(server);
    let store = RedisStore::new(server.url()).expect("the URL is valid");
    let builder = RateLimitLayerBuilder::from(Limiter::builder(store).deadline(Duration::from_secs(30)))
        .scope("scale")
        .key(key::extension::<u64>());
    let policies = policies.iter().cloned();
    let builder = policies.fold(builder, |builder, policy| builder.policy(policy));
    let layer = builder.build().expect("the settings are valid");
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let service = layer.layer(inner);
    took(server, async |requests| {
        let requests = stream::iter(0..requests).map(|number| {
            let mut request = Request::new(String::new());
            request.extensions_mut().insert(number % users);
            service.clone().oneshot(request)
        });
        let mut responses = requests.buffer_unordered(512);
        while let Some(response) = responses.next().await {
            response.expect("it cannot fail");
        }
    })
    .await
}

/// Makes `DECISIONS` decisions and returns the resources of one.
async fn took(server: &RedisServer, decide: impl AsyncFn(u64)) -> Took {
    let decisions = rounds::setting("DECISIONS", 100_000_u64);
    reset_statistics(server);
    let before = (seconds(server), own_seconds());
    decide(decisions).await;
    let after = (seconds(server), own_seconds());
    let each = |figure: f64| figure / decisions as f64;
    let bytes = info(server, "stats", "total_net_input_bytes:") + info(server, "stats", "total_net_output_bytes:");
    Took {
        server_micros: each((after.0 - before.0) * 1e6),
        instance_micros: each((after.1 - before.1) * 1e6),
        bytes: each(bytes),
        together: decisions as f64 / script_calls(server).max(1.0),
    }
}

/// Bytes by which the server grows for each caller.
async fn memory(server: &RedisServer, policies: usize) -> f64 {
    server.command(&["FLUSHALL", "SYNC"]);
    let store = RedisStore::new(server.url()).expect("the URL is valid");
    let callers = rounds::setting("CALLERS", 200_000_u64);
    let before = info(server, "memory", "used_memory:");
    let decisions = stream::iter(0..callers).map(|user| {
        // So many that none expires while it is counted.
        let user = PartitionKey::new("user", user.to_le_bytes());
        let partition = Scope::new("memory").partition(&user);
        store.decide(Plan::new(long(policies), partition, 5))
    });
    let mut decisions = decisions.buffer_unordered(512);
    while let Some(decision) = decisions.next().await {
        decision.expect("the server answers");
    }
    let keys: f64 = server.command(&["DBSIZE"]).parse().expect("a number");
    (info(server, "memory", "used_memory:") - before) / keys
}

/// Policies whose counts last.
fn long(number: usize) -> PolicySet {
    let policies = [
        QuotaPolicy::per_day("day", 5_000),
        QuotaPolicy::per_hour("hour", 1_000),
        QuotaPolicy::per_minute("minute", 100),
    ];
    PolicySet::new(policies.into_iter().take(number)).expect("the policies are valid")
}
