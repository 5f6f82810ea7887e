//! The history of a scenario: every request with its caller, and whether the limits of each caller explain it.
//!
//! The check needs neither the server nor the layer, only the times and answers of each request and of its store call.
//! So it finds what no single answer shows: a caller that received another caller's decision, a refund that was made
//! twice, a slot that stays held, a charge that a moved key has lost.
//!
//! The moment of a charge is known between two bounds: the call of the store, and its reply. Without a reply, the charge
//! may have been made or not, until the server can no longer have the call. From that follow two bounds of what is used
//! at any moment: what was certainly charged and not refunded, and what may have been charged and was not certainly
//! refunded. Admitted requests must fit beside the former, and the latter must be a reason for each rejection.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    ops::Range,
    time::Duration,
};

use super::callers::Caller;

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Allowed,
    Rejected,
    /// No store that all instances share has decided.
    Undecided,
    /// The caller was gone before the end.
    Cancelled,
    /// The store was not called: its circuit was open.
    Unasked,
}

/// The answer of the store to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Allowed,
    Rejected,
    /// The call was not sent: a circuit was open.
    Unsent,
    /// No reply came. The call may have been carried out, and may still be.
    Lost,
}

/// A call of the store about a request, which may outlive it.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub asked: Duration,
    /// `None` while it is in flight.
    pub ended: Option<(Duration, Answer)>,
}

/// The settlement of a charge, which also releases its slot.
#[derive(Clone, Copy, Debug)]
pub struct Settlement {
    pub asked: Duration,
    /// `None` while it is in flight; `false` if there was no acknowledgement.
    pub ended: Option<(Duration, bool)>,
    /// The actual cost.
    pub actual: u64,
}

/// One request, with moments since any common beginning.
#[derive(Clone, Debug)]
pub struct Event {
    pub instance: usize,
    pub caller: Caller,
    pub asked: Duration,
    /// The moment of the decision.
    pub answered: Duration,
    pub fate: Fate,
    /// The remaining units of each limit, in their order, if the store has decided.
    pub remaining: Vec<u64>,
    /// The limits that have rejected it.
    pub violated: Vec<usize>,
    pub call: Option<Call>,
    pub settlement: Option<Settlement>,
}

/// A loss of state by the server, between two moments.
#[derive(Clone, Debug)]
pub struct Loss {
    pub lost: Lost,
    /// The server may have lost it from the first moment on, and has lost it by the last.
    pub between: Range<Duration>,
    /// `None` if it may concern all callers.
    pub callers: Option<HashSet<Caller>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    Everything,
    /// Any of the changes that were acknowledged after this moment: a replica that was promoted has those before it.
    Since(Duration),
}

/// Everything that is known about a scenario.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub events: Vec<Event>,
    /// Calls that are in flight during a fault may be carried out when it ends.
    pub faults: Vec<Range<Duration>>,
    pub losses: Vec<Loss>,
}

/// A limit of a caller.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Bucket(Bucket),
    Slots(Slots),
}

/// A token bucket of `quota` units, which refills within `window`.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    pub quota: u64,
    pub window: Duration,
}

/// Concurrent requests, each of which holds its slot at most for the lease time after it was renewed last.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub quota: u64,
    pub lease_time: Duration,
}

impl Bucket {
    fn refill(self, time: Duration) -> f64 {
        self.quota as f64 * time.as_secs_f64() / self.window.as_secs_f64()
    }
}

/// The facts about a caller besides its requests.
#[derive(Clone, Debug)]
pub struct Account {
    pub limits: Vec<Limit>,
    /// The units that each request is charged before it is settled.
    pub cost: u64,
    /// True if all of its requests are in the history, so that it began with a full quota.
    pub is_complete: bool,
}

/// The time that a cached rejection may outlast its reason, so that instances do not race for the next unit.
const HOLD: Duration = Duration::from_millis(50);

/// The age of the reading by which an instance may reject without a call: refunds and losses since then are not seen.
const CACHED_FOR: Duration = Duration::from_secs(1);

/// The time within which the server has carried out a call that the store no longer waits for, when no fault keeps it:
/// sockets and the way between them pass it on within 100 ms, and the rest is for a machine that is busy.
const LATE: Duration = Duration::from_secs(2);

/// The units that rounding may cost: the server counts whole microseconds.
const CRUMB: f64 = 1e-3;

