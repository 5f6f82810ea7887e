use std::{
    borrow::Cow,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use crate::error::{StoreError, StoreErrorKind};

/// Deadlines, while the store replies.
const PATIENCE: u32 = 5;

const LONGEST_EXTENSION: Duration = Duration::from_secs(1);

/// A reply passes through the reader, the tasks of a shared call and of a batch, and the request.
const HANDS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    Unanswered,
    Behind,
}

impl Late {
    /// `Behind` does not count against the store.
    pub(crate) fn error(self, unanswered: impl Into<Cow<'static, str>>) -> StoreError {
        match self {
            Self::Unanswered => StoreError::new(StoreErrorKind::TimedOut, unanswered),
            Self::Behind => StoreError::new(
                StoreErrorKind::Overloaded,
                "the store replied to other calls only, or this process was too busy to read the reply",
            ),
        }
    }
}

pub(crate) fn longest_wait(deadline: Duration) -> Duration {
    deadline.saturating_mul(PATIENCE).min(deadline + LONGEST_EXTENSION)
}

/// Extends the deadline while the store replies to other calls: otherwise, requests would pass uncounted under exactly
/// the load that limits protect against. The call fails after a `silence` as long as the deadline, or at the end of the
/// extension.
pub(crate) async fn within<T, S: Future<Output = Option<Duration>>>(
    deadline: Instant,
    call: impl Future<Output = T>,
    silence: impl Fn() -> S,
) -> Result<T, Late> {
    let time = deadline.saturating_duration_since(Instant::now());
    let mut call = pin!(call);
    if let Ok(result) = timeout_at(deadline, call.as_mut()).await {
        return Ok(result);
    }
    // Boxed, because few calls need it.
    Box::pin(extended(deadline, time, call, silence)).await
}

async fn extended<T, S: Future<Output = Option<Duration>>>(
    deadline: Instant,
    time: Duration,
    mut call: Pin<&mut impl Future<Output = T>>,
    silence: impl Fn() -> S,
) -> Result<T, Late> {
    let longest = deadline + LONGEST_EXTENSION;
    let (mut wake, mut end) = (deadline, deadline - time + longest_wait(time));
    loop {
        // The time for which this process did not run does not count.
        end = longest.min(end + wake.elapsed());
        let silence = async {
            let silence = timeout_at(longest, silence()).await.unwrap_or_default()?;
            for _ in 0..HANDS {
                yield_now().await;
            }
            Some(silence)
        };
        let silence = match unless(&mut call, silence).await {
            Ok(result) => return Ok(result),
            Err(silence) => silence.filter(|silence| *silence < time).ok_or(Late::Unanswered)?,
        };
        if Instant::now() >= end {
            return Err(Late::Behind);
        }
        wake = end.min(Instant::now() + (time - silence));
        if let Ok(result) = timeout_at(wake, call.as_mut()).await {
            return Ok(result);
        }
    }
}

async fn unless<T, O>(call: &mut Pin<&mut impl Future<Output = T>>, other: impl Future<Output = O>) -> Result<T, O> {
    let mut other = pin!(other);
    poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Ok(result)),
        Poll::Pending => other.as_mut().poll(cx).map(Err),
    })
    .await
}

/// Without a runtime, the work is polled only once.
pub(crate) async fn ends_within(time: Duration, work: impl Future<Output = ()>) -> bool {
    let mut work = pin!(work);
    let is_over = work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    is_over || (Handle::try_current().is_ok() && timeout(time, work).await.is_ok())
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::pending};

    use tokio::time::advance;

    use super::*;

    const DEADLINE: Duration = millis(50);

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    async fn call(
        answer: Duration,
        turn: Duration,
        silence: impl Fn() -> Option<Duration>,
    ) -> (Result<(), Late>, Duration) {
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
        let call = within(start + DEADLINE, call, async || silence());
        let result = tokio::select! {
            biased;
            result = call => result,
            () = process => unreachable!(),
        };
        (result, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_to_a_silent_store_fails_at_its_deadline() {
        for silence in [None, Some(DEADLINE)] {
            let (result, waited) = call(millis(70), Duration::from_micros(100), || silence).await;
            assert_eq!(result, Err(Late::Unanswered));
            assert!(waited < millis(55), "{waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_while_the_store_replies_to_others_but_not_longer_than_five_deadlines() {
        let replies = || Some(millis(10));
        let (result, _) = call(millis(240), Duration::from_micros(100), replies).await;
        assert_eq!(result, Ok(()));
        let (result, waited) = call(millis(300), Duration::from_micros(100), replies).await;
        assert_eq!(result, Err(Late::Behind));
        assert!((millis(250)..millis(255)).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_falls_silent_is_noticed_after_one_more_deadline() {
        let looks = Cell::new(0);
        let silence = || {
            Some(if looks.replace(looks.get() + 1) < 1 {
                Duration::ZERO
            } else {
                DEADLINE
            })
        };
        let (result, waited) = call(Duration::from_secs(60), Duration::from_micros(100), silence).await;
        assert_eq!((result, looks.get()), (Err(Late::Unanswered), 2));
        assert!(waited < millis(105), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_for_which_the_process_did_not_run_extends_a_call_by_up_to_a_second() {
        let (result, _) = call(millis(450), millis(100), || Some(Duration::ZERO)).await;
        assert_eq!(result, Ok(()));
        let (result, waited) = call(Duration::from_secs(60), millis(100), || Some(Duration::ZERO)).await;
        assert_eq!(result, Err(Late::Behind));
        assert!(waited <= millis(1_400), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_report_its_silence_does_not_block_a_call() {
        let start = Instant::now();
        let within = within(start + DEADLINE, pending::<()>(), pending);
        assert_eq!(within.await, Err(Late::Unanswered));
        assert!(start.elapsed() <= DEADLINE + LONGEST_EXTENSION);
    }
}
