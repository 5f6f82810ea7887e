//! The memory of a user in the server, and the round trips of a decision.

use std::time::Duration;

use tokio::task::JoinSet;

use super::{Bench, WIDE};
use crate::{
    peers::{Limiter, Window, Windows},
    table,
};

/// Windows that all outlast the measurement, so that the state of each is included. The names and the numbers are as
/// long as for a second, a minute and a day.
const LASTING: Windows = [
    Window::new("second", 100, 86_400),
    Window::new("minute", 1_000, 864_000),
    Window::new("day", 50_000, 8_640_000),
];

const TASKS: u32 = 64;

const SINGLE_REQUESTS: u32 = 500;

const MOST_TRIES: usize = 100;

impl Bench<'_> {
    pub(super) fn sizes(&self) {
        let lasting = self.connect(LASTING);
        let usual = self.connect(WIDE);
        let rows: Vec<_> = lasting
            .iter()
            .zip(&usual)
            .map(|((peer, lasting), (_, usual))| {
                eprintln!("Size: {}", peer.name);
                let (bytes, keys) = self.size(lasting);
                vec![
                    peer.name.to_owned(),
                    format!("{:.2}", self.round_trips(usual)),
                    format!("{bytes:.0}"),
                    format!("{keys:.1}"),
                    format!("{:.0} s", self.life(usual)),
                ]
            })
            .collect();
        let title = format!(
            "What Redis has to do and to keep: users: {}, one request each",
            self.options.users
        );
        let head = ["", "round trips", "bytes per user", "keys per user", "kept for"];
        table::print(&title, &head, &rows);
    }

    /// Bytes and keys per user while all windows last.
    fn size(&self, limiter: &Limiter) -> (f64, f64) {
        // Before, so that connections are open and scripts loaded.
        self.block_on(ask_once(limiter, TASKS));
        self.server.flush();
        let before = self.server.counters();
        self.block_on(ask_once(limiter, self.options.users));
        let bytes = self.server.counters().since(before).memory;
        let users = f64::from(self.options.users);
        let sizes = (bytes / users, self.server.keys() / users);
        self.server.flush();
        sizes
    }

    /// One request at a time, so that nothing is read together with another request.
    fn round_trips(&self, limiter: &Limiter) -> f64 {
        self.server.flush();
        self.block_on(ask_once(limiter, TASKS));
        let before = self.server.counters();
        self.block_on(async {
            for user in 0..SINGLE_REQUESTS {
                limiter.ask(user).await;
            }
        });
        // The second look at the server is the one read that was not the limiter's.
        (self.server.counters().since(before).reads - 1.0) / f64::from(SINGLE_REQUESTS)
    }

    /// The time for which the server keeps a key of one request with windows of a second, a minute and a day.
    fn life(&self, limiter: &Limiter) -> f64 {
        self.server.flush();
        self.block_on(limiter.ask(0));
        self.server.longest_life()
    }
}

/// One request of each user, some of them at a time.
async fn ask_once(limiter: &Limiter, users: u32) {
    let mut running = JoinSet::new();
    for task in 0..TASKS {
        let limiter = limiter.clone();
        running.spawn(async move {
            for user in (task..users).step_by(TASKS as usize) {
                // On a busy machine one may miss its limiter's deadline.
                for _ in 0..MOST_TRIES {
                    if limiter.ask(user).await.is_decision() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        });
    }
    running.join_all().await;
}
