//! Requests about several partitions, by chance.

use proptest::{prelude::*, sample::subsequence};
use tower_quota::{
    Decision, Settlement,
    clock::{Clock, Timestamp},
};

/// Which partition of each kind a request is about.
pub type Parts = Vec<(usize, u8)>;

#[derive(Clone, Debug)]
pub enum Step {
    Acquire {
        parts: Parts,
        cost: u64,
    },
    /// Gives back what an earlier request has taken, or says what it has cost.
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

/// Fewer than so many, each about any of four kinds of partitions in any order.
pub fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..most)
}

/// The same with a clock that now and then steps back. All partitions are there from the beginning: memory forgets those
/// that have expired when others come, and does not know them any more at an earlier time.
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
