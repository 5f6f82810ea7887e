//! The fields of responses under every setting of a layer.

mod capacity;
mod cors;
mod dialects;
mod examples;
mod nesting;
mod ratio;
mod rules;

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Service, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, Decision, Limiter, LimiterBuilder, MemoryStore, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder,
    ResponseFields, Store,
    clock::{Clock, Timestamp},
    key,
};

/// A store with a clock of its own, at midnight.
struct Scene {
    clock: Clock,
    store: MemoryStore,
}

const MIDNIGHT: u64 = 19_675 * 86_400;

impl Scene {
    fn new() -> Self {
        let clock = Clock::manual(Timestamp::from_micros(MIDNIGHT * 1_000_000));
        Self {
            store: MemoryStore::builder().clock(clock.clone()).build().unwrap(),
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
        let builder = RateLimitLayerBuilder::from(limiter.clock(self.clock.clone()))
            .decision_in_response()
            .scope("fields")
            .key(key::header("x-user-id"))
            .cost_by(|request| {
                let cost = request.headers.get("x-cost");
                cost.map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
            });
        policies.into_iter().fold(builder, RateLimitLayerBuilder::policy)
    }

    fn layer(&self, fields: ResponseFields, policies: impl IntoIterator<Item = QuotaPolicy>) -> RateLimitLayer {
        self.builder(policies).response_fields(fields).build().unwrap()
    }

    fn wait(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

/// The answer that the client gets.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    decision: Option<Decision>,
    body: Bytes,
}

impl Answer {
    /// The only line of a field, or an empty text where it is absent.
    fn field(&self, name: &str) -> &str {
        let mut lines = self.headers.get_all(name).iter();
        let line = lines.next().map_or("", |value| value.to_str().unwrap());
        assert!(lines.next().is_none(), "{name} has more than one line");
        line
    }

    fn fields<const N: usize>(&self, names: [&str; N]) -> [&str; N] {
        names.map(|name| self.field(name))
    }

    fn problem(&self) -> serde_json::Value {
        assert_eq!(self.field("content-type"), "application/problem+json");
        serde_json::from_slice(&self.body).unwrap()
    }
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

fn request(cost: u64) -> Request<()> {
    Request::builder()
        .header("x-user-id", "alice")
        .header("x-cost", cost)
        .body(())
        .unwrap()
}

async fn take(layer: &RateLimitLayer, cost: u64) -> Answer {
    send(layer, request(cost), ok()).await
}

/// Sends a request through a layer around a service that answers like this.
async fn send(layer: &RateLimitLayer, request: Request<()>, response: TextResponse) -> Answer {
    let handler = service_fn(move |_: Request<()>| {
        let response = response.clone();
        async move { Ok::<_, Infallible>(response) }
    });
    call(layer.layer(handler), request).await
}

async fn call<S, B>(service: S, request: Request<()>) -> Answer
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let Ok(response) = service.oneshot(request).await;
    let (parts, body) = response.into_parts();
    Answer {
        status: parts.status,
        headers: parts.headers,
        decision: parts.extensions.get().cloned(),
        body: body.collect().await.unwrap().to_bytes(),
    }
}

fn fixed(policy: QuotaPolicy) -> QuotaPolicy {
    policy.with_algorithm(Algorithm::FixedWindow)
}

fn minute(quota: u64) -> QuotaPolicy {
    fixed(QuotaPolicy::per_minute("minute", quota))
}
