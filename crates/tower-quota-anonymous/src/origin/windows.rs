//! Derived only from settings and time, so that all instances agree.

use std::time::Duration;

use crate::{Profile, TokenChallenge};
use tower_quota::clock::Timestamp;

/// Each window has its own challenge.
pub(super) struct Windows {
    /// Without contexts.
    template: TokenChallenge,
    /// For deriving contexts; itself derived from the secret.
    redemption_key: [u8; 32],
    credential_key: [u8; 32],
    policy: Vec<u8>,
    length: Duration,
    /// The lifetime of credentials, if limited.
    credential_windows: Option<u64>,
    grace: Duration,
    skew: Duration,
}

/// Since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window(u64);

impl Windows {
    pub(super) fn new(
        template: TokenChallenge,
        secret: &[u8; 32],
        policy: &str,
        length: Duration,
        credential_windows: Option<u64>,
        (grace, skew): (Duration, Duration),
    ) -> Self {
        let derive = |context: &str| blake3::derive_key(context, secret);
        // `build()` rejects names longer than 128 bytes.
        let mut field = (policy.len() as u16).to_be_bytes().to_vec();
        field.extend_from_slice(policy.as_bytes());
        Self {
            template,
            redemption_key: derive("tower-quota 2026-11-22 redemption context of a window"),
            credential_key: derive("tower-quota 2026-11-22 credential context of an epoch"),
            policy: field,
            length,
            credential_windows,
            grace,
            skew,
        }
    }

    /// Either the previous window during the grace period or the next one within the clock skew, never both, as
    /// `build()` ensures.
    pub(super) fn accepted(&self, now: Timestamp) -> (Window, Option<Window>) {
        let window = self.current(now);
        let passed = now.micros_since(self.start(window));
        let left = self.start(Window(window.0 + 1)).micros_since(now);
        let neighbour = if passed < micros(self.grace) {
            window.0.checked_sub(1)
        } else {
            (left <= micros(self.skew)).then_some(window.0 + 1)
        };
        (window, neighbour.map(Window))
    }

    pub(super) fn current(&self, now: Timestamp) -> Window {
        Window(now.as_micros() / micros(self.length))
    }

    pub(super) fn start(&self, window: Window) -> Timestamp {
        Timestamp::from_micros(window.0.saturating_mul(micros(self.length)))
    }

    pub(super) fn left(&self, now: Timestamp) -> Duration {
        let next = Window(self.current(now).0 + 1);
        Duration::from_micros(self.start(next).micros_since(now))
    }

    pub(super) fn max_age(&self, now: Timestamp) -> Duration {
        self.left(now) + self.grace
    }

    /// From the earliest use of a tag (before the window, by the skew of two clocks) to the end of the grace period on
    /// the slowest clock. Depends only on the window, so that all layers keep a context's tags equally long.
    pub(super) fn tag_lifetime(length: Duration) -> Duration {
        length * 2
    }

    pub(super) fn length(&self) -> Duration {
        self.length
    }

    pub(super) fn challenge(&self, profile: Profile, window: Window) -> TokenChallenge {
        let length = self.length.as_secs();
        let context = self.context(&self.redemption_key, length, window.0);
        let challenge = self.template.clone().with_profile(profile);
        let challenge = challenge.with_redemption_context(context);
        match self.credential_windows {
            None => challenge,
            Some(windows) => {
                let epoch = window.0 / windows;
                challenge.with_credential_context(self.context(&self.credential_key, length * windows, epoch))
            }
        }
    }

    fn context(&self, key: &[u8; 32], seconds: u64, number: u64) -> [u8; 32] {
        let parts = [&*self.policy, &seconds.to_be_bytes(), &number.to_be_bytes()];
        *blake3::keyed_hash(key, &parts.concat()).as_bytes()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
