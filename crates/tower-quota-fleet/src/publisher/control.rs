use super::{CHANGES, RulesPublisher, conflict, json};
use crate::{
    Change, Control, Controls, FleetError, FleetErrorKind, InstanceReport, RulesVersion, SwitchOrder,
    blocking::run_blocking,
    controls::{ControlKind, ControlledAccess, access_json, parse_access},
    document::check_text,
    redis_rules::version_of,
};
use tower_quota::{
    StoreError,
    redis::{Cmd, cmd},
};

const CONTROL: &str = include_str!("control.lua");

/// Each retry means that another publisher has made a change.
const ATTEMPTS: usize = 100;

struct CurrentControls {
    controls: Controls,
    switch: Vec<u8>,
    access_head: Vec<u8>,
}

impl RulesPublisher {
    /// Returns the last order of the kill switch, and the access list or its
    /// [`access_problem`](Controls::access_problem).
    pub async fn controls(&self) -> Result<Controls, FleetError> {
        Ok(self.read_controls().await?.controls)
    }

    /// Changes the kill switch or the access list of all instances, and returns both. Concurrent changes are kept.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis does not answer or forbids the change, the entry is invalid or not listed, or the
    /// access list is [unreadable](FleetErrorKind::UnreadableAccess).
    pub async fn control(&self, control: Control) -> Result<Controls, FleetError> {
        check_text("author", &self.author)?;
        check_text("reason", &control.reason)?;
        let mut attempts = 1;
        loop {
            let current = self.read_controls().await?;
            let controls = &current.controls;
            if let (Some(problem), ControlKind::Access, false) = (&controls.problem, control.kind(), control.clears()) {
                return Err(FleetError::new(FleetErrorKind::UnreadableAccess, problem.clone()));
            }
            let now = self.now_millis().await?;
            let seen = self.newest_obeyed(control.kind(), now).await;
            let after = control.apply(controls, &self.author, now, seen)?;
            let change = Change::new(now / 1_000, &self.author, &control.reason, None, &control.text(&after));
            let (write, value) = self.control_script(&control, &current, &after, &change)?;
            match self.send_twice(&write).await? {
                Some(found) if found == value.as_bytes() => return Ok(after),
                _ if attempts == ATTEMPTS => return Err(conflict(None, None)),
                _ => attempts += 1,
            }
        }
    }

    /// The largest number of an instance, which Redis may have lost. Ignores numbers far ahead of the server's time.
    async fn newest_obeyed(&self, kind: ControlKind, now: u64) -> u64 {
        let reports = self.reports().await;
        let numbers = reports.iter().filter_map(InstanceReport::controls);
        let numbers = numbers.map(|(switch, access)| match kind {
            ControlKind::Switch => switch,
            ControlKind::Access => access,
        });
        numbers
            .filter(|number| *number <= now + SwitchOrder::FAR)
            .max()
            .unwrap_or(0)
    }

    fn control_script(
        &self,
        control: &Control,
        replaced: &CurrentControls,
        after: &Controls,
        change: &Change,
    ) -> Result<(Cmd, String), FleetError> {
        let (keys, change) = (self.rules.keys(), json(change)?);
        let mut write = cmd("EVAL");
        write.arg(CONTROL);
        let value = match control.kind() {
            ControlKind::Switch => {
                let value = json(&after.switch)?;
                write.arg(2).arg(&[&keys.changes, &keys.switch]);
                write.arg(&replaced.switch).arg(&value).arg(change).arg(CHANGES);
                value
            }
            ControlKind::Access => {
                let list = access_json(after.access())?;
                let value = RulesVersion::of(after.access_number(), list.as_bytes()).to_string();
                write.arg(3).arg(&[&keys.changes, &keys.access_head, &keys.access]);
                write.arg(&replaced.access_head).arg(&value).arg(change).arg(CHANGES);
                write.arg(list);
                value
            }
        };
        Ok((write, value))
    }

    async fn read_access(&self, head: RulesVersion) -> Result<Result<ControlledAccess, String>, StoreError> {
        let bytes = self.in_time(self.rules.read_access()).await?;
        Ok(run_blocking(move || parse_access(head, &bytes)).await)
    }

    async fn read_controls(&self) -> Result<CurrentControls, StoreError> {
        let (keys, mut tries) = (self.rules.keys(), 1);
        loop {
            let [switch, access_head] = self.values([&keys.switch, &keys.access_head]).await?;
            let order = switch.as_deref().and_then(|switch| SwitchOrder::parse(switch).ok());
            let mut controls = Controls {
                switch: order,
                ..Controls::default()
            };
            let head = access_head
                .as_deref()
                .map(|head| version_of(head).ok_or("malformed head"));
            match head.transpose() {
                Ok(None) => {}
                Ok(Some(head)) => match self.read_access(head).await? {
                    Ok(list) => controls.access = list,
                    // The list may have been replaced between the two reads.
                    Err(_) if tries < 3 => {
                        tries += 1;
                        continue;
                    }
                    Err(problem) => {
                        controls.access.number = head.number();
                        controls.problem = Some(problem);
                    }
                },
                Err(problem) => controls.problem = Some(format!("access list: {problem}")),
            }
            return Ok(CurrentControls {
                controls,
                switch: switch.unwrap_or_default(),
                access_head: access_head.unwrap_or_default(),
            });
        }
    }
}
