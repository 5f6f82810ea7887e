use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
};

/// What becomes of the bytes and connections that reach a [`Proxy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything is passed on.
    Forward,
    /// Connections are accepted and stay open, nothing is passed on in either direction. What is swallowed is lost.
    Swallow,
    /// New connections are closed as soon as they are accepted. Those that are open are forwarded.
    Refuse,
}

/// A way to a server on this machine that can be disturbed. It works while the runtime that started it does.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicUsize>,
    cut: mpsc::UnboundedSender<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and forwards to `target_port`.
    pub async fn start(target_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, mode_receiver) = watch::channel(Mode::Forward);
        let (cut, cut_receiver) = mpsc::unbounded_channel();
        let accepted = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(serve(
            listener,
            target_port,
            mode_receiver,
            cut_receiver,
            Arc::clone(&accepted),
        ));
        Self {
            port,
            mode,
            accepted,
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

    /// Closes all connections that are open and leaves the mode as it is. They are closed when this returns.
    pub async fn cut(&self) {
        let (done, wait) = oneshot::channel();
        self.cut.send(done).expect("the proxy runs");
        wait.await.expect("the proxy runs");
    }

    /// How many connections were accepted so far, refused ones included.
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    target_port: u16,
    mode: watch::Receiver<Mode>,
    mut cut: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    accepted: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((client, _)) = listener.accept() => {
                accepted.fetch_add(1, Ordering::SeqCst);
                if *mode.borrow() != Mode::Refuse {
                    connections.spawn(relay(client, target_port, mode.clone()));
                }
            }
            Some(done) = cut.recv() => {
                connections.shutdown().await;
                let _ = done.send(());
            }
            else => return,
        }
    }
}

/// Ends, and so closes both connections, as soon as one of them ends.
async fn relay(mut client: TcpStream, target_port: u16, mode: watch::Receiver<Mode>) {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target_port)).await;
    // While everything is swallowed the client must not learn that the server is gone.
    let server_ended = {
        let mut mode = mode.clone();
        async move { _ = mode.wait_for(|mode| *mode != Mode::Swallow).await }
    };
    let Ok(mut server) = server else {
        return server_ended.await;
    };
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let down = async {
        copy(&mut from_server, &mut to_client, &mode).await;
        server_ended.await;
    };
    tokio::select! {
        () = copy(&mut from_client, &mut to_server, &mode) => {}
        () = down => {}
    }
}

async fn copy(from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>, mode: &watch::Receiver<Mode>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let swallow = *mode.borrow() == Mode::Swallow;
        if !swallow && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
