use http::{request, response};

use super::RateLimitLayerBuilder;
use crate::{error::ConfigErrorKind, layer::cost::ExpectedCost, policy::UnitName, rules::Rules};

/// # Advanced: policies and costs
impl RateLimitLayerBuilder {
    /// Adds policies or tiers that are defined outside the program, for example in a file. See [`Rules`].
    ///
    /// Rules are added to the policies of [`policy`](Self::policy), in call order. Their tiers precede the tiers of
    /// [`tiers`](Self::tiers). Rules with tiers require `tiers`, which selects the tier of a request, and cannot be
    /// combined with policies. A [`RulesHandle`](crate::RulesHandle) replaces all policies and tiers.
    pub fn rules(self, rules: Rules) -> Self {
        self.limiter(ConfigErrorKind::Policies, "rules", |limiter| limiter.rules(rules))
    }

    /// Sets the cost of each request, for policies that count requests. Default: 1.
    ///
    /// A request with cost 0 is not charged in any unit, unless its [`ActualCost`](crate::ActualCost) is above 0. The
    /// response still has fields. [`build`](Self::build) and [new rules](crate::RulesHandle::replace) fail if the cost
    /// exceeds the capacity of a policy.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost.expected = ExpectedCost::Same(cost);
        self
    }

    /// Computes the cost of each request from its method, path, header fields and extensions. See [`cost`](Self::cost).
    ///
    /// The closure is called once per request, on its task, and must not block. A request that costs more than the
    /// capacity of a policy is rejected without `Retry-After`; a `tracing` event reports the first such request.
    pub fn cost_by<F>(mut self, cost: F) -> Self
    where
        F: Fn(&request::Parts) -> u64 + Send + Sync + 'static,
    {
        self.cost.expected = ExpectedCost::By(Box::new(cost));
        self
    }

    /// Computes the cost of each request in a [custom unit](crate::QuotaPolicy::with_unit). Required for each custom
    /// unit.
    ///
    /// All units are charged in one decision, together with [`cost`](Self::cost); a request with a `cost` of 0 is not
    /// charged in any unit. An amount above the capacity of the policy is rejected without `Retry-After`. An amount of
    /// 0 is admitted unless the policy is overdrawn.
    ///
    /// The closure is called once per request, if a policy of the request counts the unit. It must not block and cannot
    /// read the body. If the estimate depends on the body, let a middleware outside the layer read the body and insert
    /// the estimate as an extension, as in the [guide](crate::guide::tokens).
    ///
    /// ```
    /// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// /// An estimate that a middleware has computed from the body.
    /// #[derive(Clone)]
    /// struct Estimate(u64);
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("models")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("requests", 60))
    ///     .policy(QuotaPolicy::per_minute("tokens", 6_000).with_unit("tokens"))
    ///     .unit_cost("tokens", |request| match request.extensions.get() {
    ///         Some(Estimate(tokens)) => *tokens,
    ///         None => 1_000,
    ///     })
    ///     .build()?;
    /// # let response = set_up::send(&layer, http::Request::post("/").extension(Estimate(1_500))).await;
    /// # assert_eq!(response.headers()["ratelimit"], r#""requests";r=59;t=59, "tokens";r=4500;t=45"#);
    /// # Ok(()) });
    /// ```
    ///
    /// The cost can be an estimate, such as the tokens of a prompt plus the maximum length of the answer. To charge or
    /// refund the difference, report the actual amount to the request's [permit](crate::WeakPermit).
    ///
    /// [`build`](Self::build) fails if no policy uses the unit, or if a policy has a unit without a cost.
    pub fn unit_cost<F>(mut self, unit: &str, cost: F) -> Self
    where
        F: Fn(&request::Parts) -> u64 + Send + Sync + 'static,
    {
        self.cost.units.push((UnitName::new(unit), Box::new(cost)));
        self
    }

    /// Computes the actual cost of each request from its response. `None` leaves the charge as it is. Default: always
    /// `None`.
    ///
    /// The difference is charged or refunded without delaying the response. The closure runs on the request's task and
    /// must not block. [`ActualCost`](crate::ActualCost) in the response takes precedence.
    ///
    /// To count only failures, such as failed logins, charge 1 unit and refund it on success. Concurrent attempts then
    /// cannot exceed the limit. gRPC responses have status 200 even if the call has failed.
    ///
    /// ```
    /// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let failed_logins = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("failed logins")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("failures", 10))
    ///     .actual_cost(|response| response.status.is_success().then_some(0))
    ///     .build()?;
    /// # use set_up::{Layer, Request, Response, ServiceExt, service_fn};
    /// # let login = failed_logins.layer(service_fn(async |request: Request<String>| {
    /// #     let status = if *request.body() == "sesame" { 200 } else { 401 };
    /// #     Response::builder().status(status).body(String::new())
    /// # }));
    /// # for (password, left) in [("sesame", "r=10"), ("12345", "r=9"), ("sesame", "r=9")] {
    /// #     let request = Request::post("/").header("x-user-id", "alice").body(password.to_owned())?;
    /// #     let response = login.clone().oneshot(request).await?;
    /// #     assert!(response.headers()["ratelimit"].to_str()?.contains(left), "{password}");
    /// # }
    /// # Ok(()) });
    /// ```
    ///
    /// # Rejections by inner layers
    ///
    /// The closure also runs for rejections by an inner [`RateLimitLayer`](crate::RateLimitLayer). By default, they
    /// stay charged, so that a client that exceeds the inner limit also exhausts the limit of this layer. A closure
    /// that refunds error statuses should leave rejections charged:
    ///
    /// ```
    /// use tower_quota::{Decision, MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let outer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("outer")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("outer", 10))
    ///     .actual_cost(|response| {
    ///         let decision: Option<&Decision> = response.extensions.get();
    ///         let is_rejected = decision.is_some_and(|decision| !decision.outcome().is_admitted());
    ///         (response.status.is_server_error() && !is_rejected).then_some(0)
    ///     })
    ///     .build()?;
    /// # use set_up::{Layer, Request, Response, ServiceExt, StatusCode, service_fn};
    /// # let inner = RateLimitLayer::builder(MemoryStore::new())
    /// #     .scope("inner")
    /// #     .key(key::header("x-user-id"))
    /// #     .policy(QuotaPolicy::per_hour("inner", 1))
    /// #     .rejection_status(StatusCode::SERVICE_UNAVAILABLE)
    /// #     .build()?;
    /// # let service = outer.layer(inner.layer(service_fn(async |_: Request<String>| {
    /// #     Response::builder().status(500).body(String::new())
    /// # })));
    /// # for (status, left) in [(500, r#""outer";r=10;"#), (503, r#""outer";r=9;"#), (503, r#""outer";r=8;"#)] {
    /// #     let response = service.clone().oneshot(Request::get("/").header("x-user-id", "alice").body(String::new())?).await?;
    /// #     assert_eq!(response.status(), status);
    /// #     assert!(response.headers()["ratelimit"].to_str()?.contains(left));
    /// # }
    /// # Ok(()) });
    /// ```
    ///
    /// # Limits of refunds
    ///
    /// Units that the policy has already refilled are not refunded. A refund is possible within one window after the
    /// charge. Leaky buckets are not refunded once the request has left the queue.
    pub fn actual_cost<F>(mut self, actual_cost: F) -> Self
    where
        F: Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static,
    {
        self.cost.actual = Some(Box::new(actual_cost));
        self
    }
}
