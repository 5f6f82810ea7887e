use std::{panic::resume_unwind, sync::Arc};

use tokio::task::JoinSet;

use super::{
    deadline::{SHORT, within},
    shared::Shared,
};
use crate::{
    error::FleetError,
    report::{InstanceReport, ReportedControls},
    source::RulesSource,
};

pub(super) struct Reporter {
    shared: Arc<Shared>,
    source: Arc<dyn RulesSource>,
    instance: String,
    stored: Option<InstanceReport>,
    /// At most one. Aborted with the follower.
    under_way: JoinSet<Result<InstanceReport, FleetError>>,
    /// Polls since the last report.
    unreported: u32,
}

impl Reporter {
    /// Polls between two equal reports.
    const REPEAT: u32 = 10;

    pub(super) fn new(shared: Arc<Shared>, source: Arc<dyn RulesSource>, instance: String) -> Self {
        Self {
            shared,
            source,
            instance,
            stored: None,
            under_way: JoinSet::new(),
            unreported: 0,
        }
    }

    pub(super) fn report(&mut self) {
        self.unreported += 1;
        self.take_answer();
        if !self.under_way.is_empty() {
            return;
        }
        let status = self.shared.status();
        let controls = |(switch, access)| ReportedControls { switch, access };
        let report = InstanceReport {
            instance: self.instance.clone(),
            version: status.version,
            rejects: status.rejected().map(|(version, _)| version),
            overridden: status.is_overridden,
            off: status.is_off,
            controls: status.controls().map(controls),
            newest: status.newest,
            lost: !status.lost.is_empty(),
        };
        if self.stored.as_ref() != Some(&report) || self.unreported >= Self::REPEAT {
            self.send(report);
        }
    }

    fn send(&mut self, report: InstanceReport) {
        self.unreported = 0;
        self.stored = None;
        let source = Arc::clone(&self.source);
        self.under_way.spawn(async move {
            within(SHORT, source.report(&report)).await?;
            Ok(report)
        });
    }

    fn take_answer(&mut self) {
        match self.under_way.try_join_next() {
            Some(Ok(Ok(report))) => self.stored = Some(report),
            Some(Ok(Err(error))) => self.shared.telemetry.unreported(self.shared.clock().now(), &error),
            Some(Err(error)) => {
                // Ends the follower, like a panic during a poll.
                if let Ok(panic) = error.try_into_panic() {
                    resume_unwind(panic);
                }
            }
            None => {}
        }
    }
}
