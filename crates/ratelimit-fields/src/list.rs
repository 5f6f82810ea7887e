use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, header::Entry};
use sfv::{BareItem, Item, KeyRef, ListSerializer, Version};

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

    fn check(_members: &[Self]) -> Result<(), Problem> {
        Ok(())
    }
}

/// A field that is a list: `RateLimit` or `RateLimit-Policy` in a dialect with lists.
///
/// Use the alias of a dialect, such as [`draft11::RateLimit`](super::draft11::RateLimit).
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
    /// if two policies of draft-06 have the same quota.
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

    /// Parses the lines of a field. Fails if any part is malformed.
    pub fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Result<Self, FieldError> {
        Self::decode(syntax::list(T::FIELD, T::VERSION, lines)?)
    }

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

    /// Parses the field of a response, if present. Fails like [`parse`](Self::parse).
    pub fn read(headers: &HeaderMap) -> Result<Option<Self>, FieldError> {
        syntax::read(headers, Self::NAME, Self::parse)
    }

    /// Returns the items, at least one. Names can repeat.
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

    pub(super) fn merge(
        headers: &mut HeaderMap,
        own: HeaderValue,
        tightened: (&KeyRef, &KeyRef),
        is_same: impl Fn(&T, &T) -> bool,
    ) {
        if let Some(own) = show_alone(headers, Self::NAME, own) {
            Self::merge_present(headers, &own, tightened, is_same);
        }
    }

    /// Keeps inner items as parsed, except that an item that `is_same` gets the lower value of the first `tightened`
    /// parameter and the higher value of the second.
    pub(super) fn merge_present(
        headers: &mut HeaderMap,
        own: &HeaderValue,
        tightened: (&KeyRef, &KeyRef),
        is_same: impl Fn(&T, &T) -> bool,
    ) {
        let inner = Self::parse_with_items(headers.get_all(Self::NAME));
        let (Ok((inner, mut items)), Ok((own, own_items))) = (inner, Self::parse_with_items([own])) else {
            return;
        };
        let mut is_changed = false;
        for (own, own_item) in own.iter().zip(own_items) {
            let mut is_shown = false;
            for (inner, item) in inner.iter().zip(&mut items) {
                if is_same(inner, own) {
                    is_changed |= tighten(item, &own_item, tightened);
                    is_shown = true;
                }
            }
            if !is_shown {
                items.push(own_item);
                is_changed = true;
            }
        }
        if let Some(value) = syntax::to_header_value(&items).filter(|_| is_changed) {
            syntax::insert(headers, Self::NAME, value);
        }
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

/// Inserts `own` if the field is absent, and otherwise returns it.
pub(super) fn show_alone(headers: &mut HeaderMap, name: HeaderName, own: HeaderValue) -> Option<HeaderValue> {
    match headers.try_entry(name) {
        Ok(Entry::Vacant(place)) => {
            let _ = place.try_insert(own);
            None
        }
        Ok(Entry::Occupied(_)) => Some(own),
        // The map has reached its maximum size.
        Err(_) => None,
    }
}

/// Lowers one parameter and raises another to the values of `own`. A parameter that `item` lacks is not added, because
/// a limit without a reset must not seem to reset.
fn tighten(item: &mut Item, own: &Item, (lowered, raised): (&KeyRef, &KeyRef)) -> bool {
    replace_if(item, own, lowered, |inner, own| own < inner) | replace_if(item, own, raised, |inner, own| own > inner)
}

fn replace_if(item: &mut Item, own: &Item, key: &KeyRef, is_stricter: impl Fn(i64, i64) -> bool) -> bool {
    let own = own.params.get(key.as_str()).and_then(BareItem::as_integer);
    let inner = item.params.get_mut(key.as_str());
    let (Some(own), Some(inner)) = (own, inner) else {
        return false;
    };
    let present = inner.as_integer().unwrap_or_else(|| syntax::integer(0));
    let is_replaced = is_stricter(present.into(), own.into());
    if is_replaced {
        *inner = own.into();
    }
    is_replaced
}
