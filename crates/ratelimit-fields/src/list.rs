use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, Item, ListSerializer, Version};

use super::{
    bounds::{MAX_ITEMS, MAX_LENGTH},
    error::{FieldError, Problem},
    parameters::Parameters,
    syntax,
};

/// An item of one field of one dialect.
pub trait Member: Sized {
    const NAME: HeaderName;
    /// The field name in the spelling of its specification.
    const FIELD: &'static str;
    /// The version of the structured-field syntax.
    const VERSION: Version;
    /// Standard parameters, whose names extensions cannot use.
    const KNOWN: &'static [&'static str];

    fn decode(bare_item: BareItem, parameters: Parameters) -> Result<Self, Problem>;

    fn encode(&self, list: &mut ListSerializer<String>);

    /// Checks the rules for the list as a whole.
    fn check(_members: &[Self]) -> Result<(), Problem> {
        Ok(())
    }
}

/// A field that is a list: `RateLimit` or `RateLimit-Policy` in a dialect with lists.
///
/// The module of each dialect has type aliases for its lists, such as
/// [`draft11::RateLimit`](super::draft11::RateLimit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T> {
    items: Vec<T>,
}

impl<T: Member> List<T> {
    /// The name of the field.
    pub const NAME: HeaderName = T::NAME;

    /// Creates a field with these items.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no items or more than [`MAX_ITEMS`], if the field would exceed [`MAX_LENGTH`], or
    /// if the dialect does not allow the combination. Clients would ignore such a field.
    pub fn new(items: impl IntoIterator<Item = T>) -> Result<Self, FieldError> {
        let items = items.into_iter().take(MAX_ITEMS + 1).collect();
        let list = Self { items };
        let problem = if list.items.is_empty() {
            Problem::Empty
        } else if list.items.len() > MAX_ITEMS {
            Problem::TooMany
        } else if list.serialize().len() > MAX_LENGTH {
            Problem::TooLong
        } else if let Err(problem) = T::check(&list.items) {
            problem
        } else {
            return Ok(list);
        };
        Err(problem.of(T::FIELD))
    }

    /// Parses the lines of a field, in the order received.
    ///
    /// # Errors
    ///
    /// Returns an error if any part of the field is malformed. Ignore the entire field in this case.
    pub fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Result<Self, FieldError> {
        Self::decode(syntax::list(T::FIELD, T::VERSION, lines)?)
    }

    /// Returns the decoded and the raw items.
    pub(super) fn parse_with_items<L: AsRef<[u8]>>(
        lines: impl IntoIterator<Item = L>,
    ) -> Result<(Vec<T>, Vec<Item>), FieldError> {
        let items = syntax::list(T::FIELD, T::VERSION, lines)?;
        Ok((Self::decode(items.clone())?.items, items))
    }

    fn decode(items: Vec<Item>) -> Result<Self, FieldError> {
        let items = items
            .into_iter()
            .enumerate()
            .map(|(index, item)| {
                let member = T::decode(item.bare_item, Parameters(item.params));
                member.map_err(|problem| problem.of_item(T::FIELD, index))
            })
            .collect::<Result<Vec<T>, _>>()?;
        T::check(&items).map_err(|problem| problem.of(T::FIELD))?;
        Ok(Self { items })
    }

    /// Parses the field of a response, or returns `None` if it is absent.
    ///
    /// Pass only header sections: the fields must not appear in trailers.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`parse`](Self::parse).
    pub fn read(headers: &HeaderMap) -> Result<Option<Self>, FieldError> {
        syntax::read(headers, Self::NAME, Self::parse)
    }

    /// Returns the items in the order of the field. There is at least one, and names can repeat.
    pub fn items(&self) -> &[T] {
        &self.items
    }

    pub(super) fn into_items(self) -> Vec<T> {
        self.items
    }

    /// Serializes the field as the value of one line.
    pub fn to_header_value(&self) -> HeaderValue {
        HeaderValue::try_from(self.serialize()).expect("structured fields are printable ASCII")
    }

    fn serialize(&self) -> String {
        let mut list = ListSerializer::new();
        for item in &self.items {
            item.encode(&mut list);
        }
        list.finish().unwrap_or_default()
    }
}

impl<T: Member> fmt::Display for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.serialize())
    }
}
