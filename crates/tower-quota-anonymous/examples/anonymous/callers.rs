//! Clients of the issuer and the origin, which record their messages.

use std::{
    fmt::Write as _,
    io::Write,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, Error, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_quota_anonymous::{
    CredentialRequest, Issuer, Token, TokenClient, TokenClientLayer, TrustedIssuer, token_from_headers,
};

use super::{Failure, servers::Site};

/// An HTTP client that records requests and responses, and optionally logs in.
#[derive(Clone)]
pub(crate) struct Wire {
    http: Client<HttpConnector, Full<Bytes>>,
    who: &'static str,
    login: Option<&'static str>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Wire {
    pub(crate) fn new(who: &'static str) -> Self {
        Self {
            http: Client::builder(TokioExecutor::new()).build_http(),
            who,
            login: None,
            lines: Arc::default(),
        }
    }

    pub(crate) fn with_login(self, login: &'static str) -> Self {
        let login = Some(login);
        Self { login, ..self }
    }

    /// Prints the recorded messages.
    pub(crate) fn write(&self, out: &mut impl Write) -> Result<(), Failure> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(lines.drain(..).try_for_each(|line| writeln!(out, "  {line}"))?)
    }
}

impl Service<Request<Full<Bytes>>> for Wire {
    type Response = Response<Incoming>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Response<Incoming>, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Service::poll_ready(&mut self.http, cx)
    }

    fn call(&mut self, mut request: Request<Full<Bytes>>) -> Self::Future {
        if let Some(login) = self.login {
            let login = HeaderValue::try_from(format!("Bearer {login}")).expect("letters");
            request.headers_mut().insert(header::AUTHORIZATION, login);
        }
        let with = match token_from_headers(request.headers()) {
            Ok(Some(token)) => format!(" with the token of nonce {}", token.nonce()),
            _ => String::new(),
        };
        let sent = format!("{}: {} {}{with}", self.who, request.method(), request.uri());
        let (answer, lines) = (self.http.call(request), Arc::clone(&self.lines));
        Box::pin(async move {
            let response = answer.await?;
            let line = format!("{sent} → {}", response.status());
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            Ok(response)
        })
    }
}

pub(crate) fn get(origin: &str) -> Result<Request<Full<Bytes>>, Failure> {
    Ok(Request::get(format!("http://{origin}/")).body(Full::default())?)
}

/// Returns a client that answers challenges, and logs in only at the issuer.
pub(crate) fn client(site: &Site, login: &'static str, wire: &Wire) -> Result<TokenClient<Wire>, Failure> {
    Ok(tokens(site, login, wire)?.layer(wire.clone()))
}

fn tokens(site: &Site, login: &'static str, wire: &Wire) -> Result<TokenClientLayer, Failure> {
    let to_issuer = ServiceBuilder::new()
        .map_request(|request: Request<Bytes>| request.map(Full::new))
        .service(wire.clone().with_login(login));
    let issuer = TrustedIssuer::new(&*site.issuer, to_issuer);
    let issuer = site.origins.iter().fold(issuer, TrustedIssuer::origin);
    Ok(TokenClientLayer::builder().issuer(issuer).build()?)
}

/// Returns a token that the client has made but not sent.
pub(crate) async fn unspent_token(site: &Site, login: &'static str) -> Result<Token, Failure> {
    let (wire, made) = (Wire::new(login), Arc::new(Mutex::new(None)));
    let tokens = tokens(site, login, &wire)?;
    let kept = Arc::clone(&made);
    let stopped = service_fn(move |request: Request<Full<Bytes>>| {
        let (wire, made) = (wire.clone(), Arc::clone(&kept));
        async move {
            let token = token_from_headers(request.headers()).ok().flatten();
            if token.is_none() {
                return wire.oneshot(request).await.map(|response| response.map(drop));
            }
            *made.lock().unwrap_or_else(PoisonError::into_inner) = token;
            Ok(Response::new(()))
        }
    });
    tokens.layer(stopped).oneshot(get(&site.origins[0])?).await?;
    let token = made.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(token.ok_or("the origin has not challenged the request")?)
}

/// Returns the content of a credential request.
pub(crate) fn message(site: &Site) -> Result<Vec<u8>, Failure> {
    let key = site.keys.iter().next().ok_or("the issuer has no key")?;
    Ok(CredentialRequest::new(key.public_key(), b"to be looked at")?.to_message())
}

pub(crate) fn asked_for(site: &Site) -> Result<Request<Full<Bytes>>, Failure> {
    let request = Request::post(format!("http://{}/arc/request", site.issuer));
    let request = request.header(header::CONTENT_TYPE, Issuer::REQUEST_TYPE);
    Ok(request.body(Full::from(message(site)?))?)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
