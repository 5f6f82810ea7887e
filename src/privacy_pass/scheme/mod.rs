//! The credential scheme: keys, issuance, presentation, verification. It moves bytes and knows neither HTTP nor time.

mod credential;
mod error;
mod issuance;
mod key;
mod nonces;
mod presentation;
mod profile;
mod proof;
mod randomness;
mod suite;
mod wire;

pub use self::{
    credential::{Credential, Presentation},
    error::{CredentialError, RandomnessError, VerificationError},
    issuance::CredentialRequest,
    key::{IssuerKey, KeyId, PublicKey},
    nonces::UsedNonces,
    presentation::Tag,
    profile::Profile,
};

#[cfg(test)]
mod tests;
