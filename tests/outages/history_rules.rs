//! For each rule of the history checker, a history that it accepts, and one that differs by an event and is found.
//!
//! A checker that finds nothing wrong with anything would be worth nothing.

use std::{collections::HashSet, time::Duration};

use super::{
    callers::{Caller, Kind},
    history::{Account, Answer, Bucket, Call, Event, Fate, History, Limit, Loss, Lost, Settlement, Slots, mistake},
};

const HOT: Caller = Caller::new(Kind::Probe, 1);
const IDLE: Caller = Caller::new(Kind::Probe, 2);

/// The time between a request and its answer, and between a settlement and its acknowledgement.
const ROUND_TRIP: u64 = 5;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn event(millis: u64, fate: Fate, answer: Option<Answer>) -> Event {
    let (asked, answered) = (ms(millis), ms(millis + ROUND_TRIP));
    Event {
        instance: 0,
        caller: HOT,
        asked,
        answered,
        fate,
        remaining: Vec::new(),
        violated: Vec::new(),
        call: answer.map(|answer| Call {
            asked,
            ended: Some((answered, answer)),
        }),
        settlement: None,
    }
}

fn allowed(millis: u64, remaining: u64) -> Event {
    let remaining = vec![remaining];
    Event {
        remaining,
        ..event(millis, Fate::Allowed, Some(Answer::Allowed))
    }
}

fn rejected(millis: u64) -> Event {
    Event {
        violated: vec![0],
        ..event(millis, Fate::Rejected, Some(Answer::Rejected))
    }
}

fn cached(millis: u64) -> Event {
    Event {
        call: None,
        ..rejected(millis)
    }
}

fn lost(millis: u64) -> Event {
    event(millis, Fate::Undecided, Some(Answer::Lost))
}

fn idle(event: Event) -> Event {
    Event { caller: IDLE, ..event }
}

/// Adds a settlement to the request. For a caller with a slot, this is the end of the request.
fn settled(event: Event, millis: u64, actual: u64, is_acknowledged: bool) -> Event {
    let settlement = Settlement {
        asked: ms(millis),
        ended: Some((ms(millis + ROUND_TRIP), is_acknowledged)),
        actual,
    };
    Event {
        settlement: Some(settlement),
        ..event
    }
}

fn released(event: Event, millis: u64) -> Event {
    settled(event, millis, 1, true)
}

/// A quota of ten, of which one unit comes back each second.
fn bucket() -> Account {
    bucket_of(1)
}

fn bucket_of(cost: u64) -> Account {
    let (quota, window) = (10, Duration::from_secs(10));
    Account {
        limits: vec![Limit::Bucket(Bucket { quota, window })],
        cost,
        is_complete: true,
    }
}

fn slots() -> Account {
    let (quota, lease_time) = (2, Duration::from_secs(1));
    Account {
        limits: vec![Limit::Slots(Slots { quota, lease_time })],
        cost: 1,
        is_complete: true,
    }
}

fn check(account: &Account, history: &History) -> Option<String> {
    mistake(history, |_| account.clone())
}

fn of(events: &[Event]) -> History {
    History {
        events: events.to_vec(),
        ..History::default()
    }
}

fn with_fault(events: &[Event], from: u64, until: u64) -> History {
    History {
        faults: vec![ms(from)..ms(until)],
        ..of(events)
    }
}

fn with_loss(events: &[Event], lost: Lost, from: u64, until: u64) -> History {
    let loss = Loss {
        lost,
        between: ms(from)..ms(until),
        callers: None,
    };
    History {
        losses: vec![loss],
        ..of(events)
    }
}

#[track_caller]
fn accepts(account: &Account, history: &History) {
    assert_eq!(check(account, history), None);
}

#[track_caller]
fn finds(what: &str, account: &Account, history: &History) {
    let mistake = check(account, history);
    assert!(
        mistake.as_ref().is_some_and(|mistake| mistake.contains(what)),
        "{mistake:?}"
    );
}

fn untold(event: Event) -> Event {
    let remaining = Vec::new();
    Event { remaining, ..event }
}

