//! The most frequently rejected callers of this instance in the last five minutes.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower_quota::{Decision, Outcome, key::ClientIp};

use super::{callers::Caller, users::User};

/// The maximum number of callers counted per minute. New callers replace those with the smallest counts.
const PLACES: usize = 200;

const MINUTES: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);

/// The number of callers that the page can search.
const SENT: usize = 100;

/// Longer names are truncated.
const MAX_NAME: usize = 120;

#[derive(Clone)]
pub(crate) struct Rejected(Arc<Mutex<Minutes>>);

struct Minutes {
    start: Instant,
    /// The number of the current minute since the start.
    number: u64,
    /// Minute n is at index n modulo `MINUTES`.
    minutes: [HashMap<Reason, Count>; MINUTES],
}

/// A caller and the policy that rejected its request, or no policy if the caller is blocked.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Reason {
    caller: Caller,
    policy: Option<String>,
}

#[derive(Clone, Copy)]
struct Count {
    rejections: u64,
    /// The count inherited from the replaced caller: the maximum error of this caller's count.
    inherited: u64,
    last: Instant,
}

/// Runs outside the limits and inside the authentication, because it needs the caller and the decision.
pub(crate) async fn observe(
    State((rejected, client_ip)): State<(Rejected, ClientIp)>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let user = parts.extensions.get::<User>().cloned();
    let address = client_ip.resolve(&parts).map(Caller::Address);
    let response = next.run(Request::from_parts(parts, body)).await;
    let Some(decision) = response.extensions().get::<Decision>() else {
        return response;
    };
    let (policy, by_address) = match decision.outcome() {
        Outcome::Blocked => (None, false),
        Outcome::Rejected => {
            let longest = decision
                .violated()
                .max_by_key(|allowance| allowance.retry_after().unwrap_or(Duration::MAX));
            let policy = longest.map(|allowance| allowance.policy());
            (
                policy.map(|policy| policy.name().to_owned()),
                policy.is_some_and(|policy| policy.key_name() == Some("address")),
            )
        }
        _ => return response,
    };
    let user = user
        .filter(|_| !by_address)
        .map(|User(name)| Caller::User(shortened(name)));
    if let Some(caller) = user.or(address) {
        rejected.count(caller, policy);
    }
    response
}

fn shortened(mut name: String) -> String {
    if let Some((end, _)) = name.char_indices().nth(MAX_NAME) {
        name.replace_range(end.., "…");
    }
    name
}

impl Rejected {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Minutes {
            start: Instant::now(),
            number: 0,
            minutes: Default::default(),
        })))
    }

    pub(crate) fn count(&self, caller: Caller, policy: Option<String>) {
        let reason = Reason { caller, policy };
        let now = Instant::now();
        let mut minutes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        minutes.begin(now).count(reason, now);
    }

    /// Returns the callers with the most rejections. The counts are lower bounds.
    pub(crate) fn most(&self) -> Value {
        let now = Instant::now();
        let mut minutes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = minutes.begin(now);
        let mut sums: HashMap<&Reason, (u64, Instant)> = HashMap::new();
        for (reason, count) in minutes.minutes.iter().flatten() {
            let sum = sums.entry(reason).or_insert((0, count.last));
            *sum = (sum.0 + count.rejections - count.inherited, sum.1.max(count.last));
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, sum)| Reverse(*sum));
        let sent = sums.into_iter().take(SENT).map(|(reason, (rejections, last))| {
            json!({
                "caller": reason.caller,
                "policy": reason.policy,
                "rejections": rejections,
                "seconds": now.duration_since(last).as_secs(),
            })
        });
        sent.collect()
    }
}

impl Minutes {
    /// Returns the counts of the current minute and drops outdated ones.
    fn begin(&mut self, now: Instant) -> Minute<'_> {
        let number = now.duration_since(self.start).as_secs() / MINUTE.as_secs();
        for over in (self.number + 1..=number).rev().take(MINUTES) {
            self.minutes[over as usize % MINUTES].clear();
        }
        self.number = number;
        Minute(&mut self.minutes[number as usize % MINUTES])
    }
}

struct Minute<'a>(&'a mut HashMap<Reason, Count>);

impl Minute<'_> {
    /// The Space-Saving algorithm: a new caller replaces the caller with the smallest count and inherits this count.
    fn count(self, reason: Reason, now: Instant) {
        if let Some(count) = self.0.get_mut(&reason) {
            count.rejections += 1;
            count.last = now;
            return;
        }
        let mut inherited = 0;
        if self.0.len() >= PLACES {
            let smallest = self.0.iter().min_by_key(|(_, count)| count.rejections);
            if let Some((smallest, count)) = smallest.map(|(reason, count)| (reason.clone(), *count)) {
                inherited = count.rejections;
                self.0.remove(&smallest);
            }
        }
        let count = Count {
            rejections: inherited + 1,
            inherited,
            last: now,
        };
        self.0.insert(reason, count);
    }
}
