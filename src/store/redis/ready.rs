use std::{error::Error, time::Duration};

use ::redis::{Cmd, InfoDict, Value, cmd, from_redis_value};

use super::{
    engine::Engine,
    keyspace::{Key, Keys},
    net::code,
    script::Call,
};
use crate::{
    clock::Clock,
    decision::{Decision, Plan, Settlement},
    error::{StoreError, StoreErrorKind},
    partition::{PartitionKey, Scope},
    policy::{Algorithm, PolicySet, QuotaPolicy},
    store::StoreReport,
    sync::random,
};

/// Connections beyond this number are not tested, because decisions use them in rotation.
const DECISIONS: u64 = 8;

/// Redis 4 rejects scripts that write after reading the time.
const OLDEST: u32 = 5;

impl Engine {
    pub(super) async fn ready(&self) -> Result<StoreReport, StoreError> {
        let mut report = StoreReport::new();
        let (scope, policies) = (Scope::new("tower-quota ready"), policies());
        // Enough to hit each node of a cluster, which has 16,384 slots.
        let plans = (0..200_000).filter_map(|_| {
            let key = PartitionKey::new("server", random::long_number().to_be_bytes());
            let plan = Plan::new(policies.clone(), scope.partition(&key), 1);
            let key = self.server.keyspace.partition(plan.parts().next()?);
            Some((key, plan))
        });
        for (key, plan) in self.server.topology.one_for_each_server(plans).await? {
            report = self.check_server(&key, plan, report).await?;
        }
        Ok(report)
    }

