//! Texts of scripts.

/// The text of a script and the hash under which a server keeps it.
pub(in super::super) struct Text {
    pub(super) source: String,
    pub(super) hash: String,
}

impl Text {
    pub(super) fn new(source: String) -> Self {
        let hash = ::redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}
