//! Time that passes only while this process runs.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, time::sleep};

use crate::clock::{Clock, Timestamp};

const TICK: Duration = Duration::from_millis(2);

/// Tokio's timers add up to a millisecond.
const LONGEST_TICK: Duration = Duration::from_millis(3);

/// Longer than the default deadline, and short enough that a service with few requests is rarely woken.
const IDLE_TICKS: u32 = 50;

/// A task that has not ticked for this time may belong to a runtime that nobody runs.
const STALLED_MICROS: u64 = 100_000;

pub(crate) static PROCESS_TIME: ProcessTime = ProcessTime::new();

/// Each tick counts as at most [`LONGEST_TICK`].
pub(crate) struct ProcessTime {
    micros: AtomicU64,
    ticked_at: AtomicU64,
    is_needed: AtomicBool,
    task: AtomicU64,
    tasks: AtomicU64,
}

impl ProcessTime {
    const fn new() -> Self {
        Self {
            micros: AtomicU64::new(1),
            ticked_at: AtomicU64::new(0),
            is_needed: AtomicBool::new(false),
            task: AtomicU64::new(0),
            tasks: AtomicU64::new(0),
        }
    }

    pub(crate) fn micros(&self) -> u64 {
        self.micros.load(Ordering::Relaxed)
    }

    /// For at least 100 ms. Needs a runtime.
    #[inline]
    pub(crate) fn keep(&'static self) {
        if !self.is_needed.load(Ordering::Relaxed) {
            self.is_needed.store(true, Ordering::Relaxed);
            if self.task.load(Ordering::Relaxed) == 0 {
                self.start();
            }
        }
    }

    pub(crate) fn keep_running(&'static self) {
        self.is_needed.store(true, Ordering::Relaxed);
        let ticked = Timestamp::from_micros(self.ticked_at.load(Ordering::Relaxed));
        let is_stalled = Clock::system().now().micros_since(ticked) > STALLED_MICROS;
        if is_stalled || self.task.load(Ordering::Relaxed) == 0 {
            self.start();
        }
    }

    #[cold]
    fn start(&'static self) {
        let number = self.tasks.fetch_add(1, Ordering::Relaxed) + 1;
        self.task.store(number, Ordering::Relaxed);
        self.ticked();
        let task = Task { number, time: self };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(task.run());
        }
    }

    fn ticked(&self) {
        self.ticked_at
            .store(Clock::system().now().as_micros(), Ordering::Relaxed);
    }
}

struct Task {
    number: u64,
    time: &'static ProcessTime,
}

impl Task {
    #[allow(clippy::disallowed_methods, reason = "measures how late a timer fires")]
    async fn run(self) {
        let time = self.time;
        let mut last = Instant::now();
        while time.is_needed.swap(false, Ordering::Relaxed) {
            for _ in 0..IDLE_TICKS {
                sleep(TICK).await;
                if time.task.load(Ordering::Relaxed) != self.number {
                    return;
                }
                let now = Instant::now();
                let ran = (now - last).min(LONGEST_TICK);
                time.micros.fetch_add(ran.as_micros() as u64, Ordering::Relaxed);
                time.ticked();
                last = now;
            }
        }
    }
}

/// Another task may start, because the runtime may end at any time.
impl Drop for Task {
    fn drop(&mut self) {
        let (time, none) = (self.time, 0);
        let ended = time
            .task
            .compare_exchange(self.number, none, Ordering::Relaxed, Ordering::Relaxed);
        if ended.is_ok() {
            time.is_needed.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the time is measured")]
mod tests {
    use std::thread;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn time() -> &'static ProcessTime {
        Box::leak(Box::new(ProcessTime::new()))
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().build().unwrap()
    }

    async fn wait_for(time: &ProcessTime, micros: u64) {
        while time.micros() < micros {
            sleep(TICK).await;
        }
    }

    #[test]
    fn a_process_that_does_not_run_has_no_time() {
        let time = time();
        runtime().block_on(async {
            time.keep();
            wait_for(time, 10_000).await;
            let before = time.micros();
            thread::sleep(Duration::from_millis(300));
            assert_eq!(time.micros(), before);
            wait_for(time, before + 1).await;
            assert!(time.micros() - before <= 2 * LONGEST_TICK.as_micros() as u64);
        });
    }

    #[test]
    fn a_runtime_that_nobody_runs_is_replaced_by_another_one() {
        let (time, unused) = (time(), runtime());
        unused.block_on(async { time.keep() });
        thread::sleep(Duration::from_micros(STALLED_MICROS + 1));
        runtime().block_on(async {
            time.keep();
            time.keep_running();
            wait_for(time, 10_000).await;
        });
        drop(unused);
    }

    #[test]
    fn a_runtime_that_ends_leaves_the_time_to_the_next_one() {
        let time = time();
        for micros in [10_000, 20_000, 30_000] {
            runtime().block_on(async {
                time.keep();
                wait_for(time, micros).await;
            });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_task_ends_when_nobody_needs_the_time() {
        let time = time();
        time.keep();
        sleep(TICK * 3 * IDLE_TICKS).await;
        assert_eq!(time.task.load(Ordering::Relaxed), 0);
        time.keep();
        assert_ne!(time.task.load(Ordering::Relaxed), 0);
    }
}
