//! Properties that hold under any schedule of requests, cancellations, answers, failures and forgetting.

use std::{
    collections::{HashMap, HashSet},
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use proptest::prelude::*;
use tokio::task::JoinHandle;
use tower_quota::{
    clock::{Clock, Timestamp},
    tier::{OnUnknownTier, TierLayer},
};

use super::support::{MILLISECOND, SECOND, Time, UserId, request, settle};

/// The unit of time in schedules. Failures pause a user for 5 to 40 ticks, and lookups time out after 50.
const TICK: Duration = Duration::from_millis(200);
/// For sources that respond within the 50 ms for which a request with a stale tier waits.
const SHORT_TICK: Duration = Duration::from_millis(5);

const TIME_TO_LIVE: u32 = 80;
const STALE_FOR: u32 = 120;
const WAIT: u32 = 10;
const LONGEST_PAUSE: u32 = 40;
const FOR_EVER: Duration = Duration::from_secs(36_000);

/// How a lookup ends, after a number of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The tier is the number of the lookup, so that each answer identifies its lookup.
    Answer,
    Fail,
    Hang,
    NoTier,
    Panic,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Cancel(usize),
    Forget(u64),
    ForgetAll,
    Pass(u32),
    Request(u64),
}

/// A moment, and its place in the order of all that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    order: usize,
    at: Duration,
}

#[derive(Clone, Debug)]
struct LookUp {
    user: u64,
    fate: Fate,
    began: Moment,
    ended: Option<Moment>,
    has_answered: bool,
}

#[derive(Clone, Debug)]
struct Answer {
    user: u64,
    asked: Moment,
    answered: Moment,
    tier: Option<usize>,
}

#[derive(Default)]
struct History {
    moments: usize,
    look_ups: Vec<LookUp>,
    answers: Vec<Answer>,
    forgotten: Vec<(Option<u64>, Moment)>,
    running: HashSet<u64>,
    most_running: usize,
    twice: Vec<u64>,
}

/// A source that keeps a diary.
#[derive(Clone)]
struct Diary {
    history: Arc<Mutex<History>>,
    fates: Arc<Vec<(Fate, u32)>>,
    time: Time,
    tick: Duration,
}

/// Records the end of a lookup when it is dropped, whether or not it completes.
struct Running(Diary, usize);

impl Drop for Running {
    fn drop(&mut self) {
        let ended = self.0.moment();
        let mut history = self.0.history.lock().unwrap();
        history.look_ups[self.1].ended = Some(ended);
        let user = history.look_ups[self.1].user;
        history.running.remove(&user);
    }
}

impl Diary {
    fn moment(&self) -> Moment {
        let mut history = self.history.lock().unwrap();
        history.moments += 1;
        Moment {
            order: history.moments,
            at: self.time.now(),
        }
    }

    fn begin(&self, user: u64) -> (Running, Fate, u32) {
        let began = self.moment();
        let mut history = self.history.lock().unwrap();
        let number = history.look_ups.len();
        let (fate, delay) = self.fates[number % self.fates.len()];
        history.look_ups.push(LookUp {
            user,
            fate,
            began,
            ended: None,
            has_answered: false,
        });
        if !history.running.insert(user) {
            history.twice.push(user);
        }
        history.most_running = history.most_running.max(history.running.len());
        (Running(self.clone(), number), fate, delay)
    }

    async fn look_up(self, UserId(user): UserId) -> Result<Option<String>, &'static str> {
        let (running, fate, delay) = self.begin(user);
        if delay > 0 {
            tokio::time::sleep(delay * self.tick).await;
        }
        match fate {
            Fate::Answer | Fate::NoTier => {
                self.history.lock().unwrap().look_ups[running.1].has_answered = true;
                Ok((fate == Fate::Answer).then(|| running.1.to_string()))
            }
            Fate::Fail => Err("failed"),
            Fate::Hang => pending().await,
            // Not with the message of a panic on the terminal, hundreds of times.
            Fate::Panic => std::panic::resume_unwind(Box::new("panic")),
        }
    }

    async fn request(self, layer: TierLayer, user: u64) {
        let asked = self.moment();
        let tier = request(&layer, user).await;
        let answered = self.moment();
        self.history.lock().unwrap().answers.push(Answer {
            user,
            asked,
            answered,
            tier: tier.map(|tier| tier.parse().unwrap()),
        });
    }
}