/// `count` requests, one after the other, of which the first leaves `left`.
fn some(count: u64, from: u64, left: u64) -> Vec<Event> {
    (0..count).map(|n| allowed(from + n * 10, left - n)).collect()
}

/// The quota at once, one request that is rejected, and one of the units that come back.
fn fair() -> Vec<Event> {
    let last = [rejected(100), cached(110), allowed(1_200, 0)];
    some(10, 0, 9).into_iter().chain(last).collect()
}

fn and(mut events: Vec<Event>, more: impl IntoIterator<Item = Event>) -> Vec<Event> {
    events.extend(more);
    events
}

#[test]
fn a_fair_history_has_no_mistake() {
    accepts(&bucket(), &of(&fair()));
}

#[test]
fn one_request_more_than_the_bucket_holds_and_gets_back_is_found() {
    finds(
        "12 admitted within 1.255s",
        &bucket(),
        &of(&and(fair(), [allowed(1_250, 0)])),
    );
    // All at once, so that none is certainly before another one.
    let together = |count: u64| -> Vec<_> { (0..count).map(|n| allowed(n % 3, 0)).collect() };
    let mut account = bucket();
    account.is_complete = false;
    accepts(&account, &of(&together(10)));
    finds("11 admitted", &account, &of(&together(11)));
}

#[test]
fn a_rejection_below_the_quota_is_found() {
    let nine = some(9, 0, 9);
    finds(
        "rejected below the quota",
        &bucket(),
        &of(&and(nine.clone(), [rejected(100)])),
    );
    accepts(&bucket(), &of(&and(nine, [allowed(90, 0), rejected(100)])));
    finds(
        "rejected below the quota",
        &bucket(),
        &of(&and(fair(), [idle(rejected(100))])),
    );
    // A unit has come back.
    finds(
        "rejected below the quota",
        &bucket(),
        &of(&and(some(10, 0, 9), [rejected(1_200)])),
    );
}

#[test]
fn a_cached_rejection_outlasts_its_reason_by_a_hold_and_one_of_the_store_does_not() {
    let after = |event: Event| of(&and(some(10, 0, 9), [event]));
    accepts(&bucket(), &after(cached(1_040)));
    finds("rejected below the quota", &bucket(), &after(cached(1_100)));
    finds("rejected below the quota", &bucket(), &after(rejected(1_040)));
}

/// The store rejects this request in the end, because another instance has been quicker.
#[test]
fn a_cached_rejection_counts_a_request_in_flight_of_its_own_instance() {
    let nine = some(9, 0, 9);
    let mut in_flight = rejected(100);
    in_flight.call.as_mut().unwrap().ended = Some((ms(130), Answer::Rejected));
    let quicker = Event {
        instance: 1,
        ..allowed(112, 0)
    };
    let by = |instance| Event {
        instance,
        ..cached(105)
    };
    let events = |cached| of(&and(nine.clone(), [in_flight.clone(), quicker.clone(), cached]));
    accepts(&bucket(), &events(by(0)));
    finds("rejected below the quota", &bucket(), &events(by(1)));
}

/// Found when a node was killed: the circuit opened while the instance counted the request.
#[test]
fn a_cached_rejection_counts_a_request_in_flight_that_a_circuit_keeps_from_the_store() {
    let nine = some(9, 0, 9);
    let unsent = |ended| {
        let mut unsent = event(100, Fate::Undecided, Some(Answer::Unsent));
        unsent.call.as_mut().unwrap().ended = Some((ms(ended), Answer::Unsent));
        unsent
    };
    let by = |instance| Event {
        instance,
        ..cached(105)
    };
    let events = |ended, cached| of(&and(nine.clone(), [unsent(ended), cached]));
    accepts(&bucket(), &events(106, by(0)));
    finds("rejected below the quota", &bucket(), &events(106, by(1)));
    finds("rejected below the quota", &bucket(), &events(103, by(0)));
}

#[test]
fn the_number_of_another_caller_is_found() {
    accepts(&bucket(), &of(&[allowed(0, 9), idle(allowed(0, 9))]));
    finds(
        "8 left, not 9..=9",
        &bucket(),
        &of(&[allowed(0, 9), idle(allowed(0, 8))]),
    );
    finds("9 left", &bucket(), &of(&[allowed(0, 9), allowed(10, 9)]));
    let told = |remaining| Event {
        remaining: vec![remaining],
        ..rejected(100)
    };
    accepts(&bucket(), &of(&and(some(10, 0, 9), [told(0)])));
    finds("1 left", &bucket(), &of(&and(some(10, 0, 9), [told(1)])));
}

