//! The faults, and what each may cost.

use std::time::Duration;

/// The severity of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The store continues to decide; only deadlines may be missed.
    DecidesOn,
    /// Connections are lost. Requests with a call in flight may not be decided; the next requests are.
    LosesWhatWasUnderWay,
    /// Deadlines are missed while it lasts.
    SomeUndecided,
    /// Circuits open: requests pass without a store call.
    CircuitOpens,
    /// Requests are not decided, and each of them calls the store, because the store itself is not at fault.
    Rejects,
    /// Deadlines may be missed, but the store is not taken for unavailable.
    StaysClosed,
    /// Requests whose replies were lost are not decided; connections may end, and circuits may open.
    LosesReplies,
}

/// The length of a fault: circuits open and their pauses grow to the longest.
pub const FOR: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server is killed, and comes back with nothing.
    KilledAndEmpty,
    /// The server's process is stopped, and later resumed.
    Stopped,
    /// A command that takes a quarter of a second, again and again.
    Blocked,
    /// A script of another client does not end; the server answers `BUSY`.
    Busy,
    ClientPauseAll,
    ClientPauseWrite,
    /// `CLIENT KILL`, again and again.
    ClientsKilled,
    /// Adds this delay in each direction.
    Delayed(Duration),
    /// Adds a delay between these two in each direction.
    Jittered(Duration, Duration),
    Cut,
    CutInsideReplies,
    Reset,
    /// Connections are lost and new ones are closed at once.
    Rejected,
    Swallowed,
    RepliesSwallowed,
    RequestsSwallowed,
    /// Some bytes of replies are lost, again and again; connections stay.
    BytesLost,
    /// One instance has lost its way to Redis, the others have not.
    OneInstanceAlone,
    ScriptFlush,
    FlushAll,
    OutOfMemory,
    /// `READONLY`
    Replica,
    /// `MASTERDOWN`
    ReplicaWithoutData,
    WrongPassword,
    /// `NOPERM`
    NoPermission,
    /// `timeout 1`
    ClosedWhenIdle,
    /// `MISCONF`
    NotSaved,
    /// `LOADING`
    Loading,
    /// `maxclients`
    Full,
    /// The instances' own process has too much to do.
    Starved,
    /// Callers are gone before there is a decision.
    Cancelled,
}

impl Fault {
    pub const ALL: [Self; 33] = [
        Self::KilledAndEmpty,
        Self::Stopped,
        Self::Blocked,
        Self::Busy,
        Self::ClientPauseAll,
        Self::ClientPauseWrite,
        Self::ClientsKilled,
        Self::Delayed(Duration::from_millis(10)),
        Self::Delayed(Duration::from_millis(100)),
        Self::Cut,
        Self::CutInsideReplies,
        Self::Reset,
        Self::Rejected,
        Self::Swallowed,
        Self::RepliesSwallowed,
        Self::RequestsSwallowed,
        Self::OneInstanceAlone,
        Self::ScriptFlush,
        Self::FlushAll,
        Self::OutOfMemory,
        Self::Replica,
        Self::ReplicaWithoutData,
        Self::WrongPassword,
        Self::NoPermission,
        Self::Delayed(Duration::from_millis(20)),
        Self::Jittered(Duration::from_micros(12_500), Duration::from_micros(17_500)),
        Self::BytesLost,
        Self::ClosedWhenIdle,
        Self::NotSaved,
        Self::Loading,
        Self::Full,
        Self::Starved,
        Self::Cancelled,
    ];

    pub fn effect(self) -> Effect {
        match self {
            Self::ClosedWhenIdle | Self::Jittered(..) | Self::Cancelled => Effect::DecidesOn,
            Self::Starved => Effect::StaysClosed,
            Self::BytesLost => Effect::LosesReplies,
            Self::Cut | Self::CutInsideReplies | Self::Reset | Self::ClientsKilled => Effect::LosesWhatWasUnderWay,
            Self::Delayed(delay) if delay < Duration::from_millis(25) => Effect::DecidesOn,
            Self::FlushAll | Self::ScriptFlush => Effect::DecidesOn,
            Self::Blocked => Effect::SomeUndecided,
            Self::NoPermission | Self::OutOfMemory => Effect::Rejects,
            _ => Effect::CircuitOpens,
        }
    }

    /// The number of times that the server loses its data.
    pub fn losses(self) -> u64 {
        match self {
            // `Loading` replaces the data with the unrelated data of another server.
            Self::KilledAndEmpty | Self::Loading => 1,
            Self::FlushAll => u64::from(FLUSHES),
            _ => 0,
        }
    }

    /// The number of attempts of one instance to connect, both of its connections together.
    pub fn most_attempts_in_a_second(self) -> usize {
        match self {
            Self::Cut | Self::Reset => STEADY + 2 * CUTS as usize,
            // `CutInsideReplies` cuts by itself, each time a number of bytes has arrived.
            Self::ClientsKilled | Self::CutInsideReplies => STEADY + 2 * KILLS as usize,
            // Five failures in a row open the circuit, with two attempts each.
            Self::KilledAndEmpty | Self::Rejected | Self::OneInstanceAlone | Self::WrongPassword | Self::Full => {
                STEADY + 10
            }
            Self::BytesLost => STEADY + 2 * LOSSES.len(),
            _ => STEADY,
        }
    }
}

/// A probe call every quarter to half second, with two attempts each, and the attempts of the task that settles.
pub const STEADY: usize = 12;

pub const CUTS: u32 = 6;
pub const KILLS: u32 = 20;
pub const FLUSHES: u32 = 5;

/// Less than a reply, about one, and several.
pub const LOSSES: [usize; 10] = [1, 2, 5, 13, 29, 40, 64, 130, 300, 900];
