//! The scripts that decide, settle and renew, and how they are spoken to.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use ::redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use smallvec::SmallVec;

use super::{
    connection::{SharedConnection, Unanswered},
    keyspace::{Key, Keys, Keyspace},
    loading::LoadTurn,
    scripts,
};
use crate::{
    algorithm::{
        Concurrency, Counter, EXACT, FixedWindow, LeakyBucket, Moment, Moments, Reading, SlidingCounter, SlidingLog,
        TokenBucket, sliding_counter::Windows, sliding_log::LogReading,
    },
    clock::Timestamp,
    error::{StoreError, StoreErrorKind},
    exchange::{Measurement, PartPlan, PartSettlement, Plan, settlement::Adjustment},
    lease::LeaseId,
    mutex::Mutex,
    policy::Policy,
    random,
};

/// The bytes of one charge, as the script unpacks them.
const CHARGE: usize = 47;

/// How many numbers of a reply belong to a partition and to none of its policies.
const MOMENT: usize = 2;

/// The bytes of half a call's number. A reply begins with the first half and ends with the second one.
const HALF: usize = 4;

/// What stands in the place of a drain for algorithms that have none.
const FIXED_WINDOW: f64 = -1.0;
const SLIDING_LOG: f64 = -2.0;
const CONCURRENCY: f64 = -3.0;
const SLIDING_COUNTER: f64 = -4.0;

/// The sixth argument, if there is one: partitions that have nothing to do with each other.
const INDEPENDENT: &[u8] = b"1";

/// A script. Which one decides is a question of what it costs the server: the decision is the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    /// Decides and settles where all policies are buckets whose levels are narrow.
    Buckets,
    /// Decides and settles everything.
    EveryAlgorithm,
    Renew,
}

impl Script {
    pub(super) const COUNT: usize = 3;

    fn text(self) -> &'static Text {
        static BUCKETS: LazyLock<Text> = LazyLock::new(|| Text::new(scripts::buckets()));
        static EVERY_ALGORITHM: LazyLock<Text> = LazyLock::new(|| Text::new(scripts::every_algorithm()));
        static RENEW: LazyLock<Text> = LazyLock::new(|| Text::new(scripts::renew()));
        match self {
            Self::Buckets => &BUCKETS,
            Self::EveryAlgorithm => &EVERY_ALGORITHM,
            Self::Renew => &RENEW,
        }
    }
}

/// The text of a script and the name under which a server remembers it.
struct Text {
    source: String,
    hash: String,
}

impl Text {
    fn new(source: String) -> Self {
        let hash = ::redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}

/// One call of a script, or a command. All its keys are on one server.
pub(super) struct Call {
    keys: Keys,
    body: Body,
    /// Kept of a call that takes slots.
    sent_on: Option<Arc<SentOn>>,
    /// Whether later calls on its connection are to be carried out later, also those by another script.
    is_ordered: bool,
}

/// The connection that a call was last sent on, if any: what is sent on it later arrives later.
#[derive(Default)]
pub(super) struct SentOn(Mutex<Option<SharedConnection>>);

impl SentOn {
    fn set(&self, connection: &SharedConnection) {
        *self.0.lock() = Some(connection.clone());
    }

    pub(super) fn take(&self) -> Option<SharedConnection> {
        self.0.lock().take()
    }
}

enum Body {
    Script {
        script: Script,
        arguments: SmallVec<[Vec<u8>; 1]>,
        answer: Answer,
    },
    /// Its reply is an integer.
    Command(Cmd),
}

/// The reply that a call of a script has to get.
struct Answer {
    /// No other call has this number.
    number: [u8; 2 * HALF],
    /// How many numbers stand between its halves.
    width: usize,
}

impl Answer {
    /// Writes the number behind what the script is given.
    fn new(arguments: &mut Vec<u8>, width: usize) -> Self {
        let number = random::long_number().to_le_bytes();
        arguments.extend_from_slice(&number);
        Self { number, width }
    }

