//! A response may or may not include other requests in flight, so the remaining units are a lower bound until no
//! request is in flight.

mod item;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use self::item::{Answer, Item};
use super::{Caps, advice::Advice, limit::Limit};

/// A strategy for spending the remaining units of a server.
///
/// With four units remaining for twelve seconds, the next five requests are sent at these seconds:
///
/// | strategy | times |
/// |---|---|
/// | `Greedy` | 0, 0, 0, 0, 12 |
/// | `Pace { below_percent: 100 }` | 0, 3, 6, 9, 12 |
/// | `Pace { below_percent: 50 }` | 0, 0, 0, 6, 12 |
/// | `Observe` | 0, 0, 0, 0, 0 |
///
/// ```
/// use tower_ratelimit_client::{ClientLayer, Strategy};
///
/// assert_eq!(Strategy::default(), Strategy::Greedy);
/// assert_eq!(Strategy::pace(), Strategy::Pace { below_percent: 50 });
///
/// let error = ClientLayer::builder().strategy(Strategy::Pace { below_percent: 0 }).build().unwrap_err();
/// assert_eq!(error.to_string(), "client: below_percent 0 is outside 1..=100");
/// # use std::time::{Duration, Instant, SystemTime};
/// # use http::{HeaderMap, StatusCode};
/// # use tower_ratelimit_client::{Acquire, Advice, Caps, Exchange, Pacing};
/// # fn times(strategy: Strategy) -> Vec<u64> {
/// #     let mut pacing = Pacing::new(strategy, Caps::default());
/// #     let start = Instant::now();
/// #     let mut now = start;
/// #     let Acquire::Ready(permit) = pacing.try_acquire(now) else { panic!() };
/// #     let headers = HeaderMap::from_iter([("ratelimit".parse().unwrap(), r#""a";r=4;t=12"#.parse().unwrap())]);
/// #     let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// #     let advice = Advice::read(StatusCode::OK, &headers, exchange, &Caps::default());
/// #     pacing.record_response(permit, &advice, now);
/// #     let mut times = Vec::new();
/// #     while times.len() < 5 {
/// #         match pacing.try_acquire(now) {
/// #             Acquire::Ready(permit) => {
/// #                 times.push((now - start).as_secs());
/// #                 pacing.record_loss(permit);
/// #             }
/// #             Acquire::Wait(wait) => now = wait.until(),
/// #         }
/// #     }
/// #     times
/// # }
/// # assert_eq!(times(Strategy::Greedy), [0, 0, 0, 0, 12]);
/// # assert_eq!(times(Strategy::Pace { below_percent: 100 }), [0, 3, 6, 9, 12]);
/// # assert_eq!(times(Strategy::Pace { below_percent: 50 }), [0, 0, 0, 6, 12]);
/// # assert_eq!(times(Strategy::Observe), [0, 0, 0, 0, 0]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Uses all units as fast as requests arrive, then waits.
    #[default]
    Greedy,
    /// Spreads the units over the rest of the window once they run low, which leaves some for other clients.
    Pace {
        /// The threshold in percent of the quota (1 to 100), or of the most remaining units observed if the server
        /// sends no quota.
        below_percent: u8,
    },
    /// Tracks limits, but never waits. Disables retries.
    Observe,
}

impl Strategy {
    /// Returns a strategy that paces once at most half of the quota remains.
    pub const fn pace() -> Self {
        Self::Pace { below_percent: 50 }
    }
}

