use crate::{algorithm::Counter, policy::Policy};

#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) id: u32,
    pub(super) counter: &'a Counter,
    pub(super) is_shadow: bool,
}

pub(super) fn entries(policies: &[Policy]) -> impl Iterator<Item = Entry<'_>> {
    let own = policies.iter().map(|policy| Entry {
        id: policy.id(),
        counter: policy.counter(),
        is_shadow: policy.policy().is_shadow(),
    });
    let lockouts = policies.iter().filter_map(|policy| {
        Some(Entry {
            id: policy.lockout_id(),
            counter: policy.lockout()?.counter(),
            is_shadow: false,
        })
    });
    let newcomers = policies.iter().filter_map(|policy| {
        Some(Entry {
            id: policy.newcomer_id(),
            counter: policy.newcomer()?.counter(),
            // Prevents nothing, so the partition can be evicted.
            is_shadow: true,
        })
    });
    own.chain(lockouts).chain(newcomers)
}
