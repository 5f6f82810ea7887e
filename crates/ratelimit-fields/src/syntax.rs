use std::fmt::Error as Stop;

use http::{HeaderMap, HeaderName, HeaderValue, header::GetAll};
use sfv::{
    BareItemFromInput, Integer, Item, KeyRef, ListSerializer, Parser, Version,
    visitor::{DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor},
};

use super::{
    bounds::{MAX_INTEGER, MAX_ITEMS, MAX_LENGTH},
    error::{FieldError, Problem},
};

pub(super) fn read<'a, T>(
    headers: &'a HeaderMap,
    name: HeaderName,
    parse: impl FnOnce(GetAll<'a, HeaderValue>) -> Result<T, FieldError>,
) -> Result<Option<T>, FieldError> {
    let is_present = headers.contains_key(&name);
    is_present.then(|| parse(headers.get_all(name))).transpose()
}

/// Returns `None` if the field exceeds the bounds for parsing.
pub(super) fn to_header_value(items: &[Item]) -> Option<HeaderValue> {
    if items.len() > MAX_ITEMS {
        return None;
    }
    let mut list = ListSerializer::new();
    for item in items {
        let _ = list.bare_item(&item.bare_item).parameters(&item.params);
    }
    let value = list.finish().filter(|value| value.len() <= MAX_LENGTH)?;
    HeaderValue::try_from(value).ok()
}

/// Does not panic if the map has reached its maximum size.
pub(super) fn insert(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let _ = headers.try_insert(name, value);
}

/// Joins the lines of a field into one value (RFC 9110, section 5.3).
pub(super) fn join<L: AsRef<[u8]>>(
    field: &'static str,
    lines: impl IntoIterator<Item = L>,
) -> Result<Vec<u8>, FieldError> {
    let mut joined = Vec::new();
    for (index, line) in lines.into_iter().enumerate() {
        let line = line.as_ref();
        let separator: &[u8] = if index > 0 { b", " } else { b"" };
        // Separators count towards the length, so that empty lines do not accumulate without bound.
        if joined.len() + separator.len() + line.len() > MAX_LENGTH {
            return Err(Problem::TooLong.of(field));
        }
        joined.extend_from_slice(separator);
        joined.extend_from_slice(line);
    }
    Ok(joined)
}

pub(super) fn list<L: AsRef<[u8]>>(
    field: &'static str,
    version: Version,
    lines: impl IntoIterator<Item = L>,
) -> Result<Vec<Item>, FieldError> {
    let joined = join(field, lines)?;
    let mut members = Members::default();
    let parsed = Parser::new(&joined)
        .with_version(version)
        .parse_list_with_visitor(&mut members);
    match (members.problem, parsed) {
        (Some(Problem::TooMany), _) => Err(Problem::TooMany.of(field)),
        (Some(problem), _) => Err(problem.of_item(field, members.items.len())),
        (None, Err(error)) => Err(syntax(&error).of(field)),
        (None, Ok(())) if members.items.is_empty() => Err(Problem::Empty.of(field)),
        (None, Ok(())) => Ok(members.items),
    }
}

pub(super) fn integer_item<L: AsRef<[u8]>>(
    field: &'static str,
    lines: impl IntoIterator<Item = L>,
) -> Result<u64, FieldError> {
    let joined = join(field, lines)?;
    if joined.is_empty() {
        return Err(Problem::Empty.of(field));
    }
    let item: Item = Parser::new(&joined)
        .with_version(Version::Rfc8941)
        .parse_item()
        .map_err(|error| syntax(&error).of(field))?;
    let number = item
        .bare_item
        .as_integer()
        .ok_or_else(|| Problem::Item("an Integer").of(field))?;
    in_range("the value", number, 0).map_err(|problem| problem.of(field))
}

