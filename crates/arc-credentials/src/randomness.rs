//! The source of random scalars: the operating system; in tests, a list.

use p384::elliptic_curve::ff::{Field, PrimeField};
use zeroize::{Zeroize, Zeroizing};

use super::{error::RandomnessError, suite::Suite};

/// A source of scalars from 1 up to the order of the group.
pub(super) trait Random<S: Suite> {
    fn scalar(&mut self) -> Result<Zeroizing<S::Scalar>, RandomnessError>;
}

/// The random numbers of the operating system.
#[derive(Debug)]
pub(super) struct OperatingSystem;

impl<S: Suite> Random<S> for OperatingSystem {
    fn scalar(&mut self) -> Result<Zeroizing<S::Scalar>, RandomnessError> {
        loop {
            let mut repr = <S::Scalar as PrimeField>::Repr::default();
            getrandom::fill(repr.as_mut()).map_err(RandomnessError::new)?;
            let scalar = Option::<S::Scalar>::from(S::Scalar::from_repr(repr)).map(Zeroizing::new);
            repr.as_mut().zeroize();
            if let Some(scalar) = scalar.filter(|scalar| !bool::from(scalar.is_zero())) {
                return Ok(scalar);
            }
        }
    }
}

/// A number below this bound, which is not 0: less than one part in 2³² away from even.
pub(super) fn below(bound: u32) -> Result<u32, RandomnessError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(RandomnessError::new)?;
    Ok(((u128::from(u64::from_le_bytes(bytes)) * u128::from(bound)) >> 64) as u32)
}
