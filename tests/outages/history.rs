//! The history of a scenario: every request with its caller, and whether the limits that each caller had allow it.
//!
//! The check needs neither the server nor the layer, only what each request was told and when. So it finds what no
//! single answer shows: a caller who was answered with the decision of another one.

use std::{collections::HashMap, time::Duration};

use super::callers::Caller;

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Allowed,
    Rejected,
    /// The store was asked and gave no decision: it may have charged the request, and may still.
    Undecided,
    /// The caller was gone before the decision: as above.
    Cancelled,
    /// The store was not asked.
    Unasked,
}

/// One request, with moments since any common beginning.
#[derive(Clone, Debug)]
pub struct Event {
    pub instance: usize,
    pub caller: Caller,
    pub asked: Duration,
    pub answered: Duration,
    pub fate: Fate,
    /// The remaining units of each policy, in their order, if there was a decision.
    pub remaining: Vec<u64>,
}

/// A token bucket: so many units, which fill again in so long a window.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    pub quota: u64,
    pub window: Duration,
}

impl Bucket {
    /// The most that comes back in this time.
    fn refill(self, time: Duration) -> f64 {
        self.quota as f64 * time.as_secs_f64() / self.window.as_secs_f64()
    }
}

/// The facts about a caller besides its requests.
#[derive(Clone, Debug)]
pub struct Account {
    pub buckets: Vec<Bucket>,
    /// True if all of its requests are in the history, so that it began with a full quota.
    pub is_complete: bool,
}

/// For how long a rejection may be remembered past its moment, so that instances do not race for the next unit.
const HOLD: Duration = Duration::from_millis(50);

/// For what floating point loses.
const CRUMB: f64 = 1e-6;

/// The first request that its caller's limits do not explain. The server has forgotten everything so many times.
pub fn mistake(events: &[Event], losses: u64, account: impl Fn(Caller) -> Option<Account>) -> Option<String> {
    let mut by_caller: HashMap<Caller, Vec<&Event>> = HashMap::new();
    for event in events {
        by_caller.entry(event.caller).or_default().push(event);
    }
    by_caller.into_iter().find_map(|(caller, events)| {
        let account = account(caller)?;
        let of_caller = OfCaller::new(&events);
        let each = account.buckets.iter().enumerate();
        let mut admitted = each.filter_map(|(index, bucket)| of_caller.too_many(*bucket, index, losses));
        let told = || match account.is_complete {
            true => of_caller
                .wrong_number(&account.buckets, losses)
                .or_else(|| of_caller.undeserved_rejection(&account.buckets)),
            false => None,
        };
        let mistake = admitted.next().or_else(told)?;
        Some(format!("{caller:?} of {account:?}: {mistake}"))
    })
}

/// The requests of one caller.
struct OfCaller<'a> {
    all: &'a [&'a Event],
    allowed: Vec<&'a Event>,
    /// When those were asked that may have been charged.
    charges_from: Vec<Duration>,
    /// When those had been charged for certain, or might be charged to the end.
    charges_until: Vec<Duration>,
    /// When those were answered that certainly were charged.
    charged_at: Vec<Duration>,
}