/// The known limits of one server, from which the time of the next request is computed.
///
/// Use `Pacing` to build a client without Tower. It neither reads a clock nor waits: acquire a permit, send the request
/// or wait, and report the outcome. `now` must come from one monotonic clock, such as
/// `tokio::time::Instant::now().into_std()`.
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Acquire, Advice, Caps, Exchange, Pacing, Strategy};
///
/// let caps = Caps::default();
/// let mut pacing = Pacing::new(Strategy::Greedy, caps);
/// let now = Instant::now();
///
/// let Acquire::Ready(permit) = pacing.try_acquire(now) else { panic!("no limits are known yet") };
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit", r#""default";r=0;t=7"#.parse()?);
/// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// pacing.record_response(permit, &Advice::read(StatusCode::OK, &headers, exchange, &caps), now);
///
/// let Acquire::Wait(wait) = pacing.try_acquire(now) else { panic!("no units remain") };
/// assert_eq!(wait.until(), now + Duration::from_secs(7));
///
/// // Then requests are sent one at a time.
/// assert!(matches!(pacing.try_acquire(wait.until()), Acquire::Ready(_)));
/// assert!(matches!(pacing.try_acquire(wait.until()), Acquire::Wait(_)));
/// # Ok::<_, http::header::InvalidHeaderValue>(())
/// ```
///
/// # Rules
///
/// The [crate documentation](crate#what-it-obeys) lists the basic rules for each limit. In addition:
///
/// - Units that remain after `t` can still be used. Then requests are sent one at a time until a response reports the
///   remaining units.
/// - [`Retry-After`](Advice::retry_after) takes precedence over `t` for all limits, unless it is zero.
/// - After a [rejection](Advice::is_rejection), the wait is at least a second. If the server imposes less, it doubles
///   with each further rejection, up to [`Caps::max_wait`].
/// - After a rejection or `Retry-After`, requests are sent one at a time, until a response has neither. A request
///   without a response delays the next one for at most five seconds.
/// - A limit that the server does not send again is forgotten `t` after the end of its window, at least 10 and at most
///   60 seconds.
/// - At most 32 limits are tracked, whose name and partition key together have at most 256 bytes.
///
/// # Units
///
/// If a limit counts requests, each request costs one unit. Other units delay requests as follows:
///
/// - `concurrent-requests`: at most `r` requests, and always one, are in flight. If no slots remain, nothing is sent
///   within `t`. `Pacing` cannot observe the end of response bodies, which hold slots: if bodies are long, limit the
///   concurrency yourself.
/// - Any other unit, such as bytes or tokens: requests are sent while any units remain, because the cost of the next
///   one is unknown. If none remain, nothing is sent within `t`, and then one request at a time.
pub struct Pacing {
    strategy: Strategy,
    caps: Caps,
    jitter_percent: u8,
    partition_key: Option<Vec<u8>>,
    items: Vec<Item>,
    blocked_until: Option<Instant>,
    last: u64,
    finished: u64,
    /// Since the last request was sent.
    finished_since: u64,
    trial: Option<Trial>,
    /// The value of `last` when a rejection arrived.
    rejected_at: Option<u64>,
    /// Rejections of requests that were sent together count once.
    rejections: u32,
}

/// Sent to learn the remaining units.
#[derive(Debug)]
struct Trial {
    number: u64,
    expires_at: Instant,
}

/// The result of [`Pacing::try_acquire`].
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Acquire, Advice, Caps, Exchange, Pacing, Strategy};
///
/// let mut pacing = Pacing::new(Strategy::Greedy, Caps::default());
/// let mut now = Instant::now();
/// let mut waited = 0;
/// for _ in 0..3 {
///     let permit = loop {
///         match pacing.try_acquire(now) {
///             Acquire::Ready(permit) => break permit,
///             // A client would sleep here.
///             Acquire::Wait(wait) => {
///                 waited += (wait.until() - now).as_secs();
///                 now = wait.until();
///             }
///         }
///     };
///     // … the request is sent, and rejected
///     let headers = HeaderMap::from_iter([("retry-after".parse()?, "10".parse()?)]);
///     let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
///     let advice = Advice::read(StatusCode::TOO_MANY_REQUESTS, &headers, exchange, &Caps::default());
///     pacing.record_response(permit, &advice, now);
///     assert_eq!(pacing.blocked_until(now), Some(now + Duration::from_secs(10)));
/// }
/// assert_eq!(waited, 20);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the outcome of a sent request must be reported"]
pub enum Acquire {
    /// The request can be sent.
    Ready(SendPermit),
    /// The request must wait.
    Wait(Wait),
}

