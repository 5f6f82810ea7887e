//! Who sends the next request: few users send many, many users send few.

use tower_quota::{PartitionKey, ToPartitionKey};

/// What an authentication layer would leave in the extensions of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserId(pub(crate) u64);

impl ToPartitionKey for UserId {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("user", self.0.to_be_bytes())
    }
}

/// Chooses users by Zipf's law: the k-th heaviest sends in proportion to `1 / k^skew`.
///
/// The law's sum is replaced by its integral, which takes no table. The heaviest of a million users sends 5 % of all
/// requests then, instead of 7 %, at a skew of 1.
#[derive(Clone, Debug)]
pub(crate) struct Users {
    count: u64,
    skew: f64,
    random: Random,
}

impl Users {
    /// The same seed chooses the same users in the same order.
    pub(crate) fn new(count: u64, skew: f64, seed: u64) -> Self {
        Self {
            count,
            skew,
            random: Random::new(seed),
        }
    }

    pub(crate) fn next(&mut self) -> UserId {
        let (end, flatness) = (self.count as f64 + 1.0, 1.0 - self.skew);
        let part = self.random.part();
        let rank = if flatness.abs() < 1e-9 {
            end.powf(part)
        } else {
            (1.0 + part * (end.powf(flatness) - 1.0)).powf(flatness.recip())
        };
        // Rounding can lead beyond both ends.
        UserId((rank as u64).clamp(1, self.count))
    }
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

    /// How many events there are in a time in which there are `mean` of them on average, if they know nothing of each
    /// other. The mean may be some hundred.
    pub(crate) fn poisson(&mut self, mean: f64) -> u32 {
        let (mut events, mut product, end) = (0, self.part(), (-mean).exp());
        while product > end {
            events += 1;
            product *= self.part();
        }
        events
    }
}