/// A layer, and the requests that have been sent to it.
struct Schedule {
    diary: Diary,
    layer: TierLayer,
    requests: Vec<JoinHandle<()>>,
}

impl Schedule {
    fn new(tick: Duration, fates: Vec<(Fate, u32)>, max_look_ups: usize, max_users: usize) -> Self {
        let diary = Diary {
            history: Arc::default(),
            fates: Arc::new(fates),
            time: Time::new(),
            tick,
        };
        let resolver = diary.clone();
        let layer = TierLayer::by_extension(move |user: UserId| resolver.clone().look_up(user))
            .time_to_live(TIME_TO_LIVE * tick)
            .stale_for(STALE_FOR * tick)
            .on_unknown_tier(OnUnknownTier::wait(WAIT * tick))
            .max_look_ups(max_look_ups)
            .max_users(max_users)
            .clock(diary.time.clock.clone())
            .build()
            .unwrap();
        let requests = Vec::new();
        Self { diary, layer, requests }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Cancel(number) if !self.requests.is_empty() => self.requests[number % self.requests.len()].abort(),
            Step::Cancel(_) => {}
            Step::Forget(user) => {
                self.layer.cache().forget(&UserId(user));
                self.forgot(Some(user));
            }
            Step::ForgetAll => {
                self.layer.cache().forget_all();
                self.forgot(None);
            }
            Step::Pass(ticks) => {
                for _ in 0..ticks {
                    self.diary.time.pass(self.diary.tick).await;
                }
            }
            Step::Request(user) => {
                let request = self.diary.clone().request(self.layer.clone(), user);
                self.requests.push(tokio::spawn(request));
                // For other users, the next step also meets requests that were sent but not polled.
                if user % 2 == 0 {
                    settle().await;
                }
            }
        }
    }

    fn forgot(&self, user: Option<u64>) {
        let moment = self.diary.moment();
        self.diary.history.lock().unwrap().forgotten.push((user, moment));
    }

    /// Waits until everything has ended. A lookup that is repeated because its user was forgotten gets a new timeout.
    async fn end(mut self) -> History {
        self.step(Step::Pass(200)).await;
        for request in self.requests {
            assert!(request.is_finished());
            assert!(request.await.map_or_else(|error| error.is_cancelled(), |()| true));
        }
        std::mem::take(&mut self.diary.history.lock().unwrap())
    }
}

/// Carries out a schedule, tick by tick.
async fn carry_out(
    tick: Duration,
    fates: Vec<(Fate, u32)>,
    steps: Vec<Step>,
    max_look_ups: usize,
    max_users: usize,
) -> History {
    let mut schedule = Schedule::new(tick, fates, max_look_ups, max_users);
    for step in steps {
        schedule.step(step).await;
        assert!(schedule.layer.cache().users() <= max_users);
    }
    schedule.end().await
}

impl History {
    fn is_forgotten_between(&self, user: u64, from: Moment, to: Moment) -> bool {
        let mut forgotten = self.forgotten.iter();
        forgotten.any(|(who, when)| who.is_none_or(|who| who == user) && from < *when && *when < to)
    }

    /// The lookups of a user that were answered before `moment`, and that nothing has invalidated.
    fn known(&self, user: u64, moment: Moment) -> impl Iterator<Item = (usize, &LookUp)> {
        self.look_ups.iter().enumerate().filter(move |(_, look_up)| {
            look_up.user == user
                && look_up.has_answered
                && look_up.ended.is_some_and(|ended| ended < moment)
                && moment.at < look_up.began.at + (TIME_TO_LIVE + STALE_FOR) * TICK
                && !self.is_forgotten_between(user, look_up.began, moment)
        })
    }

