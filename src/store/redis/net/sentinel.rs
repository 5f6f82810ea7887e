//! The primary that sentinels name.
//!
//! The `redis` crate has a client for sentinels, too. This crate does not use it (November 2026, redis 1.8.1): it asks for
//! the role of a server on a connection of its own settings, which it then drops, and asks one sentinel after the other.

use std::sync::Arc;

use ::redis::{ConnectionInfo, ErrorKind, RedisError, Value, from_redis_value};
use tokio::{task::JoinSet, time::timeout};

use super::{
    connection::code,
    opener::{OpenConnection, Opener, at},
};

/// The sentinels of one service.
pub(crate) struct Sentinels {
    pub(crate) sentinels: Vec<ConnectionInfo>,
    /// The name that the sentinels have for the primary and its replicas.
    pub(crate) service: String,
    /// The user, password and TLS of the primary; a sentinel names its address.
    pub(crate) primary: ConnectionInfo,
}

/// The result of one of the attempts that run at the same time.
enum Step {
    /// A sentinel has named an address.
    Named(Result<(String, u16), RedisError>),
    /// The server there was asked whether it is the primary.
    Connected(Result<OpenConnection, RedisError>),
}

impl Sentinels {
    /// A connection to the primary. All sentinels are asked at the same time, and each address that one of them names is
    /// tried once: one that is down, slow or does not know of a fail-over yet keeps no call waiting.
    pub(crate) async fn connect(self: &Arc<Self>, opener: &Opener) -> Result<OpenConnection, RedisError> {
        let connecting = self.ask_and_connect(opener);
        let too_late = |_| {
            let message = "no connection to a primary could be opened in time";
            Err((ErrorKind::Io, message).into())
        };
        timeout(opener.timeout, connecting).await.unwrap_or_else(too_late)
    }

    async fn ask_and_connect(self: &Arc<Self>, opener: &Opener) -> Result<OpenConnection, RedisError> {
        let mut steps = JoinSet::new();
        for sentinel in 0..self.sentinels.len() {
            let (this, opener) = (Arc::clone(self), opener.clone());
            steps.spawn(async move { Step::Named(this.ask(sentinel, &opener).await) });
        }
        let mut tried = Vec::new();
        let mut last = RedisError::from((ErrorKind::Io, "no sentinel has answered"));
        while let Some(step) = steps.join_next().await {
            match step {
                Ok(Step::Connected(Ok(connection))) => return Ok(connection),
                Ok(Step::Named(Ok(address))) if tried.contains(&address) => {}
                Ok(Step::Named(Ok(address))) => {
                    tried.push(address.clone());
                    let (this, opener) = (Arc::clone(self), opener.clone());
                    steps.spawn(async move { Step::Connected(this.connect_to(address, &opener).await) });
                }
                Ok(Step::Named(Err(error)) | Step::Connected(Err(error))) => last = error,
                // A task that has panicked has nothing to say.
                Err(_) => {}
            }
        }
        Err(last)
    }

    async fn ask(&self, sentinel: usize, opener: &Opener) -> Result<(String, u16), RedisError> {
        let mut connection = opener.by_itself(self.sentinels[sentinel].clone()).await?;
        let mut command = ::redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let address: Option<(String, u16)> = from_redis_value(connection.send(&command).await?)?;
        let unknown = || {
            let message = "a sentinel does not know the service";
            RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, message, self.service.clone()))
        };
        address.ok_or_else(unknown)
    }

    /// A sentinel may not have heard of a fail-over yet, so the server itself has to say what it is.
    async fn connect_to(&self, address: (String, u16), opener: &Opener) -> Result<OpenConnection, RedisError> {
        let primary = self.primary.clone();
        let address = at(primary.addr(), address);
        let mut connection = opener.open(primary.set_addr(address)).await?;
        match connection.send(&::redis::cmd("ROLE")).await {
            Ok(Value::Array(role)) if is_primary(&role) => Ok(connection),
            // Who may not ask finds out by READONLY.
            Err(error) if code(&error) == Some("NOPERM") => Ok(connection),
            Ok(_) => Err((ErrorKind::Io, "what a sentinel called the primary is a replica").into()),
            Err(error) => Err(error),
        }
    }
}

fn is_primary(role: &[Value]) -> bool {
    match role.first() {
        Some(Value::BulkString(role)) => role == b"master",
        Some(Value::SimpleString(role)) => role == "master",
        _ => false,
    }
}
