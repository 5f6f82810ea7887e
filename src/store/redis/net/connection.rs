use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use ::redis::{Cmd, ErrorKind, RedisError, Value};

use super::{super::scripts::Script, generation::Generation, loading::Loading, opener::OpenConnection, wire::Wire};
use crate::{
    clock::{Clock, Timestamp},
    error::{StoreError, StoreErrorKind},
};

#[derive(Clone)]
pub(crate) struct SharedConnection {
    connection: OpenConnection,
    is_asking: bool,
    health: Arc<Health>,
}

pub(crate) type OnLoss = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(crate) struct Health {
    is_broken: AtomicBool,
    missed: AtomicU32,
    answers: AtomicU32,
    opened: Timestamp,
    generation: Option<Generation>,
    wire: Option<Arc<Wire>>,
    on_loss: OnceLock<OnLoss>,
    loading: [Loading; Script::COUNT],
}

impl Health {
    /// Packets may be lost without closing the connection.
    const MISSES: u32 = 3;

    /// A slow call counts like several short ones: some programs make only a few.
    const SILENT_MICROS: u64 = 250_000;

    /// A new connection would lead to the same server, unless sentinels report the address.
    const YOUNG_MICROS: u64 = 500_000;

    fn is_worth_keeping(&self) -> bool {
        self.generation.is_none() && Clock::system().now().micros_since(self.opened) < Self::YOUNG_MICROS
    }

    fn answered(&self) {
        // A lost increment is harmless because the value still changes.
        let answers = self.answers.load(Ordering::Relaxed);
        self.answers.store(answers.wrapping_add(1), Ordering::Relaxed);
        if self.missed.load(Ordering::Relaxed) != 0 {
            self.missed.store(0, Ordering::Relaxed);
        }
    }

    fn missed(&self, waited_micros: u64) {
        let misses = if waited_micros < Self::SILENT_MICROS {
            1
        } else {
            Self::MISSES
        };
        if self.missed.fetch_add(misses, Ordering::Relaxed) + misses >= Self::MISSES {
            self.broken();
        }
    }

    fn broken(&self) {
        if self.is_broken.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(generation) = &self.generation {
            generation.end();
        }
        if let Some(on_loss) = self.on_loss.get() {
            on_loss();
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed) || self.generation.as_ref().is_some_and(Generation::is_over)
    }
}

/// Calls cancelled sooner do not indicate the server's health.
pub(crate) const MIN_CANCEL_MICROS: u64 = 1_000;

pub(crate) enum Unanswered {
    Unsent(RedisError),
    Failed(RedisError),
}

impl From<Unanswered> for RedisError {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Unsent(error) | Unanswered::Failed(error) => error,
        }
    }
}

struct PendingReply<'a> {
    health: &'a Health,
    answers: u32,
    since: Timestamp,
    is_answered: bool,
}

impl<'a> PendingReply<'a> {
    fn new(health: &'a Health, since: Timestamp) -> Self {
        if let Some(wire) = &health.wire {
            wire.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        Self {
            health,
            answers: health.answers.load(Ordering::Relaxed),
            since,
            is_answered: false,
        }
    }

    fn answered(mut self) {
        self.is_answered = true;
        self.health.answered();
    }
}

impl Drop for PendingReply<'_> {
    fn drop(&mut self) {
        if let Some(wire) = &self.health.wire {
            wire.unanswered.fetch_sub(1, Ordering::Relaxed);
        }
        // If other calls received replies, the connection works.
        let has_answered_others = self.health.answers.load(Ordering::Relaxed) != self.answers;
        if self.is_answered || has_answered_others {
            return;
        }
        let waited = Clock::system().now().micros_since(self.since);
        if waited >= MIN_CANCEL_MICROS {
            self.health.missed(waited);
        }
    }
}

