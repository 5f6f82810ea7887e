use http::{HeaderMap, HeaderValue, header};

use super::{
    MessageError, Token,
    base64url::{from_base64, to_base64},
    schemes::{self, SCHEME},
};

/// Extracts the token from the `Authorization` field, for an origin without [`OriginLayer`](super::OriginLayer).
///
/// Returns `None` for no field or another scheme. Ignores unknown parameters. Quotes and padding are optional. Fails
/// for a malformed token, or more than one.
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
        // The length of the longest token in base64, with padding.
        if token.len() > Token::MAX_LENGTH * 4 / 3 + 4 {
            return Err(MessageError::Length("token"));
        }
        found = Some(Token::parse(&from_base64("token", token)?)?);
    }
    Ok(found)
}

/// Returns the value of an `Authorization` field with this token.
///
/// Marked as sensitive, because anyone who reads it can spend the token.
pub fn token_to_header_value(token: &Token) -> HeaderValue {
    let text = format!("{SCHEME} token=\"{}\"", to_base64(&token.to_bytes()));
    let mut value = HeaderValue::try_from(text).expect("base64url in quotes");
    value.set_sensitive(true);
    value
}

/// Keeps credentials of other schemes.
pub(super) fn remove_token(headers: &mut HeaderMap) {
    let lines = headers.get_all(header::AUTHORIZATION).iter();
    let is_other = |line: &&HeaderValue| schemes::credentials(line.as_bytes()).is_none();
    let others: Vec<HeaderValue> = lines.filter(is_other).cloned().collect();
    headers.remove(header::AUTHORIZATION);
    for line in others {
        let _ = headers.try_append(header::AUTHORIZATION, line);
    }
}
