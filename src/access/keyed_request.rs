use std::cell::OnceCell;

use http::request::Parts;

use crate::{key::KeyExtractor, partition::PartitionKey};

pub(crate) struct KeyedRequest<'a> {
    pub(crate) request: &'a Parts,
    extractor: &'a dyn KeyExtractor,
    key: OnceCell<Option<PartitionKey>>,
}

impl<'a> KeyedRequest<'a> {
    #[inline]
    pub(crate) fn new(request: &'a Parts, extractor: &'a dyn KeyExtractor) -> Self {
        Self {
            request,
            extractor,
            key: OnceCell::new(),
        }
    }

    #[inline]
    pub(crate) fn key(&self) -> Option<&PartitionKey> {
        self.key.get_or_init(|| self.extractor.extract(self.request)).as_ref()
    }
    /// Passes the key without caching it, for its last use.
    #[inline]
    pub(crate) fn with_key<T>(&self, read: impl FnOnce(Option<&PartitionKey>) -> T) -> T {
        match self.key.get() {
            Some(known) => read(known.as_ref()),
            // Caching would move it.
            None => read(self.extractor.extract(self.request).as_ref()),
        }
    }
}