    /// What stands between the halves of the number, unless bytes are missing or the reply is another call's.
    fn read(&self, reply: Value) -> Option<Reply> {
        let Value::BulkString(bytes) = reply else {
            return None;
        };
        let (first, rest) = bytes.split_first_chunk::<HALF>()?;
        let (numbers, last) = rest.split_last_chunk::<HALF>()?;
        let is_its_own = first == &self.number[..HALF] && last == &self.number[HALF..];
        (is_its_own && numbers.len() == 8 * self.width).then_some(Reply(bytes))
    }
}

/// What a script has returned to a call: the time and what each policy had used before. Empty for a command.
pub(super) struct Reply(Vec<u8>);

impl Call {
    /// Decides a plan. What is not needed is not sent: most calls have one key and one argument.
    pub(super) fn acquire(
        keyspace: &Keyspace,
        plan: &Plan,
        lease: Option<(LeaseId, Duration)>,
        now: Option<Timestamp>,
    ) -> Self {
        let lease_micros = lease.map_or(0, |(_, time)| time.as_micros() as u64);
        let parts = plan.parts().len();
        let mut charges = Charges::with_capacity(plan.policies().count());
        charges.push_plan(plan, lease_micros);
        let script = charges.script();
        let (charges, answer) = charges.finish(1 + width(plan));
        let mut arguments: SmallVec<[Vec<u8>; 1]> = SmallVec::new();
        arguments.push(charges);
        if lease.is_some() || now.is_some() || parts > 1 {
            arguments.push(lease.map_or_else(Vec::new, |(lease, _)| lease.to_bytes().to_vec()));
        }
        if now.is_some() || parts > 1 {
            arguments.push(Vec::new());
            arguments.push(now.map_or_else(Vec::new, decimal));
        }
        if parts > 1 {
            let sizes = plan.parts().map(|part| size(part.charges().len()));
            arguments.push(sizes.collect());
        }
        Self {
            sent_on: lease.map(|_| Arc::default()),
            ..Self::script(script, keyspace.keys(plan), arguments, answer)
        }
    }

    /// Decides plans of one partition each, independently of each other.
    pub(super) fn acquire_each(keyspace: &Keyspace, plans: &[Plan], now: Option<Timestamp>) -> Self {
        let policies = plans.iter().map(|plan| plan.policies().count());
        let mut charges = Charges::with_capacity(policies.sum());
        let (mut keys, mut sizes, mut numbers) = (Keys::new(), Vec::with_capacity(plans.len()), 1);
        for plan in plans {
            keys.extend(keyspace.keys(plan));
            sizes.push(charges.push_plan(plan, 0));
            numbers += width(plan);
        }
        let script = charges.script();
        let (charges, answer) = charges.finish(numbers);
        let now = now.map_or_else(Vec::new, decimal);
        let arguments = [charges, Vec::new(), Vec::new(), now, sizes, INDEPENDENT.to_vec()];
        Self::script(script, keys, SmallVec::from_iter(arguments), answer)
    }

    /// Settles what a decision has charged to one partition.
    pub(super) fn settle(keyspace: &Keyspace, settlement: PartSettlement<'_>, now: Option<Timestamp>) -> Self {
        let mut charges = Charges::with_capacity(1);
        let Moment {
            now: charged_at, birth, ..
        } = settlement.charged_at;
        let mut receipt = (charged_at.as_micros() as f64).to_le_bytes().to_vec();
        receipt.extend_from_slice(&f64::from(birth).to_le_bytes());
        for adjustment in settlement.adjustments() {
            let numbers = Numbers {
                limit: adjustment.receipt.refundable_micros as f64,
                ..Numbers::of(adjustment.policy, 0)
            };
            charges.push(&numbers, adjustment.policy.id(), adjustment.delta as f64);
            receipt.extend_from_slice(&mark(&adjustment).to_le_bytes());
        }
        let script = charges.script();
        let (charges, answer) = charges.finish(1 + part_width(settlement.part));
        let lease = settlement.lease.filter(|_| settlement.releases());
        let lease = lease.map_or_else(Vec::new, |lease| lease.to_bytes().to_vec());
        let mut arguments = SmallVec::from_iter([charges, lease, receipt]);
        arguments.extend(now.map(decimal));
        Self {
            is_ordered: true,
            ..Self::script(script, keyspace.part_keys(settlement.part), arguments, answer)
        }
    }

    /// Renews leases of one key.
    pub(super) fn renew(key: Key, leases: &[LeaseId], time: Duration, now: Option<Timestamp>) -> Self {
        let mut renewed: Vec<_> = leases.iter().flat_map(|lease| lease.to_bytes()).collect();
        let answer = Answer::new(&mut renewed, 0);
        let mut arguments = SmallVec::from_iter([time.as_micros().to_string().into_bytes(), renewed]);
        arguments.extend(now.map(decimal));
        Self::script(Script::Renew, Keys::from_iter([key]), arguments, answer)
    }

