use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::meters;
use crate::sync::mutex::Mutex;

static ALL: Mutex<Vec<Weak<State>>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerInfo {
    /// In bytes.
    pub(crate) used: u64,
    /// In bytes; 0 means no limit.
    pub(crate) limit: u64,
    /// Evicted keys since the server started, including keys of other programs.
    pub(crate) evicted: u64,
    /// True if the server evicts keys when it reaches the limit.
    pub(crate) evicts: bool,
}

impl ServerInfo {
    fn per_mille(&self) -> u64 {
        let used = u128::from(self.used) * 1_000;
        used.checked_div(self.limit.into()).map_or(0, |share| share as u64)
    }
}

#[derive(Debug)]
pub(crate) struct ServerTelemetry(Arc<State>);

#[derive(Debug)]
struct State {
    address: String,
    per_mille: AtomicU64,
    /// The evicted keys at the last poll, plus one; 0 before the first poll.
    evicted: AtomicU64,
    is_nearly_full: AtomicBool,
    was_warned: AtomicBool,
}

impl ServerTelemetry {
    /// In thousandths of the memory limit.
    const NEARLY_FULL: u64 = 800;

    pub(crate) fn new(address: String) -> Self {
        let state = Arc::new(State {
            address,
            per_mille: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            is_nearly_full: AtomicBool::new(false),
            was_warned: AtomicBool::new(false),
        });
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&state));
        Self(state)
    }

    pub(crate) fn polled(&self, info: ServerInfo) {
        let (state, share) = (&*self.0, info.per_mille());
        state.per_mille.store(share, Ordering::Relaxed);
        let before = state.evicted.swap(info.evicted.saturating_add(1), Ordering::Relaxed);
        // A restart of the server resets the count. Evictions before the first poll are ignored, because they may be
        // old.
        let evicted = match before {
            0 => 0,
            _ => info.evicted.checked_sub(before - 1).unwrap_or(info.evicted),
        };
        let servers = ALL.lock();
        let shares = servers.iter().filter_map(Weak::upgrade);
        let highest = shares.map(|other| other.per_mille.load(Ordering::Relaxed)).max();
        drop(servers);
        meters::server(highest.unwrap_or(0) as f64 / 1_000.0, evicted);

        let is_nearly_full = share >= Self::NEARLY_FULL;
        if is_nearly_full && !state.is_nearly_full.swap(is_nearly_full, Ordering::Relaxed) {
            event!(
                WARN,
                server = %state.address,
                used_bytes = %info.used,
                limit_bytes = %info.limit,
                "Redis server nearly full"
            );
        }
        state.is_nearly_full.store(is_nearly_full, Ordering::Relaxed);
        let may_evict = evicted > 0 || (info.evicts && info.limit > 0);
        if may_evict && !state.was_warned.swap(true, Ordering::Relaxed) {
            event!(
                WARN,
                server = %state.address,
                evicted_keys = %evicted,
                "Redis server evicts keys; evicted callers have a full quota again"
            );
        }
    }

    /// The server rejects `INFO`, so polling stops.
    pub(crate) fn refused(&self, error: &dyn std::fmt::Display) {
        event!(
            WARN,
            server = %self.0.address,
            error = %error,
            "Redis server rejected INFO; its memory and evictions are not monitored"
        );
    }
}
