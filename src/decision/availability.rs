use std::time::Duration;

/// When a request would be admitted, if no other request comes first.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::Availability;
///
/// fn advice(passes: Availability) -> String {
///     match passes {
///         Availability::Now => "start".to_owned(),
///         Availability::After(wait) => format!("start in {wait:?}"),
///         Availability::OnRelease => "start when another job has ended".to_owned(),
///         Availability::Never => "make the job smaller".to_owned(),
///         _ => "ask again".to_owned(),
///     }
/// }
/// assert_eq!(advice(Availability::After(Duration::from_secs(90))), "start in 90s");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Availability {
    /// Admitted now.
    Now,
    /// Admitted after this duration, exact to the microsecond.
    After(Duration),
    /// Admitted when a slot of a [concurrency limit](crate::QuotaPolicy::concurrent) is released.
    OnRelease,
    /// Never admitted: the cost exceeds the capacity, or a policy is [closed](crate::QuotaPolicy#closed).
    Never,
}

impl Availability {
    pub(super) fn later(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::OnRelease, _) | (_, Self::OnRelease) => Self::OnRelease,
            (Self::After(wait), Self::After(other)) => Self::After(wait.max(other)),
            (Self::After(wait), Self::Now) | (Self::Now, Self::After(wait)) => Self::After(wait),
            (Self::Now, Self::Now) => Self::Now,
        }
    }
}

#[cfg(test)]
mod tests {
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
