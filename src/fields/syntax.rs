//! From the lines of a field to its parsed members, within bounds.

use std::fmt::Error as Stop;

use sfv::{
    BareItemFromInput, Integer, Item, Parser, Version,
    visitor::{EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor},
};

use super::{
    MAX_INTEGER, MAX_ITEMS, MAX_LENGTH,
    error::{FieldError, Problem},
};

/// Several lines of a field are one value: joined in order, as RFC 9110 says in section 5.3.
pub(super) fn join<L: AsRef<[u8]>>(
    field: &'static str,
    lines: impl IntoIterator<Item = L>,
) -> Result<Vec<u8>, FieldError> {
    let mut joined = Vec::new();
    for (index, line) in lines.into_iter().enumerate() {
        let line = line.as_ref();
        let separator: &[u8] = if index > 0 { b", " } else { b"" };
        // Separators count, so that lines without content do not add up for ever.
        if joined.len() + separator.len() + line.len() > MAX_LENGTH {
            return Err(Problem::TooLong.of(field));
        }
        joined.extend_from_slice(separator);
        joined.extend_from_slice(line);
    }
    Ok(joined)
}

/// The members of a list, of which none is an inner list.
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
        (Some((Problem::TooMany, _)), _) => Err(Problem::TooMany.of(field)),
        (Some((problem, index)), _) => Err(problem.of_item(field, index)),
        (None, Err(error)) => Err(syntax(&error).of(field)),
        (None, Ok(())) if members.items.is_empty() => Err(Problem::Empty.of(field)),
        (None, Ok(())) => Ok(members.items),
    }
}

/// A single Integer. Its parameters have no meaning.
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
    in_range("it", number, 0).map_err(|problem| problem.of(field))
}

fn syntax(error: &sfv::Error) -> Problem {
    Problem::Syntax(format!("it is not a structured field: {error}").into())
}

/// A number that was read.
pub(super) fn in_range(parameter: &'static str, number: Integer, minimum: u64) -> Result<u64, Problem> {
    let number = i64::from(number);
    match u64::try_from(number) {
        Ok(number) if number >= minimum => Ok(number),
        _ => Err(Problem::Range(parameter, number.into(), minimum)),
    }
}

/// A number that is to be written.
pub(super) fn writable(parameter: &'static str, number: u64, minimum: u64) -> Result<u64, Problem> {
    if (minimum..=MAX_INTEGER).contains(&number) {
        Ok(number)
    } else {
        Err(Problem::Range(parameter, number.into(), minimum))
    }
}

/// A number that [`in_range`] or [`writable`] has checked.
pub(crate) fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}

/// Collects items, and stops at the first member that cannot be one.
#[derive(Default)]
struct Members {
    items: Vec<Item>,
    /// The reason why the parser was stopped: its own error says nothing.
    problem: Option<(Problem, usize)>,
}

impl<'de> ListVisitor<'de> for &mut Members {
    type Out = ();
    type Error = Stop;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, Stop> {
        if self.items.len() == MAX_ITEMS {
            self.problem = Some((Problem::TooMany, MAX_ITEMS));
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
        Ok(self)
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Stop> {
        self.0.problem = Some((Problem::Item("an item, but an inner list"), self.0.items.len()));
        Err::<Unreachable, _>(Stop)
    }
}

impl<'de> ItemVisitor<'de> for Entry<'_> {
    type Out = ();
    type Error = Stop;

    fn bare_item(self, bare_item: BareItemFromInput<'de>) -> Result<impl ParameterVisitor<'de, Out = ()>, Stop> {
        let index = self.0.items.len();
        self.0.items.push(Item::new(bare_item));
        Ok(&mut self.0.items[index].params)
    }
}

/// The visitor of an inner list, which there is none of.
enum Unreachable {}

impl<'de> InnerListVisitor<'de> for Unreachable {
    type Error = Stop;

    fn item(&mut self) -> Result<impl ItemVisitor<'de>, Stop> {
        Ok(Ignored)
    }

    fn finish(self) -> Result<impl ParameterVisitor<'de>, Stop> {
        Ok(Ignored)
    }
}
