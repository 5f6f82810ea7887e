//! The checks that a policy must pass before it is used.

use std::time::Duration;

use super::{Algorithm, MAX_QUOTA, MAX_WINDOW, QuotaPolicy, QuotaUnit};
use crate::{
    algorithm::{Bucket, Concurrency, Counter, FixedWindow, SlidingCounter, SlidingLog},
    error::{ConfigError, ConfigErrorKind},
};

/// The policy in the numbers of its algorithm, if they are valid.
pub(super) fn counter(policy: &QuotaPolicy) -> Result<Counter, ConfigError> {
    let quota = policy.quota;
    let Some(window) = policy.window else {
        if policy.algorithm != Algorithm::default() || policy.burst_capacity.is_some() {
            let message = "concurrent requests are not counted over time: neither algorithm nor burst capacity applies";
            return Err(policy_error(policy, ConfigErrorKind::Algorithm, message));
        }
        return Ok(Counter::Concurrency(Concurrency { limit: quota }));
    };
    check_window(policy, window)?;
    let (window, capacity) = (window.as_secs(), policy.burst_capacity());
    let with_kind = |kind| move |message: String| policy_error(policy, kind, &message);
    match policy.algorithm {
        Algorithm::TokenBucket | Algorithm::StrictTokenBucket => {
            amount(policy, "burst capacity", capacity, ConfigErrorKind::BurstCapacity)?;
        }
        algorithm if policy.burst_capacity.is_some() => {
            let message = format!("burst capacity {capacity} does not apply to {algorithm:?}, only to token buckets");
            return Err(policy_error(policy, ConfigErrorKind::BurstCapacity, &message));
        }
        Algorithm::LeakyBucketQueue { max_waiting } => {
            amount(policy, "max_waiting", max_waiting, ConfigErrorKind::Algorithm)?;
        }
        _ => {}
    }
    match policy.algorithm {
        Algorithm::TokenBucket => Bucket::token(quota, window, capacity)
            .map(Counter::Bucket)
            .map_err(with_kind(ConfigErrorKind::BurstCapacity)),
        Algorithm::StrictTokenBucket => Bucket::strict(quota, window, capacity)
            .map(Counter::Bucket)
            .map_err(with_kind(ConfigErrorKind::BurstCapacity)),
        Algorithm::LeakyBucketMeter => Bucket::leaky(quota, window, 0)
            .map(Counter::Bucket)
            .map_err(with_kind(ConfigErrorKind::Algorithm)),
        Algorithm::LeakyBucketQueue { max_waiting } => Bucket::leaky(quota, window, max_waiting)
            .map(Counter::Bucket)
            .map_err(with_kind(ConfigErrorKind::Algorithm)),
        Algorithm::FixedWindow => Ok(Counter::FixedWindow(FixedWindow::new(quota, window))),
        Algorithm::SlidingWindowCounter => Ok(Counter::SlidingCounter(SlidingCounter::new(quota, window))),
        Algorithm::SlidingWindowLog => SlidingLog::new(quota, window)
            .map(Counter::SlidingLog)
            .map_err(with_kind(ConfigErrorKind::Quota)),
    }
}

fn policy_error(policy: &QuotaPolicy, kind: ConfigErrorKind, message: &str) -> ConfigError {
    ConfigError::new(kind, format!("policy {:?}: {message}", policy.name()))
}

pub(super) fn name(policy: &QuotaPolicy) -> Result<(), ConfigError> {
    let error = |message: &str| Err(policy_error(policy, ConfigErrorKind::PolicyName, message));
    if policy.name().is_empty() {
        return error("the name is empty");
    }
    match policy.name().chars().find(|character| !(' '..='~').contains(character)) {
        Some(character) => error(&format!(
            "the name holds {character:?}; only printable ASCII can be sent"
        )),
        None => Ok(()),
    }
}

fn check_window(policy: &QuotaPolicy, window: Duration) -> Result<(), ConfigError> {
    if window.subsec_nanos() == 0 && (1..=MAX_WINDOW).contains(&window.as_secs()) {
        return Ok(());
    }
    let message = format!("window {window:?} is not a whole number of seconds in 1..={MAX_WINDOW}");
    Err(policy_error(policy, ConfigErrorKind::Window, &message))
}

pub(super) fn prefetch(policy: &QuotaPolicy) -> Result<(), ConfigError> {
    let error = |message| Err(policy_error(policy, ConfigErrorKind::Prefetch, message));
    let (Some(units), capacity) = (policy.prefetch, policy.burst_capacity()) else {
        return Ok(());
    };
    match (policy.unit, policy.algorithm) {
        (QuotaUnit::Requests, Algorithm::TokenBucket | Algorithm::FixedWindow) if (1..=capacity).contains(&units) => {
            Ok(())
        }
        (QuotaUnit::Requests, Algorithm::TokenBucket | Algorithm::FixedWindow) => {
            error(&format!("prefetch {units} is outside 1..={capacity}"))
        }
        (QuotaUnit::Requests, algorithm) => error(&format!(
            "prefetch {units} does not apply to {algorithm:?}, only to token buckets and fixed windows"
        )),
        (unit, _) => error(&format!(
            "prefetch {units} does not apply to {unit:?}, only to requests"
        )),
    }
}

pub(super) fn amount(policy: &QuotaPolicy, field: &str, value: u64, kind: ConfigErrorKind) -> Result<(), ConfigError> {
    if (1..=MAX_QUOTA).contains(&value) {
        return Ok(());
    }
    Err(policy_error(
        policy,
        kind,
        &format!("{field} {value} is outside 1..={MAX_QUOTA}"),
    ))
}
