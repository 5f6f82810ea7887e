mod grpc;
mod known;
mod notice;
mod problem;

use std::{cell::Cell, fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header, request::Parts};

pub(crate) use self::known::KnownRejections;
use self::notice::{Notice, ProblemType, Violation};
use crate::decision::{Decision, Outcome, retry_seconds};

/// A rejected request, for the closure of [`respond_with`](crate::RateLimitLayerBuilder::respond_with), which cannot
/// admit it.
///
/// ```
/// use http::Response;
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 1))
///     .respond_with(|rejection| {
///         if rejection.is_grpc() {
///             return rejection.to_response();
///         }
///         let path = rejection.request().uri.path();
///         let exceeded: Vec<_> = rejection.violated_policies().collect();
///         let seconds = rejection.retry_after_secs().unwrap_or_default();
///         let text = format!("{path}: {exceeded:?} exceeded, retry in {seconds} s");
///         let mut response = Response::new(text.into());
///         *response.status_mut() = rejection.status();
///         response
///     })
///     .build()?;
/// # use set_up::BodyExt;
/// # let request = |content_type| http::Request::post("/search").header("content-type", content_type);
/// # set_up::send(&layer, request("text/plain")).await;
/// # let rejected = set_up::send(&layer, request("text/plain")).await;
/// # assert_eq!(rejected.status(), 429);
/// # assert_eq!(rejected.headers()["retry-after"], "3600");
/// # let body = rejected.into_body().collect().await?.to_bytes();
/// # assert_eq!(body, r#"/search: ["hour"] exceeded, retry in 3600 s"#);
/// # let rejected = set_up::send(&layer, request("application/grpc")).await;
/// # assert_eq!((rejected.status().as_u16(), &rejected.headers()["grpc-status"]), (200, &8.into()));
/// # assert_eq!(rejected.headers()["retry-after"], "3600");
/// # Ok(()) });
/// ```
#[derive(Clone, Copy)]
pub struct Rejection<'a> {
    decision: &'a Decision,
    request: &'a Parts,
    scope: &'a str,
    /// True if the dialect of the fields can contain partition keys.
    shows_keys: bool,
    /// The status for exhausted quotas and blocked clients.
    status: StatusCode,
    wait: Option<Duration>,
    /// Violated policies that the application has named.
    named: &'a [&'a str],
    /// With a bit for each violated policy.
    known: Option<(&'a KnownRejections, u32)>,
}

impl<'a> Rejection<'a> {
    /// With status 429, no wait, and hidden partition keys.
    pub(crate) fn new(decision: &'a Decision, request: &'a Parts, scope: &'a str) -> Self {
        Self {
            decision,
            request,
            scope,
            shows_keys: false,
            status: StatusCode::TOO_MANY_REQUESTS,
            wait: None,
            named: &[],
            known: None,
        }
    }

    pub(crate) fn with_known(self, known: Option<(&'a KnownRejections, u32)>) -> Self {
        Self { known, ..self }
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

    /// Returns the decision: the reason for the rejection, and the remaining units of each policy.
    pub fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// Returns the request, without its body.
    pub fn request(&self) -> &'a Parts {
        self.request
    }

    /// Returns `true` for a gRPC or gRPC-Web request, by its content type. Use [`to_response`](Self::to_response) for
    /// these requests, because clients require a gRPC status.
    pub fn is_grpc(&self) -> bool {
        grpc::media_type(&self.request.headers).is_some()
    }

    /// Returns the status of the default response:
    ///
    /// - 429, or the [`rejection_status`](crate::RateLimitLayerBuilder::rejection_status), if a quota is exhausted
    /// - 429 if the application classified the usage as [abnormal](crate::AbnormalUsage)
    /// - 503 if the [capacity](crate::Capacity) is reduced or exhausted, or if no store made a decision and the layer
    ///   [fails closed](crate::FailureMode::Closed)
    /// - 403, or the [`blocked_status`](crate::RateLimitLayerBuilder::blocked_status), if an [access
    ///   list](crate::AccessList) blocks the client
    /// - 403 if the request has no key and the layer [rejects](crate::MissingKey::Reject) such requests
    ///
    /// For a [gRPC](Self::is_grpc) request, [`to_response`](Self::to_response) uses status 200 and a `grpc-status`
    /// instead.
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

    /// Returns the wait before the next attempt: that of the [decision](Self::decision), or longer if
    /// [`ResponseFields`](crate::ResponseFields) lengthens reported waits. `None` if an identical request is never
    /// admitted, or if the rejection has no wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.wait
    }

