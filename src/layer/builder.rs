//! Configuration of a layer, checked as a whole.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode, request, response};

use super::{
    RateLimitLayer,
    admission::Limits,
    attribution::{Attribution, AttributionSettings, NoKey},
    cost::{ExpectedCost, RequestCost},
};
use crate::{
    clock::Clock,
    error::{ConfigError, ConfigErrorKind},
    guard::{FailureMode, Guard, Terms},
    key::KeyExtractor,
    quota::QuotaPolicy,
    rejection::{Rejection, Responder},
    response_fields::ResponseFields,
    rules::{Policies, Rules, Tiers},
    screening::{AbnormalUsage, AccessList, Capacity, Exemption, Screening},
    store::Store,
    telemetry::{self, LayerTelemetry},
};

/// Settings of a [`RateLimitLayer`]. A scope, a key and at least one policy are needed; all else has a default.
///
/// Nothing is checked before [`build`](Self::build), which needs no store that answers.
///
/// ```
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// let builder = || RateLimitLayer::builder(MemoryStore::new()).scope("api").key(key::client_ip());
/// assert!(builder().policy(QuotaPolicy::per_minute("minute", 60)).build().is_ok());
///
/// let error = builder().build().unwrap_err();
/// assert_eq!(error.to_string(), "policies: their number 0 is outside 1..=16");
/// let error = RateLimitLayer::builder(MemoryStore::new()).scope("api").build().unwrap_err();
/// assert_eq!(error.to_string(), "key: it is missing");
/// let error = RateLimitLayer::builder(MemoryStore::new()).build().unwrap_err();
/// assert_eq!(error.to_string(), "scope: it is missing or empty");
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct RateLimitLayerBuilder {
    store: Arc<dyn Store>,
    attribution: AttributionSettings,
    rules: Rules,
    tiers: Option<Tiers>,
    terms: Terms,
    clock: Clock,
    fallback: Option<Arc<dyn Store>>,
    responder: Responder,
    status: StatusCode,
    fields: ResponseFields,
    screening: Screening,
    cost: RequestCost,
    decision_in_request: bool,
}

impl RateLimitLayerBuilder {
    pub(super) fn new(store: impl Store) -> Self {
        Self {
            store: Arc::new(store),
            attribution: AttributionSettings::default(),
            rules: Rules::new(),
            tiers: None,
            terms: Terms::default(),
            clock: Clock::system(),
            fallback: None,
            responder: Responder::default(),
            status: StatusCode::TOO_MANY_REQUESTS,
            fields: ResponseFields::default(),
            screening: Screening::default(),
            cost: RequestCost::default(),
            decision_in_request: false,
        }
    }