/// Returns the first request that the limits of its caller do not explain.
pub fn mistake(history: &History, account: impl Fn(Caller) -> Account) -> Option<String> {
    let mut by_caller: HashMap<Caller, Vec<&Event>> = HashMap::new();
    for event in &history.events {
        by_caller.entry(event.caller).or_default().push(event);
    }
    by_caller.into_iter().find_map(|(caller, events)| {
        let account = account(caller);
        let concerns = |loss: &&Loss| loss.callers.as_ref().is_none_or(|callers| callers.contains(&caller));
        let mut losses: Vec<&Loss> = history.losses.iter().filter(concerns).collect();
        losses.sort_unstable_by_key(|loss| loss.between.start);
        let of_caller = OfCaller {
            events: &events,
            account: &account,
            faults: &history.faults,
            losses: &losses,
        };
        let mistake = of_caller.mistake()?;
        Some(format!("{caller:?} of {account:?}: {mistake}"))
    })
}

/// The requests of one caller.
struct OfCaller<'a> {
    events: &'a [&'a Event],
    account: &'a Account,
    faults: &'a [Range<Duration>],
    losses: &'a [&'a Loss],
}

/// A change of what is used, made between two moments.
#[derive(Clone, Copy, Debug)]
struct Charge {
    /// The request's place in the history of its caller.
    request: usize,
    from: Duration,
    until: Duration,
    units: u64,
    /// False if it may not have been made.
    is_certain: bool,
    /// The beginning of the charge that this one corrects, if it does. A correction is made also above the quota.
    corrects: Option<Duration>,
    refund: Option<Refund>,
}

#[derive(Clone, Copy, Debug)]
struct Refund {
    from: Duration,
    /// Made by then; `None` if it may not have been made.
    until: Option<Duration>,
    /// If it is made at all, then by this moment.
    latest: Duration,
    units: u64,
}

impl Charge {
    fn began(&self) -> Duration {
        self.corrects.unwrap_or(self.from)
    }

    /// The minimum that the refund restores: units that the bucket has already refilled are not refunded.
    fn least_refund(&self, bucket: Bucket) -> f64 {
        let refund = self.refund.and_then(|refund| Some((refund.until?, refund.units)));
        refund.map_or(0.0, |(until, units)| {
            let left = self.units as f64 - bucket.refill(until.saturating_sub(self.from));
            left.clamp(0.0, units as f64)
        })
    }
}

/// When a decision was made, and by what.
#[derive(Clone, Copy)]
struct Decided {
    request: usize,
    from: Duration,
    until: Duration,
    is_cached: bool,
}

impl Decided {
    /// The decision has seen all changes that were made before this moment.
    fn has_seen(self) -> Duration {
        match self.is_cached {
            true => self.from.saturating_sub(CACHED_FOR),
            false => self.from,
        }
    }
}

/// A slot that is held between two moments, both included.
#[derive(Clone, Copy)]
struct Hold {
    request: usize,
    from: Duration,
    until: Duration,
}

