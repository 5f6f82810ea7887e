//! The credential scheme: keys, issuance, presentation, verification. It moves bytes and knows neither HTTP nor time.

mod error;
mod key;
mod profile;
mod suite;
mod wire;

pub use self::{
    error::{KeyError, RandomnessError},
    key::{IssuerKey, KeyId, PublicKey},
    profile::Profile,
};
