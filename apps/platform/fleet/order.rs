//! The parameters of a change: author, base version, and accepted effects.

use std::time::Duration;

use axum::{
    extract::{FromRequestParts, Query},
    http::{header, request::Parts},
};
use serde::Deserialize;

use super::super::admin::{Failure, unprocessable};

/// `?by=alice&preview=true`, and the version that the operator saw in the `if-match` field.
#[derive(Deserialize)]
pub(super) struct Order {
    #[serde(default)]
    by: String,
    #[serde(default)]
    preview: bool,
    #[serde(default)]
    restart_counts: bool,
    /// `true` if the operator has confirmed the change.
    #[serde(default)]
    confirmed: bool,
    #[serde(default)]
    because: String,
    /// The time for which limits remain disabled.
    seconds: Option<u64>,
    /// The version that the operator saw, or `none` before the first publication.
    #[serde(skip)]
    seen: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Order {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::<Self>::from_request_parts(parts, state).await;
        let Query(mut order) = query.map_err(unprocessable)?;
        let seen = parts.headers.get(header::IF_MATCH);
        // An unreadable field matches no version, so the change is rejected as outdated.
        order.seen = seen.map(|seen| seen.to_str().unwrap_or_default().trim_matches('"').to_owned());
        Ok(order)
    }
}

impl Order {
    /// Returns the author of the version, which is unverified because all operators share one token.
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

    /// Sets the base version, unless the operator specified one.
    pub(super) fn is_about(&mut self, version: &str) {
        self.seen.get_or_insert_with(|| version.to_owned());
    }

    pub(super) fn has_seen_another(&self, holds: Option<&str>) -> bool {
        let seen = self.seen.as_deref();
        seen.is_some_and(|seen| seen != holds.unwrap_or("none"))
    }
}
