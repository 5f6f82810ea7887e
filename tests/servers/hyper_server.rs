//! A bare hyper server.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tower::{ServiceBuilder, service_fn};
use tower_quota::MemoryStore;

use crate::{Server, limits, limits_of_both_kinds, remaining};

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
