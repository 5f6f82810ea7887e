//! `tower_governor`: a layer for each window, in this process only.

use axum::body::Body;
use governor::{clock::QuantaInstant, middleware::RateLimitingMiddleware};
use http::Request;
use tower_governor::{
    GovernorError, GovernorLayer,
    governor::{GovernorConfig, GovernorConfigBuilder},
    key_extractor::KeyExtractor,
};

use super::{Answer, Local, USER, Window, limited, limited_thrice};

const WITHOUT_FIELDS: Local = Local {
    name: "tower_governor, no fields",
    package: Some("tower_governor"),
    fields: "none",
    one: |window| {
        limited(layer(builder(window).finish()), |response| {
            Answer::of(response, || true)
        })
    },
    three: |windows| {
        let layers = windows.map(|window| layer(builder(window).finish()));
        limited_thrice(layers, |response| Answer::of(response, || true))
    },
};

pub(super) const LOCALS: [Local; 2] = [
    Local {
        name: "tower_governor",
        fields: "X-RateLimit, one window",
        one: |window| {
            let layer = layer(builder(window).use_headers().finish());
            limited(layer, |response| Answer::of(response, || true))
        },
        three: |windows| {
            let layers = windows.map(|window| layer(builder(window).use_headers().finish()));
            limited_thrice(layers, |response| Answer::of(response, || true))
        },
        ..WITHOUT_FIELDS
    },
    WITHOUT_FIELDS,
];

fn builder(window: Window) -> GovernorConfigBuilder<UserId, governor::middleware::NoOpMiddleware<QuantaInstant>> {
    let mut builder = GovernorConfigBuilder::default().key_extractor(UserId);
    builder.period(window.length / window.quota).burst_size(window.quota);
    builder
}

fn layer<M>(config: Option<GovernorConfig<UserId, M>>) -> GovernorLayer<UserId, M, Body>
where
    M: RateLimitingMiddleware<QuantaInstant>,
{
    GovernorLayer::new(config.expect("neither period nor burst is zero"))
}

#[derive(Clone, Copy, Debug)]
struct UserId;

impl KeyExtractor for UserId {
    type Key = String;

    fn extract<B>(&self, request: &Request<B>) -> Result<String, GovernorError> {
        let user = request.headers().get(USER).and_then(|value| value.to_str().ok());
        user.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}
