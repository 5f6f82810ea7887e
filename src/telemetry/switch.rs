use std::collections::BTreeMap;

use super::facade::Gauge;
use crate::sync::mutex::Mutex;

metrics! {
    struct SwitchMetrics {
        limits_off: Gauge = "tower_quota_limits_off", "Layers whose limits are switched off";
    }
}

/// Disabled layers per scope. The gauge is set, not incremented, because a recorder may be installed while some layers
/// are disabled.
static OFF: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

#[derive(Debug)]
pub(crate) struct SwitchMeter {
    scope: String,
    /// Locked while the gauge is updated, so that updates cannot overtake each other.
    is_off: Mutex<bool>,
}

impl SwitchMeter {
    pub(crate) fn new(scope: &str) -> Self {
        Self {
            scope: scope.to_owned(),
            is_off: Mutex::new(false),
        }
    }

    pub(crate) fn turned(&self, is_off: impl FnOnce() -> bool) {
        let mut shown = self.is_off.lock();
        let is_off = is_off();
        if std::mem::replace(&mut *shown, is_off) != is_off {
            show(&self.scope, if is_off { 1 } else { -1 });
        }
    }
}

impl Drop for SwitchMeter {
    fn drop(&mut self) {
        self.turned(|| false);
    }
}

pub(super) fn show(scope: &str, change: i32) {
    let mut off = OFF.lock();
    let count = off.get(scope).copied().unwrap_or(0).saturating_add_signed(change);
    match count {
        0 => drop(off.remove(scope)),
        _ => drop(off.insert(scope.to_owned(), count)),
    }
    SwitchMetrics::new(scope).limits_off.set(f64::from(count));
}