    /// Returns [`retry_after`](Self::retry_after) in whole seconds, rounded up and at least 1, as in `Retry-After`. Use
    /// it in bodies, because [`Duration::as_secs`] rounds down.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.wait.map(retry_seconds)
    }

    /// Returns the names of the policies that are reported to the client in `violated-policies`: those that reject the
    /// request, those that the application [names](crate::AbnormalUsage::with_violated_policy), or all policies of the
    /// caller except shadows if the capacity is [exhausted](crate::Capacity::exhausted).
    /// [Hidden](crate::QuotaPolicy::hidden) policies are omitted.
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

    /// Creates the default response, which can be modified: problem details (RFC 9457), or a [gRPC status](#grpc). The
    /// layer then [adds fields](crate::RateLimitLayerBuilder::respond_with).
    ///
    /// ```
    /// use http::HeaderValue;
    /// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
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
    /// # use set_up::BodyExt;
    /// # set_up::send(&layer, http::Request::get("/")).await;
    /// # let rejected = set_up::send(&layer, http::Request::get("/")).await;
    /// # assert_eq!(rejected.headers()["link"], "</limits>; rel=help");
    /// # assert_eq!(rejected.headers()["content-type"], "application/problem+json");
    /// # let problem: serde_json::Value = serde_json::from_slice(&rejected.into_body().collect().await?.to_bytes())?;
    /// # let shown = serde_json::json!({
    /// #     "status": 429,
    /// #     "title": "Request cannot be satisfied as assigned quota has been exceeded",
    /// #     "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
    /// #     "violated-policies": ["hour"],
    /// # });
    /// # assert_eq!(problem, shown);
    /// # Ok(()) });
    /// ```
    ///
    /// The content of these rejections:
    ///
    /// ```json
    /// {
    ///   "status": 429,
    ///   "title": "Request cannot be satisfied as assigned quota has been exceeded",
    ///   "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
    ///   "violated-policies": ["hour"]
    /// }
    /// ```
    ///
    /// If a policy is closed, or if the cost of the request exceeds the capacity of a policy, the content also has a
    /// `detail`, and the response has no `Retry-After`.
    ///
    /// # gRPC
    ///
    /// A [gRPC](Self::is_grpc) request gets a trailers-only response with HTTP status 200, a `grpc-message` and a
    /// `grpc-status`. The fields of the layer are in the metadata of the status.
    ///
    /// | status | reason |
    /// |---|---|
    /// | `RESOURCE_EXHAUSTED` | a quota is exhausted, a policy is [closed](crate::QuotaPolicy#closed), the usage is abnormal, or the client is blocked with status 429 |
    /// | `FAILED_PRECONDITION` | the cost exceeds the capacity of a policy, so clients should not retry |
    /// | `UNAVAILABLE` | the capacity is reduced, or no store made a decision |
    /// | `PERMISSION_DENIED` | the request has no key, or its client is blocked with a status other than 429 |
    ///
    /// `grpc-retry-pushback-ms` ([gRFC A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md)) controls
    /// clients with a retry policy whose `retryableStatusCodes` include the status. It is the
    /// [wait](Self::retry_after), rounded up to milliseconds, or `-1` to forbid a retry: if the rejection is final,
    /// because a policy is closed or the cost exceeds a capacity, and if the wait is at least the caller's
    /// `grpc-timeout` or above 2<sup>31</sup> − 1 ms (24.8 days). Other rejections without a wait do not have it: then,
    /// the backoff of the client applies. A malformed `grpc-timeout` is ignored. If a custom response changes the wait,
    /// change this field, too.
    ///
    /// With the feature `tonic`, `grpc-status-details-bin` contains a `RetryInfo` with the exact wait, if there is one,
    /// and a `QuotaFailure` for each violated policy that is not [hidden](crate::QuotaPolicy::hidden): its name
    /// (`quota_id`), unit (`quota_metric`), quota (`quota_value`), and as the `subject` `partition:` and the key in
    /// Base64, if the policy [shows it](crate::QuotaPolicy::show_partition_key) and the dialect of the fields supports
    /// it, or else `scope:` and the scope of the layer.
    pub fn to_response(&self) -> Response<Bytes> {
        let media_type = grpc::media_type(&self.request.headers);
        match (self.known.filter(|_| self.is_by_quotas()), media_type) {
            (_, Some(media_type)) => grpc::response(&self.notice(), media_type, &self.request.headers),
            (None, None) => problem_response(self.status(), self.notice().content()),
            (Some((known, violated)), None) => {
                let content = known.content(self.status, violated, || self.notice().content());
                problem_response(self.status, content)
            }
        }
    }

    /// Returns `true` if the status and the violated policies determine the problem details.
    pub(crate) fn is_by_quotas(&self) -> bool {
        self.problem_type() == ProblemType::QuotaExceeded && self.wait.is_some() && self.named.is_empty()
    }

    fn notice(&self) -> Notice<'a> {
        Notice {
            problem: self.problem_type(),
            status: self.status(),
            violated: self.violations().collect(),
            // A rejection by a closed policy has no wait.
            is_closed: self.wait.is_none() && self.decision.violated().any(|allowance| allowance.policy().is_closed()),
            wait: self.wait,
        }
    }
}

