//! How each fault begins, continues and ends.

use std::{
    fs,
    io::Read,
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use test_kit::{Mode, RedisServer};
use tokio::{
    task::{block_in_place, yield_now},
    time::sleep,
};

use super::{
    callers::{Caller, Kind},
    fault::{CUTS, FLUSHES, FOR, Fault, KILLS, LOSSES},
    harness::Scene,
    load::{Client, HANG},
};

impl Fault {
    pub async fn happen(self, scene: &Scene) {
        let server = |act: fn(&RedisServer)| scene.server(act);
        let command = |command: &str| drop(scene.command(command));
        let [trouble, cure] = self.commands();
        match self {
            Self::KilledAndEmpty => {
                let killed = async || while_it_lasts(|| server(RedisServer::kill), || scene.restart()).await;
                scene.losing_everything(killed).await;
            }
            Self::Stopped => while_it_lasts(|| server(RedisServer::pause), || server(RedisServer::resume)).await,
            Self::Blocked => again_and_again(4, async || server(stand_still)).await,
            Self::Busy => server(be_busy),
            Self::NotSaved => while_it_lasts(|| server(saving_fails), || server(saving_works)).await,
            Self::Loading => scene.losing_everything(async || loading(scene).await).await,
            Self::Full => full(scene).await,
            Self::ScriptFlush => again_and_again(40, async || command("SCRIPT FLUSH")).await,
            Self::FlushAll => {
                let flush = async || scene.losing_everything(async || command("FLUSHALL")).await;
                again_and_again(FLUSHES, flush).await;
            }
            Self::ClientsKilled => losing(scene, KILLS, async || command("CLIENT KILL TYPE normal")).await,
            Self::Starved => starved(scene).await,
            Self::Cancelled => cancelled(scene).await,
            _ if trouble.is_empty() => self.happen_on_the_way(scene).await,
            _ => {
                while_it_lasts(
                    || trouble.iter().for_each(|it| command(it)),
                    || cure.iter().for_each(|it| command(it)),
                )
                .await;
            }
        }
    }

    /// The faults of bytes and connections.
    async fn happen_on_the_way(self, scene: &Scene) {
        match self {
            Self::Cut => losing(scene, CUTS, async || scene.cut().await).await,
            Self::Reset => losing(scene, CUTS, async || scene.reset().await).await,
            Self::Delayed(delay) => passing(scene, Mode::Delay(delay)).await,
            Self::Jittered(least, most) => passing(scene, Mode::Jitter(least, most)).await,
            Self::CutInsideReplies => passing(scene, Mode::CutAfter(1_000)).await,
            Self::Swallowed => passing(scene, Mode::Swallow).await,
            Self::RepliesSwallowed => passing(scene, Mode::SwallowReplies).await,
            Self::RequestsSwallowed => passing(scene, Mode::SwallowRequests).await,
            Self::BytesLost => lose_bytes(scene).await,
            Self::Rejected => {
                scene.set_mode(Mode::Reject);
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
            other => panic!("{other:?} does not happen on the way"),
        }
    }

    /// The commands that begin it, and those that end it.
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
                &["ACL SETUSER limits resetpass >password"],
            ],
            Self::NoPermission => [
                &["ACL SETUSER limits -eval -evalsha"],
                &["ACL SETUSER limits +eval +evalsha"],
            ],
            Self::ClientPauseAll => [&[PAUSE_ALL], &[]],
            Self::ClientPauseWrite => [&[PAUSE_WRITE], &[]],
            Self::ClosedWhenIdle => [&["CONFIG SET timeout 1"], &["CONFIG SET timeout 0"]],
            _ => [&[], &[]],
        }
    }
}

const PAUSE_ALL: &str = "CLIENT PAUSE 1500";
const PAUSE_WRITE: &str = "CLIENT PAUSE 1500 WRITE";

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

/// Like [`again_and_again`] for connections, which recover before they are lost again.
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

