use std::sync::Arc;

use http::{HeaderMap, Uri, header};
use tokio::task::{spawn, spawn_blocking};

use super::{
    TokenClientLayer,
    error::{BoxError, NoToken},
    issuer::{TrustedIssuer, authority},
    origin_state::{OriginState, Unanswered},
    storage::{ContextName, Reserved, StorageError},
};
use crate::{Challenge, Credential, CredentialRequest, Issuer, Profile, PublicKey, Token, TokenChallenge};

const MAX_LIMIT: u32 = 65_536;

#[derive(Clone)]
struct Question {
    challenge: TokenChallenge,
    profile: Profile,
    issuer: Arc<TrustedIssuer>,
    state: Arc<OriginState>,
    token_key: Option<Vec<u8>>,
    limit: u32,
}

impl TokenClientLayer {
    /// For the first challenge that this client answers.
    pub(super) async fn answer(&self, challenges: &[Challenge], origin: &str) -> Result<Option<Token>, NoToken> {
        for challenge in challenges {
            let Some(question) = self.question(challenge, origin) else {
                continue;
            };
            let named = question.token_key.as_deref();
            let (issuer, state) = (&question.issuer, &question.state);
            let key = issuer.key(state, question.profile, named, &self.0.clock).await?;
            if let Some(key) = key {
                let reserved = self.reserved(&question, &key).await?;
                return present(question, key, reserved).await.map(Some);
            }
        }
        Ok(None)
    }

    fn question(&self, challenge: &Challenge, origin: &str) -> Option<Question> {
        let asked = challenge.token_challenge().ok()?;
        let profile = asked.profile()?;
        // A challenge without an origin could have been relayed from anywhere.
        if asked.origins().next().is_none() || !asked.is_for(origin) {
            return None;
        }
        let mut issuers = self.0.issuers.iter();
        let issuer = issuers.find(|issuer| issuer.name.eq_ignore_ascii_case(asked.issuer_name()))?;
        let state = issuer.state(origin)?;
        let limit = match (challenge.rate_limit(), issuer.pinned_limit) {
            (Some(limit), Some(pinned)) if limit != pinned => return None,
            (limit, pinned) => limit.or(pinned)?,
        };
        (1..=MAX_LIMIT).contains(&limit).then(|| Question {
            profile,
            issuer: Arc::clone(issuer),
            state: Arc::clone(state),
            token_key: challenge.token_key().map(Into::into),
            limit,
            challenge: asked,
        })
    }

    async fn reserved(&self, question: &Question, key: &PublicKey) -> Result<Reserved, NoToken> {
        let request_context = question.challenge.request_context(&key.key_id());
        let name = ContextName::of(&request_context);
        if let Some(reserved) = self.reserve(question, key, name).await? {
            return Ok(reserved);
        }
        let mut issuing = Arc::clone(&question.state.issuing).lock_owned().await;
        // Checked again, because another request may have fetched a credential.
        if let Some(reserved) = self.reserve(question, key, name).await? {
            return Ok(reserved);
        }
        let (layer, own_question, own_key) = (self.clone(), question.clone(), key.clone());
        // In a task, so that the credential, which the issuer has counted, is kept even if the request is cancelled.
        let fetching = spawn(async move {
            let fetched = layer
                .fetch(&own_question, &own_key, request_context, &mut issuing)
                .await;
            fetched.map(|()| issuing)
        });
        let _issuing = fetching.await.map_err(NoToken::issuer)??;
        let reserved = self.reserve(question, key, name).await?;
        reserved.ok_or_else(|| NoToken::Storage("the storage did not retain the credential".into()))
    }

    async fn reserve(
        &self,
        question: &Question,
        key: &PublicKey,
        credential: ContextName,
    ) -> Result<Option<Reserved>, NoToken> {
        let context = ContextName::of(&question.challenge.presentation_context(&key.key_id()));
        let reserved = self.0.storage.reserve(credential, context, question.limit).await;
        reserved.map_err(|error| match error {
            StorageError::LimitReached => NoToken::LimitReached,
            error => NoToken::Storage(error.into()),
        })
    }

    async fn fetch(
        &self,
        question: &Question,
        key: &PublicKey,
        request_context: Vec<u8>,
        unanswered: &mut Option<Unanswered>,
    ) -> Result<(), NoToken> {
        let name = ContextName::of(&request_context);
        let request = match unanswered.take().filter(|last| last.credential == name) {
            Some(last) => last.request,
            None => new_request(key.clone(), request_context).await?,
        };
        *unanswered = Some(Unanswered {
            credential: name,
            request: Arc::clone(&request),
        });
        let (issuer, state) = (&question.issuer, &question.state);
        let answer = issuer.issue(state, key, &request, &self.0.clock).await?;
        *unanswered = None;
        let credential = match answer.content_of_type(Issuer::RESPONSE_TYPE) {
            Ok(response) => blocking(move || request.finalize(&response).map_err(BoxError::from)).await?,
            Err(cause) => Err(cause),
        };
        let credential = credential.map_err(|cause| {
            let wait = state.distrust(key.key_id(), self.0.clock.now());
            NoToken::Issuer(cause, Some(wait))
        })?;
        let saved = self.0.storage.save(name, key.profile(), &credential.to_bytes()).await;
        saved.map_err(|error| NoToken::Storage(error.into()))
    }
}

async fn new_request(key: PublicKey, context: Vec<u8>) -> Result<Arc<CredentialRequest>, NoToken> {
    let request = blocking(move || CredentialRequest::new(&key, &context)).await?;
    request.map(Arc::new).map_err(|error| NoToken::Storage(error.into()))
}

async fn present(question: Question, key: PublicKey, reserved: Reserved) -> Result<Token, NoToken> {
    let present = move || -> Result<Token, BoxError> {
        let credential = Credential::from_bytes(question.profile, &reserved.credential)?;
        let context = question.challenge.presentation_context(&key.key_id());
        let presentation = credential.present(&context, reserved.nonce, question.limit)?;
        let bytes = presentation.as_bytes().to_vec();
        Ok(Token::new(&question.challenge, key.key_id(), reserved.nonce, bytes)?)
    };
    blocking(present).await?.map_err(NoToken::Storage)
}

/// Takes milliseconds of CPU time.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, NoToken> {
    spawn_blocking(work)
        .await
        .map_err(|error| NoToken::Storage(error.into()))
}

/// As challenges name it: a host, with a port unless it is the default port.
pub(super) fn origin_of(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let host = match authority(uri) {
        Some((host, port)) => {
            let usual = if uri.scheme_str() == Some("http") { 80 } else { 443 };
            return Some(if port == usual { host } else { format!("{host}:{port}") });
        }
        None => headers.get(header::HOST)?.to_str().ok()?,
    };
    Some(host.to_ascii_lowercase())
}
