//! Computes the moment of the next request from the fields of a server: no tower, no timers, no clock.
//!
//! All counting is "as if every request that was sent had been counted by the server already". An answer was made at
//! some moment between sending its request and receiving it, so it may or may not know of the requests that were on
//! their way at the same time. What is kept as left is the least that this can mean, until nothing is on its way.

mod item;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use self::item::{Answer, Item};
use super::{Caps, advice::Advice, limit::Limit};

/// The way in which a client spends the remaining units of a server.
///
/// ```
/// use tower_ratelimit_client::{ClientLayer, Strategy};
///
/// assert_eq!(Strategy::default(), Strategy::Greedy);
/// assert_eq!(Strategy::pace(), Strategy::Pace { below_percent: 50 });
///
/// let error = ClientLayer::builder().strategy(Strategy::Pace { below_percent: 0 }).build().unwrap_err();
/// assert_eq!(error.to_string(), "client: below_percent 0 is outside 1..=100");
/// ```
///
/// Four units are left for twelve seconds:
///
/// ```
/// # use std::time::{Duration, Instant, SystemTime};
/// # use http::{HeaderMap, StatusCode};
/// # use tower_ratelimit_client::{Advice, Caps, Exchange, Pacing, Strategy, Acquire};
/// // When the next five requests go, in seconds.
/// # fn times(strategy: Strategy) -> Vec<u64> {
/// #     let mut pacing = Pacing::new(strategy, Caps::default());
/// #     let start = Instant::now();
/// #     let mut now = start;
/// #     let Acquire::Ready(dispatch) = pacing.try_acquire(now) else { panic!() };
/// #     let headers = HeaderMap::from_iter([("ratelimit".parse().unwrap(), r#""a";r=4;t=12"#.parse().unwrap())]);
/// #     let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// #     let advice = Advice::read(StatusCode::OK, &headers, exchange, &Caps::default());
/// #     pacing.record_response(dispatch, &advice, now);
/// #     let mut times = Vec::new();
/// #     while times.len() < 5 {
/// #         match pacing.try_acquire(now) {
/// #             Acquire::Ready(dispatch) => {
/// #                 times.push((now - start).as_secs());
/// #                 pacing.record_loss(dispatch);
/// #             }
/// #             Acquire::Wait(wait) => now = wait.until(),
/// #         }
/// #     }
/// #     times
/// # }
/// assert_eq!(times(Strategy::Greedy), [0, 0, 0, 0, 12]);
/// assert_eq!(times(Strategy::Pace { below_percent: 100 }), [0, 3, 6, 9, 12]);
/// assert_eq!(times(Strategy::Pace { below_percent: 50 }), [0, 0, 0, 6, 12]);
/// assert_eq!(times(Strategy::Observe), [0, 0, 0, 0, 0]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Uses all of them as fast as requests come, then waits: the least delay for jobs that fit into the quota.
    #[default]
    Greedy,
    /// Spreads them evenly over what is left of the window, as soon as they run low: an even flow, and something left
    /// for others who share the quota.
    Pace {
        /// The threshold, in percent of the quota, from 1; 100 paces always. Without a quota from the server, the
        /// most that was ever left stands for it.
        below_percent: u8,
    },
    /// Never waits, only keeps count. Nothing is sent again, as that would mean to wait.
    Observe,
}

impl Strategy {
    /// Paces as soon as half of the quota is left, or less.
    pub const fn pace() -> Self {
        Self::Pace { below_percent: 50 }
    }
}

