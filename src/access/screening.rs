use std::time::Duration;

use http::{Method, StatusCode, header, request::Parts};

use super::{
    access_list::{Access, AccessList},
    exemption::Exemption,
    hooks::{AbnormalUsage, AbnormalUsageOf, CapacityOf, Level},
    keyed_request::KeyedRequest,
};
use crate::{
    decision::Outcome,
    error::{ConfigError, ConfigErrorKind},
    mistake::Diagnostics,
};

#[derive(Default)]
pub(crate) struct Screening {
    /// Default: 403.
    pub(crate) blocked_status: Option<StatusCode>,
    pub(crate) exemptions: Vec<Exemption>,
    pub(crate) skips_cors_preflight: bool,
    pub(crate) abnormal_usage: Option<Box<AbnormalUsageOf>>,
    pub(crate) capacity: Option<Box<CapacityOf>>,
}

pub(crate) enum Screened {
    /// Count the request with this percentage of the quotas.
    Counted(u8),
    /// Admit or reject the request without evaluating any policy. The duration is the `Retry-After`.
    Decided(Outcome, Option<Duration>),
    /// The application rejects the request.
    Abnormal(AbnormalUsage),
}

impl Screening {
    /// The number is limited, because every exemption of a layer may be evaluated for every request.
    const MAX_EXEMPTIONS: usize = 64;

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let count = self.exemptions.len();
        if count > Self::MAX_EXEMPTIONS {
            let message = format!("exemptions: {count} exceed the limit of {}", Self::MAX_EXEMPTIONS);
            return Err(ConfigError::new(ConfigErrorKind::Exemption, message));
        }
        self.exemptions.iter().try_for_each(Exemption::check)?;
        match self.blocked_status.map(|status| status.as_u16()) {
            None | Some(403 | 429) => Ok(()),
            Some(status) => {
                let message = format!("blocked status {status} is not 403 or 429");
                Err(ConfigError::new(ConfigErrorKind::RejectionStatus, message))
            }
        }
    }

    pub(crate) fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        self.exemptions
            .iter()
            .for_each(|exemption| exemption.diagnose(request, findings));
    }

    /// Access list → kill switch → exemptions → abnormal usage → capacity. `None` if the kill switch is off and the
    /// access list does not block the request. In that case, no closure of the application is called.
    #[inline]
    pub(crate) fn screen(
        &self,
        caller: &KeyedRequest<'_>,
        access_list: Option<&AccessList>,
        is_on: bool,
    ) -> Option<Screened> {
        let access = access_list.map(|list| list.access(caller));
        match access {
            Some(Access::Block) => Some(Screened::Decided(Outcome::Blocked, None)),
            _ => is_on.then(|| self.screen_further(caller, access)),
        }
    }

    #[inline]
    fn screen_further(&self, caller: &KeyedRequest<'_>, access: Option<Access>) -> Screened {
        if access == Some(Access::Allow) || self.is_exempt(caller) {
            return Screened::Decided(Outcome::Unlimited, None);
        }
        let request = caller.request;
        if let Some(usage) = self.abnormal_usage.as_ref().and_then(|detect| detect(request)) {
            return Screened::Abnormal(usage);
        }
        match self.capacity.as_ref().map(|capacity| capacity(request).0) {
            None | Some(Level::Full) => Screened::Counted(100),
            Some(Level::Reduced(percent)) => Screened::Counted(percent),
            Some(Level::Exhausted(retry_after)) => Screened::Decided(Outcome::Overloaded, Some(retry_after)),
        }
    }

    pub(crate) fn explain(
        &self,
        caller: &KeyedRequest<'_>,
        access_list: Option<&AccessList>,
        is_on: bool,
    ) -> (Option<Screened>, String) {
        let screened = self.screen(caller, access_list, is_on);
        let access = access_list.map(|list| list.access(caller));
        let exemption = || self.exemptions.iter().find(|exemption| exemption.matches(caller));
        let reason = match (&screened, access) {
            (None, _) => "all limits are disabled".to_owned(),
            (Some(Screened::Decided(Outcome::Blocked, _)), _) => "blocked by the access list".to_owned(),
            (Some(Screened::Decided(Outcome::Unlimited, _)), Some(Access::Allow)) => {
                "allowed by the access list".to_owned()
            }
            (Some(Screened::Decided(Outcome::Unlimited, _)), _) => match exemption() {
                Some(exemption) => format!("exempt by {exemption:?}"),
                None => "a CORS preflight is exempt".to_owned(),
            },
            (Some(Screened::Decided(..)), _) => "the service has no capacity".to_owned(),
            (Some(Screened::Abnormal(_)), _) => "the application reports abnormal usage".to_owned(),
            (Some(Screened::Counted(100)), _) => "no rule or exemption applies".to_owned(),
            (Some(Screened::Counted(percent)), _) => {
                format!("no rule or exemption applies; the service has {percent}% of its capacity")
            }
        };
        (screened, reason)
    }

    #[inline]
    fn is_exempt(&self, caller: &KeyedRequest<'_>) -> bool {
        self.skips_cors_preflight && is_cors_preflight(caller.request)
            || self.exemptions.iter().any(|exemption| exemption.matches(caller))
    }

    /// `usual` is the status of rejections by a quota.
    pub(crate) fn rejection_status(&self, outcome: Outcome, usual: StatusCode) -> StatusCode {
        match outcome {
            Outcome::Blocked => self.blocked_status.unwrap_or(StatusCode::FORBIDDEN),
            _ => usual,
        }
    }
}

/// As defined by the Fetch standard.
fn is_cors_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(header::ORIGIN)
        && request.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}
