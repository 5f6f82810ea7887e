//! Measurements of the machine and of this process.

use std::{
    fs,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

static STALLED_MICROS: AtomicU64 = AtomicU64::new(0);

const NAP: Duration = Duration::from_millis(5);

/// The total time, since the first call, for which a thread that wanted to run did not. A separate thread measures it,
/// so that a layer that blocks the runtime is not excused.
pub fn stalled() -> Duration {
    static WATCHING: OnceLock<()> = OnceLock::new();
    WATCHING.get_or_init(|| {
        thread::spawn(|| {
            loop {
                let asleep = Instant::now();
                thread::sleep(NAP);
                let late = asleep.elapsed().saturating_sub(NAP);
                STALLED_MICROS.fetch_add(late.as_micros() as u64, Ordering::Relaxed);
            }
        });
    });
    Duration::from_micros(STALLED_MICROS.load(Ordering::Relaxed))
}

/// Time that passes only while the machine has time for this process.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    start: Instant,
    stalled: Duration,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
            stalled: stalled(),
        }
    }

    pub fn elapsed(self) -> Duration {
        let lost = stalled().saturating_sub(self.stalled);
        self.start.elapsed().saturating_sub(lost)
    }
}

/// The number of file descriptors of all processes that are ends of connections to or from this port. Only Linux tells.
pub fn sockets(port: u16) -> usize {
    let port = format!(":{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let is_held = |line: &&str| {
        let mut columns = line.split_whitespace();
        let (local, remote) = (columns.nth(1), columns.next());
        let ends_here = [local, remote].into_iter().flatten().any(|end| end.ends_with(&port));
        // A socket without an inode no longer belongs to a process.
        ends_here && columns.nth(6).is_some_and(|inode| inode != "0")
    };
    table.lines().skip(1).filter(is_held).count()
}
