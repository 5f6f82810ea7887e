//! A client as the drafts describe it, by hand: what it does wrong, it does on purpose.

use http::{HeaderMap, Request, Response, header};
use tower_quota_anonymous::{
    Challenge, Credential, CredentialRequest, IssuerKey, Token, TokenChallenge, token_to_header_value,
};

/// The issuer's key, which issues a credential to every client that requests one.
pub(crate) struct Issuer(pub(crate) IssuerKey);

/// A client with one credential.
pub(crate) struct Holder {
    key: IssuerKey,
    credential: Credential,
}

impl Issuer {
    /// A new client with a credential for the issuer and contexts of this challenge.
    pub(crate) fn holder(&self, challenge: &TokenChallenge) -> Holder {
        let context = challenge.request_context(&self.0.key_id());
        let request = CredentialRequest::new(self.0.public_key(), &context).unwrap();
        let response = self.0.issue(request.as_bytes()).unwrap();
        Holder {
            key: self.0.clone(),
            credential: request.finalize(&response).unwrap(),
        }
    }
}

impl Holder {
    /// A token that answers the challenge, with a nonce that need not be new.
    pub(crate) fn token(&self, challenge: &TokenChallenge, nonce: u32) -> Token {
        let key = self.key.key_id();
        let presented = self
            .credential
            .present(&challenge.presentation_context(&key), nonce, u32::MAX);
        Token::new(challenge, key, nonce, presented.unwrap().as_bytes().to_vec()).unwrap()
    }
}

/// The first challenge of a response.
pub(crate) fn challenge_in(headers: &HeaderMap) -> Challenge {
    Challenge::from_headers(headers).swap_remove(0)
}

pub(crate) fn challenged<B>(response: &Response<B>) -> TokenChallenge {
    challenge_in(response.headers()).token_challenge().unwrap()
}

/// The request with a token.
pub(crate) fn with_token(mut request: Request<String>, token: &Token) -> Request<String> {
    request
        .headers_mut()
        .append(header::AUTHORIZATION, token_to_header_value(token));
    request
}

/// Returns the token with a different last byte of its proof.
pub(crate) fn forged(token: &Token) -> Token {
    let mut bytes = token.to_bytes();
    *bytes.last_mut().unwrap() ^= 1;
    Token::parse(&bytes).unwrap()
}
