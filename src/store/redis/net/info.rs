//! Polls the memory and evictions of a server about once a minute, on a separate connection.

use std::{
    sync::{Weak, atomic::Ordering},
    time::Duration,
};

use ::redis::{RedisError, cmd, from_redis_value};
use tokio::{runtime::Handle, task::AbortHandle, time::timeout};

use super::{
    connection::{SharedConnection, code},
    pool::{Manager, PoolState},
};
use crate::{
    breaker::jittered,
    telemetry::{ServerInfo, ServerTelemetry},
};

/// The maximum pause. Half of it is random, so that instances that were started together do not poll together.
const PAUSE: Duration = Duration::from_secs(80);

/// The timeout of a poll. Long, because the server may be busy with decisions.
const PATIENCE: Duration = Duration::from_secs(5);

impl PoolState {
    /// Starts the polling task, unless it is running.
    pub(super) fn poll_info(&self) {
        let manager = &self.manager;
        if !manager.opener.polls_info || self.refuses_info.load(Ordering::Relaxed) {
            return;
        }
        let mut task = self.info.lock();
        if let (true, Ok(runtime)) = (
            task.as_ref().is_none_or(AbortHandle::is_finished),
            Handle::try_current(),
        ) {
            let telemetry = ServerTelemetry::new(manager.endpoint.to_string());
            *task = Some(runtime.spawn(poll(manager.state.clone(), telemetry)).abort_handle());
        }
    }
}

impl Manager {
    async fn server_info(&self) -> Result<ServerInfo, RedisError> {
        ask(&mut self.open().await?).await
    }
}

/// Ends when the pool is dropped or the server does not permit the command.
#[allow(clippy::disallowed_methods, reason = "pauses between polls delay no request")]
async fn poll(state: Weak<PoolState>, telemetry: ServerTelemetry) {
    loop {
        let Some(pool) = state.upgrade() else { return };
        let manager = pool.manager.clone();
        drop(pool);
        match timeout(PATIENCE, manager.server_info()).await {
            Ok(Ok(info)) => telemetry.polled(info),
            Ok(Err(error)) if is_refusal(&error) => {
                if let Some(pool) = state.upgrade() {
                    pool.refuses_info.store(true, Ordering::Relaxed);
                }
                return telemetry.refused(&error);
            }
            // The next poll may succeed. Decisions report an unresponsive server.
            Ok(Err(_)) | Err(_) => {}
        }
        drop(manager);
        tokio::time::sleep(jittered(PAUSE)).await;
    }
}

/// The user has no permission, or a proxy does not support the command.
fn is_refusal(error: &RedisError) -> bool {
    !error.is_io_error() && matches!(code(error), Some("NOPERM" | "ERR"))
}

/// Redis before version 7 accepts only one section per call.
async fn ask(connection: &mut SharedConnection) -> Result<ServerInfo, RedisError> {
    let mut text = String::new();
    for section in ["memory", "stats"] {
        let reply = connection.send(cmd("INFO").arg(section)).await?;
        text += &from_redis_value::<String>(reply)?;
    }
    Ok(parse(&text))
}

/// Settings and state from `INFO`. Missing values are empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerFacts {
    pub(crate) version: String,
    /// For compatible servers, the Redis version that they report.
    pub(crate) major_version: Option<u32>,
    pub(crate) role: String,
    pub(crate) is_cluster_node: bool,
    /// 0 means no limit.
    pub(crate) memory_limit: u64,
    pub(crate) eviction_policy: String,
}

impl ServerFacts {
    pub(crate) fn parse(text: &str) -> Self {
        let version = value(text, "redis_version");
        Self {
            version: version.to_owned(),
            major_version: version.split('.').next().and_then(|major| major.parse().ok()),
            role: value(text, "role").to_owned(),
            is_cluster_node: value(text, "redis_mode") == "cluster",
            memory_limit: value(text, "maxmemory").parse().unwrap_or(0),
            eviction_policy: value(text, "maxmemory_policy").to_owned(),
        }
    }
}

fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next().unwrap_or_default().trim()
}

/// Missing numbers are 0.
fn parse(text: &str) -> ServerInfo {
    let value = |name: &str| value(text, name);
    let number = |name: &str| value(name).parse().unwrap_or(0);
    ServerInfo {
        used: number("used_memory"),
        limit: number("maxmemory"),
        evicted: number("evicted_keys"),
        evicts: !matches!(value("maxmemory_policy"), "noeviction" | ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_server_are_read_and_garbage_counts_as_none() {
        let text = "# Memory\r\nused_memory:1024\r\nused_memory_human:1.00K\r\nmaxmemory:2048\r\n\
                    maxmemory_policy:allkeys-lru\r\n# Stats\r\nevicted_keys:7\r\n";
        let info = parse(text);
        assert_eq!(
            (info.used, info.limit, info.evicted, info.evicts),
            (1024, 2048, 7, true)
        );
        for garbage in [
            "",
            "used_memory",
            "used_memory:-1\nmaxmemory:x\nmaxmemory_policy:",
            "\u{0}:\n::",
        ] {
            let info = parse(garbage);
            assert_eq!((info.used, info.limit, info.evicted, info.evicts), (0, 0, 0, false));
        }
    }
}
