//! The response to a rejected request.

mod grpc;
mod notice;
mod problem;

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};

use self::notice::{Notice, ProblemType, Violation};
use crate::decision::{Decision, Outcome};

/// A request that is rejected: what a custom response is made from.
///
/// The closure of [`RateLimitLayerBuilder::respond_with`](crate::RateLimitLayerBuilder::respond_with) gets it. It knows
/// why the request is rejected and what the layer would answer; it cannot let the request pass after all.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// # run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 1))
///     .respond_with(|rejection| {
///         let path = rejection.request().uri.path();
///         let seconds = rejection.retry_after().map_or(0, |wait| wait.as_secs_f64().ceil() as u64);
///         let by: Vec<_> = rejection.decision().violated().map(|allowance| allowance.policy().name()).collect();
///         let mut response = Response::new(format!("{path}: {by:?} says to wait {seconds} s").into());
///         *response.status_mut() = rejection.status();
///         response
///     })
///     .build()?;
///
/// send(&layer, Request::get("/search")).await;
/// let rejected = send(&layer, Request::get("/search")).await;
/// assert_eq!(rejected.status(), 429);
/// assert_eq!(rejected.headers()["retry-after"], "3600");
/// let body = rejected.into_body().collect().await?.to_bytes();
/// assert_eq!(body, r#"/search: ["hour"] says to wait 3600 s"#);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy)]
pub struct Rejection<'a> {
    decision: &'a Decision,
    request: &'a Parts,
    scope: &'a str,
    /// True if clients may see the keys of policies that show them.
    shows_keys: bool,
    /// The status that was chosen for a rejection because a quota is used up, or because the client is blocked.
    status: StatusCode,
    /// The message to the client.
    wait: Option<Duration>,
    /// The names of policies that are violated although the decision has none: what the application says.
    named: &'a [&'a str],
}

impl<'a> Rejection<'a> {
    /// A rejection with status 429 that says nothing about a wait, and shows no key.
    pub(crate) fn new(decision: &'a Decision, request: &'a Parts, scope: &'a str) -> Self {
        Self {
            decision,
            request,
            scope,
            shows_keys: false,
            status: StatusCode::TOO_MANY_REQUESTS,
            wait: None,
            named: &[],
        }
    }

    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn with_wait(self, wait: Option<Duration>) -> Self {
        Self { wait, ..self }
    }

    pub(crate) fn showing_keys(self, shows_keys: bool) -> Self {
        Self { shows_keys, ..self }
    }