#[test]
fn a_decision_that_the_store_has_not_made_is_found() {
    finds("not decided so", &bucket(), &of(&[event(0, Fate::Allowed, None)]));
    let charged = event(200, Fate::Rejected, Some(Answer::Allowed));
    finds("not decided so", &bucket(), &of(&and(fair(), [charged])));
}

#[test]
fn of_a_caller_whose_beginning_is_not_known_only_admitted_requests_are_checked() {
    let mut account = bucket();
    account.is_complete = false;
    accepts(&account, &of(&[rejected(100)]));
    accepts(&account, &of(&some(1, 0, 3)));
}

// Replies that were lost.

#[test]
fn a_lost_reply_excuses_one_charge() {
    let after = |lost: &[Event]| of(&and(and(some(8, 0, 9), lost.iter().cloned()), [rejected(150)]));
    finds("rejected below the quota", &bucket(), &after(&[lost(100)]));
    accepts(&bucket(), &after(&[lost(100), lost(110)]));
    // The charge of a lost reply may also be missing.
    accepts(&bucket(), &of(&[lost(0), allowed(10, 9)]));
    accepts(&bucket(), &of(&[lost(0), allowed(10, 8)]));
    finds("7 left", &bucket(), &of(&[lost(0), allowed(10, 7)]));
}

#[test]
fn a_lost_reply_excuses_its_cost_and_no_more() {
    let events = |lost: Event| of(&[allowed(0, 7), allowed(10, 4), lost, rejected(50)]);
    accepts(&bucket_of(3), &events(lost(20)));
    finds(
        "rejected below the quota",
        &bucket_of(3),
        &events(event(20, Fate::Unasked, None)),
    );
    finds(
        "rejected below the quota",
        &bucket_of(4),
        &of(&[lost(20), rejected(50)]),
    );
}

#[test]
fn a_lost_reply_excuses_no_other_caller_and_no_other_limit() {
    let nine = some(9, 0, 9);
    accepts(&bucket(), &of(&and(nine.clone(), [lost(100), rejected(150)])));
    finds(
        "rejected below the quota",
        &bucket(),
        &of(&and(nine.clone(), [idle(lost(100)), rejected(150)])),
    );
    let mut two = bucket();
    two.limits.push(Limit::Bucket(Bucket {
        quota: 100,
        window: Duration::from_secs(10),
    }));
    let by = |limit| Event {
        violated: vec![limit],
        ..rejected(150)
    };
    accepts(&two, &of(&and(nine.clone(), [lost(100), by(0)])));
    finds(
        "limit 1: rejected below the quota",
        &two,
        &of(&and(nine, [lost(100), by(1)])),
    );
}

#[test]
fn a_request_that_was_not_sent_excuses_nothing() {
    let after = |event: Event| of(&and(some(9, 0, 9), [event, rejected(150)]));
    accepts(&bucket(), &after(lost(100)));
    finds(
        "rejected below the quota",
        &bucket(),
        &after(event(100, Fate::Unasked, None)),
    );
    finds(
        "rejected below the quota",
        &bucket(),
        &after(event(100, Fate::Unasked, Some(Answer::Unsent))),
    );
}

#[test]
fn a_cancelled_request_excuses_a_rejection_only_if_the_store_was_called_about_it() {
    let after = |event: Event| of(&and(some(9, 0, 9), [event, rejected(150)]));
    accepts(&bucket(), &after(event(100, Fate::Cancelled, Some(Answer::Allowed))));
    accepts(&bucket(), &after(event(100, Fate::Cancelled, Some(Answer::Lost))));
    finds(
        "rejected below the quota",
        &bucket(),
        &after(event(100, Fate::Cancelled, None)),
    );
    finds(
        "rejected below the quota",
        &bucket(),
        &after(event(100, Fate::Cancelled, Some(Answer::Rejected))),
    );
}

