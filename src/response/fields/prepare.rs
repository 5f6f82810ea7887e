use super::{EmitWhen, Form, RateCap, ResponseFields};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    fields::{Dialect, FieldError, Prepared, PreparedPolicy, draft11::PolicyItem},
    policy::{QuotaPolicy, QuotaUnit},
};

impl ResponseFields {
    pub(crate) fn can_show_partition_keys(&self) -> bool {
        matches!(self.form, Form::Dialect(Dialect::Draft11 | Dialect::EditorsCopy))
    }

    /// Returns `true` if the fields of an admitted request depend only on the remaining units and the effective windows of
    /// its policies.
    pub(crate) fn are_numbers(&self) -> bool {
        matches!(self.form, Form::Dialect(Dialect::Draft11) | Form::None)
            && self.emit_when == EmitWhen::Always
            && self.rate_cap == RateCap::Double
            && self.jitter.is_zero()
            && self.map_remaining.is_none()
            && self.extra.is_none()
            && !self.adds_draft06_limit
            && !self.tightest_only
            && !self.without_limits
            && !self.overwrite_upstream
    }

    /// Serializes the policies. Returns `None` if no fields are configured, and an error if the dialect cannot express
    /// a policy.
    pub(crate) fn prepare<'a>(
        &self,
        policies: impl IntoIterator<Item = &'a QuotaPolicy>,
    ) -> Result<Option<Prepared>, ConfigError> {
        let Form::Dialect(dialect) = self.form else {
            return Ok(self.unprepared());
        };
        let has_units = self.can_show_partition_keys();
        // Dialects without units omit policies with other units, which therefore cannot cause an error.
        let shown = policies
            .into_iter()
            .filter(|policy| !policy.is_hidden() && (has_units || policy.unit() == QuotaUnit::Requests));
        let items = shown.map(|policy| prepared_policy(policy).map_err(|error| unsayable(policy, &error)));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        let prepared = Prepared::new(dialect, items).map_err(|error| {
            let message = error.to_string();
            ConfigError::new(ConfigErrorKind::ResponseFields, message).with_source(error)
        })?;
        Ok(Some(self.with_settings(prepared)))
    }

    pub(super) fn unprepared(&self) -> Option<Prepared> {
        let prepared = match self.form {
            Form::Dialect(dialect) => Prepared::new(dialect, [] as [PreparedPolicy; 0]).ok()?,
            Form::Legacy(reset) => Prepared::legacy(reset),
            Form::None => return None,
        };
        Some(self.with_settings(prepared))
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
    let mut prepared = PreparedPolicy::from(item);
    if unit.is_none() {
        prepared = prepared.with_custom_unit();
    }
    if policy.shows_partition_key {
        prepared = prepared.with_partition_key();
    }
    Ok(prepared)
}

fn unsayable(policy: &QuotaPolicy, error: &FieldError) -> ConfigError {
    let message = format!("policy {:?}: {error}", policy.name());
    ConfigError::new(ConfigErrorKind::ResponseFields, message).with_source(error.clone())
}
