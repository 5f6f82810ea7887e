use std::sync::OnceLock;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use crate::{
    fields::{Prepared, draft11::RateLimit},
    response::fields::Told,
};

/// The rejections by exhausted quotas, written once for each combination of violated policies.
///
/// Created on first use. Only the first few combinations are kept.
#[derive(Debug, Default)]
pub(crate) struct KnownRejections(OnceLock<Box<[OnceLock<KnownRejection>; 8]>>);

#[derive(Debug)]
pub(crate) struct KnownRejection {
    status: StatusCode,
    violated: u32,
    content: Bytes,
    /// The default response, if only `Retry-After` and `RateLimit` depend on the numbers.
    response: OnceLock<Response<Bytes>>,
}

impl KnownRejections {
    /// `violated` has a bit for each violated policy.
    #[inline]
    pub(crate) fn get(&self, status: StatusCode, violated: u32) -> Option<&KnownRejection> {
        let mut known = self.0.get()?.iter().map_while(OnceLock::get);
        known.find(|known| known.violated == violated && known.status == status)
    }

    /// `write` is called if the problem details are not known.
    pub(super) fn content(&self, status: StatusCode, violated: u32, write: impl FnOnce() -> Bytes) -> Bytes {
        if let Some(known) = self.get(status, violated) {
            return known.content.clone();
        }
        let content = write();
        let new = || KnownRejection {
            status,
            violated,
            content: content.clone(),
            response: OnceLock::new(),
        };
        let places = self.0.get_or_init(Box::default);
        let _ = places.iter().any(|place| place.set(new()).is_ok());
        content
    }
}

impl KnownRejection {
    /// Keeps the status and the header fields of a default response.
    #[cold]
    pub(crate) fn keep(&self, response: &Response<Bytes>) {
        let mut kept = Response::new(self.content.clone());
        *kept.status_mut() = self.status;
        *kept.headers_mut() = response.headers().clone();
        for name in [header::RETRY_AFTER, RateLimit::NAME] {
            if let Some(replaced) = kept.headers_mut().get_mut(name) {
                *replaced = HeaderValue::from_static("");
            }
        }
        let _ = self.response.set(kept);
    }

    /// The response with the values of `Retry-After` and `RateLimit` of another rejection. `None` if it is not known.
    pub(crate) fn response(&self, told: &Told, fields: Option<&Prepared>) -> Option<Response<Bytes>> {
        let mut response = self.response.get()?.clone();
        for (name, value) in response.headers_mut() {
            if name == header::RETRY_AFTER {
                *value = told.retry_after()?;
            } else if *name == RateLimit::NAME {
                *value = told.list(fields?)?;
            }
        }
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_written_once_for_each_combination_until_the_places_are_used_up() {
        let known = KnownRejections::default();
        for round in 0..2 {
            for combination in 0..16 {
                let mut is_written = false;
                let content = known.content(StatusCode::TOO_MANY_REQUESTS, combination, || {
                    is_written = true;
                    combination.to_string().into()
                });
                assert_eq!(content, combination.to_string());
                assert_eq!(is_written, round == 0 || combination >= 8, "{combination}");
            }
        }
        assert_eq!(known.content(StatusCode::FORBIDDEN, 1, || "other".into()), "other");
    }
}
