use std::{
    cmp::Reverse,
    ops::{Bound, RangeBounds},
    time::Duration,
};

use super::{CredentialError, Directory, IssuerKey, KeyId, Profile};
use tower_quota::clock::Timestamp;

/// The keys of an issuer and its origins, with the period in which each issues credentials.
///
/// Several keys per profile are needed only during a [rotation](crate::guide#keys). Their IDs must end with different
/// bytes. Origins show the key whose period began last, and switch at the start of a window, because **a new key is
/// a new allowance**: in the middle of a window, callers would have both allowances.
///
/// ```
/// use tower_quota::clock::Timestamp;
/// use tower_quota_anonymous::{KeySet, Profile};
///
/// let hour = |hour: u64| Timestamp::from_micros(1_800_000_000_000_000 + hour * 3_600_000_000);
/// let mut keys = KeySet::new();
/// keys.insert(keys.generate(Profile::P256)?, ..hour(26));
/// // The next key, from midnight. For two hours, credentials are issued with both.
/// keys.insert(keys.generate(Profile::P256)?, hour(24)..);
///
/// let [old, new] = keys.iter().map(|key| key.key_id()).collect::<Vec<_>>()[..] else { panic!() };
/// let preferred = |moment| {
///     let directory = keys.directory("/arc/request", moment);
///     directory.preferred_key(Profile::P256, moment).map(|key| key.key_id())
/// };
/// assert_eq!(preferred(hour(23)), Some(old));
/// assert_eq!(preferred(hour(24)), Some(new));
/// # Ok::<_, tower_quota_anonymous::CredentialError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeySet(Vec<Scheduled>);

#[derive(Clone, Debug)]
struct Scheduled {
    key: IssuerKey,
    not_before: Option<Timestamp>,
    until: Option<Timestamp>,
}

impl Scheduled {
    fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    fn outlasts(&self, other: &Self) -> bool {
        other
            .until
            .is_some_and(|other| self.until.is_none_or(|until| until > other))
    }
}

impl KeySet {
    /// How far client clocks may be ahead.
    const SKEW: Duration = Duration::from_secs(60);

    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key and the period in which it issues credentials: `..` means always.
    ///
    /// The directory lists it until the period ends, with the start as `not-before`.
    pub fn insert(&mut self, key: IssuerKey, times: impl RangeBounds<Timestamp>) {
        let next = |moment: Timestamp| moment.saturating_add(Duration::from_micros(1));
        self.0.push(Scheduled {
            key,
            not_before: match times.start_bound() {
                Bound::Included(start) => Some(*start),
                Bound::Excluded(start) => Some(next(*start)),
                Bound::Unbounded => None,
            },
            until: match times.end_bound() {
                Bound::Included(end) => Some(next(*end)),
                Bound::Excluded(end) => Some(*end),
                Bound::Unbounded => None,
            },
        });
    }

    /// Generates a key without adding it, so that it can be stored first.
    ///
    /// Its ID ends with a different byte than the others of the profile. Fails with [`CredentialError::Randomness`].
    pub fn generate(&self, profile: Profile) -> Result<IssuerKey, CredentialError> {
        loop {
            let key = IssuerKey::generate(profile)?;
            if self.find(profile, key.key_id().truncated()).is_none() {
                return Ok(key);
            }
        }
    }

    /// Returns the keys in insertion order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &IssuerKey> {
        self.0.iter().map(|scheduled| &scheduled.key)
    }

    pub(super) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Returns the public keys whose period has not ended at `now`, latest first.
    pub fn directory(&self, request_uri: &str, now: Timestamp) -> Directory {
        let mut listed: Vec<_> = self.0.iter().filter(|scheduled| !scheduled.is_over(now)).collect();
        listed.sort_by_key(|scheduled| Reverse(scheduled.not_before));
        listed
            .into_iter()
            .fold(Directory::new(request_uri), |directory, scheduled| {
                directory.with_key(scheduled.key.public_key().clone(), scheduled.not_before)
            })
    }

    /// Of each profile, the key whose period began last before `start`, or will begin first, if it has not ended.
    pub(super) fn shown(&self, start: Timestamp) -> impl Iterator<Item = &IssuerKey> {
        let rank = move |scheduled: &&Scheduled| {
            let begins = scheduled.not_before.unwrap_or_default();
            let distance = begins.as_micros().abs_diff(start.as_micros());
            (scheduled.is_over(start), begins > start, distance)
        };
        Profile::ALL.into_iter().filter_map(move |profile| {
            let keys = self.0.iter().filter(|scheduled| scheduled.key.profile() == profile);
            keys.min_by_key(rank).map(|scheduled| &scheduled.key)
        })
    }

    pub(super) fn get(&self, id: KeyId) -> Option<&IssuerKey> {
        self.iter().find(|key| key.key_id() == id)
    }

    pub(super) fn usable(&self, profile: Profile, truncated: u8, now: Timestamp) -> Option<&IssuerKey> {
        let scheduled = self.find(profile, truncated)?;
        let begun = scheduled
            .not_before
            .is_none_or(|start| start <= now.saturating_add(Self::SKEW));
        (begun && !scheduled.is_over(now)).then_some(&scheduled.key)
    }

    fn find(&self, profile: Profile, truncated: u8) -> Option<&Scheduled> {
        let mut named = self.0.iter();
        named.find(|scheduled| (scheduled.key.profile(), scheduled.key.key_id().truncated()) == (profile, truncated))
    }

    /// `age` bounds that of the readers' directory or challenge.
    pub(super) fn check(&self, (reader, age): (&str, Duration)) -> Result<(), String> {
        if !(1..=Directory::MAX_KEYS).contains(&self.0.len()) {
            let (keys, most) = (self.0.len(), Directory::MAX_KEYS);
            return Err(format!("number of keys {keys} is outside 1..={most}"));
        }
        for (index, scheduled) in self.0.iter().enumerate() {
            let (profile, id) = (scheduled.key.profile(), scheduled.key.key_id());
            let found = self.find(profile, id.truncated());
            if found.is_some_and(|found| !std::ptr::eq(found, scheduled)) {
                let byte = id.truncated();
                return Err(format!("the IDs of two keys of {profile} end with {byte:02x}"));
            }
            if scheduled.until.is_some_and(|until| scheduled.not_before >= Some(until)) {
                return Err(format!("key {id} expires before it becomes valid"));
            }
            if self.ends_too_early(index, age) {
                return Err(format!(
                    "key {id} and the next key must overlap for longer than {reader} {age:?}"
                ));
            }
        }
        Ok(())
    }

    /// The next key must begin more than `age` before this one ends, so that all readers have it.
    fn ends_too_early(&self, index: usize, age: Duration) -> bool {
        let ending = &self.0[index];
        let successors = self.0.iter().filter(|next| next.key.profile() == ending.key.profile());
        let begins = successors
            .filter(|next| next.outlasts(ending))
            .map(|next| next.not_before.unwrap_or_default());
        let begin = begins.min();
        begin
            .zip(ending.until)
            .is_some_and(|(begin, until)| begin.saturating_add(age) >= until)
    }
}
