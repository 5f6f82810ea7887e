//! Anonymous Rate-Limited Credentials (ARC) over P-256 and P-384.
//!
//! Keys, issuance, presentations, and the Privacy Pass structures that carry them. No HTTP, async code or clock.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod challenge;
mod credential;
mod error;
mod issuance;
mod issuer;
mod key;
mod message;
mod nonces;
mod presentation;
mod profile;
mod proof;
mod randomness;
mod suite;
mod token;
mod wire;

pub use self::{
    challenge::TokenChallenge,
    credential::{Credential, Presentation},
    error::{CredentialError, RandomnessError, VerificationError},
    issuance::CredentialRequest,
    issuer::IssuerKey,
    key::{KeyId, PublicKey},
    message::MessageError,
    nonces::UsedNonces,
    presentation::Tag,
    profile::Profile,
    token::Token,
};

#[cfg(test)]
mod tests;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
