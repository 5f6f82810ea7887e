use std::{error::Error, fmt};

use super::bounds::{MAX_INTEGER, MAX_ITEMS, MAX_LENGTH};

/// The error of a field that cannot be parsed, or of a value that cannot be serialized.
///
/// The message names the field, the item (counted from 1) and the parameter, and never contains received text, so it is
/// safe to log.
///
/// ```
/// use ratelimit_fields::{FieldErrorKind, draft11::RateLimit};
///
/// let error = RateLimit::parse([r#""burst";r=9;t=1, "daily";r=-1"#]).unwrap_err();
/// assert_eq!(error.kind(), FieldErrorKind::Range);
/// assert_eq!(error.field(), "RateLimit");
/// assert_eq!(error.to_string(), "RateLimit: item 2: r is -1, outside 0..=999999999999999");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    field: &'static str,
    item: Option<usize>,
    policy: Option<Box<str>>,
    problem: Problem,
}

/// The category of a [`FieldError`].
///
/// ```
/// use ratelimit_fields::{FieldErrorKind, draft06, draft11::{LimitItem, RateLimit}};
///
/// let kind = |text| RateLimit::parse([text]).unwrap_err().kind();
/// assert_eq!(kind(""), FieldErrorKind::Empty);
/// assert_eq!(kind("default;r=1"), FieldErrorKind::Item);
/// assert_eq!(kind(r#""default""#), FieldErrorKind::Missing);
/// assert_eq!(kind(r#""default";r=-1"#), FieldErrorKind::Range);
/// assert_eq!(kind(r#""default";r="#), FieldErrorKind::Syntax);
/// assert_eq!(kind(r#""default";r="1""#), FieldErrorKind::Type);
///
/// let kind = draft06::RateLimitPolicy::parse(["10;w=1, 10;w=60"]).unwrap_err().kind();
/// assert_eq!(kind, FieldErrorKind::Duplicate);
/// assert_eq!(LimitItem::new("größe", 1).unwrap_err().kind(), FieldErrorKind::Name);
/// let error = LimitItem::new("default", 1)?.with_extension("burst", 5).unwrap_err();
/// assert_eq!(error.kind(), FieldErrorKind::Extension);
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FieldErrorKind {
    /// Two policies have the same quota, in a dialect without names.
    Duplicate,
    /// The field is empty.
    Empty,
    /// The name or the value of an extension parameter is not allowed.
    Extension,
    /// A member of the list is an inner list or a bare item of the wrong type.
    Item,
    /// A required parameter is missing.
    Missing,
    /// The dialect cannot represent the name of a policy.
    Name,
    /// A number or a date is outside its range.
    Range,
    /// The field is longer than [`MAX_LENGTH`] or has more than [`MAX_ITEMS`] items.
    Size,
    /// The text does not have the syntax of the field.
    Syntax,
    /// The value of a parameter has the wrong type.
    Type,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    Duplicate(u64),
    /// The quota, and the other policy with the same quota.
    DuplicateOf(u64, Box<str>),
    Empty,
    ExtensionName(&'static str),
    ExtensionValue,
    Fraction(&'static str),
    Item(&'static str),
    Missing(&'static str),
    Moment,
    Name(&'static str),
    /// The parameter, its value, and the minimum.
    Range(&'static str, i128, u64),
    TooLong,
    TooMany,
    Syntax(Box<str>),
    /// The parameter and the expected types.
    Type(&'static str, &'static str),
}

impl Problem {
    pub(super) fn of(self, field: &'static str) -> FieldError {
        FieldError {
            field,
            item: None,
            policy: None,
            problem: self,
        }
    }

    pub(super) fn of_item(self, field: &'static str, index: usize) -> FieldError {
        FieldError {
            item: Some(index + 1),
            ..self.of(field)
        }
    }
}

impl FieldError {
    pub(super) fn of_policy(self, name: &str) -> Self {
        Self {
            policy: Some(name.into()),
            ..self
        }
    }

    /// Creates an error of kind [`Syntax`](FieldErrorKind::Syntax) for a field that this crate does not parse.
    ///
    /// `reason` must not contain received text, because errors are logged verbatim.
    ///
    /// ```
    /// use ratelimit_fields::{FieldError, FieldErrorKind};
    ///
    /// let error = FieldError::malformed("x-ratelimit-remaining", "not a number");
    /// assert_eq!(error.to_string(), "x-ratelimit-remaining: not a number");
    /// assert_eq!((error.field(), error.kind()), ("x-ratelimit-remaining", FieldErrorKind::Syntax));
    /// ```
    pub fn malformed(field: &'static str, reason: &str) -> Self {
        Problem::Syntax(reason.into()).of(field)
    }

    /// Returns the category of the error.
    pub fn kind(&self) -> FieldErrorKind {
        match self.problem {
            Problem::Duplicate(_) | Problem::DuplicateOf(..) => FieldErrorKind::Duplicate,
            Problem::Empty => FieldErrorKind::Empty,
            Problem::ExtensionName(_) | Problem::ExtensionValue => FieldErrorKind::Extension,
            Problem::Item(_) => FieldErrorKind::Item,
            Problem::Missing(_) => FieldErrorKind::Missing,
            Problem::Name(_) => FieldErrorKind::Name,
            Problem::Fraction(_) | Problem::Moment | Problem::Range(..) => FieldErrorKind::Range,
            Problem::TooLong | Problem::TooMany => FieldErrorKind::Size,
            Problem::Syntax(_) => FieldErrorKind::Syntax,
            Problem::Type(..) => FieldErrorKind::Type,
        }
    }

    /// Returns the name of the field, such as `RateLimit-Policy`, or `extension parameter` for a value without a field.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(policy) = &self.policy {
            write!(f, "policy {policy:?}: ")?;
        }
        write!(f, "{}: ", self.field)?;
        if let Some(item) = self.item {
            write!(f, "item {item}: ")?;
        }
        self.problem.fmt(f)
    }
}

impl Error for FieldError {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate(quota) => write!(f, "duplicate quota {quota}"),
            Self::DuplicateOf(quota, policy) => write!(
                f,
                "quota {quota} is also that of policy {policy:?}, and this dialect distinguishes policies only by \
                 quota",
            ),
            Self::Empty => f.write_str("no items"),
            Self::ExtensionName(reason) => write!(f, "extension parameter name {reason}"),
            Self::ExtensionValue => f.write_str("extension parameter value cannot be represented in this dialect"),
            Self::Fraction(parameter) => write!(f, "{parameter} is not a whole number of seconds"),
            Self::Item(expected) => write!(f, "not {expected}"),
            Self::Missing(parameter) => write!(f, "{parameter} is missing"),
            Self::Moment => f.write_str("date is outside the years 1970 to 9999"),
            Self::Name(expected) => write!(f, "policy name is not {expected}"),
            Self::Range(parameter, value, minimum) => {
                write!(f, "{parameter} is {value}, outside {minimum}..={MAX_INTEGER}")
            }
            Self::TooLong => write!(f, "longer than {MAX_LENGTH} bytes"),
            Self::TooMany => write!(f, "more than {MAX_ITEMS} items"),
            Self::Syntax(reason) => f.write_str(reason),
            Self::Type(parameter, expected) => write!(f, "{parameter} is not {expected}"),
        }
    }
}
