mod control;
mod proposal;
mod publication;
mod published;

use std::{future::Future, time::Duration};

use tokio::time::timeout;

use self::proposal::effects;
pub use self::{proposal::Proposal, publication::Publication, published::Published};
use super::{
    Change, FleetError, FleetErrorKind, InstanceReport, RedisRules, RulesDocument, RulesVersion,
    blocking::run_blocking,
    document::{check_length, check_text},
    redis_rules::{bytes, version_of},
};
use tower_quota::{
    StoreError, StoreErrorKind,
    redis::{Cmd, Value, cmd},
};

const WRITE: &str = include_str!("write.lua");

/// Bounds a reply: each version can have 1 MiB.
const HISTORY: usize = 16;

const CHANGES: usize = 1_024;

/// A faulty instance could otherwise exhaust the numbers.
const MOST_LOST: u64 = 1_000_000;

/// Per reply. Only operators wait for it, never requests.
const PATIENCE: Duration = Duration::from_secs(5);

/// The script is idempotent.
const SENDS: usize = 2;

/// Publishes rules for all instances of a service.
///
/// Use this in a deployment or an on-call tool, with an [ACL user](crate::guide#publishing) of its own.
///
/// ```no_run
/// use tower_quota::{QuotaPolicy, RedisStore, Rules};
/// use tower_quota_fleet::{Control, Publication, RedisRules, RulesPublisher};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = RedisRules::new(RedisStore::builder("redis://publisher:password@127.0.0.1/"), "api")?;
/// let publisher = RulesPublisher::new(rules, "alice");
///
/// let stricter = Rules::new().policy(QuotaPolicy::per_minute("minute", 30));
/// let proposal = publisher.propose(Publication::rules(stricter).rollout_percent(10)).await?;
/// println!("{proposal}"); // callers who join the rollout (10% of all): policy "minute" changes: quota 60 → 30
/// let published = publisher.commit(&proposal).await?;
/// println!("published version {}", published.version().number());
///
/// publisher.publish(Publication::roll_back()).await?;
/// publisher.control(Control::block_network("203.0.113.9").because("credential stuffing")).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Publications
///
/// Each publication validates the whole document and creates a new version atomically, or fails with
/// [`Conflict`](FleetErrorKind::Conflict) if its base is no longer current.
///
/// Instances follow within two seconds. Until then, a caller gets at most the larger quota, or the sum of both if
/// [counts reset](tower_quota::updates::RulesDiff).
///
/// # Controls
///
/// A [`Control`](super::Control) requires no published rules and never conflicts with a publication.
///
/// # Errors
///
/// Each method waits up to 5 s for each reply, then fails with [`Unavailable`](FleetErrorKind::Unavailable). A change
/// without a reply is sent once more and takes effect at most once; only after `Unavailable` may it have taken effect.
#[derive(Clone, Debug)]
pub struct RulesPublisher {
    rules: RedisRules,
    author: String,
}

struct Current {
    head: Vec<u8>,
    published: Result<Option<Published>, FleetError>,
    history: Vec<RulesDocument>,
}

impl RulesPublisher {
    /// Creates a publisher whose versions record `author`: at most [256](RulesDocument::MAX_AUTHOR) bytes.
    pub fn new(rules: RedisRules, author: impl Into<String>) -> Self {
        let author = author.into();
        Self { rules, author }
    }

    /// Returns the current version, or `None` if nothing was published. Fails if the document is
    /// [unreadable](FleetErrorKind::Unreadable).
    pub async fn current(&self) -> Result<Option<Published>, FleetError> {
        self.read(1).await?.published
    }

    /// Returns the last 16 published versions, newest first, without unreadable ones.
    pub async fn history(&self) -> Result<Vec<RulesDocument>, FleetError> {
        Ok(self.read(HISTORY).await?.history)
    }

    /// Returns the last 1,024 changes of rules, kill switch and access list, newest first.
    pub async fn changes(&self) -> Result<Vec<Change>, FleetError> {
        let read = |json: &[u8]| serde_json::from_slice(json).ok();
        Ok(self.list(&self.rules.keys().changes, CHANGES, read).await?)
    }

