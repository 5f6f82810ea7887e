use std::borrow::Cow;

use super::{Algorithm, CallerQuotaBounds, MAX_NAME, MAX_QUOTA, MAX_WINDOW, QuotaPolicy, QuotaUnit};
use crate::{
    algorithm::{Calendar, Closed, Concurrency, Counter, Limit, Lockout, Newcomer},
    error::{ConfigError, ConfigErrorKind},
};

/// An operator can set the quota to 0 without changing the other settings.
pub(super) fn check(policy: &QuotaPolicy) -> Result<Limit, ConfigError> {
    check_name(policy.name())?;
    ConfigError::check_range(ConfigErrorKind::Quota, "quota", policy.quota, 0..=MAX_QUOTA)?;
    if let QuotaUnit::Custom(unit) = policy.unit {
        unit.check()?;
    }
    let counter_of = |quota| counter(policy, quota);
    let counter = counter_of(policy.ceiling())?;
    check_prefetch(policy)?;
    let lockout = lockout(policy)?;
    check_overage(policy)?;
    check_caller_quotas(policy)?;
    let has_overage = policy.overage_units() > 0;
    Ok(Limit {
        counter,
        quota: has_overage.then(|| counter_of(policy.quota)).transpose()?,
        lockout,
        newcomer: newcomer(policy, &counter)?,
    })
}

fn newcomer(policy: &QuotaPolicy, counter: &Counter) -> Result<Option<Newcomer>, ConfigError> {
    let Some(units) = policy.initial_units else {
        return Ok(None);
    };
    let other = match policy.algorithm {
        _ if !policy.is_timed() => Some("concurrency limits".to_owned()),
        algorithm if !algorithm.has_burst_capacity() => Some(format!("{algorithm:?}")),
        _ => None,
    };
    if let Some(other) = other {
        let message = format!("initial units {units}: not supported for {other}, only for token buckets");
        return Err(ConfigError::new(ConfigErrorKind::BurstCapacity, message));
    }
    let most = match policy.is_closed() {
        true => MAX_QUOTA,
        false => policy.burst_capacity(),
    };
    ConfigError::check_range(ConfigErrorKind::BurstCapacity, "initial units", units, 0..=most)?;
    Ok(match counter {
        Counter::Bucket(bucket) if units < most => Some(Newcomer::new(bucket, units)),
        _ => None,
    })
}

fn check_overage(policy: &QuotaPolicy) -> Result<(), ConfigError> {
    let Some(percent) = policy.overage else {
        return Ok(());
    };
    let other = match policy.algorithm {
        _ if policy.is_shadow => Some("shadow policies"),
        _ if policy.lockout.is_some() => Some("policies with a lockout"),
        _ if policy.prefetch.is_some() => Some("policies with prefetching"),
        Algorithm::FixedWindow | Algorithm::SlidingWindowCounter | Algorithm::SlidingWindowLog => None,
        _ if !policy.is_timed() => None,
        _ => Some("buckets, only for windows and concurrency limits"),
    };
    if let Some(other) = other {
        let message = format!("overage {percent}%: not supported for {other}");
        return Err(ConfigError::new(ConfigErrorKind::Quota, message));
    }
    ConfigError::check_range(
        ConfigErrorKind::Quota,
        "overage in percent",
        u64::from(percent),
        1..=10_000,
    )?;
    ConfigError::check_range(
        ConfigErrorKind::Quota,
        "quota plus overage",
        policy.ceiling(),
        0..=MAX_QUOTA,
    )
}

fn check_caller_quotas(policy: &QuotaPolicy) -> Result<(), ConfigError> {
    let Some(CallerQuotaBounds { least, most }) = policy.caller_quotas else {
        return Ok(());
    };
    let bounds = format!("caller quotas {least}..={most}");
    if least > most {
        let message = format!("{bounds}: lower bound exceeds upper bound");
        return Err(ConfigError::new(ConfigErrorKind::Quota, message));
    }
    ConfigError::check_range(ConfigErrorKind::Quota, "largest caller quota", most, 0..=MAX_QUOTA)?;
    [least, most].into_iter().try_for_each(|quota| {
        let policy = QuotaPolicy {
            quota,
            ..policy.clone()
        };
        let sound = check_overage(&policy).and_then(|()| counter(&policy, policy.ceiling()));
        sound.map(drop).map_err(|error| error.within(&bounds))
    })
}

