use super::{EmitWhen, Form, ResponseFields};
use crate::{
    decision::whole_seconds,
    error::{ConfigError, ConfigErrorKind},
    fields::{Dialect, FieldError, Prepared, PreparedPolicy, draft11::PolicyItem},
    policy::{QuotaPolicy, QuotaUnit},
};

impl ResponseFields {
    pub(crate) fn can_show_partition_keys(&self) -> bool {
        matches!(self.form, Form::Dialect(dialect) if dialect.has_names())
    }

    /// If so, the fields of an admitted request depend only on the remaining units and effective windows.
    pub(crate) fn are_numbers(&self) -> bool {
        (self.can_show_partition_keys() || matches!(self.form, Form::None))
            && self.emit_when == EmitWhen::Always
            && !self.within_rate
            && self.jitter.is_zero()
            && self.map_remaining.is_none()
            && self.extra.is_none()
            && !self.tightest_only
            && !self.without_limits
            && !self.overwrite_upstream
    }

    /// True if this also applies to rejected requests, with the wait.
    pub(crate) fn are_numbers_of_rejections(&self) -> bool {
        matches!(self.form, Form::Dialect(Dialect::Draft11) | Form::None)
            && self.are_numbers()
            && !self.retry_after_as_date
    }

    /// `None` if no fields are configured. The error names a policy that the dialect cannot express.
    pub(crate) fn prepare<'a>(
        &self,
        policies: impl IntoIterator<Item = &'a QuotaPolicy>,
    ) -> Result<Option<Prepared>, ConfigError> {
        let Form::Dialect(dialect) = self.form else {
            return Ok(self.prepare_limits(policies));
        };
        let items = self.shown_policies(policies).map(|policy| {
            let prepared = prepared_policy(policy).map_err(|error| unsayable(policy, &error));
            prepared.map(|prepared| self.with_numbers(prepared, policy))
        });
        let items = items.collect::<Result<Vec<_>, _>>()?;
        let prepared = Prepared::new(dialect, items).map_err(|error| {
            let message = error.to_string();
            ConfigError::new(ConfigErrorKind::ResponseFields, message).with_source(error)
        })?;
        Ok(Some(self.with_settings(prepared)))
    }

    /// Without `RateLimit-Policy`, no policy is an error.
    pub(crate) fn prepare_limits<'a>(&self, policies: impl IntoIterator<Item = &'a QuotaPolicy>) -> Option<Prepared> {
        let items = self.shown_policies(policies).filter_map(|policy| {
            let prepared = named_policy(policy).ok()?;
            Some(self.with_numbers(prepared, policy))
        });
        let prepared = match self.form {
            Form::Dialect(dialect) => Prepared::limits_only(dialect, items),
            Form::Legacy(reset) => Prepared::legacy(reset, items),
            Form::None => return None,
        };
        Some(self.with_settings(prepared))
    }

    /// Dialects without units omit policies with other units.
    fn shown_policies<'a>(
        &self,
        policies: impl IntoIterator<Item = &'a QuotaPolicy>,
    ) -> impl Iterator<Item = &'a QuotaPolicy> {
        let has_units = self.can_show_partition_keys();
        let is_shown =
            move |policy: &&QuotaPolicy| !policy.is_hidden() && (has_units || policy.unit() == QuotaUnit::Requests);
        policies.into_iter().filter(is_shown)
    }

    fn with_numbers(&self, prepared: PreparedPolicy, policy: &QuotaPolicy) -> PreparedPolicy {
        let limit = match self.shows_capacity_as_limit {
            true => policy.burst_capacity(),
            false => policy.quota(),
        };
        let reset = policy.usual_window().map_or(0, whole_seconds);
        let mut prepared = prepared.with_limit(limit).with_reset(reset);
        if policy.unit().registered().is_none() {
            prepared = prepared.with_custom_unit();
        }
        if policy.shows_partition_key {
            prepared = prepared.with_partition_key();
        }
        prepared
    }

    fn with_settings(&self, mut prepared: Prepared) -> Prepared {
        if self.adds_draft06_limit {
            prepared = prepared.with_draft06_limit();
        }
        if self.without_policies {
            prepared = prepared.without_policies();
        }
        prepared
    }
}

fn prepared_policy(policy: &QuotaPolicy) -> Result<PreparedPolicy, FieldError> {
    let unit = policy.unit().registered();
    let mut item = PolicyItem::new(policy.name(), policy.quota())?.with_unit(unit.clone().unwrap_or_default());
    // Policies without a registered unit are not listed, so their window may be invalid.
    if let Some(window) = policy.window().filter(|_| unit.is_some()) {
        item = item.with_window(window)?;
    }
    for (name, value) in policy.extensions.iter().filter(|_| unit.is_some()) {
        item = item.with_extension(name, value.clone())?;
    }
    Ok(item.into())
}

fn named_policy(policy: &QuotaPolicy) -> Result<PreparedPolicy, FieldError> {
    let unit = policy.unit().registered().unwrap_or_default();
    Ok(PolicyItem::new(policy.name(), policy.quota())?.with_unit(unit).into())
}

fn unsayable(policy: &QuotaPolicy, error: &FieldError) -> ConfigError {
    let message = format!("policy {:?}: {error}", policy.name());
    ConfigError::new(ConfigErrorKind::ResponseFields, message).with_source(error.clone())
}
