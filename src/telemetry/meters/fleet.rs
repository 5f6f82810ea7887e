//! The gauges of a follower.

use metrics::{Counter, Gauge, counter, gauge};

use crate::{
    sync::mutex::Mutex,
    telemetry::catalog::{
        FLEET_CONTROLS_UNREAD, FLEET_LOST, FLEET_OVERRIDDEN, FLEET_POLICY_VERSION, FLEET_REJECTED, FLEET_SWITCH_ENDS,
        FLEET_UNREAD, FLEET_VERSION, register,
    },
};

/// The gauges of one follower.
#[derive(Debug)]
pub(in crate::telemetry) struct FleetMeters {
    name: String,
    version: Gauge,
    overridden: Gauge,
    unread: Counter,
    switch_ends: Gauge,
    controls_unread: Gauge,
    lost: [(&'static str, Gauge); 3],
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
            switch_ends: gauge!(FLEET_SWITCH_ENDS, "rules" => name.clone()),
            controls_unread: gauge!(FLEET_CONTROLS_UNREAD, "rules" => name.clone()),
            lost: ["access", "rules", "switch"]
                .map(|what| (what, gauge!(FLEET_LOST, "rules" => name.clone(), "what" => what))),
            policies: Mutex::default(),
            rejected: Mutex::default(),
            name,
        };
        meters.version.set(0.0);
        meters.overridden.set(0.0);
        meters.unread.increment(0);
        meters.switch_ends(None);
        meters.controls_unread(false);
        meters.lost(&[]);
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

    pub(in crate::telemetry) fn lost(&self, lost: &[(&'static str, String)]) {
        for (what, gauge) in &self.lost {
            let is_lost = lost.iter().any(|(lost, _)| lost == what);
            gauge.set(f64::from(u8::from(is_lost)));
        }
    }

    pub(in crate::telemetry) fn controls_unread(&self, are_unread: bool) {
        self.controls_unread.set(f64::from(u8::from(are_unread)));
    }

    pub(in crate::telemetry) fn switch_ends(&self, until: Option<Option<u64>>) {
        self.switch_ends.set(match until {
            None => 0.0,
            Some(None) => f64::INFINITY,
            Some(Some(until)) => until as f64,
        });
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
        self.switch_ends(None);
        self.controls_unread(false);
        self.lost(&[]);
    }
}
