//! The callers, and the limits that they are subject to.

use std::time::Duration;

use tower_quota::{PartitionId, PartitionKey, QuotaPolicy, Scope, Tiers};

use super::history::{Account, Bucket, Limit, Slots};

pub const SCOPE: &str = "outages";

pub const SLOTS: u64 = 3;
/// The number of users with slots in a chapter.
pub const SLOT_USERS: u64 = 2;
/// The shortest lease time that there is, so that lost slots come back while a scenario waits for them.
pub const LEASE_TIME: Duration = Duration::from_secs(1);
pub const PROBE: u64 = 10;
pub const LEDGER: u64 = 1_000_000;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(360 * 86_400);

/// The limits that a request is subject to. The name of a kind is also the name of its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A second, a minute and a day.
    Windows,
    /// Concurrent requests.
    Slots,
    /// Charges that are changed by the response.
    Refunds,
    /// A quota that no caller uses up: the charges can be read from it.
    Ledger,
    /// A small quota, which shows whether limits hold.
    Probe,
    /// A caller who never comes near the limit.
    Quiet,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::Windows,
        Self::Slots,
        Self::Refunds,
        Self::Ledger,
        Self::Probe,
        Self::Quiet,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Windows => "windows",
            Self::Slots => "slots",
            Self::Refunds => "refunds",
            Self::Ledger => "ledger",
            Self::Probe => "probe",
            Self::Quiet => "quiet",
        }
    }

    /// Name, quota and window of each token bucket.
    fn buckets(self) -> &'static [(&'static str, u64, Duration)] {
        match self {
            Self::Windows => const { &[("second", 20, SECOND), ("minute", 400, MINUTE), ("day", 100_000, DAY)] },
            Self::Slots => const { &[("second", 1_000, SECOND)] },
            Self::Refunds => const { &[("short", 20, Duration::from_secs(4)), ("long", 150, DAY)] },
            // Next to nothing of it comes back while a scenario runs.
            Self::Ledger => const { &[("ledger", LEDGER, YEAR)] },
            Self::Probe => const { &[("probe", PROBE, DAY)] },
            Self::Quiet => const { &[("quiet", 50_000, DAY)] },
        }
    }

    fn policies(self) -> Vec<QuotaPolicy> {
        let slots = (self == Self::Slots).then(|| QuotaPolicy::concurrent("slots", SLOTS));
        let buckets = self.buckets().iter();
        let buckets = buckets.map(|(name, quota, window)| QuotaPolicy::new(*name, *quota, *window));
        slots.into_iter().chain(buckets).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    pub kind: Kind,
    pub user: u64,
}

/// The number of users of a kind that send requests in a chapter.
const USERS: u64 = 8;

impl Caller {
    pub const fn new(kind: Kind, user: u64) -> Self {
        Self { kind, user }
    }

    /// A caller that sends its first request in this chapter.
    pub const fn of_chapter(kind: Kind, chapter: u64, user: u64) -> Self {
        Self::new(kind, chapter * USERS + user % USERS)
    }

    pub const fn with_slots(chapter: u64, user: u64) -> Self {
        Self::new(Kind::Slots, chapter * SLOT_USERS + user % SLOT_USERS)
    }

    /// A caller that exhausts a small quota before the fault, and continues to send requests.
    pub const fn spender(chapter: u64) -> Self {
        Self::new(Kind::Probe, u64::MAX - chapter)
    }

    pub fn key(self) -> PartitionKey {
        PartitionKey::new(self.kind.name(), self.user.to_be_bytes())
    }

    pub fn partition(self) -> PartitionId {
        Scope::new(SCOPE).partition(&self.key())
    }

    pub fn tier(self) -> &'static str {
        self.kind.name()
    }

    /// Names and quotas of its policies, as decisions have to show them.
    pub fn limits(self) -> Vec<(&'static str, u64)> {
        let slots = (self.kind == Kind::Slots).then_some(("slots", SLOTS));
        let buckets = self.kind.buckets().iter().map(|(name, quota, _)| (*name, *quota));
        slots.into_iter().chain(buckets).collect()
    }

    /// The units that a request is charged before its actual cost is known.
    pub fn cost(self) -> u64 {
        match self.kind {
            Kind::Refunds => 2,
            Kind::Windows | Kind::Slots | Kind::Ledger | Kind::Probe | Kind::Quiet => 1,
        }
    }

    /// The facts for the checker of histories. For callers from before this chapter, they only contain the limits.
    pub fn account(self, chapter: u64) -> Account {
        let is_complete = match self.kind {
            Kind::Windows | Kind::Quiet | Kind::Refunds => self.user / USERS == chapter,
            Kind::Slots => self.user / SLOT_USERS == chapter,
            Kind::Ledger => self.user == chapter,
            // Probes that are no spenders are new ones, each for itself.
            Kind::Probe => self.user <= u64::MAX / 2 || self == Self::spender(chapter),
        };
        let slots = (self.kind == Kind::Slots).then_some(Limit::Slots(Slots {
            quota: SLOTS,
            lease_time: LEASE_TIME,
        }));
        let buckets = self.kind.buckets().iter().map(|(_, quota, window)| {
            Limit::Bucket(Bucket {
                quota: *quota,
                window: *window,
            })
        });
        Account {
            limits: slots.into_iter().chain(buckets).collect(),
            cost: self.cost(),
            is_complete,
        }
    }

    /// All that the load of a chapter sends requests for.
    pub fn all_of_chapter(chapter: u64) -> Vec<Self> {
        let kinds = [Kind::Windows, Kind::Refunds, Kind::Quiet];
        let users = kinds
            .iter()
            .flat_map(|kind| (0..USERS).map(|user| Self::of_chapter(*kind, chapter, user)));
        let with_slots = (0..SLOT_USERS).map(|user| Self::with_slots(chapter, user));
        let others = [Self::spender(chapter), Self::new(Kind::Ledger, chapter)];
        users.chain(with_slots).chain(others).collect()
    }
}

pub fn tiers() -> Tiers {
    let tiers = Tiers::from_fn(|request| request.extensions.get::<Caller>().map(|caller| caller.tier()));
    Kind::ALL
        .into_iter()
        .fold(tiers, |tiers, kind| tiers.tier(kind.name(), kind.policies()))
}
