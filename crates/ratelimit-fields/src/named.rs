use std::{borrow::Borrow, fmt, time::Duration};

use http::HeaderName;
use sfv::{BareItem, ListSerializer, Version};

use super::{
    error::{FieldError, Problem},
    extension::{ExtensionValue, Extensions, extension_methods},
    list::Member,
    names::{RATELIMIT, RATELIMIT_POLICY},
    parameters::{EFFECTIVE_WINDOW, Parameters, QUOTA, Serializer, WINDOW},
    seconds,
    syntax::writable,
    unit::Unit,
};

/// A dialect in which items have names.
pub trait Named: Clone + fmt::Debug + Eq + Send + Sync + 'static {
    type Name: Borrow<str> + TryFrom<String> + Into<BareItem> + Clone + fmt::Debug + Eq + Send + Sync;
    type Remaining: Copy + fmt::Debug + Eq + Into<Option<u64>> + Send + Sync;

    const VERSION: Version;
    const NAME_FORM: &'static str;
    const KNOWN_OF_POLICY: &'static [&'static str];
    /// The shortest window that can be parsed, in seconds.
    const SHORTEST_WINDOW: u64;

    fn take_name(bare_item: BareItem) -> Result<Self::Name, Problem>;

    fn take_remaining(parameters: &mut Parameters) -> Result<Self::Remaining, Problem>;

    fn take_quota(parameters: &mut Parameters) -> Result<u64, Problem>;

    fn take_unit(parameters: &mut Parameters) -> Result<Unit, Problem>;

    fn take_partition_key(parameters: &mut Parameters) -> Result<Option<Vec<u8>>, Problem>;

    /// Writes the name and the standard parameters in the order of the dialect.
    fn write_limit<'a>(limit: &LimitItem<Self>, list: &'a mut ListSerializer<String>) -> Serializer<'a>;

    fn write_policy<'a>(policy: &PolicyItem<Self>, list: &'a mut ListSerializer<String>) -> Serializer<'a>;
}

/// An item of a `RateLimit` field: the remaining units of one policy.
///
/// Use the alias of a dialect, such as [`draft11::LimitItem`](super::draft11::LimitItem).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitItem<D: Named> {
    pub(super) name: D::Name,
    pub(super) remaining: D::Remaining,
    pub(super) reset: Option<u64>,
    pub(super) partition_key: Option<Vec<u8>>,
    extensions: Extensions,
}

impl<D: Named> LimitItem<D> {
    pub(super) fn of(name: &str, remaining: D::Remaining) -> Result<Self, FieldError> {
        Ok(Self {
            name: new_name::<D>(Self::FIELD, name)?,
            remaining,
            reset: None,
            partition_key: None,
            extensions: Extensions::default(),
        })
    }

    /// Sets the effective window, from the creation of the response, rounded up to whole seconds of at most 15 digits.
    #[must_use]
    pub fn with_reset(mut self, reset: Duration) -> Self {
        self.reset = Some(seconds::rounded_up(reset));
        self
    }

    /// Sets the partition key. Clients can read it, so it should not identify a person.
    #[must_use]
    pub fn with_partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// Returns the name of the policy.
    pub fn name(&self) -> &str {
        self.name.borrow()
    }

    /// Returns the remaining units, which can exceed the quota: a `u64`, or in the editors' copy an `Option<u64>`.
    pub fn remaining(&self) -> D::Remaining {
        self.remaining
    }

    /// Returns the effective window.
    pub fn reset(&self) -> Option<Duration> {
        self.reset.map(Duration::from_secs)
    }

    /// Returns the partition key.
    pub fn partition_key(&self) -> Option<&[u8]> {
        self.partition_key.as_deref()
    }

    extension_methods!();
}

