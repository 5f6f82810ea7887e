use std::{
    fmt::Display,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use tokio::time::timeout;

use super::{
    look_up::{Answer, Ask, LookUp, SourceAnswer},
    shard::{Shard, Times},
    shared::{Place, Shared},
};
use crate::{clock::Timestamp, partition::PartitionId, rules::ResolvedTier};

const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// Prevents other lookups of the user until it is dropped.
pub(super) struct Ongoing {
    shared: Arc<Shared>,
    user: PartitionId,
    look_up: LookUp,
    place: Option<Place>,
}

impl Ongoing {
    pub(super) fn new(shared: &Arc<Shared>, user: PartitionId, look_up: LookUp, place: Place) -> Self {
        Self {
            shared: Arc::clone(shared),
            user,
            look_up,
            place: Some(place),
        }
    }

    pub(super) async fn run(mut self, ask: Ask) {
        if let Err(error) = self.take_place().await {
            // The source has not failed, so the pause is not doubled.
            return self.end_in_vain(&error, Shard::pause);
        }
        loop {
            // The source has not been called yet, so its answer will be newer than every earlier `forget`.
            self.shared.shards.lock(self.user).take_outdated(self.user);
            let began = self.shared.clock.now();
            // The resolver's future is dropped before the lookup ends, and therefore before another lookup of the user
            // begins.
            let answer = timeout(LOOK_UP_TIMEOUT, ask()).await;
            let answer = answer.unwrap_or_else(|_| Err(format!("lookup timed out after {LOOK_UP_TIMEOUT:?}")));
            if self.end(began, answer) {
                return;
            }
        }
    }

    async fn take_place(&mut self) -> Result<(), String> {
        if !self.place.as_ref().is_some_and(|place| place.is_queued) {
            return Ok(());
        }
        let settings = &self.shared.settings;
        let (most, limit) = (settings.max_look_ups, settings.on_unknown_tier.wait.unwrap_or_default());
        let permit = timeout(limit, Arc::clone(&self.shared.places).acquire_owned()).await;
        let permit = permit.ok().and_then(Result::ok);
        self.place = Some(Place {
            is_queued: false,
            _permit: permit.ok_or_else(|| {
                format!("limit of {most} lookups in progress reached; no lookup completed within {limit:?}")
            })?,
        });
        Ok(())
    }

    fn end(&mut self, began: Timestamp, answer: SourceAnswer) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut shard = shared.shards.lock(self.user);
        if shard.take_outdated(self.user) {
            return false;
        }
        let now = shared.clock.now();
        let answer = match answer {
            Ok(tier) => {
                if let Some(problem) = tier.as_ref().and_then(ResolvedTier::quotas_problem) {
                    shared.log.failed(now, &problem);
                }
                Some(shard.learn(self.user, tier, began, now, &shared.settings.times))
            }
            Err(error) => {
                shard.fail(self.user, now, &shared.settings.times);
                shared.log.failed(now, &error);
                None
            }
        };
        self.leave(shard, answer);
        true
    }

    fn end_in_vain(&mut self, error: &dyn Display, pause: impl FnOnce(&mut Shard, PartitionId, Timestamp, &Times)) {
        let shared = Arc::clone(&self.shared);
        let (mut shard, now) = (shared.shards.lock(self.user), shared.clock.now());
        pause(&mut shard, self.user, now, &shared.settings.times);
        shared.log.failed(now, error);
        self.leave(shard, None);
    }

    fn leave(&mut self, mut shard: MutexGuard<'_, Shard>, answer: Option<Answer>) {
        // Released first, because the user's next request may need it to begin a lookup.
        self.place = None;
        shard.end(self.user);
        drop(shard);
        self.look_up.publish(answer);
    }
}

impl Drop for Ongoing {
    /// Held only if the resolver has panicked or the runtime shuts down.
    fn drop(&mut self) {
        if self.place.is_some() {
            self.end_in_vain(&"lookup panicked or was shut down", Shard::fail);
        }
    }
}
