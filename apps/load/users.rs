//! Chooses the user of the next request: few users send many requests, and many users send few.

use tower_quota::{PartitionKey, ToPartitionKey};

/// The identity that an authentication layer would insert into the request extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserId(pub(crate) u64);

impl ToPartitionKey for UserId {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("user", self.0.to_be_bytes())
    }
}

/// The Zipf–Mandelbrot law: the k-th heaviest user sends in proportion to `1 / (k + shift)^skew`.
///
/// The shift is one user in ten thousand. With it, the heaviest of a million users sends 0.1 % of all requests; without
/// it, 5 %, which exceeds any reasonable quota. The integral replaces the sum, so no table is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Users {
    count: u64,
    shift: f64,
    skew: f64,
}

impl Users {
    pub(crate) fn new(count: u64, skew: f64) -> Self {
        Self {
            count,
            shift: (count / 10_000) as f64,
            skew,
        }
    }

    pub(crate) fn choose(&self, random: &mut Random) -> UserId {
        let rank = self.rank(random.part());
        // Rounding can exceed the range at both ends.
        UserId((rank as u64).clamp(1, self.count))
    }

    /// The share of requests sent by the heaviest user.
    pub(crate) fn heaviest(&self) -> f64 {
        let [begin, second, end] = [1.0, 2.0, self.count as f64 + 1.0].map(|rank| self.integral(rank));
        (second - begin) / (end - begin)
    }

    /// The integral up to this rank, except for a constant.
    fn integral(&self, rank: f64) -> f64 {
        let (place, flatness) = (rank + self.shift, 1.0 - self.skew);
        if is_zero(flatness) {
            place.ln()
        } else {
            place.powf(flatness) / flatness
        }
    }

    /// The rank up to which users send this share of all requests.
    fn rank(&self, part: f64) -> f64 {
        let [begin, end] = [1.0, self.count as f64 + 1.0].map(|rank| self.integral(rank));
        let (integral, flatness) = (begin + part * (end - begin), 1.0 - self.skew);
        let place = if is_zero(flatness) {
            integral.exp()
        } else {
            (integral * flatness).powf(flatness.recip())
        };
        place - self.shift
    }
}

fn is_zero(flatness: f64) -> bool {
    flatness.abs() < 1e-9
}

/// SplitMix64, which is deterministic on all machines.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    pub(crate) fn part(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws from a Poisson distribution. `mean` may be up to a few hundred.
    pub(crate) fn poisson(&mut self, mean: f64) -> u32 {
        let (mut events, mut product, end) = (0, self.part(), (-mean).exp());
        while product > end {
            events += 1;
            product *= self.part();
        }
        events
    }
}