impl<D: Named> Member for LimitItem<D> {
    const FIELD: &'static str = "RateLimit";
    const KNOWN: &'static [&'static str] = &["r", "t", "pk"];
    const NAME: HeaderName = RATELIMIT;
    const VERSION: Version = D::VERSION;

    fn decode(name: BareItem, mut parameters: Parameters) -> Result<Self, Problem> {
        Ok(Self {
            name: D::take_name(name)?,
            remaining: D::take_remaining(&mut parameters)?,
            reset: parameters.take_integer(EFFECTIVE_WINDOW, 0)?,
            partition_key: D::take_partition_key(&mut parameters)?,
            extensions: parameters.into(),
        })
    }

    fn encode(&self, list: &mut ListSerializer<String>) {
        let _ = self.extensions.write(D::write_limit(self, list));
    }
}

/// A policy of a `RateLimit-Policy` field: a name, a quota, and an optional window, unit and partition key.
///
/// Use the alias of a dialect, such as [`draft11::PolicyItem`](super::draft11::PolicyItem).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyItem<D: Named> {
    pub(super) name: D::Name,
    pub(super) quota: u64,
    pub(super) unit: Unit,
    pub(super) window: Option<u64>,
    pub(super) partition_key: Option<Vec<u8>>,
    extensions: Extensions,
}

impl<D: Named> PolicyItem<D> {
    /// Creates a policy that counts requests, without a window.
    ///
    /// # Errors
    ///
    /// Returns an error if the quota has more than 15 digits, or if the name is not printable ASCII, or in the editors'
    /// copy not a [Token](super::ExtensionValue::token).
    pub fn new(name: &str, quota: u64) -> Result<Self, FieldError> {
        Ok(Self {
            name: new_name::<D>(Self::FIELD, name)?,
            quota: writable(Self::FIELD, QUOTA.as_str(), quota, 0)?,
            unit: Unit::default(),
            window: None,
            partition_key: None,
            extensions: Extensions::default(),
        })
    }

    /// Sets the quota unit. Default: requests.
    #[must_use]
    pub fn with_unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Sets the window. Fails unless it is a whole number of seconds, at least 1.
    pub fn with_window(mut self, window: Duration) -> Result<Self, FieldError> {
        self.window = Some(seconds::of_window(Self::FIELD, window)?);
        Ok(self)
    }

    /// Sets the partition key. Clients can read it, so it should not identify a person.
    #[must_use]
    pub fn with_partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// Returns the name of the policy.
    pub fn name(&self) -> &str {
        self.name.borrow()
    }

    /// Returns the quota per window.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// Returns the quota unit.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Returns the window, in whole seconds.
    pub fn window(&self) -> Option<Duration> {
        self.window.map(Duration::from_secs)
    }

    /// Returns the partition key.
    pub fn partition_key(&self) -> Option<&[u8]> {
        self.partition_key.as_deref()
    }

    extension_methods!();
}

impl<D: Named> Member for PolicyItem<D> {
    const FIELD: &'static str = "RateLimit-Policy";
    const KNOWN: &'static [&'static str] = D::KNOWN_OF_POLICY;
    const NAME: HeaderName = RATELIMIT_POLICY;
    const VERSION: Version = D::VERSION;

    fn decode(name: BareItem, mut parameters: Parameters) -> Result<Self, Problem> {
        Ok(Self {
            name: D::take_name(name)?,
            quota: D::take_quota(&mut parameters)?,
            unit: D::take_unit(&mut parameters)?,
            window: parameters.take_integer(WINDOW, D::SHORTEST_WINDOW)?,
            partition_key: D::take_partition_key(&mut parameters)?,
            extensions: parameters.into(),
        })
    }

    fn encode(&self, list: &mut ListSerializer<String>) {
        let _ = self.extensions.write(D::write_policy(self, list));
    }
}

fn new_name<D: Named>(field: &'static str, name: &str) -> Result<D::Name, FieldError> {
    D::Name::try_from(name.to_owned()).map_err(|_| Problem::Name(D::NAME_FORM).of(field))
}
