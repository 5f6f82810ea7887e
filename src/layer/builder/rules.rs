use http::{request, response};

use super::RateLimitLayerBuilder;
use crate::{error::ConfigErrorKind, layer::cost::ExpectedCost, policy::UnitName, rules::Rules};

/// # Advanced: policies and costs
impl RateLimitLayerBuilder {
    /// Adds policies or tiers that are defined outside the program, for example in a file.
    ///
    /// Rules are added to the policies of [`policy`](Self::policy), in call order. Their tiers precede the tiers of
    /// [`tiers`](Self::tiers). Rules with tiers require `tiers`, which selects the tier of a request, and cannot be
    /// combined with policies. A [`RulesHandle`](crate::RulesHandle) replaces all policies and tiers.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// // From a file, with the feature `serde`:
    /// let rules = Rules::new().tier("free", [QuotaPolicy::per_minute("minute", 60)]).unlimited("admin");
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .tiers(Tiers::from_fn(|request| request.headers.get("x-plan")?.to_str().ok()))
    ///     .rules(rules)
    ///     .build()?;
    ///
    /// let free = send(&layer, Request::get("/").header("x-plan", "free")).await;
    /// assert_eq!(free.headers()["ratelimit"], r#""minute";r=59;t=59"#);
    /// let admin = send(&layer, Request::get("/").header("x-plan", "admin")).await;
    /// assert!(!admin.headers().contains_key("ratelimit"));
    /// # Ok(()) });
    /// ```
    pub fn rules(self, rules: Rules) -> Self {
        self.limiter(ConfigErrorKind::Policies, "rules", |limiter| limiter.rules(rules))
    }

