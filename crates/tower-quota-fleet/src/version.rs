use std::{fmt, str::FromStr};

use super::error::{FleetError, FleetErrorKind};
use tower_quota::PartitionId;

/// The version of a [`RulesDocument`](super::RulesDocument): its number and a digest of its bytes.
///
/// The digest distinguishes documents if a number is used again after a failover.
///
/// ```
/// use tower_quota_fleet::RulesVersion;
///
/// let version = RulesVersion::of(42, b"the bytes of a document");
/// assert_eq!(version.number(), 42);
/// assert_ne!(version, RulesVersion::of(42, b"other bytes"));
/// assert_eq!(version.to_string().parse(), Ok(version));
/// assert!("42".parse::<RulesVersion>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RulesVersion {
    number: u64,
    digest: [u8; 16],
}

impl RulesVersion {
    /// The largest number, 2⁵³ − 1, which every JSON parser represents exactly.
    pub const MAX_NUMBER: u64 = (1 << 53) - 1;

    /// Computes a version. The digest is the first half of the BLAKE3 hash.
    pub fn of(number: u64, document: &[u8]) -> Self {
        let hash = blake3::hash(document);
        Self {
            number,
            digest: *hash.as_bytes().first_chunk().expect("a hash has 32 bytes"),
        }
    }

    /// Returns the number, or 0 if it could not be read.
    pub const fn number(self) -> u64 {
        self.number
    }

    /// Returns the digest of the document's bytes.
    pub const fn digest(self) -> [u8; 16] {
        self.digest
    }
}

impl fmt::Display for RulesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:032x}", self.number, u128::from_be_bytes(self.digest))
    }
}

impl fmt::Debug for RulesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RulesVersion({self})")
    }
}

impl FromStr for RulesVersion {
    type Err = FleetError;

    fn from_str(text: &str) -> Result<Self, FleetError> {
        let parse = || {
            let (number, digest) = text.split_once(' ')?;
            let is_decimal = number.bytes().all(|byte| byte.is_ascii_digit());
            let number = number.parse().ok().filter(|number| *number <= Self::MAX_NUMBER);
            Some(Self {
                number: number.filter(|_| is_decimal)?,
                // Digests have the same text form as partition IDs.
                digest: digest.parse::<PartitionId>().ok()?.to_bytes(),
            })
        };
        let message = "rules version is not a number, a space and 32 hexadecimal digits";
        parse().ok_or_else(|| FleetError::new(FleetErrorKind::Malformed, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by another implementation of BLAKE3.
    #[test]
    fn a_version_is_written_the_same_in_every_process() {
        let version = RulesVersion::of(7, b"");
        assert_eq!(version.to_string(), "7 af1349b9f5f9a1a6a0404dea36dcc949");
        assert_eq!(
            format!("{version:?}"),
            "RulesVersion(7 af1349b9f5f9a1a6a0404dea36dcc949)"
        );
    }

    #[test]
    fn what_is_no_version_is_rejected() {
        let digest = "af1349b9f5f9a1a6a0404dea36dcc949";
        for text in [
            "",
            " ",
            "7",
            digest,
            &format!(" {digest}"),
            &format!("7  {digest}"),
            &format!("+7 {digest}"),
            &format!("-7 {digest}"),
            &format!("7 {digest} "),
            &format!("7 {digest}\n"),
            &format!("7 +{}", &digest[1..]),
            &format!("7 {}", &digest[1..]),
            &format!("9007199254740992 {digest}"),
            &format!("99999999999999999999999 {digest}"),
        ] {
            let error = text.parse::<RulesVersion>().unwrap_err();
            assert_eq!(error.kind(), FleetErrorKind::Malformed, "{text:?}");
        }
    }
}
