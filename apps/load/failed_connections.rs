//! Counts failed connections to Redis by the events of the crate.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
    subscriber::SetGlobalDefaultError,
};

#[derive(Clone, Default)]
pub(crate) struct FailedConnections(Arc<AtomicU64>);

impl FailedConnections {
    /// Starts counting. Fails on a second call in the same process.
    pub(crate) fn count() -> Result<Self, SetGlobalDefaultError> {
        let counter = Self::default();
        tracing::subscriber::set_global_default(counter.clone())?;
        Ok(counter)
    }

    /// Returns the count since the last call.
    pub(crate) fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Subscriber for FailedConnections {
    /// Excludes spans, because there is one per request.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::DEBUG && metadata.target().starts_with("tower_quota")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        if message.0 == "connection to Redis failed" {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
