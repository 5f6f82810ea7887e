use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use smallvec::SmallVec;

use crate::{
    algorithm::Form,
    decision::{PartPlan, Plan},
    policy::Policy,
};

pub(super) type Key = SmallVec<[u8; 48]>;

pub(super) type Keys = SmallVec<[Key; 1]>;

pub(super) const DEFAULT_PREFIX: &str = "quota:";

pub(super) struct Keyspace(pub(super) String);

impl Keyspace {
    pub(super) fn keys(&self, plan: &Plan) -> impl Iterator<Item = Key> {
        plan.parts().flat_map(|part| self.part_keys(part))
    }

    pub(super) fn part_keys(&self, part: PartPlan<'_>) -> impl Iterator<Item = Key> {
        let partition = std::iter::once(self.partition(part));
        partition.chain(self.policy_keys(part, |_| true))
    }

    pub(super) fn slots(&self, plan: &Plan) -> Keys {
        let is_slots = |form| form == Form::Slots;
        plan.parts().flat_map(|part| self.policy_keys(part, is_slots)).collect()
    }

    pub(super) fn windows(&self, plan: &Plan) -> Keys {
        let windows = plan.parts().flat_map(|part| {
            let logs = part.policies().iter().filter_map(Policy::log_id);
            let logs = logs.map(move |id| self.of_policy(part, "log", id));
            std::iter::once(self.partition(part)).chain(logs)
        });
        windows.collect()
    }

    fn policy_keys(&self, part: PartPlan<'_>, is_asked_for: impl Fn(Form) -> bool) -> impl Iterator<Item = Key> {
        let policies = part
            .policies()
            .iter()
            .filter(move |policy| is_asked_for(policy.counter().form()));
        policies.filter_map(move |policy| self.policy(part, policy))
    }

    /// The hash tag puts all keys of a partition into one cluster slot.
    pub(super) fn partition(&self, part: PartPlan<'_>) -> Key {
        let mut key = Key::from_slice(self.0.as_bytes());
        key.push(b'{');
        match part.label() {
            Some(label) => key.extend_from_slice(label.as_bytes()),
            None => {
                let mut digest = [0; 22];
                let written = BASE64_URL_SAFE_NO_PAD.encode_slice(part.partition().to_bytes(), &mut digest);
                debug_assert_eq!(written, Ok(digest.len()));
                key.extend_from_slice(&digest);
            }
        }
        key.push(b'}');
        key
    }

    /// `None` unless the state is larger than a few numbers.
    fn policy(&self, part: PartPlan<'_>, policy: &Policy) -> Option<Key> {
        let kind = match policy.counter().form() {
            Form::Log => "log",
            Form::Numbers => return None,
            Form::Slots => "slots",
        };
        Some(self.of_policy(part, kind, policy.id()))
    }

    fn of_policy(&self, part: PartPlan<'_>, kind: &str, id: u32) -> Key {
        let mut key = self.partition(part);
        key.extend_from_slice(format!(":{kind}:{id:08x}").as_bytes());
        key
    }
}
