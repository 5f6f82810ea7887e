pub(crate) struct Text {
    pub(crate) source: String,
    pub(crate) hash: String,
}

impl Text {
    pub(crate) fn new(source: String) -> Self {
        let hash = ::redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}
