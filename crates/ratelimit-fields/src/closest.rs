use bytes::Bytes;
use http::HeaderValue;

use super::text::Text;

#[derive(Clone, Copy, Debug)]
pub(super) struct ClosestLimit {
    pub(super) quota: u64,
    pub(super) remaining: u64,
    pub(super) reset: u64,
}

impl ClosestLimit {
    pub(super) fn of_nothing(reset: u64) -> Self {
        Self {
            quota: 0,
            remaining: 0,
            reset,
        }
    }

    /// Returns this limit with the later reset of the two, or `None` if the inner limit stays, which is at least as
    /// close to exhaustion or unknown (`Some(None)`).
    pub(super) fn merged(self, inner: Option<Option<(u64, u64)>>) -> Option<Self> {
        let Some(inner) = inner else { return Some(self) };
        let (remaining, reset) = inner?;
        let is_closer = (remaining, self.reset) > (self.remaining, reset);
        is_closer.then(|| Self {
            reset: self.reset.max(reset),
            ..self
        })
    }

    pub(super) fn to_header_values(self) -> [HeaderValue; 3] {
        self.to_header_values_behind(&mut Text::new()).1
    }

    /// Also returns `text`, unless it is empty. All values share one allocation.
    pub(super) fn to_header_values_behind(self, text: &mut Text) -> (Option<HeaderValue>, [HeaderValue; 3]) {
        let before = text.len();
        let ends = [self.quota, self.remaining, self.reset].map(|number| {
            text.push_integer(number);
            text.len()
        });
        let text = Bytes::copy_from_slice(text.as_bytes());
        let digits = |start, end| HeaderValue::from_maybe_shared(text.slice(start..end)).expect("digits are ASCII");
        let values = [
            digits(before, ends[0]),
            digits(ends[0], ends[1]),
            digits(ends[1], ends[2]),
        ];
        let text = Some(text.slice(..before)).filter(|text| !text.is_empty());
        (text.and_then(|text| HeaderValue::from_maybe_shared(text).ok()), values)
    }
}
