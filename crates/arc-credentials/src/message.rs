use std::{error::Error, fmt};

/// The error of a Privacy Pass message that cannot be parsed or serialized.
///
/// Contains no received bytes, so it is safe to log.
///
/// ```
/// use arc_credentials::{MessageError, Token, TokenChallenge};
///
/// assert_eq!(Token::parse(&[0, 2, 0]), Err(MessageError::TokenType(2)));
/// let error = TokenChallenge::parse(&[0xc7, 0xd3, 0, 9, b'i']).unwrap_err();
/// assert_eq!(error.to_string(), "issuer_name: truncated or too long");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageError {
    /// A part is not base64url (RFC 4648, section 5).
    Encoding(&'static str),
    /// A part is too short or too long.
    Length(&'static str),
    /// A part has the wrong format.
    Malformed(&'static str),
    /// The token type is not supported.
    TokenType(u16),
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encoding(part) => write!(f, "{part}: not base64url"),
            Self::Length(part) => write!(f, "{part}: truncated or too long"),
            Self::Malformed(part) => write!(f, "{part}: malformed"),
            Self::TokenType(token_type) => write!(f, "unknown token type {token_type:#06x}"),
        }
    }
}

impl Error for MessageError {}

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, part: &'static str, length: usize) -> Result<&'a [u8], MessageError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MessageError::Length(part))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], MessageError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(MessageError::Length(part))?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn number16(&mut self, part: &'static str) -> Result<u16, MessageError> {
        self.array(part).map(u16::from_be_bytes)
    }

    pub(super) fn text16(&mut self, part: &'static str) -> Result<&'a str, MessageError> {
        let length = self.number16(part)?;
        let text = self.take(part, length.into())?;
        str::from_utf8(text).map_err(|_| MessageError::Malformed(part))
    }

    /// 0 or 32 bytes, with a length prefix of one byte.
    pub(super) fn context(&mut self, part: &'static str) -> Result<Option<[u8; 32]>, MessageError> {
        match self.array(part)? {
            [0] => Ok(None),
            [32] => self.array(part).map(Some),
            [_] => Err(MessageError::Length(part)),
        }
    }

    pub(super) fn end(self, part: &'static str) -> Result<(), MessageError> {
        self.0.is_empty().then_some(()).ok_or(MessageError::Length(part))
    }
}

/// With a length prefix of two bytes. The fields of a [`TokenChallenge`](super::TokenChallenge) always fit.
pub(super) fn put_field16(message: &mut Vec<u8>, field: &[u8]) {
    let length = u16::try_from(field.len()).unwrap_or(u16::MAX);
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(&field[..length.into()]);
}
