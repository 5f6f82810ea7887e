use ::redis::ConnectionInfo;

use super::super::opener::Opener;

pub(crate) struct Settings {
    /// The nodes from which the others are discovered. Their user, password and TLS setting apply to all nodes.
    pub(crate) seeds: Vec<ConnectionInfo>,
    pub(crate) opener: Opener,
    /// Per node.
    pub(crate) connections: u32,
}
