//! The state of an issuer that belongs to one origin: no other origin can observe it.

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
    /// Held while a credential is fetched, so that requests for the same credential wait for it.
    pub(super) issuing: Arc<tokio::sync::Mutex<Option<Unanswered>>>,
}

/// A request for a credential whose response did not arrive. The issuer may have charged it, and answers the same bytes
/// again without a charge.
pub(super) struct Unanswered {
    pub(super) credential: ContextName,
    pub(super) request: Arc<CredentialRequest>,
}

#[derive(Default)]
struct State {
    /// With the end of its time in the cache.
    directory: Option<(Directory, Timestamp)>,
    read_at: Option<Timestamp>,
    /// Nothing is sent to the issuer before.
    blocked_until: Timestamp,
    /// The failures since the last issuance, without those from before a longer pause.
    failures: u32,
    /// The requests for credentials in the last hour.
    issued: VecDeque<Timestamp>,
    /// The keys with an invalid response, each until the next request. Not more than `issued` has entries, since each of
    /// them took an issuance.
    failed: BTreeMap<KeyId, Timestamp>,
}

impl OriginState {
    /// The minimum time between two reads for unknown keys: origins can name any number of them.
    const PAUSE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3_600);
    /// The wait after a failed request, doubled for each further one. An outage would otherwise use up the issuances of an
    /// hour within a second.
    const FIRST_WAIT: Duration = Duration::from_secs(10);
    const MAX_WAIT: Duration = Duration::from_secs(300);
    /// The time for which no credential of a key is requested after an invalid response.
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

    /// Returns the wait after a failed request, for which the issuer may have asked for a longer one.
    pub(super) fn fail(&self, asked: Option<Duration>, now: Timestamp) -> Duration {
        let mut state = self.state.lock();
        // A directory that was read does not end the failures, since it may be served while no credential is.
        if now >= state.blocked_until.saturating_add(Self::MAX_WAIT) {
            state.failures = 0;
        }
        // Requests at the same time are one failure.
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

    /// Fails if the wait after a failed request is not over.
    pub(super) fn check_wait(&self, now: Timestamp) -> Result<(), NoToken> {
        let cause = || "a request to the issuer has failed, and the wait after it is not over".to_owned();
        wait_until(self.state.lock().blocked_until, now, cause)
    }

    /// Returns the wait after a response with an invalid credential of this key.
    pub(super) fn distrust(&self, key: KeyId, now: Timestamp) -> Duration {
        let mut state = self.state.lock();
        state.failed.retain(|_, until| now < *until);
        state.failed.insert(key, now.saturating_add(Self::DISTRUST));
        Self::DISTRUST
    }

    /// Counts a request for a credential that is about to be sent, or fails if it must not be.
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
            let cause = || {
                format!(
                    "{} requests for credentials were sent within an hour",
                    self.max_issuances
                )
            };
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
