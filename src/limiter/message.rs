use std::time::Duration;

use super::{
    caller::{Caller, with_units},
    error::LimiterError,
};
use crate::{
    decision::{Outcome, Plan},
    policy::{PolicySet, QuotaPolicy},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    units: u64,
    own_units: Vec<(String, u64)>,
    id: Option<String>,
}

impl Message {
    pub(super) fn new(units: u64) -> Self {
        Self {
            units,
            own_units: Vec::new(),
            id: None,
        }
    }

    pub(super) fn add(&mut self, unit: String, amount: u64) {
        self.own_units.push((unit, amount));
    }

    pub(super) fn set_id(&mut self, id: String) {
        self.id = Some(id);
    }
}

impl Caller {
    pub(super) fn plan_of(&self, message: &Message) -> Result<Option<Plan>, LimiterError> {
        // A plan with cost 0 would ignore custom units.
        let plan = self.clone().cost(1).plan_of_requests()?;
        Ok(plan.map(|plan| with_units(plan, &message.own_units).costing(message.units)))
    }

    /// Records the ID of the message, if it has one, for the longest window of `plan`.
    pub(super) async fn is_duplicate(
        &self,
        message: &Message,
        plan: &Plan,
        kind: &'static str,
    ) -> Result<bool, LimiterError> {
        let Some(id) = &message.id else {
            return Ok(false);
        };
        let windows = plan.charges().filter_map(|charge| charge.policy().usual_window());
        let window = windows.max().unwrap_or(Duration::from_secs(1));
        let once = PolicySet::new([QuotaPolicy::new("once", 1, window)]);
        let once = once.expect("a window of a policy is valid for another policy");
        let once = Plan::new(once, self.limiter.keys.message(self.holders(), kind, id), 1);
        Ok(self.limiter.guard.store().decide(once).await?.outcome() == Outcome::Rejected)
    }
}
