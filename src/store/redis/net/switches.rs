//! Hears of failovers from the sentinels, because an old primary takes writes until it is demoted, and one that hangs
//! takes connections.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use ::redis::RedisError;
use tokio::{
    runtime::Handle,
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use super::{
    connection::code,
    generation::{Heard, Named},
    opener::Opener,
    pool::{Endpoint, PoolState},
    sentinel::Sentinels,
};
use crate::breaker::{self, jittered};

const PAUSE: Duration = Duration::from_secs(1);

impl PoolState {
    pub(super) fn hear_switches(&self) {
        let Endpoint::Primary(sentinels) = &self.connector.endpoint else {
            return;
        };
        let mut task = self.listening.lock();
        if let (true, Ok(runtime)) = (
            task.as_ref().is_none_or(AbortHandle::is_finished),
            Handle::try_current(),
        ) {
            let (state, opener) = (self.this.clone(), self.connector.opener.clone());
            let listening = listen_to_all(state, Arc::clone(sentinels), opener);
            *task = Some(runtime.spawn(listening).abort_handle());
        }
    }

    fn heard(&self, named: &Named, heard: Heard) {
        if self.connector.generations.end_before(named, heard) {
            breaker::failed_over();
            self.refill(Duration::ZERO);
        }
    }
}

/// Ends when no sentinel permits the subscription.
async fn listen_to_all(state: Weak<PoolState>, sentinels: Arc<Sentinels>, opener: Opener) {
    let mut listening = JoinSet::new();
    for sentinel in 0..sentinels.sentinels.len() {
        listening.spawn(listen(state.clone(), Arc::clone(&sentinels), sentinel, opener.clone()));
    }
    while listening.join_next().await.is_some() {}
}

#[allow(clippy::disallowed_methods, reason = "pauses between subscriptions delay no request")]
async fn listen(state: Weak<PoolState>, sentinels: Arc<Sentinels>, sentinel: usize, opener: Opener) {
    let hear = |named: &Named, heard| {
        if let Some(state) = state.upgrade() {
            state.heard(named, heard);
        }
    };
    loop {
        let ended = sentinels.listen(sentinel, &opener, hear).await;
        if ended.is_err_and(|error| is_refusal(&error)) {
            return;
        }
        sleep(jittered(PAUSE)).await;
    }
}

fn is_refusal(error: &RedisError) -> bool {
    code(error) == Some("NOPERM")
}