pub(super) fn integers<const N: usize, L: AsRef<[u8]>>(
    field: &'static str,
    keys: [&'static KeyRef; N],
    lines: impl IntoIterator<Item = L>,
) -> Result<[Option<u64>; N], FieldError> {
    let joined = join(field, lines)?;
    let mut numbers = Numbers {
        keys,
        values: [const { None }; N],
        members: 0,
    };
    let parsed = Parser::new(&joined)
        .with_version(Version::Rfc8941)
        .parse_dictionary_with_visitor(&mut numbers);
    match parsed {
        _ if numbers.members > MAX_ITEMS => return Err(Problem::TooMany.of(field)),
        Err(error) => return Err(syntax(&error).of(field)),
        Ok(()) if numbers.members == 0 => return Err(Problem::Empty.of(field)),
        Ok(()) => {}
    }
    let mut integers = [None; N];
    for ((integer, value), key) in integers.iter_mut().zip(numbers.values).zip(keys) {
        let number = value.map(|value| value.ok_or(Problem::Type(key.as_str(), "an Integer")));
        let checked = number.map(|number| in_range(key.as_str(), number?, 0));
        *integer = checked.transpose().map_err(|problem| problem.of(field))?;
    }
    Ok(integers)
}

fn syntax(error: &sfv::Error) -> Problem {
    Problem::Syntax(format!("not a structured field: {error}").into())
}

pub(super) fn in_range(parameter: &'static str, number: Integer, minimum: u64) -> Result<u64, Problem> {
    let number = i64::from(number);
    match u64::try_from(number) {
        Ok(number) if number >= minimum => Ok(number),
        _ => Err(Problem::Range(parameter, number.into(), minimum)),
    }
}

pub(super) fn writable(
    field: &'static str,
    parameter: &'static str,
    number: u64,
    minimum: u64,
) -> Result<u64, FieldError> {
    if (minimum..=MAX_INTEGER).contains(&number) {
        Ok(number)
    } else {
        Err(Problem::Range(parameter, number.into(), minimum).of(field))
    }
}

/// Converts a number checked by [`in_range`] or [`writable`].
pub(super) fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}

struct Numbers<const N: usize> {
    keys: [&'static KeyRef; N],
    /// The parsed values. `Some(None)` is a value that is not an Integer.
    values: [Option<Option<Integer>>; N],
    members: usize,
}

impl<'de, const N: usize> DictionaryVisitor<'de> for &mut Numbers<N> {
    type Out = ();
    type Error = Stop;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, Stop> {
        self.members += 1;
        if self.members > MAX_ITEMS {
            return Err(Stop);
        }
        let index = self.keys.iter().position(|known| *known == key);
        Ok(Number(index.map(|index| &mut self.values[index])))
    }

    fn finish(self) -> Result<(), Stop> {
        Ok(())
    }
}

struct Number<'a>(Option<&'a mut Option<Option<Integer>>>);

impl<'de> EntryVisitor<'de> for Number<'_> {
    type Error = Stop;

    fn item(self) -> Result<impl ItemVisitor<'de>, Stop> {
        Ok(self)
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Stop> {
        if let Some(place) = self.0 {
            *place = Some(None);
        }
        Ok(Ignored)
    }
}

impl<'de> ItemVisitor<'de> for Number<'_> {
    type Out = ();
    type Error = Stop;

    fn bare_item(self, bare_item: BareItemFromInput<'de>) -> Result<impl ParameterVisitor<'de, Out = ()>, Stop> {
        if let Some(place) = self.0 {
            *place = Some(bare_item.as_integer());
        }
        Ok(Ignored)
    }
}

#[derive(Default)]
struct Members {
    items: Vec<Item>,
    /// The parser's own error contains no reason.
    problem: Option<Problem>,
}

impl<'de> ListVisitor<'de> for &mut Members {
    type Out = ();
    type Error = Stop;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, Stop> {
        if self.items.len() == MAX_ITEMS {
            self.problem = Some(Problem::TooMany);
            return Err(Stop);
        }
        Ok(Entry(self))
    }

    fn finish(self) -> Result<(), Stop> {
        Ok(())
    }
}

struct Entry<'a>(&'a mut Members);

impl<'de> EntryVisitor<'de> for Entry<'_> {
    type Error = Stop;

    fn item(self) -> Result<impl ItemVisitor<'de>, Stop> {
        let index = self.0.items.len();
        // A placeholder, which the parser replaces.
        self.0.items.push(Item::new(false));
        Ok(&mut self.0.items[index])
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Stop> {
        self.0.problem = Some(Problem::Item("an item, but an inner list"));
        Err::<Ignored, _>(Stop)
    }
}