fn counter(policy: &QuotaPolicy, quota: u64) -> Result<Counter, ConfigError> {
    use ConfigErrorKind::{self as Kind, BurstCapacity};

    let Some(window) = policy.window else {
        return without_length(policy, quota);
    };
    if window.subsec_nanos() != 0 || !(1..=MAX_WINDOW).contains(&window.as_secs()) {
        let message = format!("window {window:?} is not a whole number of seconds in 1..={MAX_WINDOW}");
        return Err(ConfigError::new(Kind::Window, message));
    }
    let (algorithm, window, capacity) = (policy.algorithm, window.as_secs(), policy.burst_capacity());
    match policy.burst_capacity {
        Some(capacity) if algorithm.has_burst_capacity() => {
            ConfigError::check_range(BurstCapacity, "burst capacity", capacity, 1..=MAX_QUOTA)?;
        }
        Some(capacity) => {
            let message = format!("burst capacity {capacity}: not supported for {algorithm:?}, only for token buckets");
            return Err(ConfigError::new(BurstCapacity, message));
        }
        None => {}
    }
    if policy.is_closed() {
        return Ok(Counter::Closed(Closed));
    }
    algorithm.counter(quota, window, capacity)
}

fn without_length(policy: &QuotaPolicy, quota: u64) -> Result<Counter, ConfigError> {
    let borders = match &policy.calendar {
        Some(window) => {
            check_calendar(policy)?;
            Some(window.borders()?)
        }
        None if policy.algorithm != Algorithm::default() || policy.burst_capacity.is_some() => {
            let message = "a concurrency limit takes neither an algorithm nor a burst capacity";
            return Err(ConfigError::new(ConfigErrorKind::Algorithm, message));
        }
        None => None,
    };
    Ok(match (quota, borders) {
        (0, _) => Counter::Closed(Closed),
        (quota, Some(borders)) => Counter::Calendar(Calendar::new(quota, borders)),
        (limit, None) => Counter::Concurrency(Concurrency { limit }),
    })
}

fn check_calendar(policy: &QuotaPolicy) -> Result<(), ConfigError> {
    let message = "a calendar window takes neither another algorithm nor a burst capacity";
    match (policy.algorithm, policy.burst_capacity) {
        (Algorithm::FixedWindow, None) => Ok(()),
        _ => Err(ConfigError::new(ConfigErrorKind::Algorithm, message)),
    }
}

pub(super) fn shown_name(name: &str) -> Cow<'_, str> {
    match name.len() {
        ..=MAX_NAME => name.into(),
        _ => name.chars().take(32).chain(['…']).collect(),
    }
}

fn check_name(name: &str) -> Result<(), ConfigError> {
    let message = match name.chars().find(|character| !(' '..='~').contains(character)) {
        Some(character) => format!("the name contains {character:?}; only printable ASCII is allowed"),
        None if name.is_empty() => "the name is empty".to_owned(),
        None if name.len() > MAX_NAME => format!("name length {} exceeds {MAX_NAME} bytes", name.len()),
        None => return Ok(()),
    };
    Err(ConfigError::new(ConfigErrorKind::PolicyName, message))
}

fn lockout(policy: &QuotaPolicy) -> Result<Option<Lockout>, ConfigError> {
    let Some(time) = policy.lockout else {
        return Ok(None);
    };
    let error = |message| Err(ConfigError::new(ConfigErrorKind::Lockout, message));
    let other = match policy.algorithm {
        _ if !policy.is_timed() => Some("concurrency limits"),
        _ if policy.is_shadow => Some("shadow policies"),
        _ if policy.prefetch.is_some() => Some("policies with prefetching"),
        Algorithm::LeakyBucketQueue { .. } => Some("leaky-bucket queues"),
        _ => None,
    };
    if let Some(other) = other {
        return error(format!("lockout {time:?}: not supported for {other}"));
    }
    if time.subsec_nanos() != 0 || !(1..=MAX_WINDOW).contains(&time.as_secs()) {
        return error(format!(
            "lockout {time:?} is not a whole number of seconds in 1..={MAX_WINDOW}"
        ));
    }
    Ok((!policy.is_closed()).then(|| Lockout::new(time.as_secs())))
}

fn check_prefetch(policy: &QuotaPolicy) -> Result<(), ConfigError> {
    let Some(units) = policy.prefetch else {
        return Ok(());
    };
    let takers = match (policy.unit, policy.algorithm) {
        _ if policy.calendar.is_some() => {
            "calendar windows, only for token buckets and fixed windows of constant length".to_owned()
        }
        (QuotaUnit::Requests, Algorithm::TokenBucket | Algorithm::FixedWindow) => {
            let most = if policy.is_closed() {
                MAX_QUOTA
            } else {
                policy.burst_capacity()
            };
            return ConfigError::check_range(ConfigErrorKind::Prefetch, "prefetch", units, 1..=most);
        }
        (QuotaUnit::Requests, algorithm) => format!("{algorithm:?}, only for token buckets and fixed windows"),
        (unit, _) => format!("{unit:?}, only for requests"),
    };
    let message = format!("prefetch {units}: not supported for {takers}");
    Err(ConfigError::new(ConfigErrorKind::Prefetch, message))
}
