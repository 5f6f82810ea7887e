macro_rules! typed_headers {
    ($($field:ty),*) => {
        $(#[cfg(feature = "headers")]
        impl headers::Header for $field {
            fn name() -> &'static http::HeaderName {
                static NAME: http::HeaderName = <$field>::NAME;
                &NAME
            }

            fn decode<'i, I>(values: &mut I) -> Result<Self, headers::Error>
            where
                I: Iterator<Item = &'i http::HeaderValue>,
            {
                Self::parse(values).map_err(|_| headers::Error::invalid())
            }

            fn encode<E: Extend<http::HeaderValue>>(&self, values: &mut E) {
                values.extend([self.to_header_value()]);
            }
        })*
    };
}

pub(super) use typed_headers;
