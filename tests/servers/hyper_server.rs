//! A bare hyper server.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tower::{ServiceBuilder, service_fn};
use tower_quota::{
    MemoryStore,
    key::{self, ForwardingField},
};

use crate::{Server, limits, limits_by, limits_of_both_kinds, remaining};

async fn ok(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("ok".to_owned()))
}

/// L32
#[tokio::test]
async fn a_bare_hyper_server_is_limited_by_the_address_it_shows() {
    for limits in limits_of_both_kinds(2) {
        let server = Server::hyper(ServiceBuilder::new().layer(limits).service_fn(ok)).await;
        assert_eq!(server.statuses(["/", "/", "/"]).await, [200, 200, 429]);
        assert_eq!(server.get_as("alice", "/").await.body(), "ok");
    }
}

/// L31: only a peer that was found, and is 127.0.0.1, makes the forwarded addresses count.
#[tokio::test]
async fn the_peer_address_is_that_of_the_connection() {
    let by_address = key::client_ip().trusted_proxies(ForwardingField::Forwarded, ["127.0.0.1"]);
    let limits = limits_by(by_address, MemoryStore::new(), "api", 1).build().unwrap();
    let server = Server::hyper(ServiceBuilder::new().layer(limits).service_fn(ok)).await;
    for (client, status) in [("192.0.2.1", 200), ("192.0.2.2", 200), ("192.0.2.1", 429)] {
        let request = Request::get("/").header("forwarded", format!("for={client}"));
        let response = server.send(request.body(String::new()).unwrap()).await;
        assert_eq!(response.status(), status, "{client}");
    }
}

/// L32
#[tokio::test]
async fn a_client_has_one_limit_over_all_versions_of_http() {
    let service = ServiceBuilder::new()
        .layer(limits(MemoryStore::new(), "api", 3))
        .service(service_fn(ok));
    let server = Server::hyper(service).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = || Request::get("http://localhost/").body(Empty::<Bytes>::new()).unwrap();

    assert_eq!(remaining(&server.get("/").await), 2);
    assert_eq!(remaining(&client.send_request(request()).await.unwrap()), 1);
    assert_eq!(remaining(&server.get("/").await), 0);
    let rejection = client.send_request(request()).await.unwrap();
    assert_eq!(rejection.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_host_has_one_limit_over_all_versions_of_http() {
    let limits = limits_by(key::Host, MemoryStore::new(), "tenants", 2).build().unwrap();
    let server = Server::hyper(ServiceBuilder::new().layer(limits).service_fn(ok)).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let over_http1 = async |host| {
        let request = Request::get("/").header("host", host).body(String::new()).unwrap();
        server.send(request).await.status()
    };
    let mut over_http2 = async |host| {
        let request = Request::get(format!("http://{host}/"));
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        client.send_request(request).await.unwrap().status()
    };

    assert_eq!(over_http1("a.example").await, StatusCode::OK);
    assert_eq!(over_http2("A.example:80").await, StatusCode::OK);
    assert_eq!(over_http1("a.example.").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(over_http2("a.example").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(over_http2("b.example").await, StatusCode::OK);
}
