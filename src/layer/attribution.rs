use std::{any::type_name_of_val, borrow::Cow};

use http::request::Parts;

use crate::{
    access::KeyedRequest,
    error::{ConfigError, ConfigErrorKind},
    key::KeyExtractor,
    limiter::{Attributed, Keys, Limiter},
    mistake::Diagnostics,
    partition::PartitionKey,
    telemetry::LayerTelemetry,
};

pub(super) struct Extractor {
    extractor: Box<dyn KeyExtractor>,
    type_name: &'static str,
}

#[derive(Default)]
pub(super) struct ExtractorSettings {
    /// `build()` requires exactly one key.
    pub(super) main: Vec<Extractor>,
    pub(super) named: Vec<(String, Extractor)>,
}

/// Named keys are in the order of the limiter's names.
pub(super) struct Extractors {
    main: Extractor,
    named: Vec<Extractor>,
}

impl Extractor {
    pub(super) fn new(extractor: impl KeyExtractor) -> Self {
        Self {
            type_name: type_name_of_val(&extractor),
            extractor: Box::new(extractor),
        }
    }
}

impl ExtractorSettings {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let error = |message: &str| Err(ConfigError::new(ConfigErrorKind::Key, message));
        match &*self.main {
            [] => return error("key: missing"),
            [_] => {}
            _ => return error("key: set twice; combine keys with `or_else` or `and`, or use `named_key`"),
        }
        let named = self.named.iter().map(|(_, key)| key);
        self.main.iter().chain(named).try_for_each(|key| key.extractor.check())
    }

    /// Must be called after [`check`](Self::check).
    pub(super) fn build(mut self, names: &[String]) -> Result<Extractors, ConfigError> {
        let error = |message| Err(ConfigError::new(ConfigErrorKind::Key, message));
        if let Some((name, _)) = self.named.iter().find(|(name, _)| !names.contains(name)) {
            return error(format!("key {name:?}: unknown to the limiter, which has {names:?}"));
        }
        let mut named = Vec::new();
        for name in names {
            let Some(index) = self.named.iter().position(|(known, _)| known == name) else {
                return error(format!(
                    "key {name:?}: required by the limiter, but not extracted by the layer; use `named_key`"
                ));
            };
            named.push(self.named.swap_remove(index).1);
        }
        if let Some((name, _)) = self.named.first() {
            return error(format!("key {name:?}: duplicate name; names must be unique"));
        }
        let main = self.main.remove(0);
        Ok(Extractors { main, named })
    }
}

impl Extractors {
    /// Used to compare layers: keys of different types rarely lead to the same partition.
    pub(super) fn type_of(&self, named: Option<usize>) -> &'static str {
        self.key(named).type_name
    }

    pub(super) fn types(&self) -> impl Iterator<Item = &'static str> {
        let named = self.named.iter().map(|key| key.type_name);
        std::iter::once(self.main.type_name).chain(named)
    }

    /// The key is extracted on first use.
    #[inline]
    pub(super) fn caller<'a>(&'a self, request: &'a Parts) -> KeyedRequest<'a> {
        KeyedRequest::new(request, &*self.main.extractor)
    }

    /// `named` is the position of a named key; `None` for the main key.
    #[inline]
    pub(super) fn attribute(
        &self,
        limiter: &Limiter,
        caller: &KeyedRequest<'_>,
        named: Option<usize>,
        log: &LayerTelemetry,
    ) -> Attributed {
        if log.is_watching() {
            self.check_first_key(limiter, caller, named, log);
        }
        let keys = &limiter.0.keys;
        let holder = |key: Option<&PartitionKey>| match key {
            Some(key) => Ok(Some(keys.holder(named, key))),
            None => keys.missing(named, log),
        };
        match named {
            None => caller.with_key(holder),
            Some(_) => holder(self.key(named).extractor.extract(caller.request).as_ref()),
        }
    }

    /// Unlike `attribute`, emits no event and updates no metric.
    pub(super) fn holder(&self, keys: &Keys, caller: &KeyedRequest<'_>, named: Option<usize>) -> Attributed {
        match self.extract(caller, named) {
            Some(key) => Ok(Some(keys.holder(named, &key))),
            None => keys.without(named),
        }
    }

    #[cold]
    fn check_first_key(
        &self,
        limiter: &Limiter,
        caller: &KeyedRequest<'_>,
        named: Option<usize>,
        log: &LayerTelemetry,
    ) {
        let mut findings = Diagnostics::default();
        self.key(named).extractor.diagnose(caller.request, &mut findings);
        log.found(findings);
        if let (None, Some(key)) = (named, caller.key()) {
            limiter.0.keys.note(key);
        }
    }

    #[inline]
    pub(super) fn extract<'a>(
        &self,
        caller: &'a KeyedRequest<'_>,
        named: Option<usize>,
    ) -> Option<Cow<'a, PartitionKey>> {
        match named {
            None => caller.key().map(Cow::Borrowed),
            Some(_) => self.key(named).extractor.extract(caller.request).map(Cow::Owned),
        }
    }

    pub(super) fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        let keys = std::iter::once(&self.main).chain(&self.named);
        keys.for_each(|key| key.extractor.diagnose(request, findings));
    }

    #[inline]
    fn key(&self, named: Option<usize>) -> &Extractor {
        named.map_or(&self.main, |index| &self.named[index])
    }
}
