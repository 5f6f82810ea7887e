//! Quotas of calendar windows: in both stores, on servers with another clock, and beside other time-zone data.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use jiff::Timestamp as Moment;
use test_kit::{RedisServer, ScriptedServer};
use tower_quota::{
    CalendarPeriod, CalendarWindow, Decision, Direction, MemoryStore, Outcome, PartitionId, PartitionKey, Plan,
    PolicySet, QuotaPolicy, RedisStore, Scope, Settlement, Store, StoreErrorKind,
    clock::{Clock, Timestamp},
};

fn moment(text: &str) -> Timestamp {
    let moment: Moment = text.parse().unwrap();
    Timestamp::from_micros(moment.as_microsecond() as u64)
}

fn caller(name: &str) -> PartitionId {
    Scope::new("calendar").partition(&PartitionKey::new("user", name))
}

fn plan(policies: impl IntoIterator<Item = QuotaPolicy>, name: &str, cost: u64) -> Plan {
    Plan::new(PolicySet::new(policies).unwrap(), caller(name), cost)
}

async fn decide(store: &dyn Store, policy: &QuotaPolicy, cost: u64) -> Decision {
    store.decide(plan([policy.clone()], "alice", cost)).await.unwrap()
}

fn remaining(decision: &Decision) -> u64 {
    decision.allowances().next().unwrap().remaining()
}

