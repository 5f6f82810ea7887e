//! The faults. Each is brought about, goes on for a while, and ends.

use std::{thread, time::Duration};

use tokio::time::sleep;

use super::{
    harness::Scene,
    support::{Mode, RedisServer},
};

/// How hard a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The store goes on deciding: only deadlines may be missed.
    DecidesOn,
    /// Requests that are under way when a connection breaks are not decided; the next ones are.
    LosesWhatWasUnderWay,
    /// Deadlines are missed while it lasts.
    SomeUndecided,
    /// Circuits open: requests go on without the store being asked.
    CircuitOpens,
    /// Requests are not decided, and each of them asks: the fault is not one of the store.
    Rejects,
}

/// How long a fault goes on: circuits open and their pauses grow to the longest.
const FOR: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server is killed, and comes back with nothing.
    KilledAndEmpty,
    /// The server's process is stopped, and goes on.
    Stopped,
    /// A command that takes a quarter of a second, again and again.
    Blocked,
    /// A script of somebody else does not end; the server answers `BUSY`.
    Busy,
    ClientPauseAll,
    ClientPauseWrite,
    /// `CLIENT KILL`, again and again.
    ClientsKilled,
    /// So much later each way.
    Delayed(Duration),
    Cut,
    CutInsideReplies,
    Reset,
    /// Connections are lost and new ones are closed at once.
    Refused,
    Swallowed,
    RepliesSwallowed,
    RequestsSwallowed,
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
}

impl Fault {
    pub fn effect(self) -> Effect {
        match self {
            Self::Cut | Self::CutInsideReplies | Self::Reset | Self::ClientsKilled => Effect::LosesWhatWasUnderWay,
            Self::Delayed(delay) if delay < Duration::from_millis(25) => Effect::DecidesOn,
            Self::FlushAll | Self::ScriptFlush => Effect::DecidesOn,
            Self::Blocked => Effect::SomeUndecided,
            Self::NoPermission => Effect::Rejects,
            _ => Effect::CircuitOpens,
        }
    }

    /// How often the server forgets what was used.
    pub fn losses(self) -> u64 {
        match self {
            Self::KilledAndEmpty => 1,
            Self::FlushAll => u64::from(FLUSHES),
            _ => 0,
        }
    }

    /// How often one instance tries to connect, both of its connections together.
    pub fn most_attempts_in_a_second(self) -> usize {
        match self {
            Self::Cut | Self::Reset => STEADY + 2 * CUTS as usize,
            // The latter by itself, as often as so many bytes have come.
            Self::ClientsKilled | Self::CutInsideReplies => STEADY + 2 * KILLS as usize,
            // Five failures in a row open the circuit, with two attempts each.
            Self::KilledAndEmpty | Self::Refused | Self::OneInstanceAlone | Self::WrongPassword => STEADY + 10,
            _ => STEADY,
        }
    }

    pub async fn happen(self, scene: &Scene) {
        let server = |act: fn(&RedisServer)| scene.server(act);
        let command = |command: &str| drop(scene.command(command));
        match self {
            Self::KilledAndEmpty => while_it_lasts(|| server(RedisServer::kill), || scene.restart()).await,
            Self::Stopped => while_it_lasts(|| server(RedisServer::pause), || server(RedisServer::resume)).await,
            Self::Blocked => again_and_again(4, async || server(stand_still)).await,
            Self::Busy => server(be_busy),
            Self::ClientPauseAll => while_it_lasts(|| command(PAUSE_ALL), || {}).await,
            Self::ClientPauseWrite => while_it_lasts(|| command(PAUSE_WRITE), || {}).await,
            Self::ClientsKilled => losing(scene, KILLS, async || command("CLIENT KILL USER limits")).await,
            Self::Cut => losing(scene, CUTS, async || scene.cut().await).await,
            Self::Reset => losing(scene, CUTS, async || scene.reset().await).await,
            Self::Delayed(delay) => passing(scene, Mode::Delay(delay)).await,
            Self::CutInsideReplies => passing(scene, Mode::CutAfter(1_000)).await,
            Self::Swallowed => passing(scene, Mode::Swallow).await,
            Self::RepliesSwallowed => passing(scene, Mode::SwallowReplies).await,
            Self::RequestsSwallowed => passing(scene, Mode::SwallowRequests).await,
            Self::Refused => {
                scene.set_mode(Mode::Refuse);
                scene.cut().await;
                sleep(2 * FOR).await;
                scene.set_mode(Mode::Forward);
            }
            Self::OneInstanceAlone => {
                scene.proxies[0].set_mode(Mode::Reset);
                scene.proxies[0].reset().await;
                sleep(FOR).await;
                scene.proxies[0].set_mode(Mode::Forward);
            }
            Self::ScriptFlush => again_and_again(40, async || command("SCRIPT FLUSH")).await,
            Self::FlushAll => again_and_again(FLUSHES, async || command("FLUSHALL")).await,
            Self::OutOfMemory | Self::Replica | Self::ReplicaWithoutData | Self::WrongPassword | Self::NoPermission => {
                let [trouble, cure] = self.commands();
                while_it_lasts(
                    || trouble.iter().for_each(|it| command(it)),
                    || cure.iter().for_each(|it| command(it)),
                )
                .await;
            }
        }
    }

