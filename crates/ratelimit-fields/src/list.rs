//! Fields that are lists of items.

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
    /// The name of the field.
    const NAME: HeaderName;
    /// The field name in the spelling of the document.
    const FIELD: &'static str;
    /// The edition of structured fields that the dialect is written in.
    const VERSION: Version;
    /// Parameters with a meaning, which no extension can have.
    const KNOWN: &'static [&'static str];

    fn decode(bare_item: BareItem, parameters: Parameters) -> Result<Self, Problem>;

    fn encode(&self, list: &mut ListSerializer<String>);

    /// The rules for the list as a whole.
    fn check(_members: &[Self]) -> Result<(), Problem> {
        Ok(())
    }
}

/// A field that is a list of items: `RateLimit` and `RateLimit-Policy` of the dialects that have lists.
///
/// The module of each dialect has names for its own lists, such as [`draft11::RateLimit`](super::draft11::RateLimit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T> {
    items: Vec<T>,
}

impl<T: Member> List<T> {
    /// The name of the field.
    pub const NAME: HeaderName = T::NAME;

    /// A field of these items.
    ///
    /// Fails without items, with more than [`MAX_ITEMS`], if the field would exceed [`MAX_LENGTH`], or if the dialect forbids
    /// the combination: readers would ignore such a field.
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

    /// Reads the lines of one field, in the order in which they came.
    ///
    /// If anything in them is malformed, the whole field is: ignore it then.
    pub fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Result<Self, FieldError> {
        Self::decode(syntax::list(T::FIELD, T::VERSION, lines)?)
    }

    /// The items with what they mean, and as they were parsed.
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

    /// Reads the field of a response; `None` if it is absent.
    ///
    /// Give it the header section only, never trailers: the fields must not appear there. Fails as
    /// [`parse`](Self::parse) does.
    pub fn read(headers: &HeaderMap) -> Result<Option<Self>, FieldError> {
        syntax::read(headers, Self::NAME, Self::parse)
    }

    /// The items, at least one, in the order of the field. Names may repeat.
    pub fn items(&self) -> &[T] {
        &self.items
    }

    pub(super) fn into_items(self) -> Vec<T> {
        self.items
    }

    /// The value of one field line.
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
