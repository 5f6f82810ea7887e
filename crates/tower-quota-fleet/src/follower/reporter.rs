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
    /// What the source may contain, newest last. A report without a reply may have been stored.
    sent: Vec<InstanceReport>,
    /// The source has stored the newest report, and thereby replaced the others.
    is_confirmed: bool,
    /// At most one. Aborted with the follower.
    under_way: JoinSet<Result<(), FleetError>>,
    unreported: u32,
}

impl Reporter {
    /// Polls between two equal reports.
    const REPEAT: u32 = 10;

    /// Without a reply, a report times out after a second, and Redis deletes it after a minute.
    const REMEMBERED: usize = 64;

    pub(super) fn new(shared: Arc<Shared>, source: Arc<dyn RulesSource>, instance: String) -> Self {
        Self {
            shared,
            source,
            instance,
            sent: Vec::new(),
            is_confirmed: false,
            under_way: JoinSet::new(),
            unreported: 0,
        }
    }

    /// Polls do not wait for the reply.
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
        let is_said = self.is_confirmed && self.sent.last() == Some(&report);
        if !is_said || self.unreported >= Self::REPEAT {
            self.send(report);
        }
    }

    fn send(&mut self, report: InstanceReport) {
        self.unreported = 0;
        self.is_confirmed = false;
        self.sent.retain(|sent| *sent != report);
        if self.sent.len() == Self::REMEMBERED {
            self.sent.remove(0);
        }
        let (source, before) = (Arc::clone(&self.source), self.sent.clone());
        self.sent.push(report.clone());
        self.under_way
            .spawn(async move { within(SHORT, source.report(&report, &before)).await });
    }

    fn take_answer(&mut self) {
        match self.under_way.try_join_next() {
            Some(Ok(Ok(()))) => {
                self.is_confirmed = true;
                self.sent.drain(..self.sent.len() - 1);
            }
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
