use ::redis::ConnectionInfo;

use super::super::opener::Opener;

pub(crate) struct Settings {
    pub(crate) seeds: Vec<ConnectionInfo>,
    pub(crate) opener: Opener,
    /// Per node.
    pub(crate) connections: u32,
}
