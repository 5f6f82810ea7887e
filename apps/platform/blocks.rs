//! Blocks of clients by administrators, with optional expiry.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, interval};
use tower_quota::{Access, AccessList, AccessRules, ConfigError, PartitionKey, ToPartitionKey};

use super::{
    admin::{Admin, Failure, unprocessable},
    users::User,
};

/// `{"user": "mallory"}` or `{"network": "203.0.113.0/24"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Client {
    Network(String),
    User(String),
}

impl Client {
    fn block(&self, rules: &mut AccessRules) -> Result<(), ConfigError> {
        match self {
            Self::Network(network) => rules.set_network(network, Access::Block),
            Self::User(id) => rules.set_key(User(id.clone()).to_partition_key(), Access::Block),
        }
    }

    fn unblock(&self, rules: &mut AccessRules) -> Result<bool, ConfigError> {
        match self {
            Self::Network(network) => rules.remove_network(network),
            Self::User(id) => Ok(rules.remove_key(&User(id.clone()).to_partition_key())),
        }
    }

    /// A network can have several notations.
    fn is(&self, other: &Self) -> bool {
        let mut one = AccessRules::new();
        self.block(&mut one).is_ok() && other.unblock(&mut one).is_ok_and(|was_there| was_there)
    }
}

/// The access list of the layer, with expiry times, which the list itself does not support.
#[derive(Clone)]
pub(crate) struct Blocks {
    access: AccessList,
    blocked: Arc<Mutex<Vec<Blocked>>>,
}

struct Blocked {
    client: Client,
    /// `None` for a block without expiry, which an administrator must end.
    until: Option<Instant>,
}

impl Blocks {
    pub(crate) fn new(access: AccessList) -> Self {
        let blocked = Arc::default();
        Self { access, blocked }
    }

    /// Replaces an earlier block of the same client.
    pub(crate) fn add(&self, client: Client, time: Option<Duration>) -> Result<(), ConfigError> {
        let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        self.access.update(|rules| client.block(rules))?;
        blocked.retain(|other| !client.is(&other.client));
        let until = time.map(|time| Instant::now() + time);
        blocked.push(Blocked { client, until });
        Ok(())
    }

    /// Returns `false` if the client was not blocked.
    pub(crate) fn end(&self, client: &Client) -> Result<bool, ConfigError> {
        let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        let was_blocked = self.access.update(|rules| client.unblock(rules))?;
        blocked.retain(|other| !client.is(&other.client));
        Ok(was_blocked)
    }

    /// Removes expired blocks once per second.
    pub(crate) async fn watch(self) {
        let mut interval = interval(Duration::from_secs(1));
        loop {
            interval.tick().await;
            self.end_those_that_are_over(Instant::now());
        }
    }

    fn end_those_that_are_over(&self, now: Instant) {
        let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |blocked: &mut Blocked| blocked.until.is_some_and(|until| until <= now);
        let over: Vec<_> = blocked.extract_if(.., is_over).collect();
        if over.is_empty() {
            return;
        }
        let ended = self.access.update(|rules| {
            let ended = over.iter().map(|blocked| blocked.client.unblock(rules));
            ended.collect::<Result<Vec<_>, _>>()
        });
        match ended {
            Ok(ended) => tracing::info!("{} blocks of clients are over", ended.len()),
            Err(error) => tracing::error!(%error, "blocks that are over could not be ended"),
        }
    }

    /// Returns `true` if this instance blocks the address or the key.
    pub(crate) fn is_blocked(&self, address: Option<IpAddr>, key: &PartitionKey) -> bool {
        is_blocked(&self.access.rules(), address, key)
    }

    /// Returns `true` if the fleet blocks the address or the key.
    pub(crate) fn is_blocked_by_fleet(&self, address: Option<IpAddr>, key: &PartitionKey) -> bool {
        is_blocked(&self.access.overlay_rules(), address, key)
    }

    pub(crate) fn to_json(&self) -> Value {
        let now = Instant::now();
        let blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        let blocked = blocked.iter().map(|Blocked { client, until }| {
            let left = until.map(|until| until.saturating_duration_since(now).as_secs_f64().ceil() as u64);
            json!({ "client": client, "seconds": left })
        });
        blocked.collect()
    }
}

fn is_blocked(rules: &AccessRules, address: Option<IpAddr>, key: &PartitionKey) -> bool {
    rules.access(address, Some(key)) == Access::Block
}

/// `{"user": "mallory", "seconds": 3600}`. Without `seconds`, the block does not expire.
#[derive(Deserialize)]
pub(crate) struct Block {
    #[serde(flatten)]
    pub(crate) client: Client,
    seconds: Option<u64>,
}

/// The longest expiry: a year.
const MAX_SECONDS: u64 = 31_536_000;

impl Block {
    /// Returns the time after which the block expires, if it does.
    pub(crate) fn time(&self) -> Result<Option<Duration>, Failure> {
        let is_outside = |seconds| !(1..=MAX_SECONDS).contains(&seconds);
        if self.seconds.is_some_and(is_outside) {
            let message = format_args!("seconds: they are outside 1..={MAX_SECONDS}");
            return Err(unprocessable(message));
        }
        Ok(self.seconds.map(Duration::from_secs))
    }
}

pub(crate) async fn block(State(admin): State<Admin>, Json(block): Json<Block>) -> Result<StatusCode, Failure> {
    let time = block.time()?;
    admin.blocks.add(block.client, time).map_err(unprocessable)?;
    tracing::info!(
        seconds = time.map(|time| time.as_secs()),
        "an administrator has blocked a client"
    );
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn unblock(State(admin): State<Admin>, Json(client): Json<Client>) -> Result<StatusCode, Failure> {
    match admin.blocks.end(&client).map_err(unprocessable)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Ok(StatusCode::NOT_FOUND),
    }
}