    /// Takes a lease from those who hold a slot.
    pub(super) fn release(key: Key, lease: LeaseId) -> Self {
        let mut command = ::redis::cmd("ZREM");
        command.arg(&*key).arg(&lease.to_bytes());
        Self {
            keys: Keys::from_iter([key]),
            body: Body::Command(command),
            sent_on: None,
            is_ordered: false,
        }
    }

    /// Forgets what a plan's partitions have used.
    pub(super) fn reset(keyspace: &Keyspace, plan: &Plan) -> Self {
        let keys = keyspace.windows(plan);
        let mut command = ::redis::cmd("UNLINK");
        for key in &keys {
            command.arg(&**key);
        }
        Self {
            keys,
            body: Body::Command(command),
            sent_on: None,
            is_ordered: false,
        }
    }

    fn script(script: Script, keys: Keys, arguments: SmallVec<[Vec<u8>; 1]>, answer: Answer) -> Self {
        Self {
            keys,
            body: Body::Script {
                script,
                arguments,
                answer,
            },
            sent_on: None,
            is_ordered: false,
        }
    }

    /// Where to look for the connection that it is sent on, if it takes slots.
    pub(super) fn sent_on(&self) -> Option<Arc<SentOn>> {
        self.sent_on.clone()
    }

    /// One of its keys, which says who has them.
    pub(super) fn key(&self) -> &Key {
        &self.keys[0]
    }

    /// A reply that is not this call's ends the connection.
    pub(super) async fn send(&self, connection: &mut SharedConnection) -> Result<Reply, Unanswered> {
        if let Some(sent_on) = &self.sent_on {
            sent_on.set(connection);
        }
        let reply = match &self.body {
            Body::Command(command) => match connection.send(command).await? {
                Value::Int(_) => Some(Reply(Vec::new())),
                _ => None,
            },
            Body::Script {
                script,
                arguments,
                answer,
            } => answer.read(self.run(*script, arguments, connection).await?),
        };
        reply.ok_or_else(|| Unanswered::Failed(connection.mismatched()))
    }

    /// By the script's hash, or in full for a server that does not know it, which has run nothing then.
    async fn run(
        &self,
        script: Script,
        arguments: &[Vec<u8>],
        connection: &mut SharedConnection,
    ) -> Result<Value, Unanswered> {
        // The second time, somebody else has just sent it in full.
        const TRIES: u32 = 3;
        let Text { source, hash } = script.text();
        if self.is_ordered && connection.loading(script).is_to_be_sent() {
            return connection.send(&self.eval("EVAL", source, arguments)).await;
        }
        for _ in 0..TRIES {
            let seen = connection.loading(script).count();
            match connection.send(&self.eval("EVALSHA", hash, arguments)).await {
                Err(Unanswered::Failed(error)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {}
                reply => {
                    connection.loading(script).known();
                    return reply;
                }
            }
            let other = connection.clone();
            if let Some(turn) = other.loading(script).begin(seen).await {
                return self.load(turn, source, arguments, connection).await;
            }
        }
        let other = connection.clone();
        let turn = other.loading(script).begin_anyway().await;
        self.load(turn, source, arguments, connection).await
    }

    async fn load(
        &self,
        turn: LoadTurn<'_>,
        source: &str,
        arguments: &[Vec<u8>],
        connection: &mut SharedConnection,
    ) -> Result<Value, Unanswered> {
        let reply = connection.send(&self.eval("EVAL", source, arguments)).await;
        turn.loaded();
        reply
    }

    fn eval(&self, verb: &str, script: &str, arguments: &[Vec<u8>]) -> Cmd {
        let mut command = ::redis::cmd(verb);
        command.arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(&**key);
        }
        for argument in arguments {
            command.arg(argument.as_slice());
        }
        command
    }
}

fn decimal(now: Timestamp) -> Vec<u8> {
    now.as_micros().to_string().into_bytes()
}

/// A layer has at most 16 policies, and no plan of anybody needs more than 255.
fn size(policies: usize) -> u8 {
    u8::try_from(policies).unwrap_or(u8::MAX)
}

/// The charges of a call.
struct Charges {
    bytes: Vec<u8>,
    /// Whether all are about buckets whose levels are narrow.
    are_narrow_buckets: bool,
}

impl Charges {
    fn with_capacity(charges: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(CHARGE * charges + 2 * HALF),
            are_narrow_buckets: true,
        }
    }

