//! A connection that all requests share, and what they have seen of it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use ::redis::{Cmd, ErrorKind, RedisError, Value, aio::MultiplexedConnection};

use crate::{
    clock::{Clock, Timestamp},
    error::{StoreError, StoreErrorKind},
};

/// A connection that many requests use at the same time, each waiting for its own reply.
#[derive(Clone)]
pub(super) struct SharedConnection {
    connection: MultiplexedConnection,
    /// Whether each command is preceded by `ASKING`.
    is_asking: bool,
    health: Arc<Health>,
}

/// Connections that are given up together: behind the same name there may be another server by now, and no connection
/// to the old one is to be believed.
#[derive(Clone, Default)]
pub(super) struct Generation(Arc<AtomicU64>);

/// What the users of one connection have seen of it.
#[derive(Default)]
struct Health {
    is_broken: AtomicBool,
    missed: AtomicU32,
    opened: Timestamp,
    /// Those that it is given up with, and how many generations there were before.
    generation: Option<(Generation, u64)>,
}

impl Generation {
    /// The one that a connection belongs to whose opening begins now.
    pub(super) fn current(&self) -> (Self, u64) {
        (self.clone(), self.0.load(Ordering::Relaxed))
    }
}

impl Health {
    /// This many calls in a row without a reply, and a connection is not believed in any more: bytes may vanish on the
    /// way without the connection being closed.
    const MISSES: u32 = 3;

    /// A connection that is younger leads to where a new one would lead, unless somebody is asked for the way each time.
    const YOUNG_MICROS: u64 = 500_000;

    fn is_worth_keeping(&self) -> bool {
        self.generation.is_none() && Clock::system().now().micros_since(self.opened) < Self::YOUNG_MICROS
    }

    fn answered(&self) {
        if self.missed.load(Ordering::Relaxed) != 0 {
            self.missed.store(0, Ordering::Relaxed);
        }
    }

    fn missed(&self) {
        if self.missed.fetch_add(1, Ordering::Relaxed) + 1 >= Self::MISSES {
            self.broken();
        }
    }

    fn broken(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
        if let Some((Generation(count), own)) = &self.generation {
            // The first of a generation ends it; what is newer has nothing to do with it.
            let _ = count.compare_exchange(*own, own + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn is_broken(&self) -> bool {
        let is_over = |(Generation(count), own): &(Generation, u64)| count.load(Ordering::Relaxed) != *own;
        self.is_broken.load(Ordering::Relaxed) || self.generation.as_ref().is_some_and(is_over)
    }
}

/// Whoever gives a call up after less than this was in a hurry, which says nothing about the server.
pub(super) const IMPATIENT_MICROS: u64 = 1_000;

/// Counts a call that its caller gave up.
struct InFlight<'a> {
    health: &'a Health,
    since: Timestamp,
    is_answered: bool,
}

impl InFlight<'_> {
    fn answered(mut self) {
        self.is_answered = true;
        self.health.answered();
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.is_answered && Clock::system().now().micros_since(self.since) >= IMPATIENT_MICROS {
            self.health.missed();
        }
    }
}

impl SharedConnection {
    pub(super) fn new(connection: MultiplexedConnection, generation: Option<(Generation, u64)>) -> Self {
        Self {
            connection,
            is_asking: false,
            health: Arc::new(Health {
                opened: Clock::system().now(),
                generation,
                ..Health::default()
            }),
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.health.is_broken()
    }

    /// The same connection for calls about a slot that is being moved to this node, which has sent nobody for it yet: it
    /// decides about what has arrived already, and about what is new.
    pub(super) fn asking(self) -> Self {
        Self {
            is_asking: true,
            ..self
        }
    }

    /// Gives the connection up because a reply on it was not that of its call: bytes were lost, and all further replies may
    /// be others', too.
    pub(super) fn mismatched(&self) -> RedisError {
        self.health.broken();
        (ErrorKind::Parse, "a reply was not that of its call").into()
    }

    /// Sends a command and waits for its reply; marks the connection if that shows it to be broken.
    pub(super) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let in_flight = InFlight {
            health: &self.health,
            since: Clock::system().now(),
            is_answered: false,
        };
        let reply = if self.is_asking {
            send_after_asking(&mut self.connection, command).await
        } else {
            self.connection.send_packed_command(command).await
        };
        let reply = reply.and_then(Value::extract_error);
        in_flight.answered();
        if let Err(error) = &reply {
            // A server that has become a replica keeps its connections, and none of them is of use any more.
            // Behind the same name there may be a primary soon, but not for each request that is answered so.
            let is_replica = code(error) == Some("READONLY") && !self.health.is_worth_keeping();
            if is_replica || error.is_unrecoverable_error() || error.is_io_error() {
                self.health.broken();
            }
        }
        reply
    }
}

/// `ASKING` is about the next command only, so that both are written at once: no other call may come in between.
async fn send_after_asking(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    let mut both = ::redis::pipe();
    both.cmd("ASKING").add_command(command.clone());
    let mut replies = connection.send_packed_commands(&both, 0, 2).await?;
    replies
        .pop()
        .ok_or_else(|| (ErrorKind::Parse, "a reply is missing").into())
}

/// What an error of the `redis` crate means for the next call.
pub(super) fn store_error(error: RedisError) -> StoreError {
    let kind = match (error.kind(), code(&error)) {
        (ErrorKind::Io | ErrorKind::AuthenticationFailed, _) => StoreErrorKind::Unreachable,
        (
            _,
            Some(
                "ASK" | "BUSY" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "MISCONF" | "MOVED" | "NOREPLICAS" | "OOM"
                | "READONLY" | "TRYAGAIN",
            ),
        ) => StoreErrorKind::Unavailable,
        _ if error.is_unrecoverable_error() => StoreErrorKind::Unreachable,
        _ => StoreErrorKind::Rejected,
    };
    StoreError::new(kind, error.to_string()).with_source(error)
}

/// The code of a server's error. Before Redis 7, what a command inside a script was answered comes wrapped:
/// `ERR Error running script (…): @user_script:106: @user_script: 106: -OOM command not allowed …`.
pub(super) fn code(error: &RedisError) -> Option<&str> {
    let inside_script = error
        .detail()
        .filter(|detail| detail.contains("@user_script"))
        .and_then(|detail| detail.rsplit_once(": -"))
        .and_then(|(_, raised)| raised.split(' ').next());
    inside_script.or_else(|| error.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(code: &str, detail: &str) -> StoreErrorKind {
        store_error(::redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))).kind()
    }

    /// Found by running the tests on Redis 6.2.
    #[test]
    fn trouble_of_the_server_is_seen_through_the_words_of_its_script_engine() {
        let inside =
            |raised: &str| format!("Error running script (call to f_0): @user_script:106: @user_script: 106: {raised}");
        let rejected = "user_script:44: bad argument #2 to 'read' (data string too short)";
        assert_eq!(kind_of("OOM", "command not allowed"), StoreErrorKind::Unavailable);
        assert_eq!(
            kind_of("ERR", &inside("-OOM command not allowed")),
            StoreErrorKind::Unavailable
        );
        assert_eq!(
            kind_of("ERR", &inside("-READONLY You can't write")),
            StoreErrorKind::Unavailable
        );
        assert_eq!(kind_of("ERR", &inside(rejected)), StoreErrorKind::Rejected);
        assert_eq!(kind_of("ERR", "unknown command"), StoreErrorKind::Rejected);
        assert_eq!(
            kind_of("NOPERM", "this user has no permissions"),
            StoreErrorKind::Rejected
        );
    }
}
