use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::{
    keyspace::{Key, Keys},
    net::SharedConnection,
    server::Server,
    shared_calls::SharedCalls,
};
use crate::{lease::LeaseId, partition::PartitionId, sync::mutex::Mutex};

pub(super) struct Engine {
    pub(super) server: Arc<Server>,
    pub(super) jobs: Mutex<Option<mpsc::Sender<Job>>>,
    pub(super) shared_calls: SharedCalls,
}

pub(super) enum Job {
    /// Sent on the connection of the acquiring call, to arrive after it.
    Abandon(LeaseId, Keys, SharedConnection, watch::Receiver<u64>),
    Settle {
        partition: PartitionId,
        key: Key,
    },
}
