//! Bodies pass as they are.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, sync::mpsc};
use tower::{ServiceBuilder, ServiceExt};
use tower_quota::RateLimitLayer;

use crate::{Server, limits_of_both_kinds};

/// Sends back what it gets while it comes.
async fn echo(request: Request<Incoming>) -> Result<Response<Incoming>, Infallible> {
    Ok(Response::new(request.into_body()))
}

/// The response of the echo service behind a layer. HTTP/2 has trailers, and both directions at once.
async fn echo_of<B>(limits: RateLimitLayer, body: B) -> Response<Incoming>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let server = Server::hyper(ServiceBuilder::new().layer(limits).service_fn(echo)).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    client
        .send_request(Request::post("http://localhost/").body(body).unwrap())
        .await
        .unwrap()
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([("x-checksum".parse().unwrap(), "7".parse().unwrap())])
}

/// L34, A20, B9
#[tokio::test]
async fn streamed_bodies_pass_byte_for_byte_with_their_trailers() {
    let bytes: Vec<u8> = (0..1_000_000_u32)
        .map(|n| (n.wrapping_mul(0x9E37_79B1) >> 24) as u8)
        .collect();
    for limits in limits_of_both_kinds(1) {
        let mut frames: Vec<_> = bytes
            .chunks(7_919)
            .map(|part| Frame::data(Bytes::copy_from_slice(part)))
            .collect();
        frames.push(Frame::trailers(trailers()));
        let body = StreamBody::new(stream::iter(frames.into_iter().map(Ok)));

        let echo = echo_of(limits, body).await;
        assert_eq!(echo.headers()["ratelimit"], r#""day";r=0;t=86400"#);
        let echo = echo.into_body().collect().await.unwrap();
        assert_eq!(echo.trailers(), Some(&trailers()));
        assert!(echo.to_bytes() == bytes, "the bytes have changed");
    }
}

/// L34: nothing is held back until a body is complete.
#[tokio::test]
async fn each_part_of_a_body_passes_before_the_next_one_exists() {
    for limits in limits_of_both_kinds(1) {
        let (parts, rest) = mpsc::channel(1);
        let body = stream::unfold(rest, async |mut rest| Some((Ok(Frame::data(rest.recv().await?)), rest)));
        let mut echo = echo_of(limits, StreamBody::new(Box::pin(body))).await.into_body();
        for part in ["first", "second", "third"] {
            parts.send(Bytes::from(part)).await.unwrap();
            let frame = echo.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), part);
        }
        drop(parts);
        assert!(echo.collect().await.unwrap().to_bytes().is_empty());
    }
}

/// Sends back the path.
async fn path(request: Request<Empty<Bytes>>) -> Result<Response<String>, Infallible> {
    Ok(Response::new(request.uri().path().to_owned()))
}

/// L34
#[tokio::test]
async fn the_length_of_a_body_is_still_known() {
    for limits in limits_of_both_kinds(1) {
        let request = Request::get("/twelve-bytes").header("x-user-id", "alice");
        let service = ServiceBuilder::new().layer(limits).service_fn(path);
        let response = service.oneshot(request.body(Empty::new()).unwrap()).await.unwrap();

        let mut body = response.into_body();
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(13), false));
        body.frame().await.unwrap().unwrap();
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
    }
}
