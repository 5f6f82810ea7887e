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
    pub fn blocked_status(mut self, status: StatusCode) -> Self {
        self.screening.blocked_status = Some(status);
        self
    }

    /// Admits CORS preflight requests uncounted: `OPTIONS` with `Origin` and `Access-Control-Request-Method`.
    ///
    /// Browsers send preflight requests automatically, often before each request. Use this unless a CORS layer outside
    /// this layer answers them. For scripts to read the fields, the CORS configuration must expose
    /// [`fields::EXPOSED`](crate::fields::EXPOSED). Default: preflight requests are counted.
    pub fn skip_cors_preflight(mut self) -> Self {
        self.screening.skips_cors_preflight = true;
        self
    }

    /// Rejects requests that are part of abnormal usage, as classified by `detect`. See [`AbnormalUsage`]. Default: no
    /// request is classified as abnormal.
    ///
    /// The closure is called once for each request that is neither blocked nor exempt, before the store is called, and
    /// must not block.
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
