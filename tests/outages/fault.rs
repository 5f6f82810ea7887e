//! The faults. Each is brought about, goes on for a while, and ends.

use std::{thread, time::Duration};

use tokio::{task::block_in_place, time::sleep};

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
            Self::FlushAll => FLUSHES,
            _ => 0,
        }
    }

    /// How often one instance tries to connect: what it takes to open the circuit, then a few times a second; and once
    /// more for each connection that is lost.
    pub fn most_attempts_in_a_second(self) -> usize {
        let cuts = match self {
            Self::Cut | Self::Reset => CUTS,
            Self::ClientsKilled => KILLS,
            // By itself, as often as so many bytes have come.
            Self::CutInsideReplies => KILLS,
            _ => 0,
        };
        20 + 2 * cuts as usize
    }

    pub async fn happen(self, scene: &Scene) {
        match self {
            Self::KilledAndEmpty | Self::Stopped | Self::Blocked | Self::Busy => self.of_the_process(scene).await,
            Self::ClientPauseAll | Self::ClientPauseWrite | Self::ClientsKilled => self.of_clients(scene).await,
            Self::Delayed(delay) => passing(scene, Mode::Delay(delay)).await,
            Self::Swallowed => passing(scene, Mode::Swallow).await,
            Self::RepliesSwallowed => passing(scene, Mode::SwallowReplies).await,
            Self::RequestsSwallowed => passing(scene, Mode::SwallowRequests).await,
            Self::CutInsideReplies => passing(scene, Mode::CutAfter(1_000)).await,
            Self::Cut | Self::Reset | Self::Refused | Self::OneInstanceAlone => self.of_connections(scene).await,
            _ => self.of_data(scene).await,
        }
    }

    async fn of_the_process(self, scene: &Scene) {
        match self {
            Self::KilledAndEmpty => {
                scene.server(RedisServer::kill);
                sleep(FOR).await;
                scene.restart();
            }
            Self::Stopped => {
                scene.server(RedisServer::pause);
                sleep(FOR).await;
                scene.server(RedisServer::resume);
            }
            Self::Blocked => {
                for _ in 0..4 {
                    scene.command("EVAL local\tt=redis.call('time');local\te=t[1]*1e6+t[2]+25e4;repeat\tt=redis.call('time')until\tt[1]*1e6+t[2]>e 0");
                    sleep(FOR / 15).await;
                }
            }
            _ => busy(scene).await,
        }
    }

    async fn of_clients(self, scene: &Scene) {
        match self {
            Self::ClientPauseAll | Self::ClientPauseWrite => {
                let what = if self == Self::ClientPauseAll { "ALL" } else { "WRITE" };
                scene.command(&format!("CLIENT PAUSE {} {what}", FOR.as_millis()));
                sleep(FOR).await;
            }
            _ => {
                for _ in 0..KILLS {
                    scene.command("CLIENT KILL USER limits");
                    sleep(FOR / KILLS).await;
                }
            }
        }
    }

    async fn of_connections(self, scene: &Scene) {
        match self {
            Self::Refused => {
                scene.set_mode(Mode::Refuse);
                scene.cut().await;
                sleep(FOR * 2).await;
                scene.set_mode(Mode::Forward);
            }
            Self::OneInstanceAlone => {
                scene.proxies[0].set_mode(Mode::Reset);
                scene.proxies[0].reset().await;
                sleep(FOR).await;
                scene.proxies[0].set_mode(Mode::Forward);
            }
            _ => {
                for _ in 0..CUTS {
                    if self == Self::Cut {
                        scene.cut().await;
                    } else {
                        scene.reset().await;
                    }
                    sleep(FOR / CUTS).await;
                }
            }
        }
    }

    async fn of_data(self, scene: &Scene) {
        let (commands, cure): (&[&str], _) = match self {
            Self::ScriptFlush => return again_and_again(scene, 40, "SCRIPT FLUSH").await,
            Self::FlushAll => return again_and_again(scene, FLUSHES as u32, "FLUSHALL").await,
            Self::OutOfMemory => (&["CONFIG SET maxmemory 1"], "CONFIG SET maxmemory 0"),
            Self::Replica => (&["REPLICAOF 127.0.0.1 1"], "REPLICAOF NO ONE"),
            Self::ReplicaWithoutData => (
                &["CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"],
                "REPLICAOF NO ONE",
            ),
            Self::WrongPassword => (
                &["ACL SETUSER limits resetpass >other", "CLIENT KILL USER limits"],
                "ACL SETUSER limits resetpass >secret",
            ),
            _ => (
                &["ACL SETUSER limits -eval -evalsha"],
                "ACL SETUSER limits +eval +evalsha",
            ),
        };
        for command in commands {
            scene.command(command);
        }
        sleep(FOR).await;
        scene.command(cure);
    }
}

const CUTS: u32 = 6;
const KILLS: u32 = 20;
const FLUSHES: u64 = 5;

async fn passing(scene: &Scene, mode: Mode) {
    scene.set_mode(mode);
    sleep(FOR).await;
    scene.set_mode(Mode::Forward);
}

async fn again_and_again(scene: &Scene, times: u32, command: &str) {
    for _ in 0..times {
        scene.command(command);
        sleep(FOR / times).await;
    }
}

async fn busy(scene: &Scene) {
    scene.command("CONFIG SET lua-time-limit 10");
    thread::scope(|threads| {
        let script =
            threads.spawn(|| scene.server(|server| server.try_command(&["EVAL", "while true do end", "0"], FOR * 20)));
        block_in_place(|| {
            thread::sleep(FOR);
            let kill = || scene.server(|server| server.try_command(&["SCRIPT", "KILL"], FOR * 20).unwrap());
            while kill() != "OK" {
                thread::sleep(FOR / 100);
            }
        });
        assert!(script.join().unwrap().unwrap().contains("killed"));
    });
}
