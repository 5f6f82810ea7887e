//! A text built on the stack, so that the header value needs one allocation of the exact size.

use http::HeaderValue;

use super::bounds::MAX_INTEGER;

/// Exceeds the length of most fields.
const SHORT: usize = 128;

/// The length of `u64::MAX`.
pub(super) const MAX_DIGITS: usize = 20;

/// Moves to the heap if it becomes longer than `SHORT`.
pub(super) struct Text {
    short: [u8; SHORT],
    length: usize,
    long: Vec<u8>,
}

/// "00" to "99".
const PAIRS: [[u8; 2]; 100] = {
    let (mut pairs, mut number) = ([[0; 2]; 100], 0);
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

impl Text {
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            short: [0; SHORT],
            length: 0,
            long: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self.long.is_empty() {
            true => &self.short[..self.length],
            false => &self.long,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn len(&self) -> usize {
        self.as_bytes().len()
    }

    #[inline]
    pub(super) fn to_header_value(&self) -> Option<HeaderValue> {
        let text = Some(self.as_bytes()).filter(|text| !text.is_empty());
        text.and_then(|text| HeaderValue::from_bytes(text).ok())
    }

    #[inline]
    pub(super) fn push(&mut self, text: &str) {
        let end = self.length + text.len();
        match self.short.get_mut(self.length..end) {
            Some(place) => {
                place.copy_from_slice(text.as_bytes());
                self.length = end;
            }
            None => self.push_long(text.as_bytes()),
        }
    }

    #[cold]
    fn push_long(&mut self, text: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.length]);
            // Everything that follows is long, too.
            self.length = SHORT;
        }
        self.long.extend_from_slice(text);
    }

    /// Appends a number, reduced to [`MAX_INTEGER`].
    #[inline]
    pub(super) fn push_integer(&mut self, number: u64) {
        self.push_number(number.min(MAX_INTEGER));
    }

    #[inline]
    pub(super) fn push_number(&mut self, number: u64) {
        let end = self.length + number_of_digits(number);
        match self.short.get_mut(self.length..end) {
            Some(place) => {
                write_digits(number, place);
                self.length = end;
            }
            None => self.push_long_number(number),
        }
    }

    #[cold]
    fn push_long_number(&mut self, number: u64) {
        let mut digits = [0; MAX_DIGITS];
        self.push_long(digits_of(number, &mut digits));
    }
}

#[inline]
fn number_of_digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Writes digits to their place, because copying digits that were just written would stall.
#[inline]
fn write_digits(mut number: u64, place: &mut [u8]) {
    let mut pairs = place.rchunks_exact_mut(2);
    for pair in &mut pairs {
        pair.copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    if let [first] = pairs.into_remainder() {
        *first = b'0' + number as u8;
    }
}

pub(super) fn digits_of(number: u64, place: &mut [u8; MAX_DIGITS]) -> &[u8] {
    let digits = &mut place[..number_of_digits(number)];
    write_digits(number, digits);
    digits
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn a_text_equals_its_parts(parts in vec((0..90_usize, any::<u64>(), 0..64_u32), 0..9)) {
            let (mut text, mut expected) = (Text::new(), String::new());
            for (part, number, shift) in parts {
                let (part, number) = ("x".repeat(part), number >> shift);
                text.push(&part);
                text.push_number(number);
                text.push_integer(number);
                expected += &format!("{part}{number}{}", number.min(MAX_INTEGER));
                prop_assert_eq!(text.as_bytes(), expected.as_bytes());
            }
            let value = text.to_header_value();
            prop_assert_eq!(value.is_none(), expected.is_empty());
            prop_assert_eq!(value.map_or(String::new(), |value| value.to_str().unwrap().to_owned()), expected);
        }
    }

    #[test]
    fn each_power_of_ten_has_its_digits() {
        let mut numbers: Vec<u64> = (0..=19).map(|exponent| 10_u64.pow(exponent)).collect();
        numbers.extend(numbers.clone().iter().map(|number| number - 1));
        for number in numbers {
            let mut text = Text::new();
            text.push_number(number);
            assert_eq!(text.as_bytes(), number.to_string().as_bytes());
        }
    }
}
