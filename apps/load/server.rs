//! The Redis under test: its statistics, and an optional server started for the test.

use std::{error::Error, fs, process, time::Duration};

use redis::{Client, Connection, RedisResult};
use test_kit::RedisServer;

pub(crate) struct Server {
    /// Killed on drop.
    own: Option<RedisServer>,
    url: String,
    key_prefix: String,
}

/// The default key prefix of the store.
const USUAL_PREFIX: &str = "quota:";

impl Server {
    /// Uses the server at the URL, or starts a new one.
    pub(crate) fn new(url: Option<&str>) -> Self {
        let own = url.is_none().then(RedisServer::start);
        let started = own.as_ref().map(RedisServer::url);
        Self {
            url: started.as_deref().or(url).unwrap_or_default().to_owned(),
            // Unique in an existing Redis, because all keys with this prefix are removed at the end.
            key_prefix: match own {
                Some(_) => USUAL_PREFIX.to_owned(),
                None => format!("tower-quota-load-{}:", process::id()),
            },
            own,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The server started for the test, if any.
    pub(crate) fn own(&self) -> Option<&RedisServer> {
        self.own.as_ref()
    }

    pub(crate) fn key_prefix(&self) -> &str {
        &self.key_prefix
    }

    /// The additional bytes per key compared to production.
    pub(crate) fn extra_key_bytes(&self) -> usize {
        self.key_prefix.len() - USUAL_PREFIX.len()
    }

    fn connect(&self) -> RedisResult<Connection> {
        let timeout = Duration::from_secs(10);
        let connection = Client::open(self.url())?.get_connection_with_timeout(timeout)?;
        connection.set_read_timeout(Some(timeout))?;
        Ok(connection)
    }

    pub(crate) fn figures(&self) -> Result<Figures, Box<dyn Error>> {
        let mut connection = self.connect()?;
        let info: String = redis::cmd("INFO").arg("all").query(&mut connection)?;
        let keys = redis::cmd("DBSIZE").query(&mut connection)?;
        Ok(Figures::read(&info, keys))
    }

    /// Returns the mean `MEMORY USAGE` of a sample of keys, and the size of the sample.
    pub(crate) fn bytes_per_key(&self) -> Result<(f64, usize), Box<dyn Error>> {
        let mut connection = self.connect()?;
        let keys: Vec<Vec<u8>> = self.keys(&mut connection)?.take(500).collect::<RedisResult<_>>()?;
        let (mut sizes, mut found) = (0, 0);
        for key in keys {
            let size: Option<u64> = redis::cmd("MEMORY").arg("USAGE").arg(key).query(&mut connection)?;
            // The key may have expired.
            sizes += size.unwrap_or(0);
            found += usize::from(size.is_some());
        }
        Ok((sizes as f64 / found.max(1) as f64, found))
    }

    /// Removes the keys of the test from an existing Redis.
    pub(crate) fn clean_up(&self) -> Result<(), Box<dyn Error>> {
        if self.own.is_some() {
            return Ok(());
        }
        let (mut reading, mut writing) = (self.connect()?, self.connect()?);
        let mut keys = self.keys(&mut reading)?;
        loop {
            let some: Vec<Vec<u8>> = keys.by_ref().take(1_000).collect::<RedisResult<_>>()?;
            if some.is_empty() {
                return Ok(());
            }
            redis::cmd("UNLINK").arg(some).exec(&mut writing)?;
        }
    }

    fn keys<'a>(&self, connection: &'a mut Connection) -> RedisResult<redis::Iter<'a, Vec<u8>>> {
        let mut scan = redis::cmd("SCAN");
        scan.cursor_arg(0).arg("MATCH").arg(format!("{}*", self.key_prefix));
        scan.arg("COUNT").arg(1_000).clone().iter(connection)
    }
}

/// The load of a server in a period.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) processor_seconds: f64,
    pub(crate) commands: u64,
    pub(crate) script_calls: u64,
    pub(crate) script_micros: u64,
}

impl Spent {
    pub(crate) fn add(&mut self, before: &Figures, after: &Figures) {
        self.processor_seconds += after.processor_seconds - before.processor_seconds;
        self.commands += after.commands.saturating_sub(before.commands);
        self.script_calls += after.script_calls.saturating_sub(before.script_calls);
        self.script_micros += after.script_micros.saturating_sub(before.script_micros);
    }
}

/// The statistics of a server since its start.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) version: String,
    /// CPU time.
    pub(crate) processor_seconds: f64,
    /// Includes commands in scripts.
    pub(crate) commands: u64,
    pub(crate) script_calls: u64,
    pub(crate) script_micros: u64,
    pub(crate) used_memory: u64,
    /// In bytes.
    pub(crate) resident_memory: u64,
    pub(crate) keys: u64,
}

impl Figures {
    fn read(info: &str, keys: u64) -> Self {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = |name| {
            field(name)
                .and_then(|value| value.trim().parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        // `calls=3,usec=72,usec_per_call=24.00`
        let of_scripts = |name: &str| {
            let all = ["cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall"].map(|command| {
                let mut pairs = field(command)
                    .unwrap_or("")
                    .split(',')
                    .filter_map(|pair| pair.split_once('='));
                let value = pairs.find_map(|(own, value)| (own == name).then_some(value));
                value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
            });
            all.iter().sum()
        };
        let version = field("valkey_version").map(|version| format!("Valkey {}", version.trim()));
        Self {
            version: version.unwrap_or_else(|| format!("Redis {}", field("redis_version").unwrap_or("").trim())),
            processor_seconds: number("used_cpu_user") + number("used_cpu_sys"),
            commands: number("total_commands_processed") as u64,
            script_calls: of_scripts("calls"),
            script_micros: of_scripts("usec"),
            used_memory: number("used_memory") as u64,
            resident_memory: number("used_memory_rss") as u64,
            keys,
        }
    }
}

/// Returns the CPU time of this process, or `None` if the system does not report it.
pub(crate) fn own_processor_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, in parentheses, may contain anything. Linux reports times in hundredths of a second.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut time = || fields.next()?.parse::<f64>().ok();
    Some((time()? + time()?) / 100.0)
}
