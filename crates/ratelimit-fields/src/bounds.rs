/// The maximum length of a field in bytes: all lines, plus two bytes between adjacent lines.
///
/// Allows what [RFC 9651](https://www.rfc-editor.org/rfc/rfc9651#section-3) requires parsers to support.
///
/// ```
/// use ratelimit_fields::{FieldErrorKind, MAX_LENGTH, draft11::RateLimit};
///
/// let item = r#""a";r=1"#;
/// let spaces = " ".repeat(MAX_LENGTH - item.len());
/// assert!(RateLimit::parse([format!("{item}{spaces}")]).is_ok());
/// let error = RateLimit::parse([format!("{item}{spaces} ")]).unwrap_err();
/// assert_eq!(error.kind(), FieldErrorKind::Size);
/// assert_eq!(error.to_string(), "RateLimit: longer than 131072 bytes");
/// ```
pub const MAX_LENGTH: usize = 128 * 1024;

/// The maximum number of items of a field, which RFC 9651 requires parsers to support.
///
/// ```
/// use ratelimit_fields::{MAX_ITEMS, draft11::{LimitItem, RateLimit}};
///
/// let item = LimitItem::new("a", 1)?;
/// assert!(RateLimit::new(vec![item.clone(); MAX_ITEMS]).is_ok());
/// let error = RateLimit::new(vec![item; MAX_ITEMS + 1]).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit: more than 1024 items");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub const MAX_ITEMS: usize = 1024;

/// The largest integer of a structured field, with 15 digits.
///
/// ```
/// use ratelimit_fields::{MAX_INTEGER, draft11::LimitItem};
///
/// assert!(LimitItem::new("a", MAX_INTEGER).is_ok());
/// let error = LimitItem::new("a", MAX_INTEGER + 1).unwrap_err();
/// assert_eq!(error.to_string(), "RateLimit: r is 1000000000000000, outside 0..=999999999999999");
/// ```
pub const MAX_INTEGER: u64 = 999_999_999_999_999;