/// The limits of one server as a client knows them, and the time of its next request.
///
/// You want it to make a client of your own, without Tower; the [`ClientLayer`](super::ClientLayer) has one for each
/// origin and partition. It reads no clock and does not wait: you ask, send or wait, and tell what came of it. `now` is
/// the time of one monotonic clock; with tokio, `tokio::time::Instant::now().into_std()`, which tests can pause.
///
/// - While nothing is known, nothing waits.
/// - After an answer that leaves `r` units for `t` seconds, no more than `r` requests are sent within `t`, until the
///   answer to a request that was sent later says more. That holds for each limit by itself.
/// - After `t`, nothing is taken for granted: what was left may still be used, and then one request at a time tries,
///   until an answer says what is left. After a [rejection](Advice::retry_after) it is the same, until an answer is no
///   rejection.
/// - [`Retry-After`](Advice::retry_after) ends all windows.
/// - A limit of which nothing more is heard is forgotten after its window and as long again, at least ten seconds and
///   at most a minute.
///
/// Each request counts as one unit of a limit that counts requests. Limits in other units hold requests back like this:
///
/// - `content-bytes`: the size of the next request is unknown, so requests go while any bytes are left. When none are,
///   nothing is sent within `t`, and then one request at a time tries.
/// - `concurrent-requests`: no more requests are on their way at once than slots were left, since the server may have
///   known of none of them; a single one always goes. When no slot is left, nothing is sent within `t` if the server says
///   such a time. A slot is free when the content of its response ends, which is not seen here: where contents are
///   long, bound the concurrency yourself.
/// - Any other unit, such as the tokens of a [`Profile`](super::Profile): the same as `content-bytes`.
///
/// At most 32 limits are kept, with names and partition keys of at most 256 bytes together.
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Advice, Caps, Exchange, Pacing, Strategy, Acquire};
///
/// let caps = Caps::default();
/// let mut pacing = Pacing::new(Strategy::Greedy, caps);
/// let now = Instant::now();
///
/// let Acquire::Ready(dispatch) = pacing.try_acquire(now) else { panic!("nothing is known yet") };
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit", r#""default";r=0;t=7"#.parse()?);
/// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// pacing.record_response(dispatch, &Advice::read(StatusCode::OK, &headers, exchange, &caps), now);
///
/// let Acquire::Wait(wait) = pacing.try_acquire(now) else { panic!("nothing is left") };
/// assert_eq!(wait.until(), now + Duration::from_secs(7));
///
/// // Then one tries.
/// assert!(matches!(pacing.try_acquire(wait.until()), Acquire::Ready(_)));
/// assert!(matches!(pacing.try_acquire(wait.until()), Acquire::Wait(_)));
/// # Ok::<_, http::header::InvalidHeaderValue>(())
/// ```
pub struct Pacing {
    strategy: Strategy,
    caps: Caps,
    jitter_percent: u8,
    partition_key: Option<Vec<u8>>,
    items: Vec<Item>,
    blocked_until: Option<Instant>,
    /// The number of the last request; it counts also those that were not sent after all.
    last: u64,
    /// Requests that are answered, lost or not sent after all.
    finished: u64,
    /// The number of them since the last request.
    finished_since: u64,
    trial: Option<Trial>,
    /// The last request when a rejection came.
    rejected_at: Option<u64>,
}

/// A request that finds out what is left.
#[derive(Debug)]
struct Trial {
    number: u64,
    /// The moment from which another one may try, although this one has no answer.
    expires_at: Instant,
}

/// The answer of [`Pacing::try_acquire`].
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Advice, Caps, Exchange, Pacing, Strategy, Acquire};
///
/// let mut pacing = Pacing::new(Strategy::Greedy, Caps::default());
/// let mut now = Instant::now();
/// let mut waited = 0;
/// for _ in 0..3 {
///     let dispatch = loop {
///         match pacing.try_acquire(now) {
///             Acquire::Ready(dispatch) => break dispatch,
///             // A client would sleep until then.
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
///     pacing.record_response(dispatch, &advice, now);
///     assert_eq!(pacing.blocked_until(now), Some(now + Duration::from_secs(10)));
/// }
/// assert_eq!(waited, 20);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a request that goes has to be reported"]
pub enum Acquire {
    /// Send the request, and tell what comes of it.
    Ready(SendPermit),
    /// Ask again later.
    Wait(Wait),
}

