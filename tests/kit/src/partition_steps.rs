//! Requests about several partitions, by chance.

use proptest::{prelude::*, sample::subsequence};
use tower_quota::{
    Decision, Settlement,
    clock::{Clock, Timestamp},
};

/// The partitions of a request: the kind and the user of each.
pub type Parts = Vec<(usize, u8)>;

#[derive(Clone, Debug)]
pub enum Step {
    Acquire {
        parts: Parts,
        cost: u64,
    },
    /// Refunds an earlier request, or reports its actual cost.
    Settle {
        which: usize,
        actual: Option<u64>,
    },
    /// Time passes, or the clock steps back.
    Time {
        micros: i64,
    },
}

pub fn settlement(decision: &Decision, actual: Option<u64>) -> Settlement {
    actual.map_or_else(
        || Settlement::refund_all(decision),
        |cost| Settlement::new(decision, cost),
    )
}

pub fn move_clock(clock: &Clock, micros: i64) {
    let moved = clock.now().as_micros().saturating_add_signed(micros);
    clock.set(Timestamp::from_micros(moved));
}

/// Fewer than `most` steps. Each request has partitions of one to four kinds, in any order.
pub fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..most)
}

/// Like [`steps`], but the clock sometimes steps back. All partitions exist from the beginning, because the memory
/// store evicts expired partitions when others are inserted, and does not know them at an earlier time.
pub fn steps_back_and_forth(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        9 => step(),
        1 => (-40_000_000..0_i64).prop_map(|micros| Step::Time { micros }),
    ];
    let first = |kind| {
        (0..2).map(move |user| Step::Acquire {
            parts: vec![(kind, user)],
            cost: 1,
        })
    };
    proptest::collection::vec(step, 1..most).prop_map(move |steps| (0..4).flat_map(first).chain(steps).collect())
}

fn step() -> impl Strategy<Value = Step> {
    let parts = (
        subsequence(vec![0, 1, 2, 3], 1..=4).prop_shuffle(),
        proptest::collection::vec(0..2_u8, 4),
    )
        .prop_map(|(kinds, users)| kinds.into_iter().zip(users).collect());
    prop_oneof![
        6 => (parts, 0..=4_u64).prop_map(|(parts, cost)| Step::Acquire { parts, cost }),
        2 => (0..9_usize, proptest::option::of(0..=8_u64)).prop_map(|(which, actual)| Step::Settle { which, actual }),
        1 => (0..40_000_000_i64).prop_map(|micros| Step::Time { micros }),
    ]
}
