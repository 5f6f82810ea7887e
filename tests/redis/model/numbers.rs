//! The costs of requests, and the policies that doubles can count.

use tower_quota::{Algorithm, Direction, QuotaPolicy, QuotaUnit};

/// A request as plans know it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub cost: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub tokens: u64,
}

impl Request {
    /// One that only asks.
    pub const NOTHING: Self = Self {
        cost: 0,
        request_bytes: 0,
        response_bytes: 0,
        tokens: 0,
    };

    /// The units that it takes from a policy. A request that costs nothing takes nothing, every other one a slot and at
    /// least a byte. Units of the program's own are all tokens.
    pub fn cost_for(&self, policy: &QuotaPolicy) -> i128 {
        let (request, response) = (i128::from(self.request_bytes), i128::from(self.response_bytes));
        let most = i128::from(u64::MAX);
        match policy.unit() {
            _ if self.cost == 0 => 0,
            QuotaUnit::Requests => self.cost.into(),
            QuotaUnit::ConcurrentRequests => 1,
            QuotaUnit::ContentBytes(Direction::Request) => request.max(1),
            QuotaUnit::ContentBytes(Direction::Response) => response.max(1),
            QuotaUnit::ContentBytes(Direction::Both) => (request + response).clamp(1, most),
            QuotaUnit::Custom(_) => self.tokens.into(),
            other => panic!("{other:?} has no model"),
        }
    }
}

impl Request {
    /// The units that a policy gets back of it. Leaky buckets and closed policies get nothing, and slots are given back
    /// by their holders.
    pub fn returned_to(&self, policy: &QuotaPolicy) -> i128 {
        let (request, response) = (i128::from(self.request_bytes), i128::from(self.response_bytes));
        let algorithm = policy.algorithm();
        let is_leaky = matches!(
            algorithm,
            Algorithm::LeakyBucketMeter | Algorithm::LeakyBucketQueue { .. }
        );
        match policy.unit() {
            _ if self.cost == 0 || policy.quota() == 0 || (is_leaky && !is_slots(policy)) => 0,
            QuotaUnit::Requests => self.cost.into(),
            QuotaUnit::ContentBytes(Direction::Request) => request,
            QuotaUnit::ContentBytes(Direction::Response) => response,
            QuotaUnit::ContentBytes(Direction::Both) => request + response,
            QuotaUnit::Custom(_) => self.tokens.into(),
            _ => 0,
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

/// The same amount of units, each counted as a window's microseconds, for other numbers: rounded up.
pub fn convert(used: i128, from: i128, rate: i128, to: i128) -> i128 {
    let part = to / parts_of_a_unit(rate, to);
    (used * to).div_ceil_to(from * part) * part
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

/// Returns `true` if the used units of one policy become those of another without the rounding of doubles.
pub fn is_converted_exactly(from: &QuotaPolicy, to: &QuotaPolicy) -> bool {
    let parts = |policy| parts_of_a_unit(rate_and_capacity(policy).0, window(policy));
    !is_bucket(from) || !is_bucket(to) || parts(from) * parts(to) < 1 << 53
}
