//! A bounded map from origins and partitions to their state.

use std::sync::Arc;

use http::{header::HOST, request::Parts};

use super::origin::{ClientConfig, Origin};
use crate::{
    clock::Timestamp,
    partition::{PartitionId, PartitionKey, Scope},
    sync::{bounded_map::BoundedMap, mutex::Mutex},
};

pub(super) struct Origins {
    map: Mutex<BoundedMap<Arc<Origin>>>,
    scope: Scope,
    pub(super) config: Arc<ClientConfig>,
}

impl Origins {
    pub(super) fn new(config: ClientConfig) -> Self {
        Self {
            map: Mutex::new(BoundedMap::new(config.max_origins, || {})),
            scope: Scope::new("client"),
            config: Arc::new(config),
        }
    }

    /// The state of the origin of a request, if there is one.
    pub(super) fn get(&self, request: &Parts) -> Option<Arc<Origin>> {
        let (id, _) = self.identify(request);
        self.map.lock().get_mut(id).cloned()
    }

    pub(super) fn get_or_insert(&self, request: &Parts, now: Timestamp) -> Arc<Origin> {
        let (id, partition) = self.identify(request);
        let mut map = self.map.lock();
        if let Some(origin) = map.visit(id) {
            return Arc::clone(origin);
        }
        let profile = || self.config.profiles.of(request);
        let new = || Arc::new(Origin::new(self.config.pacing(partition), profile()));
        Arc::clone(map.get_or_insert_with(id, |origin| is_idle(origin, now), worth, new))
    }

    pub(super) fn len(&self) -> usize {
        self.map.lock().len()
    }

    fn identify(&self, request: &Parts) -> (PartitionId, Option<Vec<u8>>) {
        let partition_of = self.config.partition_of.as_ref();
        let partition = partition_of.and_then(|partition_of| partition_of(request));
        let key = match &partition {
            Some(partition) => origin_key(request).and(PartitionKey::new("partition", partition)),
            None => origin_key(request),
        };
        (self.scope.partition(&key), partition)
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

fn is_idle(origin: &Arc<Origin>, now: Timestamp) -> bool {
    origin.lock().idle_at().is_some_and(|idle_at| idle_at <= now)
}

/// An origin with waiting or running requests is worth most, and one that was asked only once is worth less
/// than others. Requests that are on their way to an evicted one come to their end all the same.
fn worth(origin: &Arc<Origin>, is_returning: bool) -> (bool, bool, Option<Timestamp>) {
    let idle_at = origin.lock().idle_at();
    (idle_at.is_none(), is_returning, idle_at)
}
