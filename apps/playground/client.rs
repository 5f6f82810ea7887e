//! A client that sends requests over TCP and keeps the raw responses.
//!
//! The page does not send the requests itself, because a browser opens only six connections to a server, and queued
//! requests would occupy them all.

use std::{
    io,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};

/// The maximum number of requests in flight, each with a connection.
const MAX_UNDER_WAY: usize = 256;

/// Responses of this program are smaller.
const MAX_RESPONSE: usize = 64 * 1_024;

#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    idle: Mutex<Vec<TcpStream>>,
    places: Semaphore,
}

/// A raw request and its response.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) request: String,
    pub(crate) response: String,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            idle: Mutex::default(),
            places: Semaphore::new(MAX_UNDER_WAY),
        }
    }

    /// Returns `None` if too many requests are in flight.
    pub(crate) async fn send(&self, caller: &str) -> Option<io::Result<Exchange>> {
        let _place = self.places.try_acquire().ok()?;
        let request = format!(
            "GET /try HTTP/1.1\r\nhost: {}\r\nx-user-id: {caller}\r\n\r\n",
            self.address
        );
        Some(self.exchange(request).await)
    }

    async fn exchange(&self, request: String) -> io::Result<Exchange> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => TcpStream::connect(self.address).await?,
        };
        connection.set_nodelay(true)?;
        connection.write_all(request.as_bytes()).await?;
        let response = read_response(&mut connection).await?;
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(connection);
        Ok(Exchange { request, response })
    }
}

/// Reads a response with `Content-Length`, as all responses of this program have.
async fn read_response(connection: &mut TcpStream) -> io::Result<String> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 2_048]);
    loop {
        if response_length(&bytes).is_some_and(|length| bytes.len() >= length) {
            return String::from_utf8(bytes).map_err(io::Error::other);
        }
        let read = connection.read(&mut chunk).await?;
        if read == 0 || bytes.len() > MAX_RESPONSE {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&chunk[..read]);
    }
}

/// Returns the length of head and body, or `None` before the end of the head.
fn response_length(bytes: &[u8]) -> Option<usize> {
    const END: &[u8] = b"\r\n\r\n";

    let head = bytes.windows(END.len()).position(|window| window == END)? + END.len();
    let lines = std::str::from_utf8(&bytes[..head]).ok()?.lines();
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    let (_, length) = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    Some(head + length.trim().parse::<usize>().ok()?)
}