/// A permit to send one request.
///
/// Report the outcome with [`Pacing::record_response`], [`Pacing::record_loss`] or [`Pacing::cancel`]. A dropped permit
/// counts as in flight forever.
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Acquire, Advice, Caps, Exchange, Pacing, Strategy};
///
/// let mut pacing = Pacing::new(Strategy::Greedy, Caps::default());
/// let now = Instant::now();
/// let Acquire::Ready(permit) = pacing.try_acquire(now) else { panic!("no limits are known yet") };
/// let headers = HeaderMap::from_iter([("ratelimit".parse()?, r#""a";r=5;t=60"#.parse()?)]);
/// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// pacing.record_response(permit, &Advice::read(StatusCode::OK, &headers, exchange, &Caps::default()), now);
/// let remaining = |pacing: &Pacing| pacing.limits(now)[0].remaining();
/// assert_eq!(remaining(&pacing), Some(5));
///
/// // The request was not sent, for example because no connection was available.
/// let Acquire::Ready(permit) = pacing.try_acquire(now) else { panic!("five units remain") };
/// assert_eq!((remaining(&pacing), pacing.in_flight()), (Some(4), 1));
/// pacing.cancel(permit);
/// assert_eq!((remaining(&pacing), pacing.in_flight()), (Some(5), 0));
///
/// // The connection broke, so the server may or may not have counted the request.
/// let Acquire::Ready(permit) = pacing.try_acquire(now) else { panic!("five units remain") };
/// pacing.record_loss(permit);
/// assert_eq!((remaining(&pacing), pacing.in_flight()), (Some(4), 0));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the request counts as in flight until it is reported"]
pub struct SendPermit {
    number: u64,
    finished_before: u64,
}

/// The time to wait: see [`Acquire::Wait`].
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Acquire, Advice, Caps, Exchange, Pacing, Strategy};
///
/// let mut pacing = Pacing::new(Strategy::Greedy, Caps::default());
/// let now = Instant::now();
/// let (Acquire::Ready(first), Acquire::Ready(second)) = (pacing.try_acquire(now), pacing.try_acquire(now)) else {
///     panic!("no limits are known yet")
/// };
///
/// let headers = HeaderMap::from_iter([("ratelimit".parse()?, r#""a";r=0;t=7"#.parse()?)]);
/// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// let exhausted = Advice::read(StatusCode::OK, &headers, exchange, &Caps::default());
/// pacing.record_response(first, &exhausted, now);
/// let Acquire::Wait(wait) = pacing.try_acquire(now) else { panic!("no units remain") };
/// assert_eq!(wait.until(), now + Duration::from_secs(7));
/// assert!(!wait.is_certain(), "the second response may report more units");
///
/// pacing.record_response(second, &exhausted, now);
/// let Acquire::Wait(wait) = pacing.try_acquire(now) else { panic!("no units remain") };
/// assert!(wait.is_certain());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    until: Instant,
    is_certain: bool,
}

impl Wait {
    /// Returns the latest time to try again.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Returns `true` if nothing can end the wait earlier. Otherwise, also try again after each response.
    pub fn is_certain(&self) -> bool {
        self.is_certain
    }
}

impl Pacing {
    const MAX_ITEMS: usize = 32;
    /// How long a probe without a response delays other requests.
    const PATIENCE: Duration = Duration::from_secs(5);
    /// After a rejection.
    const SHORTEST_WAIT: Duration = Duration::from_secs(1);

    /// Creates a `Pacing` without known limits.
    ///
    /// With 0 percent, [`Strategy::Pace`] never paces; values above 100 are treated as 100.
    pub fn new(strategy: Strategy, caps: Caps) -> Self {
        Self {
            strategy,
            caps,
            jitter_percent: 0,
            partition_key: None,
            items: Vec::new(),
            blocked_until: None,
            last: 0,
            finished: 0,
            finished_since: 0,
            trial: None,
            rejected_at: None,
            rejections: 0,
        }
    }

    /// Sets the [jitter](super::ClientLayerBuilder::jitter_percent) in percent, at most 100. Default: 0.
    #[must_use]
    pub fn with_jitter(mut self, percent: u8) -> Self {
        self.jitter_percent = percent.min(100);
        self
    }

    /// Sets the partition key of the requests, as decoded bytes: `alice` matches `pk=:YWxpY2U=:`. Default: none.
    ///
    /// If `key` is one of several partitions of a policy in a response, only that one delays requests. Otherwise, all
    /// do.
    #[must_use]
    pub fn with_partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// Acquires a permit to send a request at `now`, or returns the time to wait.
    pub fn try_acquire(&mut self, now: Instant) -> Acquire {
        self.items.retain(|item| item.is_known(now));
        match self.obstacle(now) {
            Some(wait) => Acquire::Wait(wait),
            None => Acquire::Ready(self.send(now)),
        }
    }

