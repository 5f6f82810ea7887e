use std::{
    hash::{BuildHasher, RandomState},
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
    time::sleep_until,
};

use crate::resp::read_reply;

/// The treatment of bytes and connections that reach a [`Proxy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything is passed on.
    Forward,
    /// Everything is passed on, in its order, this much later in each direction.
    Delay(Duration),
    /// Like `Delay`, with a random delay between these two for each piece, in each direction.
    Jitter(Duration, Duration),
    /// Connections are accepted and stay open, nothing is passed on in either direction. What is swallowed is lost.
    Swallow,
    /// Like `Swallow`, in one direction: the server receives everything, its clients receive nothing.
    SwallowReplies,
    /// Like `Swallow`, in the other direction: the server receives nothing.
    SwallowRequests,
    /// A connection is closed as soon as this many bytes of replies have been forwarded, usually in the middle of a
    /// reply.
    CutAfter(usize),
    /// New connections are closed as soon as they are accepted. Open connections are forwarded.
    Reject,
    /// Like `Reject`, with a reset instead of an orderly close.
    Reset,
}

/// What happens once to the next replies of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyFault {
    /// The first is lost.
    Drop,
    /// The first arrives twice.
    Double,
    /// The first and the second arrive in the other order.
    Swap,
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Requests,
    Replies,
}

impl Mode {
    fn swallows(self, way: Way) -> bool {
        match self {
            Self::Swallow => true,
            Self::SwallowReplies => way == Way::Replies,
            Self::SwallowRequests => way == Way::Requests,
            _ => false,
        }
    }

    /// Returns how many of the `next` bytes are forwarded after `passed` bytes.
    fn allows(self, way: Way, passed: usize, next: usize) -> usize {
        match self {
            Self::CutAfter(bytes) if way == Way::Replies => bytes.saturating_sub(passed).min(next),
            _ => next,
        }
    }
}

/// A way to a server on this machine that can be disturbed. The proxy works while the runtime that started it does.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    /// The number of accepted connections that pass nothing on.
    silent: watch::Sender<usize>,
    shared: Arc<Shared>,
    cut: mpsc::UnboundedSender<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// The state that a proxy shares with its connections.
#[derive(Debug, Default)]
struct Shared {
    accepted: Mutex<Vec<Instant>>,
    ends_with_reset: AtomicBool,
    /// The number of connections left to reject.
    rejecting: AtomicUsize,
    /// The bytes of replies left to drop.
    losing: AtomicUsize,
    fault: Mutex<Option<ReplyFault>>,
}

impl Proxy {
    /// Listens on a free port and forwards to `target_port`.
    pub async fn start(target_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, mode_receiver) = watch::channel(Mode::Forward);
        let (cut, cut_receiver) = mpsc::unbounded_channel();
        let (silent, silent_receiver) = watch::channel(0);
        let shared = Arc::<Shared>::default();
        let serving = Serving {
            target_port,
            mode: mode_receiver,
            silent: silent_receiver,
            shared: Arc::clone(&shared),
        };
        let task = tokio::spawn(serving.run(listener, cut_receiver));
        Self {
            port,
            mode,
            silent,
            shared,
            cut,
            task,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From now on; see [`Mode`] for what it means to connections that are open.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Closes the next `connections` connections as soon as they are accepted. The mode applies to later ones.
    pub fn reject_next(&self, connections: usize) {
        self.shared.rejecting.store(connections, Ordering::SeqCst);
    }

    /// Drops the next `bytes` bytes of replies, across all connections, and forwards what follows. With 0, stops
    /// dropping.
    pub fn lose_replies(&self, bytes: usize) {
        self.shared.losing.store(bytes, Ordering::SeqCst);
    }

    /// Disturbs the next replies with a value of a connection, once. The first is held back until the second arrives.
    /// The replies to the commands that set a connection up have no value.
    pub fn disturb_replies(&self, fault: ReplyFault) {
        *lock(&self.shared.fault) = Some(fault);
    }

    /// Returns `true` if replies are still to be disturbed.
    pub fn is_disturbing(&self) -> bool {
        lock(&self.shared.fault).is_some()
    }

    /// The open connections stay open and pass nothing on any more. New ones work.
    pub fn silence(&self) {
        self.silent.send_replace(self.connections());
    }

    /// Closes all open connections before it returns. The mode does not change.
    pub async fn cut(&self) {
        let (done, wait) = oneshot::channel();
        self.cut.send(done).expect("the proxy runs");
        wait.await.expect("the proxy runs");
    }

    /// Like [`Self::cut`], with a reset instead of an orderly close.
    pub async fn reset(&self) {
        self.shared.ends_with_reset.store(true, Ordering::SeqCst);
        self.cut().await;
        self.shared.ends_with_reset.store(false, Ordering::SeqCst);
    }

    /// The number of accepted connections, including rejected ones.
    pub fn connections(&self) -> usize {
        self.accepted().len()
    }

    /// When each connection was accepted.
    pub fn accepted(&self) -> Vec<Instant> {
        lock(&self.shared.accepted).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
struct Serving {
    target_port: u16,
    mode: watch::Receiver<Mode>,
    silent: watch::Receiver<usize>,
    shared: Arc<Shared>,
}

impl Serving {
    async fn run(self, listener: TcpListener, mut cut: mpsc::UnboundedReceiver<oneshot::Sender<()>>) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                Ok((client, _)) = listener.accept() => {
                    let number = {
                        let mut accepted = lock(&self.shared.accepted);
                        accepted.push(Instant::now());
                        accepted.len()
                    };
                    match *self.mode.borrow() {
                        Mode::Reject => {}
                        _ if take(&self.shared.rejecting, 1) > 0 => {}
                        Mode::Reset => client.set_zero_linger().unwrap(),
                        _ => _ = connections.spawn(self.clone().relay(client, number)),
                    }
                }
                Some(done) = cut.recv() => {
                    connections.shutdown().await;
                    let _ = done.send(());
                }
                Some(_) = connections.join_next() => {}
                else => return,
            }
        }
    }

