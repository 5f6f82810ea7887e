//! Tokens in the `Authorization` field of a request: RFC 9577, section 2.2.

use http::{HeaderMap, HeaderValue, header};

use super::{
    MessageError, Token,
    base64url::{from_base64, to_base64},
    schemes::{self, SCHEME},
};

/// Reads the token in the `Authorization` field of a request. `None` if there is no such field, or it is of another scheme.
///
/// You want it to make an origin of your own. Unknown parameters are ignored. Quotes and padding may be missing.
///
/// ```
/// use http::{HeaderMap, header::AUTHORIZATION};
/// use tower_quota_anonymous::{
///     KeyId, Profile, Token, TokenChallenge, token_from_headers, token_to_header_value,
/// };
///
/// let challenge = TokenChallenge::new(Profile::P256, "issuer.example")?;
/// let token = Token::new(&challenge, KeyId::from_bytes([7; 32]), 3, vec![2; 292])?;
/// let mut headers = HeaderMap::new();
/// assert_eq!(token_from_headers(&headers), Ok(None));
/// headers.insert(AUTHORIZATION, token_to_header_value(&token));
/// assert_eq!(token_from_headers(&headers), Ok(Some(token)));
/// # Ok::<_, tower_quota_anonymous::MessageError>(())
/// ```
///
/// # Errors
///
/// If there is a token that cannot be read, or more than one.
pub fn token_from_headers(headers: &HeaderMap) -> Result<Option<Token>, MessageError> {
    let mut found = None;
    for line in headers.get_all(header::AUTHORIZATION) {
        let Some(parameters) = schemes::credentials(line.as_bytes()) else {
            continue;
        };
        if found.is_some() {
            return Err(MessageError::Malformed("authorization"));
        }
        let parameters = parameters?;
        let token = parameters.get("token").ok_or(MessageError::Malformed("token"))?;
        // Four thirds of the longest token, with room for its padding.
        if token.len() > Token::MAX_LENGTH * 4 / 3 + 4 {
            return Err(MessageError::Length("token"));
        }
        found = Some(Token::parse(&from_base64("token", token)?)?);
    }
    Ok(found)
}

/// Returns the value of an `Authorization` field with this token. It is marked as sensitive, because whoever reads it can spend
/// the token.
pub fn token_to_header_value(token: &Token) -> HeaderValue {
    let text = format!("{SCHEME} token=\"{}\"", to_base64(&token.to_bytes()));
    let mut value = HeaderValue::try_from(text).expect("base64url in quotes");
    value.set_sensitive(true);
    value
}

/// Removes the token from a request, and leaves credentials of other schemes.
pub(super) fn remove_token(headers: &mut HeaderMap) {
    let lines = headers.get_all(header::AUTHORIZATION).iter();
    let is_other = |line: &&HeaderValue| schemes::credentials(line.as_bytes()).is_none();
    let others: Vec<HeaderValue> = lines.filter(is_other).cloned().collect();
    headers.remove(header::AUTHORIZATION);
    for line in others {
        let _ = headers.try_append(header::AUTHORIZATION, line);
    }
}
