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

/// Keeps the rules, kill switch and access list of a layer up to date with a [`RulesSource`](super::RulesSource).
///
/// Background tasks poll the source about once per second, and requests never wait for them. Instances apply a change
/// within two seconds of each other, if the source answers each call within 300 ms. The tasks stop when the last clone
/// is dropped.
///
/// Until the first version is read ([`wait_for_rules`](Self::wait_for_rules)), the rules of the program apply. While
/// the source is unavailable, empty, or contains a [rejected](FollowerStatus::rejected) document, the last valid rules
/// remain in effect.
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
/// // Or continue at once, with the rules of the program.
/// tokio::time::timeout(Duration::from_secs(5), follower.wait_for_rules()).await?;
///
/// assert_eq!(layer.limiter().rules().current(), rules);
/// assert_eq!(follower.status().version().map(|version| version.number()), Some(7));
/// # fs::remove_file(&path)?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Precedence
///
/// The switch of the fleet is the last order of a [`Control`](super::Control), until it expires by the clock of each
/// instance, or that of the document in a file. Switch and access list apply even if the layer cannot apply the rules.
///
/// A program can override rules and switch through its [`RulesHandle`](tower_quota::RulesHandle), until
/// [`clear_overrides`](tower_quota::RulesHandle::clear_overrides). Its own entries in an
/// [`AccessList`](tower_quota::AccessList) take precedence over the fleet's.
///
/// # Loss of data
///
/// A version with a smaller number is applied like any other, because a failover can lose a publication. If the source
/// loses data, [`FollowerStatus::lost`] lists what was lost, and the newest order and access list remain in effect
/// until something newer is published.
///
/// After the last clone is dropped, the rules stay, limits that the fleet switched off are enabled, and access list
/// entries stay until a follower of the same rule set or limiter has read its own.
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

    /// Returns the kill switch and access list that this instance read last, even if Redis has lost them.
    pub fn controls(&self) -> Controls {
        self.0.shared.controls()
    }

    /// Returns the newest document whose rules this instance has applied, or `None` if it has used only the rules of
    /// its program.
    ///
    /// After a restored backup, this is the document that Redis lost. Check it and publish it with
    /// [`Publication::restore`](super::Publication::restore).
    pub fn document(&self) -> Option<RulesDocument> {
        self.0.shared.document()
    }

    /// Waits until the first version is applied.
    ///
    /// Waits forever if there is none, so use a timeout.
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
