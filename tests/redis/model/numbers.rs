//! The costs of requests, and the policies that doubles can count.

use tower_quota::{
    Algorithm, Direction, QuotaPolicy, QuotaUnit,
    calendar::{CalendarPeriod, CalendarWindow},
};

/// A request as plans know it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub cost: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub tokens: u64,
    /// True if it takes slots.
    pub slots: bool,
}

impl Request {
    /// A request that charges nothing.
    pub const NOTHING: Self = Self {
        cost: 0,
        request_bytes: 0,
        response_bytes: 0,
        tokens: 0,
        slots: false,
    };

    /// The units that this request charges to a policy. A request with cost 0 charges nothing, and every other one a
    /// slot and at least a byte. All custom units are tokens.
    pub fn cost_for(&self, policy: &QuotaPolicy) -> i128 {
        let (request, response) = (i128::from(self.request_bytes), i128::from(self.response_bytes));
        let most = i128::from(u64::MAX);
        match policy.unit() {
            _ if self.cost == 0 => 0,
            QuotaUnit::Requests => self.cost.into(),
            QuotaUnit::ConcurrentRequests => self.slots.into(),
            QuotaUnit::ContentBytes(Direction::Request) => request.max(1),
            QuotaUnit::ContentBytes(Direction::Response) => response.max(1),
            QuotaUnit::ContentBytes(Direction::Both) => (request + response).clamp(1, most),
            QuotaUnit::Custom(_) => self.tokens.into(),
            other => panic!("{other:?} has no model"),
        }
    }

    /// Nothing is charged to a policy with quota 0, so the partition's time is not written either.
    pub fn is_charged_to(&self, policies: &[QuotaPolicy]) -> bool {
        policies
            .iter()
            .any(|policy| self.cost_for(policy) > 0 && policy.quota() > 0)
    }
}

impl Request {
    /// The units that a refund of this request returns to a policy. Leaky buckets and closed policies get none, and
    /// slots are released by their holders.
    pub fn returned_to(&self, policy: &QuotaPolicy) -> i128 {
        let algorithm = policy.algorithm();
        let is_leaky = matches!(
            algorithm,
            Algorithm::LeakyBucketMeter | Algorithm::LeakyBucketQueue { .. }
        );
        match policy.unit() {
            _ if self.cost == 0 || policy.quota() == 0 || (is_leaky && !is_slots(policy)) => 0,
            QuotaUnit::ConcurrentRequests => 0,
            _ => self.cost_for(policy),
        }
    }
}

/// The actual cost of a request.
#[derive(Clone, Copy, Debug)]
pub enum Actual {
    Cost(u64),
    /// And a request costs 1.
    Tokens(u64),
    Unused,
}

pub fn window(policy: &QuotaPolicy) -> i128 {
    policy.window().unwrap().as_micros() as i128
}

/// The overages, in percent, and the bounds of individual quotas that tests draw. A policy does not return them, so it is
/// compared with each.
pub const OVERAGES: [u32; 5] = [1, 20, 50, 250, 10_000];
pub const BOUNDS: [(u64, u64); 4] = [(0, 6_000), (1, 90), (5, 20), (1, 900_000_000_000)];

pub fn overage(policy: &QuotaPolicy) -> Option<u32> {
    OVERAGES
        .into_iter()
        .find(|percent| policy.clone().with_overage(*percent) == *policy)
}

/// The least and the largest individual quota, if the policy allows such.
pub fn bounds(policy: &QuotaPolicy) -> Option<(u64, u64)> {
    BOUNDS
        .into_iter()
        .find(|(least, most)| policy.clone().with_caller_quotas(*least..=*most) == *policy)
}

/// The burst capacity that was set, if any.
pub fn own_capacity(policy: &QuotaPolicy) -> Option<u64> {
    let capacity = policy.burst_capacity();
    (policy.clone().with_burst_capacity(capacity) == *policy).then_some(capacity)
}

/// A policy with another quota and burst capacity, and without lockout, overage and individual quotas. `month_begins` is
/// for months only.
pub fn renumbered(old: &QuotaPolicy, quota: u64, capacity: Option<u64>, month_begins: Option<u8>) -> QuotaPolicy {
    let name = old.name().to_owned();
    let mut new = match (old.window(), old.calendar_window()) {
        (Some(window), _) => QuotaPolicy::new(name, quota, window),
        (None, Some(window)) => {
            let period = match (window.period(), month_begins) {
                (CalendarPeriod::Month { .. }, Some(begins)) => CalendarPeriod::Month { begins },
                (period, _) => period,
            };
            QuotaPolicy::per_calendar(name, quota, CalendarWindow::new(period, window.time_zone().to_owned()))
        }
        (None, None) => QuotaPolicy::concurrent("", quota).with_name(name),
    };
    new = match old.unit() {
        QuotaUnit::ContentBytes(content) => new.with_content_bytes(content),
        QuotaUnit::Custom(unit) => new.with_unit(unit.as_str()),
        _ => new,
    };
    new = new.with_algorithm(old.algorithm());
    match capacity {
        Some(capacity) => new.with_burst_capacity(capacity),
        None => new,
    }
}

/// The quota of windows and slots, and the most that is admitted.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub units: i128,
    pub ceiling: i128,
}

impl Quota {
    pub fn of(policy: &QuotaPolicy) -> Self {
        let units = i128::from(policy.quota());
        let more = units * i128::from(overage(policy).unwrap_or(0)) / 100;
        Self {
            units,
            ceiling: units + more,
        }
    }

