use ::redis::ConnectionInfo;

use super::super::opener::Opener;

pub(crate) struct Settings {
    /// Any nodes, with the user, password and TLS setting of all nodes.
    pub(crate) seeds: Vec<ConnectionInfo>,
    pub(crate) opener: Opener,
    /// Per node.
    pub(crate) connections: u32,
}
