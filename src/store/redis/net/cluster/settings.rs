//! The settings of a cluster.

use ::redis::ConnectionInfo;

use super::super::opener::Opener;

/// Settings of a cluster's connections.
pub(crate) struct Settings {
    /// Addresses of any nodes, with user, password and TLS of all nodes.
    pub(crate) seeds: Vec<ConnectionInfo>,
    pub(crate) opener: Opener,
    /// To each node.
    pub(crate) connections: u32,
}
