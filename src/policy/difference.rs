use std::fmt::Display;

use super::{CalendarPeriod, QuotaPolicy, set::open_id};

impl QuotaPolicy {
    /// `true` if both share the same state. A closed policy has none, but opening it again continues the earlier
    /// counts.
    pub(crate) fn continues(&self, other: &Self) -> bool {
        self.key == other.key && open_id(self) == open_id(other)
    }

    /// Such as `quota 60 → 100`, if `self` is the older policy.
    pub(crate) fn differences(&self, newer: &Self) -> Vec<String> {
        let of = |name: &str, value: fn(&Self) -> String| {
            let (before, after) = (value(self), value(newer));
            (before != after).then(|| format!("{name} {before} → {after}"))
        };
        let differences = [
            of("name", |policy| format!("{:?}", policy.name)),
            of("quota", |policy| policy.quota.to_string()),
            of("window", Self::window_text),
            of("unit", |policy| policy.unit.to_string()),
            of("algorithm", |policy| policy.algorithm.text()),
            of("burst capacity", |policy| or_none(policy.burst_capacity)),
            of("initial units", |policy| or_none(policy.initial_units)),
            of("key", |policy| {
                policy.key.as_deref().unwrap_or("the main one").to_owned()
            }),
            of("lockout", |policy| {
                or_none(policy.lockout.map(|time| seconds(time.as_secs())))
            }),
            of("prefetch", |policy| or_none(policy.prefetch)),
            of("overage", |policy| {
                or_none(policy.overage.map(|percent| format!("{percent}%")))
            }),
            of("caller quotas", |policy| {
                or_none(
                    policy
                        .caller_quotas
                        .map(|bounds| format!("{}..={}", bounds.least, bounds.most)),
                )
            }),
            of("shadow", |policy| yes_or_no(policy.is_shadow)),
            of("hidden", |policy| yes_or_no(policy.is_hidden)),
            of("partition key", |policy| yes_or_no(policy.shows_partition_key)),
        ];
        let extensions = (self.extensions != newer.extensions).then(|| "extensions differ".to_owned());
        differences.into_iter().flatten().chain(extensions).collect()
    }

    fn window_text(&self) -> String {
        match (&self.calendar, self.window) {
            (Some(calendar), _) => {
                let period = match calendar.period() {
                    CalendarPeriod::MONTH => "Month".to_owned(),
                    period => format!("{period:?}"),
                };
                format!("{period} of {}", calendar.time_zone())
            }
            (None, Some(window)) => seconds(window.as_secs()),
            (None, None) => "none".to_owned(),
        }
    }
}

fn seconds(seconds: u64) -> String {
    format!("{seconds} s")
}

fn or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}
