use std::fmt;

/// The curve, message layouts and token type of a key.
///
/// Choose [`P256`](Self::P256) unless your clients support only the older draft: verification takes less than half the
/// time, and its draft is being developed.
///
/// ```
/// use arc_credentials::Profile;
///
/// assert_eq!(Profile::P256.token_type(), 0xe5ac);
/// assert_eq!(Profile::from_token_type(0xc7d3), Some(Profile::P384));
/// assert_eq!(Profile::from_token_type(2), None);
/// assert_eq!(Profile::P384.presentation_len(), 436);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    /// ARC(P-384), token type 0xC7D3: draft-yun-privacypass-arc-00 with draft-yun-cfrg-arc-00.
    P384,
    /// ARC(P-256), token type 0xE5AC: draft-yun-privacypass-arc-02 with draft-ietf-privacypass-arc-crypto-00.
    ///
    /// The nonce of a token is visible; the next version of that draft hides it and is not compatible.
    P256,
}

impl Profile {
    /// Both profiles, starting with the recommended one.
    pub const ALL: [Self; 2] = [Self::P256, Self::P384];

    /// Returns the Privacy Pass token type, which IANA (RFC 9577, section 6.2) has not registered yet.
    #[inline]
    pub const fn token_type(self) -> u16 {
        match self {
            Self::P384 => 0xc7d3,
            Self::P256 => 0xe5ac,
        }
    }

    /// Returns the profile of a token type, or `None`.
    pub fn from_token_type(token_type: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.token_type() == token_type)
    }

    /// Returns the name of the token type in the drafts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::P384 => "ARC (P-384)",
            Self::P256 => "ARC (P-256)",
        }
    }

    /// Returns the length of a group element in bytes: 49 or 33.
    #[inline]
    pub const fn element_len(self) -> usize {
        1 + self.scalar_len()
    }

    /// Returns the length of a scalar in bytes: 48 or 32.
    #[inline]
    pub const fn scalar_len(self) -> usize {
        match self {
            Self::P384 => 48,
            Self::P256 => 32,
        }
    }

    /// Returns the length of a private key in bytes: 192 or 128.
    #[inline]
    pub const fn private_key_len(self) -> usize {
        4 * self.scalar_len()
    }

    /// Returns the length of a public key in bytes: 147 or 99.
    #[inline]
    pub const fn public_key_len(self) -> usize {
        3 * self.element_len()
    }

    /// Returns the length of a request without token type and key ID in bytes: 338 or 226.
    #[inline]
    pub const fn request_len(self) -> usize {
        2 * self.element_len() + 5 * self.scalar_len()
    }

    /// Returns the length of a response in bytes: 678 or 454.
    #[inline]
    pub const fn response_len(self) -> usize {
        6 * self.element_len() + 8 * self.scalar_len()
    }

    /// Returns the length of a presentation in bytes: 436 or 292.
    #[inline]
    pub const fn presentation_len(self) -> usize {
        4 * self.element_len() + 5 * self.scalar_len()
    }

    /// Returns the length of a tag in bytes: 49 or 33.
    #[inline]
    pub const fn tag_len(self) -> usize {
        self.element_len()
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
