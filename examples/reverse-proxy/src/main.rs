//! A reverse proxy with limits, in front of a service that also sends `RateLimit` fields. Clients receive the limits of
//! both.
//!
//! ```sh
//! cargo run -p example-reverse-proxy
//! ```
//!
//! Get a response with the limits of both services, then send requests until the proxy rejects one:
//!
//! ```sh
//! curl -i http://127.0.0.1:3000/
//! for i in 1 2 3 4; do curl -is -w '\n' http://127.0.0.1:3000/; done
//! ```
//!
//! `UPSTREAM` is the URL of the upstream service, such as `http://127.0.0.1:8080`. Without it, a small service is
//! started on a free port. `PORT` sets the port; 0 selects a free one.
//!
//! Bodies are streamed in both directions. The proxy does not support TLS, HTTP/2, upgrades such as WebSocket, or path
//! rewriting.

use std::{
    convert::Infallible,
    env,
    error::Error,
    future::IntoFuture,
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::{Router, extract::ConnectInfo, middleware};
use http_body_util::Either;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Uri, Version,
    body::Incoming,
    header::{self, HeaderName, HeaderValue},
    server::conn::http1,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_quota::{
    ConfigError, MemoryStore, QuotaPolicy, RateLimitLayer,
    key::{self, ForwardingField, PeerAddress},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let upstream = match env::var("UPSTREAM") {
        Ok(url) => url.parse()?,
        Err(_) => start_upstream().await?,
    };
    if upstream.scheme_str() != Some("http") {
        return Err(format!("UPSTREAM is {upstream}, which is not an http URL").into());
    }
    let proxy = Proxy::new(upstream);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let url = format!("http://{}/", listener.local_addr()?);
    println!("Listening on {url}");
    println!("Forwarding to {}", proxy.upstream);
    println!();
    println!("A response with the RateLimit fields of both, then requests until the proxy rejects one:");
    println!("  curl -i {url}");
    println!("  for i in 1 2 3 4; do curl -is -w '\\n' {url}; done");

    serve(listener, proxy_limits()?, proxy).await?;
    Ok(())
}

/// The limits of the proxy per address.
fn proxy_limits() -> Result<RateLimitLayer, ConfigError> {
    RateLimitLayer::builder(MemoryStore::new())
        .scope("proxy")
        .key(key::client_ip())
        .policy(QuotaPolicy::per_second("proxy", 3))
        .build()
}

/// The proxy is an ordinary service: rejected requests are not forwarded, and the fields of the upstream service are
/// merged with the proxy's own fields.
pub(crate) async fn serve(listener: TcpListener, limits: RateLimitLayer, proxy: Proxy) -> io::Result<()> {
    loop {
        let (stream, address) = listener.accept().await?;
        let proxy = proxy.clone();
        let service = ServiceBuilder::new()
            // Passes the peer address of the connection to the layer and to the upstream.
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(PeerAddress(address));
                request
            })
            // Clones share their limits.
            .layer(limits.clone())
            .service_fn(move |request| proxy.clone().forward(request));
        let connection =
            http1::Builder::new().serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("{error}");
            }
        });
    }
}

/// Forwards requests to one upstream. Clones share the connections.
#[derive(Clone)]
pub(crate) struct Proxy {
    client: Client<HttpConnector, Incoming>,
    upstream: Uri,
}

/// The streamed body of the upstream, or an error message.
type ProxyBody = Either<Incoming, String>;

impl Proxy {
    pub(crate) fn new(upstream: Uri) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            upstream,
        }
    }

    async fn forward(self, mut request: Request<Incoming>) -> Result<Response<ProxyBody>, Infallible> {
        let Some(target) = self.target(&request) else {
            return Ok(failure(StatusCode::BAD_REQUEST, "This cannot be forwarded.\n"));
        };
        *request.uri_mut() = target;
        *request.version_mut() = Version::HTTP_11;
        let peer = request.extensions().get().map(|PeerAddress(address)| address.ip());
        let headers = request.headers_mut();
        remove_hop_by_hop(headers);
        // The HTTP client adds the upstream's host.
        headers.remove(header::HOST);
        // Added after removing the fields listed in `Connection`, because a client could list the forwarding fields
        // there.
        tell_peer(headers, peer);

        match self.client.request(request).await {
            Ok(mut response) => {
                remove_hop_by_hop(response.headers_mut());
                Ok(response.map(Either::Left))
            }
            Err(error) => {
                // Only logged, because clients should not see details of the upstream.
                eprintln!("{error}");
                Ok(failure(StatusCode::BAD_GATEWAY, "The upstream does not answer.\n"))
            }
        }
    }

    /// Returns the URI of the upstream with the path and query of the request. The host of the request is ignored.
    fn target<B>(&self, request: &Request<B>) -> Option<Uri> {
        if request.method() == Method::CONNECT {
            return None;
        }
        let mut target = self.upstream.clone().into_parts();
        target.path_and_query = request.uri().path_and_query().cloned();
        Uri::from_parts(target).ok()
    }
}

fn failure(status: StatusCode, text: &str) -> Response<ProxyBody> {
    let mut response = Response::new(Either::Right(text.to_owned()));
    *response.status_mut() = status;
    response
}

/// Removes fields that concern a single connection (RFC 9110, section 7.6.1).
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let lines = headers.get_all(header::CONNECTION).iter();
    let options = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','));
    let named: Vec<HeaderName> = options.filter_map(|option| option.trim().parse().ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Sets the forwarding fields. Replaces received values, because clients can send anything; a proxy behind a trusted
/// proxy would append instead.
fn tell_peer(headers: &mut HeaderMap, peer: Option<IpAddr>) {
    for name in FORWARDING {
        headers.remove(name);
    }
    let Some(peer) = peer else { return };
    let element = match peer {
        IpAddr::V4(peer) => format!("for={peer};proto=http"),
        IpAddr::V6(peer) => format!("for=\"[{peer}]\";proto=http"),
    };
    for (name, value) in [("forwarded", element), ("x-forwarded-for", peer.to_string())] {
        let value = HeaderValue::try_from(value).expect("an address is ASCII");
        headers.insert(name, value);
    }
}

/// Starts an axum service that limits the clients of the proxy and trusts its forwarding fields.
pub(crate) async fn start_upstream() -> Result<Uri, Box<dyn Error>> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("upstream")
        .key(key::client_ip().trusted_proxies(ForwardingField::Forwarded, ["127.0.0.1"]))
        .policy(QuotaPolicy::per_minute("upstream", 60))
        .build()?;
    let app = Router::new()
        .fallback(|| async { "Hello from the upstream!\n" })
        .layer(limits)
        .layer(middleware::map_request(show_peer));

    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}", listener.local_addr()?).parse()?;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, service).into_future());
    Ok(url)
}

/// Passes the peer address to `key::client_ip`. Not needed with the feature `axum` of tower-quota.
async fn show_peer<B>(ConnectInfo(address): ConnectInfo<SocketAddr>, mut request: Request<B>) -> Request<B> {
    request.extensions_mut().insert(PeerAddress(address));
    request
}

const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

const FORWARDING: [&str; 6] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
];
