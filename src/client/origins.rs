//! Which requests share what is known: a bounded map from origins and partitions.

use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use http::{header::HOST, request::Parts};
use indexmap::IndexMap;

use super::{origin::Origin, pacing::Pacing};
use crate::{
    clock::Timestamp,
    partition::{PartitionId, PartitionKey, Scope},
};

/// The partition key of a request, as the server computes it.
pub(super) type PartitionOf = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

pub(super) struct Origins {
    map: Mutex<Map>,
    scope: Scope,
    partition_of: Option<Box<PartitionOf>>,
    new_pacing: Box<dyn Fn() -> Pacing + Send + Sync>,
}

struct Map {
    origins: IndexMap<PartitionId, Arc<Origin>, RandomState>,
    cap: usize,
    /// Where the next look for idle origins begins; it goes round and round.
    hand: usize,
}

impl Origins {
    pub(super) fn new(
        cap: usize,
        partition_of: Option<Box<PartitionOf>>,
        new_pacing: impl Fn() -> Pacing + Send + Sync + 'static,
    ) -> Self {
        let map = Map {
            origins: IndexMap::default(),
            cap,
            hand: 0,
        };
        Self {
            map: Mutex::new(map),
            scope: Scope::new("client"),
            partition_of,
            new_pacing: Box::new(new_pacing),
        }
    }

    /// What is known of the origin of a request; nothing if it was never heard of.
    pub(super) fn get(&self, request: &Parts) -> Option<Arc<Origin>> {
        let (id, _) = self.identify(request);
        self.with_map(|map| map.origins.get(&id).cloned())
    }

    pub(super) fn get_or_insert(&self, request: &Parts, now: Timestamp) -> Arc<Origin> {
        let (id, partition) = self.identify(request);
        self.with_map(|map| {
            if let Some(origin) = map.origins.get(&id) {
                return Arc::clone(origin);
            }
            let pacing = (self.new_pacing)();
            let pacing = match partition {
                Some(key) => pacing.with_partition_key(key),
                None => pacing,
            };
            let origin = Arc::new(Origin::new(pacing));
            map.insert(id, Arc::clone(&origin), now);
            origin
        })
    }

    pub(super) fn len(&self) -> usize {
        self.with_map(|map| map.origins.len())
    }

    fn identify(&self, request: &Parts) -> (PartitionId, Option<Vec<u8>>) {
        let partition = self
            .partition_of
            .as_ref()
            .and_then(|partition_of| partition_of(request));
        let key = match &partition {
            Some(partition) => origin_key(request).and(PartitionKey::new("partition", partition)),
            None => origin_key(request),
        };
        (self.scope.partition(&key), partition)
    }

    /// A panic while the map was locked can only have come from outside of its code; what it holds is sound.
    fn with_map<T>(&self, with: impl FnOnce(&mut Map) -> T) -> T {
        with(&mut self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Scheme, host and port. A request without a host in its URI is named by its `Host`; without any, all are one origin,
/// as they are for a connection that has its origin from elsewhere.
fn origin_key(request: &Parts) -> PartitionKey {
    let uri = &request.uri;
    let scheme = uri.scheme_str().unwrap_or_default().to_ascii_lowercase();
    let Some(host) = uri.host() else {
        let host = request.headers.get(HOST).map_or(b"".as_slice(), |host| host.as_bytes());
        return PartitionKey::new("host", host.to_ascii_lowercase());
    };
    let port = uri.port_u16().unwrap_or(match scheme.as_str() {
        "https" => 443,
        _ => 80,
    });
    PartitionKey::new("scheme", scheme)
        .and(PartitionKey::new("host", host.to_ascii_lowercase()))
        .and(PartitionKey::new("port", port.to_be_bytes()))
}

impl Map {
    /// How many origins a new one looks at to find those that are idle.
    const SWEEP: usize = 2;
    /// How many origins compete for being forgotten when there are too many.
    const CANDIDATES: usize = 8;

    fn insert(&mut self, id: PartitionId, origin: Arc<Origin>, now: Timestamp) {
        for _ in 0..Self::SWEEP {
            let hand = self.next();
            match self.idle_at(hand) {
                Some(idle_at) if idle_at <= now => {
                    self.origins.swap_remove_index(hand);
                }
                _ => self.hand += 1,
            }
        }
        if self.origins.len() >= self.cap {
            self.evict();
        }
        self.origins.insert(id, origin);
    }

    /// Forgets the origin, among some, of which the least would be known soonest. Requests that are on their way there
    /// come to their end all the same.
    fn evict(&mut self) {
        let mut victim = None;
        for _ in 0..Self::CANDIDATES {
            let candidate = self.next();
            let idle_at = self.idle_at(candidate).unwrap_or(Timestamp::from_micros(u64::MAX));
            if victim.is_none_or(|(earliest, _)| idle_at < earliest) {
                victim = Some((idle_at, candidate));
            }
            self.hand += 1;
        }
        if let Some((_, victim)) = victim {
            self.origins.swap_remove_index(victim);
        }
    }

    fn idle_at(&self, index: usize) -> Option<Timestamp> {
        let (_, origin) = self.origins.get_index(index)?;
        origin.lock().idle_at()
    }

    fn next(&mut self) -> usize {
        if self.hand >= self.origins.len() {
            self.hand = 0;
        }
        self.hand
    }
}