    /// Returns `true` if anything prevented a newer answer: a lookup of the user that is unfinished or failed, or too
    /// many lookups of other users.
    fn has_excuse(&self, answer: &Answer, max_look_ups: usize) -> bool {
        let has_begun = |look_up: &&LookUp| look_up.began.at <= answer.answered.at;
        let begun = || self.look_ups.iter().filter(has_begun);
        let ended = |look_up: &LookUp| look_up.ended.map_or(FOR_EVER, |ended| ended.at);
        let is_full = begun().filter(|look_up| ended(look_up) >= answer.asked.at).count() >= max_look_ups;
        let is_open = |look_up: &LookUp| look_up.ended.is_none_or(|ended| ended > answer.asked);
        let has_failed =
            |look_up: &LookUp| !look_up.has_answered && ended(look_up) + LONGEST_PAUSE * TICK > answer.asked.at;
        let mut of_user = begun().filter(|look_up| look_up.user == answer.user);
        is_full || of_user.any(|look_up| is_open(look_up) || has_failed(look_up))
    }

    fn check_single_flight(&self, max_look_ups: usize) -> Result<(), TestCaseError> {
        prop_assert!(self.twice.is_empty(), "looked up twice at a time: {:?}", self.twice);
        prop_assert!(self.most_running <= max_look_ups, "{}", self.most_running);
        prop_assert!(self.running.is_empty(), "some never end: {:?}", self.running);
        Ok(())
    }

    /// The tier of a request is one that the source has named, for this user, not too long ago.
    fn check_answer(&self, answer: &Answer, max_look_ups: usize) -> Result<(), TestCaseError> {
        prop_assert!(answer.answered.at - answer.asked.at <= WAIT * TICK, "{:?}", answer);
        let Some(number) = answer.tier else {
            return Ok(());
        };
        let look_up = &self.look_ups[number];
        prop_assert_eq!(look_up.user, answer.user);
        prop_assert!(look_up.has_answered && look_up.fate == Fate::Answer);
        prop_assert!(answer.asked.at < look_up.began.at + (TIME_TO_LIVE + STALE_FOR) * TICK);
        prop_assert!(!self.is_forgotten_between(answer.user, look_up.began, answer.asked));
        if answer.asked.at >= look_up.began.at + TIME_TO_LIVE * TICK {
            prop_assert!(
                self.has_excuse(answer, max_look_ups),
                "too old without need: {:?} {:?}",
                answer,
                look_up
            );
        }
        Ok(())
    }

