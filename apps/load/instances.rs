//! Instances of a service that share their limits through Redis, as in separate processes.

use std::{
    convert::Infallible,
    error::Error,
    future::{Ready, ready},
    time::{Duration, Instant},
};

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn, util::ServiceFn};
use tower_quota::{Decision, Limiter, Outcome, QuotaPolicy, RateLimit, RateLimitLayer, RedisStore, key};

use super::{
    Test,
    options::{Mode, Options},
    users::{UserId, Users},
};

pub(crate) const INSTANCES: usize = 4;

/// A service that responds immediately, so that only the layer is measured.
pub(crate) type Bare = ServiceFn<fn(Request<String>) -> Ready<Result<Response<String>, Infallible>>>;

pub(crate) fn bare() -> Bare {
    service_fn(|_| ready(Ok(Response::default())))
}

/// Replace these with the limits of your service.
pub(crate) fn policies(options: &Options) -> Vec<QuotaPolicy> {
    let three = |second, minute, day| {
        vec![
            QuotaPolicy::per_second("second", second),
            QuotaPolicy::per_minute("minute", minute),
            QuotaPolicy::per_day("day", day),
        ]
    };
    match options.mode {
        // With few requests per day, a caller's state is kept for an hour, so no caller expires during the test.
        Mode::Callers => three(5, 10, 20),
        Mode::HotKey => vec![QuotaPolicy::per_minute("minute", 100)],
        Mode::Rejection => three(5, 20, 1_000),
        // Typical quotas, but at least twice the rate of the heaviest user. The larger the quota, the sooner the key of
        // a user who has used only a few units expires: with huge quotas, there would be hardly any keys.
        Mode::Find | Mode::Normal | Mode::Outage => {
            let heaviest = Users::new(options.users, options.skew).heaviest() * options.rate as f64;
            let at_least = |usual: u64, seconds: f64| usual.max(round((heaviest * seconds * 2.0) as u64));
            // Includes the warm-up.
            let run = options.seconds as f64 + 1.0;
            three(at_least(100, 2.0), at_least(1_000, 60.0), at_least(10_000, run))
        }
    }
}

/// Rounds up to 1, 2 or 5 times a power of ten, like typical quotas, which need no fractions of microseconds in Redis.
fn round(number: u64) -> u64 {
    let mut numbers = (0..).flat_map(|zeros| [1, 2, 5].map(|digit| digit * 10_u64.pow(zeros)));
    numbers
        .find(|round| *round >= number)
        .expect("quotas are far from the largest")
}

/// Each instance has separate connections.
pub(crate) fn limited(test: &Test<'_>, options: &Options) -> Result<[RateLimit<Bare>; INSTANCES], Box<dyn Error>> {
    let mut instances = Vec::with_capacity(INSTANCES);
    for _ in 0..INSTANCES {
        let store = RedisStore::builder(&test.url)
            .decisions_per_call(options.decisions_per_call)
            .key_prefix(test.server.key_prefix())
            .build()?;
        let limiter = Limiter::builder(store).scope("load");
        let limiter = match options.mode {
            // Every caller must be counted, even if the machine is busy.
            Mode::Callers => limiter.deadline(Duration::from_secs(5)),
            _ => limiter,
        };
        let limiter = policies(options)
            .into_iter()
            .fold(limiter, |limiter, policy| limiter.policy(policy));
        let layer = RateLimitLayer::with_limiter(limiter.build()?).key(key::extension::<UserId>());
        instances.push(layer.build()?.layer(bare()));
    }
    let instances = instances.try_into().expect("as many as were pushed");
    test.runtime.block_on(connect(&instances))?;
    Ok(instances)
}

/// Sends a first request to each instance, which opens the connections and loads the script, so that neither is
/// measured.
async fn connect(instances: &[RateLimit<Bare>; INSTANCES]) -> Result<(), Box<dyn Error>> {
    let nobody = UserId(u64::MAX);
    for instance in instances {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let mut request = Request::default();
            request.extensions_mut().insert(nobody);
            let Ok(response) = instance.clone().oneshot(request).await;
            let decision: Option<&Decision> = response.extensions().get();
            if decision.is_none_or(|decision| decision.outcome() != Outcome::FailedOpen) {
                break;
            }
            if Instant::now() > end {
                return Err("Redis is there, but gives no decisions".into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}
