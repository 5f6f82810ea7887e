//! The scripts that decide, settle and renew, and their calls.

mod algorithms;
mod calendars;
mod charges;
mod query;
mod reply;
mod text;

use std::{sync::Arc, time::Duration};

use ::redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use smallvec::SmallVec;

use self::{
    algorithms::{gives_back_to_log, mark},
    calendars::unsteady_clock,
    charges::{Charges, size_of},
    reply::{ExpectedReply, part_width, width},
    text::Text,
};
pub(super) use self::{
    calendars::ServerTime,
    reply::{Reply, decode, decode_each},
};
use super::{
    Server,
    keyspace::{Key, Keys},
    net::{SharedConnection, Unanswered},
    scripts,
};
use crate::{
    clock::Timestamp,
    decision::{PartSettlement, Plan},
    lease::LeaseId,
    sync::mutex::Mutex,
};

/// The number of arguments before the borders of calendars.
const BEFORE_BORDERS: usize = 6;

/// A script. All that decide make the same decision; they differ in what they cost the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    /// Decides and settles where all policies are buckets whose levels are narrow.
    Buckets,
    /// Decides and settles everything.
    EveryAlgorithm,
    /// Decides plans of which a part or nothing is charged.
    Questions,
    Renew,
}

impl Script {
    pub(super) const COUNT: usize = 4;

    /// The texts of all scripts where keys live on for this time at most.
    pub(super) fn texts(expiry_jitter: Duration) -> Texts {
        let jitter = expiry_jitter.as_millis() as u64;
        let sources = [
            scripts::buckets(),
            scripts::every_algorithm(),
            scripts::questions(),
            scripts::renew(),
        ];
        Arc::new(sources.map(|source| Text::new(scripts::with_expiry_jitter(&source, jitter))))
    }
}

/// By their number.
pub(super) type Texts = Arc<[Text; Script::COUNT]>;

/// One call of a script, or a command. All its keys are on one server.
pub(super) struct Call {
    keys: Keys,
    body: Body,
    /// Kept by a call that takes slots.
    pub(super) sent_on: Option<Arc<SentOn>>,
    /// True if the server must carry out later calls on the same connection later, also those by another script.
    is_ordered: bool,
    /// For a call that brings borders of calendars.
    server_time: Option<ServerTime>,
}

/// The connection that a call was last sent on, if any: what is sent on it later arrives later.
pub(super) type SentOn = Mutex<Option<SharedConnection>>;

/// Most often one.
type Arguments = SmallVec<[Vec<u8>; 1]>;

enum Body {
    Script(Texts, Script, Arguments, ExpectedReply),
    /// Its reply is an integer.
    Command(Cmd),
    /// Its reply is anything, and is kept here.
    Query(Cmd, Mutex<Value>),
}