/// A request that may be sent: tell what comes of it, with [`Pacing::record_response`], [`Pacing::record_loss`] or
/// [`Pacing::cancel`]. Until then it counts as being on its way.
///
/// One that is dropped without a word stays on its way for good: what is left is then known less exactly.
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Advice, Caps, SendPermit, Exchange, Pacing, Strategy, Acquire};
///
/// # let mut pacing = Pacing::new(Strategy::Greedy, Caps::default());
/// # let now = Instant::now();
/// fn go(pacing: &mut Pacing, now: Instant) -> SendPermit {
///     let Acquire::Ready(dispatch) = pacing.try_acquire(now) else { panic!("nothing is left") };
///     dispatch
/// }
/// let left = |pacing: &Pacing| pacing.limits(now)[0].remaining();
///
/// let dispatch = go(&mut pacing, now);
/// let headers = HeaderMap::from_iter([("ratelimit".parse()?, r#""a";r=5;t=60"#.parse()?)]);
/// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// pacing.record_response(dispatch, &Advice::read(StatusCode::OK, &headers, exchange, &Caps::default()), now);
/// assert_eq!(left(&pacing), Some(5));
///
/// let dispatch = go(&mut pacing, now);
/// assert_eq!((left(&pacing), pacing.in_flight()), (Some(4), 1));
/// // No connection was free.
/// pacing.cancel(dispatch);
/// assert_eq!((left(&pacing), pacing.in_flight()), (Some(5), 0));
///
/// // The connection broke, and it is unknown whether the server has counted the request.
/// let dispatch = go(&mut pacing, now);
/// pacing.record_loss(dispatch);
/// assert_eq!((left(&pacing), pacing.in_flight()), (Some(4), 0));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "it counts as being on its way until it is reported"]
pub struct SendPermit {
    number: u64,
    finished_before: u64,
}

/// The time to wait: see [`Acquire::Wait`].
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Advice, Caps, Exchange, Pacing, Strategy, Acquire};
///
/// let mut pacing = Pacing::new(Strategy::Greedy, Caps::default());
/// let now = Instant::now();
/// # let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// # let headers = HeaderMap::from_iter([("ratelimit".parse()?, r#""a";r=0;t=7"#.parse()?)]);
/// let nothing_for_7_seconds = Advice::read(StatusCode::OK, &headers, exchange, &Caps::default());
///
/// let (Acquire::Ready(first), Acquire::Ready(second)) = (pacing.try_acquire(now), pacing.try_acquire(now)) else { panic!() };
/// pacing.record_response(first, &nothing_for_7_seconds, now);
/// let Acquire::Wait(wait) = pacing.try_acquire(now) else { panic!() };
/// assert_eq!(wait.until(), now + Duration::from_secs(7));
/// assert!(!wait.is_certain(), "the other answer may say more");
///
/// pacing.record_response(second, &nothing_for_7_seconds, now);
/// let Acquire::Wait(wait) = pacing.try_acquire(now) else { panic!() };
/// assert!(wait.is_certain());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    until: Instant,
    is_certain: bool,
}

impl Wait {
    /// The latest moment to ask again.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Returns `true` if no event can end the wait earlier. Otherwise, ask again after each answer, too.
    pub fn is_certain(&self) -> bool {
        self.is_certain
    }
}

