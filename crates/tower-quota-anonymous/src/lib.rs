//! Quotas for callers that cannot be identified: Anonymous Rate-Limited Credentials (ARC) over Privacy Pass.
//!
//! An *issuer* issues a *credential* to a client that it has identified, or to an address. From it, the client makes up
//! to N *tokens* for each challenge of an *origin*. The origin learns that a token is valid and unspent, but not whose
//! it is: tokens cannot be linked to each other or to their issuance.
//!
//! Use this crate if a limit by address rejects too many requests, and limits by user are undesirable or impossible.
//!
//! ```
//! use std::{convert::Infallible, time::Duration};
//! use http::{Request, Response};
//! use tower::{Layer, ServiceExt, service_fn};
//! use tower_quota_anonymous::{KeySet, OriginLayer, Profile};
//!
//! # tokio_test::block_on(async {
//! // Load the keys and the secret from a secret store. The issuer needs the same keys.
//! let mut keys = KeySet::new();
//! keys.insert(keys.generate(Profile::P256)?, ..);
//! let tokens = OriginLayer::builder("issuer.example", &[7; 32])
//!     .origin("api.example")
//!     .keys(keys)
//!     .policy("anonymous", 100, Duration::from_secs(3_600)) // 100 requests per credential and hour
//!     .build()?;
//! let api = tokens.layer(service_fn(async |_: Request<String>| {
//!     Ok::<_, Infallible>(Response::new("hello".to_owned()))
//! }));
//!
//! // A request without a token is rejected with a challenge.
//! let response = api.oneshot(Request::new(String::new())).await?;
//! assert_eq!(response.status(), 401);
//! assert!(response.headers()["www-authenticate"].to_str()?.starts_with("PrivateToken challenge="));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! The README contains a complete program. The [`guide`] covers [guarantees](guide#what-it-promises), sizing,
//! key rotation, failures and metrics.
//!
//! **The crate has not been audited.** Computations are constant-time only as far as the `p256` and `p384` crates
//! document.
//!
//! # Specifications
//!
//! draft-yun-privacypass-arc-00 with draft-yun-cfrg-arc-00 ([`Profile::P384`]); draft-yun-privacypass-arc-02 with
//! draft-ietf-privacypass-arc-crypto-00 ([`Profile::P256`]); RFC 9576 to RFC 9578.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod authorization;
mod base64url;
mod client;
mod directory;
mod grpc;
mod header;
mod issuer;
mod keys;
mod mutex;
mod origin;
mod ready;
mod schemes;
mod settings;
mod telemetry;
mod workers;

#[doc = include_str!("../docs/anonymous.md")]
pub mod guide {}

pub use self::{
    authorization::{token_from_headers, token_to_header_value},
    client::{
        ContextName, CredentialStorage, MemoryCredentials, Reserved, StorageError, StorageFuture, TokenClient,
        TokenClientError, TokenClientFuture, TokenClientLayer, TokenClientLayerBuilder, TrustedIssuer,
    },
    directory::Directory,
    header::Challenge,
    issuer::{
        IssuanceDecision, IssuanceDecisionFuture, IssuancePolicy, IssuanceRequest, Issuer, IssuerBuilder, IssuerFuture,
    },
    keys::KeySet,
    origin::{AcceptedToken, EXPOSED, OriginBody, OriginFuture, OriginLayer, OriginLayerBuilder, OriginService},
    settings::BuildError,
};
pub use arc_credentials::{
    Credential, CredentialError, CredentialRequest, IssuerKey, KeyId, MessageError, Presentation, Profile, PublicKey,
    RandomnessError, Tag, Token, TokenChallenge, UsedNonces, VerificationError,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
