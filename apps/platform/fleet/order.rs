//! The circumstances of a change: who makes it, what they have seen, and what they accept.

use std::time::Duration;

use axum::{
    extract::{FromRequestParts, Query},
    http::{header, request::Parts},
};
use serde::Deserialize;

use super::super::admin::{Failure, unprocessable};

/// `?by=alice&preview=true`, and in the field `if-match` the version that the operator has seen.
#[derive(Deserialize)]
pub(super) struct Order {
    #[serde(default)]
    by: String,
    #[serde(default)]
    preview: bool,
    #[serde(default)]
    restart_counts: bool,
    /// True if the operator has confirmed what the service asked about.
    #[serde(default)]
    confirmed: bool,
    #[serde(default)]
    because: String,
    /// The time for which limits stay off.
    seconds: Option<u64>,
    /// `none` if nothing was published.
    #[serde(skip)]
    seen: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Order {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::<Self>::from_request_parts(parts, state).await;
        let Query(mut order) = query.map_err(unprocessable)?;
        let seen = parts.headers.get(header::IF_MATCH);
        // A field that cannot be read is no version, so it is outdated.
        order.seen = seen.map(|seen| seen.to_str().unwrap_or_default().trim_matches('"').to_owned());
        Ok(order)
    }
}

impl Order {
    /// The author of the version. All operators have one token, so this is what they say, not what they have proved.
    pub(super) fn author(&self) -> String {
        let name: String = self.by.chars().filter(|char| !char.is_control()).take(60).collect();
        match name.trim() {
            "" => "the operators' page".to_owned(),
            name => name.to_owned(),
        }
    }

    pub(super) fn restarts_counts(&self) -> bool {
        self.restart_counts
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    pub(super) fn reason(&self) -> &str {
        &self.because
    }

    pub(super) fn seconds(&self) -> Option<Duration> {
        self.seconds.map(Duration::from_secs)
    }

    pub(super) fn is_preview(&self) -> bool {
        self.preview
    }

    /// Sets the version that the change was made for, if the operator has named none.
    pub(super) fn is_about(&mut self, version: &str) {
        self.seen.get_or_insert_with(|| version.to_owned());
    }

    pub(super) fn has_seen_another(&self, holds: Option<&str>) -> bool {
        let seen = self.seen.as_deref();
        seen.is_some_and(|seen| seen != holds.unwrap_or("none"))
    }
}