    async fn check_server(&self, key: &Key, plan: Plan, report: StoreReport) -> Result<StoreReport, StoreError> {
        let report = match self.facts(key).await? {
            Ok(facts) => self.check_facts(&facts, report)?,
            Err(refusal) => report.with_warning(format!(
                "INFO is not permitted ({refusal}); version, role and eviction policy were not checked"
            )),
        };
        self.check_permissions(key).await?;
        let checked = self.check_decisions(&plan).await;
        self.reset(plan).await?;
        match checked {
            Ok(fastest) => Ok(report.with_decision_time(fastest)),
            Err(error) if is_denied(&error) => Err(denial("EVALSHA", error)),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn query(&self, key: &Key, command: &Cmd) -> Result<Value, StoreError> {
        let topology = &self.server.topology;
        let call = Call::query(Keys::from_iter([key.clone()]), topology.routes_by_key(), command);
        topology.send(&call).await?;
        Ok(call.into_value())
    }

    /// Redis before version 7 accepts only one section per call, and some proxies close the connection.
    async fn facts(&self, key: &Key) -> Result<Result<InfoDict, StoreError>, StoreError> {
        let (mut text, is_behind_proxy) = (String::new(), self.server.topology.is_behind_proxy());
        for section in ["server", "memory", "replication"] {
            match self.query(key, cmd("INFO").arg(section)).await {
                Ok(info) => text += &from_redis_value::<String>(info).unwrap_or_default(),
                Err(error) if error.kind() == StoreErrorKind::Failed => return Ok(Err(error)),
                Err(error) if is_behind_proxy && error.kind() == StoreErrorKind::Unreachable => return Ok(Err(error)),
                Err(error) => return Err(error),
            }
        }
        Ok(Ok(InfoDict::new(&text)))
    }

    fn check_facts(&self, facts: &InfoDict, report: StoreReport) -> Result<StoreReport, StoreError> {
        let unworkable = |problem: String| Err(StoreError::new(StoreErrorKind::Failed, problem));
        let fact = |name| facts.get::<String>(name).unwrap_or_default();
        // Compatible servers report a Redis version, too.
        let version = fact("redis_version");
        let major_version = version.split('.').next().and_then(|major| major.parse().ok());
        if major_version.is_some_and(|version: u32| version < OLDEST) {
            return unworkable(format!(
                "server version {version} is not supported; {OLDEST} or newer is required"
            ));
        }
        match &*fact("role") {
            "slave" => {
                return unworkable("the server is a replica; connect to its primary".to_owned());
            }
            "active-replica" => {
                return unworkable(
                    "the server is an active replica; another server decides about the same callers".to_owned(),
                );
            }
            _ => {}
        }
        let topology = &self.server.topology;
        if fact("redis_mode") == "cluster" && !topology.has_own_breakers() && !topology.is_behind_proxy() {
            return unworkable("the server is a node of a cluster; use `RedisStore::cluster`".to_owned());
        }
        Ok(match &*fact("maxmemory_policy") {
            "" | "noeviction" | "volatile-ttl" => report,
            _ if facts.get("maxmemory").unwrap_or(0) == 0 => report,
            policy => report.with_warning(format!(
                "maxmemory-policy is {policy}: counts are evicted when memory is full, so callers get a full quota \
                 again; set noeviction, or volatile-ttl on a shared server"
            )),
        })
    }

    async fn check_permissions(&self, key: &Key) -> Result<(), StoreError> {
        let mut denied = Vec::new();
        let mut cause = None;
        for words in COMMANDS {
            let mut words = words.split(' ');
            let name = words.next().unwrap_or_default();
            // Proxies cannot route a command without a key, and the scripts execute it on the server.
            if name == "TIME" && self.server.topology.is_behind_proxy() {
                continue;
            }
            let mut command = cmd(name);
            for word in words {
                match word {
                    "KEY" => command.arg(&**key),
                    word => command.arg(word),
                };
            }
            match self.query(key, &command).await {
                Ok(_) => {}
                Err(error) if is_denied(&error) && error.to_string().contains("'eval'") => {
                    return Err(denial("EVAL", error));
                }
                Err(error) if is_denied(&error) => {
                    denied.push(name);
                    cause.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        cause.map_or(Ok(()), |cause| Err(denial(&denied.join(", "), cause)))
    }

    /// Each decision must include the charges of the previous ones, on all connections.
    async fn check_decisions(&self, plan: &Plan) -> Result<Duration, StoreError> {
        self.server.topology.opened(DECISIONS as usize).await;
        let mut fastest = Duration::MAX;
        let mut made = MadeDecisions {
            store: self,
            decisions: Vec::new(),
        };
        for number in 1..=DECISIONS {
            let begun = Clock::system().now();
            let decision = self.acquire_unshared(plan.clone()).await?.decide();
            fastest = fastest.min(Duration::from_micros(Clock::system().now().micros_since(begun)));
            let left = decision.allowances().next().map(|day| day.remaining());
            made.decisions.push(decision);
            if left != Some(QUOTA - number) {
                let message = "a decision did not see the previous one: the address leads to several servers with \
                               separate counts, such as read replicas, active-active regions or a proxy in front of a \
                               cluster";
                return Err(StoreError::new(StoreErrorKind::Failed, message));
            }
        }
        // The first request would otherwise have to load the smaller script.
        let bucket = PolicySet::new([bucket()]).expect("the policy is valid");
        let bucket = self.acquire_unshared(Plan::new(bucket, plan.partition(), 1)).await?;
        made.decisions.push(bucket.decide());
        while let Some(decision) = made.decisions.pop() {
            self.settle(Settlement::refund_all(&decision)).await?;
        }
        Ok(fastest)
    }
}

struct MadeDecisions<'a> {
    store: &'a Engine,
    decisions: Vec<Decision>,
}

impl Drop for MadeDecisions<'_> {
    fn drop(&mut self) {
        for decision in self.decisions.drain(..) {
            // The settlement makes progress without being polled.
            drop(self.store.settle(Settlement::refund_all(&decision)));
        }
    }
}

fn is_denied(error: &StoreError) -> bool {
    let error = error.source().and_then(|error| error.downcast_ref());
    error.and_then(code) == Some("NOPERM")
}

fn denial(commands: &str, cause: StoreError) -> StoreError {
    let message = format!("the store's user lacks permission for {commands}");
    StoreError::new(StoreErrorKind::Failed, message).with_source(cause)
}

const QUOTA: u64 = 1_000;

/// Their arguments never create a key, because a user without permission for `DEL` could not delete it.
const COMMANDS: [&str; 15] = [
    "TIME",
    "GET KEY",
    "SET KEY 0 XX",
    "SETRANGE KEY 0 ",
    "DEL KEY",
    "UNLINK KEY",
    "PEXPIRE KEY 1",
    "ZADD KEY XX 1 a",
    "ZCARD KEY",
    "ZCOUNT KEY 0 1",
    "ZRANGE KEY 0 -1",
    "ZRANGEBYSCORE KEY 0 1",
    "ZRANK KEY a",
    "ZREM KEY a",
    "ZREMRANGEBYRANK KEY 0 0",
];

fn bucket() -> QuotaPolicy {
    QuotaPolicy::per_day("token bucket", QUOTA)
}

/// One of each algorithm that admits the whole quota at once. The remaining units of the first policy, the token
/// bucket, show the number of decisions.
fn policies() -> PolicySet {
    let days = Algorithm::EACH.map(|algorithm| {
        let day = QuotaPolicy::per_day("day", QUOTA).with_algorithm(algorithm);
        day.with_name(format!("{algorithm:?}"))
    });
    let days = days.into_iter().filter(|day| day.burst_capacity() == QUOTA);
    PolicySet::new(days.chain([QuotaPolicy::concurrent("slots", QUOTA)])).expect("the policies are valid")
}