/// A store in memory and one in Redis, on a clock.
fn stores(server: &RedisServer, now: &str) -> (Clock, [Arc<dyn Store>; 2]) {
    let clock = Clock::manual(moment(now));
    let memory = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let redis = RedisStore::builder(server.url()).clock(clock.clone()).connections(1);
    (clock, [Arc::new(memory), Arc::new(redis.build().unwrap())])
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

#[tokio::test]
async fn what_a_request_did_not_use_comes_back_within_its_window_only() {
    let policy = QuotaPolicy::per_calendar_day("day", 10, "Asia/Tokyo");
    let server = RedisServer::start();
    let (clock, stores) = stores(&server, "2026-11-22T14:59:00Z");
    for store in stores {
        clock.set(moment("2026-11-22T14:59:00Z"));
        let (first, second) = (decide(&*store, &policy, 4).await, decide(&*store, &policy, 4).await);
        store.settle(Settlement::new(&first, 1)).await.unwrap();
        assert_eq!(remaining(&decide(&*store, &policy, 0).await), 5, "{store:?}");
        // Midnight in Tokyo.
        clock.set(moment("2026-11-22T15:00:00Z"));
        assert_eq!(remaining(&decide(&*store, &policy, 3).await), 7, "{store:?}");
        store.settle(Settlement::refund_all(&second)).await.unwrap();
        assert_eq!(remaining(&decide(&*store, &policy, 0).await), 7, "{store:?}");
        // Extra cost is charged to the window in which it becomes known.
        store.settle(Settlement::new(&first, 6)).await.unwrap();
        assert_eq!(
            remaining(&decide(&*store, &policy, 0).await),
            7,
            "a second settlement changes nothing"
        );
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
    let decision = decide(&store, &policy, 1).await;
    assert_eq!((remaining(&decision), other.calls()), (2, 2), "charged once");
    // From now on the store knows the difference. Clocks are ahead in Berlin since that morning.
    let rejected = decide(&store, &policy, 3).await;
    assert_eq!(
        (rejected.retry_after(), other.calls()),
        (Some(Duration::from_secs(34 * 3_600)), 1)
    );
    other.set("2031-03-31T21:59:59Z");
    assert_eq!(remaining(&decide(&store, &policy, 2).await), 0);
    assert_eq!(
        decide(&store, &policy, 1).await.retry_after(),
        Some(Duration::from_secs(1))
    );
    other.set("2031-03-31T22:00:00Z");
    assert_eq!(remaining(&decide(&store, &policy, 1).await), 2);
    // The windows before and after this one are in each call.
    other.set("2031-04-30T21:59:54Z");
    assert_eq!((remaining(&decide(&store, &policy, 1).await), other.calls()), (1, 4));
    // Near a window boundary, the call contains more windows, because the server may hang until the current ones have
    // ended.
    other.set("2031-04-30T21:59:56Z");
    assert_eq!((remaining(&decide(&store, &policy, 1).await), other.calls()), (0, 2));
    // A failover to a server that is years behind.
    other.set("2019-02-14T00:00:00Z");
    let another = plan([policy.clone()], "bob", 1);
    assert_eq!(
        (remaining(&store.decide(another).await.unwrap()), other.calls()),
        (2, 2)
    );
}

#[tokio::test]
async fn a_server_whose_clock_jumps_from_call_to_call_is_an_error_and_charges_nothing() {
    let start = moment("2031-01-01T00:00:00Z").as_micros();
    let jump = |number: usize| {
        if number < 3 {
            number as u64 * 100 * 86_400_000_000
        } else {
            0
        }
    };
    let other = OtherClock::with(Arc::default(), move |number| start + jump(number)).await;
    let (store, policy) = (other.store(), QuotaPolicy::per_calendar_day("day", 3, "UTC"));
    let error = store.decide(plan([policy.clone()], "alice", 1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Failed);
    let message = error.to_string();
    assert!(
        message.contains("the server's clock jumps across calendar windows between calls"),
        "{message}"
    );
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
    let left = async |store: &RedisStore, name| {
        let decision = store.peek(plan(policies(), name, 0)).await.unwrap();
        decision
            .allowances()
            .map(|allowance| allowance.remaining())
            .collect::<Vec<_>>()
    };
    let both = || plan(policies(), "alice", 1).and(PolicySet::new(policies()).unwrap(), caller("bob"));
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
    let simple = PolicySet::new(policies().into_iter().take(3)).unwrap();
    let decisions = (0..120).map(|_| store.decide(Plan::new(simple.clone(), caller("carol"), 1)));
    let decisions = join_all(decisions).await;
    let allowed = decisions
        .iter()
        .filter(|decision| decision.as_ref().unwrap().outcome() == Outcome::Allowed);
    assert_eq!(allowed.count(), 50);
    assert_eq!(left(&other.store(), "carol").await[..3], [0, 10, 20]);
    assert!(other.calls() < 120, "they have shared calls");
}

/// As if another instance had borders an hour earlier or later: its count is in Redis with the start that it knows.
#[tokio::test]
async fn instances_that_disagree_about_a_border_never_give_a_quota_twice() {
    let policy = QuotaPolicy::per_calendar_day("day", 5, "UTC");
    let server = RedisServer::start();
    for (shift, written, border) in [
        // The other instance has begun the 23rd at 23:00.
        (-3_600_i64, "2026-11-22T23:10:00Z", "2026-11-23T00:00:00Z"),
        // The other one begins it at 01:00, and this one has begun it.
        (3_600, "2026-11-23T01:10:00Z", "2026-11-23T01:10:01Z"),
    ] {
        let (clock, [_, store]) = stores(&server, written);
        assert_eq!(remaining(&decide(&*store, &policy, 5).await), 0);
        let own = moment(if shift < 0 {
            "2026-11-22T00:00:00Z"
        } else {
            "2026-11-23T00:00:00Z"
        });
        let theirs = (moment("2026-11-23T00:00:00Z").as_micros() / 1_000_000).saturating_add_signed(shift);
        rewrite_start(&server, own.as_micros() / 1_000_000, theirs);

        assert_eq!(
            decide(&*store, &policy, 1).await.outcome(),
            Outcome::Rejected,
            "{shift}"
        );
        clock.set(moment(border));
        assert_eq!(
            decide(&*store, &policy, 1).await.outcome(),
            Outcome::Rejected,
            "{shift}"
        );
        clock.set(moment("2026-11-23T22:59:59Z"));
        assert_eq!(
            decide(&*store, &policy, 1).await.outcome(),
            Outcome::Rejected,
            "{shift}"
        );
        // The next border is another window by all data.
        clock.set(moment("2026-11-24T00:00:00Z"));
        assert_eq!(remaining(&decide(&*store, &policy, 1).await), 4, "{shift}");
        store.reset(plan([policy.clone()], "alice", 1)).await.unwrap();
    }
}

/// In the only value of the server, the start of a window is four bytes behind its count.
fn rewrite_start(server: &RedisServer, from: u64, to: u64) {
    let key = server.command(&["KEYS", "*"]);
    let value = server.command_bytes(&[b"GET", key.as_bytes()]);
    let length = value.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut value = value[length..value.len() - 2].to_vec();
    let start = (from as u32).to_le_bytes();
    let position = value.windows(4).position(|bytes| bytes == start).unwrap();
    value[position..position + 4].copy_from_slice(&(to as u32).to_le_bytes());
    server.command_bytes(&[b"SET", key.as_bytes(), &value, b"PX", b"86400000"]);
}

/// Redis forgets a caller when the last window has ended, also where another plan has kept the count.
#[tokio::test]
async fn a_count_that_only_another_plan_knows_is_kept_until_its_window_ends() {
    let (month, hour) = (
        QuotaPolicy::per_calendar_month("month", 5, "Europe/Berlin"),
        QuotaPolicy::per_hour("hour", 9),
    );
    let server = RedisServer::start();
    let (clock, stores) = stores(&server, "2026-11-22T12:00:00Z");
    for store in stores {
        clock.set(moment("2026-11-22T12:00:00Z"));
        assert_eq!(remaining(&decide(&*store, &month, 2).await), 3);
        for day in [23, 26, 29] {
            clock.set(moment(&format!("2026-11-{day}T12:00:00Z")));
            decide(&*store, &hour, 1).await;
        }
        clock.set(moment("2026-11-30T22:59:59Z"));
        assert_eq!(remaining(&decide(&*store, &month, 1).await), 2, "{store:?}");
        decide(&*store, &hour, 1).await;
        clock.set(moment("2026-11-30T23:00:00Z"));
        decide(&*store, &hour, 1).await;
        assert_eq!(remaining(&decide(&*store, &month, 0).await), 5, "{store:?}");
    }
}

/// On 20 November, a window that began on the 1st is nearer to one of 20 October than to one of the 19th, and one that began
/// on the 19th is nearer to one of the 15th.
#[tokio::test]
async fn months_that_begin_on_different_days_have_one_count_and_a_month_begins_once() {
    let server = RedisServer::start();
    let (_, stores) = stores(&server, "2026-11-20T12:00:00Z");
    for store in &stores {
        let month = |begins| {
            let period = CalendarPeriod::Month { begins };
            QuotaPolicy::per_calendar("month", 10, CalendarWindow::new(period, "UTC"))
        };
        assert_eq!(remaining(&decide(&**store, &month(1), 10).await), 0);
        assert_eq!(decide(&**store, &month(5), 1).await.outcome(), Outcome::Rejected);
        // Two instances have different days for a while.
        for (begins, left) in [(19, 9), (1, 8), (19, 7), (15, 6), (1, 5), (19, 4)] {
            let decision = decide(&**store, &month(begins), 1).await;
            assert_eq!(remaining(&decision), left, "day {begins}");
        }
        let ends = decide(&**store, &month(15), 5).await.retry_after();
        assert_eq!(ends, Some(Duration::from_secs(24 * 86_400 + 43_200)));
    }
}
