use std::{
    io,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    task::yield_now,
};

use super::{process_time::PROCESS_TIME, stream::Stream};
use crate::{
    clock::{Clock, Timestamp},
    sync::{join::all_of, mutex::Mutex},
};

type OnEnd = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(crate) struct Wire {
    has_ended: AtomicBool,
    /// May include bytes that were not sent.
    written: AtomicU64,
    pub(super) unanswered: AtomicU32,
    /// The [time](PROCESS_TIME) of the last read.
    heard_at: AtomicU64,
    /// The [time](PROCESS_TIME) of the first write since then, or 0.
    asked_at: AtomicU64,
    on_end: OnceLock<OnEnd>,
    reader: Mutex<Option<Waker>>,
    is_awaited: AtomicBool,
    caught_up: Notify,
    ended: Notify,
}

impl Wire {
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    pub(crate) async fn ended(&self) {
        let ended = self.ended.notified();
        if !self.has_ended() {
            ended.await;
        }
    }

    /// `on_end` is called at once if the connection has ended; possibly twice.
    pub(crate) fn when_it_ends(&self, on_end: OnEnd) {
        let _ = self.on_end.set(on_end);
        if self.has_ended()
            && let Some(on_end) = self.on_end.get()
        {
            on_end();
        }
    }

    pub(crate) async fn catch_up(&self) {
        let caught_up = self.caught_up.notified();
        self.is_awaited.store(true, Ordering::SeqCst);
        if self.has_ended() {
            return;
        }
        let reader = self.reader.lock().take();
        if let Some(reader) = reader {
            reader.wake();
        }
        caught_up.await;
    }

    pub(crate) fn end(&self) {
        if !self.has_ended.swap(true, Ordering::SeqCst) {
            self.caught_up.notify_waiters();
            self.ended.notify_waiters();
            if let Some(on_end) = self.on_end.get() {
                on_end();
            }
        }
    }

    fn has_read(&self) {
        self.heard_at.store(PROCESS_TIME.micros(), Ordering::Relaxed);
        self.asked_at.store(0, Ordering::Relaxed);
    }

    fn has_written(&self, bytes: usize) {
        if self.asked_at.load(Ordering::Relaxed) == 0 {
            self.asked_at.store(PROCESS_TIME.micros(), Ordering::Relaxed);
        }
        self.written.fetch_add(bytes as u64, Ordering::Release);
    }

    fn silence(&self) -> Duration {
        let [heard, asked] = [&self.heard_at, &self.asked_at].map(|at| at.load(Ordering::Relaxed));
        Duration::from_micros(PROCESS_TIME.micros().saturating_sub(heard.max(asked)))
    }
}

/// Tasks between a decision and the socket: the call, and the writer of its connection.
const HANDS: usize = 2;

/// The longest silence of a connection with unanswered calls, or else the time since the last read, without the time
/// for which this process did not read or write.
pub(crate) async fn silence(wires: Vec<Arc<Wire>>) -> Option<Duration> {
    PROCESS_TIME.keep_running();
    for _ in 0..HANDS {
        yield_now().await;
    }
    all_of(wires.iter().map(|wire| wire.catch_up())).await;
    let open = || wires.iter().filter(|wire| !wire.has_ended());
    let unanswered = open().filter(|wire| wire.unanswered.load(Ordering::Relaxed) > 0);
    let longest = unanswered.map(|wire| wire.silence()).max();
    longest.or_else(|| open().map(|wire| wire.silence()).min())
}

pub(crate) struct Watched {
    stream: Box<dyn Stream>,
    wire: Arc<Wire>,
    last_used: Timestamp,
}

impl Watched {
    /// Connections idle for longer ask the kernel before a write whether the peer has closed them.
    const IDLE_MICROS: u64 = 1_000;

    pub(crate) fn new(stream: Box<dyn Stream>) -> (Self, Arc<Wire>) {
        let wire = Arc::new(Wire::default());
        let watched = Self {
            stream,
            wire: Arc::clone(&wire),
            last_used: Clock::system().now(),
        };
        (watched, wire)
    }

    fn has_ended(&mut self) -> bool {
        let (now, before) = (Clock::system().now(), self.last_used);
        self.last_used = now;
        if now.micros_since(before) >= Self::IDLE_MICROS && self.stream.is_closed() {
            self.wire.end();
        }
        self.wire.has_ended()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.wire.end();
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let wire = &*this.wire;
        // The read may miss data that arrives during it.
        let is_awaited = wire.is_awaited.load(Ordering::SeqCst);
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buffer);
        match &result {
            Poll::Pending => {
                let mut reader = wire.reader.lock();
                if !reader.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    *reader = Some(cx.waker().clone());
                }
                drop(reader);
                if is_awaited {
                    wire.is_awaited.store(false, Ordering::SeqCst);
                    wire.caught_up.notify_waiters();
                } else if wire.is_awaited.load(Ordering::SeqCst) {
                    // A task has started to wait, but found no waker.
                    cx.waker().wake_by_ref();
                }
            }
            Poll::Ready(Ok(())) => {
                if buffer.filled().len() == before && buffer.remaining() > 0 {
                    wire.end();
                }
                this.last_used = Clock::system().now();
                wire.has_read();
            }
            Poll::Ready(Err(_)) => wire.end(),
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.has_ended() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let result = Pin::new(&mut this.stream).poll_write(cx, bytes);
        match &result {
            Poll::Ready(Ok(written)) => this.wire.has_written(*written),
            // TLS may have sent some of the bytes.
            Poll::Ready(Err(_)) => {
                this.wire.has_written(bytes.len());
                this.wire.end();
            }
            Poll::Pending => {}
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
