//! Random numbers that need not be secret.

use std::hash::{BuildHasher, RandomState};

pub(crate) fn number() -> u32 {
    long_number() as u32
}

pub(crate) fn long_number() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug)]
pub(crate) struct Sequence(u64);

impl Sequence {
    pub(crate) fn new() -> Self {
        Self(long_number())
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // For bounds below 2³², the bias is less than one part in 2³².
        ((u128::from(mixed) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
pub(crate) use self::tests::for_many;

#[cfg(test)]
mod tests {
    use super::*;

    impl Sequence {
        pub(crate) fn any_of<T: Clone>(&mut self, choices: &[T]) -> T {
            choices[self.below(choices.len())].clone()
        }

        pub(crate) fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
            range.start + self.below((range.end - range.start) as usize) as u64
        }

        pub(crate) fn list<T>(&mut self, count: std::ops::Range<u64>, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
            (0..self.within(count)).map(|_| item(self)).collect()
        }
    }

    pub(crate) fn for_many(cases: usize, property: impl Fn(&mut Sequence)) {
        struct Start(u64);

        impl Drop for Start {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    eprintln!("failed for Sequence({:#x})", self.0);
                }
            }
        }

        for _ in 0..cases {
            let start = Start(long_number());
            property(&mut Sequence(start.0));
        }
    }

    #[test]
    fn a_sequence_hits_all_numbers_below_its_bound_about_as_often() {
        let (mut sequence, mut counts) = (Sequence::new(), [0_u32; 7]);
        for _ in 0..70_000 {
            counts[sequence.below(7)] += 1;
        }
        assert!(counts.iter().all(|count| (9_000..11_000).contains(count)), "{counts:?}");
    }
}
