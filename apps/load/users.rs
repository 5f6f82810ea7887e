//! Chooses who sends the next request: few users send many, many users send few.

use tower_quota::{PartitionKey, ToPartitionKey};

/// The identity that an authentication layer would leave in the extensions of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserId(pub(crate) u64);

impl ToPartitionKey for UserId {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("user", self.0.to_be_bytes())
    }
}

/// Zipf's law as Mandelbrot has it: the k-th heaviest user sends in proportion to `1 / (k + shift)^skew`.
///
/// The shift is one user in ten thousand. Without it the heaviest of a million would send 5 % of all requests, which no
/// quota for users would allow; with it, it is 0.1 %. The law's sum is replaced by its integral, which takes no table.
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
        // Rounding can lead beyond both ends.
        UserId((rank as u64).clamp(1, self.count))
    }

    /// The part of all requests that the heaviest user sends.
    pub(crate) fn heaviest(&self) -> f64 {
        let [begin, second, end] = [1.0, 2.0, self.count as f64 + 1.0].map(|rank| self.integral(rank));
        (second - begin) / (end - begin)
    }

    /// Up to the user of this rank, but for a constant.
    fn integral(&self, rank: f64) -> f64 {
        let (place, flatness) = (rank + self.shift, 1.0 - self.skew);
        if is_zero(flatness) {
            place.ln()
        } else {
            place.powf(flatness) / flatness
        }
    }

    /// The rank up to which users send this part of all requests.
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

/// SplitMix64: good enough for dice, and the same on every machine.
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

    /// At least 0, less than 1.
    pub(crate) fn part(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws the number of independent events in a period that has `mean` of them on average. The mean may be some
    /// hundred.
    pub(crate) fn poisson(&mut self, mean: f64) -> u32 {
        let (mut events, mut product, end) = (0, self.part(), (-mean).exp());
        while product > end {
            events += 1;
            product *= self.part();
        }
        events
    }
}