impl SharedConnection {
    pub(crate) fn new(connection: OpenConnection, generation: Option<Generation>) -> Self {
        let health = Health {
            opened: Clock::system().now(),
            generation,
            wire: connection.wire().cloned(),
            ..Health::default()
        };
        Self {
            connection,
            is_asking: false,
            health: Arc::new(health),
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.health.is_broken()
    }

    pub(crate) fn loading(&self, script: Script) -> &Loading {
        &self.health.loading[script as usize]
    }

    pub(crate) fn asking(mut self) -> Self {
        self.is_asking = true;
        self
    }

    pub(crate) fn replaced_by(&self, mut other: Self) -> Self {
        other.is_asking = self.is_asking;
        other
    }

    pub(crate) fn when_it_is_lost(&self, on_loss: OnLoss) {
        let _ = self.health.on_loss.set(on_loss);
        if let Some(wire) = &self.health.wire {
            let health = Arc::downgrade(&self.health);
            wire.when_it_ends(Box::new(move || {
                if let Some(health) = health.upgrade() {
                    health.broken();
                }
            }));
        }
    }

    pub(crate) fn wire(&self) -> Option<&Arc<Wire>> {
        self.health.wire.as_ref()
    }

    pub(crate) fn mismatched(&self) -> RedisError {
        self.health.broken();
        self.connection.end();
        (ErrorKind::Parse, "reply does not match its call").into()
    }

    pub(crate) async fn send(&mut self, command: &Cmd) -> Result<Value, Unanswered> {
        let health = &*self.health;
        let wire = health.wire.as_deref();
        let written = wire.map(Wire::written);
        let in_flight = PendingReply::new(health, Clock::system().now());
        let reply = match self.is_asking {
            true => Box::pin(self.connection.send_after_asking(command)).await,
            false => self.connection.send(command).await,
        };
        in_flight.answered();
        let Err(error) = reply else {
            return reply.map_err(Unanswered::Failed);
        };
        // A demoted server keeps its connections open. A new one may lead to the new primary, but one per rejected
        // request would be too expensive.
        let is_replica = code(&error) == Some("READONLY") && !health.is_worth_keeping();
        if is_replica || error.is_unrecoverable_error() || error.is_io_error() {
            health.broken();
        }
        let is_unsent = error.is_io_error() && wire.is_some_and(Wire::has_ended) && wire.map(Wire::written) == written;
        Err(if is_unsent {
            Unanswered::Unsent(error)
        } else {
            Unanswered::Failed(error)
        })
    }
}

pub(crate) fn store_error(error: RedisError) -> StoreError {
    let kind = match (error.kind(), code(&error)) {
        (ErrorKind::Io | ErrorKind::AuthenticationFailed, _) => StoreErrorKind::Unreachable,
        (
            _,
            Some(
                "ASK" | "BUSY" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "MISCONF" | "MOVED" | "NOREPLICAS"
                | "READONLY" | "TRYAGAIN",
            ),
        ) => StoreErrorKind::Unavailable,
        (_, Some("OOM")) => StoreErrorKind::OutOfMemory,
        _ if error.is_unrecoverable_error() => StoreErrorKind::Unreachable,
        _ => StoreErrorKind::Failed,
    };
    StoreError::new(kind, error.to_string()).with_source(error)
}

/// Before Redis 7, errors of commands in scripts are wrapped: `ERR Error running script (…): @user_script:106:
/// @user_script: 106: -OOM command not allowed …`.
pub(crate) fn code(error: &RedisError) -> Option<&str> {
    let inside_script = error
        .detail()
        .filter(|detail| detail.contains("@user_script"))
        .and_then(|detail| detail.rsplit_once(": -"))
        .and_then(|(_, raised)| raised.split(' ').next());
    inside_script.or_else(|| error.code())
}

/// Always counts against the circuit breaker, because immediate retries would only cost time.
pub(super) fn connection_error(error: RedisError) -> StoreError {
    let error = store_error(error);
    if error.opens_circuit() {
        return error;
    }
    let message = format!("connection failed: {error}");
    StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(code: &str, detail: &str) -> StoreErrorKind {
        store_error(::redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))).kind()
    }

    #[test]
    fn calls_without_a_reply_say_nothing_against_a_connection_that_has_answered_others_meanwhile() {
        let health = Health::default();
        let ago = |micros| Timestamp::from_micros(Clock::system().now().as_micros() - micros);
        let sent = || PendingReply::new(&health, ago(10_000));
        for _ in 0..100 {
            let given_up = [sent(), sent(), sent()];
            sent().answered();
            drop(given_up);
        }
        assert!(!health.is_broken());
        for number in 1..=Health::MISSES {
            drop(sent());
            assert_eq!(health.is_broken(), number == Health::MISSES);
        }
        let health = Health::default();
        drop(PendingReply::new(&health, ago(Health::SILENT_MICROS)));
        assert!(health.is_broken(), "a single call that waited for long");
    }

    #[test]
    fn trouble_of_the_server_is_seen_through_the_words_of_its_script_engine() {
        let inside =
            |raised: &str| format!("Error running script (call to f_0): @user_script:106: @user_script: 106: {raised}");
        let rejected = "user_script:44: bad argument #2 to 'read' (data string too short)";
        assert_eq!(kind_of("OOM", "command not allowed"), StoreErrorKind::OutOfMemory);
        assert_eq!(
            kind_of("ERR", &inside("-OOM command not allowed")),
            StoreErrorKind::OutOfMemory
        );
        assert_eq!(
            kind_of("ERR", &inside("-READONLY You can't write")),
            StoreErrorKind::Unavailable
        );
        assert_eq!(kind_of("ERR", &inside(rejected)), StoreErrorKind::Failed);
        assert_eq!(kind_of("ERR", "unknown command"), StoreErrorKind::Failed);
        assert_eq!(
            kind_of("NOPERM", "this user has no permissions"),
            StoreErrorKind::Failed
        );
    }
}