fn problem_response(status: StatusCode, content: Bytes) -> Response<Bytes> {
    let mut response = Response::new(content);
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

// A string with spare capacity needs a second allocation to become `Bytes`. The names of policies bound the size.
thread_local!(static CONTENT: Cell<String> = const { Cell::new(String::new()) });

impl Notice<'_> {
    fn content(&self) -> Bytes {
        let mut text = CONTENT.try_with(Cell::take).unwrap_or_default();
        text.clear();
        problem::write_problem(self, &mut text);
        let content = Bytes::copy_from_slice(text.as_bytes());
        // Fails while the thread-local storage is being destroyed.
        let _ = CONTENT.try_with(|kept| kept.set(text));
        content
    }
}

/// `None` for the default response.
#[derive(Default)]
pub(crate) struct Responder(Option<Box<RespondWith>>);

type RespondWith = dyn Fn(&Rejection<'_>) -> Response<Bytes> + Send + Sync;

impl Responder {
    pub(crate) fn new(respond: impl Fn(&Rejection<'_>) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(respond)))
    }

    #[inline]
    pub(crate) fn is_default(&self) -> bool {
        self.0.is_none()
    }

    /// Calls the closure, and prevents caches from storing the response.
    pub(crate) fn respond(&self, rejection: &Rejection<'_>) -> Response<Bytes> {
        let mut response = match &self.0 {
            Some(respond) => respond(rejection),
            None => rejection.to_response(),
        };
        // Caches do not store responses to POST by default.
        let is_call = || rejection.is_grpc() && rejection.request.method == Method::POST;
        if is_cacheable(response.status()) && !is_call() && !response.headers().contains_key(header::CACHE_CONTROL) {
            let no_store = HeaderValue::from_static("no-store");
            let _ = response.headers_mut().try_insert(header::CACHE_CONTROL, no_store);
        }
        response
    }
}

/// Returns `true` if caches may store the status by default: RFC 9110, section 15.1, and RFC 7725.
fn is_cacheable(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 451 | 501
    )
}

impl fmt::Debug for Rejection<'_> {
    /// Omits the request, whose header fields and query may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejection")
            .field("decision", self.decision)
            .field("scope", &self.scope)
            .field("status", &self.status)
            .field("retry_after", &self.wait)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}