    fn push(&mut self, numbers: &Numbers, id: u32, charge: f64) {
        self.are_narrow_buckets &= numbers.is_narrow_bucket();
        numbers.write(&mut self.bytes, id, charge);
    }

    /// Returns how many charges the plan has.
    fn push_plan(&mut self, plan: &Plan, lease_micros: u64) -> u8 {
        let before = self.bytes.len();
        for charge in plan.charges() {
            let mut numbers = Numbers::of(charge.policy(), lease_micros);
            if charge.is_shadow() {
                numbers.limit = -numbers.limit;
            }
            self.push(&numbers, charge.policy().id(), charge.weight() as f64);
        }
        size((self.bytes.len() - before) / CHARGE)
    }

    /// The smallest script that has what all of them need.
    fn script(&self) -> Script {
        if self.are_narrow_buckets {
            Script::Buckets
        } else {
            Script::EveryAlgorithm
        }
    }

    /// The bytes that are sent, and the reply to them, of so many numbers.
    fn finish(mut self, width: usize) -> (Vec<u8>, Answer) {
        let answer = Answer::new(&mut self.bytes, width);
        (self.bytes, answer)
    }
}

/// A policy in the form of the script. Doubles hold these numbers exactly: all are integers of at most 2⁵³.
struct Numbers {
    /// What stands for the weight in a narrow value, or for the length of a window in seconds.
    short: u32,
    weight: f64,
    drain: f64,
    limit: f64,
    bound: f64,
}

impl Numbers {
    fn of(policy: &Policy, lease_micros: u64) -> Self {
        let (weight, drain, limit, bound) = match *policy.counter() {
            Counter::TokenBucket(bucket) | Counter::LeakyBucket(LeakyBucket { bucket }) => {
                let TokenBucket {
                    weight,
                    drain,
                    limit,
                    bound,
                } = bucket;
                (weight, drain as f64, limit, bound)
            }
            Counter::FixedWindow(FixedWindow {
                window_micros,
                limit,
                bound,
            }) => (window_micros, FIXED_WINDOW, limit, bound),
            Counter::SlidingCounter(SlidingCounter {
                window_micros,
                limit,
                bound,
            }) => (window_micros, SLIDING_COUNTER, limit, bound),
            Counter::SlidingLog(SlidingLog {
                window_micros,
                limit,
                bound,
            }) => (window_micros, SLIDING_LOG, limit, bound),
            Counter::Concurrency(Concurrency { limit }) => (lease_micros, CONCURRENCY, limit, limit),
        };
        let is_bucket = matches!(policy.counter(), Counter::TokenBucket(_) | Counter::LeakyBucket(_));
        Self {
            short: short(if is_bucket { weight } else { weight / 1_000_000 }),
            weight: weight as f64,
            drain,
            limit: limit as f64,
            bound: bound as f64,
        }
    }

    /// Whether nothing of it needs more room than the narrow layout has.
    fn is_narrow_bucket(&self) -> bool {
        self.drain == 1.0 && self.short != 0
    }

