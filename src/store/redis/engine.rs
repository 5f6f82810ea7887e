//! The state behind a store, and the jobs of its task.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::{
    keyspace::{Key, Keys},
    net::SharedConnection,
    server::Server,
    shared_calls::SharedCalls,
};
use crate::{lease::LeaseId, partition::PartitionId, sync::mutex::Mutex};

/// All that the clones of a store share.
pub(super) struct Engine {
    pub(super) server: Arc<Server>,
    /// The way to the task that settles.
    pub(super) jobs: Mutex<Option<mpsc::Sender<Job>>>,
    pub(super) shared_calls: SharedCalls,
}

/// Something to do that no request waits for.
pub(super) enum Job {
    /// Releases slots that may have been taken, by the name of their lease. It is sent on the connection of the call that
    /// was to take them, so that it arrives behind that call.
    Abandon(LeaseId, Keys, SharedConnection, watch::Receiver<u64>),
    /// Sends the next settlement of a partition, which has this key, unless a decision has sent it meanwhile.
    Settle { partition: PartitionId, key: Key },
}
