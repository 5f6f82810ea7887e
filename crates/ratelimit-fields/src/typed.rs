use headers::{Error, Header};
use http::{HeaderName, HeaderValue};

use super::{RetryAfter, draft06, draft07, draft11, in_between};

macro_rules! typed_headers {
    ($($field:ty,)*) => {
        $(impl Header for $field {
            fn name() -> &'static HeaderName {
                static NAME: HeaderName = <$field>::NAME;
                &NAME
            }

            fn decode<'i, I: Iterator<Item = &'i HeaderValue>>(values: &mut I) -> Result<Self, Error> {
                Self::parse(values).map_err(|_| Error::invalid())
            }

            fn encode<E: Extend<HeaderValue>>(&self, values: &mut E) {
                values.extend([self.to_header_value()]);
            }
        })*
    };
}

typed_headers! {
    RetryAfter,
    draft06::RateLimitLimit,
    draft06::RateLimitPolicy,
    draft06::RateLimitRemaining,
    draft06::RateLimitReset,
    draft07::RateLimit,
    draft11::RateLimit,
    draft11::RateLimitPolicy,
    in_between::RateLimit,
    in_between::RateLimitPolicy,
}
