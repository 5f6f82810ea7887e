//! The fields of responses under every setting of a layer.

mod capacity;
mod cors;
mod dialects;
mod examples;
mod golden;
mod nesting;
mod overage;
mod ratio;
mod rules;

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use test_kit::{Answered, call, cost, costing, limits_of, memory};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    ActualCost, Algorithm, LegacyReset, Limiter, LimiterBuilder, MemoryStore, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, ResponseFields, Store,
    clock::{Clock, Timestamp},
    key,
};

/// A store with a separate clock, at midnight.
struct Scene {
    clock: Clock,
    store: MemoryStore,
}

const MIDNIGHT: u64 = 19_675 * 86_400;

impl Scene {
    fn new() -> Self {
        let clock = Clock::manual(Timestamp::from_micros(MIDNIGHT * 1_000_000));
        Self {
            store: memory(&clock),
            clock,
        }
    }

    /// A layer that takes users and costs from fields of the request.
    fn builder(&self, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayerBuilder {
        self.builder_on(self.store.clone(), policies)
    }

    fn builder_on(&self, store: impl Store, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayerBuilder {
        self.builder_of(Limiter::builder(store), policies)
    }

    /// A layer that hides by a digest key who has called.
    fn keyed(&self, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayer {
        let limiter = Limiter::builder(self.store.clone()).digest_key([7; 32]);
        self.builder_of(limiter, policies).build().unwrap()
    }

    fn builder_of(
        &self,
        limiter: LimiterBuilder,
        policies: impl IntoIterator<Item = QuotaPolicy>,
    ) -> RateLimitLayerBuilder {
        let builder = limits_of(limiter.clock(self.clock.clone()))
            .scope("fields")
            .cost_by(cost);
        policies.into_iter().fold(builder, RateLimitLayerBuilder::policy)
    }

    fn layer(&self, fields: ResponseFields, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayer {
        self.builder(policies).response_fields(fields).build().unwrap()
    }

    fn wait(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

type Answer = Response<Bytes>;

fn problem(answer: &Answer) -> serde_json::Value {
    assert_eq!(answer.field("content-type"), "application/problem+json");
    serde_json::from_slice(answer.body()).unwrap()
}

/// A rejection as RFC 9457 has it, of one of the types that the draft has registered.
fn problem_of(kind: &str, title: &str, status: u16, violated: &[&str]) -> serde_json::Value {
    let kind = format!("https://iana.org/assignments/http-problem-types#{kind}");
    serde_json::json!({"type": kind, "title": title, "status": status, "violated-policies": violated})
}

const TOLD: [&str; 3] = ["ratelimit", "ratelimit-policy", "retry-after"];

/// The dialects, with and without additional numbers.
fn dialects() -> [ResponseFields; 7] {
    [
        ResponseFields::draft11(),
        ResponseFields::draft11().with_draft06_limit(),
        ResponseFields::in_between(),
        ResponseFields::draft07(),
        ResponseFields::draft06(),
        ResponseFields::legacy(LegacyReset::DeltaSeconds),
        ResponseFields::legacy(LegacyReset::UnixTime),
    ]
}

const DRAFT06: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
const LEGACY: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

type TextResponse = Response<Full<Bytes>>;

fn ok() -> TextResponse {
    Response::new(Full::from("hello"))
}

/// A response of an inner service with these fields.
fn with_fields<const N: usize>(fields: [(&'static str, &'static str); N]) -> TextResponse {
    let mut response = ok();
    for (name, value) in fields {
        response.headers_mut().append(name, value.parse().unwrap());
    }
    response
}

async fn take(layer: &RateLimitLayer, cost: u64) -> Answer {
    send(layer, costing(cost), ok()).await
}

/// Sends a request through a layer around a service that answers like this.
async fn send(layer: &RateLimitLayer, request: Request<String>, response: TextResponse) -> Answer {
    let handler = service_fn(move |_: Request<String>| {
        let response = response.clone();
        async move { Ok::<_, Infallible>(response) }
    });
    call(layer.layer(handler), request).await
}

fn fixed(policy: QuotaPolicy) -> QuotaPolicy {
    policy.with_algorithm(Algorithm::FixedWindow)
}

fn minute(quota: u64) -> QuotaPolicy {
    fixed(QuotaPolicy::per_minute("minute", quota))
}
