use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    task::Poll,
    time::Duration,
};

use bytes::Buf;
use http::{HeaderMap, HeaderValue, Version, header, request::Parts};
use http_body::Body;
use tokio::runtime::Handle;

use super::content::{Reader, announced_bytes};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    sync::sleep::sleep,
    telemetry,
};

const MAX_TIME: Duration = Duration::from_secs(60);

static OF_PROCESS: Discarded = Discarded {
    count: AtomicUsize::new(0),
    have_no_timers: AtomicBool::new(false),
};

/// The bodies that are being discarded.
#[derive(Debug, Default)]
struct Discarded {
    count: AtomicUsize,
    /// True once a runtime turned out to have no timers.
    have_no_timers: AtomicBool,
}

/// Discards request bodies that a response leaves unread, so that the client receives the response.
///
/// Layers do this for every rejection, within the bounds of
/// [`lingering_close`](crate::RateLimitLayerBuilder::lingering_close); use [`discard`](Self::discard) in services that
/// respond without reading the body.
///
/// A server that closes an HTTP/1.1 connection while a client uploads resets it, and the client may lose the response
/// ([RFC 9112, section 9.6](https://www.rfc-editor.org/rfc/rfc9112#section-9.6)). A task therefore reads the rest of
/// the body, up to a maximum, and then holds the connection open without reading. The body is dropped at its end, or
/// when the time has passed.
///
/// The body is dropped at once if a bound is 0, if more bodies are unread than the maximum, or if there is no Tokio
/// runtime with timers. A graceful shutdown waits for discarded bodies, up to the maximum time. Bodies of HTTP/2 are
/// dropped: only their stream is reset.
#[derive(Clone, Copy, Debug)]
pub struct LingeringClose {
    max_bytes: u64,
    max_time: Duration,
    max_bodies: usize,
    discarded: &'static Discarded,
}

impl Default for LingeringClose {
    fn default() -> Self {
        Self::new()
    }
}

impl LingeringClose {
    /// Creates the default settings.
    pub const fn new() -> Self {
        Self {
            max_bytes: 2 * 1024 * 1024,
            max_time: Duration::from_secs(2),
            max_bodies: 1024,
            discarded: &OF_PROCESS,
        }
    }

    /// Sets the maximum number of bytes to read from a body. Default: 2 MiB. 0: off. Clients that write more before
    /// they read the response may lose it.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets how long a body is kept, up to one minute, as the layer's `build` checks. Default: 2 s. Zero: off.
    #[must_use]
    pub const fn max_time(mut self, time: Duration) -> Self {
        self.max_time = time;
        self
    }

    /// Sets the maximum number of bodies that the process discards at a time, for all layers. Default: 1,024. 0: off.
    /// Each body holds its connection and its buffers.
    #[must_use]
    pub const fn max_bodies(mut self, bodies: usize) -> Self {
        self.max_bodies = bodies;
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let range = Duration::ZERO..=MAX_TIME;
        ConfigError::check_range(
            ConfigErrorKind::Deadline,
            "lingering close: max_time",
            self.max_time,
            range,
        )
    }

    /// Discards the body of a request that has been answered, without delaying the response.
    ///
    /// `response` are the fields of the response: if the body cannot be read completely, `Connection: close` is added.
    /// A body that announces `Expect: 100-continue` is not read, because reading would invite the client to send it.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response, StatusCode};
    /// use http_body::Body;
    /// use tower_quota::content::LingeringClose;
    ///
    /// fn forbid(request: Request<impl Body + Send + 'static>) -> Response<Bytes> {
    ///     let (head, body) = request.into_parts();
    ///     let mut response = Response::new(Bytes::from("forbidden"));
    ///     *response.status_mut() = StatusCode::FORBIDDEN;
    ///     LingeringClose::new().discard(&head, body, response.headers_mut());
    ///     response
    /// }
    ///
    /// // Without a Tokio runtime, the body is dropped.
    /// let response = forbid(Request::post("/").body("x".repeat(5_000_000))?);
    /// assert_eq!(response.headers()["connection"], "close");
    /// // The end of an empty body needs no reading.
    /// assert!(forbid(Request::get("/").body(String::new())?).headers().is_empty());
    /// # Ok::<_, http::Error>(())
    /// ```
    #[inline]
    pub fn discard<B>(&self, request: &Parts, body: B, response: &mut HeaderMap)
    where
        B: Body + Send + 'static,
    {
        if request.version <= Version::HTTP_11 && !body.is_end_stream() {
            self.linger(request, body, response);
        }
    }