/// The charge was made two seconds after the end of its call at the latest.
#[test]
fn the_charge_of_a_lost_reply_drains_like_any_other() {
    let ten: Vec<_> = (0..10).map(|n| lost(n * 10)).collect();
    accepts(&bucket(), &of(&and(ten.clone(), [rejected(3_000)])));
    finds("rejected below the quota", &bucket(), &of(&and(ten, [rejected(3_300)])));
}

#[test]
fn a_fault_keeps_a_call_from_the_server_until_its_end() {
    let ten: Vec<_> = (0..10).map(|n| lost(n * 10)).collect();
    let at = |millis| and(ten.clone(), [rejected(millis)]);
    accepts(&bucket(), &with_fault(&at(7_900), 5, 5_000));
    finds("rejected below the quota", &bucket(), &with_fault(&at(8_300), 5, 5_000));
    // This one has begun when the calls were over.
    finds(
        "rejected below the quota",
        &bucket(),
        &with_fault(&at(7_900), 200, 5_000),
    );
}

#[test]
fn a_call_in_flight_excuses_one_charge_until_its_end() {
    let mut calling = lost(100);
    calling.call.as_mut().unwrap().ended = None;
    let after = |event: Event| of(&and(some(9, 0, 9), [event, rejected(150)]));
    accepts(&bucket(), &after(calling.clone()));
    finds(
        "rejected below the quota",
        &bucket(),
        &of(&and(some(8, 0, 9), [calling, rejected(150)])),
    );
}

// Refunds.

/// Requests that cost two units each, one of which was refunded.
fn refunded(is_acknowledged: bool) -> Vec<Event> {
    let one = |n: u64| settled(allowed(n * 20, 9 - n), n * 20 + 5, 1, is_acknowledged);
    (0..5).map(one).collect()
}

#[test]
fn units_are_back_after_a_settlement_that_was_delivered() {
    let account = bucket_of(2);
    accepts(&account, &of(&and(refunded(true), [allowed(200, 3)])));
    finds(
        "rejected below the quota",
        &account,
        &of(&and(refunded(true), [rejected(200)])),
    );
    finds("1 left", &account, &of(&and(refunded(true), [allowed(200, 1)])));
}

#[test]
fn a_settlement_without_an_acknowledgement_may_have_counted_or_not() {
    let account = bucket_of(2);
    let before: Vec<_> = refunded(false).into_iter().map(untold).collect();
    accepts(&account, &of(&and(before.clone(), [rejected(200)])));
    accepts(&account, &of(&and(before.clone(), [allowed(200, 3)])));
    // Ten were charged, five of them may be back, and two are charged now.
    finds("4 left", &account, &of(&and(before, [allowed(200, 4)])));
}

#[test]
fn a_refund_gives_back_no_more_than_was_charged() {
    let account = bucket_of(2);
    let rest = |left| and(refunded(true), [allowed(200, 3), allowed(210, 1), allowed(220, left)]);
    finds("admitted", &account, &of(&rest(0)));
    finds("4 left", &account, &of(&and(refunded(true), [allowed(200, 4)])));
    accepts(
        &account,
        &of(&and(refunded(true), [allowed(200, 3), allowed(210, 1), rejected(220)])),
    );
}

#[test]
fn a_refund_lets_another_request_in_from_its_beginning_on_and_not_before() {
    let account = bucket_of(5);
    let first = |refunded_at| settled(allowed(0, 5), refunded_at, 0, true);
    let three = |refunded_at| [first(refunded_at), allowed(20, 5), allowed(30, 0)].map(untold);
    accepts(&account, &of(&three(5)));
    accepts(&account, &of(&three(32)));
    finds("15 admitted", &account, &of(&three(100)));
}

#[test]
fn a_late_charge_counts_for_the_requests_after_it() {
    let account = bucket_of(2);
    let more = |is_acknowledged| settled(allowed(0, 6), 5, 4, is_acknowledged);
    accepts(&account, &of(&[more(true), allowed(20, 4)]));
    finds("6 left", &account, &of(&[more(true), allowed(20, 6)]));
    accepts(&account, &of(&[more(false), allowed(20, 6)]));
    accepts(&account, &of(&[more(false), allowed(20, 4)]));
    let three = [allowed(20, 4), allowed(30, 2), allowed(40, 0)];
    accepts(&account, &of(&[&[more(true)], &three[..]].concat()));
    finds(
        "rejected below",
        &account,
        &of(&[&[more(true)], &three[..2], &[rejected(40)]].concat()),
    );
    finds(
        "12 admitted",
        &account,
        &of(&[&[more(true)], &three[..], &[allowed(50, 0)]].concat()),
    );
}

