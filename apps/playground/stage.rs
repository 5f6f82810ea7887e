//! The layers of a configuration: an enforcing layer, and seven comparison layers, each with the same policies and one
//! of the seven algorithms.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{Router, routing::get};
use futures_util::future::join_all;
use http::{Request, Response};
use serde_json::Value;
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    ConfigError, Decision, Limiter, MemoryStore, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, Scope, Store, key,
};

use super::{
    outage::RemovableStore,
    setup::{ALGORITHMS, Outage, Setup},
    tally::{CALLERS, Tally},
};

const SCOPE: &str = "playground";
const KEY: &str = "x-user-id";

/// If the store takes longer, the page shows a gap.
const PEEK: Duration = Duration::from_millis(50);

/// The stores of all layers. They outlive configurations, so that used units remain used.
#[derive(Clone, Debug)]
pub(crate) struct Stores {
    pub(crate) main: RemovableStore,
    pub(crate) fallback: MemoryStore,
    pub(crate) compared: MemoryStore,
}

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) setup: Setup,
    /// The service with the enforcing layer.
    pub(crate) limited: Router,
    layer: RateLimitLayer,
    policies: PolicySet,
    stores: Stores,
    compared: Vec<Result<RateLimitLayer, String>>,
}

impl Stage {
    /// # Errors
    ///
    /// Returns an error if the configuration is invalid. The page shows an algorithm that does not support these
    /// policies with an error.
    pub(crate) fn new(setup: Setup, stores: Stores) -> Result<Self, ConfigError> {
        let limiter = Limiter::builder(stores.main.clone());
        let limiter = match setup.outage {
            Outage::Fallback => limiter.fallback(stores.fallback.clone()),
            Outage::Closed | Outage::Open => limiter,
        };
        let builder = RateLimitLayerBuilder::from(limiter)
            .decision_in_response()
            .failure_mode(setup.outage.failure_mode())
            .response_fields((setup.dialect.fields)());
        let layer = build(builder, SCOPE, setup.policies.iter().cloned(), setup.cost)?;
        let compared = ALGORITHMS.map(|(name, algorithm)| {
            let algorithm = setup.same_or(algorithm);
            let builder = RateLimitLayer::builder(stores.compared.clone()).decision_in_response();
            let layer = build(builder, name, setup.policies_under(algorithm), setup.cost);
            layer.map_err(|error| error.to_string())
        });
        Ok(Self {
            limited: Router::new()
                .route("/try", get(|| async { "Hello!\n" }))
                .layer(layer.clone()),
            policies: PolicySet::new(setup.policies.clone())?,
            compared: compared.into(),
            layer,
            setup,
            stores,
        })
    }

    /// The errors of the seven comparison layers, by index.
    pub(crate) fn mistakes(&self) -> Vec<Option<&str>> {
        let errors = self.compared.iter();
        errors.map(|layer| layer.as_ref().err().map(String::as_str)).collect()
    }

    /// Sends a request through each of the seven comparison layers.
    pub(crate) fn compare(&self, caller: &str, tallies: &Arc<[Tally; ALGORITHMS.len()]>) {
        for (index, layer) in self.compared.iter().enumerate() {
            let (Ok(layer), Ok(request)) = (layer, Request::get("/").header(KEY, caller).body(String::new())) else {
                continue;
            };
            let inner = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
            let answer = layer.layer(inner).oneshot(request);
            let tallies = Arc::clone(tallies);
            tokio::spawn(async move {
                let request = tallies[index].begin();
                let Ok(response) = answer.await;
                request.end(response.extensions().get::<Decision>());
            });
        }
    }

    /// Returns the remaining units of each caller and policy, or `null` while the store is unavailable.
    pub(crate) async fn left(&self) -> Value {
        let left = join_all(CALLERS.map(async |caller| {
            let known = timeout(PEEK, self.peek(caller)).await.ok().flatten();
            let units = known.map(|decision| decision.allowances().map(|policy| policy.remaining()).collect());
            (
                caller.to_owned(),
                units.map_or(Value::Null, |units: Vec<u64>| units.into()),
            )
        }));
        Value::Object(left.await.into_iter().collect())
    }

    async fn peek(&self, caller: &str) -> Option<Decision> {
        let partition = Scope::new(SCOPE).partition(&PartitionKey::new(KEY, caller));
        let plan = Plan::new(self.policies.clone(), partition, 1);
        match (self.stores.main.is_taken_away(), self.setup.outage) {
            (false, _) => self.stores.main.peek(plan).await.ok(),
            (true, Outage::Fallback) => self.stores.fallback.peek(plan).await.ok(),
            (true, Outage::Closed | Outage::Open) => None,
        }
    }

    /// Resets every caller in all stores.
    pub(crate) async fn refill(&self) {
        let plan = |scope, policies: &PolicySet, caller| {
            let partition = Scope::new(scope).partition(&PartitionKey::new(KEY, caller));
            Plan::new(policies.clone(), partition, 1)
        };
        for caller in CALLERS {
            let key = PartitionKey::new(KEY, caller);
            // An unavailable store is not reset.
            let _ = self.layer.limiter().caller(&key).reset().await;
            let _ = self.stores.fallback.reset(plan(SCOPE, &self.policies, caller)).await;
            for layer in self.compared.iter().flatten() {
                let _ = layer.limiter().caller(&key).reset().await;
            }
        }
    }
}

fn build(
    builder: RateLimitLayerBuilder,
    scope: &str,
    policies: impl Iterator<Item = QuotaPolicy>,
    cost: u64,
) -> Result<RateLimitLayer, ConfigError> {
    let builder = builder.scope(scope).key(key::header(KEY)).cost(cost);
    policies.fold(builder, RateLimitLayerBuilder::policy).build()
}