impl Call {
    /// Decides a plan. Arguments that are not needed are not sent: most calls have one key and one argument.
    pub(super) fn acquire(server: &Server, plan: &Plan, lease: Option<LeaseId>) -> Self {
        let lease_micros = lease.map_or(0, |_| server.lease_time.as_micros() as u64);
        let (now, parts) = (server.now(), plan.parts().len());
        let mut charges = Charges::with_capacity(plan.policies().count());
        charges.push_plan(plan, lease_micros);
        let keys = server.keyspace.keys(plan);
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

    /// The most [work](Self::work) of a call that several decisions share: a millisecond or two of the server.
    pub(super) const MOST_WORK: usize = 256;

    /// The work of a plan for the server, in the time for one bucket. A log that rejects is searched.
    pub(super) fn work(plan: &Plan) -> usize {
        plan.policies().map(algorithms::work).sum()
    }

    /// Returns `true` if a plan is small enough for a call with others: the script has room for 8 000 numbers.
    pub(super) fn has_room_for(plan: &Plan) -> bool {
        plan.parts().len() <= 4 && plan.policies().count() <= 16
    }

    /// Decides plans one after the other, each as if it were alone.
    pub(super) fn acquire_each(server: &Server, plans: &[Plan]) -> Self {
        let policies = plans.iter().map(|plan| plan.policies().count());
        let mut charges = Charges::with_capacity(policies.sum());
        let (mut keys, mut sizes) = (Keys::with_capacity(plans.len()), Vec::with_capacity(plans.len()));
        let mut numbers = 1;
        for plan in plans {
            let others = keys.len();
            server.keyspace.push_keys(plan, &mut keys);
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

    /// Settles the charge of a decision to one partition, in a call for each log that gets units back: the entries that came
    /// later are renumbered, up to a thousand of them.
    pub(super) fn settle(server: &Server, settlement: PartSettlement<'_>) -> impl Iterator<Item = Self> {
        let logs = settlement.adjustments().filter(gives_back_to_log).count();
        (0..logs.max(1)).map(move |log| Self::settle_one_log(server, settlement, log))
    }

    /// Settles everything else together with the first log.
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
            receipt.extend_from_slice(&mark(&adjustment).to_le_bytes());
            if adjustment.policy.lockout().is_some() {
                // A lockout needs none, but has its place.
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
                server.keyspace.part_keys(settlement.part),
                arguments,
                expected,
            )
        }
    }

    /// Renews leases of one key.
    pub(super) fn renew(server: &Server, key: Key, leases: &[LeaseId]) -> Self {
        let mut renewed: Vec<_> = leases.iter().flat_map(|lease| lease.to_bytes()).collect();
        let expected = ExpectedReply::new(&mut renewed, 0);
        let time = server.lease_time.as_micros().to_string().into_bytes();
        let mut arguments = SmallVec::from_iter([time, renewed]);
        arguments.extend(server.now().map(decimal));
        Self::script(server, Script::Renew, Keys::from_iter([key]), arguments, expected)
    }

    /// Removes a lease from the holders of slots.
    pub(super) fn release(key: Key, lease: LeaseId) -> Self {
        let mut command = ::redis::cmd("ZREM");
        command.arg(&*key).arg(&lease.to_bytes());
        Self::new(Keys::from_iter([key]), Body::Command(command))
    }

    /// Resets a plan's partitions.
    pub(super) fn reset(server: &Server, plan: &Plan) -> Self {
        let keys = server.keyspace.windows(plan);
        let mut command = ::redis::cmd("UNLINK");
        for key in &keys {
            command.arg(&**key);
        }
        Self::new(keys, Body::Command(command))
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

    fn new(keys: Keys, body: Body) -> Self {
        Self {
            keys,
            body,
            sent_on: None,
            is_ordered: false,
            server_time: None,
        }
    }

    /// One of its keys: all are on the same server.
    pub(super) fn key(&self) -> &Key {
        &self.keys[0]
    }

    /// A reply that is not this call's ends the connection.
    pub(super) async fn send(&self, connection: &mut SharedConnection) -> Result<Reply, Unanswered> {
        if let Some(sent_on) = &self.sent_on {
            *sent_on.lock() = Some(connection.clone());
        }
        let reply = match &self.body {
            Body::Command(command) => match connection.send(command).await? {
                Value::Int(_) => Some(Reply::default()),
                _ => None,
            },
            Body::Query(command, reply) => {
                *reply.lock() = connection.send(command).await?;
                Some(Reply::default())
            }
            Body::Script(texts, script, arguments, expected) => {
                let reply = expected.read(self.run(texts, *script, arguments, connection).await?);
                match reply.as_ref().and_then(|reply| self.time_without_borders(reply)) {
                    Some(time) => Box::pin(self.run_by(time, connection)).await?,
                    None => reply,
                }
            }
        };
        reply.ok_or_else(|| Unanswered::Failed(connection.mismatched()))
    }

    /// The time of a server that has done nothing because it is in none of the windows that the call has brought.
    fn time_without_borders(&self, reply: &Reply) -> Option<Timestamp> {
        self.server_time.as_ref().and_then(|_| reply.only_time())
    }

    /// Calls the script again with the borders around the time of the server.
    async fn run_by(
        &self,
        mut time: Timestamp,
        connection: &mut SharedConnection,
    ) -> Result<Option<Reply>, Unanswered> {
        // The first one is enough unless the clock jumps.
        const TRIES: u32 = 2;
        let (Body::Script(texts, script, arguments, expected), Some(server_time)) = (&self.body, &self.server_time)
        else {
            return Ok(None);
        };
        let mut arguments = arguments.clone();
        for _ in 0..TRIES {
            server_time.learn(time);
            arguments[BEFORE_BORDERS] = expected.calendars.around(time);
            let reply = expected.read(self.run(texts, *script, &arguments, connection).await?);
            match reply.as_ref().and_then(Reply::only_time) {
                Some(other) => time = other,
                None => return Ok(reply),
            }
        }
        Err(Unanswered::Failed(unsteady_clock(time)))
    }

    /// Calls the script by its hash, or in full where the server does not know it, and so has run nothing.
    async fn run(
        &self,
        texts: &Texts,
        script: Script,
        arguments: &[Vec<u8>],
        connection: &mut SharedConnection,
    ) -> Result<Value, Unanswered> {
        // The second time, another call has just sent it in full.
        const TRIES: u32 = 3;
        let Text { source, hash } = &texts[script as usize];
        if self.is_ordered && connection.loading(script).is_to_be_sent() {
            return connection.send(&self.eval("EVAL", source, arguments)).await;
        }
        let mut tries = 0;
        loop {
            let seen = connection.loading(script).count();
            match connection.send(&self.eval("EVALSHA", hash, arguments)).await {
                Err(Unanswered::Failed(error)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {}
                reply => {
                    connection.loading(script).known();
                    return reply;
                }
            }
            tries += 1;
            let other = connection.clone();
            if let Some(permit) = other.loading(script).begin(seen, tries == TRIES).await {
                let reply = connection.send(&self.eval("EVAL", source, arguments)).await;
                permit.loaded();
                return reply;
            }
        }
    }

    fn eval(&self, verb: &str, script: &str, arguments: &[Vec<u8>]) -> Cmd {
        let mut command = ::redis::cmd(verb);
        command.arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(&**key);
        }
        for argument in arguments {
            command.arg(argument.as_slice());
        }
        command
    }
}

fn decimal(now: Timestamp) -> Vec<u8> {
    now.as_micros().to_string().into_bytes()
}
