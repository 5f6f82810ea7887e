//! A task that keeps the rules of a layer at the version that a source has.

mod builder;
mod deadline;
mod keeper;
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

/// Keeps the rules, the kill switch and an access list of a layer at the version that a [`RulesSource`](super::RulesSource) has.
///
/// You want it where many instances have the same rules, and an incident is no time to reach each of them. It is a task
/// beside the requests, which never wait for it: they are limited by the rules in force. The task asks for the version once
/// a second, a quarter more or less, so that instances change within two seconds of each other while the source answers each question
/// within 300 ms.
///
/// The last good rules stay while the source is unavailable, when nothing is published any more, and when a document is
/// [rejected](FollowerStatus::rejected). Before the first version, they are those of the program; a program that would rather
/// wait calls [`wait_for_rules`](Self::wait_for_rules) before it serves. A version whose number is lower than that of the one
/// before is put in force as any other: a fail-over can lose a publication, and what the source says holds. Its kill switch
/// and its access list hold even if the layer cannot carry out its rules.
///
/// The kill switch and the access list of a [`Control`](super::Control) are read together with the version. The order of
/// precedence is: the switch of this process, the last order of the fleet's switch until it ends, the published document. An
/// instance ends an order by its own clock, so limits never stay off because Redis is unavailable or has lost the order. If the
/// source loses what it had, or goes back to something older, [`FollowerStatus::lost`] says so; the newest order of the
/// switch and all unexpired entries of the newest access lists stay in force until something newer is published.
///
/// A program overrides the fleet by its [`RulesHandle`](tower_quota::RulesHandle): by rules of its own or its own switch,
/// which then stay until [`clear_overrides`](tower_quota::RulesHandle::clear_overrides). Its own rules in an
/// [`AccessList`](tower_quota::AccessList) go before those of the fleet.
///
/// Clones follow together, and the task ends with the last one. The rules stay as they are then. The entries of its access list stay,
/// too, also beyond their [expiry](super::AccessEntry::with_expiry), until a follower of the same set or limiter has read its own.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Rules, key};
/// use tower_quota_fleet::{FileRules, RulesDocument, RulesFollower};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let path = std::env::temp_dir().join(format!("rules-{}.json", std::process::id()));
/// let rules = Rules::new().policy(QuotaPolicy::per_minute("minute", 30));
/// std::fs::write(&path, RulesDocument::new(7, rules.clone()).to_json()?)?;
///
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::client_ip())
///     .policy(QuotaPolicy::per_minute("minute", 60)) // until the file was read, and while it cannot be
///     .build()?;
/// let follower = RulesFollower::builder(layer.limiter().rules(), FileRules::new(&path)).start()?;
/// // Or go on at once, with the rules of the program.
/// tokio::time::timeout(Duration::from_secs(5), follower.wait_for_rules()).await?;
///
/// assert_eq!(layer.limiter().rules().current(), rules);
/// assert_eq!(follower.status().version().map(|version| version.number()), Some(7));
/// # std::fs::remove_file(&path)?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RulesFollower(Arc<Following>);

struct Following {
    status: watch::Receiver<FollowerStatus>,
    shared: Arc<Shared>,
    /// They end with it.
    _tasks: JoinSet<()>,
}

impl RulesFollower {
    /// The state as it is now.
    pub fn status(&self) -> FollowerStatus {
        self.0.status.borrow().clone()
    }

    /// Returns the kill switch and the access list that this instance has read last, also if Redis has lost them.
    pub fn controls(&self) -> Controls {
        self.0.shared.controls()
    }

    /// Returns the newest document whose rules were in force; `None` if the layer has had those of its program only. After a
    /// restored backup, it is the one that Redis has lost.
    ///
    /// An instance never publishes it. If Redis lost the rules, an operator fetches the document from an instance, looks at its
    /// version, author and time, and publishes it with [`Publication::restore`](super::Publication::restore).
    pub fn document(&self) -> Option<RulesDocument> {
        self.0.shared.document()
    }

    /// Waits until a version is in force for the first time: for ever if none is. Put a timeout around it.
    pub async fn wait_for_rules(&self) {
        let mut status = self.0.status.clone();
        if status.wait_for(|status| status.version.is_some()).await.is_err() {
            // A source that panics has ended the task.
            std::future::pending().await
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        // The tasks end later, and hold the rest.
        self.shared.end();
    }
}

impl fmt::Debug for RulesFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RulesFollower").field(&self.status()).finish()
    }
}
