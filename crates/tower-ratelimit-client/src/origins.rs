use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex},
    time::Instant,
};

use http::{header::HOST, request::Parts, uri::Authority};

use super::origin::{ClientConfig, Origin, lock};

pub(super) struct Origins {
    map: Mutex<BTreeMap<OriginId, Entry>>,
    hashers: [RandomState; 2],
    pub(super) config: Arc<ClientConfig>,
}

/// With secret keys, and long enough to make collisions practically impossible.
type OriginId = [u64; 2];

/// Without a host in the URI, the `Host` field identifies the origin. Requests without both share one.
#[derive(Hash)]
struct OriginKey {
    scheme: String,
    host: String,
    port: u16,
    partition: Option<Vec<u8>>,
}

struct Entry {
    origin: Arc<Origin>,
    is_returning: bool,
}

impl Origins {
    const SAMPLE: usize = 16;

    pub(super) fn new(config: ClientConfig) -> Self {
        Self {
            map: Mutex::default(),
            hashers: Default::default(),
            config: Arc::new(config),
        }
    }

    pub(super) fn get(&self, request: &Parts) -> Option<Arc<Origin>> {
        let id = self.id(&self.key(request));
        lock(&self.map).get(&id).map(|entry| Arc::clone(&entry.origin))
    }

    pub(super) fn get_or_insert(&self, request: &Parts, now: Instant) -> Arc<Origin> {
        let key = self.key(request);
        let id = self.id(&key);
        let mut map = lock(&self.map);
        if let Some(entry) = map.get_mut(&id) {
            entry.is_returning = true;
            return Arc::clone(&entry.origin);
        }
        if map.len() >= self.config.max_origins {
            evict(&mut map, id, now);
        }
        let profile = self.config.profiles.of(&key.host, key.port);
        let origin = Arc::new(Origin::new(self.config.pacing(key.partition), profile));
        let entry = Entry {
            origin: Arc::clone(&origin),
            is_returning: false,
        };
        map.insert(id, entry);
        origin
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.map).len()
    }

    fn id(&self, key: &OriginKey) -> OriginId {
        self.hashers.each_ref().map(|hasher| hasher.hash_one(key))
    }

    fn key(&self, request: &Parts) -> OriginKey {
        let uri = &request.uri;
        let of_host_field = || Authority::try_from(request.headers.get(HOST)?.as_bytes()).ok();
        let authority = uri.authority().cloned().or_else(of_host_field);
        let scheme = uri.scheme_str().unwrap_or_default().to_ascii_lowercase();
        let default_port = if let "http" | "ws" = scheme.as_str() { 80 } else { 443 };
        let port = authority.as_ref().and_then(|authority| authority.port_u16());
        OriginKey {
            scheme,
            host: authority.as_ref().map_or("", Authority::host).to_ascii_lowercase(),
            port: port.unwrap_or(default_port),
            partition: self.config.partition_of.as_ref().and_then(|of| of(request)),
        }
    }
}

/// IDs are random, so the neighbors of `new` are a random sample.
fn evict(map: &mut BTreeMap<OriginId, Entry>, new: OriginId, now: Instant) {
    let neighbors = map.range(new..).chain(map.range(..new));
    let least = neighbors
        .take(Origins::SAMPLE)
        .min_by_key(|(_, entry)| entry.worth(now));
    if let Some(id) = least.map(|(id, _)| *id) {
        map.remove(&id);
    }
}

impl Entry {
    /// Eviction priority. Busy origins are last, because a second queue for the same server would overtake the requests
    /// in the first.
    fn worth(&self, now: Instant) -> (bool, bool, bool, Option<Instant>) {
        let state = self.origin.lock();
        let known_until = state.pacing.known_until();
        (state.is_busy(), known_until > Some(now), self.is_returning, known_until)
    }
}
