//! Quotas of calendar windows: in both stores, on servers with another clock, and beside other time-zone data.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use jiff::Timestamp as Moment;
use proptest::{prelude::*, sample::select};
use test_kit::{RedisServer, ScriptedServer, memory};
use tower_quota::{
    Availability, Decision, Direction, Outcome, Plan, QuotaPolicy, RedisStore, Settlement, Store, StoreErrorKind,
    calendar::{CalendarPeriod, CalendarWindow},
    clock::{Clock, Timestamp},
};

use super::support::{self, try_for_any, user};

fn moment(text: &str) -> Timestamp {
    let moment: Moment = text.parse().unwrap();
    Timestamp::from_micros(moment.as_microsecond() as u64)
}

fn plan(policies: impl IntoIterator<Item = QuotaPolicy>, name: &str, cost: u64) -> Plan {
    support::plan(policies, user("calendar", name), cost)
}

async fn decide(store: &dyn Store, policy: &QuotaPolicy, cost: u64) -> Decision {
    store.decide(plan([policy.clone()], "alice", cost)).await.unwrap()
}

fn remaining(decision: &Decision) -> u64 {
    decision.allowances().next().unwrap().remaining()
}

#[path = "../../examples/own_store.rs"]
#[allow(dead_code, reason = "the example is a program")]
mod own_store;

/// A store in memory, one in Redis and one of a ledger's bytes, on a clock.
fn stores(server: &RedisServer, now: &str) -> (Clock, [Arc<dyn Store>; 3]) {
    let clock = Clock::manual(moment(now));
    let redis = RedisStore::builder(server.url()).clock(clock.clone()).connections(1);
    let ledger = own_store::OwnStore::new(clock.clone());
    let redis = Arc::new(redis.build().unwrap());
    (clock.clone(), [Arc::new(memory(&clock)), redis, Arc::new(ledger)])
}

/// A server whose clock is set by a test, and counts the calls of the script.
struct OtherClock {
    server: Arc<RedisServer>,
    scripted: ScriptedServer,
    calls: Arc<AtomicUsize>,
    now: Arc<AtomicU64>,
}

impl OtherClock {
    async fn start(now: Timestamp) -> Self {
        let now = Arc::new(AtomicU64::new(now.as_micros()));
        let seen = Arc::clone(&now);
        Self::with(now, move |_| seen.load(Ordering::SeqCst)).await
    }

    /// The time may differ in each call.
    async fn with(now: Arc<AtomicU64>, time: impl Fn(usize) -> u64 + Send + Sync + 'static) -> Self {
        let (server, calls) = (Arc::new(RedisServer::start()), Arc::new(AtomicUsize::new(0)));
        let (asked, counted, all) = (Arc::clone(&server), Arc::clone(&calls), AtomicUsize::new(0));
        let scripted = ScriptedServer::start(move |mut call| {
            let keys: usize = std::str::from_utf8(&call.words[2]).unwrap().parse().unwrap();
            let first = 3 + keys;
            if call.words.len() < first + 4 {
                call.words.resize(first + 4, Vec::new());
            }
            call.words[first + 3] = time(all.load(Ordering::SeqCst)).to_string().into_bytes();
            let words: Vec<&[u8]> = call.words.iter().map(Vec::as_slice).collect();
            let reply = asked.command_bytes(&words);
            // A script that the server does not know is sent again.
            let is_run = usize::from(!reply.starts_with(b"-NOSCRIPT"));
            counted.fetch_add(is_run, Ordering::SeqCst);
            all.fetch_add(is_run, Ordering::SeqCst);
            reply
        });
        Self {
            server,
            scripted: scripted.await,
            calls,
            now,
        }
    }

    /// A store by the time of this machine.
    fn store(&self) -> RedisStore {
        RedisStore::builder(self.scripted.url()).connections(1).build().unwrap()
    }

    fn set(&self, now: &str) {
        self.now.store(moment(now).as_micros(), Ordering::SeqCst);
    }

