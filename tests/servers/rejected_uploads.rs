//! Uploads of callers without quota, whose bodies are not read: the response arrives before the connection ends.

#![allow(clippy::disallowed_methods, reason = "sockets do not follow virtual time")]

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tower::{Layer, service_fn};
use tower_quota::RateLimitLayer;

use crate::{Server, limits_of_both_kinds};

async fn server(limits: &RateLimitLayer) -> Server {
    let server = Server::hyper(limits.layer(service_fn(async |_: Request<Incoming>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    })))
    .await;
    let exhausting = Request::get("/").header("x-user-id", "alice");
    assert_eq!(server.send(exhausting.body(String::new()).unwrap()).await.status(), 200);
    server
}

/// The head of an upload by the caller without quota.
fn head(more: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: localhost\r\nx-user-id: alice\r\n{more}\r\n\r\n")
}

/// Everything that the server sends until it closes the connection or the response is complete.
async fn response(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    let complete = async {
        while let Ok(length @ 1..) = stream.read(&mut part).await {
            answer.extend_from_slice(&part[..length]);
            // The problem is a JSON object.
            if answer.ends_with(b"}") {
                break;
            }
        }
    };
    let _ = timeout(Duration::from_secs(30), complete).await;
    String::from_utf8(answer).unwrap()
}

fn is_rejected(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 429 ") && answer.contains("retry-after: ") && answer.ends_with('}')
}

/// RFC 9112, section 9.6. Most clients of other languages write in this way.
#[tokio::test]
async fn a_client_that_writes_its_whole_upload_first_receives_the_rejection() {
    for limits in limits_of_both_kinds(1) {
        let server = server(&limits).await;
        for length in [1, 64_000, 200_000, 2 * 1024 * 1024] {
            for is_chunked in [false, true] {
                let mut stream = TcpStream::connect(server.address).await.unwrap();
                let mut upload = if is_chunked {
                    head("transfer-encoding: chunked") + &format!("{length:x}\r\n")
                } else {
                    head(&format!("content-length: {length}"))
                }
                .into_bytes();
                upload.resize(upload.len() + length, b'x');
                upload.extend_from_slice(if is_chunked { b"\r\n0\r\n\r\n" } else { b"" });
                stream.write_all(&upload).await.unwrap();
                let answer = response(&mut stream).await;
                assert!(is_rejected(&answer), "{length} {is_chunked}: {answer}");
                // The body was read to its end, so the connection can be used again.
                assert!(!answer.contains("connection: close"), "{answer}");
                stream.write_all(head("content-length: 0").as_bytes()).await.unwrap();
                assert!(is_rejected(&response(&mut stream).await));
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_reads_while_it_writes_receives_the_rejection_of_an_upload_of_any_length() {
    for limits in limits_of_both_kinds(1) {
        let server = server(&limits).await;
        let length = 30_000_000;
        let (mut reading, mut writing) = TcpStream::connect(server.address).await.unwrap().into_split();
        let upload = tokio::spawn(async move {
            let _ = writing
                .write_all(head(&format!("content-length: {length}")).as_bytes())
                .await;
            let part = vec![b'x'; 64 * 1024];
            for _ in 0..length / part.len() {
                if writing.write_all(&part).await.is_err() {
                    break;
                }
            }
        });
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        while !answer.ends_with(b"}") {
            match timeout(Duration::from_secs(30), reading.read(&mut part)).await {
                Ok(Ok(length @ 1..)) => answer.extend_from_slice(&part[..length]),
                other => panic!("{other:?} after {}", String::from_utf8_lossy(&answer)),
            }
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(is_rejected(&answer) && answer.contains("connection: close"), "{answer}");
        upload.abort();
    }
}

struct Nginx(std::process::Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// An nginx that forwards to this server, until it is dropped. Returns it and its address.
async fn nginx(server: &Server, directives: &str) -> (Nginx, SocketAddr) {
    let nginx = std::env::var("NGINX").expect("NGINX is the path of an nginx");
    let folder = std::env::temp_dir().join(format!("nginx-{}", server.address.port()));
    std::fs::create_dir_all(&folder).unwrap();
    let (listener, address) = crate::listener().await;
    drop(listener);
    let to = server.address;
    let configuration = format!(
        "daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;
         events {{ worker_connections 1024; }}
         http {{
             access_log off; client_body_temp_path {folder}/bodies; proxy_temp_path {folder}/proxied;
             fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
             server {{
                 listen {address}; client_max_body_size 100m;
                 location / {{ proxy_pass http://{to}; proxy_http_version 1.1; {directives} }}
             }}
         }}",
        folder = folder.display()
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, configuration).unwrap();
    let mut command = std::process::Command::new(nginx);
    // nginx itself reads sockets from a variable of this name.
    command.env_remove("NGINX");
    command.arg("-c").arg(&file).arg("-e").arg(folder.join("errors"));
    let nginx = Nginx(command.spawn().unwrap());
    for _ in 0..500 {
        if TcpStream::connect(address).await.is_ok() {
            return (nginx, address);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{}", std::fs::read_to_string(folder.join("errors")).unwrap_or_default());
}

/// `make proxy-test` runs this, which needs a real nginx.
#[tokio::test]
#[ignore = "needs an nginx"]
async fn behind_nginx_the_caller_of_every_rejected_upload_receives_its_429() {
    for limits in limits_of_both_kinds(1) {
        let server = server(&limits).await;
        for directives in ["", "proxy_request_buffering off;"] {
            let (_nginx, address) = nginx(&server, directives).await;
            for length in [64_000, 200_000, 5_000_000] {
                let mut received = 0;
                for _ in 0..50 {
                    received += u32::from(is_rejected(&upload_through(address, length).await));
                }
                assert_eq!(received, 50, "{length} {directives}");
            }
        }
    }
}

async fn upload_through(address: SocketAddr, length: usize) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut upload = head(&format!("content-length: {length}\r\nconnection: close")).into_bytes();
    upload.resize(upload.len() + length, b'x');
    let (mut reading, mut writing) = stream.split();
    let mut answer = Vec::new();
    // nginx may close the connection once it has forwarded the response.
    let read = timeout(Duration::from_secs(30), reading.read_to_end(&mut answer));
    let _ = tokio::join!(writing.write_all(&upload), read);
    String::from_utf8_lossy(&answer).into_owned()
}
