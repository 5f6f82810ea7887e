//! The client layer, from what a header says to whole jobs against limited servers.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod advice;
mod jobs;
mod layer;
mod pacing;
mod problems;
mod properties;
mod readiness;
mod retries;

use std::time::Duration;

use http::{HeaderMap, HeaderName, StatusCode};
use tower_quota::{
    client::{Advice, Caps, Exchange},
    clock::Timestamp,
};

/// Tue, 14 Nov 2023 22:13:20 GMT
const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> Timestamp {
    START.saturating_add(Duration::from_secs(seconds))
}

/// Fields as a server sends them: `"ratelimit: \"a\";r=1"`.
fn headers(lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        headers.append(HeaderName::try_from(name).unwrap(), value.parse().unwrap());
    }
    headers
}

/// What a client makes of a response that was sent at once.
fn advice_of(status: u16, lines: &[&str]) -> Advice {
    let exchange = Exchange {
        sent: START,
        received: START,
    };
    let status = StatusCode::from_u16(status).unwrap();
    Advice::read(status, &headers(lines), exchange, &Caps::default())
}
