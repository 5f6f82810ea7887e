//! Settings of the screening, which comes before any quota.

use http::{StatusCode, request};

use super::RateLimitLayerBuilder;
use crate::{
    access::{AbnormalUsage, AccessList, Capacity, Exemption},
    error::ConfigErrorKind,
};

/// # Advanced: screening
impl RateLimitLayerBuilder {
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
    /// It is asked before everything else: a client that it blocks is rejected whatever else is set. Two lists are an
    /// error of [`build`](Self::build), because the rules of one of them would have no effect.
    pub fn access_list(self, list: AccessList) -> Self {
        self.limiter(ConfigErrorKind::AccessRules, "access list", |limiter| {
            limiter.access_list(list)
        })
    }

    /// The status of rejections because an [access list](Self::access_list) blocks the client: 403, the default, or 429 if
    /// a client should not see that it is blocked. For gRPC they are `PERMISSION_DENIED` and `RESOURCE_EXHAUSTED`.
    ///
    /// Nothing says when to try again. Any other status is an error of [`build`](Self::build); a response of another kind
    /// is made by [`respond_with`](Self::respond_with).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
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
    /// # Ok(()) });
    /// ```
    pub fn blocked_status(mut self, status: StatusCode) -> Self {
        self.screening.blocked_status = Some(status);
        self
    }

    /// Lets CORS preflight requests pass uncounted: `OPTIONS` with `Origin` and `Access-Control-Request-Method`. Default:
    /// they are counted.
    ///
    /// Browsers send them by themselves, often before each request. You want it where nothing outside of the layer
    /// answers them; [`fields::EXPOSED`](crate::fields::EXPOSED) names the fields that scripts should be able to read.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
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
    /// # Ok(()) });
    /// ```
    pub fn skip_cors_preflight(mut self) -> Self {
        self.screening.skips_cors_preflight = true;
        self
    }

    /// Finds requests that are a part of abnormal usage, which are rejected. Default: none is.
    ///
    /// The closure is called once for each request that is neither blocked nor exempt, before the store is asked, and
    /// must not block. What is abnormal is up to you: the layer has no opinion.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
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
    /// # Ok(()) });
    /// ```
    pub fn abnormal_usage<F>(mut self, detect: F) -> Self
    where
        F: Fn(&request::Parts) -> Option<AbnormalUsage> + Send + Sync + 'static,
    {
        self.screening.abnormal_usage = Some(Box::new(detect));
        self
    }

    /// Reads the capacity of the service at the moment of a request. Default: always [`Capacity::full`]. See
    /// [`Capacity`] for the effect.
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
}