    /// No newer answer was known, and a known answer is always used. Applies if no user is evicted.
    fn check_that_all_known_is_used(&self, answer: &Answer) -> Result<(), TestCaseError> {
        let newest = self
            .known(answer.user, answer.asked)
            .max_by_key(|(_, look_up)| look_up.began);
        let Some((newest, look_up)) = newest else {
            return Ok(());
        };
        match answer.tier {
            Some(number) => prop_assert!(number >= newest, "{:?} although {} is newer", answer, newest),
            None => {
                let mut later = self.look_ups[newest..].iter();
                let has_no_tier = later.any(|later| later.user == look_up.user && later.fate == Fate::NoTier);
                prop_assert!(has_no_tier, "{:?} although {:?} is known", answer, look_up);
            }
        }
        Ok(())
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let user = 0..5_u64;
    let step = prop_oneof![
        10 => user.clone().prop_map(Step::Request),
        2 => any::<usize>().prop_map(Step::Cancel),
        5 => (1..15_u32).prop_map(Step::Pass),
        1 => (40..220_u32).prop_map(Step::Pass),
        1 => user.prop_map(Step::Forget),
        1 => Just(Step::ForgetAll),
    ];
    prop::collection::vec(step, 1..120)
}

fn fates() -> impl Strategy<Value = Vec<(Fate, u32)>> {
    let fate = prop_oneof![
        6 => Just(Fate::Answer),
        1 => Just(Fate::NoTier),
        2 => Just(Fate::Fail),
        1 => Just(Fate::Hang),
        1 => Just(Fate::Panic),
    ];
    prop::collection::vec((fate, prop_oneof![3 => 0..10_u32, 1 => 10..60_u32]), 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_user_is_never_looked_up_twice_at_a_time_and_answers_are_as_new_as_can_be(
        steps in steps(),
        fates in fates(),
        max_look_ups in 1..6_usize,
    ) {
        let history = run(carry_out(TICK, fates, steps, max_look_ups, 1_000));
        history.check_single_flight(max_look_ups)?;
        for answer in &history.answers {
            history.check_answer(answer, max_look_ups)?;
            history.check_that_all_known_is_used(answer)?;
        }
    }

    #[test]
    fn with_too_little_room_users_are_still_not_looked_up_twice_at_a_time_and_answers_are_true(
        steps in steps(),
        fates in fates(),
        max_look_ups in 1..6_usize,
        max_users in 1..4_usize,
    ) {
        let history = run(carry_out(TICK, fates, steps, max_look_ups, max_users));
        history.check_single_flight(max_look_ups)?;
        for answer in &history.answers {
            history.check_answer(answer, max_look_ups)?;
        }
    }

    #[test]
    fn with_a_sound_source_each_request_has_a_tier_that_was_true_a_time_to_live_ago(
        steps in steps(),
        delays in prop::collection::vec(0..10_u32, 1..20),
    ) {
        // A lookup that is repeated because its user was forgotten may miss the deadline.
        let is_kept = |step: &Step| !matches!(step, Step::Forget(_) | Step::ForgetAll);
        let steps = steps.into_iter().filter(is_kept).collect();
        let fates = delays.into_iter().map(|delay| (Fate::Answer, delay)).collect();
        let history = run(carry_out(SHORT_TICK, fates, steps, 5, 1_000));
        history.check_single_flight(5)?;
        for answer in &history.answers {
            let age = answer.tier.map(|number| answer.asked.at.saturating_sub(history.look_ups[number].began.at));
            prop_assert!(age.is_some_and(|age| age < TIME_TO_LIVE * SHORT_TICK), "{answer:?}");
        }
        let mut last = HashMap::new();
        for look_up in &history.look_ups {
            let before = last.insert(look_up.user, look_up.began.at);
            prop_assert!(before.is_none_or(|before| look_up.began.at >= before + TIME_TO_LIVE / 4 * 3 * SHORT_TICK));
        }
    }
}

/// A source that is called from several threads, and counts the calls.
#[derive(Default)]
struct Counting {
    running: [AtomicUsize; 3],
    asked: AtomicUsize,
    twice: AtomicUsize,
}

impl Counting {
    async fn look_up(self: Arc<Self>, UserId(user): UserId) -> Result<Option<&'static str>, &'static str> {
        let running = &self.running[usize::try_from(user).unwrap()];
        if running.fetch_add(1, Ordering::SeqCst) > 0 {
            self.twice.fetch_add(1, Ordering::SeqCst);
        }
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        for _ in 0..number % 4 {
            tokio::task::yield_now().await;
        }
        running.fetch_sub(1, Ordering::SeqCst);
        (!number.is_multiple_of(5)).then_some(Some("premium")).ok_or("failed")
    }
}

/// Real interleavings of threads. Each request advances the clock, so that lookups are always due.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_never_look_up_a_user_twice_at_a_time() {
    let (source, clock) = (Arc::new(Counting::default()), Clock::manual(Timestamp::from_micros(1)));
    let resolver = Arc::clone(&source);
    let layer = TierLayer::by_extension(move |user: UserId| Arc::clone(&resolver).look_up(user))
        .time_to_live(MILLISECOND)
        .clock(clock.clone())
        .build()
        .unwrap();
    let send = |task: u64| {
        let (layer, clock) = (layer.clone(), clock.clone());
        tokio::spawn(async move {
            for number in 0..1_000 {
                clock.advance(10 * SECOND);
                request(&layer, (task + number) % 3).await;
                if number % 50 == 0 {
                    layer.cache().forget(&UserId(number / 50 % 3));
                }
            }
        })
    };
    for task in (0..8).map(send).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(source.twice.load(Ordering::SeqCst), 0);
    assert!(source.asked.load(Ordering::SeqCst) > 100);
}
