//! A reverse proxy with limits of its own, in front of a service that sends `RateLimit` fields, too: clients see both.
//!
//! ```sh
//! cargo run --example reverse_proxy
//! ```
//!
//! A response with the fields of both, then requests until the proxy rejects one:
//!
//! ```sh
//! curl -i http://127.0.0.1:3000/
//! for i in 1 2 3 4; do curl -is -w '\n' http://127.0.0.1:3000/; done
//! ```
//!
//! `UPSTREAM` names the service to forward to, as `http://127.0.0.1:8080`; without it a small one is started on a free
//! port. `PORT` sets the port; 0 takes a free one.
//!
//! Bodies are streamed in both directions. The proxy does not do TLS, HTTP/2, upgrades such as WebSocket, or
//! rewriting of paths.

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

/// The limits of the proxy for each address.
fn proxy_limits() -> Result<RateLimitLayer, ConfigError> {
    RateLimitLayer::builder(MemoryStore::new())
        .scope("proxy")
        .key(key::client_ip())
        .policy(QuotaPolicy::per_second("proxy", 3))
        .build()
}

/// The proxy is a service like any other: what the layer rejects is not forwarded, and what the upstream has said of its
/// own limits stays, with ours beside it.
pub(crate) async fn serve(listener: TcpListener, limits: RateLimitLayer, proxy: Proxy) -> io::Result<()> {
    loop {
        let (stream, address) = listener.accept().await?;
        let proxy = proxy.clone();
        let service = ServiceBuilder::new()
            // Each connection tells the layer, and then the upstream, who is at its other end.
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(PeerAddress(address));
                request
            })
            // A clone for each connection: clones share their limits.
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

/// Forwards requests to one upstream. Clones share its connections.
#[derive(Clone)]
pub(crate) struct Proxy {
    client: Client<HttpConnector, Incoming>,
    upstream: Uri,
}

/// The upstream's content as it arrives, or a few words about why there is none.
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
        // The client writes that of the upstream.
        headers.remove(header::HOST);
        // Only after the fields that `Connection` names are gone: a client could name these.
        tell_peer(headers, peer);

        match self.client.request(request).await {
            Ok(mut response) => {
                remove_hop_by_hop(response.headers_mut());
                Ok(response.map(Either::Left))
            }
            Err(error) => {
                // The reason is for the log: clients need not know what is behind the proxy.
                eprintln!("{error}");
                Ok(failure(StatusCode::BAD_GATEWAY, "The upstream does not answer.\n"))
            }
        }
    }

    /// The upstream with the path and query of the request: never another host, whatever the client asks for.
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

/// Removes what is about the connection to one side and not about the message: RFC 9110, section 7.6.1.
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

/// Tells the upstream whom the request is from. Clients can write anything into these fields, so what came in is
/// replaced; a proxy behind another one that it trusts would add to them.
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

/// A service on axum that counts the clients of the proxy, whose word it takes for who they are.
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

/// Shows the peer's address to `key::client_ip`. With the feature `axum` of tower-quota you need not do this.
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
