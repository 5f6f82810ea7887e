//! The cost of a decision that is made in this process.

use std::time::Instant;

use serde_json::Value;

use super::{Bench, WIDE, joined, named};
use crate::{
    peers::{self, Limiter, Local},
    table::{self, Values},
};

/// Requests between two looks at the time.
const BATCH: u32 = 256;

impl Bench<'_> {
    pub(super) fn memory(&self) -> Vec<Value> {
        let locals = peers::all_local();
        let locals = locals.iter().enumerate();
        let locals: Vec<_> = locals
            .filter(|(index, local)| self.options.includes(*index, local.name))
            .map(|(_, local)| local)
            .collect();
        let [second, ..] = WIDE;
        let one = self.net_times("Memory, one window", &locals, |local| (local.one)(second));
        let three = self.net_times("Memory, three windows", &locals, |local| (local.three)(WIDE));
        let rows: Vec<_> = locals
            .iter()
            .enumerate()
            .skip(1)
            .map(|(index, local)| row(local, [&one, &three], index))
            .collect();
        let title = format!(
            "In memory: one request at a time, users: {}; nanoseconds beyond the same service without a limiter",
            self.options.users
        );
        let head = [
            "",
            "version",
            "fields",
            "one window",
            "÷ tower-quota (range)",
            "three windows",
            "÷ tower-quota (range)",
        ];
        table::print(&title, &head, &rows);
        let results = locals.iter().enumerate().skip(1).map(|(index, local)| {
            joined([
                named(local.name, peers::version(local.package)),
                one[index].fields("one_window_ns"),
                three[index].fields("three_windows_ns"),
            ])
        });
        results.collect()
    }

    /// Nanoseconds a request, without what the service and the request take.
    fn net_times(&self, title: &str, locals: &[&Local], limiter: impl Fn(&Local) -> Limiter) -> Vec<Values> {
        // Some start a task that tidies up.
        let _inside = self.runtime.enter();
        let limiters: Vec<_> = locals.iter().map(|local| limiter(local)).collect();
        let turns = self.in_turns(title, limiters.len(), |index| {
            self.time_each(locals[index], &limiters[index])
        });
        let bare = turns[0].clone();
        let net = |turns: &Vec<f64>| {
            let pairs: Vec<_> = turns.iter().zip(&bare).collect();
            Values::of(&pairs, |(time, bare)| *time - *bare)
        };
        turns.iter().map(net).collect()
    }

    fn time_each(&self, local: &Local, limiter: &Limiter) -> f64 {
        self.block_on(async {
            let (start, mut requests, mut random) = (Instant::now(), 0, 0x9e37_79b9_7f4a_7c15_u64);
            while start.elapsed() < self.options.length {
                for _ in 0..BATCH {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let answer = limiter.ask((random % u64::from(self.options.users)) as u32).await;
                    assert!(answer.is_decision(), "{}: {answer:?}", local.name);
                }
                requests += BATCH;
            }
            start.elapsed().as_nanos() as f64 / f64::from(requests)
        })
    }
}

fn row(local: &Local, times: [&[Values]; 2], index: usize) -> Vec<String> {
    let mut row = vec![
        local.name.to_owned(),
        peers::version(local.package).to_owned(),
        local.fields.to_owned(),
    ];
    for times in times {
        row.push(format!("{:.0}", times[index].median()));
        row.push(times[index].over(&times[1]).ratio());
    }
    row
}