#[test]
fn a_refund_of_units_that_have_come_back_by_themselves_counts_for_nothing() {
    let back_before = settled(allowed(0, 9), 5_000, 0, true);
    accepts(
        &bucket(),
        &of(&and(and(vec![back_before], some(10, 5_000, 9)), [rejected(5_110)])),
    );
    let not_back = settled(allowed(4_990, 9), 5_095, 0, true);
    let nine = some(9, 5_000, 8).into_iter().map(untold);
    finds(
        "rejected below",
        &bucket(),
        &of(&and(and(vec![not_back], nine), [rejected(5_110)])),
    );
}

/// Half of the refund had drained before it was made. With all of it, another request would fit.
#[test]
fn a_refund_restores_no_units_that_have_drained_since_the_charge() {
    let account = bucket_of(2);
    let after_a_refund = |millis| {
        let late = settled(allowed(0, 8), 100, 3, true);
        let refunded = settled(allowed(60, 2), millis, 0, true);
        let events = [late, allowed(20, 6), allowed(40, 4), refunded, allowed(1_080, 1)];
        and(events.map(untold).to_vec(), [rejected(1_090)])
    };
    accepts(&account, &of(&after_a_refund(1_060)));
    finds("rejected below the quota", &account, &of(&after_a_refund(80)));
}

/// Found when an instance was cut off: two requests were open, and the first refund left only the units of the second, which
/// drained before the second refund.
#[test]
fn of_two_open_refunds_the_second_takes_what_drained_meanwhile_from_a_later_request() {
    let account = bucket_of(2);
    let after = |second: u64, left| {
        of(&[
            settled(allowed(0, 8), 6, 0, true),
            settled(allowed(1, 6), second + 20, 0, true),
            allowed(second, 8),
            allowed(second + 100, left),
        ])
    };
    accepts(&account, &after(2_050, 8));
    finds("9 left", &account, &after(2_050, 9));
    finds("8 left", &account, &after(50, 8));
}

/// Another instance knows of a refund a second after it.
#[test]
fn a_cached_rejection_need_not_know_of_a_refund_for_a_second() {
    let account = bucket_of(2);
    let day = Account {
        limits: vec![Limit::Bucket(Bucket {
            quota: 10,
            window: Duration::from_secs(86_400),
        })],
        ..account
    };
    accepts(&day, &of(&and(refunded(true), [cached(1_000)])));
    finds(
        "rejected below the quota",
        &day,
        &of(&and(refunded(true), [cached(1_100)])),
    );
}

// Slots.

#[test]
fn more_slots_than_the_quota_are_found() {
    let two = [released(allowed(0, 1), 100), released(allowed(10, 0), 100)];
    accepts(&slots(), &of(&[&two[..], &[rejected(50)]].concat()));
    finds(
        "3 hold a slot",
        &slots(),
        &of(&[&two[..], &[released(allowed(50, 0), 100)]].concat()),
    );
}

#[test]
fn a_slot_is_free_once_its_release_is_acknowledged() {
    let first = |at| [released(allowed(0, 1), at), released(allowed(10, 0), 300)];
    accepts(&slots(), &of(&[&first(90)[..], &[rejected(92)]].concat()));
    accepts(&slots(), &of(&[&first(90)[..], &[allowed(100, 0)]].concat()));
    finds(
        "rejected below the quota",
        &slots(),
        &of(&[&first(90)[..], &[rejected(100)]].concat()),
    );
}

#[test]
fn the_slot_of_a_cancelled_request_is_free_once_its_release_is_acknowledged() {
    let cancelled = released(event(0, Fate::Cancelled, Some(Answer::Allowed)), 6);
    let held = untold(released(allowed(1, 0), 300));
    accepts(&slots(), &of(&[cancelled.clone(), held.clone(), rejected(8)]));
    finds(
        "rejected below the quota",
        &slots(),
        &of(&[cancelled, held, rejected(20)]),
    );
}

