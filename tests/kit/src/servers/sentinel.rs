use std::{thread, time::Duration};

use super::{RedisServer, Setup, cluster::eventually};

/// A primary, a replica of it, and three sentinels that watch them, all of which are killed when this is dropped or the
/// process ends, however it ends.
#[derive(Debug)]
pub struct Sentinels {
    /// The first is the primary at the start.
    pub servers: [RedisServer; 2],
    pub sentinels: [RedisServer; 3],
}

impl Sentinels {
    /// The name of the primary for the sentinels.
    pub const SERVICE: &'static str = "limits";

    /// Starts them all, and waits until the sentinels know of each other and of the replica.
    pub fn start() -> Self {
        let servers = [start_server(), start_server()];
        let port = servers[0].port().to_string();
        servers[1].command(&["REPLICAOF", "127.0.0.1", &port]);
        eventually("the replica follows", || {
            servers[1]
                .command(&["INFO", "replication"])
                .contains("master_link_status:up")
        });
        let starting = [(); 3].map(|()| {
            let port = port.clone();
            thread::spawn(move || start_sentinel(&port))
        });
        let sentinels = starting.map(|sentinel| sentinel.join().unwrap());
        let all = Self { servers, sentinels };
        eventually("the sentinels know of each other and of the replica", || {
            let mut known = all
                .sentinels
                .iter()
                .map(|sentinel| sentinel.command(&["INFO", "sentinel"]));
            known.all(|known| known.contains("status=ok") && known.contains("slaves=1,sentinels=3"))
        });
        all
    }

    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// The index of the primary, according to a running sentinel.
    pub fn primary(&self) -> usize {
        let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::SERVICE];
        let answer = self
            .sentinels
            .iter()
            .find_map(|sentinel| sentinel.try_command(&command, Duration::from_secs(1)).ok())
            .expect("a sentinel answers");
        let is_named = |server: &RedisServer| answer.lines().nth(1) == Some(&server.port().to_string());
        self.servers.iter().position(is_named).expect("it is one of the two")
    }

    /// Waits until the sentinels have made this server the primary, and it knows that.
    pub fn wait_for_primary(&self, server: usize) {
        eventually("the sentinels have another primary", || {
            self.primary() == server && self.servers[server].has_role("master")
        });
    }
}

fn start_server() -> RedisServer {
    let arguments = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
    RedisServer::start_with(Setup {
        arguments: arguments.map(str::to_owned).to_vec(),
        ..Setup::default()
    })
}

fn start_sentinel(port: &str) -> RedisServer {
    let service = Sentinels::SERVICE;
    let configuration = format!(
        "sentinel monitor {service} 127.0.0.1 {port} 2\n\
         sentinel down-after-milliseconds {service} 500\n\
         sentinel failover-timeout {service} 2000\n"
    );
    RedisServer::start_with(Setup {
        file: Some(("sentinel.conf", configuration)),
        is_sentinel: true,
        ..Setup::default()
    })
}