    /// Records the head of a response, even if `advice` [is empty](Advice::is_empty): it ends the request.
    pub fn record_response(&mut self, dispatch: SendPermit, advice: &Advice, now: Instant) {
        self.finish(&dispatch);
        let wait = advice.retry_after().filter(|wait| !wait.is_zero());
        self.count_rejections(&dispatch, advice, wait.is_some());
        self.observe(&dispatch, advice, now);
        if let Some(wait) = wait {
            let wait = match advice.is_rejection() && wait < Self::SHORTEST_WAIT {
                true => self.backoff(self.rejections),
                false => self.jittered(wait),
            };
            let until = self.block_until(now + wait);
            // `RateLimit` specifies the remaining units, and `Retry-After` the time for which these units must last.
            self.items.iter_mut().for_each(|item| item.end_at(until));
        } else if advice.is_rejection() {
            let is_told = self.is_exhausted_until(now + Self::SHORTEST_WAIT, now);
            let count = if is_told { 1 } else { self.rejections };
            self.block_until(now + self.backoff(count));
        }
        self.settle();
    }

    /// Records a request without a response. Its unit is not refunded, because the server may have counted it.
    pub fn record_loss(&mut self, dispatch: SendPermit) {
        self.finish(&dispatch);
        self.settle();
    }

    /// Cancels a request that was not sent, and refunds its unit.
    pub fn cancel(&mut self, dispatch: SendPermit) {
        self.finish(&dispatch);
        self.items.iter_mut().for_each(|item| item.give_back(dispatch.number));
        self.settle();
    }

    /// Returns the known limits, with the units that this client can still spend and the rest of the window.
    pub fn limits(&self, now: Instant) -> Vec<Limit> {
        let known = self.items.iter().filter(|item| item.is_known(now));
        known.map(|item| item.to_limit(now)).collect()
    }

    /// Returns the time until which a `Retry-After` or a rejection blocks requests, unless it has passed.
    pub fn blocked_until(&self, now: Instant) -> Option<Instant> {
        self.blocked_until.filter(|until| *until > now)
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.last - self.finished
    }

    /// When all known limits expire, unless a response arrives.
    pub(super) fn known_until(&self) -> Option<Instant> {
        let items = self.items.iter().map(|item| item.forget_at);
        items.max().max(self.blocked_until)
    }

    pub(super) fn obstacle(&self, now: Instant) -> Option<Wait> {
        if self.only_observes() {
            return None;
        }
        let waits = self.in_force(now).map(|item| item.wait_until(now, self.low_percent()));
        let allowed_at = waits.max().unwrap_or(now);
        let blocked_until = self.blocked_until(now).unwrap_or(now);
        let mut until = allowed_at.max(blocked_until);
        if until <= now && self.in_force(now).any(|item| item.is_full(self.in_flight())) {
            // Wait for a response to one of the requests in flight. If none arrives, the limit is forgotten.
            until = now + Self::PATIENCE.min(self.caps.max_wait());
        }
        if until > now {
            // A late response may report more remaining units than assumed, but it ends no block.
            let is_certain = self.in_flight() == 0 || until == blocked_until;
            return Some(Wait { until, is_certain });
        }
        let trial = self.trial.as_ref().filter(|trial| trial.expires_at > now)?;
        self.is_trial(now).then_some(Wait {
            until: trial.expires_at,
            is_certain: false,
        })
    }

    /// After the nth rejection or failure in a row: 1, 2, 4 … seconds.
    pub(super) fn backoff(&self, count: u32) -> Duration {
        let doublings = count.saturating_sub(1).min(31);
        self.jittered(Self::SHORTEST_WAIT.saturating_mul(1 << doublings))
    }

    pub(super) fn is_blocked(&self, now: Instant) -> bool {
        self.blocked_until(now).is_some()
    }

    pub(super) fn only_observes(&self) -> bool {
        self.strategy == Strategy::Observe
    }

    fn low_percent(&self) -> u8 {
        match self.strategy {
            Strategy::Pace { below_percent } => below_percent,
            _ => 0,
        }
    }

    fn is_trial(&self, now: Instant) -> bool {
        self.rejected_at.is_some() || self.in_force(now).any(|item| item.is_used_up() && item.is_over(now))
    }

    fn in_force(&self, now: Instant) -> impl Iterator<Item = &Item> {
        let known = self.items.iter().filter(move |item| item.is_known(now));
        known.filter(|item| self.is_for_these_requests(item))
    }

    fn is_for_these_requests(&self, item: &Item) -> bool {
        let Some(key) = self.partition_key.as_deref() else {
            return true;
        };
        let mut named = self.items.iter().filter(|other| other.name == item.name);
        item.partition_key.is_none() || item.is_for(key) || !named.any(|other| other.is_for(key))
    }

