mod admission;
mod answer;
mod attribution;
#[cfg(feature = "axum")]
mod axum;
mod body;
mod builder;
mod content;
mod cost;
mod explanation;
mod future;
mod lingering_close;
mod rate_limit_layer;
mod registry;
mod service;

pub use self::{
    body::RateLimitBody,
    builder::RateLimitLayerBuilder,
    content::{RequestContent, RequestContentBody, RequestContentLayer},
    cost::ActualCost,
    explanation::Explanation,
    future::ResponseFuture,
    lingering_close::LingeringClose,
    rate_limit_layer::RateLimitLayer,
    service::RateLimit,
};
