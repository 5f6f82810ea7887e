use http::HeaderMap;
use ratelimit_fields::FieldError;

use super::time::Clock;

pub(super) struct Reader<'a> {
    pub(super) headers: &'a HeaderMap,
    pub(super) clock: &'a Clock,
    pub(super) ignored: Vec<FieldError>,
}

impl Reader<'_> {
    pub(super) fn field<T>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&str, &Clock) -> Result<T, &'static str>,
    ) -> Option<T> {
        let mut lines = self.headers.get_all(name).iter();
        let text = lines.next()?.to_str().unwrap_or_default();
        let value = match lines.next() {
            Some(_) => Err("more than one line"),
            None => parse(text.trim_ascii(), self.clock),
        };
        match value {
            Ok(_) => self.accept(name),
            Err(reason) => self.reject(name, reason),
        }
        value.ok()
    }

    /// Removes the error of a stricter parser.
    pub(super) fn accept(&mut self, name: &str) {
        self.ignored.retain(|error| !error.field().eq_ignore_ascii_case(name));
    }

    /// One error per field, although several parsers may read it.
    pub(super) fn reject(&mut self, name: &'static str, reason: &str) {
        self.accept(name);
        self.ignored.push(FieldError::malformed(name, reason));
    }
}
