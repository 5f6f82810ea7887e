//! A request and its key, which is extracted at most once and not before it is needed.

use std::cell::OnceCell;

use http::request::Parts;

use crate::{key::KeyExtractor, partition::PartitionKey};

pub(crate) struct KeyedRequest<'a> {
    pub(crate) request: &'a Parts,
    extractor: &'a dyn KeyExtractor,
    key: OnceCell<Option<PartitionKey>>,
}

impl<'a> KeyedRequest<'a> {
    pub(crate) fn new(request: &'a Parts, extractor: &'a dyn KeyExtractor) -> Self {
        Self {
            request,
            extractor,
            key: OnceCell::new(),
        }
    }

    /// The key that the layer counts by.
    pub(crate) fn key(&self) -> Option<&PartitionKey> {
        self.key.get_or_init(|| self.extractor.extract(self.request)).as_ref()
    }
}
