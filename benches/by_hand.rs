//! The steps of a layer with fields written out by hand, and nothing else: no settings, no bound on memory, no refund, no
//! merge with fields of others, no telemetry, nothing that could fail. A layer that takes the same steps takes longer.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{SystemTime, UNIX_EPOCH},
};

use foldhash::fast::RandomState;
use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{KeyRef, ListSerializer, StringRef};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Names and seconds of windows.
const WINDOWS: [(&str, u64); 3] = [("second", 1), ("minute", 60), ("day", 86_400)];

pub(crate) struct ByHand {
    /// When the units of each window are all there again, in microseconds, by the digest of the key.
    full_at: Mutex<HashMap<[u8; 16], [u64; 3], RandomState>>,
    windows: usize,
    quota: u64,
    policies: HeaderValue,
    secret: [u8; 32],
    text: String,
}

impl ByHand {
    pub(crate) fn new(windows: usize, quota: u64) -> Self {
        let policies = WINDOWS[..windows].iter();
        let policies: Vec<_> = policies
            .map(|(name, seconds)| format!("\"{name}\";q={quota};w={seconds}"))
            .collect();
        Self {
            full_at: Mutex::default(),
            windows,
            quota,
            policies: policies.join(", ").parse().expect("it is ASCII"),
            secret: [7; 32],
            text: String::new(),
        }
    }

    /// Charges one unit of each window, and writes what is left. Returns `true` if all of them had one.
    pub(crate) fn decide(&mut self, user: &HeaderValue, fields: &mut HeaderMap) -> bool {
        let digest = blake3::keyed_hash(&self.secret, user.as_bytes());
        let key: [u8; 16] = digest.as_bytes()[..16].try_into().expect("a digest has 32 bytes");
        let mut full_at = self.full_at.lock().expect("no holder panics");
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_micros() as u64);
        let full_at = full_at.entry(key).or_default();
        let mut next = *full_at;
        let mut allows = true;
        for (full_at, (_, seconds)) in next.iter_mut().zip(WINDOWS).take(self.windows) {
            let window = seconds * 1_000_000;
            *full_at = (*full_at).max(now) + (window / self.quota).max(1);
            allows &= *full_at <= now + window;
        }
        if allows {
            *full_at = next;
        }
        self.text.clear();
        let mut list = ListSerializer::with_buffer(&mut self.text);
        for (full_at, (name, seconds)) in full_at.iter().zip(WINDOWS).take(self.windows) {
            let (window, used) = (seconds * 1_000_000, full_at.saturating_sub(now));
            let left = (window.saturating_sub(used)) / (window / self.quota).max(1);
            let integer = |number: u64| sfv::Integer::try_from(number).expect("it is small");
            let _ = list
                .bare_item(StringRef::from_str(name).expect("it is ASCII"))
                .parameter(KeyRef::constant("r"), integer(left))
                .parameter(KeyRef::constant("t"), integer(used.div_ceil(1_000_000)));
        }
        let value = list.finish().expect("it has members");
        let value = HeaderValue::from_str(value).expect("a list is ASCII");
        fields.insert(RATELIMIT, value);
        fields.insert(RATELIMIT_POLICY, self.policies.clone());
        allows
    }
}
