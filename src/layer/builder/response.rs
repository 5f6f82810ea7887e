//! Settings of the responses to clients, and of the decision that handlers get.

use http::StatusCode;

use super::RateLimitLayerBuilder;
use crate::response::fields::ResponseFields;

/// # Advanced: responses and handlers
impl RateLimitLayerBuilder {
    /// Sets the fields of responses. Default: [`ResponseFields::draft11`].
    pub fn response_fields(mut self, fields: ResponseFields) -> Self {
        self.fields = fields;
        self
    }

    /// The status of rejections because a quota is used up, from 400 to 599. Default: 429.
    ///
    /// Other rejections have a status of their own: see [`Rejection::status`](crate::Rejection::status). With one that caches may store by themselves, such
    /// as 404, a rejection has `Cache-Control: no-store`.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
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
    /// # Ok(()) });
    /// ```
    pub fn rejection_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Puts the [`Decision`](crate::Decision) into the extensions of each request that is passed on, so that the inner
    /// service knows what is left for this caller. Default: requests do not have it.
    ///
    /// Handlers of axum can then take a `Decision` as an argument; other services find it in `request.extensions()`. Of
    /// layers around each other the innermost one has its way. The decision shows what was left when it was made, also
    /// if the [actual cost](Self::actual_cost) turns out to be another one.
    ///
    /// It is a setting because it is not free: a copy of the decision for each request, in two allocations of some 600 bytes together.
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

    /// Puts the [`Decision`](crate::Decision) into the extensions of every response, so that outer layers, logs and tests
    /// know what is left for this caller. Default: a response has it if its request was rejected, or was passed on
    /// [uncounted](crate::Outcome::FailedOpen) because no store has decided.
    ///
    /// Where layers are nested, a rejection of the inner one stays; otherwise the decision is that of the outermost
    /// layer with this setting. It shows the charge as it is when the response begins: the [actual
    /// cost](Self::actual_cost) is in it.
    ///
    /// A layer on a store [for tests](crate::StoreTraits::for_tests) does it without this setting.
    ///
    /// It is a setting because it is not free: most often three allocations for each response, which also keeps the decision's
    /// own one of some 500 bytes.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let builder = || RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 2));
    /// let left = async |layer: &RateLimitLayer| {
    ///     let response = send(layer, Request::get("/")).await;
    ///     let decision: Option<&Decision> = response.extensions().get();
    ///     decision.map(|decision| decision.allowances().map(|allowance| allowance.remaining()).sum::<u64>())
    /// };
    ///
    /// let layer = builder().decision_in_response().build()?;
    /// assert_eq!([left(&layer).await, left(&layer).await, left(&layer).await], [Some(1), Some(0), Some(0)]);
    ///
    /// let layer = builder().build()?;
    /// assert_eq!([left(&layer).await, left(&layer).await, left(&layer).await], [None, None, Some(0)]);
    /// # Ok(()) });
    /// ```
    pub fn decision_in_response(mut self) -> Self {
        self.decision_in_response = true;
        self
    }
}
