use http::{request, response};

use crate::{
    decision::Plan,
    error::{ConfigError, ConfigErrorKind},
    policy::UnitName,
};

pub(super) type CostOf = dyn Fn(&request::Parts) -> u64 + Send + Sync;
pub(super) type ActualCostOf = dyn Fn(&response::Parts) -> Option<u64> + Send + Sync;

#[derive(Default)]
pub(super) struct RequestCost {
    pub(super) expected: ExpectedCost,
    pub(super) actual: Option<Box<ActualCostOf>>,
    pub(super) units: Vec<(UnitName, Box<CostOf>)>,
}

pub(super) enum ExpectedCost {
    By(Box<CostOf>),
    Same(u64),
}

impl Default for ExpectedCost {
    fn default() -> Self {
        Self::Same(1)
    }
}

impl RequestCost {
    pub(super) fn of(&self, request: &request::Parts) -> u64 {
        match &self.expected {
            ExpectedCost::By(cost) => cost(request),
            ExpectedCost::Same(cost) => *cost,
        }
    }

    /// Returns `None` if a closure computes the cost.
    pub(super) fn fixed(&self) -> Option<u64> {
        match self.expected {
            ExpectedCost::By(_) => None,
            ExpectedCost::Same(cost) => Some(cost),
        }
    }

    pub(super) fn units(&self) -> Result<Vec<UnitName>, ConfigError> {
        let mut names = Vec::new();
        for (unit, _) in &self.units {
            unit.check()?;
            if names.contains(unit) {
                let message = format!("unit {unit:?}: cost is set twice");
                return Err(ConfigError::new(ConfigErrorKind::Unit, message));
            }
            names.push(*unit);
        }
        Ok(names)
    }

    #[inline]
    pub(super) fn in_units(&self, plan: Plan, units: &[usize], request: &request::Parts) -> Plan {
        units.iter().fold(plan, |plan, unit| {
            let (name, cost) = &self.units[*unit];
            plan.with_unit_costs(name.id(), cost(request))
        })
    }

    pub(super) fn actual(&self, response: &response::Parts) -> Option<u64> {
        let told = response.extensions.get().map(|ActualCost(cost)| *cost);
        told.or_else(|| self.actual.as_ref()?(response))
    }
}

/// The actual cost of a request, for policies that count requests.
///
/// Handlers and layers insert it into the extensions of the response, for costs that are only known afterwards, such as
/// the number of rows of a query. The layer then charges or refunds the difference to the estimated cost.
///
/// Takes precedence over [`actual_cost`](crate::RateLimitLayerBuilder::actual_cost). Each layer around the handler
/// applies the cost to its own policies. A higher cost is a [late charge](crate::Settlement#late-charges).
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use tower::ServiceExt;
/// use tower_quota::{ActualCost, MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("search")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .build()?;
/// let app: Router = Router::new()
///     .route("/", get(|| async { (Extension(ActualCost(25)), "found 2500 rows") }))
///     .layer(limits);
///
/// let request = http::Request::get("/").header("x-user-id", "alice").body(String::new())?;
/// let response = app.oneshot(request).await?;
/// assert_eq!(response.headers()["ratelimit"], r#""hour";r=75;t=2700"#);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActualCost(pub u64);
