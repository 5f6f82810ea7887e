use std::{
    future::{Future, poll_fn},
    task::Poll,
};

pub(crate) async fn all_of<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|cx| {
        for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(cx) {
                *output = Some(ready);
            }
        }
        match futures.iter().all(|(_, output)| output.is_some()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use tokio::sync::oneshot;

    use super::all_of;

    #[tokio::test]
    async fn all_futures_are_polled_before_any_of_them_is_ready() {
        let (sent, answer) = oneshot::channel();
        let calls: [Pin<Box<dyn Future<Output = u32>>>; 2] = [
            Box::pin(async { answer.await.map_or(0, |()| 1) }),
            Box::pin(async { sent.send(()).map_or(0, |()| 2) }),
        ];
        assert_eq!(all_of(calls).await, [1, 2]);
    }
}
