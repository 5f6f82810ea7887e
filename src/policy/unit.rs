use std::fmt;

use crate::error::{ConfigError, ConfigErrorKind};

/// The name of a custom unit, such as tokens of a language model, rows or CPU seconds.
///
/// Created by [`QuotaPolicy::with_unit`](crate::QuotaPolicy::with_unit), which lists the valid names, and returned in
/// [`QuotaUnit::Custom`](crate::QuotaUnit::Custom). [`PolicySet::new`](crate::PolicySet::new) validates it.
///
/// ```
/// use tower_quota::{QuotaPolicy, QuotaUnit};
///
/// const TOKENS: QuotaPolicy = QuotaPolicy::per_minute("tokens per minute", 100_000).with_unit("tokens");
/// let QuotaUnit::Custom(unit) = TOKENS.unit() else { panic!("it counts tokens") };
/// assert_eq!(unit.as_str(), "tokens");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UnitName {
    bytes: [u8; Self::MAX],
    /// `u8::MAX` for a name that is too long.
    length: u8,
    id: UnitId,
}

/// A policy set rejects different names with the same hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct UnitId(u32);

impl UnitId {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn of(name: &str) -> Self {
        let (bytes, mut hash, mut index) = (name.as_bytes(), 0x811c_9dc5_u32, 0);
        while index < bytes.len() {
            hash = (hash ^ bytes[index] as u32).wrapping_mul(0x0100_0193);
            index += 1;
        }
        // 0 means no unit.
        Self(if hash == 0 { 1 } else { hash })
    }
}

impl UnitName {
    const MAX: usize = 24;

    const TAKEN: [&str; 8] = [
        "concurrent-requests",
        "concurrent_requests",
        "content-bytes",
        "content_bytes",
        "request",
        "request_content_bytes",
        "requests",
        "response_content_bytes",
    ];

    pub(crate) const fn new(name: &str) -> Self {
        let (given, mut bytes, mut index) = (name.as_bytes(), [0; Self::MAX], 0);
        while index < given.len() && index < Self::MAX {
            bytes[index] = given[index];
            index += 1;
        }
        Self {
            bytes,
            length: if given.len() > Self::MAX { u8::MAX } else { index as u8 },
            id: UnitId::of(name),
        }
    }

    pub(crate) const fn id(&self) -> UnitId {
        self.id
    }

    /// Returns the name. A name that is too long is truncated.
    pub fn as_str(&self) -> &str {
        let length = usize::from(self.length).min(Self::MAX);
        match str::from_utf8(&self.bytes[..length]) {
            Ok(name) => name,
            // Truncation can split a character.
            Err(error) => str::from_utf8(&self.bytes[..error.valid_up_to()]).unwrap_or_default(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let name = self.as_str();
        let problem = if usize::from(self.length) > Self::MAX {
            format!("unit \"{name}…\" has more than {} characters", Self::MAX)
        } else if name.is_empty() || !name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            format!("unit {name:?} is empty or not printable ASCII")
        } else if Self::TAKEN.contains(&name) {
            format!("unit {name:?} is reserved; choose another name")
        } else {
            return Ok(());
        };
        Err(ConfigError::new(ConfigErrorKind::Unit, problem))
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}
