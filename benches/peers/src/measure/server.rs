//! The Redis server's own account of what it has done.

use test_kit::RedisServer;

/// Counters of the server: the values of one reading, or the differences between two.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Processor time, the kernel's part for the network included.
    pub cpu_seconds: f64,
    /// Commands, those in scripts and transactions included.
    pub commands: f64,
    /// The reads from connections. With one request in flight at a time, these are its round trips.
    pub reads: f64,
    /// Bytes, without what connections need.
    pub memory: f64,
}

impl Counters {
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            commands: self.commands - before.commands,
            reads: self.reads - before.reads,
            memory: self.memory - before.memory,
        }
    }
}

#[derive(Debug)]
pub struct Server(RedisServer);

impl Server {
    pub fn new(server: RedisServer) -> Self {
        Self(server)
    }

    pub fn url(&self) -> String {
        self.0.url()
    }

    pub fn flush(&self) {
        assert_eq!(self.0.command(&["FLUSHALL"]), "OK");
    }

    /// The number of live keys and of those not yet removed.
    pub fn keys(&self) -> f64 {
        self.0.command(&["DBSIZE"]).parse().expect("a number")
    }

    /// The longest remaining life of a key, in seconds.
    pub fn longest_life(&self) -> f64 {
        let keys = self.0.command(&["KEYS", "*"]);
        let lives = keys.lines().map(|key| self.0.command(&["PTTL", key]));
        let longest = lives.map(|life| life.parse::<f64>().expect("a number") / 1_000.0);
        longest.fold(0.0, f64::max)
    }

    pub fn counters(&self) -> Counters {
        let info = self.0.command(&["INFO", "all"]);
        let field = |name: &str| {
            let value = info
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
            value.unwrap_or_else(|| panic!("INFO has no number {name}"))
        };
        let calls = |line: &str| -> Option<f64> {
            let (name, counts) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            // Only these looks at the server are not a limiter's.
            let is_own = ["info", "flushall"].contains(&name);
            counts.split(',').next()?.parse().ok().filter(|_| !is_own)
        };
        Counters {
            cpu_seconds: field("used_cpu_user") + field("used_cpu_sys"),
            commands: info.lines().filter_map(calls).sum(),
            reads: field("total_reads_processed"),
            memory: field("used_memory") - field("mem_clients_normal"),
        }
    }
}
