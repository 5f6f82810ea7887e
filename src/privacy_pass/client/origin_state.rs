//! The state of an issuer that belongs to one origin: no other origin can observe it.

use std::{collections::VecDeque, time::Duration};

use super::error::NoToken;
use crate::{clock::Timestamp, mutex::Mutex, privacy_pass::Directory};

pub(super) struct OriginState {
    state: Mutex<State>,
    max_issuances: usize,
    /// Held while a credential is fetched, so that requests for the same credential wait for it.
    pub(super) issuing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// With the end of its time in the cache.
    directory: Option<(Directory, Timestamp)>,
    read_at: Option<Timestamp>,
    /// Nothing is sent to the issuer before.
    blocked_until: Timestamp,
    /// The requests for credentials in the last hour.
    issued: VecDeque<Timestamp>,
}

impl OriginState {
    /// The minimum time between two reads for unknown keys: origins can name any number of them.
    const PAUSE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3_600);

    pub(super) fn new(max_issuances: usize) -> Self {
        Self {
            state: Mutex::default(),
            max_issuances,
            issuing: tokio::sync::Mutex::default(),
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

    pub(super) fn block(&self, wait: Duration, now: Timestamp) {
        self.state.lock().blocked_until = now.saturating_add(wait);
    }

    /// Fails if the issuer has asked for a wait that is not over.
    pub(super) fn check_wait(&self, now: Timestamp) -> Result<(), NoToken> {
        let cause = || "the issuer has asked for a wait".to_owned();
        wait_until(self.state.lock().blocked_until, now, cause)
    }

    /// Counts a request for a credential that is about to be sent, or fails if it must not be.
    pub(super) fn count_issuance(&self, now: Timestamp) -> Result<(), NoToken> {
        self.check_wait(now)?;
        let mut state = self.state.lock();
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
