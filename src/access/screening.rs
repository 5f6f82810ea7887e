use std::{fmt, time::Duration};

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
    pub(crate) blocked_status: Option<StatusCode>,
    pub(crate) exemptions: Vec<Exemption>,
    pub(crate) skips_cors_preflight: bool,
    pub(crate) abnormal_usage: Option<Box<AbnormalUsageOf>>,
    pub(crate) capacity: Option<Box<CapacityOf>>,
}

pub(crate) enum Screened<'a> {
    Off,
    Blocked,
    Allowed,
    Exempt(&'a Exemption),
    Preflight,
    Abnormal(AbnormalUsage),
    /// With the `Retry-After`.
    Overloaded(Duration),
    /// With this percentage of the quotas.
    Counted(u8),
}

impl fmt::Display for Screened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("all limits are disabled"),
            Self::Blocked => f.write_str("blocked by the access list"),
            Self::Allowed => f.write_str("allowed by the access list"),
            Self::Exempt(exemption) => write!(f, "exempt by {exemption:?}"),
            Self::Preflight => f.write_str("a CORS preflight is exempt"),
            Self::Abnormal(_) => f.write_str("the application reports abnormal usage"),
            Self::Overloaded(_) => f.write_str("the service has no capacity"),
            Self::Counted(100) => f.write_str("no rule or exemption applies"),
            Self::Counted(percent) => {
                write!(
                    f,
                    "no rule or exemption applies; the service has {percent}% of its capacity"
                )
            }
        }
    }
}

impl Screening {
    /// Every exemption of a layer may be evaluated for every request.
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

    /// Access list → kill switch → exemptions → abnormal usage → capacity. Later steps, which call closures of the
    /// application, are skipped if an earlier one decides.
    #[inline]
    pub(crate) fn screen(
        &self,
        caller: &KeyedRequest<'_>,
        access_list: Option<&AccessList>,
        is_on: bool,
    ) -> Screened<'_> {
        let request = caller.request;
        match access_list.map(|list| list.access(caller)) {
            Some(Access::Block) => return Screened::Blocked,
            _ if !is_on => return Screened::Off,
            Some(Access::Allow) => return Screened::Allowed,
            _ => {}
        }
        if self.skips_cors_preflight && is_cors_preflight(request) {
            return Screened::Preflight;
        }
        if let Some(exemption) = self.exemptions.iter().find(|exemption| exemption.matches(caller)) {
            return Screened::Exempt(exemption);
        }
        if let Some(usage) = self.abnormal_usage.as_ref().and_then(|detect| detect(request)) {
            return Screened::Abnormal(usage);
        }
        match self.capacity.as_ref().map(|capacity| capacity(request).0) {
            None | Some(Level::Full) => Screened::Counted(100),
            Some(Level::Reduced(percent)) => Screened::Counted(percent),
            Some(Level::Exhausted(retry_after)) => Screened::Overloaded(retry_after),
        }
    }

    pub(crate) fn rejection_status(&self, outcome: Outcome, usual: StatusCode) -> StatusCode {
        match outcome {
            Outcome::Blocked => self.blocked_status.unwrap_or(StatusCode::FORBIDDEN),
            _ => usual,
        }
    }
}

fn is_cors_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(header::ORIGIN)
        && request.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}
