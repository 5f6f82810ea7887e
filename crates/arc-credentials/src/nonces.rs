//! The nonces that a client has used in one presentation context.

use std::collections::BTreeSet;

use super::{error::CredentialError, randomness};

/// The nonces that a credential has used in one presentation context.
///
/// You want it where you keep the state of a client yourself. Keep one for each credential and context, and store it
/// *before* the presentation is sent: after a crash, a nonce that may have been sent is a used one.
///
/// It takes memory for the nonces that were used, whatever the limit is. A limit that was raised does not make it forget.
///
/// ```
/// use arc_credentials::{CredentialError, UsedNonces};
///
/// let mut used = UsedNonces::default();
/// let mut drawn = [used.draw(3)?, used.draw(3)?, used.draw(3)?];
/// drawn.sort();
/// assert_eq!(drawn, [0, 1, 2]);
/// assert_eq!(used.draw(3), Err(CredentialError::LimitReached));
/// assert_eq!(used.draw(4)?, 3);
///
/// let restored: UsedNonces = used.iter().collect();
/// assert_eq!(restored, used);
/// # Ok::<_, CredentialError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedNonces(BTreeSet<u32>);

impl UsedNonces {
    /// Draws a nonce below the limit that was not used, each with the same chance, and notes it as used. Nonces that are
    /// counted up would tell the origin how many presentations a client has made.
    ///
    /// # Errors
    ///
    /// [`CredentialError::LimitReached`] where none is left, and [`CredentialError::Randomness`].
    pub fn draw(&mut self, limit: u32) -> Result<u32, CredentialError> {
        let left = self.left(limit);
        if left == 0 {
            return Err(CredentialError::LimitReached);
        }
        let mut nonce = randomness::below(left)?;
        for used in self.0.range(..limit) {
            if *used > nonce {
                break;
            }
            nonce += 1;
        }
        self.0.insert(nonce);
        Ok(nonce)
    }

    /// The number of remaining presentations with this limit.
    pub fn left(&self, limit: u32) -> u32 {
        limit - self.0.range(..limit).count() as u32
    }

    /// The nonces that were used, in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for UsedNonces {
    fn from_iter<I: IntoIterator<Item = u32>>(nonces: I) -> Self {
        Self(nonces.into_iter().collect())
    }
}
