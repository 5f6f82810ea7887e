use http::{StatusCode, request};

use super::RateLimitLayerBuilder;
use crate::{
    access::{AbnormalUsage, AccessList, Capacity, Exemption},
    error::ConfigErrorKind,
};

/// # Advanced: screening
impl RateLimitLayerBuilder {
    /// Admits matching requests uncounted, for example health checks. Default: none.
    ///
    /// Can be called up to 64 times. The first matching exemption applies. See [`Exemption`].
    pub fn exempt(mut self, exemption: Exemption) -> Self {
        self.screening.exemptions.push(exemption);
        self
    }

    /// Sets a list of clients that are blocked, or admitted uncounted. The list can change at run time. See
    /// [`AccessList`].
    ///
    /// The list is checked first: blocked clients are rejected regardless of all other settings. [`build`](Self::build)
    /// fails if two lists are set. Default: no list.
    pub fn access_list(self, list: AccessList) -> Self {
        self.limiter(ConfigErrorKind::AccessRules, "access list", |limiter| {
            limiter.access_list(list)
        })
    }

    /// Sets the status of requests that an [access list](Self::access_list) blocks: 403 or 429. Default: 403.
    ///
    /// Use 429 if clients should not notice that they are blocked. gRPC clients get `PERMISSION_DENIED` for 403 and
    /// `RESOURCE_EXHAUSTED` for 429. These rejections have no `Retry-After`. [`build`](Self::build) fails for other
    /// statuses; use [`respond_with`](Self::respond_with) for other responses.
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
    /// assert_eq!(error.to_string(), "blocked status 404 is not 403 or 429");
    /// # Ok(()) });
    /// ```
    pub fn blocked_status(mut self, status: StatusCode) -> Self {
        self.screening.blocked_status = Some(status);
        self
    }

    /// Admits CORS preflight requests uncounted: `OPTIONS` with `Origin` and `Access-Control-Request-Method`.
    ///
    /// Browsers send preflight requests automatically, often before each request. Use this unless a CORS layer outside
    /// this layer answers them. Let the CORS configuration expose the fields in
    /// [`fields::EXPOSED`](crate::fields::EXPOSED), so that scripts can read them. Default: preflight requests are
    /// counted.
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

    /// Rejects requests that are part of abnormal usage, as classified by `detect`. Default: none.
    ///
    /// The closure is called once for each request that is neither blocked nor exempt, before the store is called, and
    /// must not block. Without this setting, no request is classified as abnormal.
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
    /// // The rejected request was not charged.
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

    /// Sets the current capacity of the service. Default: always [`Capacity::full`]. See [`Capacity`] for the effect.
    ///
    /// The closure is called once for each request that is neither blocked nor exempt, before the store is called, and
    /// must not block.
    pub fn capacity<F>(mut self, capacity: F) -> Self
    where
        F: Fn(&request::Parts) -> Capacity + Send + Sync + 'static,
    {
        self.screening.capacity = Some(Box::new(capacity));
        self
    }
}
