//! An open load: requests are due at fixed times, whether or not earlier requests have their responses.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response, StatusCode};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};
use tower::{Service, ServiceExt};

use super::rounds::Random;

const TICK: Duration = Duration::from_millis(1);

pub(super) struct Load {
    pub(super) rate: f64,
    pub(super) length: Duration,
}

/// The requests of one run.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) requests: u64,
    pub(super) rejected: u64,
    undecided: u64,
    took: Duration,
}

/// The probability of each caller, summed up.
pub(super) struct Callers(Vec<f64>);

impl Callers {
    pub(super) fn uniform(number: usize) -> Self {
        Self::zipf(number, 0.0)
    }

    pub(super) fn zipf(number: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=number).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        let mut sums: Vec<_> = sums.collect();
        sums.iter_mut().for_each(|own| *own /= sum);
        Self(sums)
    }

    fn choose(&self, random: u64) -> u64 {
        let probability = (random >> 11) as f64 / (1_u64 << 53) as f64;
        self.0.partition_point(|sum| *sum <= probability) as u64
    }
}

impl Load {
    /// Sends the requests and waits for their responses.
    pub(super) async fn send<S, B: 'static>(&self, instances: &[S], callers: &Callers) -> Sent
    where
        S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        let (mut sent, mut running, start) = (Sent::default(), JoinSet::new(), Instant::now());
        let mut random = Random::new(1);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for tick in 1..=self.length.as_millis() {
            ticks.tick().await;
            while (sent.requests as f64) < self.rate * TICK.as_secs_f64() * tick as f64 {
                let random = random.next().expect("they do not end");
                let instance = instances[sent.requests as usize % instances.len()].clone();
                running.spawn(respond(instance, callers.choose(random)));
                sent.requests += 1;
            }
            while let Some(response) = running.try_join_next() {
                sent.count(&response.expect("no task panics"));
            }
        }
        while let Some(response) = running.join_next().await {
            sent.count(&response.expect("no task panics"));
        }
        sent.took = start.elapsed();
        sent
    }
}

async fn respond<S, B>(instance: S, caller: u64) -> (StatusCode, bool)
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible>,
{
    let mut request = Request::new(String::new());
    request.extensions_mut().insert(caller);
    let Ok(response) = instance.oneshot(request).await;
    (response.status(), response.headers().contains_key("ratelimit"))
}

impl Sent {
    /// An admitted request has the field `RateLimit`, unless it was not decided.
    fn count(&mut self, &(status, has_field): &(StatusCode, bool)) {
        match status {
            StatusCode::TOO_MANY_REQUESTS => self.rejected += 1,
            _ => self.undecided += u64::from(!has_field),
        }
    }

    /// Prints a warning if the figures of this run are not valid.
    pub(super) fn warn(&self, name: &str, load: &Load, may_reject: bool) {
        let Self {
            requests,
            rejected,
            undecided,
            took,
        } = self;
        let is_wrong = *undecided > 0 || (*rejected > 0 && !may_reject);
        if is_wrong || *took > load.length.mul_f64(1.05) + Duration::from_millis(50) {
            println!(
                "warning: {name}: {requests} requests in {took:.1?}, undecided: {undecided}, rejected: {rejected}"
            );
        }
    }
}
