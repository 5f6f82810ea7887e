use std::collections::BTreeSet;

use super::{error::CredentialError, randomness};

/// The nonces that a credential has used in one presentation context.
///
/// Save them *before* sending the presentation, so that a crash does not reuse a nonce. Memory depends on the used
/// nonces, not on the limit, which can be raised.
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
    /// Draws a random unused nonce below the limit and marks it as used.
    ///
    /// Sequential nonces would reveal how many presentations a client has created.
    ///
    /// # Errors
    ///
    /// Returns [`CredentialError::LimitReached`] if all nonces are used, or [`CredentialError::Randomness`].
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

    /// Returns the number of unused nonces below the limit.
    pub fn left(&self, limit: u32) -> u32 {
        limit - self.0.range(..limit).count() as u32
    }

    /// Returns the used nonces in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for UsedNonces {
    fn from_iter<I: IntoIterator<Item = u32>>(nonces: I) -> Self {
        Self(nonces.into_iter().collect())
    }
}
