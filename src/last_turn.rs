//! A deadline for calls of a store, which does not blame the store for the delays of this process.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

/// The maximum time that a call may take beyond its deadline. An idle process needs microseconds for the turn.
const LONGEST_TURN: Duration = Duration::from_millis(50);

/// Maximum number of tasks that pass a reply on: the reader, the one that made a shared call, the one that fetches a block of
/// units, the request that spends one.
const HANDS: usize = 4;

/// The result of a call, if it is there by the deadline. At the deadline, the reader of the store's replies gets one turn first
/// (`catch_up`, none if there is nothing to read): in a process with more work than processors a reply may have arrived in
/// time, and no task has had the time to read it.
pub(crate) async fn within<T, C: Future>(
    deadline: Instant,
    call: impl Future<Output = T>,
    catch_up: impl FnOnce() -> Option<C>,
) -> Option<T> {
    let mut call = pin!(call);
    if let Ok(result) = timeout_at(deadline, call.as_mut()).await {
        return Some(result);
    }
    let catch_up = catch_up()?;
    let last_turn = async {
        // The runtime looks at its sockets before it comes back.
        yield_now().await;
        catch_up.await;
        for _ in 0..HANDS {
            let result = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
            if let Poll::Ready(result) = result {
                return Some(result);
            }
            yield_now().await;
        }
        None
    };
    // On the heap, because few calls need it.
    Box::pin(timeout(LONGEST_TURN, last_turn)).await.ok().flatten()
}

/// Returns `true` if the work ends within a time. Without a runtime, which alone has timers, it is not waited for.
pub(crate) async fn ends_within(time: Duration, work: impl Future<Output = ()>) -> bool {
    let mut work = pin!(work);
    let is_over = work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    is_over || (Handle::try_current().is_ok() && timeout(time, work).await.is_ok())
}
