use std::sync::Arc;

use super::{
    deadline::{LONG, SHORT, within},
    reporter::Reporter,
    shared::Shared,
};
use crate::{
    blocking::run_blocking,
    controls::parse_access,
    document::RulesDocument,
    error::{FleetError, FleetErrorKind},
    pause,
    source::{ControlHeads, RulesSource},
    version::RulesVersion,
};

pub(super) struct Poller {
    shared: Arc<Shared>,
    source: Arc<dyn RulesSource>,
    seen: Option<RulesVersion>,
    /// With the polls before the next attempt.
    mismatched: Option<(RulesVersion, u32)>,
    /// The head, the error to report, and the polls before the next attempt.
    broken_list: Option<(RulesVersion, Result<(), String>, u32)>,
    reporter: Reporter,
}

impl Poller {
    /// A publication can come between the reads of version and document.
    const TRIES: u32 = 3;

    /// Polls between attempts to read a mismatched document.
    const PAUSES: u32 = 10;

    pub(super) fn new(shared: Arc<Shared>, source: Arc<dyn RulesSource>, instance: String) -> Self {
        Self {
            reporter: Reporter::new(Arc::clone(&shared), Arc::clone(&source), instance),
            shared,
            source,
            seen: None,
            mismatched: None,
            broken_list: None,
        }
    }

    pub(super) async fn run(mut self) {
        let source = Arc::clone(&self.source);
        let shared = Arc::clone(&self.shared);
        let _watch = shared.telemetry.watch_for_panic();
        loop {
            let polled = self.poll().await;
            let is_read = polled.is_ok();
            self.shared.read(polled.err().map(|error| error.to_string()));
            if is_read {
                self.reporter.report();
            }
            pause::after_poll(source.changed()).await;
        }
    }

    async fn poll(&mut self) -> Result<(), FleetError> {
        let mut tries = 0;
        loop {
            let state = within(SHORT, self.source.state()).await?;
            // Done first, so that the switch works even if the document cannot be read.
            self.obey(state.controls).await;
            let version = state.version?;
            self.shared.published(version, state.only_rises);
            let Some(version) = version else {
                self.seen = None;
                return Ok(());
            };
            if !self.is_to_be_read(version) {
                return Ok(());
            }
            tries += 1;
            match self.read(version).await {
                Ok(document) => {
                    let shared = Arc::clone(&self.shared);
                    let applied = run_blocking(move || shared.apply(document)).await;
                    self.shared.applied(version, applied);
                }
                Err(error) if !error.kind().is_bad_document() => return Err(error),
                Err(error) if error.kind() == FleetErrorKind::Mismatched => {
                    if tries < Self::TRIES {
                        continue;
                    }
                    self.mismatched = Some((version, Self::PAUSES));
                    self.shared.reject(version, error);
                    return Ok(());
                }
                Err(error) => self.shared.reject(version, error),
            }
            self.seen = Some(version);
            self.mismatched = None;
            return Ok(());
        }
    }

    async fn obey(&mut self, ControlHeads { switch, access }: ControlHeads) {
        let number = |head: &Option<RulesVersion>| head.map(RulesVersion::number);
        let numbers = (switch.as_ref().ok().cloned(), access.as_ref().ok().map(number));
        let refused = self.shared.control(numbers.0, numbers.1).err();
        let listed = match access {
            Ok(head) => self.read_access(head).await,
            Err(error) => Err(error),
        };
        let failures = [switch.err(), refused, listed.err()];
        let mut failures: Vec<_> = failures.into_iter().flatten().collect();
        failures.dedup();
        self.shared.obeyed((!failures.is_empty()).then(|| failures.join("; ")));
    }

    /// Pauses after an unreadable list, to avoid reading 1 MiB per second.
    async fn read_access(&mut self, head: Option<RulesVersion>) -> Result<(), String> {
        let Some(head) = head.filter(|head| self.shared.is_newer_access(head.number())) else {
            self.broken_list = None;
            return Ok(());
        };
        self.shared.check_number("access list", head.number())?;
        if let Some((broken, error, pauses)) = &mut self.broken_list
            && *broken == head
            && *pauses > 0
        {
            *pauses -= 1;
            return error.clone();
        }
        let bytes = within(LONG, self.source.access(head)).await;
        let shared = Arc::clone(&self.shared);
        let listed = match bytes {
            Ok(bytes) => run_blocking(move || parse_access(head, &bytes).map(|list| shared.control_access(list))).await,
            Err(error) => Err(error.to_string()),
        };
        match listed {
            Ok(()) => {
                self.broken_list = None;
                Ok(())
            }
            Err(error) => {
                // The first failure is not reported, because the list may have been replaced between the two reads.
                let is_known = self.broken_list.as_ref().is_some_and(|(broken, ..)| *broken == head);
                let (told, pauses) = if is_known {
                    (Err(error), Self::PAUSES)
                } else {
                    (Ok(()), 0)
                };
                self.broken_list = Some((head, told.clone(), pauses));
                told
            }
        }
    }

    fn is_to_be_read(&mut self, version: RulesVersion) -> bool {
        if self.seen == Some(version) {
            return false;
        }
        if self.shared.status().version == Some(version) {
            self.seen = Some(version);
            self.shared.is_current();
            return false;
        }
        match &mut self.mismatched {
            Some((mismatched, pauses)) if *mismatched == version && *pauses > 0 => {
                *pauses -= 1;
                false
            }
            _ => true,
        }
    }

    async fn read(&self, version: RulesVersion) -> Result<RulesDocument, FleetError> {
        let bytes = within(LONG, self.source.document(version)).await?;
        run_blocking(move || RulesDocument::parse_version(version, &bytes)).await
    }
}