    /// What the limits are about, `"api"` or `"login"`, say. Needed.
    ///
    /// Layers with the same scope on the same store share their buckets, in all instances; layers with different scopes
    /// never do.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// let store = MemoryStore::new();
    /// let layer = |scope| {
    ///     let builder = RateLimitLayer::builder(store.clone()).scope(scope).key(key::header("x-user-id"));
    ///     builder.policy(QuotaPolicy::per_hour("hour", 10)).build()
    /// };
    /// let alice = || Request::get("/").header("x-user-id", "alice");
    ///
    /// send(&layer("api")?, alice()).await;
    /// let again = send(&layer("api")?, alice()).await;
    /// assert_eq!(again.headers()["ratelimit"], r#""hour";r=8;t=2880"#);
    /// let elsewhere = send(&layer("mails")?, alice()).await;
    /// assert_eq!(elsewhere.headers()["ratelimit"], r#""hour";r=9;t=3240"#);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.attribution.scope = Some(scope.into());
        self
    }

    /// Whose quota a request uses; see [`key`](crate::key). Needed.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 1))
    ///     .build()?;
    ///
    /// for (user, status) in [("alice", 200), ("alice", 429), ("bob", 200)] {
    ///     assert_eq!(send(&layer, Request::get("/").header("x-user-id", user)).await.status(), status);
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn key(mut self, key: impl KeyExtractor) -> Self {
        self.attribution.key = Some(Box::new(key));
        self
    }

    /// Another key, for policies that are [counted by](QuotaPolicy::counted_by) it. Names must be unique and not
    /// empty.
    ///
    /// A request then uses the quota of several partitions, in one decision: of all of them or of none. Where it has no
    /// such key, [`no_key`](Self::no_key) says what happens: it shares the quota of all that have none, or these policies
    /// do not apply to it, or it is rejected.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// # use tower_quota::PartitionKey;
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .named_key("team", key::header("x-team"))
    ///     .named_key("everybody", key::from_fn(|_| Some(PartitionKey::new("everybody", ""))))
    ///     .policy(QuotaPolicy::per_hour("user", 60))
    ///     .policy(QuotaPolicy::per_hour("team", 100).counted_by("team"))
    ///     .policy(QuotaPolicy::per_second("all", 5_000).counted_by("everybody"))
    ///     .build()?;
    ///
    /// let request = |user| Request::get("/").header("x-user-id", user).header("x-team", "red");
    /// send(&layer, request("alice")).await;
    /// let bob = send(&layer, request("bob")).await;
    /// assert!(bob.headers()["ratelimit"].to_str()?.starts_with(r#""user";r=59;t=3540, "team";r=98;"#));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn named_key(mut self, name: impl Into<String>, key: impl KeyExtractor) -> Self {
        self.attribution.named_keys.push((name.into(), Box::new(key)));
        self
    }

    /// A secret that goes into the digests under which stores know callers. Default: none, so that the digest depends
    /// on the scope alone.
    ///
    /// You want it if others can read the store and must not find out, by trying names, who has called; and if a policy
    /// [shows its partition key](QuotaPolicy::show_partition_key), since then every client can try them. It has to be the
    /// same in all instances; with another secret, every caller starts with a full quota.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// let store = MemoryStore::new();
    /// let builder = || {
    ///     let builder = RateLimitLayer::builder(store.clone()).scope("api").key(key::header("x-user-id"));
    ///     builder.policy(QuotaPolicy::per_hour("hour", 10))
    /// };
    /// let alice = || Request::get("/").header("x-user-id", "alice");
    ///
    /// send(&builder().digest_key([7; 32]).build()?, alice()).await;
    /// let with_the_secret = send(&builder().digest_key([7; 32]).build()?, alice()).await;
    /// assert_eq!(with_the_secret.headers()["ratelimit"], r#""hour";r=8;t=2880"#);
    /// let without = send(&builder().build()?, alice()).await;
    /// assert_eq!(without.headers()["ratelimit"], r#""hour";r=9;t=3240"#);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn digest_key(mut self, key: [u8; 32]) -> Self {
        self.attribution.digest_key = Some(key);
        self
    }

    /// Names callers in the keys of Redis, as `quota:{scope:api/user:alice}`, instead of by digests. Default: digests.
    ///
    /// You want it while you look for a mistake, or where operators search Redis by name. Whoever can read Redis then reads
    /// who has called, and keys are longer; a key that would be longer than 200 bytes stays a digest. All instances need the
    /// same setting: with another one, every caller starts with a full quota. In-memory stores have no such keys. It cannot be
    /// set together with a [`digest_key`](Self::digest_key), which is there to hide names.
    ///
    /// ```
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    /// let builder = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60))
    ///     .readable_keys();
    ///
    /// let error = builder.digest_key([7; 32]).build().unwrap_err();
    /// assert_eq!(error.to_string(), "readable keys: a digest key is set, which is to hide who has called");
    /// ```
    pub fn readable_keys(mut self) -> Self {
        self.attribution.readable_keys = true;
        self
    }

    /// What happens to requests without a key. Default: [`NoKey::Share`]. See [`NoKey`] for an example of each.
    pub fn no_key(mut self, no_key: NoKey) -> Self {
        self.attribution.no_key = no_key;
        self
    }

    /// Adds a policy. A request has to fit into all of them, and uses quota of all of them or of none. Up to 16.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .policy(QuotaPolicy::per_day("day", 2))
    ///     .build()?;
    /// let alice = || Request::get("/").header("x-user-id", "alice");
    ///
    /// send(&layer, alice()).await;
    /// send(&layer, alice()).await;
    /// let rejected = send(&layer, alice()).await;
    /// assert_eq!(rejected.status(), 429);
    /// assert!(rejected.headers()["ratelimit"].to_str()?.starts_with(r#""hour";r=98;t=3528, "day";r=0;"#));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn policy(mut self, policy: QuotaPolicy) -> Self {
        self.rules = self.rules.policy(policy);
        self
    }

    /// Policies by the tier of the caller, in place of [`policy`](Self::policy): both together are an error of
    /// [`build`](Self::build). See [`Tiers`].
    pub fn tiers(mut self, tiers: Tiers) -> Self {
        self.tiers = Some(tiers);
        self
    }

    /// Policies or tiers from outside of the program, in place of [`policy`](Self::policy): policies that were added
    /// before are dropped. Rules with tiers also need [`tiers`](Self::tiers), whose closure says of which tier a
    /// request is; its own tiers come after those of the rules.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// # use tower_quota::{Rules, Tiers};
    /// // From a file, with the feature `serde`:
    /// let rules = Rules::new().tier("free", [QuotaPolicy::per_minute("minute", 60)]).unlimited("admin");
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .tiers(Tiers::by(|request| request.headers.get("x-plan")?.to_str().ok()))
    ///     .rules(rules)
    ///     .build()?;
    ///
    /// let free = send(&layer, Request::get("/").header("x-plan", "free")).await;
    /// assert_eq!(free.headers()["ratelimit"], r#""minute";r=59;t=59"#);
    /// let admin = send(&layer, Request::get("/").header("x-plan", "admin")).await;
    /// assert!(!admin.headers().contains_key("ratelimit"));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// What each request costs, in the units of policies that count requests. Default: 1.
    ///
    /// A request that costs 0 is not counted at all, in no unit, and shows what is left. One that costs more than a
    /// policy ever lets pass is rejected without `Retry-After`; the first one is reported as a `tracing` event.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("reports")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .cost(25)
    ///     .build()?;
    ///
    /// let response = send(&layer, Request::get("/").header("x-user-id", "alice")).await;
    /// assert_eq!(response.headers()["ratelimit"], r#""hour";r=75;t=2700"#);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost.expected = ExpectedCost::Same(cost);
        self
    }

    /// What a request costs, by its method, path, fields and extensions. See [`cost`](Self::cost).
    ///
    /// The closure is called once for each request and must not block.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
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
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn cost_by<F>(mut self, cost: F) -> Self
    where
        F: Fn(&request::Parts) -> u64 + Send + Sync + 'static,
    {
        self.cost.expected = ExpectedCost::By(Box::new(cost));
        self
    }

    /// What a request has really cost, by its response; `None` leaves the charge as it is. Default: always `None`.
    ///
    /// The difference is charged or given back, without delaying the response. A handler can say the same with
    /// [`ActualCost`](crate::ActualCost), which wins. To count failed logins only, charge 1 and give it back on success:
    /// then many attempts at the same moment cannot slip through.
    ///
    /// What is given back comes back as far as the policy has not filled up by itself since, and within a window of the
    /// charge; a place in a leaky bucket that was used does not come back.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    /// # tokio_test::block_on(async {
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
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn actual_cost<F>(mut self, actual_cost: F) -> Self
    where
        F: Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static,
    {
        self.cost.actual = Some(Box::new(actual_cost));
        self
    }

    /// Puts the [`Decision`](crate::Decision) into the extensions of each request that is passed on, so that the inner
    /// service knows what is left for this caller. Default: only responses have it.
    ///
    /// Handlers of axum can then take a `Decision` as an argument; everybody else finds it in `request.extensions()`. Of
    /// layers around each other the innermost one has its way. The decision shows what was left when it was made, also
    /// if the [actual cost](Self::actual_cost) turns out to be another one.
    ///
    /// It is a setting because it is not free: a copy of the decision for each request, in an allocation of some 200 bytes.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{ServiceBuilder, ServiceExt};
    /// use tower_quota::{Decision, MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// # tokio_test::block_on(async {
    /// let limits = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60))
    ///     .decision_in_request()
    ///     .build()?;
    /// let service = ServiceBuilder::new().layer(limits).service_fn(async |request: Request<()>| {
    ///     let decision = request.extensions().get::<Decision>().expect("the layer has put it there");
    ///     let left: Vec<_> = decision.allowances().map(|allowance| allowance.remaining()).collect();
    ///     Ok::<_, std::convert::Infallible>(Response::new(format!("{left:?}")))
    /// });
    ///
    /// let request = Request::get("/").header("x-user-id", "alice").body(())?;
    /// let response = service.oneshot(request).await?;
    /// # use http_body_util::BodyExt;
    /// assert_eq!(response.into_body().collect().await?.to_bytes(), "[59]");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn decision_in_request(mut self) -> Self {
        self.decision_in_request = true;
        self
    }

    /// How long a decision may take before the request goes on without it, from 1 ms to 60 s. Default: 50 ms.
    ///
    /// After five failures in a row no request waits at all: a circuit breaker opens, and one request at a time tries
    /// whether the store answers again, after 50 to 100 ms at first and every 250 to 500 ms later on. All requests that
    /// are under way when a connection breaks are one failure.
    ///
    /// When the deadline strikes, the store first reads what has arrived ([`Store::catch_up`](crate::Store::catch_up)), so that
    /// a busy process does not take its own delay for one of the store. This takes 50 ms more at most, and microseconds in a
    /// process that is not starved.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # use std::time::Duration;
    /// # use tower_quota::{AcquireFuture, Plan, Settlement, Store, StoreFuture};
    /// /// A server that does not answer.
    /// #[derive(Debug)]
    /// struct Hanging;
    ///
    /// impl Store for Hanging {
    ///     fn acquire(&self, _: Plan) -> AcquireFuture {
    ///         AcquireFuture::boxed(std::future::pending())
    ///     }
    ///     # fn settle(&self, _: Settlement) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    ///     # fn reset(&self, _: Plan) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    ///     // …
    /// }
    ///
    /// # tokio_test::block_on(async {
    /// # tokio::time::pause();
    /// let builder = || RateLimitLayer::builder(Hanging)
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60));
    ///
    /// let layer = builder().deadline(Duration::from_millis(20)).build()?;
    /// let start = tokio::time::Instant::now();
    /// assert_eq!(send(&layer, Request::get("/")).await.status(), 200);
    /// assert!((20..=25).contains(&start.elapsed().as_millis()));
    ///
    /// let error = builder().deadline(Duration::from_secs(61)).build().unwrap_err();
    /// assert_eq!(error.to_string(), "deadline 61s is outside 1ms..=60s");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.terms.deadline = deadline;
        self
    }

    /// How many requests wait for the store at the same time at most, from 1 to 65 536. Default: 10 000.
    ///
    /// Each request that waits holds memory, some kilobytes with its connection: with a long [`deadline`](Self::deadline)
    /// and a store that has stopped, that adds up. A request that finds the bound reached does not wait: the
    /// [`fallback`](Self::fallback) decides it if that answers at once, else the failure mode does. In the
    /// [numbers](crate::telemetry) it is `overloaded`, and the circuit breaker takes it for nothing. A request that was
    /// cancelled counts until the store has answered or its deadline is over. Requests that come at the very same
    /// moment on several threads may exceed the bound by a few.
    ///
    /// As a rule, it is the requests a second of one instance times the deadline in seconds, and some room.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{AcquireFuture, FailureMode, Plan, QuotaPolicy, RateLimitLayer, Store, key};
    /// # use futures_util::{future::join_all, FutureExt};
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{Settlement, StoreFuture};
    ///
    /// /// Never answers.
    /// #[derive(Debug)]
    /// struct Hanging;
    ///
    /// impl Store for Hanging {
    ///     fn acquire(&self, _: Plan) -> AcquireFuture {
    ///         AcquireFuture::boxed(std::future::pending())
    ///     }
    ///     # fn settle(&self, _: Settlement) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    ///     # fn reset(&self, _: Plan) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    ///     // …
    /// }
    ///
    /// # tokio_test::block_on(async {
    /// # tokio::time::pause();
    /// let builder = || RateLimitLayer::builder(Hanging)
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60))
    ///     .failure_mode(FailureMode::Closed);
    ///
    /// let layer = builder().deadline(Duration::from_secs(10)).max_waiting(2).build()?;
    /// # let inner = service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// # let service = layer.layer(inner);
    /// # let send = || service.clone().oneshot(Request::get("/").header("x-user-id", "alice").body(()).unwrap());
    /// let mut waiting = [Box::pin(send()), Box::pin(send())];
    /// assert!(join_all(&mut waiting).now_or_never().is_none());
    /// assert_eq!(send().now_or_never().expect("it does not wait").unwrap().status(), 503);
    ///
    /// let error = builder().max_waiting(0).build().unwrap_err();
    /// assert_eq!(error.to_string(), "max waiting 0 is outside 1..=65536");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn max_waiting(mut self, requests: u32) -> Self {
        self.terms.max_waiting = requests;
        self
    }

    /// Of how many partitions rejections are remembered, from 0, which turns it off, to 1 048 576. Default: 16 384, which
    /// take up to 5 MB.
    ///
    /// What has been used says exactly until when a charge is rejected if nobody else asks, and others only make it later.
    /// So what the store is known to reject is rejected without asking it: a caller who goes on after a quota is used up
    /// costs it, in each instance, a call for each unit that comes back and one or two a second beyond. You want to turn
    /// it off where each rejection has to come from the store.
    ///
    /// - Nothing is remembered for longer than a second. What *other* instances give back, by a
    ///   [refund](crate::Settlement) or a [reset](crate::AdminHandle::reset), may be seen that late; so is what a program
    ///   gives back by a [`Store::settle`](crate::Store::settle) of its own. What this layer gives back,
    ///   [grants](crate::AdminHandle::grant) and new [rules](crate::RulesHandle) count for each request that comes
    ///   afterwards.
    /// - The *hold*: for 10 to 20 ms after the store has rejected a cost, as much or more is rejected without a question
    ///   although it might pass; for less, where the whole quota comes back in less than 40 ms. And where so much has
    ///   come back that some requests may pass, as many ask as there is room for, and the others are rejected until the
    ///   store has answered, or for another hold.
    /// - Not remembered are limits of [concurrent requests](crate::QuotaPolicy::concurrent), leaky buckets
    ///   [with a queue](crate::Algorithm::LeakyBucketQueue) and [shadows](crate::QuotaPolicy::shadow); nor what a store
    ///   decides at once, as a [`MemoryStore`](crate::MemoryStore) does, or a fallback. Requests that cost 0 always ask.
    /// - A remembered rejection tells of the policies that are known to reject the request, with nothing left: see
    ///   [`Decision::is_cached`](crate::Decision::is_cached). It is given while the circuit is open, too.
    /// - Where more partitions are rejected within a second, the new ones take the place of old ones, which ask again.
    ///
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_quota::{AcquireFuture, Decision, MemoryStore, Plan, QuotaPolicy, RateLimitLayer, Store, key};
    /// # use tower_quota::{Settlement, StoreFuture};
    ///
    /// /// Has to be waited for, as a server has.
    /// #[derive(Debug)]
    /// struct Remote(MemoryStore, Arc<AtomicUsize>);
    ///
    /// impl Store for Remote {
    ///     fn acquire(&self, plan: Plan) -> AcquireFuture {
    ///         self.1.fetch_add(1, Ordering::Relaxed);
    ///         let store = self.0.clone();
    ///         AcquireFuture::boxed(async move { store.acquire(plan).await })
    ///     }
    ///     # fn settle(&self, settlement: Settlement) -> StoreFuture<()> { self.0.settle(settlement) }
    ///     # fn reset(&self, plan: Plan) -> StoreFuture<()> { self.0.reset(plan) }
    ///     // …
    /// }
    ///
    /// # tokio_test::block_on(async {
    /// // How often is the store asked about 100 requests, of which 3 pass?
    /// let asked = async |denial_cache| {
    ///     let calls = Arc::new(AtomicUsize::new(0));
    ///     let layer = RateLimitLayer::builder(Remote(MemoryStore::new(), Arc::clone(&calls)))
    ///         .scope("api")
    ///         .key(key::header("x-user-id"))
    ///         .policy(QuotaPolicy::per_hour("hour", 3))
    ///         .denial_cache(denial_cache)
    ///         .build()?;
    ///     # let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    ///     let service = layer.layer(inner);
    ///     for number in 0..100 {
    ///         let request = Request::get("/").header("x-user-id", "mallory").body(())?;
    ///         let response = service.clone().oneshot(request).await?;
    ///         assert_eq!(response.status(), if number < 3 { 200 } else { 429 });
    ///         let is_cached = response.extensions().get::<Decision>().unwrap().is_cached();
    ///         assert_eq!(is_cached, number >= 3 && denial_cache > 0);
    ///     }
    ///     Ok::<_, Box<dyn std::error::Error>>(calls.load(Ordering::Relaxed))
    /// };
    /// assert_eq!(asked(1_000).await?, 3);
    /// assert_eq!(asked(0).await?, 100);
    ///
    /// let error = asked(2_000_000).await.unwrap_err();
    /// assert_eq!(error.to_string(), "denial cache 2000000 is outside 0..=1048576");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn denial_cache(mut self, partitions: usize) -> Self {
        self.terms.denial_cache = partitions;
        self
    }

    /// The clock by which the circuit breaker waits before it tries again, by which rejections are
    /// [remembered](Self::denial_cache), and by which [grants](crate::AdminHandle::grant) end. Default:
    /// [`Clock::system`].
    ///
    /// You want another one in tests only, the one of the store most often. Stores have clocks of their own, and
    /// deadlines are kept by Tokio's timer.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # use std::time::Duration;
    /// # use tower_quota::{ToPartitionKey, clock::{Clock, Timestamp}};
    /// # tokio_test::block_on(async {
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let layer = RateLimitLayer::builder(MemoryStore::builder().clock(clock.clone()).build()?)
    ///     .clock(clock.clone())
    ///     .scope("api")
    ///     .key(key::from_fn(|_| Some("alice".to_partition_key())))
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .build()?;
    /// layer.admin().grant("alice", 90, Duration::from_secs(600))?;
    ///
    /// let granted = send(&layer, Request::get("/")).await;
    /// assert_eq!(granted.headers()["ratelimit-policy"], r#""hour";q=100;w=3600"#);
    /// clock.advance(Duration::from_secs(600));
    /// let later = send(&layer, Request::get("/")).await;
    /// assert_eq!(later.headers()["ratelimit-policy"], r#""hour";q=10;w=3600"#);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// What happens to a request when the store gives no decision. Default: [`FailureMode::Open`]. See [`FailureMode`]
    /// for an example of each.
    pub fn failure_mode(mut self, failure_mode: FailureMode) -> Self {
        self.terms.failure_mode = failure_mode;
        self
    }

    /// A store that decides while the first one does not, most often a [`MemoryStore`](crate::MemoryStore). Default:
    /// none.
    ///
    /// Each instance then enforces the whole quota by itself, so that N instances admit up to N times as much. If the
    /// fallback fails too, the [`failure_mode`](Self::failure_mode) decides. One that has to be waited for has the same
    /// [`deadline`](Self::deadline), which begins when that of the store is over.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # // A server that is away.
    /// # use tower_quota::{AcquireFuture, Plan, Settlement, Store, StoreError, StoreErrorKind, StoreFuture};
    /// # #[derive(Debug)]
    /// # struct Away;
    /// # impl Store for Away {
    /// #     fn acquire(&self, _: Plan) -> AcquireFuture {
    /// #         AcquireFuture::ready(Err(StoreError::new(StoreErrorKind::Unreachable, "connection refused")))
    /// #     }
    /// #     fn settle(&self, _: Settlement) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    /// #     fn reset(&self, _: Plan) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
    /// # }
    /// # tokio_test::block_on(async {
    /// let layer = RateLimitLayer::builder(Away)
    ///     .fallback(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 2))
    ///     .build()?;
    ///
    /// for status in [200, 200, 429] {
    ///     assert_eq!(send(&layer, Request::get("/").header("x-user-id", "alice")).await.status(), status);
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn fallback(mut self, store: impl Store) -> Self {
        self.fallback = Some(Arc::new(store));
        self
    }

    /// Which fields responses carry, and what they say. Default: [`ResponseFields::draft11`].
    pub fn response_fields(mut self, fields: ResponseFields) -> Self {
        self.fields = fields;
        self
    }

    /// Lets these requests pass uncounted, beside those that other calls have exempted. Default: all are counted.
    ///
    /// You want it for health checks above all. Up to 64; each is looked at until one applies. See [`Exemption`].
    pub fn exempt(mut self, exemption: Exemption) -> Self {
        self.screening.exemptions.push(exemption);
        self
    }

    /// Lets some clients pass uncounted and rejects others, by rules that can change while the service runs. Default:
    /// no list. See [`AccessList`].
    ///
    /// It is asked before everything else: a client that it blocks is rejected whatever else is set.
    pub fn access_list(mut self, list: AccessList) -> Self {
        self.screening.access_list = Some(list);
        self
    }

    /// The status of rejections because an [access list](Self::access_list) blocks the client: 403, the default, or 429 if
    /// a client should not see that it is blocked. For gRPC they are `PERMISSION_DENIED` and `RESOURCE_EXHAUSTED`.
    ///
    /// Nothing says when to try again. Any other status is an error of [`build`](Self::build); a response of another kind
    /// is made by [`respond_with`](Self::respond_with).
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # use http::StatusCode;
    /// # use tower_quota::{Access, AccessList, PartitionKey};
    /// # tokio_test::block_on(async {
    /// let mallory = PartitionKey::new("x-user-id", "mallory");
    /// let access = AccessList::new(key::client_ip());
    /// access.update(|rules| rules.set_key(mallory, Access::Block))?;
    /// let builder = || RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .access_list(access.clone());
    ///
    /// let layer = builder().blocked_status(StatusCode::TOO_MANY_REQUESTS).build()?;
    /// let rejected = send(&layer, Request::get("/").header("x-user-id", "mallory")).await;
    /// assert_eq!(rejected.status(), 429);
    /// assert!(!rejected.headers().contains_key("retry-after"));
    ///
    /// let error = builder().blocked_status(StatusCode::NOT_FOUND).build().unwrap_err();
    /// assert_eq!(error.to_string(), "blocked status 404 is neither 403 nor 429");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn blocked_status(mut self, status: StatusCode) -> Self {
        self.screening.blocked_status = status;
        self
    }

    /// Lets CORS preflight requests pass uncounted: `OPTIONS` with `Origin` and `Access-Control-Request-Method`. Default:
    /// they are counted.
    ///
    /// Browsers send them by themselves, often before each request. You want it where nothing outside of the layer
    /// answers them; [`fields::EXPOSED`](crate::fields::EXPOSED) names the fields that scripts should be able to read.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .skip_cors_preflight()
    ///     .build()?;
    ///
    /// let options = || Request::options("/").header("origin", "https://example.com");
    /// let preflight = send(&layer, options().header("access-control-request-method", "PUT")).await;
    /// assert!(!preflight.headers().contains_key("ratelimit"));
    /// assert!(send(&layer, options()).await.headers().contains_key("ratelimit"));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn skip_cors_preflight(mut self) -> Self {
        self.screening.skips_cors_preflight = true;
        self
    }

    /// How much capacity the service has at the moment of a request. Default: always [`Capacity::Full`]. See
    /// [`Capacity`] for what becomes of requests.
    ///
    /// The closure is called once for each request that is neither blocked nor exempt, before the store is asked, and
    /// must not block.
    pub fn capacity<F>(mut self, capacity: F) -> Self
    where
        F: Fn(&request::Parts) -> Capacity + Send + Sync + 'static,
    {
        self.screening.capacity = Some(Box::new(capacity));
        self
    }

    /// Finds requests that are a part of abnormal usage, which are rejected. Default: none is.
    ///
    /// The closure is called once for each request that is neither blocked nor exempt, before the store is asked, and
    /// must not block. What is abnormal is up to you: the layer has no opinion.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// # use tower_quota::AbnormalUsage;
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60))
    ///     .abnormal_usage(|request| request.uri.path().ends_with(".php").then(AbnormalUsage::new))
    ///     .build()?;
    ///
    /// assert_eq!(send(&layer, Request::get("/wp-login.php")).await.status(), 429);
    /// // It has taken no quota.
    /// assert_eq!(send(&layer, Request::get("/")).await.headers()["ratelimit"], r#""minute";r=59;t=59"#);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn abnormal_usage<F>(mut self, detect: F) -> Self
    where
        F: Fn(&request::Parts) -> Option<AbnormalUsage> + Send + Sync + 'static,
    {
        self.screening.abnormal_usage = Some(Box::new(detect));
        self
    }

    /// The status of rejections because a quota is used up, from 400 to 599. Default: 429.
    ///
    /// Other rejections have a status of their own: see [`Rejection::status`]. With one that caches may store by themselves, such
    /// as 404, a rejection has `Cache-Control: no-store`.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # use http::StatusCode;
    /// # tokio_test::block_on(async {
    /// let builder = || RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 1));
    ///
    /// let layer = builder().rejection_status(StatusCode::SERVICE_UNAVAILABLE).build()?;
    /// for status in [200, 503] {
    ///     assert_eq!(send(&layer, Request::get("/")).await.status(), status);
    /// }
    /// let error = builder().rejection_status(StatusCode::FOUND).build().unwrap_err();
    /// assert_eq!(error.to_string(), "rejection status 302 is outside 400..=599");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn rejection_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Replaces the response to rejected requests. Default: [`Rejection::to_response`].
    ///
    /// Status and body are yours; `RateLimit`, `RateLimit-Policy` and `Retry-After` are added to whatever the closure
    /// returns. A `Retry-After` of yours stays if it is the later one, and a `Cache-Control` in any case: without one, a
    /// response with a status that caches may store by themselves gets `no-store`.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
    /// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
    /// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    /// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
    /// # }
    /// # tokio_test::block_on(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 1))
    ///     .respond_with(|rejection| {
    ///         let mut response = Response::new("Slow down, please.\n".into());
    ///         *response.status_mut() = rejection.status();
    ///         response
    ///     })
    ///     .build()?;
    ///
    /// send(&layer, Request::get("/")).await;
    /// let rejected = send(&layer, Request::get("/")).await;
    /// assert_eq!(rejected.status(), 429);
    /// assert_eq!(rejected.headers()["retry-after"], "60");
    /// # use http_body_util::BodyExt;
    /// assert_eq!(rejected.into_body().collect().await?.to_bytes(), "Slow down, please.\n");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn respond_with<F>(mut self, respond: F) -> Self
    where
        F: Fn(&Rejection<'_>) -> Response<Bytes> + Send + Sync + 'static,
    {
        self.responder = Responder::new(respond);
        self
    }

    /// Builds the layer, if the settings are valid.
    ///
    /// # Errors
    ///
    /// The first mistake found: a scope, key or policy that is missing, a policy or setting out of its range. The
    /// message names the policy or setting, the value and the bound.
    pub fn build(self) -> Result<RateLimitLayer, ConfigError> {
        let attribution = self.attribution.build()?;
        self.screening.check()?;
        self.fields.check()?;
        let policies = Policies::new(self.rules, self.tiers, attribution.names(), self.fields)?;
        self.terms.check()?;
        check_status(self.status)?;
        warn(&attribution, &policies);
        let guard = Guard::new(
            self.store,
            self.fallback,
            self.terms,
            self.clock,
            attribution.scope_name(),
        );
        Ok(RateLimitLayer::new(Limits {
            screening: self.screening,
            attribution,
            policies: Arc::new(policies),
            cost: self.cost,
            guard: Arc::new(guard),
            responder: self.responder,
            status: self.status,
            decision_in_request: self.decision_in_request,
            log: LayerTelemetry::default(),
        }))
    }
}

/// Tells of settings that work, and not as most people want it.
fn warn(attribution: &Attribution, policies: &Policies) {
    let scope = attribution.scope_name();
    if let Some(window) = policies.lone_large_windows().first() {
        telemetry::lone_large_window(scope, *window);
    }
    if let Some(policy) = policies.showing_key(|named| attribution.may_show_address(named)) {
        telemetry::guessable_address(scope, &policy);
    }
}

fn check_status(status: StatusCode) -> Result<(), ConfigError> {
    if status.is_client_error() || status.is_server_error() {
        return Ok(());
    }
    let message = format!("rejection status {} is outside 400..=599", status.as_u16());
    Err(ConfigError::new(ConfigErrorKind::RejectionStatus, message))
}

impl fmt::Debug for RateLimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayerBuilder")
            .field("scope", &self.attribution.scope)
            .field("rules", &self.rules)
            .field("tiers", &self.tiers)
            .finish_non_exhaustive()
    }
}
