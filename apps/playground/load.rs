//! A load at a constant rate, from several callers in turn.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::client::{Client, Exchange};

/// Requests per second.
pub(crate) const MAX_RATE: u64 = 1_000;

/// The interval of sending, with up to five requests at the highest rate.
const STEP: Duration = Duration::from_millis(5);

/// The maximum number of requests to catch up after a stall.
const MOST_DUE: f64 = 50.0;

#[derive(Debug)]
pub(crate) struct Load {
    client: Client,
    order: Mutex<Order>,
    /// By caller.
    last: Mutex<HashMap<String, Last>>,
    numbered: AtomicU64,
    sent: AtomicU64,
    /// Not sent, because too many requests were in flight.
    skipped: AtomicU64,
    broken: AtomicU64,
}

/// The answered request of a caller with the highest number. Of requests sent at once, which have the same number, a
/// rejected one, because the limiter may decide them in any order.
#[derive(Debug)]
struct Last {
    number: u64,
    is_rejected: bool,
    /// `None` after it was sent to the pages.
    exchange: Option<Exchange>,
}

/// The load requested by the page.
#[derive(Clone, Debug, Default)]
struct Order {
    rate: u64,
    callers: Vec<String>,
}

impl Load {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            order: Mutex::default(),
            last: Mutex::default(),
            numbered: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            broken: AtomicU64::new(0),
        }
    }

    pub(crate) fn set(&self, rate: u64, callers: Vec<String>) {
        *self.order.lock().unwrap_or_else(PoisonError::into_inner) = Order { rate, callers };
    }

    pub(crate) fn stop(&self) {
        self.set(0, Vec::new());
    }

    fn order(&self) -> Order {
        self.order.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn rate(&self) -> u64 {
        self.order().rate
    }

    /// Runs forever.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut steps = interval(STEP);
        steps.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (mut last, mut due, mut turn) = (Instant::now(), 0.0_f64, 0_usize);
        loop {
            steps.tick().await;
            let (now, order) = (Instant::now(), self.order());
            due = (due + order.rate as f64 * (now - last).as_secs_f64()).min(MOST_DUE);
            last = now;
            if order.rate == 0 || order.callers.is_empty() {
                due = 0.0;
            }
            while due >= 1.0 {
                due -= 1.0;
                turn = turn.wrapping_add(1);
                self.send([order.callers[turn % order.callers.len()].clone()]);
            }
        }
    }

    /// Sends requests of these callers at once, and does not wait for the responses.
    pub(crate) fn send(self: &Arc<Self>, callers: impl IntoIterator<Item = String>) {
        let number = self.numbered.fetch_add(1, Relaxed);
        for caller in callers {
            self.send_one(caller, number);
        }
    }

    fn send_one(self: &Arc<Self>, caller: String, number: u64) {
        let load = Arc::clone(self);
        tokio::spawn(async move {
            let count = match load.client.send(&caller).await {
                Some(Ok(exchange)) => {
                    load.keep(caller, number, exchange);
                    &load.sent
                }
                Some(Err(_)) => &load.broken,
                None => &load.skipped,
            };
            count.fetch_add(1, Relaxed);
        });
    }

    /// Drops the exchange if a later request of the caller was answered earlier, or one of the same number is rejected.
    fn keep(&self, caller: String, number: u64, exchange: Exchange) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_rejected = exchange.response.starts_with("HTTP/1.1 429");
        let is_later = |last: &Last| (last.number, last.is_rejected) <= (number, is_rejected);
        if last.get(&caller).is_none_or(is_later) {
            let exchange = Some(exchange);
            let last_one = Last {
                number,
                is_rejected,
                exchange,
            };
            last.insert(caller, last_one);
        }
    }

    /// Returns the settings, and the counts since the last call.
    pub(crate) fn take(&self) -> Value {
        let Order { rate, callers } = self.order();
        json!({
            "rate": rate,
            "callers": callers,
            "sent": self.sent.swap(0, Relaxed),
            "skipped": self.skipped.swap(0, Relaxed),
            "broken": self.broken.swap(0, Relaxed),
        })
    }

    /// Returns the last exchange of each caller that had a new one since the last call.
    pub(crate) fn take_last(&self) -> Value {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let new = last.iter_mut().filter_map(|(caller, last)| {
            let Exchange { request, response } = last.exchange.take()?;
            Some((caller.clone(), json!({ "request": request, "response": response })))
        });
        Value::Object(new.collect())
    }
}
