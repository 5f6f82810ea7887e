use std::sync::Mutex;

use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};

use crate::sync::lock;

const CONTROLS_UNREAD: &str = "tower_quota_rules_controls_unread";
const LOST: &str = "tower_quota_rules_lost";
const OVERRIDDEN: &str = "tower_quota_rules_overridden";
const POLICY_VERSION: &str = "tower_quota_rules_policy_version";
const REJECTED: &str = "tower_quota_rules_rejected";
const SWITCH_ENDS: &str = "tower_quota_rules_switch_ends_seconds";
const UNREAD: &str = "tower_quota_rules_unread_total";
const VERSION: &str = "tower_quota_rules_version";

fn describe() {
    let count = Unit::Count;
    describe_counter!(UNREAD, count, "Failed polls of the rules source or of contracts");
    for (name, description) in [
        (
            CONTROLS_UNREAD,
            "Instances that cannot read the kill switch and the access list",
        ),
        (LOST, "Instances whose rules source lost data"),
        (
            OVERRIDDEN,
            "Processes that override the rules or the switch of their fleet",
        ),
        (POLICY_VERSION, "Version of the rules that contain a policy"),
        (REJECTED, "Instances that reject the latest published rules"),
        (
            SWITCH_ENDS,
            "Unix time at which the fleet's limits are switched on again; 0 while they are on",
        ),
        (VERSION, "Version of the rules that are followed"),
    ] {
        describe_gauge!(name, count, description);
    }
}

#[derive(Debug)]
pub(super) struct ContractsMeter(Counter);

impl ContractsMeter {
    pub(super) fn new(name: &str) -> Self {
        describe();
        let unread = counter!(UNREAD, "rules" => format!("contracts:{name}"));
        unread.increment(0);
        Self(unread)
    }

    pub(super) fn unread(&self) {
        self.0.increment(1);
    }
}

#[derive(Debug)]
pub(crate) struct FleetMeters {
    name: String,
    version: Gauge,
    overridden: Gauge,
    unread: Counter,
    switch_ends: Gauge,
    controls_unread: Gauge,
    lost: [(&'static str, Gauge); 3],
    policies: Mutex<Vec<PolicyGauge>>,
    /// The reason whose gauge is 1.
    rejected: Mutex<Option<&'static str>>,
}

#[derive(Debug)]
struct PolicyGauge {
    tier: String,
    policy: String,
    version: Gauge,
}

impl FleetMeters {
    /// Further policies have no gauge.
    const POLICIES: usize = 512;

    pub(crate) fn new(name: &str) -> Self {
        describe();
        let name = name.to_owned();
        let meters = Self {
            version: gauge!(VERSION, "rules" => name.clone()),
            overridden: gauge!(OVERRIDDEN, "rules" => name.clone()),
            unread: counter!(UNREAD, "rules" => name.clone()),
            switch_ends: gauge!(SWITCH_ENDS, "rules" => name.clone()),
            controls_unread: gauge!(CONTROLS_UNREAD, "rules" => name.clone()),
            lost: ["access", "rules", "switch"]
                .map(|what| (what, gauge!(LOST, "rules" => name.clone(), "what" => what))),
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

    pub(crate) fn runs(&self, version: u64, policies: &[(&str, &str)]) {
        self.version.set(version as f64);
        let mut known = lock(&self.policies);
        for (tier, policy) in policies {
            let is_known = |known: &PolicyGauge| known.tier == *tier && known.policy == *policy;
            if known.len() < Self::POLICIES && !known.iter().any(is_known) {
                let labels = [("rules", &*self.name), ("tier", tier), ("policy", policy)];
                let labels = labels.map(|(name, value)| (name, value.to_owned()));
                known.push(PolicyGauge {
                    tier: (*tier).to_owned(),
                    policy: (*policy).to_owned(),
                    version: gauge!(POLICY_VERSION, &labels),
                });
            }
        }
        for gauge in &*known {
            let is_there = policies.contains(&(&gauge.tier, &gauge.policy));
            gauge.version.set(if is_there { version as f64 } else { 0.0 });
        }
    }

    pub(crate) fn rejects(&self, reason: Option<&'static str>) {
        let before = std::mem::replace(&mut *lock(&self.rejected), reason);
        for (reason, value) in [(before.filter(|before| Some(*before) != reason), 0.0), (reason, 1.0)] {
            if let Some(reason) = reason {
                gauge!(REJECTED, "rules" => self.name.clone(), "reason" => reason).set(value);
            }
        }
    }

    pub(crate) fn overridden(&self, is_overridden: bool) {
        self.overridden.set(f64::from(u8::from(is_overridden)));
    }

    pub(crate) fn lost(&self, lost: &[(&'static str, String)]) {
        for (what, gauge) in &self.lost {
            let is_lost = lost.iter().any(|(lost, _)| lost == what);
            gauge.set(f64::from(u8::from(is_lost)));
        }
    }

    pub(crate) fn controls_unread(&self, are_unread: bool) {
        self.controls_unread.set(f64::from(u8::from(are_unread)));
    }

    /// `None` while limits are on; `Some(None)` for an order without an end.
    pub(crate) fn switch_ends(&self, until: Option<Option<u64>>) {
        self.switch_ends.set(match until {
            None => 0.0,
            Some(None) => f64::INFINITY,
            Some(Some(until)) => until as f64,
        });
    }

    pub(crate) fn unread(&self) {
        self.unread.increment(1);
    }
}

impl Drop for FleetMeters {
    fn drop(&mut self) {
        self.runs(0, &[]);
        self.rejects(None);
        self.overridden(false);
        self.switch_ends(None);
        self.controls_unread(false);
        self.lost(&[]);
    }
}
