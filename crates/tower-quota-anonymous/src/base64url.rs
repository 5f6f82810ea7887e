//! base64url (RFC 4648, section 5).

use base64::{
    Engine,
    alphabet::URL_SAFE,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::MessageError;

/// With padding, as required by RFC 9577.
pub(super) fn to_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Some senders omit padding.
pub(super) fn from_base64(part: &'static str, text: impl AsRef<[u8]>) -> Result<Vec<u8>, MessageError> {
    BASE64.decode(text).map_err(|_| MessageError::Encoding(part))
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
