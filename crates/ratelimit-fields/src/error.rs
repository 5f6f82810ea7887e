//! Errors of fields that cannot be read, and of values that cannot be written.

use std::{error::Error, fmt};

use super::bounds::{MAX_INTEGER, MAX_ITEMS, MAX_LENGTH};

/// The reason why a field cannot be read, or a value cannot be written.
///
/// On reading it means: ignore the whole field, as if all its lines were absent. The other fields of the response are
/// still good. The message names the field, the item (counted from 1) and the parameter; it repeats no text that was
/// received, so that it can be logged as it is. Match on [`kind`](Self::kind) rather than on the message.
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
    /// The policy of this server that cannot be written.
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
    /// Two policies have a quota that may appear only once.
    Duplicate,
    /// There is no item at all.
    Empty,
    /// The name of an extension parameter, or a value that this dialect has no form for.
    Extension,
    /// A member of the list is not an item of the dialect: it is an inner list, or its bare item has another type.
    Item,
    /// A required parameter is missing.
    Missing,
    /// The name of a policy has characters that this dialect cannot write.
    Name,
    /// A number or a moment is outside of its range.
    Range,
    /// The field is longer than [`MAX_LENGTH`] or has more than [`MAX_ITEMS`]
    /// items.
    Size,
    /// The text is not in the form that the field has to have.
    Syntax,
    /// A parameter has a value of another type than it has to have.
    Type,
}

/// The mistake, without its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    Duplicate(u64),
    /// The quota, and the policy that has it already.
    DuplicateOf(u64, Box<str>),
    Empty,
    ExtensionName(&'static str),
    ExtensionValue,
    Fraction(&'static str),
    Item(&'static str),
    Missing(&'static str),
    Moment,
    Name(&'static str),
    /// The parameter, its value, and the smallest value that it may have.
    Range(&'static str, i128, u64),
    TooLong,
    TooMany,
    Syntax(Box<str>),
    /// The parameter and the types that it may have.
    Type(&'static str, &'static str),
}

impl Problem {
    /// In a field that is not a list of items, or in the list as a whole.
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
    /// Adds the name of the server's policy that cannot be written.
    pub(super) fn of_policy(self, name: &str) -> Self {
        Self {
            policy: Some(name.into()),
            ..self
        }
    }

    /// Creates the error of a malformed field that this module does not read, of kind [`Syntax`](FieldErrorKind::Syntax).
    ///
    /// Use this to report errors in proprietary fields like the errors that [`Hints`](super::Hints) reports. `reason` must
    /// not repeat received text, because errors are logged verbatim.
    ///
    /// ```
    /// use ratelimit_fields::{FieldError, FieldErrorKind};
    ///
    /// let error = FieldError::malformed("x-ratelimit-remaining", "it is not a number");
    /// assert_eq!(error.to_string(), "x-ratelimit-remaining: it is not a number");
    /// assert_eq!((error.field(), error.kind()), ("x-ratelimit-remaining", FieldErrorKind::Syntax));
    /// ```
    pub fn malformed(field: &'static str, reason: &str) -> Self {
        Problem::Syntax(reason.into()).of(field)
    }

    /// The category of the error.
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

    /// The name of the field as its document spells it: `RateLimit-Policy`. A value that belongs to no field yet is
    /// called `extension parameter`.
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
            Self::Duplicate(quota) => write!(f, "quota {quota} appears twice"),
            Self::DuplicateOf(quota, policy) => write!(
                f,
                "its quota {quota} is that of policy {policy:?}; this dialect has nothing else to tell them apart",
            ),
            Self::Empty => f.write_str("there is no item"),
            Self::ExtensionName(reason) => write!(f, "the extension parameter's name {reason}"),
            Self::ExtensionValue => f.write_str("the extension parameter's value has no form in this dialect"),
            Self::Fraction(parameter) => write!(f, "{parameter} is not in whole seconds"),
            Self::Item(expected) => write!(f, "it is not {expected}"),
            Self::Missing(parameter) => write!(f, "{parameter} is missing"),
            Self::Moment => f.write_str("the date is outside of the years 1970 to 9999"),
            Self::Name(expected) => write!(f, "the policy's name is not {expected}"),
            Self::Range(parameter, value, minimum) => {
                write!(f, "{parameter} is {value}, outside {minimum}..={MAX_INTEGER}")
            }
            Self::TooLong => write!(f, "it is longer than {MAX_LENGTH} bytes"),
            Self::TooMany => write!(f, "it has more than {MAX_ITEMS} items"),
            Self::Syntax(reason) => f.write_str(reason),
            Self::Type(parameter, expected) => write!(f, "{parameter} is not {expected}"),
        }
    }
}
