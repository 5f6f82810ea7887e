//! Finds the primary. The sentinel client of redis 1.8.1 queries roles on separate connections with other settings, and
//! the sentinels one after another.

use std::{collections::HashMap, sync::Arc};

use ::redis::{ConnectionInfo, ErrorKind, RedisError, Value, from_redis_value};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    connection::code,
    generation::{Heard, Named},
    opener::{OpenConnection, Opener, at},
};

pub(crate) struct Sentinels {
    pub(crate) sentinels: Vec<ConnectionInfo>,
    pub(crate) service: String,
    pub(crate) primary: ConnectionInfo,
}

enum Step {
    Named(Result<Named, RedisError>),
    Connected(usize, Result<OpenConnection, RedisError>),
}

#[derive(Default)]
struct Candidates(Vec<Named>);

struct Ready {
    connection: OpenConnection,
    candidate: usize,
    until: Instant,
}

impl Candidates {
    /// Returns the index of a candidate to try. An address with an older epoch comes from a sentinel that has missed
    /// the last failover.
    fn add(&mut self, named: Named) -> Option<usize> {
        if self.0.iter().any(|other| other.epoch > named.epoch) {
            return None;
        }
        if let Some(known) = self.0.iter_mut().find(|known| known.address == named.address) {
            known.epoch = named.epoch;
            return None;
        }
        self.0.push(named);
        Some(self.0.len() - 1)
    }

    fn is_newest(&self, number: usize) -> bool {
        self.0.iter().all(|other| other.epoch <= self.0[number].epoch)
    }
}

impl Sentinels {
    /// Once a connection is open, the remaining sentinels have this part of the timeout.
    const OTHERS: u32 = 10;

    pub(crate) async fn connect(self: &Arc<Self>, opener: &Opener) -> Result<(OpenConnection, Named), RedisError> {
        let end = Instant::now() + opener.timeout;
        let mut steps = JoinSet::new();
        for sentinel in 0..self.sentinels.len() {
            let (this, opener) = (Arc::clone(self), opener.clone());
            steps.spawn(async move { Step::Named(this.ask(sentinel, &opener).await) });
        }
        let (mut unheard, mut candidates) = (self.sentinels.len(), Candidates::default());
        let mut ready: Option<Ready> = None;
        let mut last = RedisError::from((ErrorKind::Io, "no primary found within the timeout"));
        while unheard > 0 || ready.is_none() {
            let until = ready.as_ref().map_or(end, |ready| ready.until.min(end));
            let Ok(Some(step)) = timeout_at(until, steps.join_next()).await else {
                break;
            };
            unheard -= usize::from(matches!(step, Ok(Step::Named(_))));
            match step {
                Ok(Step::Named(Ok(named))) => {
                    if let Some(number) = candidates.add(named) {
                        let (this, opener) = (Arc::clone(self), opener.clone());
                        let address = candidates.0[number].address.clone();
                        steps.spawn(async move { Step::Connected(number, this.connect_to(address, &opener).await) });
                    }
                    ready = ready.filter(|ready| candidates.is_newest(ready.candidate));
                }
                Ok(Step::Connected(candidate, Ok(connection))) => {
                    if ready.is_none() && candidates.is_newest(candidate) {
                        let until = Instant::now() + opener.timeout / Self::OTHERS;
                        ready = Some(Ready {
                            connection,
                            candidate,
                            until,
                        });
                    }
                }
                Ok(Step::Named(Err(error)) | Step::Connected(_, Err(error))) => last = error,
                Err(_) => {}
            }
        }
        let Ready {
            connection, candidate, ..
        } = ready.ok_or(last)?;
        Ok((connection, candidates.0.swap_remove(candidate)))
    }

    pub(super) async fn listen(
        &self,
        sentinel: usize,
        opener: &Opener,
        hear: impl Fn(&Named, Heard),
    ) -> Result<(), RedisError> {
        let mut switches = opener
            .subscribe(self.sentinels[sentinel].clone(), "+switch-master")
            .await?;
        // There may have been a failover before the subscription.
        hear(&self.ask(sentinel, opener).await?, Heard::First);
        // The name of the service, the old address and the new one.
        while let Some(switch) = switches.next().await {
            if switch.split(' ').next() == Some(&self.service) {
                hear(&self.ask(sentinel, opener).await?, Heard::Switch);
            }
        }
        Ok(())
    }