    fn write(&self, bytes: &mut Vec<u8>, id: u32, charge: f64) {
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&self.short.to_le_bytes()[..3]);
        for number in [self.limit, self.bound, charge, self.weight, self.drain] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// A number in three bytes, `m * 16 + e` for `m * 5^e`; 0 if it does not fit. Windows are of whole seconds, and a second has
/// 5⁶ × 2⁶ microseconds: what is left of them without their fives is small.
fn short(number: u64) -> u32 {
    let (mut rest, mut fives) = (number, 0);
    while fives < 15 && rest > 0 && rest.is_multiple_of(5) {
        rest /= 5;
        fives += 1;
    }
    u32::try_from(rest)
        .ok()
        .filter(|rest| *rest < 1 << 20)
        .map_or(0, |rest| rest * 16 + fives)
}

/// How many numbers the script returns for a plan.
fn width(plan: &Plan) -> usize {
    plan.parts().map(part_width).sum()
}

fn part_width(part: PartPlan<'_>) -> usize {
    let widths = part.policies().iter().map(|policy| match policy.counter() {
        Counter::TokenBucket(_) | Counter::LeakyBucket(_) | Counter::FixedWindow(_) | Counter::Concurrency(_) => 1,
        Counter::SlidingCounter(_) => 2,
        Counter::SlidingLog(_) => 4,
    });
    MOMENT + widths.sum::<usize>()
}

/// What the script has to know of a charge to take it back: how full a bucket was afterwards, as a negative number for a
/// leaky one, or the number of an entry.
fn mark(adjustment: &Adjustment<'_>) -> f64 {
    let mark = adjustment.receipt.mark as f64;
    match adjustment.policy.counter() {
        Counter::LeakyBucket(_) => -mark,
        _ => mark,
    }
}

/// What a reply says about a plan. Whatever else a server may say is an error, never a panic.
pub(super) fn decode(plan: Plan, lease: Option<LeaseId>, reply: &Reply) -> Result<Measurement, StoreError> {
    reply.numbers()?.measure(plan, lease)
}

/// The same of a call for several plans.
pub(super) fn decode_each(plans: Vec<Plan>, reply: &Reply) -> impl Iterator<Item = Result<Measurement, StoreError>> {
    let mut numbers = reply.numbers();
    plans.into_iter().map(move |plan| match &mut numbers {
        Ok(numbers) => numbers.measure(plan, None),
        Err(error) => Err(error.clone()),
    })
}

impl Reply {
    fn numbers(&self) -> Result<Numbered<'_>, StoreError> {
        let numbers = self.0.get(HALF..self.0.len().saturating_sub(HALF)).unwrap_or_default();
        match numbers.as_chunks::<8>() {
            ([now, rest @ ..], []) => Ok(Numbered {
                now: Timestamp::from_micros(exact_integer(now).ok_or_else(unreadable)?),
                rest,
            }),
            _ => Err(unreadable()),
        }
    }
}

/// The numbers of a reply, as far as they were not read yet.
struct Numbered<'a> {
    now: Timestamp,
    rest: &'a [[u8; 8]],
}

impl Numbered<'_> {
    fn measure(&mut self, plan: Plan, lease: Option<LeaseId>) -> Result<Measurement, StoreError> {
        let (mut moments, mut readings) = (Moments::new(), SmallVec::<[Reading; 4]>::new());
        for part in plan.parts() {
            moments.push(self.moment().ok_or_else(unreadable)?);
            for policy in part.policies() {
                readings.push(self.reading(policy.counter()).ok_or_else(unreadable)?);
            }
        }
        // The script has found the same: it computes in the same way.
        Ok(Measurement::of_readings(plan, moments, readings, lease))
    }

    fn moment(&mut self) -> Option<Moment> {
        let (ahead, birth) = (self.next()?, self.next()?);
        Some(Moment {
            now: Timestamp::from_micros(self.now.as_micros() + ahead),
            ahead: u32::try_from(ahead).ok()?,
            birth: u32::try_from(birth).ok()?,
        })
    }

    fn reading(&mut self, counter: &Counter) -> Option<Reading> {
        Some(match counter {
            Counter::TokenBucket(_) => Reading::TokenBucket(self.next()?),
            Counter::LeakyBucket(_) => Reading::LeakyBucket(self.next()?),
            Counter::FixedWindow(_) => Reading::FixedWindow(self.next()?),
            Counter::SlidingCounter(_) => Reading::SlidingCounter(Windows {
                previous: self.next()?,
                current: self.next()?,
            }),
            Counter::SlidingLog(_) => Reading::SlidingLog(LogReading {
                used: self.next()?,
                wait: self.next()?,
                oldest_leaves: self.next()?,
                sequence: self.next()?,
            }),
            Counter::Concurrency(_) => Reading::Concurrency(self.next()?),
        })
    }

    fn next(&mut self) -> Option<u64> {
        let (number, rest) = self.rest.split_first()?;
        self.rest = rest;
        exact_integer(number)
    }
}

/// The reply is this call's, and what the script has made of a partition's value is nothing to decide by. That is no
/// fault of the connection, and none of the other partitions.
fn unreadable() -> StoreError {
    StoreError::new(StoreErrorKind::Failed, "the reply of the script is unreadable")
}

fn exact_integer(bytes: &[u8; 8]) -> Option<u64> {
    let number = f64::from_le_bytes(*bytes);
    ((0.0..EXACT as f64).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}