    fn send(&mut self, now: Instant) -> SendPermit {
        let dispatch = SendPermit {
            number: self.last + 1,
            finished_before: self.finished,
        };
        if self.is_trial(now) {
            self.trial = Some(Trial {
                number: dispatch.number,
                expires_at: now + Self::PATIENCE,
            });
        }
        self.last = dispatch.number;
        self.finished_since = 0;
        let percent = self.low_percent();
        self.items.iter_mut().for_each(|item| item.use_one(now, percent));
        dispatch
    }

    fn finish(&mut self, dispatch: &SendPermit) {
        // A permit of another `Pacing` must not make `in_flight` underflow.
        self.finished = self.last.min(self.finished + 1);
        self.finished_since += 1;
        if self.trial.as_ref().is_some_and(|trial| trial.number == dispatch.number) {
            self.trial = None;
        }
    }

    fn count_rejections(&mut self, dispatch: &SendPermit, advice: &Advice, imposes_a_wait: bool) {
        // Requests that were sent before the last rejection arrived say nothing about the time after it.
        let is_late = self
            .rejected_at
            .is_some_and(|rejected_at| dispatch.number <= rejected_at);
        if advice.is_rejection() {
            self.rejections = match is_late {
                true => self.rejections.max(1),
                false => self.rejections.saturating_add(1),
            };
        }
        if advice.is_rejection() || imposes_a_wait {
            self.rejected_at = Some(self.last);
        } else if !is_late {
            (self.rejected_at, self.rejections) = (None, 0);
        }
    }

    fn block_until(&mut self, moment: Instant) -> Instant {
        let until = self.blocked_until.map_or(moment, |until| until.max(moment));
        self.blocked_until = Some(until);
        until
    }

    fn is_exhausted_until(&self, moment: Instant, now: Instant) -> bool {
        self.in_force(now)
            .any(|item| item.is_used_up() && item.lasts_until(moment))
    }

    fn observe(&mut self, dispatch: &SendPermit, advice: &Advice, now: Instant) {
        if advice.limits().is_empty() {
            return;
        }
        let answer = Answer {
            number: dispatch.number,
            last: self.last,
            in_flight: self.in_flight(),
            uncounted: self.last.saturating_sub(dispatch.finished_before + 1),
        };
        // Limits whose window has ended are dropped, unless the response repeats them.
        self.items
            .retain(|item| !item.is_over(now) || advice.limits().iter().any(|limit| item.is_of(limit)));
        for limit in advice.limits() {
            let until = now + self.jittered(limit.reset.unwrap_or_default());
            match self.items.iter_mut().find(|item| item.is_of(limit)) {
                Some(item) => item.observe(limit, &answer, now, until),
                None => self.keep(Item::new(limit, &answer, now, until)),
            }
        }
    }

    fn keep(&mut self, item: Option<Item>) {
        let Some(item) = item else { return };
        if self.items.len() == Self::MAX_ITEMS {
            let first = (0..self.items.len()).min_by_key(|index| self.items[*index].forget_at);
            first.map(|first| self.items.swap_remove(first));
        }
        self.items.push(item);
    }

    /// Without requests in flight, the lowest value since the last request is exact.
    fn settle(&mut self) {
        if self.in_flight() == 0 {
            let (last, answers) = (self.last, self.finished_since);
            self.items.iter_mut().for_each(|item| item.settle(last, answers));
        }
    }

    /// At least `wait`, up to the cap, or if `wait` reaches the cap, shortly before it.
    fn jittered(&self, wait: Duration) -> Duration {
        let cap = self.caps.max_wait();
        let wait = wait.min(cap);
        if self.jitter_percent == 0 {
            return wait;
        }
        let part = f64::from(self.jitter_percent) / 100.0;
        let latest = (wait + wait.mul_f64(part)).min(cap);
        let earliest = match wait < cap {
            true => wait,
            false => cap.div_f64(1.0 + part).max(Self::SHORTEST_WAIT),
        };
        // Each `RandomState` has different keys, which is random enough for jitter.
        let random = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
        (earliest + (latest - earliest).mul_f64(random)).min(cap)
    }
}

/// The partition key may be a credential.
impl fmt::Debug for Pacing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacing")
            .field("strategy", &self.strategy)
            .field("caps", &self.caps)
            .field("items", &self.items)
            .field("blocked_until", &self.blocked_until)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
