//! Variable-length integers.

/// Lua numbers are doubles, which represent every integer only up to 2⁵³.
pub(crate) const EXACT: u64 = 1 << 53;

#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// LEB128: seven bits per byte, lowest first; the highest bit marks a continuation.
    pub(crate) fn write(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(crate) fn write_all(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.write(number));
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn any(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(crate) fn amount(&mut self) -> Option<u64> {
        self.any().filter(|number| *number <= EXACT)
    }

    pub(crate) fn divisor(&mut self) -> Option<u64> {
        self.amount().filter(|number| *number > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), EXACT, u64::MAX];
        let mut writer = Writer::default();
        numbers.iter().for_each(|number| writer.write(*number));
        let bytes = writer.into_bytes();
        let mut reader = Reader::new(&bytes);
        assert!(numbers.iter().all(|number| reader.any() == Some(*number)) && reader.is_empty());
    }

    #[test]
    fn bytes_of_somebody_else_are_no_number() {
        for bytes in [&[][..], &[0x80], &[0xff; 9], &[0xff; 12]] {
            assert_eq!(Reader::new(bytes).any(), None, "{bytes:?}");
        }
        assert_eq!(Reader::new(&[0xff; 8]).amount(), None);
        assert_eq!(Reader::new(&[0]).divisor(), None);
    }
}