#[test]
fn a_slot_without_an_acknowledged_release_is_held_until_its_lease_has_expired() {
    let release = |ended| {
        let mut event = released(allowed(0, 1), 10);
        event.settlement.as_mut().unwrap().ended = ended;
        event
    };
    let held = |at| untold(released(allowed(at, 0), at + 500));
    let lost = release(Some((ms(15), false)));
    // Two seconds for a renewal, and one for the lease.
    accepts(&slots(), &of(&[lost.clone(), held(2_800), rejected(2_900)]));
    finds(
        "rejected below the quota",
        &slots(),
        &of(&[lost, held(3_100), rejected(3_200)]),
    );
    accepts(&slots(), &of(&[release(None), held(9_000), rejected(9_100)]));
}

#[test]
fn a_lost_reply_may_hold_one_slot_until_its_lease_has_expired() {
    let other = |at| untold(released(allowed(at, 0), at + 500));
    accepts(&slots(), &of(&[lost(0), other(100), rejected(200)]));
    finds("rejected below the quota", &slots(), &of(&[lost(0), rejected(200)]));
    accepts(&slots(), &of(&[lost(0), other(2_800), rejected(2_900)]));
    finds(
        "rejected below the quota",
        &slots(),
        &of(&[lost(0), other(3_100), rejected(3_200)]),
    );
}

#[test]
fn a_slot_is_certainly_held_for_its_first_lease_only() {
    let long = |at, left| released(allowed(at, left), 5_000);
    finds("3 hold a slot", &slots(), &of(&[long(0, 1), long(10, 0), long(900, 0)]));
    accepts(&slots(), &of(&[long(0, 1), long(10, 0), untold(long(1_100, 0))]));
}

#[test]
fn the_number_of_slots_is_right() {
    let first = released(allowed(0, 1), 300);
    accepts(&slots(), &of(&[first.clone(), released(allowed(10, 0), 100)]));
    finds("1 left", &slots(), &of(&[first.clone(), released(allowed(10, 1), 100)]));
    finds("0 left", &slots(), &of(&[released(allowed(0, 0), 300)]));
}

#[test]
fn slots_that_the_server_has_lost_are_free() {
    let two = [released(allowed(0, 1), 800), released(allowed(10, 0), 800)];
    let third = released(allowed(200, 1), 800);
    let events = [&two[..], &[third]].concat();
    accepts(&slots(), &with_loss(&events, Lost::Everything, 100, 110));
    finds(
        "3 hold a slot",
        &slots(),
        &with_loss(&events, Lost::Everything, 900, 910),
    );
    let fourth = |at| untold(released(allowed(at, 0), 800));
    let events = [&events[..], &[fourth(210), fourth(220)]].concat();
    finds(
        "3 hold a slot",
        &slots(),
        &with_loss(&events, Lost::Everything, 100, 110),
    );
}

// Losses.

/// The quota is used up twice.
fn twice() -> Vec<Event> {
    and(some(10, 0, 9), some(10, 300, 9))
}

#[test]
fn a_loss_of_everything_excuses_one_more_quota_after_it() {
    accepts(&bucket(), &with_loss(&twice(), Lost::Everything, 200, 210));
    finds("admitted", &bucket(), &of(&twice()));
    let thrice = and(twice(), some(10, 600, 9));
    finds("admitted", &bucket(), &with_loss(&thrice, Lost::Everything, 200, 210));
}

#[test]
fn a_loss_excuses_nothing_before_it_and_nothing_after_all_of_it() {
    finds("admitted", &bucket(), &with_loss(&twice(), Lost::Everything, 500, 510));
    let late = and(some(10, 1_000, 9), some(10, 1_300, 9));
    finds("admitted", &bucket(), &with_loss(&late, Lost::Everything, 200, 210));
}

