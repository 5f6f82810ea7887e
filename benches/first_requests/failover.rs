//! Requests around a failover of Sentinel.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use test_kit::{Sentinels, load::until_decided};
use tokio::{
    runtime::Runtime,
    task::{JoinSet, spawn_blocking},
    time::sleep_until,
};
use tower_quota::{Outcome, RateLimitLayer, RedisStore};

use super::{
    layer,
    rounds::{self, Values},
    timed,
};

const PERIOD: Duration = Duration::from_millis(1);
/// The time of requests before the failover and after it.
const AROUND: Duration = Duration::from_millis(500);

/// Ends the primary.
type End = fn(&Sentinels);

/// One failover. Times are in milliseconds.
struct Failover {
    /// The first request after the failover began, and the first one that was decided again.
    first: f64,
    first_decided: f64,
    slowest: f64,
    /// When the first sentinel named the new primary.
    named: f64,
    /// From then to the first request after which all were decided.
    beyond: f64,
    /// From the first undecided request to the first one after which all were decided.
    gap: f64,
    undecided: f64,
}

struct Sent {
    at: Instant,
    millis: f64,
    is_decided: bool,
}

pub(super) fn print(runtime: &Runtime) {
    let title = "failover, ms: median (maximum)";
    let columns = [
        "first",
        "first decided",
        "slowest",
        "named",
        "beyond",
        "undecided for",
        "undecided",
    ];
    println!(
        "\n{title:30}{}",
        columns.map(|column| format!(" {column:>14}")).concat()
    );
    let sides: [(&str, End); 3] = [
        ("the primary is killed", |sentinels| sentinels.servers[0].kill()),
        ("the primary hangs", |sentinels| sentinels.servers[0].pause()),
        ("SENTINEL FAILOVER", |sentinels| {
            let command = ["SENTINEL", "FAILOVER", Sentinels::SERVICE];
            assert_eq!(sentinels.sentinels[0].command(&command), "OK");
        }),
    ];
    for (name, end) in sides {
        let all: Vec<Failover> = (0..rounds::setting("FAILOVERS", 5))
            .map(|_| measure(runtime, end))
            .collect();
        let column = |value: fn(&Failover) -> f64| {
            let values: Values = all.iter().map(value).collect();
            let text = format!("{:.1} ({:.1})", values.median(), values.most());
            format!(" {text:>14}")
        };
        let values: [fn(&Failover) -> f64; 7] = [
            |failover| failover.first,
            |failover| failover.first_decided,
            |failover| failover.slowest,
            |failover| failover.named,
            |failover| failover.beyond,
            |failover| failover.gap,
            |failover| failover.undecided,
        ];
        println!("  {name:28}{}", values.map(column).concat());
    }
}

fn wait(condition: impl Fn() -> bool) {
    while !condition() {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns `true` if one of the sentinels names the replica as the primary.
fn is_named(sentinels: &Sentinels) -> bool {
    let port = sentinels.servers[1].port().to_string();
    let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Sentinels::SERVICE];
    let mut replies = sentinels.sentinels.iter().map(|sentinel| sentinel.command(&command));
    replies.any(|reply| reply.lines().nth(1) == Some(&port))
}

/// Returns `true` if the old primary neither responds nor is a primary.
fn has_ended(sentinels: &Sentinels) -> bool {
    let role = sentinels.servers[0].try_command(&["ROLE"], Duration::from_millis(100));
    !role.is_ok_and(|role| role.starts_with("master"))
}

fn measure(runtime: &Runtime, end: End) -> Failover {
    let sentinels = Sentinels::start();
    runtime.block_on(async {
        let store = RedisStore::sentinel(sentinels.urls(), Sentinels::SERVICE).expect("the URLs are valid");
        let layer = layer(store);
        until_decided(&layer, "alice").await;
        let is_over = Arc::new(AtomicBool::new(false));
        let load = tokio::spawn(send(layer.clone(), Arc::clone(&is_over)));
        let failing = spawn_blocking(move || {
            thread::sleep(AROUND);
            end(&sentinels);
            let start = Instant::now();
            wait(|| is_named(&sentinels));
            let named = start.elapsed();
            wait(|| has_ended(&sentinels));
            (sentinels, start, named)
        });
        let (sentinels, start, named) = failing.await.expect("the replica becomes the primary");
        until_decided(&layer, "alice").await;
        tokio::time::sleep(AROUND).await;
        is_over.store(true, Ordering::Relaxed);
        let sent = load.await.expect("no request panics");
        // Dropping servers blocks the thread.
        spawn_blocking(move || drop(sentinels)).await.expect("the servers end");
        evaluate(sent, start, named)
    })
}

async fn send(layer: RateLimitLayer, is_over: Arc<AtomicBool>) -> Vec<Sent> {
    let (mut requests, mut due) = (JoinSet::new(), Instant::now());
    while !is_over.load(Ordering::Relaxed) {
        sleep_until(due.into()).await;
        let layer = layer.clone();
        requests.spawn(async move {
            let at = Instant::now();
            let (millis, outcome) = timed(&layer).await;
            let is_decided = outcome != Outcome::FailedOpen;
            Sent { at, millis, is_decided }
        });
        due += PERIOD;
    }
    requests.join_all().await
}

fn evaluate(mut sent: Vec<Sent>, start: Instant, named: Duration) -> Failover {
    sent.retain(|sent| sent.at >= start);
    sent.sort_by_key(|sent| sent.at);
    let is_undecided = |sent: &Sent| !sent.is_decided;
    let first = sent.iter().position(is_undecided).unwrap_or(0);
    let decided = sent.iter().rposition(is_undecided).map_or(0, |last| last + 1);
    Failover {
        first: sent[0].millis,
        first_decided: sent[decided].millis,
        slowest: sent.iter().map(|sent| sent.millis).fold(0.0, f64::max),
        named: named.as_secs_f64() * 1e3,
        beyond: sent[decided].at.saturating_duration_since(start + named).as_secs_f64() * 1e3,
        gap: (sent[decided].at - sent[first].at).as_secs_f64() * 1e3,
        undecided: sent.iter().filter(|sent| is_undecided(sent)).count() as f64,
    }
}