    /// Prepares and validates a publication without writing it. Fails if the published document is unreadable, or the
    /// new one is invalid.
    pub async fn propose(&self, publication: Publication) -> Result<Proposal, FleetError> {
        check_text("reason", &publication.reason)?;
        let current = self.read(HISTORY).await?;
        let now = self.now_millis().await? / 1_000;
        let newest = self.newest_number(&current).await;
        let before = match current.published {
            Ok(published) => published,
            Err(_) if publication.overwrites => None,
            Err(error) => return Err(error),
        };
        let held = before.as_ref().map(Published::document);
        let after_roll_back = publication.is_roll_back() && self.is_roll_back(held).await?;
        let author = self.author.clone();
        run_blocking(move || {
            let held = before.as_ref().map(Published::document);
            let (is_restoration, reason) = (publication.is_restoration(), publication.reason.clone());
            let restarts_counts = publication.accepts_new_counts(before.is_some());
            let (document, restores) = publication.apply(held, &current.history, after_roll_back)?;
            let restored = if is_restoration { document.version() } else { 0 };
            let document = document
                .with_version(newest.max(restored) + 1)
                .with_author(author)
                .with_time(now);
            document.check()?;
            document.check_without_controls()?;
            document.to_json()?;
            let is_behind = before.as_ref().is_some_and(|before| newest > before.version().number());
            Ok(Proposal {
                head: current.head,
                effects: effects(held, &document),
                restarts_counts,
                before,
                document,
                is_behind,
                restores,
                reason,
            })
        })
        .await
    }

    /// Includes numbers that Redis has lost, but instances remember.
    async fn newest_number(&self, current: &Current) -> u64 {
        let newest = current.newest_number();
        let reports = self.reports().await;
        let seen = reports.iter().map(InstanceReport::newest);
        let believed = seen.filter(|seen| *seen <= newest + MOST_LOST).max();
        newest.max(believed.unwrap_or(0))
    }

    async fn is_roll_back(&self, current: Option<&RulesDocument>) -> Result<bool, FleetError> {
        let Some(current) = current else {
            return Ok(false);
        };
        let changes = self.changes().await?;
        let made_it = changes
            .iter()
            .find(|change| change.version() == Some(current.version()));
        Ok(made_it.is_some_and(Change::is_roll_back))
    }

    /// Publishes a proposal if its base is still current.
    ///
    /// # Errors
    ///
    /// Returns [`FleetErrorKind::Conflict`] if another version is current, and [`FleetErrorKind::CountsReset`] if
    /// counts would reset without [permission](Publication::allow_count_reset).
    pub async fn commit(&self, proposal: &Proposal) -> Result<Published, FleetError> {
        if let Some(before) = proposal.base().filter(|_| proposal.is_empty()) {
            return Ok(before.clone());
        }
        proposal.check_count_resets()?;
        let json = proposal.document.to_json()?;
        let version = RulesVersion::of(proposal.document.version(), json.as_bytes());
        let head = self.write(proposal, version, &json).await?;
        // If the first attempt succeeded but its reply was lost, the second attempt returns the same head.
        if head != version.to_string().as_bytes() {
            return Err(conflict(proposal.base().map(Published::version), version_of(&head)));
        }
        Ok(Published::new(version, proposal.document.clone()))
    }

    /// Proposes and commits a publication, with the errors of both.
    pub async fn publish(&self, publication: Publication) -> Result<Published, FleetError> {
        let proposal = self.propose(publication).await?;
        self.commit(&proposal).await
    }

    async fn read(&self, versions: usize) -> Result<Current, StoreError> {
        let keys = self.rules.keys();
        let mut length = cmd("STRLEN");
        length.arg(&keys.document);
        let length = match self.command(length).await? {
            Value::Int(length) => usize::try_from(length).unwrap_or(usize::MAX),
            _ => 0,
        };
        let fits = check_length(length);
        let [head, document] = match fits {
            Ok(()) => self.values([&keys.head, &keys.document]).await?,
            // A value that is too long for a document is not transferred.
            Err(_) => self.values([&keys.head]).await.map(|[head]| [head, None])?,
        };
        let read = |json: &[u8]| RulesDocument::parse(json).ok();
        let history = self.list(&keys.history, versions, read).await?;
        let current = run_blocking(move || {
            let published = match fits {
                Ok(()) => Published::read(head.as_deref(), document.as_deref()),
                Err(error) => Err(error.to_string()),
            };
            let published = published.map_err(|problem| {
                let message = format!("published rules cannot be read: {problem}");
                FleetError::new(FleetErrorKind::Unreadable, message)
            });
            Current {
                published,
                history,
                head: head.unwrap_or_default(),
            }
        });
        Ok(current.await)
    }