impl Pacing {
    const MAX_ITEMS: usize = 32;
    /// The time in which a trial blocks other trials.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// A pacing that knows nothing yet. Unlike the [builder](super::ClientLayerBuilder::strategy), it takes any
    /// percentage of [`Strategy::Pace`]: 0 never paces, and more than 100 is 100.
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
        }
    }

    /// Makes each wait longer by a random part of it, up to so many percent, so that not all clients return at one
    /// moment. Default: 0. More than 100 is 100. [`Caps::max_wait`] stays the longest wait.
    ///
    /// ```
    /// # use std::time::{Duration, Instant, SystemTime};
    /// # use http::{HeaderMap, StatusCode};
    /// # use tower_ratelimit_client::{Advice, Caps, Exchange, Acquire};
    /// use tower_ratelimit_client::{Pacing, Strategy};
    ///
    /// let mut pacing = Pacing::new(Strategy::Greedy, Caps::default()).with_jitter(50);
    /// # let now = Instant::now();
    /// # let Acquire::Ready(dispatch) = pacing.try_acquire(now) else { panic!() };
    /// # let headers = HeaderMap::from_iter([("ratelimit".parse()?, r#""a";r=0;t=100"#.parse()?)]);
    /// # let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
    /// # pacing.record_response(dispatch, &Advice::read(StatusCode::OK, &headers, exchange, &Caps::default()), now);
    /// // … nothing is left for 100 seconds
    /// let Acquire::Wait(wait) = pacing.try_acquire(now) else { panic!() };
    /// let seconds = (wait.until() - now).as_secs_f64();
    /// assert!(seconds > 100.0 && seconds <= 150.0);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_jitter(mut self, percent: u8) -> Self {
        self.jitter_percent = percent.min(100);
        self
    }

    /// The partition key of the requests that are sent, as the server computes it.
    ///
    /// If a server shows several partitions of one policy, and this is one of them, then only that
    /// one holds requests back. Otherwise all of them do.
    ///
    /// ```
    /// # use std::time::{Duration, Instant, SystemTime};
    /// # use http::{HeaderMap, StatusCode};
    /// # use tower_ratelimit_client::{Advice, Caps, Exchange};
    /// use tower_ratelimit_client::{Pacing, Strategy, Acquire};
    ///
    /// # let now = Instant::now();
    /// // Nothing is left for alice, and five units for bob.
    /// let text = r#""hour";r=0;t=60;pk=:YWxpY2U=:, "hour";r=5;t=60;pk=:Ym9i:"#;
    /// let goes = |mut pacing: Pacing| {
    /// #     let Acquire::Ready(dispatch) = pacing.try_acquire(now) else { panic!() };
    /// #     let headers = HeaderMap::from_iter([("ratelimit".parse().unwrap(), text.parse().unwrap())]);
    /// #     let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
    /// #     pacing.record_response(dispatch, &Advice::read(StatusCode::OK, &headers, exchange, &Caps::default()), now);
    ///     // … a response has said so
    ///     matches!(pacing.try_acquire(now), Acquire::Ready(_))
    /// };
    /// let pacing = || Pacing::new(Strategy::Greedy, Caps::default());
    /// assert!(!goes(pacing()));
    /// assert!(!goes(pacing().with_partition_key("alice")));
    /// assert!(goes(pacing().with_partition_key("bob")));
    /// ```
    #[must_use]
    pub fn with_partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// Asks for permission to send the next request now.
    pub fn try_acquire(&mut self, now: Instant) -> Acquire {
        self.items.retain(|item| item.is_known(now));
        match self.obstacle(now) {
            Some(wait) => Acquire::Wait(wait),
            None => Acquire::Ready(self.send(now)),
        }
    }

    /// The head of a response was read. Give it also advice that [is empty](Advice::is_empty): a response that says
    /// nothing ends its request, too.
    pub fn record_response(&mut self, dispatch: SendPermit, advice: &Advice, now: Instant) {
        self.finish(&dispatch);
        let wait = advice.retry_after().map(|wait| now + self.jittered(wait));
        let blocked_until = wait.map(|until| until.max(self.blocked_until.unwrap_or(now)));
        if blocked_until.is_some() {
            self.rejected_at = Some(self.last);
            self.blocked_until = blocked_until;
        } else if self
            .rejected_at
            .is_some_and(|rejected_at| dispatch.number > rejected_at)
        {
            self.rejected_at = None;
        }
        self.observe(&dispatch, advice, now);
        if let Some(until) = blocked_until {
            // The fields say how much is left, and `Retry-After` says how long it has to last.
            self.items.iter_mut().for_each(|item| item.end_at(until));
        }
        self.settle();
    }

    /// No response came, and the server may or may not have counted the request: see [`SendPermit`] for an example.
    pub fn record_loss(&mut self, dispatch: SendPermit) {
        self.finish(&dispatch);
        self.settle();
    }

    /// Cancels a request that was not sent, so that others may use its units: see [`SendPermit`] for an example.
    pub fn cancel(&mut self, dispatch: SendPermit) {
        self.finish(&dispatch);
        self.items.iter_mut().for_each(|item| item.give_back(dispatch.number));
        self.settle();
    }

    /// The state of each limit at this moment, at most 32: the units that this client may still spend, and for how long.
    pub fn limits(&self, now: Instant) -> Vec<Limit> {
        let known = self.items.iter().filter(|item| item.is_known(now));
        known.map(|item| item.to_limit(now)).collect()
    }

    /// Until when nothing is sent because a server [has asked for it](Advice::retry_after); `None` if that is over.
    pub fn blocked_until(&self, now: Instant) -> Option<Instant> {
        self.blocked_until.filter(|until| *until > now)
    }

    /// The number of requests in progress.
    pub fn in_flight(&self) -> u64 {
        self.last - self.finished
    }

    /// The moment at which all knowledge expires, if no answer comes before.
    pub(super) fn known_until(&self) -> Option<Instant> {
        let items = self.items.iter().map(|item| item.forget_at);
        items.max().max(self.blocked_until)
    }

    /// The reason that holds a request back. Looking changes nothing.
    pub(super) fn obstacle(&self, now: Instant) -> Option<Wait> {
        if self.only_observes() {
            return None;
        }
        if let Some(until) = self.blocked_until(now) {
            let is_certain = true;
            return Some(Wait { until, is_certain });
        }
        let waits = self.in_force(now).map(|item| item.wait_until(now, self.low_percent()));
        let mut until = waits.max().unwrap_or(now);
        if until <= now && self.in_force(now).any(|item| item.is_full(self.in_flight())) {
            // Until one of them is answered. If none ever is, the limit is forgotten.
            until = now + Self::PATIENCE.min(self.caps.max_wait());
        }
        if until > now {
            // A late answer may leave more than was feared.
            let is_certain = self.in_flight() == 0;
            return Some(Wait { until, is_certain });
        }
        let trial = self.trial.as_ref().filter(|trial| trial.expires_at > now)?;
        self.is_trial(now).then_some(Wait {
            until: trial.expires_at,
            is_certain: false,
        })
    }

    /// Returns `true` if the server has asked for a wait that is not over.
    pub(super) fn is_blocked(&self, now: Instant) -> bool {
        self.blocked_until(now).is_some()
    }

    /// Returns `true` if no request is ever held back.
    pub(super) fn only_observes(&self) -> bool {
        self.strategy == Strategy::Observe
    }

    fn low_percent(&self) -> u8 {
        match self.strategy {
            Strategy::Pace { below_percent } => below_percent,
            _ => 0,
        }
    }

    /// Returns `true` if a request that is sent now is a trial: its answer tells the remaining units.
    fn is_trial(&self, now: Instant) -> bool {
        self.rejected_at.is_some() || self.in_force(now).any(|item| item.is_used_up() && item.is_over(now))
    }

    /// The limits that hold requests back.
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
        // A dispatch of another pacing must not make more of them than were sent.
        self.finished = self.last.min(self.finished + 1);
        self.finished_since += 1;
        if self.trial.as_ref().is_some_and(|trial| trial.number == dispatch.number) {
            self.trial = None;
        }
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
        // Limits whose time is over and which the server does not repeat are no more.
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

    /// While no request is in progress, the server has counted all of them, and the least that it has said since the
    /// last request is exact.
    fn settle(&mut self) {
        if self.in_flight() == 0 {
            let (last, answers) = (self.last, self.finished_since);
            self.items.iter_mut().for_each(|item| item.settle(last, answers));
        }
    }

    fn jittered(&self, wait: Duration) -> Duration {
        if self.jitter_percent == 0 {
            return wait;
        }
        // Each `RandomState` has other keys, which is random enough for a wait.
        let random = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
        let part = f64::from(self.jitter_percent) / 100.0 * random;
        wait.saturating_add(wait.mul_f64(part))
            .min(self.caps.max_wait().max(wait))
    }
}

/// Without the partition key, which may be a credential.
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