    /// The units above the quota.
    pub fn over(&self, used: i128) -> i128 {
        (used.min(self.ceiling) - self.units).max(0)
    }
}

/// The rate and the capacity of a bucket. An amount is in units times the window's microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Units per window.
    pub rate: i128,
    /// In microseconds.
    pub window: i128,
    pub capacity: i128,
}

/// The largest number of parts that doubles count exactly.
const MOST_PARTS: i128 = (1 << 53) - 1;

impl Numbers {
    pub fn of(policy: &QuotaPolicy) -> Self {
        let (rate, capacity) = rate_and_capacity(policy);
        let window = window(policy);
        Self {
            rate,
            window,
            capacity: capacity * window,
        }
    }

    pub fn is_rate_of(&self, other: &Self) -> bool {
        self.rate * other.window == other.rate * self.window
    }

    /// The smallest amount that is counted.
    fn part(&self) -> i128 {
        self.window / parts_of_a_unit(self.rate, self.window)
    }

    /// The largest amount that is counted.
    pub fn most(&self) -> i128 {
        MOST_PARTS * self.part()
    }

    /// An amount of another bucket, rounded up.
    pub fn rounded_up(&self, amount: i128, other: &Self) -> i128 {
        let (part, second) = (self.part(), 1_000_000);
        (amount * (self.window / second)).div_ceil_to(other.window / second * part) * part
    }

    /// An amount of another bucket, rounded down.
    pub fn rounded_down(&self, amount: i128, other: &Self) -> i128 {
        let (part, second) = (self.part(), 1_000_000);
        (amount * (self.window / second)).div_euclid(other.window / second * part) * part
    }

    /// The amount after a late charge, which leads to at most twice the capacity of the policy that settles it.
    pub fn charged_late(&self, used: i128, units: i128, settling: &Self) -> i128 {
        let most = self.rounded_up(2 * settling.capacity, settling).min(self.most());
        let more = self.rounded_up(
            (units * settling.window).min(settling.most() + settling.part()),
            settling,
        );
        (used + more).min(most).max(used)
    }

    /// The part of a refund that has not been restored since the charge. `after_charge` is the used amount right after
    /// it.
    pub fn refund(&self, units: i128, settling: &Self, after_charge: i128, age: i128) -> i128 {
        let refund = (units * settling.window).min(after_charge - age * settling.rate).max(0);
        if self.is_rate_of(settling) {
            return self.rounded_up(refund, settling);
        }
        let left = self.rounded_down(after_charge, settling) - age * self.rate;
        self.rounded_down(refund, settling).min(left).max(0)
    }

    /// Returns `true` if other numbers are faster, and an amount in these numbers is above the capacity or was so at the
    /// first decision (`is_decided`). It keeps the rate until the next charge.
    pub fn owes(&self, amount: i128, by: &Self, is_decided: bool) -> bool {
        let is_faster = by.rate * self.window > self.rate * by.window;
        is_faster && (is_decided || amount > self.capacity)
    }
}

/// Units that come per window, and the most that there are.
pub fn rate_and_capacity(policy: &QuotaPolicy) -> (i128, i128) {
    let (quota, capacity) = (i128::from(policy.quota()), i128::from(policy.burst_capacity()));
    match policy.algorithm() {
        Algorithm::StrictTokenBucket => (quota - capacity + 1, capacity),
        Algorithm::LeakyBucketMeter => (quota, 1),
        Algorithm::LeakyBucketQueue { max_waiting } => (quota, i128::from(max_waiting) + 1),
        _ => (quota, capacity),
    }
}

/// A microsecond brings a fraction of a unit. A bucket whose numbers change is rounded to whole such fractions,
/// of which the policy with the new numbers has this many in a unit.
pub fn parts_of_a_unit(rate: i128, window: i128) -> i128 {
    let (mut divisor, mut rest) = (window, rate);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    window / divisor
}

/// Division that rounds up.
pub trait DivCeil {
    fn div_ceil_to(self, divisor: i128) -> i128;
}

impl DivCeil for i128 {
    fn div_ceil_to(self, divisor: i128) -> i128 {
        (self + divisor - 1).div_euclid(divisor)
    }
}

/// Returns `true` if it limits requests in progress, and has no time.
pub fn is_slots(policy: &QuotaPolicy) -> bool {
    policy.unit() == QuotaUnit::ConcurrentRequests
}

fn is_bucket(policy: &QuotaPolicy) -> bool {
    let algorithm = policy.algorithm();
    let is_window = matches!(
        algorithm,
        Algorithm::FixedWindow | Algorithm::SlidingWindowCounter | Algorithm::SlidingWindowLog
    );
    policy.window().is_some() && policy.quota() > 0 && !is_window
}

/// Returns `true` if a full bucket, and as much again, fits into a double; otherwise its rate is rounded.
pub fn is_counted_exactly(policy: &QuotaPolicy) -> bool {
    if !is_bucket(policy) {
        return true;
    }
    let (rate, capacity) = rate_and_capacity(policy);
    2 * capacity * parts_of_a_unit(rate, window(policy)) < 1 << 53
}

/// Returns `true` if used units convert from one policy to the other without rounding of doubles.
pub fn is_converted_exactly(from: &QuotaPolicy, to: &QuotaPolicy) -> bool {
    if !is_bucket(from) || !is_bucket(to) || Numbers::of(from).is_rate_of(&Numbers::of(to)) {
        return true;
    }
    let parts = |policy| parts_of_a_unit(rate_and_capacity(policy).0, window(policy));
    parts(from) * parts(to) < 1 << 53
}
