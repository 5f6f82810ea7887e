//! A closed loop: a fixed number of tasks, each with one request in flight. It measures the maximum number of
//! decisions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::{Bench, joined, named};
use crate::{
    peers::{self, Answer, Limiter, Peer, Windows},
    table::{self, Values},
};

const HEAD: [&str; 8] = [
    "",
    "decisions/s",
    "÷ bare script (range)",
    "÷ tower-quota (range)",
    "Redis µs each",
    "commands each",
    "rejected",
    "no decision",
];

/// The number of answers of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    allowed: u64,
    rejected: u64,
    /// Uncounted and failed ones. They are not taken for decisions.
    others: u64,
}

impl Counts {
    fn add(&mut self, answer: Answer) {
        match answer {
            Answer::Allowed => self.allowed += 1,
            Answer::Rejected => self.rejected += 1,
            Answer::Uncounted | Answer::Failed(_) => self.others += 1,
        }
    }

    fn decisions(self) -> f64 {
        (self.allowed + self.rejected) as f64
    }

    fn sum(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            rejected: self.rejected + other.rejected,
            others: self.others + other.others,
        }
    }
}

struct Acquire {
    counts: Counts,
    seconds: f64,
    server_seconds: f64,
    commands: f64,
}

impl Bench<'_> {
    pub(super) fn closed(&self, title: &str, tasks: u64, users: u32, windows: Windows) -> Vec<Value> {
        let limiters = self.connect(windows);
        let turns = self.in_turns(&format!("{title}, {tasks} tasks"), limiters.len(), |index| {
            let (_, limiter) = &limiters[index];
            let before = self.server.counters();
            let start = Instant::now();
            let counts = self.block_on(ask_all_the_time(limiter, tasks, users, self.options.length));
            let seconds = start.elapsed().as_secs_f64();
            let used = self.server.counters().since(before);
            Acquire {
                counts,
                seconds,
                server_seconds: used.cpu_seconds,
                commands: used.commands,
            }
        });
        let rate = |turn: &Acquire| turn.counts.decisions() / turn.seconds;
        let rates: Vec<_> = turns.iter().map(|turns| Values::of(turns, rate)).collect();
        let sides = limiters.iter().zip(&turns).zip(&rates);
        let sides: Vec<_> = sides
            .map(|(((peer, _), turns), rates)| Side::new(peer, turns, rates))
            .collect();
        let rows: Vec<_> = sides.iter().map(|side| side.row(&rates)).collect();
        table::print(
            &format!("{title}: closed loop, {tasks} tasks, users: {users}"),
            &HEAD,
            &rows,
        );
        sides.iter().map(|side| side.json(title, tasks, &rates[1])).collect()
    }
}

/// All rounds of one limiter.
struct Side<'a> {
    peer: &'a Peer,
    rates: &'a Values,
    counts: Counts,
    /// Microseconds of the server for a decision.
    cpu: Values,
    /// Commands of the server for a decision.
    commands: Values,
}

impl<'a> Side<'a> {
    fn new(peer: &'a Peer, turns: &[Acquire], rates: &'a Values) -> Self {
        Self {
            peer,
            rates,
            counts: turns.iter().fold(Counts::default(), |sum, turn| sum.sum(turn.counts)),
            cpu: Values::of(turns, |turn| 1e6 * turn.server_seconds / turn.counts.decisions()),
            commands: Values::of(turns, |turn| turn.commands / turn.counts.decisions()),
        }
    }

    /// `all` are the rates of all limiters.
    fn row(&self, all: &[Values]) -> Vec<String> {
        vec![
            self.peer.name.to_owned(),
            format!("{:.0}", self.rates.median()),
            self.rates.over(&all[0]).ratio(),
            self.rates.over(&all[1]).ratio(),
            format!("{:.1}", self.cpu.median()),
            format!("{:.1}", self.commands.median()),
            format!("{:.1} %", 100.0 * self.counts.rejected as f64 / self.counts.decisions()),
            self.counts.others.to_string(),
        ]
    }

    fn json(&self, title: &str, tasks: u64, of_tower_quota: &Values) -> Value {
        joined([
            Map::from_iter([("title".to_owned(), json!(title)), ("tasks".to_owned(), json!(tasks))]),
            named(self.peer.name, peers::version(self.peer.package)),
            self.rates.fields("decisions_per_second"),
            self.rates.over(of_tower_quota).fields("of_tower_quota"),
            self.cpu.fields("redis_us_per_decision"),
            self.commands.fields("commands_per_decision"),
            Map::from_iter([("undecided".to_owned(), json!(self.counts.others))]),
        ])
    }
}

async fn ask_all_the_time(limiter: &Limiter, tasks: u64, users: u32, length: Duration) -> Counts {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut running = JoinSet::new();
    for seed in 1..=tasks {
        let (limiter, is_over) = (limiter.clone(), Arc::clone(&is_over));
        running.spawn(async move {
            let (mut counts, mut random) = (Counts::default(), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            while !is_over.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let answer = limiter.ask((random % u64::from(users)) as u32).await;
                counts.add(answer);
                if !answer.is_decision() {
                    // Without Redis an answer may be there at once, and then nothing would give way to other tasks.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            counts
        });
    }
    tokio::time::sleep(length).await;
    is_over.store(true, Ordering::Relaxed);
    running
        .join_all()
        .await
        .into_iter()
        .fold(Counts::default(), Counts::sum)
}