impl OfCaller<'_> {
    fn mistake(&self) -> Option<String> {
        if let Some(mistake) = self.not_by_the_store() {
            return Some(mistake);
        }
        let limits = self.account.limits.iter().enumerate();
        limits
            .filter_map(|(index, limit)| self.mistake_by(index, *limit))
            .next()
    }

    fn mistake_by(&self, index: usize, limit: Limit) -> Option<String> {
        let mistake = match limit {
            Limit::Bucket(bucket) => {
                let used = Used::new(self, bucket);
                let own = |event: &Event| {
                    let settlement = event.settlement.filter(|settlement| settlement.asked <= event.answered);
                    settlement.map_or(self.account.cost, |settlement| settlement.actual)
                };
                let told = || {
                    let cost = self.account.cost;
                    self.wrongly_told(index, bucket.quota, cost, own, |decided| used.bounds(decided))
                };
                used.too_many().or_else(told)
            }
            Limit::Slots(slots) => {
                let held = Held::new(self, slots);
                let told = || self.wrongly_told(index, slots.quota, 1, |_| 1, |decided| held.bounds(decided));
                held.too_many().or_else(told)
            }
        };
        mistake.map(|mistake| format!("limit {index}: {mistake}"))
    }

    /// The store has charged a request if and only if it was allowed.
    fn not_by_the_store(&self) -> Option<String> {
        self.events.iter().find_map(|event| {
            let answer = event.call.and_then(|call| call.ended).map(|(_, answer)| answer);
            let is_right = match event.fate {
                Fate::Allowed => answer == Some(Answer::Allowed),
                Fate::Rejected => answer.is_none_or(|answer| answer == Answer::Rejected),
                Fate::Undecided | Fate::Cancelled | Fate::Unasked => true,
            };
            (!is_right).then(|| format!("the store has not decided so: {event:?}"))
        })
    }

    /// Returns the first request with a wrong number, or that was rejected below the quota. The remaining units include
    /// the `own` cost of an allowed request: the actual cost, if it was known at that time.
    fn wrongly_told(
        &self,
        index: usize,
        quota: u64,
        cost: u64,
        own: impl Fn(&Event) -> u64,
        bounds: impl Fn(Decided) -> (f64, f64),
    ) -> Option<String> {
        if !self.account.is_complete {
            return None;
        }
        self.events.iter().enumerate().find_map(|(request, event)| {
            let decided = decided(request, event)?;
            let is_violated = event.violated.contains(&index);
            let remaining = event.remaining.get(index).copied();
            if remaining.is_none() && !is_violated {
                return None;
            }
            let (least, most) = bounds(decided);
            let quota = quota as f64;
            if is_violated && most + cost as f64 <= quota {
                let used = format!("{most:.2} used");
                return Some(format!("rejected below the quota, at most {used}: {event:?}"));
            }
            let own = if event.fate == Fate::Allowed {
                own(event) as f64
            } else {
                0.0
            };
            let range = (quota - most - own).floor().max(0.0)..=(quota - least - own + CRUMB).max(0.0);
            let remaining = remaining.filter(|remaining| !range.contains(&(*remaining as f64)))?;
            let (start, end) = (range.start(), range.end());
            Some(format!("{remaining} left, not {start}..={end:.2}: {event:?}"))
        })
    }

    /// The last moment at which the server may carry out a call without a reply, which was cancelled or has failed at `ended`.
    fn latest(&self, asked: Duration, ended: Duration) -> Duration {
        let meets = |fault: &&Range<Duration>| asked <= fault.end && fault.start <= ended;
        let faults = self.faults.iter().filter(meets).map(|fault| fault.end);
        faults.fold(ended, Duration::max).saturating_add(LATE)
    }

    /// The charges that may have been made, and the corrections of these.
    fn charges(&self) -> Vec<Charge> {
        let each = self.events.iter().enumerate();
        let charges = each.filter_map(|(request, event)| {
            let call = event.call?;
            let (until, is_certain) = match call.ended {
                Some((at, Answer::Allowed)) => (at, true),
                Some((at, Answer::Lost)) => (self.latest(call.asked, at), false),
                Some((_, Answer::Rejected | Answer::Unsent)) => return None,
                None => (Duration::MAX, false),
            };
            Some(Charge {
                request,
                from: call.asked,
                until,
                units: self.account.cost,
                is_certain,
                corrects: None,
                refund: None,
            })
        });
        charges.flat_map(|charge| self.with_correction(charge)).collect()
    }

    fn with_correction(&self, charge: Charge) -> Vec<Charge> {
        let Some(settlement) = self.events[charge.request].settlement else {
            return vec![charge];
        };
        let (until, is_certain) = match settlement.ended {
            Some((at, true)) => (at, !self.is_in_a_loss(charge.from, at)),
            Some((at, false)) => (self.latest(settlement.asked, at), false),
            None => (Duration::MAX, false),
        };
        let refund = Refund {
            from: settlement.asked,
            until: is_certain.then_some(until),
            latest: until,
            units: charge.units.saturating_sub(settlement.actual),
        };
        let more = Charge {
            from: settlement.asked,
            until,
            units: settlement.actual.saturating_sub(charge.units),
            is_certain,
            corrects: Some(charge.from),
            ..charge
        };
        let refund = (refund.units > 0).then_some(refund);
        let charged = Charge { refund, ..charge };
        let more = (more.units > 0).then_some(more);
        [Some(charged), more].into_iter().flatten().collect()
    }

    /// Returns `true` if the server may have lost something of a charge and its settlement.
    fn is_in_a_loss(&self, from: Duration, until: Duration) -> bool {
        self.losses.iter().any(|loss| {
            let start = match loss.lost {
                Lost::Everything => loss.between.start,
                Lost::Since(moment) => moment,
            };
            from <= loss.between.end && start <= until
        })
    }

    /// Returns `true` if the server has lost for certain what was charged, before the decision.
    fn is_gone(&self, charge: &Charge, decided: Decided) -> bool {
        self.losses.iter().any(|loss| {
            let is_over = charge.until < loss.between.start && loss.between.end < decided.has_seen();
            loss.lost == Lost::Everything && is_over
        })
    }
}