impl<'a> OfCaller<'a> {
    fn new(all: &'a [&'a Event]) -> Self {
        let is_charge = |fate| !matches!(fate, Fate::Rejected | Fate::Unasked);
        let charges = || all.iter().filter(move |event| is_charge(event.fate));
        let allowed: Vec<&Event> = all
            .iter()
            .copied()
            .filter(|event| event.fate == Fate::Allowed)
            .collect();
        let sorted = |mut moments: Vec<Duration>| {
            moments.sort_unstable();
            moments
        };
        let until = |event: &&&Event| match event.fate {
            Fate::Allowed => event.answered,
            _ => Duration::MAX,
        };
        Self {
            all,
            charges_from: sorted(charges().map(|event| event.asked).collect()),
            charges_until: sorted(charges().map(|event| until(&event)).collect()),
            charged_at: sorted(allowed.iter().map(|event| event.answered).collect()),
            allowed,
        }
    }

    /// In no time are more admitted than the bucket holds and gets meanwhile, and as much again for each loss.
    fn too_many(&self, bucket: Bucket, index: usize, losses: u64) -> Option<String> {
        let most = (bucket.quota * (1 + losses)) as f64;
        if self.allowed.len() as f64 <= most {
            return None;
        }
        let mut by_answer = self.allowed.clone();
        by_answer.sort_unstable_by_key(|event| event.answered);
        self.allowed.iter().find_map(|first| {
            let since = by_answer.iter().filter(|event| event.asked >= first.asked);
            (1..).zip(since).find_map(|(admitted, last)| {
                let time = last.answered - first.asked;
                let bound = most + bucket.refill(time) + CRUMB;
                (f64::from(admitted) > bound)
                    .then(|| format!("bucket {index}: {admitted} admitted within {time:?}, at most {bound:.1} fit"))
            })
        })
    }

    /// The remaining units that an allowed request is told are those that its own caller's requests have left.
    fn wrong_number(&self, buckets: &[Bucket], losses: u64) -> Option<String> {
        let began = self.charges_from.first().copied().unwrap_or_default();
        self.allowed.iter().find_map(|event| {
            let may_be_charged = count(&self.charges_from, |asked| asked < event.answered);
            let are_charged = count(&self.charged_at, |answered| answered < event.asked);
            buckets.iter().zip(&event.remaining).find_map(|(bucket, remaining)| {
                let least = bucket.quota.saturating_sub(may_be_charged);
                let refill = bucket.refill(event.answered - began) + 1.0;
                let most = bucket.quota as f64 - 1.0 - (are_charged as f64 - refill).max(0.0);
                let is_right = *remaining >= least && (losses > 0 || *remaining as f64 <= most);
                (!is_right).then(|| {
                    let instance = event.instance;
                    format!("instance {instance}: {remaining} left, not {least}..={most:.1}: {event:?}")
                })
            })
        })
    }

    /// A request is rejected only if its caller may have used up a quota.
    fn undeserved_rejection(&self, buckets: &[Bucket]) -> Option<String> {
        let mut rejected = self.all.iter().filter(|event| event.fate == Fate::Rejected);
        rejected.find_map(|event| {
            let is_deserved = buckets
                .iter()
                .any(|bucket| self.fullest(*bucket, event) > bucket.quota as f64 - 1.0);
            (!is_deserved).then(|| format!("instance {} rejected it below its quota: {event:?}", event.instance))
        })
    }

    /// The most that can be used of a bucket when this request is decided on.
    fn fullest(&self, bucket: Bucket, event: &Event) -> f64 {
        let until = count(&self.charges_from, |asked| asked < event.answered);
        let level = |from: Duration| {
            let gone = count(&self.charges_until, |moment| moment < from);
            let idle = event.asked.saturating_sub(from).saturating_sub(HOLD);
            until.saturating_sub(gone) as f64 - bucket.refill(idle)
        };
        let asked = self
            .charges_from
            .iter()
            .copied()
            .take_while(|asked| *asked < event.answered);
        // Charges that are late may all come at the last moment.
        asked.chain([event.asked]).map(level).fold(0.0, f64::max)
    }
}

/// The number of moments, from the first one on, for which this holds.
fn count(moments: &[Duration], holds: impl Fn(Duration) -> bool) -> u64 {
    moments.partition_point(|moment| holds(*moment)) as u64
}

/// A checker that finds nothing wrong with anything would be worth nothing.
mod tests {
    use super::{super::callers::Kind, *};

    const HOT: Caller = Caller::new(Kind::Probe, 1);
    const IDLE: Caller = Caller::new(Kind::Probe, 2);

    fn at(caller: Caller, millis: u64, fate: Fate, remaining: u64) -> Event {
        let asked = Duration::from_millis(millis);
        Event {
            instance: 0,
            caller,
            asked,
            answered: asked + Duration::from_millis(5),
            fate,
            remaining: vec![remaining],
        }
    }

