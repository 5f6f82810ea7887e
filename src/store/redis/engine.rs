use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::{
    keyspace::{Key, Keys},
    net::SharedConnection,
    server::Server,
    shared_calls::SharedCalls,
};
use crate::{lease::LeaseId, partition::PartitionId, sync::mutex::Mutex};

/// The state shared by all clones of a store.
pub(super) struct Engine {
    pub(super) server: Arc<Server>,
    /// The queue of the task that settles charges.
    pub(super) jobs: Mutex<Option<mpsc::Sender<Job>>>,
    pub(super) shared_calls: SharedCalls,
}

pub(super) enum Job {
    /// Releases slots that may have been acquired. Sent on the connection of the acquiring call, in order to arrive
    /// after it.
    Abandon(LeaseId, Keys, SharedConnection, watch::Receiver<u64>),
    /// Sends the next settlement of a partition with this key, unless a decision has already sent it.
    Settle { partition: PartitionId, key: Key },
}
