//! The per-origin state of an issuer, which other origins cannot observe.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{error::NoToken, storage::ContextName};
use crate::{CredentialRequest, Directory, KeyId, mutex::Mutex};
use tower_quota::clock::Timestamp;

pub(super) struct OriginState {
    state: Mutex<State>,
    max_issuances: usize,
    /// Other requests for the credential wait.
    pub(super) issuing: Arc<tokio::sync::Mutex<Option<Unanswered>>>,
}

/// The issuer may have charged it, and answers the same bytes again without a charge.
pub(super) struct Unanswered {
    pub(super) credential: ContextName,
    pub(super) request: Arc<CredentialRequest>,
}

#[derive(Default)]
struct State {
    /// With the end of its cache time.
    directory: Option<(Directory, Timestamp)>,
    read_at: Option<Timestamp>,
    blocked_until: Timestamp,
    /// Since the last issuance; reset after a longer pause.
    failures: u32,
    /// In the last hour.
    issued: VecDeque<Timestamp>,
    /// When a key with an invalid response may be used again.
    failed: BTreeMap<KeyId, Timestamp>,
}

impl OriginState {
    /// Between reads of the directory for unknown keys, of which an origin can name any number.
    const PAUSE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3_600);
    /// Prevents an outage from exhausting an hour's issuances within a second.
    const FIRST_WAIT: Duration = Duration::from_secs(10);
    const MAX_WAIT: Duration = Duration::from_secs(300);
    /// For a key, after an invalid response.
    const DISTRUST: Duration = Duration::from_secs(300);

    pub(super) fn new(max_issuances: usize) -> Self {
        Self {
            state: Mutex::default(),
            max_issuances,
            issuing: Arc::default(),
        }
    }

    pub(super) fn directory(&self, now: Timestamp) -> Option<Directory> {
        let state = self.state.lock();
        let (directory, until) = state.directory.as_ref()?;
        (now < *until).then(|| directory.clone())
    }

    pub(super) fn keep_directory(&self, directory: Directory, age: Duration, now: Timestamp) {
        let mut state = self.state.lock();
        state.read_at = Some(now);
        state.directory = Some((directory, now.saturating_add(age)));
    }

    pub(super) fn may_read_again(&self, now: Timestamp) -> bool {
        let read_at = self.state.lock().read_at;
        read_at.is_none_or(|read_at| now >= read_at.saturating_add(Self::PAUSE))
    }

    /// `asked` is the wait requested by the issuer.
    pub(super) fn fail(&self, asked: Option<Duration>, now: Timestamp) -> Duration {
        let mut state = self.state.lock();
        // A successful read of the directory does not reset the failures, because the directory may be available while
        // issuance fails.
        if now >= state.blocked_until.saturating_add(Self::MAX_WAIT) {
            state.failures = 0;
        }
        // Concurrent failures count once.
        if now >= state.blocked_until || state.failures == 0 {
            state.failures = state.failures.saturating_add(1);
        }
        let doubled = Self::FIRST_WAIT.saturating_mul(1 << (state.failures - 1).min(16));
        let wait = doubled.min(Self::MAX_WAIT).max(asked.unwrap_or_default());
        state.blocked_until = state.blocked_until.max(now.saturating_add(wait));
        wait
    }

    pub(super) fn succeed(&self) {
        self.state.lock().failures = 0;
    }

    pub(super) fn check_wait(&self, now: Timestamp) -> Result<(), NoToken> {
        let cause = || "a request to the issuer failed; the retry wait has not passed".to_owned();
        wait_until(self.state.lock().blocked_until, now, cause)
    }

    pub(super) fn distrust(&self, key: KeyId, now: Timestamp) -> Duration {
        let mut state = self.state.lock();
        state.failed.retain(|_, until| now < *until);
        state.failed.insert(key, now.saturating_add(Self::DISTRUST));
        Self::DISTRUST
    }

    /// Fails if the request, which is sent right after this call, must not be sent.
    pub(super) fn count_issuance(&self, key: KeyId, now: Timestamp) -> Result<(), NoToken> {
        self.check_wait(now)?;
        let mut state = self.state.lock();
        if let Some(until) = state.failed.get(&key) {
            let cause = || format!("the last credential of key {key} was invalid");
            wait_until(*until, now, cause)?;
        }
        let ends = |issued: &Timestamp| issued.saturating_add(Self::HOUR);
        while state.issued.front().is_some_and(|issued| now >= ends(issued)) {
            state.issued.pop_front();
        }
        if let Some(first) = state
            .issued
            .front()
            .filter(|_| state.issued.len() >= self.max_issuances)
        {
            let cause = || format!("limit of {} credential requests per hour reached", self.max_issuances);
            wait_until(ends(first), now, cause)?;
        }
        state.issued.push_back(now);
        Ok(())
    }
}

fn wait_until(end: Timestamp, now: Timestamp, cause: impl FnOnce() -> String) -> Result<(), NoToken> {
    match end.micros_since(now) {
        0 => Ok(()),
        left => Err(NoToken::Issuer(cause().into(), Some(Duration::from_micros(left)))),
    }
}
