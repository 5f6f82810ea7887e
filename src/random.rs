//! Numbers that nobody needs to guess, only to differ: pauses of instances, waits of clients, candidates for eviction.

use std::hash::{BuildHasher, RandomState};

/// Any number. Each `RandomState` has other keys; that is randomness enough, and no dependency.
pub(crate) fn number() -> u32 {
    long_number() as u32
}

/// The same, twice as long: two of them are equal by a chance of 2⁻⁶⁴.
pub(crate) fn long_number() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Any number of numbers, at a nanosecond each: SplitMix64 (Steele, Lea and Flood 2014) from a random start.
#[derive(Debug)]
pub(crate) struct Sequence(u64);

impl Sequence {
    pub(crate) fn new() -> Self {
        Self(long_number())
    }

    /// A number below this one, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // The upper bits of the product: less than one part in 2³² away from even for any bound below 2³².
        ((u128::from(mixed) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_hits_all_numbers_below_its_bound_about_as_often() {
        let (mut sequence, mut counts) = (Sequence::new(), [0_u32; 7]);
        for _ in 0..70_000 {
            counts[sequence.below(7)] += 1;
        }
        assert!(counts.iter().all(|count| (9_000..11_000).contains(count)), "{counts:?}");
    }
}