    async fn ask(&self, sentinel: usize, opener: &Opener) -> Result<Named, RedisError> {
        let mut connection = opener.by_itself(self.sentinels[sentinel].clone()).await?;
        let command = |name: &str| {
            let mut command = ::redis::cmd("SENTINEL");
            command.arg(name).arg(&self.service);
            command
        };
        // The epoch is read first: after a failover in between, the address is newer, but never older.
        let epoch = connection.send(&command("MASTER")).await.map_or(0, epoch);
        let address = connection.send(&command("GET-MASTER-ADDR-BY-NAME")).await?;
        let address: Option<(String, u16)> = from_redis_value(address)?;
        let unknown = || {
            let message = "service unknown to a sentinel";
            RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, message, self.service.clone()))
        };
        let address = address.ok_or_else(unknown)?;
        Ok(Named { address, epoch })
    }

    /// Checks the role, because a sentinel may have missed a failover.
    async fn connect_to(&self, address: (String, u16), opener: &Opener) -> Result<OpenConnection, RedisError> {
        let primary = self.primary.clone();
        let address = at(primary.addr(), address);
        let mut connection = opener.open(primary.set_addr(address)).await?;
        match connection.send(&::redis::cmd("ROLE")).await {
            Ok(Value::Array(role)) if is_primary(&role) => Ok(connection),
            // Without permission for `ROLE`, a replica is detected by `READONLY`.
            Err(error) if code(&error) == Some("NOPERM") => Ok(connection),
            Ok(_) => Err((ErrorKind::Io, "a sentinel reported a replica").into()),
            Err(error) => Err(error),
        }
    }
}

/// 0 for a user without permission. Failovers are still followed.
fn epoch(master: Value) -> u64 {
    let fields: HashMap<String, String> = from_redis_value(master).unwrap_or_default();
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok());
    epoch.unwrap_or_default()
}

fn is_primary(role: &[Value]) -> bool {
    match role.first() {
        Some(Value::BulkString(role)) => role == b"master",
        Some(Value::SimpleString(role)) => role == "master",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::generation::named, *};

    #[test]
    fn each_address_is_tried_once_and_only_while_no_sentinel_knows_of_a_newer_one() {
        let mut candidates = Candidates::default();
        assert_eq!(candidates.add(named("old", 1)), Some(0));
        assert_eq!(candidates.add(named("old", 1)), None);
        assert!(candidates.is_newest(0));
        assert_eq!(candidates.add(named("new", 2)), Some(1));
        assert!(!candidates.is_newest(0) && candidates.is_newest(1));
        assert_eq!(candidates.add(named("other", 1)), None);
        assert_eq!(candidates.add(named("new", 3)), None);
        assert!(candidates.is_newest(1));
        assert_eq!(candidates.add(named("other", 4)), Some(2));
        assert!(!candidates.is_newest(1) && candidates.is_newest(2));
    }

    #[test]
    fn without_epochs_each_address_is_tried() {
        let mut candidates = Candidates::default();
        assert_eq!(candidates.add(named("one", 0)), Some(0));
        assert_eq!(candidates.add(named("two", 0)), Some(1));
        assert!(candidates.is_newest(0) && candidates.is_newest(1));
    }

    #[test]
    fn the_epoch_is_read_from_both_forms_of_a_reply_and_is_0_where_there_is_none() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let flat = Value::Array(vec![text("name"), text("limits"), text("config-epoch"), text("7")]);
        let map = Value::Map(vec![(text("config-epoch"), text("8"))]);
        assert_eq!((epoch(flat), epoch(map)), (7, 8));
        for none in [
            Value::Nil,
            Value::Okay,
            Value::Array(vec![text("config-epoch")]),
            text("-1"),
        ] {
            assert_eq!(epoch(none), 0);
        }
        let negative = Value::Map(vec![(text("config-epoch"), text("-1"))]);
        assert_eq!(epoch(negative), 0);
    }
}
