//! Threads for arithmetic on curves: a few that may block, behind a bounded queue.

use std::{num::NonZeroUsize, sync::Arc, thread};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task,
};

/// It takes milliseconds of a core, so it is done on so many threads at once, and only so many requests wait.
#[derive(Clone, Debug)]
pub(super) struct Workers {
    /// A permit for each request that is worked on or waits.
    places: Arc<Semaphore>,
    /// A permit for each that is worked on.
    threads: Arc<Semaphore>,
}

/// Too many requests wait already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overloaded;

/// A place among those that are worked on or wait: it will have its turn.
#[derive(Debug)]
pub(super) struct Place {
    place: OwnedSemaphorePermit,
    threads: Arc<Semaphore>,
}

impl Workers {
    pub(super) fn new(threads: usize, max_queued: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(threads + max_queued)),
            threads: Arc::new(Semaphore::new(threads)),
        }
    }

    /// One less than there are cores, and at least one: the others answer requests meanwhile.
    pub(super) fn usual_threads() -> usize {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        (cores - 1).max(1)
    }

    pub(super) fn place(&self) -> Result<Place, Overloaded> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        Ok(Place {
            place: place.map_err(|_| Overloaded)?,
            threads: Arc::clone(&self.threads),
        })
    }
}

impl Place {
    /// Does the work in its turn. Work of a request that was cancelled meanwhile keeps its place until it is over.
    pub(super) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Overloaded> {
        // The semaphore is never closed, and the work does not panic; if it did, there would be no answer.
        let thread = self.threads.acquire_owned().await.map_err(|_| Overloaded)?;
        let place = self.place;
        let work = task::spawn_blocking(move || {
            let done = work();
            drop((place, thread));
            done
        });
        work.await.map_err(|_| Overloaded)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// On a runtime of one thread, work that blocked it would stop everything.
    #[tokio::test]
    async fn work_blocks_no_thread_of_the_runtime_and_waits_for_its_turn() {
        let workers = Workers::new(1, 1);
        let (release, released) = mpsc::channel();
        let first = tokio::spawn(workers.place().unwrap().run(move || released.recv().unwrap()));
        let second = tokio::spawn(workers.place().unwrap().run(|| 2));
        tokio::task::yield_now().await;
        assert!(workers.place().is_err());
        assert!(!second.is_finished());
        release.send(1).unwrap();
        assert_eq!(first.await.unwrap().unwrap(), 1);
        assert_eq!(second.await.unwrap().unwrap(), 2);
        assert!(workers.place().is_ok());
    }

    #[tokio::test]
    async fn work_that_was_cancelled_keeps_its_place_until_it_is_over_and_one_that_waits_gives_it_back() {
        let workers = Workers::new(1, 1);
        let (release, released) = mpsc::channel::<()>();
        let (over, is_over) = mpsc::channel();
        let running = tokio::spawn(workers.place().unwrap().run(move || {
            let _ = released.recv();
            over.send(()).unwrap();
        }));
        // The thread that runs it is taken before it is cancelled.
        while workers.threads.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let waiting = tokio::spawn(workers.place().unwrap().run(|| ()));
        tokio::task::yield_now().await;
        assert!(workers.place().is_err());
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        let place = workers.place().unwrap();
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        assert!(workers.place().is_err());
        drop(release);
        is_over.recv().unwrap();
        drop(place);
        while workers.threads.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
    }
}