    #[inline(never)]
    fn linger<B>(&self, request: &Parts, body: B, response: &mut HeaderMap)
    where
        B: Body + Send + 'static,
    {
        let is_off = self.max_bytes == 0 || self.max_time.is_zero() || self.max_bodies == 0;
        if is_off {
            return telemetry::body_unread();
        }
        // Otherwise, discarded bytes would be charged, and slots of outer layers held until the end of the body.
        if let Some(reader) = request.extensions.get::<Reader>() {
            reader.end();
        }
        let is_expected = request.headers.contains_key(header::EXPECT);
        let slot = (!is_expected).then(|| self.slot()).flatten();
        let runtime = Handle::try_current().ok();
        let is_read = match (slot, runtime) {
            (Some(slot), Some(runtime)) => {
                runtime.spawn(discard(body, self.max_bytes, self.max_time, slot));
                true
            }
            // The client waits for the invitation, so nothing is lost.
            _ if is_expected => false,
            _ => {
                telemetry::body_unread();
                false
            }
        };
        if !is_read || announced_bytes(request).is_some_and(|length| length > self.max_bytes) {
            response.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// A slot above the maximum is released at once.
    fn slot(&self) -> Option<Slot> {
        let slot = Slot(self.discarded);
        let others = self.discarded.count.fetch_add(1, Ordering::Relaxed);
        (others < self.max_bodies && !self.discarded.have_no_timers.load(Ordering::Relaxed)).then_some(slot)
    }
}

struct Slot(&'static Discarded);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn discard(body: impl Body, max_bytes: u64, max_time: Duration, slot: Slot) {
    // A runtime without timers panics here.
    let Ok(mut timeout) = std::panic::catch_unwind(|| sleep(max_time)) else {
        slot.0.have_no_timers.store(true, Ordering::Relaxed);
        return telemetry::body_unread();
    };
    let mut body = pin!(body);
    let mut read = pin!(async {
        let mut read = 0;
        while read < max_bytes {
            match poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
                Some(Ok(frame)) => read += frame.data_ref().map_or(0, |data| data.remaining() as u64),
                // Also if the client disconnects.
                Some(Err(_)) | None => return,
            }
        }
        // As long as the body is held, the server keeps the connection open, and the client can read the response.
        pending::<()>().await;
    });
    let is_read = poll_fn(|cx| match read.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending => timeout.as_mut().poll(cx).map(|()| false),
    });
    if !is_read.await {
        telemetry::body_unread();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        pin::Pin,
        sync::{Arc, Mutex},
        task::Context,
    };

    use bytes::Bytes;
    use http::Request;
    use http_body::Frame;

    use super::*;

    /// Counts its frames, and the bodies that have not been dropped.
    struct Upload {
        frames: u64,
        read: Arc<Mutex<u64>>,
    }

    impl Body for Upload {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.frames == 0 {
                return Poll::Pending;
            }
            self.frames -= 1;
            *self.read.lock().unwrap() += 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 1024])))))
        }
    }

    #[derive(Default)]
    struct Client {
        read: Arc<Mutex<u64>>,
        response: HeaderMap,
    }

    impl Client {
        fn uploads(&mut self, settings: LingeringClose, head: http::request::Builder, frames: u64) {
            let read = Arc::clone(&self.read);
            let (head, body) = head.body(Upload { frames, read }).unwrap().into_parts();
            settings.discard(&head, body, &mut self.response);
        }

        fn is_held(&self) -> bool {
            Arc::strong_count(&self.read) > 1
        }

        fn is_closed(&self) -> bool {
            self.response.contains_key("connection")
        }

        fn frames_read(&self) -> u64 {
            *self.read.lock().unwrap()
        }
    }

    fn settings() -> LingeringClose {
        LingeringClose {
            discarded: Box::leak(Box::default()),
            ..LingeringClose::new().max_bytes(4096)
        }
    }

    fn post() -> http::request::Builder {
        Request::post("/")
    }

    #[allow(clippy::disallowed_methods, reason = "the time is virtual")]
    async fn pass(time: Duration) {
        tokio::time::sleep(time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_read_up_to_the_bound_and_held_until_the_time_has_passed() {
        for (frames, read) in [(2, 2), (4, 4), (9, 4)] {
            let mut client = Client::default();
            client.uploads(settings(), post(), frames);
            pass(Duration::from_millis(1_999)).await;
            assert_eq!((client.frames_read(), client.is_held()), (read, true));
            pass(Duration::from_millis(2)).await;
            assert!(!client.is_held() && !client.is_closed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_announced_length_above_the_bound_closes_the_connection_after_the_response() {
        for (length, is_closed) in [("4096", false), ("4097", true)] {
            let mut client = Client::default();
            client.uploads(settings(), post().header("content-length", length), 1);
            assert_eq!(client.is_closed(), is_closed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_the_client_has_announced_only_is_not_read() {
        let mut client = Client::default();
        client.uploads(settings(), post().header("expect", "100-continue"), 1);
        pass(Duration::from_millis(1)).await;
        assert_eq!(
            (client.frames_read(), client.is_held(), client.is_closed()),
            (0, false, true)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_http_2_is_dropped_at_once() {
        let mut client = Client::default();
        client.uploads(settings(), post().version(Version::HTTP_2), 1);
        assert!(!client.is_held() && !client.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_above_the_maximum_are_dropped_until_others_end() {
        let settings = settings().max_bodies(2);
        let mut clients: [Client; 3] = Default::default();
        for client in &mut clients {
            client.uploads(settings, post(), 1);
        }
        assert_eq!(
            [0, 1, 2].map(|number: usize| clients[number].is_held()),
            [true, true, false]
        );
        assert_eq!(
            [0, 1, 2].map(|number: usize| clients[number].is_closed()),
            [false, false, true]
        );
        pass(Duration::from_millis(2_001)).await;
        clients[2].uploads(settings, post(), 1);
        assert!(clients[2].is_held() && !clients[0].is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn each_bound_of_zero_turns_it_off() {
        let settings = settings();
        for settings in [
            settings.max_bytes(0),
            settings.max_time(Duration::ZERO),
            settings.max_bodies(0),
        ] {
            let mut client = Client::default();
            client.uploads(settings, post(), 1);
            assert!(!client.is_held() && !client.is_closed());
        }
    }

    #[test]
    fn a_runtime_without_timers_drops_the_body() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut client = Client::default();
            client.uploads(settings(), post(), 1);
            while client.is_held() {
                tokio::task::yield_now().await;
            }
            assert_eq!(client.frames_read(), 0);
        });
    }

    #[test]
    fn a_time_above_a_minute_is_rejected() {
        let error = LingeringClose::new()
            .max_time(Duration::from_secs(61))
            .check()
            .unwrap_err();
        assert_eq!(error.to_string(), "lingering close: max_time 61s is outside 0ns..=60s");
    }
}