fn decided(request: usize, event: &Event) -> Option<Decided> {
    let (from, until, is_cached) = match event.call {
        Some(Call {
            asked,
            ended: Some((ended, _)),
        }) => (asked, ended, false),
        _ => (event.asked, event.answered, true),
    };
    matches!(event.fate, Fate::Allowed | Fate::Rejected).then_some(Decided {
        request,
        from,
        until,
        is_cached,
    })
}

/// Returns `true` if one of these losses may have taken what was charged between two moments.
fn may_have_lost(losses: &[&Loss], from: Duration, until: Duration) -> bool {
    losses.iter().any(|loss| {
        let is_kept = matches!(loss.lost, Lost::Since(moment) if until < moment);
        from <= loss.between.end && !is_kept
    })
}

/// The units of a bucket that its caller's requests have used.
struct Used<'a> {
    of: &'a OfCaller<'a>,
    bucket: Bucket,
    /// All possible charges, in descending order of `until`.
    by_end: Vec<Charge>,
    /// All certain charges, in descending order of `from`.
    by_start: Vec<Charge>,
    /// For each of `by_start`, what refunds of earlier charges may take from later ones.
    taken: Vec<f64>,
}

impl<'a> Used<'a> {
    fn new(of: &'a OfCaller<'a>, bucket: Bucket) -> Self {
        let mut by_end = of.charges();
        by_end.sort_unstable_by_key(|charge| Reverse(charge.until));
        let mut by_start: Vec<_> = by_end.iter().copied().filter(|charge| charge.is_certain).collect();
        by_start.sort_unstable_by_key(|charge| Reverse(charge.from));
        let taken = vec![0.0; by_start.len()];
        let mut used = Self {
            of,
            bucket,
            by_end,
            by_start,
            taken,
        };
        for index in (0..used.by_start.len()).rev() {
            used.taken[index] = used.taken_after(used.by_start[index].from);
        }
        used
    }

    /// A store knows up to which level a charge has filled the bucket, and not which refunds of others came since. So the
    /// refunds of charges that are open at a moment may exceed the level of that moment, and take the rest from later charges.
    fn taken_after(&self, moment: Duration) -> f64 {
        let charges = self.by_end.iter().filter(|charge| charge.from < moment);
        let refunds = charges.filter_map(|charge| charge.refund);
        let open: u64 = refunds
            .filter(|refund| moment <= refund.latest)
            .map(|refund| refund.units)
            .sum();
        if open == 0 {
            return 0.0;
        }
        let level = self.least(Decided {
            request: usize::MAX,
            from: moment,
            until: moment,
            is_cached: false,
        });
        (open as f64 - level).max(0.0)
    }

    /// The least and the most that others have used when a request is decided.
    fn bounds(&self, decided: Decided) -> (f64, f64) {
        (self.least(decided), self.most(decided))
    }

    /// From any moment on, what is used is at least what was charged since then and has not come back.
    fn least(&self, decided: Decided) -> f64 {
        let known = self
            .of
            .losses
            .partition_point(|loss| loss.between.start <= decided.until);
        let losses = &self.of.losses[..known];
        let is_made = |charge: &&Charge| charge.request != decided.request && charge.until <= decided.from;
        let is_kept = |charge: &&Charge| !may_have_lost(losses, charge.began(), charge.until);
        let charges = self.by_start.iter().zip(&self.taken);
        let charges = charges.filter(|(charge, _)| is_made(charge) && is_kept(charge));
        let stray: u64 = self.stray_refunds(losses, decided.until).map(|(_, units)| units).sum();
        let (mut sum, mut least) = (-(stray as f64), 0.0_f64);
        for (charge, taken) in charges {
            let refund = charge.refund.filter(|refund| refund.from < decided.until);
            sum += (charge.units - refund.map_or(0, |refund| refund.units)) as f64;
            least = least.max(sum - taken - self.bucket.refill(decided.until - charge.from));
        }
        least
    }

