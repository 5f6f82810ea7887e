use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    super::{
        keyspace::{Key, Keys},
        scripts::Script,
        server::Server,
    },
    algorithms::{self, gives_back_to_log, mark},
    call::{Arguments, BEFORE_BORDERS, Body, Call},
    charges::{self, Charges, size_of},
    reply::{ExpectedReply, part_width, width},
};
use crate::{
    clock::Timestamp,
    decision::{PartSettlement, Plan},
    lease::LeaseId,
};

impl Call {
    /// Omits trailing arguments: most calls need one.
    pub(crate) fn acquire(server: &Server, plan: &Plan, lease: Option<LeaseId>) -> Self {
        let lease_micros = lease.map_or(0, |_| server.lease_time.as_micros() as u64);
        let (now, parts) = (server.now(), plan.parts().len());
        let mut charges = Charges::with_capacity(plan.policies().count());
        charges.push_plan(plan, lease_micros);
        let keys: Keys = server.keyspace.keys(plan).collect();
        charges.have_keys(&keys);
        let (script, charges, expected) = charges.finish(1 + width(plan));
        let question = charges::question(plan);
        let (has_sizes, has_time) = (parts > 1 || question.is_some(), now.is_some());
        let mut arguments = Arguments::new();
        arguments.push(charges);
        if lease.is_some() || has_time || has_sizes {
            arguments.push(lease.map_or_else(Vec::new, |lease| lease.to_bytes().to_vec()));
        }
        if has_time || has_sizes {
            arguments.push(Vec::new());
            arguments.push(now.map_or_else(Vec::new, decimal));
        }
        if has_sizes {
            arguments.push(plan.parts().map(size_of).collect());
        }
        let script = question.as_ref().map_or(script, |_| Script::Questions);
        arguments.extend(question);
        Self {
            sent_on: lease.map(|_| Arc::default()),
            ..Self::script(server, script, keys, arguments, expected)
        }
    }

    /// Takes the server one or two milliseconds.
    pub(crate) const MOST_WORK: usize = 256;

    pub(crate) fn work(plan: &Plan) -> usize {
        plan.policies().map(algorithms::work).sum()
    }

    /// Lua can unpack about 8,000 numbers.
    pub(crate) fn has_room_for(plan: &Plan) -> bool {
        plan.parts().len() <= 4 && plan.policies().count() <= 16
    }

    pub(crate) fn acquire_each(server: &Server, plans: &[Plan]) -> Self {
        let policies = plans.iter().map(|plan| plan.policies().count());
        let mut charges = Charges::with_capacity(policies.sum());
        let (mut keys, mut sizes) = (Keys::with_capacity(plans.len()), Vec::with_capacity(plans.len()));
        let mut numbers = 1;
        for plan in plans {
            let others = keys.len();
            keys.extend(server.keyspace.keys(plan));
            charges.have_keys(&keys[others..]);
            charges.push_plan(plan, 0);
            sizes.extend(plan.parts().map(size_of));
            numbers += width(plan);
        }
        let (script, charges, expected) = charges.finish(numbers);
        let now = server.now().map_or_else(Vec::new, decimal);
        let parts = plans.iter().map(|plan| plan.parts().len() as u8).collect();
        let arguments = [charges, Vec::new(), Vec::new(), now, sizes, parts];
        Self::script(server, script, keys, SmallVec::from_iter(arguments), expected)
    }

    /// One call per refunded log, because a refund renumbers up to a thousand later entries.
    pub(crate) fn settle(server: &Server, settlement: PartSettlement<'_>) -> impl Iterator<Item = Self> {
        let logs = settlement.adjustments().filter(gives_back_to_log).count();
        (0..logs.max(1)).map(move |log| Self::settle_one_log(server, settlement, log))
    }

    fn settle_one_log(server: &Server, settlement: PartSettlement<'_>, log: usize) -> Self {
        let mut charges = Charges::with_capacity(1);
        let (charged_at, birth) = (settlement.charged_at.now, settlement.birth().map_or(-1.0, f64::from));
        let mut receipt = (charged_at.as_micros() as f64).to_le_bytes().to_vec();
        receipt.extend_from_slice(&birth.to_le_bytes());
        let mut logs = 0;
        for mut adjustment in settlement.adjustments() {
            let number = logs;
            logs += usize::from(gives_back_to_log(&adjustment));
            if (logs == number && log > 0) || (logs > number && number != log) {
                adjustment.delta = 0;
            }
            charges.push_adjustment(&adjustment);
            // Unused for first levels and lockouts, but part of the format.
            if adjustment.policy.newcomer().is_some() {
                receipt.extend_from_slice(&0_f64.to_le_bytes());
            }
            receipt.extend_from_slice(&mark(&adjustment).to_le_bytes());
            if adjustment.policy.lockout().is_some() {
                receipt.extend_from_slice(&0_f64.to_le_bytes());
            }
        }
        let (script, charges, expected) = charges.finish(1 + part_width(settlement.part));
        let lease = settlement.lease.filter(|_| settlement.releases() && log == 0);
        let lease = lease.map_or_else(Vec::new, |lease| lease.to_bytes().to_vec());
        let mut arguments = SmallVec::from_iter([charges, lease, receipt]);
        arguments.extend(server.now().map(decimal));
        Self {
            is_ordered: true,
            ..Self::script(
                server,
                script,
                server.keyspace.part_keys(settlement.part).collect(),
                arguments,
                expected,
            )
        }
    }

    pub(crate) fn renew(server: &Server, key: Key, leases: &[LeaseId]) -> Self {
        let mut renewed: Vec<_> = leases.iter().flat_map(|lease| lease.to_bytes()).collect();
        let expected = ExpectedReply::new(&mut renewed, 0);
        let time = server.lease_time.as_micros().to_string().into_bytes();
        let mut arguments = SmallVec::from_iter([time, renewed]);
        arguments.extend(server.now().map(decimal));
        Self::script(server, Script::Renew, Keys::from_iter([key]), arguments, expected)
    }

    pub(crate) fn release(key: Key, lease: LeaseId) -> Self {
        let mut command = ::redis::cmd("ZREM");
        command.arg(&*key).arg(&lease.to_bytes());
        Self::query(Keys::from_iter([key]), true, &command)
    }

    pub(crate) fn reset(server: &Server, plan: &Plan) -> Self {
        let keys = server.keyspace.windows(plan);
        let mut command = ::redis::cmd("UNLINK");
        for key in &keys {
            command.arg(&**key);
        }
        Self::query(keys, true, &command)
    }

    fn script(server: &Server, script: Script, keys: Keys, mut arguments: Arguments, expected: ExpectedReply) -> Self {
        let mut server_time = None;
        if !expected.calendars.is_empty() {
            arguments.resize(BEFORE_BORDERS, Vec::new());
            arguments.push(expected.calendars.around(server.time.now()));
            server_time = Some(server.time.clone());
        }
        Self {
            server_time,
            ..Self::new(
                keys,
                Body::Script(Arc::clone(&server.texts), script, arguments, expected),
            )
        }
    }
}

fn decimal(now: Timestamp) -> Vec<u8> {
    now.as_micros().to_string().into_bytes()
}
