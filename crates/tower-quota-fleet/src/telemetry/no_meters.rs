//! No-op version of `meters`, without the feature `metrics`.

#[derive(Debug)]
pub(super) struct ContractsMeter;

impl ContractsMeter {
    pub(super) fn new(_: &str) -> Self {
        Self
    }

    pub(super) fn unread(&self) {}
}

#[derive(Debug)]
pub(super) struct FleetMeters;

impl FleetMeters {
    pub(super) fn new(_: &str) -> Self {
        Self
    }

    pub(super) fn runs(&self, _: u64, _: &[(&str, &str)]) {}

    pub(super) fn rejects(&self, _: Option<&'static str>) {}

    pub(super) fn overridden(&self, _: bool) {}

    pub(super) fn unread(&self) {}

    pub(super) fn lost(&self, _: &[(&'static str, String)]) {}

    pub(super) fn controls_unread(&self, _: bool) {}

    pub(super) fn switch_ends(&self, _: Option<Option<u64>>) {}
}