/// Simulates `DEBUG SLEEP`, which recent servers reject, and a slow `KEYS *`. A script cannot wait: since Redis 7.2,
/// the time within a script is the time of its start.
fn stand_still(server: &RedisServer) {
    server.pause();
    thread::sleep(Duration::from_millis(250));
    server.resume();
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

async fn lose_bytes(scene: &Scene) {
    for bytes in LOSSES {
        scene.proxies.iter().for_each(|proxy| proxy.lose_replies(bytes));
        sleep(FOR / LOSSES.len() as u32).await;
    }
    scene.proxies.iter().for_each(|proxy| proxy.lose_replies(0));
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < HANG, "still not so: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A directory in the place of the file makes every save fail, and with it every write.
fn saving_fails(server: &RedisServer) {
    fs::create_dir(dump_file(server)).unwrap();
    server.command(&["CONFIG", "SET", "save", "3600 1"]);
    server.command(&["BGSAVE"]);
    let has_failed = || {
        server
            .command(&["INFO", "persistence"])
            .contains("rdb_last_bgsave_status:err")
    };
    until("a save has failed", has_failed);
    let reply = server.command(&["SET", "quota:test", "1"]);
    assert!(reply.starts_with("-MISCONF"), "{reply}");
}

fn saving_works(server: &RedisServer) {
    fs::remove_dir(dump_file(server)).unwrap();
    server.command(&["CONFIG", "SET", "save", ""]);
}

fn dump_file(server: &RedisServer) -> PathBuf {
    let line = |name| {
        server
            .command(&["CONFIG", "GET", name])
            .lines()
            .nth(1)
            .unwrap()
            .to_owned()
    };
    PathBuf::from(line("dir")).join(line("dbfilename"))
}

/// The server slowly loads the data of another one, and answers `LOADING` until it has finished.
async fn loading(scene: &Scene) {
    let other = block_in_place(RedisServer::start);
    let set = |key: u64| _ = other.command(&["SET", &format!("other:{key}"), &"x".repeat(1_000)]);
    block_in_place(|| (0..300).for_each(set));
    for command in [
        "CONFIG SET repl-diskless-sync no",
        "CONFIG SET repl-diskless-sync-delay 0",
    ] {
        block_in_place(|| other.command(&command.split(' ').collect::<Vec<_>>()));
    }
    // 300 keys of five milliseconds each.
    scene.command("CONFIG SET key-load-delay 5000");
    scene.command("CONFIG SET loading-process-events-interval-bytes 1024");
    scene.command(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    scene.server(|server| {
        let is_loading = || server.command(&["INFO", "persistence"]).contains("\nloading:1");
        until("it is loading", is_loading);
        until("it is loading no more", || !is_loading());
    });
    scene.command("CONFIG SET key-load-delay 0");
    scene.command("REPLICAOF NO ONE");
}

/// Others have all the connections that the server allows.
async fn full(scene: &Scene) {
    scene.set_mode(Mode::Reject);
    scene.cut().await;
    scene.command("CONFIG SET maxclients 30");
    let others = scene.server(connections_to_the_last);
    scene.set_mode(Mode::Forward);
    sleep(FOR).await;
    drop(others);
    scene.server(|server| {
        until("others have left", || {
            !server
                .command(&["CONFIG", "SET", "maxclients", "10000"])
                .starts_with('-')
        });
    });
}

fn connections_to_the_last(server: &RedisServer) -> Vec<TcpStream> {
    let mut others = Vec::new();
    loop {
        let mut other = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
        other.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        // A connection beyond the limit gets an error at once; the others receive nothing.
        if other.read(&mut [0; 64]).is_ok() {
            return others;
        }
        others.push(other);
    }
}

/// Senders without a pause, too many for the process to do everything within a deadline.
async fn starved(scene: &Scene) {
    let (until, chapter) = (Instant::now() + FOR, scene.record.chapter());
    let crowd = scene
        .clients
        .iter()
        .flat_map(|client| (0..CROWD).map(move |number| (client, number)));
    let crowd: Vec<_> = crowd
        .map(|(client, number)| tokio::spawn(one_of_a_crowd(client.clone(), chapter, number, until)))
        .collect();
    for one in join_all(crowd).await {
        one.unwrap();
    }
}

async fn one_of_a_crowd(client: Client, chapter: u64, number: u64, until: Instant) {
    while Instant::now() < until {
        client.ask(Caller::of_chapter(Kind::Quiet, chapter, number)).await;
        work();
        yield_now().await;
    }
}

/// The other work of the process for a request.
fn work() {
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(300) {
        std::hint::spin_loop();
    }
}

/// Of each instance.
const CROWD: u64 = 80;

async fn cancelled(scene: &Scene) {
    let cancelled = scene.cancel_requests(FOR).await;
    assert!(cancelled.are_charged(), "{cancelled:?}");
}
