//! A deadline for store calls that distinguishes delays of this process from delays of the store.

use std::{
    borrow::Cow,
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::error::{StoreError, StoreErrorKind};

/// The process counts as overloaded if a timer fires later than this.
pub(crate) const LATE_TIMER: Duration = Duration::from_millis(5);

/// The maximum extension of a deadline in an overloaded process.
const LONGEST_TURN: Duration = Duration::from_secs(1);

/// The maximum number of tasks through which a reply passes: the reader, the task of a shared call, the task that
/// prefetches a batch, and the request that spends a unit.
const HANDS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// The store did not respond in time.
    Unanswered,
    /// This process was too slow to send the call or to read the reply.
    Behind,
}

impl Late {
    /// Returns the error of a store call. `Behind` does not count against the store.
    pub(crate) fn error(self, unanswered: impl Into<Cow<'static, str>>) -> StoreError {
        match self {
            Self::Unanswered => StoreError::new(StoreErrorKind::TimedOut, unanswered),
            Self::Behind => StoreError::new(
                StoreErrorKind::Overloaded,
                "this process was too busy to read the reply",
            ),
        }
    }
}

/// Returns the result of a call if it completes by the deadline. At the deadline, `catch_up` first sends queued calls
/// and reads the replies that have arrived; it returns `None` for a store that needs no such call.
///
/// In an overloaded process, which is detected by late timers, the call may not have been written yet, or other tasks
/// may still be passing on the reply. The deadline is then extended for as long as data is sent to or received from the
/// store. Without the extension, requests would pass uncounted under exactly the load that limits protect against.
pub(crate) async fn within<T, C: Future<Output = bool>>(
    deadline: Instant,
    call: impl Future<Output = T>,
    catch_up: impl Fn() -> Option<C>,
) -> Result<T, Late> {
    let mut call = pin!(call);
    if let Ok(result) = timeout_at(deadline, call.as_mut()).await {
        return Ok(result);
    }
    let first = catch_up().ok_or(Late::Unanswered)?;
    // Boxed, because few calls need it.
    let mut last_turn = Box::pin(timeout(LONGEST_TURN, last_turn(deadline, first, catch_up)));
    poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Ok(result)),
        Poll::Pending => last_turn
            .as_mut()
            .poll(cx)
            .map(|turn| Err(turn.map_or(Late::Behind, |()| Late::Unanswered))),
    })
    .await
}

/// Completes when only the store delays the call.
#[allow(clippy::disallowed_methods, reason = "other tasks take their time")]
async fn last_turn<C: Future<Output = bool>>(deadline: Instant, first: C, catch_up: impl Fn() -> Option<C>) {
    let mut next = Some(first);
    while let Some(caught_up) = next {
        // The runtime polls its sockets before it resumes this task.
        yield_now().await;
        let hears = caught_up.await;
        for _ in 0..HANDS {
            yield_now().await;
        }
        if !hears || deadline.elapsed() <= LATE_TIMER {
            return;
        }
        sleep(Duration::from_millis(1)).await;
        next = catch_up();
    }
}

/// Returns `true` if the work completes within `time`. Without a runtime, there are no timers, and the work is polled
/// only once.
pub(crate) async fn ends_within(time: Duration, work: impl Future<Output = ()>) -> bool {
    let mut work = pin!(work);
    let is_over = work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    is_over || (Handle::try_current().is_ok() && timeout(time, work).await.is_ok())
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        future::{pending, ready},
    };

    use tokio::time::advance;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(50);

    /// A call that completes after `answer`, in a process whose tasks run every `turn`.
    async fn call(answer: Duration, turn: Duration, hears: impl Fn() -> bool) -> (Result<(), Late>, Duration) {
        let start = Instant::now();
        let call = poll_fn(|cx| match start.elapsed() >= answer {
            true => Poll::Ready(()),
            false => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        });
        let process = async {
            loop {
                advance(turn).await;
            }
        };
        let call = within(start + DEADLINE, call, || Some(ready(hears())));
        let result = tokio::select! {
            result = call => result,
            () = process => unreachable!(),
        };
        (result, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_missed_at_its_deadline_unless_the_process_is_late_itself() {
        let millis = Duration::from_millis;
        let (result, waited) = call(millis(70), Duration::from_micros(100), || true).await;
        assert_eq!(result, Err(Late::Unanswered));
        assert!(waited < millis(70), "{waited:?}");
        let (result, _) = call(millis(400), millis(100), || true).await;
        assert_eq!(result, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_process_waits_for_no_server_that_is_silent() {
        let looks = Cell::new(0);
        let hears = || looks.replace(looks.get() + 1) < 2;
        let (result, waited) = call(Duration::from_secs(60), Duration::from_millis(20), hears).await;
        assert_eq!((result, looks.get()), (Err(Late::Unanswered), 3));
        assert!(waited < Duration::from_secs(1), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_process_waits_for_a_second_more_and_does_not_blame_the_store() {
        let (result, waited) = call(Duration::from_secs(60), Duration::from_millis(100), || true).await;
        assert_eq!(result, Err(Late::Behind));
        assert!(waited <= Duration::from_millis(1_400), "{waited:?}");
        let within = within(Instant::now() + DEADLINE, pending::<()>(), || Some(ready(false)));
        assert_eq!(within.await, Err(Late::Unanswered));
    }
}