    /// The number of calls since the last look.
    fn calls(&self) -> usize {
        self.calls.swap(0, Ordering::SeqCst)
    }
}

/// The windows of days, weeks and months, the odd ones among them, from the last microsecond before the start to the end.
#[tokio::test]
async fn a_quota_resets_when_its_window_ends_and_not_a_microsecond_earlier() {
    let day = |zone| CalendarWindow::new(CalendarPeriod::Day, zone);
    let month = |zone| CalendarWindow::new(CalendarPeriod::MONTH, zone);
    let week = CalendarWindow::new(CalendarPeriod::WEEK, "Europe/Berlin");
    let cases = [
        (day("Europe/Berlin"), "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
        (day("Europe/Berlin"), "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
        (day("America/Sao_Paulo"), "2017-10-15T03:00:00Z", "2017-10-16T02:00:00Z"),
        (day("Asia/Beirut"), "2022-03-26T22:00:00Z", "2022-03-27T21:00:00Z"),
        (day("Pacific/Apia"), "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"),
        (day("Pacific/Apia"), "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"),
        (week, "2026-10-18T22:00:00Z", "2026-10-25T23:00:00Z"),
        (month("UTC"), "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"),
        (month("UTC"), "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
        (month("Europe/Berlin"), "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"),
        (month("Europe/Berlin"), "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z"),
    ];
    let server = RedisServer::start();
    for (window, start, end) in cases {
        let policy = QuotaPolicy::per_calendar("plan", 5, window.clone());
        let (clock, stores) = stores(&server, start);
        let (start, end) = (moment(start), moment(end));
        for store in stores {
            let context = format!("{store:?} {window:?}");
            clock.set(Timestamp::from_micros(start.as_micros() - 1));
            assert_eq!(remaining(&decide(&*store, &policy, 5).await), 0, "{context}");
            clock.set(start);
            assert_eq!(remaining(&decide(&*store, &policy, 5).await), 0, "{context}");
            let rejected = decide(&*store, &policy, 1).await;
            let length = Duration::from_micros(end.micros_since(start));
            assert_eq!(rejected.retry_after(), Some(length), "{context}");
            clock.set(Timestamp::from_micros(end.as_micros() - 1));
            let rejected = decide(&*store, &policy, 1).await;
            assert_eq!(rejected.retry_after(), Some(Duration::from_micros(1)), "{context}");
            clock.set(end);
            assert_eq!(remaining(&decide(&*store, &policy, 1).await), 4, "{context}");
            store.reset(plan([policy.clone()], "alice", 1)).await.unwrap();
        }
    }
}

/// The first call contains the windows around this machine's time, which do not include the server's time.
#[tokio::test]
async fn a_server_on_the_other_side_of_a_border_is_asked_again_with_the_windows_around_its_time() {
    let other = OtherClock::start(moment("2031-03-30T12:00:00Z")).await;
    let (store, policy) = (
        other.store(),
        QuotaPolicy::per_calendar_month("month", 3, "Europe/Berlin"),
    );
    let left = async |cost| remaining(&decide(&store, &policy, cost).await);
    let wait = async |cost| decide(&store, &policy, cost).await.retry_after().unwrap().as_secs();
    assert_eq!((left(1).await, other.calls()), (2, 2), "charged once");
    // From now on the store knows the difference. Clocks are ahead in Berlin since that morning.
    assert_eq!((wait(3).await, other.calls()), (34 * 3_600, 1));
    other.set("2031-03-31T21:59:59Z");
    assert_eq!((left(2).await, wait(1).await), (0, 1));
    other.set("2031-03-31T22:00:00Z");
    assert_eq!(left(1).await, 2);
    // The windows before and after this one are in each call.
    other.set("2031-04-30T21:59:54Z");
    assert_eq!((left(1).await, other.calls()), (1, 4));
    // Near a window boundary, the call contains more windows, because the server may hang until the current ones have
    // ended.
    other.set("2031-04-30T21:59:56Z");
    assert_eq!((left(1).await, other.calls()), (0, 2));
    // A failover to a server that is years behind.
    other.set("2019-02-14T00:00:00Z");
    let another = store.decide(plan([policy.clone()], "bob", 1)).await.unwrap();
    assert_eq!((remaining(&another), other.calls()), (2, 2));
}

#[tokio::test]
async fn a_server_whose_clock_jumps_from_call_to_call_is_an_error_and_charges_nothing() {
    let start = moment("2031-01-01T00:00:00Z").as_micros();
    let days = |number| if number < 3 { number as u64 * 100 } else { 0 };
    let other = OtherClock::with(Arc::default(), move |number| start + days(number) * 86_400_000_000).await;
    let (store, policy) = (other.store(), QuotaPolicy::per_calendar_day("day", 3, "UTC"));
    let error = store.decide(plan([policy.clone()], "alice", 1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Failed);
    let message = error.to_string();
    let expected = "the server's clock jumps across calendar windows between calls";
    assert!(message.contains(expected), "{message}");
    assert_eq!((other.calls(), other.server.command(&["DBSIZE"])), (3, "0".to_owned()));
    assert_eq!(remaining(&decide(&store, &policy, 1).await), 2, "it has become steady");
}

/// Among them plans of several partitions, settlements, and decisions that share calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_to_a_server_with_another_clock_charges_twice() {
    let other = OtherClock::start(moment("2031-03-30T12:00:00Z")).await;
    let policies = || {
        [
            QuotaPolicy::per_calendar_day("day", 50, "Europe/Berlin"),
            QuotaPolicy::per_calendar_month("month", 60, "Asia/Tokyo"),
            QuotaPolicy::per_hour("hour", 70),
            QuotaPolicy::per_calendar_week("bytes", 1_000, "Europe/Berlin").with_content_bytes(Direction::Both),
            QuotaPolicy::concurrent("slots", 1_000),
        ]
    };
    let left =
        async |store: &RedisStore, name| support::remaining(&store.peek(plan(policies(), name, 0)).await.unwrap());
    let both = || plan(policies(), "alice", 1).join(plan(policies(), "bob", 1));
    let decision = other.store().decide(both()).await.unwrap();
    assert_eq!(decision.outcome(), Outcome::Allowed);
    for name in ["alice", "bob"] {
        assert_eq!(left(&other.store(), name).await, [49, 59, 69, 999, 999]);
    }
    // A store that does not know the time settles, too.
    let store = other.store();
    store.settle(Settlement::refund_all(&decision)).await.unwrap();
    for name in ["alice", "bob"] {
        assert_eq!(left(&store, name).await, [50, 60, 70, 1_000, 1_000]);
    }
    let store = other.store();
    let simple = plan(policies().into_iter().take(3), "carol", 1);
    let decisions = (0..120).map(|_| store.decide(simple.clone()));
    let decisions = join_all(decisions).await;
    let allowed = decisions
        .iter()
        .filter(|decision| decision.as_ref().unwrap().outcome() == Outcome::Allowed);
    assert_eq!(allowed.count(), 50);
    assert_eq!(left(&other.store(), "carol").await[..3], [0, 10, 20]);
    assert!(other.calls() < 120, "they have shared calls");
}

/// As if another instance had borders an hour earlier or later: its count is in Redis with the end that it knows.
#[tokio::test]
async fn instances_that_disagree_about_a_border_never_give_a_quota_twice() {
    let policy = QuotaPolicy::per_calendar_day("day", 5, "UTC");
    let server = RedisServer::start();
    for (written, own_end, their_end, full_at) in [
        // The other instance has begun the 23rd at 23:00.
        (
            "2026-11-22T23:10:00Z",
            "2026-11-23T00:00:00Z",
            "2026-11-23T23:00:00Z",
            "2026-11-23T23:00:00Z",
        ),
        // The other one begins it at 01:00, and this one has begun it.
        (
            "2026-11-23T01:10:00Z",
            "2026-11-24T00:00:00Z",
            "2026-11-24T01:00:00Z",
            "2026-11-24T00:00:00Z",
        ),
    ] {
        let (clock, [_, store, _]) = stores(&server, written);
        assert_eq!(remaining(&decide(&*store, &policy, 5).await), 0);
        let until = |end: &str| moment(end).micros_since(moment(written)) / 1_000_000;
        rewrite_length(&server, until(own_end), until(their_end));

        for now in [
            written,
            "2026-11-22T23:59:59Z",
            "2026-11-23T00:00:00Z",
            "2026-11-23T22:59:59Z",
        ] {
            clock.set(moment(now).max(moment(written)));
            let rejected = decide(&*store, &policy, 1).await;
            let wait = Duration::from_micros(moment(full_at).micros_since(clock.now()));
            assert_eq!(rejected.retry_after(), Some(wait), "{written} {now}");
        }
        clock.set(moment(full_at));
        assert_eq!(remaining(&decide(&*store, &policy, 1).await), 4, "{written}");
        store.reset(plan([policy.clone()], "alice", 1)).await.unwrap();
    }
}

/// In the only value of the server, the three bytes behind the ID are the seconds from the beginning of the count to its
/// end, as a multiple of 25.
fn rewrite_length(server: &RedisServer, from: u64, to: u64) {
    let key = server.command(&["KEYS", "*"]);
    let value = server.command_bytes(&[b"GET", key.as_bytes()]);
    let length = value.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut value = value[length..value.len() - 2].to_vec();
    let short = |seconds: u64| (seconds / 25 * 16 + 2) as u32;
    let length = &mut value[15..18];
    assert_eq!(length, &short(from).to_le_bytes()[..3]);
    length.copy_from_slice(&short(to).to_le_bytes()[..3]);
    server.command_bytes(&[b"SET", key.as_bytes(), &value, b"PX", b"86400000"]);
}

fn full_after(decision: &Decision) -> Option<Duration> {
    decision.allowances().next().unwrap().full_after()
}

#[derive(Clone, Debug)]
struct Ask {
    /// Microseconds before the request.
    pause: u64,
    instance: usize,
    begins: u8,
    cost: u64,
    /// True if the caller then waits for the renewal of which it was told.
    waits: bool,
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let days = prop_oneof![Just(vec![5, 15]), proptest::collection::vec(1..=31_u8, 1..6)];
    days.prop_flat_map(|days| {
        let pause = prop_oneof![
            3 => Just(0),
            2 => 0..3_600_000_000_u64,
            3 => 0..10 * 86_400_000_000_u64,
            1 => 0..90 * 86_400_000_000_u64,
        ];
        let waits = prop_oneof![3 => Just(false), 1 => Just(true)];
        let ask = (pause, 0..2_usize, select(days), 0..=6_u64, waits);
        let ask = ask.prop_map(|(pause, instance, begins, cost, waits)| Ask {
            pause,
            instance,
            begins,
            cost,
            waits,
        });
        proptest::collection::vec(ask, 1..60)
    })
}

/// A caller whose day changes all the time, at two instances, and what it has seen.
struct Billed<'a> {
    clock: &'a Clock,
    stores: [&'a dyn Store; 2],
    name: String,
    /// Units since a quota was last opened.
    used: u64,
    /// The start of the date on which this was.
    opened_on: Option<Timestamp>,
    /// The months in which requests with their day have opened a quota.
    months: HashSet<(u8, Timestamp)>,
}

impl Billed<'_> {
    const TIME_ZONE: &'static str = "America/New_York";

    fn plan(&self, begins: u8, cost: u64) -> Plan {
        let window = CalendarWindow::new(CalendarPeriod::Month { begins }, Self::TIME_ZONE);
        plan([QuotaPolicy::per_calendar("month", 10, window)], &self.name, cost)
    }

    /// The start of the window now.
    fn start(&self, period: CalendarPeriod) -> Timestamp {
        let window = CalendarWindow::new(period, Self::TIME_ZONE);
        window.around(self.clock.now()).unwrap()[0]
    }

    async fn peek(&self, begins: u8, cost: u64, instance: usize) -> Decision {
        self.stores[instance].peek(self.plan(begins, cost)).await.unwrap()
    }

    async fn ask(&mut self, ask: &Ask) -> Result<(), TestCaseError> {
        self.clock.advance(Duration::from_micros(ask.pause));
        let &Ask {
            begins, cost, instance, ..
        } = ask;
        let peeked = self.peek(begins, cost, instance).await;
        let decision = self.stores[instance].decide(self.plan(begins, cost)).await.unwrap();
        let is_allowed = decision.outcome() == Outcome::Allowed;
        // A peek tells what the request then gets.
        let left = remaining(&peeked);
        prop_assert_eq!(remaining(&decision), if is_allowed { left - cost } else { left });
        prop_assert_eq!(is_allowed, peeked.availability() == Availability::Now);
        if !is_allowed {
            let wait = decision.retry_after().unwrap();
            prop_assert_eq!(peeked.availability(), Availability::After(wait));
            prop_assert_eq!(full_after(&decision), Some(wait));
        }
        if left < 10 {
            prop_assert_eq!(full_after(&decision), full_after(&peeked));
            prop_assert_eq!(
                left,
                10 - self.used,
                "neither more nor less than since the last renewal"
            );
        } else if is_allowed && cost > 0 {
            let (date, month) = (
                self.start(CalendarPeriod::Day),
                self.start(CalendarPeriod::Month { begins }),
            );
            prop_assert!(self.opened_on < Some(date), "one quota on a date");
            prop_assert!(self.months.insert((begins, month)), "one quota per month of each day");
            (self.opened_on, self.used) = (Some(date), 0);
        }
        if is_allowed {
            self.used += cost;
        }
        match full_after(&decision) {
            Some(wait) if ask.waits => self.wait(ask, wait).await,
            _ => Ok(()),
        }
    }

    /// Waits for an announced renewal, first to a microsecond before it.
    async fn wait(&self, ask: &Ask, wait: Duration) -> Result<(), TestCaseError> {
        let renewed_at = self.clock.now().saturating_add(wait);
        self.clock.set(Timestamp::from_micros(renewed_at.as_micros() - 1));
        let peeked = self.peek(ask.begins, ask.cost, 1 - ask.instance).await;
        prop_assert_eq!(
            (remaining(&peeked), full_after(&peeked)),
            (10 - self.used, Some(Duration::from_micros(1)))
        );
        self.clock.set(renewed_at);
        let peeked = self.peek(ask.begins, ask.cost, 1 - ask.instance).await;
        prop_assert_eq!((remaining(&peeked), full_after(&peeked)), (10, None));
        Ok(())
    }
}

/// Renewals are those that were announced, and with any days no more than one on a date and in a month of each day.
#[test]
fn renewals_come_when_they_were_announced_whatever_the_days_of_the_requests() {
    let (server, callers) = (RedisServer::start(), AtomicUsize::new(0));
    try_for_any(100, asks(), async |asks| {
        let name = format!("caller {}", callers.fetch_add(1, Ordering::Relaxed));
        let (clock, [memory, redis, ledger]) = stores(&server, "2027-12-20T00:00:00Z");
        let other = RedisStore::builder(server.url()).clock(clock.clone()).connections(1);
        let other = other.build().unwrap();
        for stores in [[&*memory, &*memory], [&*redis, &other], [&*ledger, &*ledger]] {
            clock.set(moment("2027-12-20T00:00:00Z"));
            let mut caller = Billed {
                clock: &clock,
                stores,
                name: name.clone(),
                used: 0,
                opened_on: None,
                months: HashSet::new(),
            };
            for ask in &asks {
                caller.ask(ask).await?;
            }
        }
        Ok(())
    });
}