    pub(crate) fn naming(self, named: &'a [&'a str]) -> Self {
        Self { named, ..self }
    }

    /// The decision: the reason of the rejection, and the remaining units of each policy.
    pub fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// The request, without its body.
    pub fn request(&self) -> &'a Parts {
        self.request
    }

    /// Returns `true` if the request is one of gRPC or gRPC-Web, by its content type.
    ///
    /// Such a client understands nothing but a gRPC status, so a response of your own should leave these requests to
    /// [`to_response`](Self::to_response):
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response, StatusCode};
    /// use tower::{ServiceBuilder, ServiceExt};
    /// use tower_quota::{MemoryStore, MissingKey, QuotaPolicy, RateLimitLayer, Rejection, key};
    ///
    /// fn slow_down(rejection: &Rejection<'_>) -> Response<Bytes> {
    ///     if rejection.is_grpc() {
    ///         return rejection.to_response();
    ///     }
    ///     let mut response = Response::new(Bytes::from("Slow down, please."));
    ///     *response.status_mut() = rejection.status();
    ///     response
    /// }
    ///
    /// # tokio_test::block_on(async {
    /// let limits = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 1))
    ///     .respond_with(slow_down)
    ///     .build()?;
    /// let service = ServiceBuilder::new()
    ///     .layer(limits)
    ///     .service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    ///
    /// let request = |content_type| Request::post("/").header("content-type", content_type).body(()).unwrap();
    /// service.clone().oneshot(request("text/plain")).await?;
    ///
    /// let rejected = service.clone().oneshot(request("text/plain")).await?;
    /// assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    ///
    /// let rejected = service.oneshot(request("application/grpc")).await?;
    /// assert_eq!(rejected.status(), StatusCode::OK);
    /// assert_eq!(rejected.headers()["grpc-status"], "8");
    /// assert_eq!(rejected.headers()["retry-after"], "60");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn is_grpc(&self) -> bool {
        grpc::media_type(&self.request.headers).is_some()
    }

    /// The status that the layer would answer with:
    ///
    /// - 429, or what [`rejection_status`](crate::RateLimitLayerBuilder::rejection_status) says, if a quota is used up;
    /// - 429 if the application has found the usage [abnormal](crate::AbnormalUsage);
    /// - 503 if the [capacity](crate::Capacity) is reduced or exhausted, or if there was no decision and the layer
    ///   [fails closed](crate::FailureMode::Closed);
    /// - 403, or what [`blocked_status`](crate::RateLimitLayerBuilder::blocked_status) says, if an
    ///   [access list](crate::AccessList) blocks the client;
    /// - 403 if the caller is unknown and the layer [rejects](crate::MissingKey::Reject) such requests.
    ///
    /// It is the meaning of the rejection in HTTP, also for a [gRPC](Self::is_grpc) request, which
    /// [`to_response`](Self::to_response) answers with status 200 and a `grpc-status`.
    pub fn status(&self) -> StatusCode {
        match self.problem_type() {
            ProblemType::AbnormalUsageDetected | ProblemType::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            ProblemType::Blocked | ProblemType::Forbidden => StatusCode::FORBIDDEN,
            ProblemType::QuotaExceeded => self.status,
            ProblemType::TemporaryReducedCapacity => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn problem_type(&self) -> ProblemType {
        match self.decision.outcome() {
            Outcome::Abnormal => ProblemType::AbnormalUsageDetected,
            Outcome::Blocked if self.status == StatusCode::TOO_MANY_REQUESTS => ProblemType::TooManyRequests,
            Outcome::Blocked => ProblemType::Blocked,
            Outcome::MissingKey => ProblemType::Forbidden,
            Outcome::FailedClosed | Outcome::Overloaded => ProblemType::TemporaryReducedCapacity,
            _ if self.decision.is_capacity_reduced() => ProblemType::TemporaryReducedCapacity,
            _ => ProblemType::QuotaExceeded,
        }
    }

    /// The wait before the next try, as `Retry-After` has it before it is rounded up to whole seconds; `None` if the
    /// same request never passes.
    ///
    /// It is the wait of the [decision](Self::decision), or longer where [`ResponseFields`](crate::ResponseFields)
    /// lengthen what clients are told.
    pub fn retry_after(&self) -> Option<Duration> {
        self.wait
    }

    /// The names of the policies that the client is told of, as `violated-policies` has them: those that reject the request,
    /// those that the application [names](crate::AbnormalUsage::with_violated_policy), or all of the caller's if the
    /// capacity is [exhausted](crate::Capacity::exhausted). Hidden policies are not among them.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .policy(QuotaPolicy::per_hour("secret", 50).hidden())
    ///     .capacity(|_| Capacity::exhausted(Duration::from_secs(5)))
    ///     .respond_with(|rejection| {
    ///         let names: Vec<_> = rejection.violated_policies().collect();
    ///         Response::new(names.join(" and ").into())
    ///     })
    ///     .build()?;
    ///
    /// let rejected = send(&layer, Request::get("/")).await;
    /// assert_eq!(rejected.into_body().collect().await?.to_bytes(), "hour");
    /// # Ok(()) });
    /// ```
    pub fn violated_policies(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.violations().map(|violation| violation.policy)
    }

    fn violations(&self) -> impl Iterator<Item = Violation<'a>> + use<'a> {
        let (scope, shows_keys) = (self.scope, self.shows_keys);
        let violated = self.decision.violated();
        let violated = violated.filter(|allowance| !allowance.policy().is_hidden());
        let violated = violated.map(move |allowance| Violation::of(&allowance, scope, shows_keys));
        let named = self.named.iter();
        violated.chain(named.map(move |name| Violation::named(name, scope)))
    }

    /// The response that the layer gives by default: a problem as in RFC 9457, or a gRPC status.
    ///
    /// A request [of gRPC](Self::is_grpc) gets what gRPC calls a trailers-only response: HTTP status 200, the content
    /// type of the request, and in header fields a `grpc-status` and a `grpc-message`. The status is
    /// `RESOURCE_EXHAUSTED` if a quota is used up, a policy is [closed](crate::QuotaPolicy#closed) or the usage is abnormal,
    /// `FAILED_PRECONDITION` if the request costs more than a policy ever lets pass (so that no client tries again),
    /// `UNAVAILABLE` if capacity is reduced or there was no decision, `PERMISSION_DENIED` if the caller is unknown or
    /// blocked. Clients find the fields that the layer adds in the metadata of the status.
    ///
    /// With the feature `tonic` there is a `grpc-status-details-bin`, too: `RetryInfo` with the exact wait, if there
    /// is one, and `QuotaFailure` with one violation for each violated policy that is not
    /// [hidden](crate::QuotaPolicy::hidden). Its `quota_id` is the name of the policy, its `quota_metric` the unit, and
    /// its `quota_value` the quota. Its `subject` is `partition:` with the key in Base64 where the policy
    /// [shows it](crate::QuotaPolicy::show_partition_key) and the dialect of the fields has a place for it, else `scope:`
    /// with the scope of the layer.
    ///
    /// A problem has a `detail` if a policy is closed, or if the request costs more than a policy ever lets pass. There is
    /// no `Retry-After` then.
    ///
    /// Change it as you like; the layer adds `RateLimit`, `RateLimit-Policy` and `Retry-After` afterwards. A
    /// `Retry-After` of yours stays if it is the later one. To a response with a status that caches may store by
    /// themselves, such as 200, 404 or 410 ([RFC 9110, section
    /// 15.1](https://www.rfc-editor.org/rfc/rfc9110#section-15.1)), the layer adds `Cache-Control: no-store`, unless it has a
    /// `Cache-Control` of yours.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use http::HeaderValue;
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 1))
    ///     .respond_with(|rejection| {
    ///         let mut response = rejection.to_response();
    ///         response.headers_mut().insert("link", HeaderValue::from_static("</limits>; rel=help"));
    ///         response
    ///     })
    ///     .build()?;
    ///
    /// send(&layer, Request::get("/")).await;
    /// let rejected = send(&layer, Request::get("/")).await;
    /// assert_eq!(rejected.headers()["link"], "</limits>; rel=help");
    /// assert_eq!(rejected.headers()["content-type"], "application/problem+json");
    /// let problem: serde_json::Value = serde_json::from_slice(&rejected.into_body().collect().await?.to_bytes())?;
    /// assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    /// assert_eq!((&problem["status"], &problem["violated-policies"][0]), (&429.into(), &"hour".into()));
    /// # Ok(()) });
    /// ```
    pub fn to_response(&self) -> Response<Bytes> {
        let notice = Notice {
            problem: self.problem_type(),
            status: self.status(),
            violated: self.violations().collect(),
            is_closed: self.decision.violated().any(|allowance| allowance.policy().is_closed()),
            wait: self.wait,
        };
        notice.response(&self.request.headers)
    }
}