    /// Sets the cost of each request, for policies that count requests. Default: 1.
    ///
    /// A request with cost 0 is not charged in any unit, unless its [`ActualCost`](crate::ActualCost) is above 0. The
    /// response still has fields. [`build`](Self::build) and [new rules](crate::RulesHandle::replace) fail if the cost
    /// exceeds the capacity of a policy.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("reports")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .cost(25)
    ///     .build()?;
    ///
    /// let response = send(&layer, Request::get("/").header("x-user-id", "alice")).await;
    /// assert_eq!(response.headers()["ratelimit"], r#""hour";r=75;t=2700"#);
    /// # Ok(()) });
    /// ```
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost.expected = ExpectedCost::Same(cost);
        self
    }

    /// Computes the cost of each request from its method, path, header fields and extensions. See [`cost`](Self::cost).
    ///
    /// The closure is called once per request, on its task, and must not block. A request that costs more than the
    /// capacity of a policy is rejected without `Retry-After`; a `tracing` event reports the first such request.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 60))
    ///     .cost_by(|request| match request.uri.path() {
    ///         "/usage" => 0,
    ///         "/search" => 5,
    ///         _ => 1,
    ///     })
    ///     .build()?;
    ///
    /// for (path, left) in [("/search", "r=55"), ("/items", "r=54"), ("/usage", "r=54")] {
    ///     let response = send(&layer, Request::get(path).header("x-user-id", "alice")).await;
    ///     assert!(response.headers()["ratelimit"].to_str()?.contains(left), "{path}");
    /// }
    /// # Ok(()) });
    /// ```
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
    /// The cost can be an estimate, such as the tokens of a prompt plus the maximum length of the answer. To charge or
    /// refund the difference, report the actual amount to the request's [permit](crate::WeakPermit). All units are
    /// charged in one decision, together with [`cost`](Self::cost). An amount of 0 is admitted unless the policy is
    /// overdrawn. An amount above the capacity of the policy is rejected without `Retry-After`. A request with a `cost`
    /// of 0 is not charged in any unit.
    ///
    /// The closure is called once per request, if a policy of the request counts the unit. It must not block and cannot
    /// read the body. If the estimate depends on the body, let a middleware outside the layer read the body and insert
    /// the estimate as an extension, as in the [guide](crate::guide#tokens).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// /// An estimate that a middleware has computed from the body.
    /// #[derive(Clone)]
    /// struct Estimate(u64);
    ///
    /// let builder = || RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("models")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("requests", 60));
    /// let layer = builder()
    ///     .policy(QuotaPolicy::per_minute("tokens", 6_000).with_unit("tokens"))
    ///     .unit_cost("tokens", |request| request.extensions.get().map_or(1_000, |Estimate(tokens)| *tokens))
    ///     .build()?;
    ///
    /// let response = send(&layer, Request::post("/").extension(Estimate(1_500))).await;
    /// assert_eq!(response.headers()["ratelimit"], r#""requests";r=59;t=59, "tokens";r=4500;t=45"#);
    ///
    /// let error = builder().unit_cost("tokens", |_| 1).build().unwrap_err();
    /// assert_eq!(error.to_string(), r#"unit "tokens": not used by any policy; use `with_unit`, or remove the unit"#);
    /// let error = builder().policy(QuotaPolicy::per_day("images", 9).with_unit("images")).build().unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     r#"policy "images": unit "images" has no cost; `unit_cost` is set for []"#
    /// );
    /// # Ok(()) });
    /// ```
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
    /// must not block. [`ActualCost`](crate::ActualCost) in the response takes precedence. To count only failed logins,
    /// charge 1 unit and refund it on success. Concurrent attempts then cannot exceed the limit.
    ///
    /// The closure also runs for rejections by an inner [`RateLimitLayer`](crate::RateLimitLayer). By default,
    /// rejections stay charged, so that a client that exceeds the inner limit also exhausts the limit of this layer. A
    /// closure that refunds error statuses, such as 5xx, should leave rejections charged, as in the second example. A
    /// rejection has a [`Decision`](crate::Decision) in `response.extensions` whose outcome is not
    /// [admitted](crate::Outcome::is_admitted). gRPC responses have status 200 even if the call has failed.
    ///
    /// Refunds do not include units that the policy has already refilled, and are possible within one window after the
    /// charge. Leaky buckets are not refunded once the request has left the queue.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let failed_logins = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("failed logins")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("failures", 10))
    ///     .actual_cost(|response| response.status.is_success().then_some(0))
    ///     .build()?;
    /// let login = failed_logins.layer(service_fn(async |request: Request<&str>| {
    ///     let status = if *request.body() == "sesame" { 200 } else { 401 };
    ///     Response::builder().status(status).body(String::new())
    /// }));
    ///
    /// for (password, left) in [("sesame", "r=10"), ("12345", "r=9"), ("sesame", "r=9")] {
    ///     let request = Request::post("/").header("x-user-id", "alice").body(password)?;
    ///     let response = login.clone().oneshot(request).await?;
    ///     assert!(response.headers()["ratelimit"].to_str()?.contains(left), "{password}");
    /// }
    /// # Ok(()) });
    /// ```
    ///
    /// This example refunds server errors, but not rejections by the inner layer:
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// use tower_quota::Decision;
    ///
    /// let builder = |scope: &'static str, quota| RateLimitLayer::builder(MemoryStore::new())
    ///     .scope(scope)
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour(scope, quota));
    /// let inner = builder("inner", 1).rejection_status(http::StatusCode::SERVICE_UNAVAILABLE).build()?;
    /// let outer = builder("outer", 10)
    ///     .actual_cost(|response| {
    ///         let decision: Option<&Decision> = response.extensions.get();
    ///         let is_rejected = decision.is_some_and(|decision| !decision.outcome().is_admitted());
    ///         (response.status.is_server_error() && !is_rejected).then_some(0)
    ///     })
    ///     .build()?;
    /// let service = outer.layer(inner.layer(service_fn(async |_: Request<()>| {
    ///     Response::builder().status(500).body(String::new())
    /// })));
    ///
    /// for (status, left) in [(500, r#""outer";r=10;"#), (503, r#""outer";r=9;"#), (503, r#""outer";r=8;"#)] {
    ///     let response = service.clone().oneshot(Request::get("/").header("x-user-id", "alice").body(())?).await?;
    ///     assert_eq!(response.status(), status);
    ///     assert!(response.headers()["ratelimit"].to_str()?.contains(left));
    /// }
    /// # Ok(()) });
    /// ```
    pub fn actual_cost<F>(mut self, actual_cost: F) -> Self
    where
        F: Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static,
    {
        self.cost.actual = Some(Box::new(actual_cost));
        self
    }
}
