//! Names of keys in Redis.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use smallvec::SmallVec;

use crate::partition::PartitionId;

/// A key of up to this length, allocator overhead included, fits a 32-byte block in the server.
pub(super) type Key = SmallVec<[u8; 48]>;

pub(super) const DEFAULT_PREFIX: &str = "quota:";

/// `prefix{digest}`: in a cluster, everything that is kept about one partition is in one slot.
pub(super) fn key(prefix: &str, partition: PartitionId) -> Key {
    let mut digest = [0; 22];
    let written = BASE64_URL_SAFE_NO_PAD.encode_slice(partition.to_bytes(), &mut digest);
    debug_assert_eq!(written, Ok(digest.len()));

    let mut key = Key::from_slice(prefix.as_bytes());
    key.push(b'{');
    key.extend_from_slice(&digest);
    key.push(b'}');
    key
}
