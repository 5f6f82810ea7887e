//! The reverse proxy of the examples, end to end: a client, the proxy and an upstream, on separate connections.

#[path = "../../examples/reverse-proxy/src/main.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod reverse_proxy;

use std::{future::IntoFuture, net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::Request,
    response::{AppendHeaders, IntoResponse},
    routing::{any, get},
};
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use reverse_proxy::Proxy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};
use tower_quota::{Limiter, MemoryStore, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, fields::Hints, key};

use crate::listener;

/// The address of a proxy in front of an upstream.
async fn proxy_of(upstream: SocketAddr, limits: RateLimitLayer) -> SocketAddr {
    let upstream = format!("http://{upstream}").parse().unwrap();
    let (listener, address) = listener().await;
    tokio::spawn(reverse_proxy::serve(listener, limits, Proxy::new(upstream)));
    address
}

/// Limits each client to `quota` requests a day, so that no unit is restored while a test runs.
fn limits(quota: u64) -> RateLimitLayer {
    RateLimitLayerBuilder::from(Limiter::builder(MemoryStore::new()).deadline(Duration::from_secs(60)))
        .scope("proxy")
        .key(key::client_ip())
        .policy(QuotaPolicy::per_day("proxy", quota))
        .build()
        .unwrap()
}

async fn upstream(app: Router) -> SocketAddr {
    let (listener, address) = listener().await;
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

fn client() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn send(address: SocketAddr, path: &str, fields: &[(&str, &str)]) -> Response<Incoming> {
    let mut request = Request::get(format!("http://{address}{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    client().request(request.body(Body::empty()).unwrap()).await.unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// All lines of a field as the one list that they are.
fn list(headers: &HeaderMap, name: &str) -> String {
    let lines: Vec<_> = headers
        .get_all(name)
        .iter()
        .map(|line| line.to_str().unwrap())
        .collect();
    lines.join(", ")
}

/// Sends back the fields of the request, and its path.
async fn echo_fields(request: Request) -> String {
    let mut echo = format!("{}\n", request.uri());
    for (name, value) in request.headers() {
        echo += &format!("{name}: {}\n", value.to_str().unwrap());
    }
    echo
}

/// G2, G3
#[tokio::test]
async fn clients_see_the_limits_of_both_sides_in_one_list() {
    let upstream = reverse_proxy::start_upstream().await.unwrap();
    let upstream = upstream.authority().unwrap().as_str().parse().unwrap();
    let proxy = proxy_of(upstream, limits(9)).await;
    let response = send(proxy, "/", &[]).await;
    let (head, body) = response.into_parts();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "Hello from the upstream!\n");
    assert_eq!(
        list(&head.headers, "ratelimit"),
        r#""upstream";r=59;t=59, "proxy";r=8;t=76800"#
    );
    assert_eq!(
        list(&head.headers, "ratelimit-policy"),
        r#""upstream";q=60;w=60, "proxy";q=9;w=86400"#
    );
    let hints = Hints::read(&head.headers);
    let names: Vec<_> = hints.limits().iter().map(|limit| limit.name()).collect();
    assert_eq!(names, [Some("upstream"), Some("proxy")]);
}

/// G6: rejections that the upstream announces are left to the upstream.
#[tokio::test]
async fn only_the_limits_of_the_proxy_keep_a_request_from_the_upstream() {
    let exhausted = || async { AppendHeaders([("ratelimit", r#""upstream";r=0;t=900"#)]) };
    let proxy = proxy_of(upstream(Router::new().fallback(exhausted)).await, limits(2)).await;
    for status in [StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let response = send(proxy, "/", &[]).await;
        assert_eq!(response.status(), status);
        let is_of_upstream = list(response.headers(), "ratelimit").starts_with(r#""upstream";r=0;t=900"#);
        assert_eq!(is_of_upstream, status == StatusCode::OK);
    }
}

#[tokio::test]
async fn the_upstream_is_told_the_peer_and_not_what_the_client_claims() {
    let proxy = proxy_of(upstream(Router::new().fallback(echo_fields)).await, limits(9)).await;
    let claims = [
        ("forwarded", "for=192.0.2.1"),
        ("forwarded", "for=192.0.2.2;host=a"),
        ("x-forwarded-for", "192.0.2.3, 192.0.2.4"),
        ("x-forwarded-host", "bank.example"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "192.0.2.5"),
        // A client may not have the fields removed that the proxy writes.
        ("connection", "x-forwarded-for, forwarded"),
    ];
    let echo = text(send(proxy, "/path?query", &claims).await).await;
    assert!(echo.starts_with("/path?query\n"), "{echo}");
    let forwarded: Vec<_> = echo
        .lines()
        .filter(|line| line.contains("forwarded") || line.contains("real-ip"))
        .collect();
    assert_eq!(
        forwarded,
        ["forwarded: for=127.0.0.1;proto=http", "x-forwarded-for: 127.0.0.1"]
    );
    assert!(!echo.contains("192.0.2."), "{echo}");
}

#[tokio::test]
async fn what_is_about_one_connection_stays_there() {
    async fn answer(request: Request) -> impl IntoResponse {
        let fields = AppendHeaders([
            ("connection", "x-private"),
            ("x-private", "of the upstream"),
            ("keep-alive", "timeout=5"),
            ("x-public", "of the upstream"),
        ]);
        (fields, echo_fields(request).await)
    }
    let proxy = proxy_of(upstream(Router::new().fallback(answer)).await, limits(9)).await;
    let fields = [
        ("connection", "x-secret"),
        ("connection", "close, x-other"),
        ("x-secret", "1"),
        ("x-other", "2"),
        ("proxy-authorization", "Basic 3"),
        ("te", "trailers"),
        ("upgrade", "websocket"),
        ("x-kept", "4"),
    ];
    let response = send(proxy, "/", &fields).await;
    let headers = response.headers();
    assert_eq!(headers["x-public"], "of the upstream");
    assert!(
        !headers.contains_key("x-private") && !headers.contains_key("keep-alive"),
        "{headers:?}"
    );
    let echo = text(response).await;
    for gone in [
        "connection:",
        "x-secret:",
        "x-other:",
        "proxy-authorization:",
        "te:",
        "upgrade:",
    ] {
        assert!(!echo.lines().any(|line| line.starts_with(gone)), "{gone} {echo}");
    }
    assert!(echo.contains("x-kept: 4\n"), "{echo}");
}

#[tokio::test]
async fn an_upstream_that_is_away_is_a_bad_gateway_with_our_fields() {
    let (listener, address) = listener().await;
    drop(listener);
    let proxy = proxy_of(address, limits(9)).await;
    let response = send(proxy, "/", &[]).await;
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(list(response.headers(), "ratelimit"), r#""proxy";r=8;t=76800"#);
    assert_eq!(text(response).await, "The upstream does not answer.\n");
}

/// An upstream that answers one request with these bytes.
async fn raw_upstream(answer: &'static str) -> SocketAddr {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_buf(&mut Vec::with_capacity(4_096)).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    address
}

/// B12
#[tokio::test]
async fn a_field_without_a_space_after_its_colon_is_read() {
    let answer = "HTTP/1.1 200 OK\r\nRateLimit:\"default\";r=50;t=60\r\ncontent-length:0\r\n\r\n";
    let proxy = proxy_of(raw_upstream(answer).await, limits(9)).await;
    let response = send(proxy, "/", &[]).await;
    assert_eq!(
        list(response.headers(), "ratelimit"),
        r#""default";r=50;t=60, "proxy";r=8;t=76800"#
    );
    let hints = Hints::read(response.headers());
    assert_eq!(
        (hints.limits()[0].name(), hints.limits()[0].remaining()),
        (Some("default"), Some(50))
    );
}

/// G8
#[tokio::test]
async fn a_wait_that_the_upstream_asks_for_reaches_the_client() {
    let busy = || async { (StatusCode::SERVICE_UNAVAILABLE, AppendHeaders([("retry-after", "30")])) };
    let proxy = proxy_of(upstream(Router::new().fallback(busy)).await, limits(9)).await;
    let response = send(proxy, "/", &[]).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(list(response.headers(), "retry-after"), "30");
}

/// Neither side waits for the end of a body.
#[tokio::test]
async fn bodies_are_streamed_in_both_directions() {
    let echo = any(async |request: Request| Response::new(request.into_body()));
    let app = Router::new()
        .route("/echo", echo)
        .route("/other", get(async || "other"));
    let proxy = proxy_of(upstream(app).await, limits(9)).await;
    let (parts, mut rest) = mpsc::channel(1);
    let body = futures_util::stream::poll_fn(move |context| {
        rest.poll_recv(context)
            .map(|part: Option<Bytes>| Some(Ok::<_, std::convert::Infallible>(Frame::data(part?))))
    });
    let request = Request::post(format!("http://{proxy}/echo")).body(Body::new(StreamBody::new(body)));
    let response = client().request(request.unwrap()).await.unwrap();
    let mut echo = response.into_body();
    for part in ["first", "second", "third"] {
        parts.send(Bytes::from(part)).await.unwrap();
        assert_eq!(echo.frame().await.unwrap().unwrap().into_data().unwrap(), part);
    }
    drop(parts);
    assert!(echo.collect().await.unwrap().to_bytes().is_empty());
}

/// The target specifies the destination as well as the resource, and a client can write any host.
#[tokio::test]
async fn no_target_leads_to_another_host_than_the_upstream() {
    let proxy = proxy_of(upstream(Router::new().fallback(echo_fields)).await, limits(9)).await;
    for (line, status, answer) in [
        ("GET http://192.0.2.1/path HTTP/1.1", "HTTP/1.1 200 OK", "/path\n"),
        (
            "CONNECT 192.0.2.1:80 HTTP/1.1",
            "HTTP/1.1 400 Bad Request",
            "This cannot be forwarded.\n",
        ),
    ] {
        let mut stream = TcpStream::connect(proxy).await.unwrap();
        let request = format!("{line}\r\nhost: 192.0.2.1\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with(status), "{response}");
        assert!(response.contains(answer), "{response}");
    }
}
