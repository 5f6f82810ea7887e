//! The promises of the layer to the service around it, with a store in memory.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod calendar;
mod caller_quotas;
mod claims;
mod closed;
mod content;
mod contract;
mod costs;
mod end_of_time;
mod explanation;
mod floods;
mod late_charges;
mod limiter;
mod lockout;
mod memory_path;
mod mistakes;
mod nested;
mod overage;
mod overlays;
mod queue;
mod rejection_cache;
mod responses;
mod rules;
mod screening;
mod shared_limiter;
mod slots;
mod test_util;
mod tier;
mod usage;

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use test_kit::{Answered, memory, send};
use tower_quota::{
    Limiter, LimiterBuilder, MemoryStore, PartitionKey, Permit, Plan, PolicySet, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, Scope, Store, WeakPermit,
    clock::{Clock, Timestamp},
    key,
};

/// A store with a separate clock, and the policies of a layer on it.
#[derive(Clone)]
struct Scene {
    clock: Clock,
    store: MemoryStore,
    policies: Vec<QuotaPolicy>,
}

impl Scene {
    fn new(policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        Self {
            store: memory(&clock),
            policies: policies.into_iter().collect(),
            clock,
        }
    }

    /// A layer in whose limits everybody shares.
    fn builder(&self) -> RateLimitLayerBuilder {
        self.builder_with(|limiter| limiter)
    }

    /// Like `builder`, with additional settings of the limiter.
    fn builder_with(&self, settings: impl FnOnce(LimiterBuilder) -> LimiterBuilder) -> RateLimitLayerBuilder {
        builder_of(settings(Limiter::builder(self.store.clone())), &self.policies)
    }

    fn layer(&self) -> RateLimitLayer {
        self.builder().build().unwrap()
    }

    /// The units that each policy has left.
    async fn left(&self) -> Vec<u64> {
        left(&self.store, &self.policies).await
    }

    async fn take(&self, cost: u64) {
        self.store.decide(plan(&self.policies, cost)).await.unwrap();
    }
}

fn builder(store: impl Store, policies: &[QuotaPolicy]) -> RateLimitLayerBuilder {
    builder_of(Limiter::builder(store), policies)
}

fn builder_of(limiter: LimiterBuilder, policies: &[QuotaPolicy]) -> RateLimitLayerBuilder {
    let builder = RateLimitLayerBuilder::from(limiter.deadline(Duration::from_secs(60)))
        .decision_in_response()
        .scope("layer")
        .key(key::from_fn(|_| Some(everybody())));
    policies
        .iter()
        .fold(builder, |builder, policy| builder.policy(policy.clone()))
}

async fn left(store: &dyn Store, policies: &[QuotaPolicy]) -> Vec<u64> {
    let decision = store.peek(plan(policies, 1)).await.unwrap();
    decision.allowances().map(|allowance| allowance.remaining()).collect()
}

fn plan(policies: &[QuotaPolicy], cost: u64) -> Plan {
    let policies = PolicySet::new(policies.iter().cloned()).unwrap();
    Plan::new(policies, Scope::new("layer").partition(&everybody()), cost)
}

fn everybody() -> PartitionKey {
    PartitionKey::new("everybody", "")
}

/// The permit of a request that a handler has got.
fn permit_of<B>(request: &Request<B>) -> Permit {
    request.extensions().get().and_then(WeakPermit::upgrade).unwrap()
}

type TextBody = Full<Bytes>;

fn request() -> Request<TextBody> {
    Request::new(Full::from("question"))
}

async fn hello(_: Request<TextBody>) -> Result<Response<TextBody>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

fn ratelimit<B>(response: &Response<B>) -> &str {
    response.field("ratelimit")
}

/// A body of `frames` frames of a thousand bytes, of unknown length; endless if `None`.
#[derive(Debug)]
struct Stream {
    frames: Option<usize>,
}

impl Stream {
    fn of(frames: usize) -> Self {
        Self { frames: Some(frames) }
    }

    fn endless() -> Self {
        Self { frames: None }
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(frames) = &mut self.frames {
            match frames.checked_sub(1) {
                Some(left) => *frames = left,
                None => return Poll::Ready(None),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 1_000])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// A stream that announces a length, which need not be true, and never ends.
#[derive(Debug)]
struct Announced {
    stream: Stream,
    length: u64,
}

impl Announced {
    fn of(length: u64) -> Self {
        let stream = Stream::endless();
        Self { stream, length }
    }
}

impl Body for Announced {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.stream).poll_frame(cx)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length)
    }
}

/// One frame, and then an error.
#[derive(Debug, Default)]
struct Broken {
    frames: usize,
}

impl Body for Broken {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.frames += 1;
        Poll::Ready(Some(match self.frames {
            1 => Ok(Frame::data(Bytes::from_static(&[0; 1_000]))),
            _ => Err("broken"),
        }))
    }
}