    /// Differs from `version` after a conflict.
    async fn write(&self, proposal: &Proposal, version: RulesVersion, json: &str) -> Result<Vec<u8>, FleetError> {
        let (keys, document) = (self.rules.keys(), &proposal.document);
        let change = Change::new(
            document.time(),
            document.author(),
            &proposal.reason,
            Some(document.version()),
            &proposal.to_string(),
        );
        let change = change.rolling_back(proposal.restores.is_some());
        let mut write = cmd("EVAL");
        write.arg(WRITE).arg(4);
        write.arg(&[&keys.head, &keys.document, &keys.history, &keys.changes]);
        write.arg(&proposal.head).arg(version.to_string()).arg(json);
        write.arg(HISTORY).arg(self::json(&change)?).arg(CHANGES);
        let head = self.send_twice(&write).await?;
        Ok(head.ok_or_else(|| StoreError::new(StoreErrorKind::Failed, "publish script returned no head"))?)
    }

    async fn send_twice(&self, script: &Cmd) -> Result<Option<Vec<u8>>, StoreError> {
        let mut sent = 1;
        loop {
            match self.command(script.clone()).await {
                Err(error) if sent == SENDS || error.kind() == StoreErrorKind::Failed => return Err(error),
                Err(_) => sent += 1,
                Ok(value) => return Ok(bytes(value)),
            }
        }
    }

    async fn now_millis(&self) -> Result<u64, StoreError> {
        self.in_time(self.rules.now()).await
    }

    /// Best effort: without reports, numbers continue from those in Redis.
    async fn reports(&self) -> Vec<InstanceReport> {
        self.in_time(self.rules.instances()).await.unwrap_or_default()
    }

    async fn list<T: Send + 'static>(
        &self,
        key: &str,
        most: usize,
        read: impl Fn(&[u8]) -> Option<T> + Send + 'static,
    ) -> Result<Vec<T>, StoreError> {
        let mut range = cmd("LRANGE");
        range.arg(key).arg(0).arg(most - 1);
        let Value::Array(items) = self.command(range).await? else {
            return Ok(Vec::new());
        };
        let items = items.into_iter().filter_map(bytes);
        Ok(run_blocking(move || items.filter_map(|item| read(&item)).collect()).await)
    }

    async fn values<const N: usize>(&self, keys: [&String; N]) -> Result<[Option<Vec<u8>>; N], StoreError> {
        self.in_time(self.rules.values(keys)).await
    }

    async fn command(&self, command: Cmd) -> Result<Value, StoreError> {
        self.in_time(self.rules.command(command)).await
    }

    async fn in_time<T>(&self, reply: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let late = |_| {
            Err(StoreError::new(
                StoreErrorKind::TimedOut,
                "no response from Redis within 5 s",
            ))
        };
        timeout(PATIENCE, reply).await.unwrap_or_else(late)
    }
}

impl Current {
    fn newest_number(&self) -> u64 {
        let published = self.published.as_ref().ok().and_then(Option::as_ref);
        let of_history = || self.history.first().map(RulesDocument::version);
        let head = version_of(&self.head).map(RulesVersion::number);
        // Continues from the current version, even if a failover lost later ones.
        match published {
            Some(published) => published.version().number(),
            None => head.max(of_history()).unwrap_or(0),
        }
    }
}

fn conflict(expected: Option<RulesVersion>, found: Option<RulesVersion>) -> FleetError {
    let [expected, found] = [expected, found].map(|version| match version {
        Some(version) => format!("version {}", version.number()),
        None => "no readable version".to_owned(),
    });
    let message = format!("another publication came first: expected {expected}, found {found}");
    FleetError::new(FleetErrorKind::Conflict, message)
}

fn json(value: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::new(StoreErrorKind::Failed, error.to_string()))
}
