//! The gauges of a follower.

use metrics::{Counter, Gauge, counter, gauge};

use crate::{
    mutex::Mutex,
    telemetry::catalog::{
        FLEET_OVERRIDDEN, FLEET_POLICY_VERSION, FLEET_REJECTED, FLEET_UNREAD, FLEET_VERSION, register,
    },
};

/// The gauges of one follower.
#[derive(Debug)]
pub(in crate::telemetry) struct FleetMeters {
    name: String,
    version: Gauge,
    overridden: Gauge,
    unread: Counter,
    policies: Mutex<Vec<PolicyGauge>>,
    /// The reason that is shown.
    rejected: Mutex<Option<&'static str>>,
}

#[derive(Debug)]
struct PolicyGauge {
    tier: String,
    policy: String,
    version: Gauge,
}

impl FleetMeters {
    /// The number of policies with a gauge. Further ones have none.
    const POLICIES: usize = 512;

    pub(in crate::telemetry) fn new(name: &str) -> Self {
        register();
        let name = name.to_owned();
        let meters = Self {
            version: gauge!(FLEET_VERSION, "rules" => name.clone()),
            overridden: gauge!(FLEET_OVERRIDDEN, "rules" => name.clone()),
            unread: counter!(FLEET_UNREAD, "rules" => name.clone()),
            policies: Mutex::default(),
            rejected: Mutex::default(),
            name,
        };
        meters.version.set(0.0);
        meters.overridden.set(0.0);
        meters.unread.increment(0);
        meters
    }

    pub(in crate::telemetry) fn runs(&self, version: u64, policies: &[(&str, &str)]) {
        self.version.set(version as f64);
        let mut known = self.policies.lock();
        for (tier, policy) in policies {
            let is_known = |known: &PolicyGauge| known.tier == *tier && known.policy == *policy;
            if known.len() < Self::POLICIES && !known.iter().any(is_known) {
                let labels = [("rules", &*self.name), ("tier", tier), ("policy", policy)];
                let labels = labels.map(|(name, value)| (name, value.to_owned()));
                known.push(PolicyGauge {
                    tier: (*tier).to_owned(),
                    policy: (*policy).to_owned(),
                    version: gauge!(FLEET_POLICY_VERSION, &labels),
                });
            }
        }
        for gauge in &*known {
            let is_there = policies.contains(&(&gauge.tier, &gauge.policy));
            gauge.version.set(if is_there { version as f64 } else { 0.0 });
        }
    }

    pub(in crate::telemetry) fn rejects(&self, reason: Option<&'static str>) {
        let before = std::mem::replace(&mut *self.rejected.lock(), reason);
        for (reason, value) in [(before.filter(|before| Some(*before) != reason), 0.0), (reason, 1.0)] {
            if let Some(reason) = reason {
                gauge!(FLEET_REJECTED, "rules" => self.name.clone(), "reason" => reason).set(value);
            }
        }
    }

    pub(in crate::telemetry) fn overridden(&self, is_overridden: bool) {
        self.overridden.set(f64::from(u8::from(is_overridden)));
    }

    pub(in crate::telemetry) fn unread(&self) {
        self.unread.increment(1);
    }
}

impl Drop for FleetMeters {
    /// A follower that has ended runs no version.
    fn drop(&mut self) {
        self.runs(0, &[]);
        self.rejects(None);
        self.overridden(false);
    }
}
