use ::redis::ConnectionInfo;

use super::super::opener::Opener;

pub(crate) struct Settings {
    /// The user, password and TLS setting of the seeds apply to all nodes.
    pub(crate) seeds: Vec<ConnectionInfo>,
    pub(crate) opener: Opener,
    /// The number of connections per node.
    pub(crate) connections: u32,
}
