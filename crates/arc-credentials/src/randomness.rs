use p384::elliptic_curve::ff::{Field, PrimeField};
use zeroize::{Zeroize, Zeroizing};

use super::{error::RandomnessError, suite::Suite};

/// Nonzero scalars. Tests use a list.
pub(super) trait Random<S: Suite> {
    fn scalar(&mut self) -> Result<Zeroizing<S::Scalar>, RandomnessError>;
}

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

/// `bound` must not be 0. The relative bias is less than 2⁻³².
pub(super) fn below(bound: u32) -> Result<u32, RandomnessError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(RandomnessError::new)?;
    Ok(((u128::from(u64::from_le_bytes(bytes)) * u128::from(bound)) >> 64) as u32)
}
