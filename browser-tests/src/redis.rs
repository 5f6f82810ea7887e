//! A Redis server of a test's own.

use std::{
    env,
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// A running Redis server on a free port, without a file. It is killed when this is dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: u16,
}

impl RedisServer {
    /// Starts the server `$REDIS_SERVER`, by default `redis-server`, and waits until it accepts connections.
    ///
    /// # Panics
    ///
    /// If there is no such server, or it does not start.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let process = run(port);
        Self { process, port }
    }

    /// The URL for a store.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Ends the server at once, as a crash does.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again on the same port, with nothing in it.
    pub fn restart(&mut self) {
        self.process = run(self.port);
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(port: u16) -> Child {
    let program = env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let mut command = Command::new(&program);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut process = process.unwrap_or_else(|error| panic!("{program}: {error}"));
    for _ in 0..500 {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return process;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let _ = process.kill();
    let _ = process.wait();
    panic!("{program} does not accept connections on port {port}");
}
