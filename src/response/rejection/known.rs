use std::sync::OnceLock;

use bytes::Bytes;
use http::StatusCode;

/// The problem details of rejections by exhausted quotas, written once for each combination of violated policies.
///
/// Created on first use. Only the first few combinations are kept.
#[derive(Debug, Default)]
pub(crate) struct KnownContents(OnceLock<Box<[OnceLock<KnownContent>; 8]>>);

#[derive(Debug)]
struct KnownContent {
    status: StatusCode,
    violated: Box<[Box<str>]>,
    content: Bytes,
}

impl KnownContents {
    /// `violated` returns the names of the violated policies. `write` is called if their content is not known.
    pub(super) fn get<'a, N>(
        &self,
        status: StatusCode,
        violated: impl Fn() -> N,
        write: impl FnOnce() -> Bytes,
    ) -> Bytes
    where
        N: Iterator<Item = &'a str>,
    {
        for place in &**self.0.get_or_init(Box::default) {
            let Some(known) = place.get() else {
                let content = write();
                let _ = place.set(KnownContent {
                    status,
                    violated: violated().map(Box::from).collect(),
                    content: content.clone(),
                });
                return content;
            };
            if known.status == status && known.violated.iter().map(|name| &**name).eq(violated()) {
                return known.content.clone();
            }
        }
        write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_written_once_for_each_combination_until_the_places_are_used_up() {
        let known = KnownContents::default();
        let names = ["a", "b", "c", "d"];
        let combinations = 0..16_usize;
        for round in 0..2 {
            for combination in combinations.clone() {
                let violated = || {
                    names
                        .into_iter()
                        .enumerate()
                        .filter(move |(bit, _)| combination >> bit & 1 == 1)
                };
                let violated = || violated().map(|(_, name)| name);
                let mut is_written = false;
                let content = known.get(StatusCode::TOO_MANY_REQUESTS, violated, || {
                    is_written = true;
                    violated().collect::<String>().into()
                });
                assert_eq!(content, violated().collect::<String>());
                assert_eq!(is_written, round == 0 || combination >= 8, "{combination}");
            }
        }
        let other = known.get(StatusCode::FORBIDDEN, || ["a"].into_iter(), || "other".into());
        assert_eq!(other, "other");
    }
}
