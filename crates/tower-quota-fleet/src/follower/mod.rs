mod builder;
mod deadline;
mod poller;
mod reporter;
mod shared;
mod status;

use std::{fmt, sync::Arc};

use tokio::{sync::watch, task::JoinSet};

use self::shared::Shared;
pub use self::{
    builder::RulesFollowerBuilder,
    status::{FollowerStatus, Lost},
};
use super::{controls::Controls, document::RulesDocument};

/// Keeps a layer's rules, kill switch and access list up to date with a [`RulesSource`](super::RulesSource).
///
/// Background tasks poll the source about once per second, until the last clone is dropped; requests never wait for
/// them. Instances apply a change within two seconds of each other if the source answers within 300 ms.
///
/// The rules of the program apply until the [first version](Self::wait_for_rules) is read. While the source is
/// unavailable, empty, or has a [rejected](FollowerStatus::rejected) document, the last valid rules remain in effect.
/// The guide specifies the [precedence](crate::guide#the-kill-switch-and-the-access-list) of switches and lists, and
/// what happens [after a loss of data](crate::guide#when-redis-loses-its-data) and [after the last clone is
/// dropped](crate::guide#what-happens-when).
///
/// ```
/// use std::{env, fs, process, time::Duration};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Rules, key};
/// use tower_quota_fleet::{FileRules, RulesDocument, RulesFollower};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let path = env::temp_dir().join(format!("rules-{}.json", process::id()));
/// let rules = Rules::new().policy(QuotaPolicy::per_minute("minute", 30));
/// fs::write(&path, RulesDocument::new(7, rules.clone()).to_json()?)?;
///
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::client_ip())
///     .policy(QuotaPolicy::per_minute("minute", 60)) // until the file is read, and while it cannot be read
///     .build()?;
/// let follower = RulesFollower::builder(layer.limiter().rules(), FileRules::new(&path)).start()?;
/// // A service starts even if the source does not answer, with the rules of the program.
/// if tokio::time::timeout(Duration::from_secs(5), follower.wait_for_rules()).await.is_err() {
///     eprintln!("no rules yet: {:?}", follower.status().failure());
/// }
///
/// assert_eq!(layer.limiter().rules().current(), rules);
/// assert_eq!(follower.status().version().map(|version| version.number()), Some(7));
/// # fs::remove_file(&path)?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RulesFollower(Arc<Following>);

struct Following {
    status: watch::Receiver<FollowerStatus>,
    shared: Arc<Shared>,
    /// Aborted on drop.
    _tasks: JoinSet<()>,
}

impl RulesFollower {
    /// Returns the current status.
    pub fn status(&self) -> FollowerStatus {
        self.0.status.borrow().clone()
    }

    /// Returns the switch and access list that this instance read last, even if Redis lost them.
    pub fn controls(&self) -> Controls {
        self.0.shared.controls()
    }

    /// Returns the newest document that this instance applied, or `None` with the rules of its program.
    ///
    /// If Redis lost it, check it and [publish it again](super::Publication::restore).
    pub fn document(&self) -> Option<RulesDocument> {
        self.0.shared.document()
    }

    /// Waits until the first version is applied, possibly forever: use a timeout.
    pub async fn wait_for_rules(&self) {
        let mut status = self.0.status.clone();
        if status.wait_for(|status| status.version.is_some()).await.is_err() {
            // The source panicked, which ended the task.
            std::future::pending().await
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        // The tasks are aborted asynchronously, and own the remaining state until then.
        self.shared.end();
    }
}

impl fmt::Debug for RulesFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RulesFollower").field(&self.status()).finish()
    }
}