    /// Since the last moment at which the full quota was available, the used units are at most the units charged since
    /// then and not restored. That moment is unknown, so the worst case is used.
    fn most(&self, decided: Decided) -> f64 {
        let hold = if decided.is_cached { HOLD } else { Duration::ZERO };
        let may_count = |charge: &&Charge| charge.request != decided.request && charge.from < decided.until;
        let charges = self.by_end.iter().filter(may_count);
        let expected = if decided.is_cached { self.expected(decided) } else { 0.0 };
        let (mut sum, mut most) = (expected, expected);
        for charge in charges.filter(|charge| !self.of.is_gone(charge, decided)) {
            let refund = charge.refund.and_then(|refund| refund.until);
            let is_refunded = refund.is_some_and(|until| until < decided.has_seen());
            sum += charge.units as f64;
            if is_refunded {
                sum -= charge.least_refund(self.bucket);
            }
            let idle = decided.from.saturating_sub(charge.until).saturating_sub(hold);
            most = most.max(sum - self.bucket.refill(idle));
        }
        most
    }

    /// The units that an instance counts as charged for requests in flight, until it knows that the store has rejected them or
    /// that a circuit has kept them from it.
    fn expected(&self, decided: Decided) -> f64 {
        let (own, since) = (self.of.events[decided.request], decided.from.saturating_sub(HOLD));
        let is_expected = |event: &&&Event| {
            let call = event.call.filter(|call| (since..decided.until).contains(&call.asked));
            let is_counted = match call.and_then(|call| call.ended) {
                Some((at, Answer::Rejected)) => at >= since,
                // The instance stops counting the request when the error arrives.
                Some((at, Answer::Unsent)) => at >= decided.from,
                Some((_, Answer::Allowed | Answer::Lost)) | None => false,
            };
            is_counted && event.instance == own.instance
        };
        let expected = self.of.events.iter().filter(is_expected).count();
        (expected as u64 * self.of.account.cost) as f64
    }

    /// The refunds, until a moment, of charges that the server may have lost. Such refunds are made anyway.
    fn stray_refunds(&self, losses: &[&Loss], until: Duration) -> impl Iterator<Item = (Duration, u64)> {
        // A server that has lost everything recognizes them.
        let tails = losses.iter().filter(|loss| loss.lost != Lost::Everything);
        let tails: Vec<&Loss> = tails.copied().collect();
        let is_stray = move |charge: &&Charge| may_have_lost(&tails, charge.began(), charge.until);
        let refunds = self.by_end.iter().filter(is_stray).filter_map(|charge| charge.refund);
        let refunds = refunds.filter(move |refund| refund.from < until);
        refunds.map(|refund| (refund.from, refund.units))
    }

    /// Returns the first interval in which more was admitted than the bucket's capacity and refill.
    fn too_many(&self) -> Option<String> {
        let charged: u64 = self.by_start.iter().map(|charge| charge.units).sum();
        if charged <= self.bucket.quota {
            return None;
        }
        // Between two losses, what was charged before the first one is no longer there, or may not be.
        (0..=self.of.losses.len()).find_map(|known| {
            let losses = &self.of.losses[..known];
            let end = self
                .of
                .losses
                .get(known)
                .map_or(Duration::MAX, |loss| loss.between.start);
            let counts = |charge: &&Charge| charge.until < end && !may_have_lost(losses, charge.began(), charge.until);
            let mut charges: Vec<Charge> = self.by_start.iter().filter(counts).copied().collect();
            charges.sort_unstable_by_key(|charge| charge.until);
            let stray: Vec<_> = self.stray_refunds(losses, end).collect();
            let starts = self
                .by_start
                .iter()
                .zip(&self.taken)
                .filter(|(charge, _)| counts(charge));
            starts
                .filter_map(|(start, taken)| self.too_many_since(start.from, *taken, &charges, &stray))
                .next()
        })
    }

    fn too_many_since(
        &self,
        from: Duration,
        taken: f64,
        charges: &[Charge],
        stray: &[(Duration, u64)],
    ) -> Option<String> {
        let mut refunds: BinaryHeap<_> = stray.iter().map(|refund| Reverse(*refund)).collect();
        let mut corrections = BinaryHeap::new();
        let (mut sum, mut last) = (0, Duration::ZERO);
        for charge in charges.iter().filter(|charge| charge.from >= from) {
            if charge.corrects.is_some() {
                corrections.push(Reverse((charge.until, charge.units)));
                continue;
            }
            sum += charge.units as i64;
            last = last.max(charge.from);
            refunds.extend(charge.refund.map(|refund| Reverse((refund.from, refund.units))));
            // A refund may have been made before the last request was admitted.
            while let Some(Reverse((_, units))) = refunds.pop_if_within(charge.until) {
                sum -= units as i64;
            }
            // A correction counts if it was made before the last one was admitted for certain.
            while let Some(Reverse((_, units))) = corrections.pop_if_within(last) {
                sum += units as i64;
            }
            let time = charge.until - from;
            let bound = self.bucket.quota as f64 + taken + self.bucket.refill(time) + CRUMB;
            if sum as f64 > bound {
                let event = self.of.events[charge.request];
                return Some(format!(
                    "{sum} admitted within {time:?}, at most {bound:.1} fit: {event:?}"
                ));
            }
        }
        None
    }
}

