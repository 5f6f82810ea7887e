//! Without the feature `metrics`.

#[derive(Debug)]
pub(super) struct ContractsMeter;

impl ContractsMeter {
    pub(super) fn new(_: &str) -> Self {
        Self
    }

    pub(super) fn unread(&self) {}
}

#[derive(Debug)]
pub(crate) struct FleetMeters;

impl FleetMeters {
    pub(crate) fn new(_: &str) -> Self {
        Self
    }

    pub(crate) fn runs(&self, _: u64, _: &[(&str, &str)]) {}

    pub(crate) fn rejects(&self, _: Option<&'static str>) {}

    pub(crate) fn overridden(&self, _: bool) {}

    pub(crate) fn unread(&self) {}

    pub(crate) fn lost(&self, _: &[(&'static str, String)]) {}

    pub(crate) fn controls_unread(&self, _: bool) {}

    pub(crate) fn switch_ends(&self, _: Option<Option<u64>>) {}
}
