//! An [`Opener`] opens connections, a [`Pool`] keeps some of them open to one endpoint, and the [`Topology`] selects
//! the pool for the key of a call.

mod cluster;
mod connection;
mod failures;
mod generation;
mod loading;
mod opener;
mod pool;
mod process_time;
mod refill;
mod sentinel;
mod stream;
mod switches;
mod topology;
mod wire;

pub(super) use self::{
    cluster::{Cluster, Settings as ClusterSettings},
    connection::{SharedConnection, Unanswered, code, store_error},
    opener::{Connect, Opener, Prepare, config_error, connection_info},
    pool::{Endpoint, Lane, Pool},
    process_time::PROCESS_TIME,
    sentinel::Sentinels,
    stream::TlsSettings,
    topology::{Route, Topology},
};
