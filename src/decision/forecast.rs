//! The answer to a plan that is only asked.

use std::fmt;

use super::{allowance::Allowance, availability::Availability, measurement::Measurement, outcome::Decision};
use crate::clock::Timestamp;

/// The answer to "would this plan pass, and when?", for which nothing was charged: see
/// [`Store::forecast`](crate::Store::forecast), which has an example, and
/// [`Caller::forecast`](crate::Caller::forecast).
///
/// It holds for the moment at which it was made, and reserves nothing: other requests may come first. To take what there
/// is, in one step, use [`Plan::allow_partial`](crate::Plan::allow_partial).
#[derive(Clone)]
pub struct Forecast(Decision);

impl Forecast {
    /// Makes the forecast that follows from the readings of a store.
    pub(crate) fn of(measurement: Measurement) -> Self {
        Self(measurement.decide())
    }

    /// The moment at which all policies let the plan pass. [Shadows](crate::QuotaPolicy::shadow) let everything pass, and a
    /// [leaky queue](crate::Algorithm::LeakyBucketQueue) lets a plan pass when it has a place for it, where it then waits for
    /// its turn.
    pub fn availability(&self) -> Availability {
        let enforced = self.allowances().filter(|allowance| !allowance.policy().is_shadow());
        enforced
            .map(|allowance| allowance.availability())
            .fold(Availability::Now, Availability::later)
    }

    /// The time of the store at which it was made.
    pub fn computed_at(&self) -> Timestamp {
        self.0.now().unwrap_or_default()
    }

    /// One allowance per policy, without the plan's charge: [`Allowance::availability`] says when the policy lets the plan pass.
    pub fn allowances(&self) -> impl Iterator<Item = Allowance<'_>> {
        self.0.allowances()
    }
}

impl fmt::Debug for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forecast")
            .field("passes", &self.availability())
            .field("allowances", &self.allowances().collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_later_of_two_moments_is_the_one_that_both_policies_have_reached() {
        let (short, long) = (
            Availability::After(Duration::from_secs(1)),
            Availability::After(Duration::from_secs(2)),
        );
        let in_order = [
            Availability::Now,
            short,
            long,
            Availability::OnRelease,
            Availability::Never,
        ];
        for (position, earlier) in in_order.into_iter().enumerate() {
            for later in &in_order[position..] {
                assert_eq!((earlier.later(*later), later.later(earlier)), (*later, *later));
            }
        }
    }
}
