//! Users' tiers from a slow source, such as a database: looked up once, cached, and awaited for a limited time. See
//! [`TierLayer`].

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
