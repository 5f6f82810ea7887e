//! An open loop: requests come at their times, whether the ones before them were answered or not. How long one took
//! counts from the moment it was due, so a limiter that makes the others wait pays for it.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{runtime::Handle, sync::mpsc};

use super::{Bench, WIDE, joined, milliseconds, named};
use crate::{
    peers::{self, Answer, Limiter},
    table::{self, Values},
};

struct Acquire {
    middle: Duration,
    p99: Duration,
    others: usize,
}

impl Bench<'_> {
    pub(super) fn open(&self) -> Vec<Value> {
        let limiters = self.connect(WIDE);
        let turns = self.in_turns("Open loop", limiters.len(), |index| self.open_turn(&limiters[index].1));
        let tails: Vec<_> = turns
            .iter()
            .map(|turns| Values::of(turns, |turn| turn.p99.as_secs_f64()))
            .collect();
        let mut results = Vec::new();
        let rows: Vec<_> = (0..limiters.len())
            .map(|index| {
                let middles = Values::of(&turns[index], |turn| turn.middle.as_secs_f64());
                let (peer, own) = (limiters[index].0, &tails[index]);
                let in_ms = |values: &[Acquire], value: fn(&Acquire) -> Duration| {
                    Values::of(values, |turn| 1e3 * value(turn).as_secs_f64())
                };
                results.push(joined([
                    named(peer.name, peers::version(peer.package)),
                    in_ms(&turns[index], |turn| turn.middle).fields("p50_ms"),
                    in_ms(&turns[index], |turn| turn.p99).fields("p99_ms"),
                ]));
                vec![
                    peer.name.to_owned(),
                    milliseconds(Duration::from_secs_f64(middles.median())),
                    milliseconds(Duration::from_secs_f64(own.median())),
                    own.over(&tails[0]).ratio(),
                    own.over(&tails[1]).ratio(),
                    turns[index].iter().map(|turn| turn.others).sum::<usize>().to_string(),
                ]
            })
            .collect();
        let title = format!(
            "Waiting: open loop, {} requests a second, users: {}",
            self.options.rate, self.options.users
        );
        let head = [
            "",
            "p50 ms",
            "p99 ms",
            "p99 ÷ bare script (range)",
            "p99 ÷ tower-quota (range)",
            "no decision",
        ];
        table::print(&title, &head, &rows);
        results
    }

    fn open_turn(&self, limiter: &Limiter) -> Acquire {
        let requests = ((f64::from(self.options.rate) * self.options.length.as_secs_f64()) as u32).max(1);
        let mut answers = self.send_when_due(limiter, requests);
        let others = answers.iter().filter(|(_, answer)| !answer.is_decision()).count();
        answers.sort_by_key(|(took, _)| *took);
        let at = |share: f64| answers[(share * (answers.len() - 1) as f64).round() as usize].0;
        Acquire {
            middle: at(0.5),
            p99: at(0.99),
            others,
        }
    }

    fn send_when_due(&self, limiter: &Limiter, requests: u32) -> Vec<(Duration, Answer)> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let (limiter, handle) = (limiter.clone(), self.runtime.handle().clone());
        let (rate, users) = (self.options.rate, self.options.users);
        // In a dedicated thread, because the timers of the runtime have a resolution of a millisecond.
        let generator = thread::spawn(move || {
            let start = Instant::now();
            for number in 0..requests {
                let due = start + Duration::from_secs(1) * number / rate;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                send(
                    &handle,
                    &limiter,
                    number.wrapping_mul(2_654_435_761) % users,
                    due,
                    sender.clone(),
                );
            }
        });
        let mut answers = Vec::new();
        self.block_on(async {
            while let Some(answer) = receiver.recv().await {
                answers.push(answer);
            }
        });
        generator.join().expect("the generator runs to its end");
        answers
    }
}

fn send(
    handle: &Handle,
    limiter: &Limiter,
    user: u32,
    due: Instant,
    answers: mpsc::UnboundedSender<(Duration, Answer)>,
) {
    let limiter = limiter.clone();
    handle.spawn(async move {
        let answer = limiter.ask(user).await;
        let _ = answers.send((due.elapsed(), answer));
    });
}
