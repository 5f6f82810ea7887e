use http::StatusCode;

use super::RateLimitLayerBuilder;
use crate::{layer::LingeringClose, response::fields::ResponseFields};

/// # Advanced: responses and handlers
impl RateLimitLayerBuilder {
    /// Sets the header fields of responses. Default: [`ResponseFields::draft11`].
    pub fn response_fields(mut self, fields: ResponseFields) -> Self {
        self.fields = fields;
        self
    }

    /// Sets the status of rejections due to an exhausted quota, from 400 to 599. Default: 429.
    ///
    /// For the status of other rejections, see [`Rejection::status`](crate::Rejection::status). If caches may store
    /// responses with this status by default, such as 404, rejections have `Cache-Control: no-store`.
    /// [`build`](Self::build) fails for statuses outside the range.
    pub fn rejection_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Sets how request bodies are discarded that a rejection leaves unread. Default: [`LingeringClose::new`].
    ///
    /// [`build`](Self::build) fails if a bound is outside its range.
    pub fn lingering_close(mut self, lingering_close: LingeringClose) -> Self {
        self.lingering_close = lingering_close;
        self
    }

    /// Inserts the [`Decision`](crate::Decision) into the extensions of each forwarded request.
    ///
    /// The inner service can use it to report the remaining quota. axum handlers can take a `Decision` as an argument.
    /// If layers are nested, the decision of the innermost layer is available. The remaining units do not include later
    /// changes by the [actual cost](Self::actual_cost).
    ///
    /// Default: off. This copies the decision for each request, in two allocations of about 600 bytes in total.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use http::{Request, Response};
    /// use http_body_util::BodyExt;
    /// use tower::{ServiceBuilder, ServiceExt};
    /// use tower_quota::{Decision, MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// async fn report(request: Request<String>) -> Result<Response<String>, Infallible> {
    ///     let decision: Option<&Decision> = request.extensions().get();
    ///     let remaining = decision.and_then(|decision| Some(decision.allowances().next()?.remaining()));
    ///     Ok(Response::new(format!("{remaining:?}")))
    /// }
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let limits = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 60))
    ///     .decision_in_request()
    ///     .build()?;
    /// let service = ServiceBuilder::new().layer(limits).service_fn(report);
    /// let response = service.oneshot(Request::get("/").header("x-user-id", "alice").body(String::new())?).await?;
    /// assert_eq!(response.into_body().collect().await?.to_bytes(), "Some(59)");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn decision_in_request(mut self) -> Self {
        self.decision_in_request = true;
        self
    }

    /// Inserts the [`Decision`](crate::Decision) into the extensions of every response, for outer layers, logs and
    /// tests.
    ///
    /// By default, only rejections and responses to requests that [failed open](crate::Outcome::FailedOpen) have the
    /// decision. Layers with a store [for tests](crate::StoreTraits::for_tests) always insert it.
    ///
    /// If layers are nested, a rejection by an inner layer is kept; otherwise, the decision of the outermost layer with
    /// this setting is available. The decision includes the [actual cost](Self::actual_cost), as far as it is known
    /// when the response begins.
    ///
    /// This usually needs three allocations per response, and keeps about 500 bytes alive with the response.
    pub fn decision_in_response(mut self) -> Self {
        self.decision_in_response = true;
        self
    }
}
