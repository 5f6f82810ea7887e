//! The layers of a set-up: the one that limits, and seven that see the same requests under each algorithm.

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

/// A page that cannot be told for so long shows a gap.
const PEEK: Duration = Duration::from_millis(50);

/// The stores. They outlive set-ups, so that what was used stays used.
#[derive(Clone, Debug)]
pub(crate) struct Stores {
    pub(crate) main: RemovableStore,
    pub(crate) fallback: MemoryStore,
    pub(crate) compared: MemoryStore,
}

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) setup: Setup,
    /// The service behind the layer that limits.
    pub(crate) limited: Router,
    layer: RateLimitLayer,
    policies: PolicySet,
    stores: Stores,
    compared: Vec<Result<RateLimitLayer, String>>,
}

impl Stage {
    /// # Errors
    ///
    /// If `build()` finds a mistake. An algorithm that cannot have these policies is shown with its error, beside the others.
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

    /// The mistakes of the seven, by their place.
    pub(crate) fn mistakes(&self) -> Vec<Option<&str>> {
        let errors = self.compared.iter();
        errors.map(|layer| layer.as_ref().err().map(String::as_str)).collect()
    }

    /// Shows a request to each of the seven.
    pub(crate) fn compare(&self, caller: &str, tallies: &Arc<[Tally; ALGORITHMS.len()]>) {
        for (index, layer) in self.compared.iter().enumerate() {
            let (Ok(layer), Ok(request)) = (layer, Request::get("/").header(KEY, caller).body(())) else {
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

    /// Returns the units that each caller has left of each policy, or `null` while no store knows them.
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

    /// Gives every caller its whole quota back, in all stores.
    pub(crate) async fn refill(&self) {
        let plan = |scope, policies: &PolicySet, caller| {
            let partition = Scope::new(scope).partition(&PartitionKey::new(KEY, caller));
            Plan::new(policies.clone(), partition, 1)
        };
        for caller in CALLERS {
            let key = PartitionKey::new(KEY, caller);
            // A store that is unavailable keeps what it has.
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