#[test]
fn a_loss_excuses_only_the_callers_that_it_concerns() {
    let of_idle = |callers: [Caller; 1]| {
        let mut history = with_loss(&twice(), Lost::Everything, 200, 210);
        history.losses[0].callers = Some(HashSet::from(callers));
        history
    };
    accepts(&bucket(), &of_idle([HOT]));
    finds("admitted", &bucket(), &of_idle([IDLE]));
}

#[test]
fn units_that_the_server_has_lost_are_no_reason_for_a_rejection() {
    let events = and(some(10, 0, 9), [rejected(300)]);
    accepts(&bucket(), &of(&events));
    finds(
        "rejected below the quota",
        &bucket(),
        &with_loss(&events, Lost::Everything, 200, 210),
    );
    let from_memory = |at| and(some(10, 0, 9), [cached(at)]);
    accepts(&bucket(), &with_loss(&from_memory(300), Lost::Everything, 200, 210));
    finds(
        "below the quota",
        &bucket(),
        &with_loss(&from_memory(1_300), Lost::Everything, 200, 210),
    );
}

#[test]
fn a_fail_over_excuses_only_charges_that_the_replica_may_lack() {
    // Five are on the replica for certain; the others may be lost.
    let before = some(10, 0, 9);
    let after = |count: u64| and(before.clone(), some(count, 300, 4));
    let since = |millis| Lost::Since(ms(millis));
    accepts(&bucket(), &with_loss(&after(5), since(50), 200, 250));
    finds("admitted", &bucket(), &with_loss(&after(5), since(70), 200, 250));
    let more = and(after(5), [allowed(360, 0)]);
    finds("11 admitted", &bucket(), &with_loss(&more, since(50), 200, 250));
    // All of them may also have arrived.
    accepts(
        &bucket(),
        &with_loss(&and(before, [rejected(300)]), since(50), 200, 250),
    );
}

#[test]
fn a_fail_over_may_lose_a_refund_but_not_one_that_the_replica_has() {
    let account = bucket_of(2);
    let events = and(refunded(true), [rejected(300)]);
    accepts(&account, &with_loss(&events, Lost::Since(ms(5)), 200, 250));
    finds(
        "below the quota",
        &account,
        &with_loss(&events, Lost::Since(ms(150)), 200, 250),
    );
}

/// The refund is made although its charge is lost, and takes the units of another request.
#[test]
fn a_refund_of_a_charge_that_a_fail_over_has_lost_may_count_for_another_one() {
    let account = bucket_of(2);
    let events = [allowed(0, 8), settled(allowed(100, 6), 300, 0, true), allowed(400, 8)];
    accepts(&account, &with_loss(&events, Lost::Since(ms(50)), 200, 250));
    finds("8 left", &account, &of(&events));
}

#[test]
fn a_fail_over_may_lose_a_release_until_the_lease_has_expired() {
    let short = released(allowed(0, 1), 100);
    let other = |at| untold(released(allowed(at, 0), at + 500));
    let at = |at| [short.clone(), other(at), rejected(at + 10)];
    accepts(&slots(), &with_loss(&at(300), Lost::Since(ms(50)), 200, 250));
    finds(
        "below the quota",
        &slots(),
        &with_loss(&at(300), Lost::Since(ms(150)), 200, 250),
    );
    finds(
        "below the quota",
        &slots(),
        &with_loss(&at(3_500), Lost::Since(ms(50)), 200, 250),
    );
}

// Resharding.

/// A charge that a moved key has lost, or that both nodes have made, is no different from any other that is wrong: moving
/// keys excuses nothing.
#[test]
fn a_charge_that_is_lost_or_doubled_where_a_key_is_moved_is_found() {
    accepts(&bucket(), &of(&[allowed(0, 9), allowed(10, 8), allowed(20, 7)]));
    finds(
        "8 left",
        &bucket(),
        &of(&[allowed(0, 9), allowed(10, 8), allowed(20, 8)]),
    );
    finds(
        "6 left",
        &bucket(),
        &of(&[allowed(0, 9), allowed(10, 8), allowed(20, 6)]),
    );
    // A redirection without an answer may have charged.
    accepts(&bucket(), &of(&[allowed(0, 9), lost(10), allowed(20, 7)]));
    accepts(&bucket(), &of(&[allowed(0, 9), lost(10), allowed(20, 8)]));
}