    /// What brings it about, and what ends it.
    fn commands(self) -> [&'static [&'static str]; 2] {
        match self {
            Self::OutOfMemory => [&["CONFIG SET maxmemory 1"], &["CONFIG SET maxmemory 0"]],
            Self::Replica => [&["REPLICAOF 127.0.0.1 1"], &["REPLICAOF NO ONE"]],
            Self::ReplicaWithoutData => [
                &["CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"],
                &["REPLICAOF NO ONE", "CONFIG SET replica-serve-stale-data yes"],
            ],
            Self::WrongPassword => [
                &["ACL SETUSER limits resetpass >other", "CLIENT KILL USER limits"],
                &["ACL SETUSER limits resetpass >secret"],
            ],
            Self::NoPermission => [
                &["ACL SETUSER limits -eval -evalsha"],
                &["ACL SETUSER limits +eval +evalsha"],
            ],
            _ => [&[], &[]],
        }
    }
}

const PAUSE_ALL: &str = "CLIENT PAUSE 1500 ALL";
const PAUSE_WRITE: &str = "CLIENT PAUSE 1500 WRITE";

/// Stands in for `DEBUG SLEEP`, which servers do not allow any more, and for a `KEYS *` too many.
const QUARTER_OF_A_SECOND: &str = "
    local function now() local time = redis.call('TIME') return time[1] * 1e6 + time[2] end
    local start = now()
    repeat until now() > start + 25e4
";

/// A trial every quarter to half of a second, with two attempts each, and those of the task that settles.
pub const STEADY: usize = 12;

const CUTS: u32 = 6;
const KILLS: u32 = 20;
const FLUSHES: u32 = 5;

async fn while_it_lasts(begin: impl FnOnce(), end: impl FnOnce()) {
    begin();
    sleep(FOR).await;
    end();
}

async fn again_and_again(times: u32, act: impl AsyncFn()) {
    for _ in 0..times {
        act().await;
        sleep(FOR / times).await;
    }
}

/// The same for connections, which are there again before they are lost again.
async fn losing(scene: &Scene, times: u32, act: impl AsyncFn()) {
    again_and_again(times, async || {
        scene.until_decided().await;
        act().await;
    })
    .await;
}

async fn passing(scene: &Scene, mode: Mode) {
    while_it_lasts(|| scene.set_mode(mode), || scene.set_mode(Mode::Forward)).await;
}

fn stand_still(server: &RedisServer) {
    server.command(&["EVAL", QUARTER_OF_A_SECOND, "0"]);
}

fn be_busy(server: &RedisServer) {
    let busy_after = |milliseconds| server.command(&["CONFIG", "SET", "lua-time-limit", milliseconds]);
    busy_after("10");
    let reply = thread::scope(|threads| {
        let script = threads.spawn(|| server.try_command(&["EVAL", "while true do end", "0"], FOR * 20));
        thread::sleep(FOR);
        while server.command(&["SCRIPT", "KILL"]) != "OK" {
            thread::sleep(FOR / 100);
        }
        script.join().unwrap().unwrap()
    });
    busy_after("5000");
    assert!(reply.contains("killed"), "{reply}");
}
