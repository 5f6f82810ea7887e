use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, Request, Response, StatusCode, header};
use tower_layer::Layer;
use tower_service::Service;

use super::{TokenClientError, TokenClientLayer, answer::origin_of, issuer::retry_after, known::Kept};
use crate::{Challenge, Token, grpc::http_status, ready::take_ready, token_to_header_value};
use tower_quota::clock::Timestamp;

/// The service of [`TokenClientLayer`]. Clones share credentials.
#[derive(Clone)]
pub struct TokenClient<S> {
    inner: S,
    layer: TokenClientLayer,
}

impl<S> Layer<S> for TokenClientLayer {
    type Service = TokenClient<S>;

    fn layer(&self, inner: S) -> TokenClient<S> {
        TokenClient {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S> TokenClient<S> {
    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for TokenClient<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Send,
    S::Future: Send,
    B: Clone + Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = TokenClientError<S::Error>;
    type Future = TokenClientFuture<R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(TokenClientError::Inner)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = take_ready(&mut self.inner);
        TokenClientFuture(Box::pin(send(service, self.layer.clone(), request)))
    }
}

/// The future of [`TokenClient`].
///
/// If dropped, its token is lost, but a credential that is being fetched is kept.
pub struct TokenClientFuture<R, E>(Sending<R, E>);

type Sending<R, E> = Pin<Box<dyn Future<Output = Result<Response<R>, TokenClientError<E>>> + Send>>;

impl<R, E> Future for TokenClientFuture<R, E> {
    type Output = Result<Response<R>, TokenClientError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<R, E> fmt::Debug for TokenClientFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenClientFuture")
    }
}

async fn send<S, B, R>(
    mut service: S,
    layer: TokenClientLayer,
    request: Request<B>,
) -> Result<Response<R>, TokenClientError<S::Error>>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    B: Clone,
{
    let origin = origin_of(request.uri(), request.headers());
    // A token does not replace the program's own credentials.
    let Some(origin) = origin.filter(|_| !request.headers().contains_key(header::AUTHORIZATION)) else {
        return service.call(request).await.map_err(TokenClientError::Inner);
    };
    let mut first = request.clone();
    let held = layer.0.known.get(&origin, layer.0.clock.now());
    if let Some(held) = &held
        && let Some(token) = layer.token_of(held, &origin).await?
    {
        add(&mut first, &token);
    }
    let next = service.clone();
    let response = service.call(first).await.map_err(TokenClientError::Inner)?;
    let status = http_status(&response);
    let Some(token) = layer.token_after(status, response.headers(), held, &origin).await? else {
        return Ok(response);
    };
    // Dropped first, because the second request may need the same connection.
    drop(response);
    let (mut service, mut again) = (next, request);
    add(&mut again, &token);
    poll_fn(|cx| service.poll_ready(cx))
        .await
        .map_err(TokenClientError::Inner)?;
    service.call(again).await.map_err(TokenClientError::Inner)
}

impl TokenClientLayer {
    async fn token_after<E>(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        held: Option<Kept>,
        origin: &str,
    ) -> Result<Option<Token>, TokenClientError<E>> {
        let is_required = status == StatusCode::UNAUTHORIZED;
        if !is_required && status != StatusCode::TOO_MANY_REQUESTS {
            return Ok(None);
        }
        let challenges = Challenge::from_headers(headers);
        let now = self.0.clock.now();
        let end = challenges.iter().filter_map(Challenge::max_age).min();
        let end = end.map(|age| now.saturating_add(age));
        if is_required {
            self.0.known.forget(origin);
        }
        let Some(token) = self.token_until(&challenges, origin, end).await? else {
            return Ok(None);
        };
        // After the wait of a 429, requests may pass without a token again.
        let wait = retry_after(headers, now).filter(|_| !is_required);
        let wait_end = wait.map(|wait| now.saturating_add(wait));
        // Keeps the cached challenges if the status differs: a 401 for a token that answered a 429 rejects only this
        // token, and a 429 does not lift the requirement of an earlier 401.
        if held.is_none_or(|held| held.is_required == is_required)
            && let Some(until) = wait_end.into_iter().chain(end).min()
        {
            let kept = Kept {
                challenges,
                until,
                is_required,
            };
            self.0.known.put(origin, kept, now);
        }
        Ok(Some(token))
    }

    async fn token_of<E>(&self, held: &Kept, origin: &str) -> Result<Option<Token>, TokenClientError<E>> {
        let token = self.token_until(&held.challenges, origin, Some(held.until)).await;
        token.or_else(|error| if held.is_required { Err(error) } else { Ok(None) })
    }

    async fn token_until<E>(
        &self,
        challenges: &[Challenge],
        origin: &str,
        until: Option<Timestamp>,
    ) -> Result<Option<Token>, TokenClientError<E>> {
        let token = self.answer(challenges, origin).await;
        token.map_err(|error| {
            let left = until.map(|until| Duration::from_micros(until.micros_since(self.0.clock.now())));
            error.into_error(left)
        })
    }
}

fn add<B>(request: &mut Request<B>, token: &Token) {
    request
        .headers_mut()
        .insert(header::AUTHORIZATION, token_to_header_value(token));
}

impl<S: fmt::Debug> fmt::Debug for TokenClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenClient")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
