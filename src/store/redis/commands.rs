//! Plain commands to the servers of a store, by connections of their own.

use ::redis::{Cmd, Value};

use super::{RedisStoreBuilder, keyspace::Key, net::Topology, ready::code_of, script::Call};
use crate::error::{ConfigError, StoreError};

/// Sends commands that are not about quota.
pub(crate) struct Commands {
    topology: Topology,
    key_prefix: String,
}

impl Commands {
    pub(super) fn new(topology: Topology, key_prefix: String) -> Self {
        Self { topology, key_prefix }
    }

    pub(crate) fn key_prefix(&self) -> &str {
        &self.key_prefix
    }

    /// Returns `true` if the ACL of the server forbids the command or one of its keys.
    pub(crate) fn forbids(error: &StoreError) -> bool {
        code_of(error) == Some("NOPERM")
    }

    /// Sends a command whose keys are all in the slot of this one.
    pub(crate) async fn send(&self, key: &str, command: Cmd) -> Result<Value, StoreError> {
        let call = Call::query(Key::from_slice(key.as_bytes()), command);
        self.topology.send(&call).await?;
        Ok(call.into_value())
    }
}

impl RedisStoreBuilder {
    /// One connection to these servers, or to each node of a cluster, beside those of a store.
    pub(crate) fn commands(self) -> Result<Commands, ConfigError> {
        self.connections(1).build_commands()
    }
}
