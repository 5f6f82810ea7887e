//! The tier of each user from a slow source, such as a database: looked up once, cached, and waited for only so long.
//!
//! [`TierLayer`] stands inside of authentication and outside of the limits, and leaves a
//! [`ResolvedTier`](crate::ResolvedTier) in the request, which [`Tiers::resolved`](crate::Tiers::resolved) reads. You do not
//! want it if authentication knows the tier: see [`Tiers::from_fn`](crate::Tiers::from_fn).

mod builder;
mod cache;
mod future;
mod layer;
mod look_up;
mod on_unknown_tier;
mod ongoing;
mod service;
mod shard;
mod shared;
mod source;

pub use self::{
    builder::TierLayerBuilder, cache::TierCache, future::ResponseFuture, layer::TierLayer,
    on_unknown_tier::OnUnknownTier, service::ResolveTier,
};