impl Notice<'_> {
    /// The response to a request with these fields: a problem, or a gRPC status.
    pub(crate) fn response(&self, request: &HeaderMap) -> Response<Bytes> {
        if let Some(media_type) = grpc::media_type(request) {
            return grpc::response(self, media_type);
        }
        let mut content = String::with_capacity(256);
        problem::write_problem(self, &mut content);
        let mut response = Response::new(Bytes::from(content));
        *response.status_mut() = self.status;
        let content_type = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }
}

/// Makes the response to a rejected request.
pub(crate) struct Responder(Box<RespondWith>);

type RespondWith = dyn Fn(&Rejection<'_>) -> Response<Bytes> + Send + Sync;

impl Responder {
    pub(crate) fn new(respond: impl Fn(&Rejection<'_>) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        Self(Box::new(respond))
    }

    /// The response to a rejection, which no cache may give to another client.
    pub(crate) fn respond(&self, rejection: &Rejection<'_>) -> Response<Bytes> {
        let mut response = (self.0)(rejection);
        // No cache stores what a POST of gRPC is answered with, unless it is told to.
        let is_call = rejection.is_grpc() && rejection.request.method == Method::POST;
        if is_cacheable(response.status()) && !is_call && !response.headers().contains_key(header::CACHE_CONTROL) {
            let no_store = HeaderValue::from_static("no-store");
            let _ = response.headers_mut().try_insert(header::CACHE_CONTROL, no_store);
        }
        response
    }
}

/// Returns `true` if a cache may store a response with this status by default: RFC 9110, section 15.1, and RFC 7725.
fn is_cacheable(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 451 | 501
    )
}

impl fmt::Debug for Rejection<'_> {
    /// Shows no request, whose fields and query may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejection")
            .field("decision", self.decision)
            .field("scope", &self.scope)
            .field("status", &self.status)
            .field("retry_after", &self.wait)
            .finish_non_exhaustive()
    }
}

impl Default for Responder {
    fn default() -> Self {
        Self::new(|rejection| rejection.to_response())
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}