trait PopWithin {
    /// Takes the first one out that is not after a moment.
    fn pop_if_within(&mut self, moment: Duration) -> Option<Reverse<(Duration, u64)>>;
}

impl PopWithin for BinaryHeap<Reverse<(Duration, u64)>> {
    fn pop_if_within(&mut self, moment: Duration) -> Option<Reverse<(Duration, u64)>> {
        let is_within = self.peek().is_some_and(|Reverse((at, _))| *at <= moment);
        is_within.then(|| self.pop())?
    }
}

/// The slots that a caller's requests hold.
struct Held<'a> {
    of: &'a OfCaller<'a>,
    slots: Slots,
    /// From the first moment at which each may be held to the last.
    possible: Vec<Hold>,
    /// The time in which each is held for certain.
    certain: Vec<Hold>,
}

impl<'a> Held<'a> {
    fn new(of: &'a OfCaller<'a>, slots: Slots) -> Self {
        let charges: Vec<_> = of
            .charges()
            .into_iter()
            .filter(|charge| charge.corrects.is_none())
            .collect();
        let possible = |charge: &Charge| Hold {
            request: charge.request,
            from: charge.from,
            until: Self::latest_end(of, slots, charge),
        };
        let certain = |charge: &Charge| {
            let until = Self::earliest_end(of, slots, charge);
            (charge.is_certain && charge.until < until).then_some(Hold {
                request: charge.request,
                from: charge.until,
                until,
            })
        };
        Self {
            of,
            slots,
            possible: charges.iter().map(possible).collect(),
            certain: charges.iter().filter_map(certain).collect(),
        }
    }

    /// A slot is held until it was released for certain, or until a lease has expired that is no longer renewed.
    fn latest_end(of: &OfCaller<'_>, slots: Slots, charge: &Charge) -> Duration {
        match of.events[charge.request].settlement {
            Some(settlement) => match settlement.ended {
                Some((at, true)) if !of.is_in_a_loss(charge.from, at) => at,
                // A renewal may have been in flight.
                Some((at, _)) => of.latest(settlement.asked, at).saturating_add(slots.lease_time),
                None => Duration::MAX,
            },
            // A request that was decided renews its lease until it ends.
            None if charge.is_certain => Duration::MAX,
            None => charge.until.saturating_add(slots.lease_time),
        }
    }

    /// A slot is held for certain until it is being released, its lease may have expired, or the server may have lost it.
    fn earliest_end(of: &OfCaller<'_>, slots: Slots, charge: &Charge) -> Duration {
        let released = of.events[charge.request].settlement.map(|settlement| settlement.asked);
        let may_lose = |loss: &&&Loss| may_have_lost(&[**loss], charge.from, charge.until);
        let lost = of.losses.iter().filter(may_lose).map(|loss| loss.between.start).min();
        let expires = charge.from.saturating_add(slots.lease_time);
        [released, lost].into_iter().flatten().fold(expires, Duration::min)
    }

    fn too_many(&self) -> Option<String> {
        self.certain.iter().find_map(|last| {
            let held = self
                .certain
                .iter()
                .filter(|hold| hold.from <= last.from && last.from < hold.until);
            let held = held.count() as u64;
            let event = self.of.events[last.request];
            (held > self.slots.quota).then(|| format!("{held} hold a slot: {event:?}"))
        })
    }

    /// The least and the most that others hold when a request is decided.
    fn bounds(&self, decided: Decided) -> (f64, f64) {
        let all_the_time = |hold: &&Hold| hold.from <= decided.from && decided.until < hold.until;
        let others = |hold: &&Hold| hold.request != decided.request;
        let least = self.certain.iter().filter(others).filter(all_the_time).count();
        let meets = |hold: &&Hold| hold.from <= decided.until && decided.from <= hold.until;
        let possible: Vec<&Hold> = self.possible.iter().filter(others).filter(meets).collect();
        let moments = possible.iter().map(|hold| hold.from.max(decided.from));
        let held = |moment| {
            let held = possible
                .iter()
                .filter(|hold| hold.from <= moment && moment <= hold.until);
            held.count()
        };
        (least as f64, moments.map(held).max().unwrap_or(0) as f64)
    }
}