    /// Ends, and so closes both connections, as soon as one of them ends.
    async fn relay(self, client: TcpStream, number: usize) {
        let mut client = Connection {
            stream: client,
            proxy: Arc::clone(&self.shared),
        };
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target_port)).await;
        // While replies are swallowed the client must not learn that the server is gone.
        let server_ended = {
            let mut mode = self.mode.clone();
            async move { _ = mode.wait_for(|mode| !mode.swallows(Way::Replies)).await }
        };
        let Ok(mut server) = server else {
            return server_ended.await;
        };
        client.stream.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let (from_client, to_client) = client.stream.split();
        let (from_server, to_server) = server.split();
        let down = async {
            copy(from_server, to_client, Way::Replies, &self.mode, &self.shared).await;
            server_ended.await;
        };
        let undisturbed = Shared::default();
        let relayed = async {
            tokio::select! {
                () = copy(from_client, to_server, Way::Requests, &self.mode, &undisturbed) => {}
                () = down => {}
            }
        };
        let mut silent = self.silent.clone();
        let is_silent = async move { _ = silent.wait_for(|silent| *silent >= number).await };
        tokio::select! {
            () = relayed => {}
            () = is_silent => std::future::pending().await,
        }
    }
}

/// A client's connection, and how it ends.
struct Connection {
    stream: TcpStream,
    proxy: Arc<Shared>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.proxy.ends_with_reset.load(Ordering::SeqCst) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

async fn copy(from: ReadHalf<'_>, to: WriteHalf<'_>, way: Way, mode: &watch::Receiver<Mode>, shared: &Shared) {
    let (queue, queued) = mpsc::channel(1_024);
    let read = async {
        read(from, queue, way, mode, shared).await;
        // Bytes in flight still arrive.
        std::future::pending().await
    };
    tokio::select! {
        () = read => {}
        () = write(queued, to) => {}
    }
}

async fn read(
    mut from: ReadHalf<'_>,
    queue: mpsc::Sender<(Option<Instant>, Vec<u8>)>,
    way: Way,
    mode: &watch::Receiver<Mode>,
    Shared { losing, fault, .. }: &Shared,
) {
    let mut passed = 0;
    let mut buffer = [0; 4096];
    let mut held = Vec::new();
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let has_value = matches!(buffer[0], b'*' | b'$');
        if !held.is_empty() || (has_value && lock(fault).is_some()) {
            held.extend_from_slice(&buffer[..length]);
            if let Some(bytes) = disturbed(&held, fault) {
                held.clear();
                if queue.send((None, bytes)).await.is_err() {
                    return;
                }
            }
            continue;
        }
        let mode = *mode.borrow();
        let lost = take(losing, length);
        buffer.copy_within(lost..length, 0);
        let length = length - lost;
        if length == 0 {
            continue;
        }
        if mode.swallows(way) {
            continue;
        }
        passed = if matches!(mode, Mode::CutAfter(_)) { passed } else { 0 };
        let allowed = mode.allows(way, passed, length);
        passed += allowed;
        let due = match mode {
            Mode::Delay(delay) => Some(Instant::now() + delay),
            Mode::Jitter(least, most) => Some(Instant::now() + between(least, most)),
            _ => None,
        };
        if queue.send((due, buffer[..allowed].to_vec())).await.is_err() || allowed < length {
            return;
        }
    }
}

/// Returns the bytes in the place of those that were received, or `None` before the second reply is complete.
fn disturbed(bytes: &[u8], fault: &Mutex<Option<ReplyFault>>) -> Option<Vec<u8>> {
    let (mut rest, mut first, mut second) = (bytes, Vec::new(), Vec::new());
    read_reply(&mut rest, &mut first).ok()?;
    read_reply(&mut rest, &mut second).ok()?;
    // Another connection may have had the fault in the meantime.
    let parts: &[&[u8]] = match lock(fault).take() {
        Some(ReplyFault::Drop) => &[&second, rest],
        Some(ReplyFault::Double) => &[&first, &first, &second, rest],
        Some(ReplyFault::Swap) => &[&second, &first, rest],
        None => &[bytes],
    };
    Some(parts.concat())
}

/// Subtracts up to `most` from `count`, and returns the amount subtracted.
fn take(count: &AtomicUsize, most: usize) -> usize {
    let less = |count: usize| Some(count.saturating_sub(most));
    let before = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    before.map_or(0, |count| count.min(most))
}

fn between(least: Duration, most: Duration) -> Duration {
    let chance = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
    least + most.saturating_sub(least).mul_f64(chance)
}

/// Ends when all is written or the other end does not take it.
async fn write(mut queued: mpsc::Receiver<(Option<Instant>, Vec<u8>)>, mut to: WriteHalf<'_>) {
    while let Some((due, bytes)) = queued.recv().await {
        if let Some(due) = due {
            sleep_until(due.into()).await;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