    fn check(events: &[Event], losses: u64) -> Option<String> {
        mistake(events, losses, |_| {
            let (quota, window) = (10, Duration::from_secs(10));
            Some(Account {
                buckets: vec![Bucket { quota, window }],
                is_complete: true,
            })
        })
    }

    /// A quota at once, one rejected, and one of the units that come back.
    fn fair() -> Vec<Event> {
        let mut events: Vec<_> = (0..10).map(|n| at(HOT, n * 10, Fate::Allowed, 9 - n)).collect();
        events.push(at(HOT, 100, Fate::Rejected, 0));
        events.push(at(HOT, 1_200, Fate::Allowed, 0));
        events
    }

    #[test]
    fn a_fair_history_has_no_mistake() {
        assert_eq!(check(&fair(), 0), None);
        let uncounted = (0..50).flat_map(|n| [at(IDLE, n, Fate::Unasked, 0), at(HOT, 2_000 + n, Fate::Undecided, 0)]);
        assert_eq!(check(&fair().into_iter().chain(uncounted).collect::<Vec<_>>(), 0), None);
    }

    #[test]
    fn one_more_than_the_quota_as_it_drains_is_found_and_a_loss_excuses_one_quota() {
        let mut events = fair();
        events.push(at(HOT, 1_250, Fate::Allowed, 0));
        assert!(check(&events, 0).unwrap().contains("12 admitted within 1.255s"));
        events.pop();
        events.extend((0..10).map(|n| at(HOT, 1_300 + n, Fate::Allowed, 9 - n)));
        assert!(check(&events, 0).is_some());
        assert_eq!(check(&events, 1), None);
        events.extend((0..10).map(|n| at(HOT, 1_400 + n, Fate::Allowed, 9 - n)));
        assert!(check(&events, 1).is_some());
    }

    #[test]
    fn a_caller_below_its_quota_who_is_rejected_is_found() {
        let mut events = fair();
        events.push(at(IDLE, 100, Fate::Rejected, 0));
        assert!(check(&events, 0).unwrap().contains("rejected it below its quota"));
        // Nine that may have been charged are not enough; ten are, whenever that was.
        events.pop();
        events.extend((0..9).map(|n| at(IDLE, n, Fate::Cancelled, 0)));
        events.push(at(IDLE, 5_000, Fate::Rejected, 0));
        assert!(check(&events, 0).is_some());
        events.push(at(IDLE, 9, Fate::Undecided, 0));
        assert_eq!(check(&events, 0), None);
        // Ten that were answered long ago have come back.
        let mut events: Vec<_> = (0..10).map(|n| at(IDLE, n * 10, Fate::Allowed, 9 - n)).collect();
        events.push(at(IDLE, 2_000, Fate::Rejected, 0));
        assert!(check(&events, 0).is_some());
    }

    #[test]
    fn the_number_of_another_caller_is_found() {
        let events = [at(HOT, 0, Fate::Allowed, 9), at(IDLE, 0, Fate::Allowed, 8)];
        assert!(check(&events, 0).unwrap().contains("8 left, not 9..=9.0"));
        let mut events = fair();
        events.truncate(5);
        events[4].remaining = vec![9];
        assert!(check(&events, 0).unwrap().contains("9 left"));
        assert_eq!(check(&events, 1), None, "the server has forgotten the others");
    }

    #[test]
    fn of_a_caller_whose_beginning_is_not_known_only_what_was_admitted_is_checked() {
        let account = |_| {
            let (quota, window) = (10, Duration::from_secs(10));
            Some(Account {
                buckets: vec![Bucket { quota, window }],
                is_complete: false,
            })
        };
        let rejected = [at(IDLE, 100, Fate::Rejected, 0)];
        assert_eq!(mistake(&rejected, 0, account), None);
        let admitted: Vec<_> = (0..11).map(|n| at(HOT, n, Fate::Allowed, 0)).collect();
        assert!(mistake(&admitted, 0, account).is_some());
    }
}
