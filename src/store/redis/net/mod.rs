//! The network side of a store: from URLs to the reply of a call.
//!
//! An [`Opener`] opens connections, a [`Pool`] keeps a few of them to one endpoint, and the [`Topology`] says which pool
//! has the key of a call.

mod cluster;
mod connection;
mod failures;
mod generation;
mod info;
mod loading;
mod opener;
mod pool;
mod refill;
mod sentinel;
mod stream;
mod topology;
mod wire;

pub(super) use self::{
    cluster::{Cluster, Settings as ClusterSettings},
    connection::{SharedConnection, Unanswered, code, store_error},
    info::ServerFacts,
    opener::{Connect, Opener, Prepare, config_error, connection_info},
    pool::{Endpoint, Lane, Pool},
    sentinel::Sentinels,
    stream::TlsSettings,
    topology::{Route, Topology},
    wire::BUSY_SERVER,
};
