use std::time::Duration;

use http::HeaderMap;

use crate::{
    limit::Limit,
    reader::Reader,
    time::{Clock, whole},
};
use ratelimit_fields::Unit;

/// The fields of one limit, for a [`Profile`](super::Profile).
///
/// Numbers may have a fraction. [`build`](super::super::ClientLayerBuilder::build) rejects invalid field names.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use ratelimit_fields::Unit;
/// use tower_ratelimit_client::{Advice, Caps, Exchange, LimitFields, Profile};
///
/// let points = LimitFields::new()
///     .with_name("points")
///     .with_name_field("x-plan")
///     .with_unit(Unit::tokens())
///     .with_quota("x-points-quota")
///     .with_remaining("x-points-left")
///     .with_reset_ms("x-points-reset-ms");
///
/// let headers = HeaderMap::from_iter([
///     ("x-points-quota".parse()?, "500".parse()?),
///     ("x-points-left".parse()?, "99.5".parse()?),
///     ("x-points-reset-ms".parse()?, "15000".parse()?),
/// ]);
/// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// let profile = Profile::new().with_limit(points);
/// let advice = Advice::read_as(&profile, StatusCode::OK, &headers, exchange, &Caps::default());
/// let points = &advice.limits()[0];
/// assert_eq!((points.name(), points.unit()), (Some("points"), &Unit::tokens()));
/// assert_eq!((points.quota(), points.remaining()), (Some(500), Some(99)));
/// assert_eq!(points.reset(), Some(Duration::from_secs(15)));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitFields {
    name: Option<&'static str>,
    name_field: Option<&'static str>,
    unit: Option<Unit>,
    quota: Option<&'static str>,
    remaining: Option<&'static str>,
    used: Option<&'static str>,
    reset: Option<TimeField>,
}

impl LimitFields {
    /// Creates a limit without fields and name, which counts requests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name of the limit. Default: none. Limits of the same name are one limit.
    #[must_use]
    pub fn with_name(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    /// Sets the field that contains the name. If it is absent, empty or longer than 64 bytes,
    /// [`with_name`](Self::with_name) applies.
    #[must_use]
    pub fn with_name_field(mut self, field: &'static str) -> Self {
        self.name_field = Some(field);
        self
    }

    /// Sets the unit. Default: requests.
    #[must_use]
    pub fn with_unit(mut self, unit: Unit) -> Self {
        self.unit = Some(unit);
        self
    }

    /// Sets the field of the quota.
    #[must_use]
    pub fn with_quota(mut self, field: &'static str) -> Self {
        self.quota = Some(field);
        self
    }

    /// Sets the field of the remaining units.
    #[must_use]
    pub fn with_remaining(mut self, field: &'static str) -> Self {
        self.remaining = Some(field);
        self
    }

    /// Sets the field of the used units, alone or with the quota, such as `38/40`.
    /// [`with_remaining`](Self::with_remaining) takes precedence.
    #[must_use]
    pub fn with_used(mut self, field: &'static str) -> Self {
        self.used = Some(field);
        self
    }

    /// Sets the field of the reset:
    ///
    /// - seconds from now, such as `30` or `1.5`, or a duration with units, such as `6m0s` or `20ms`;
    /// - a Unix time: numbers from 10⁹ are seconds, and numbers from 10¹² are milliseconds;
    /// - a date, such as `2025-08-21T12:40:59Z` (RFC 3339) or `Thu, 21 Aug 2025 12:40:59 GMT`.
    ///
    /// A time more than a day before or 366 days after the response is malformed.
    #[must_use]
    pub fn with_reset(mut self, field: &'static str) -> Self {
        self.reset = Some(TimeField::seconds(field));
        self
    }

    /// Sets the field of the reset, like [`with_reset`](Self::with_reset), with numbers in milliseconds.
    #[must_use]
    pub fn with_reset_ms(mut self, field: &'static str) -> Self {
        self.reset = Some(TimeField::milliseconds(field));
        self
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &'static str> {
        let reset = self.reset.as_ref().map(TimeField::name);
        let fields = [self.name_field, self.quota, self.remaining, self.used, reset];
        fields.into_iter().flatten()
    }

    pub(super) fn read(&self, reader: &mut Reader<'_>) -> Option<Limit> {
        let (used, of_used) = self.used.and_then(|field| reader.field(field, used)).unzip();
        let quota = self.quota.and_then(|field| reader.field(field, number));
        let quota = quota.or(of_used.flatten());
        let remaining = self.remaining.and_then(|field| reader.field(field, number));
        let remaining = remaining.or_else(|| Some(quota?.saturating_sub(used?)));
        let reset = self.reset.as_ref().and_then(|field| field.read(reader));
        let is_present = quota.is_some() || remaining.is_some() || reset.is_some();
        is_present.then(|| Limit {
            name: self.name(reader.headers),
            partition_key: None,
            unit: self.unit.clone(),
            quota,
            remaining,
            reset,
        })
    }

    fn name(&self, headers: &HeaderMap) -> Option<String> {
        const MAX_LENGTH: usize = 64;
        let value = self.name_field.and_then(|field| headers.get(field)?.to_str().ok());
        let value = value.filter(|value| !value.is_empty() && value.len() <= MAX_LENGTH);
        value.or(self.name).map(Into::into)
    }
}

fn number(text: &str, _: &Clock) -> Result<u64, &'static str> {
    let (whole, _) = whole(text).ok_or("not a number")?;
    Ok(whole)
}

/// The used units, rounded up, and the quota.
fn used(text: &str, clock: &Clock) -> Result<(u64, Option<u64>), &'static str> {
    let (text, quota) = match text.split_once('/') {
        Some((text, quota)) => (text.trim_ascii_end(), Some(number(quota.trim_ascii_start(), clock)?)),
        None => (text, None),
    };
    let (used, has_fraction) = whole(text).ok_or("not a number")?;
    Ok((used.saturating_add(has_fraction.into()), quota))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimeField {
    name: &'static str,
    per_second: u32,
}

impl TimeField {
    pub(super) fn seconds(name: &'static str) -> Self {
        Self { name, per_second: 1 }
    }

    pub(super) fn milliseconds(name: &'static str) -> Self {
        let per_second = 1_000;
        Self { name, per_second }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn read(&self, reader: &mut Reader<'_>) -> Option<Duration> {
        let parse = |text: &str, clock: &Clock| clock.wait(text, self.per_second).ok_or("not a time");
        reader.field(self.name, parse)
    }
}
