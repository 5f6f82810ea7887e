//! Steps by chance: what callers, operators and servers do.

use proptest::{collection::vec, prelude::*, sample::select};
use tower_quota::{Access, StoreErrorKind};

#[derive(Clone, Debug)]
pub enum Step {
    Pass(Pass),
    Send(Sent),
    /// Reads a response that was kept to its end, or drops it.
    Body {
        which: usize,
        is_read: bool,
    },
    /// Calls a limiter without a request.
    Ask {
        limiter: usize,
        ask: Ask,
        form: AskForm,
    },
    /// Ends work that holds a permit, or reports what it has used.
    Permit {
        which: usize,
        end: PermitEnd,
    },
    Refund {
        limiter: usize,
        ask: Ask,
        ago: Option<u64>,
    },
    Reset {
        limiter: usize,
        ask: Ask,
    },
    TopUp {
        limiter: usize,
        caller: u8,
        units: u64,
        seconds: u64,
    },
    Replace {
        limiter: usize,
        rules: usize,
    },
    Switch {
        limiter: usize,
        is_on: bool,
    },
    Access {
        caller: u8,
        access: Access,
    },
    Fault(Option<Fault>),
}

#[derive(Clone, Copy, Debug)]
pub enum Pass {
    Micros(u64),
    /// One microsecond less than the wait of the last rejection.
    AlmostTheWait,
    TheWait,
    /// The whole seconds in the client's `Retry-After`.
    RetryAfter,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    Fails(StoreErrorKind),
    Hangs,
}

#[derive(Clone, Copy, Debug)]
pub enum AskForm {
    Check,
    Hold,
    Peek,
}

/// A charge that a caller requests.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Without one the request has no key.
    pub caller: Option<u8>,
    pub team: u8,
    pub tier: Option<&'static str>,
    pub cost: u64,
    pub tokens: u64,
}

#[derive(Clone, Debug)]
pub struct Sent {
    pub ask: Ask,
    pub is_exempt: bool,
    pub work: Work,
    /// If set, the request is dropped after this many polls.
    pub polls: Option<usize>,
}

/// The part of the handler.
#[derive(Clone, Debug)]
pub struct Work {
    pub reports: Vec<Report>,
    pub permit: Option<PermitEnd>,
    pub actual: Option<u64>,
    pub end: End,
    /// Reports while the response is read.
    pub streamed: Vec<Report>,
}

#[derive(Clone, Copy, Debug)]
pub enum Report {
    Add(u64),
    Set(u64),
    Finish(u64),
}

#[derive(Clone, Copy, Debug)]
pub enum PermitEnd {
    Drop,
    Settle(u64),
    Refund,
    Report(Report),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// A response without content.
    Empty,
    /// One whose content is read at once, dropped, or kept.
    Read,
    Dropped,
    Kept,
    Fails,
    Panics,
    Hangs,
}

fn costs() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0_u64), 6 => Just(1), 2 => Just(2), 2 => Just(3), 1 => Just(9)]
}

fn asks() -> impl Strategy<Value = Ask> {
    let caller = prop_oneof![9 => (0..3_u8).prop_map(Some), 1 => Just(None)];
    let tiers = select(vec![None, Some("free"), Some("premium"), Some("admin"), Some("gold")]);
    let tokens = prop_oneof![Just(0_u64), Just(1), Just(3), Just(9)];
    (caller, 0..2_u8, tiers, costs(), tokens).prop_map(|(caller, team, tier, cost, tokens)| Ask {
        caller,
        team,
        tier,
        cost,
        tokens,
    })
}

fn reports() -> impl Strategy<Value = Report> {
    prop_oneof![
        (0..6_u64).prop_map(Report::Add),
        (0..9_u64).prop_map(Report::Set),
        (0..9_u64).prop_map(Report::Finish),
    ]
}

fn permit_ends() -> impl Strategy<Value = PermitEnd> {
    prop_oneof![
        2 => Just(PermitEnd::Drop),
        2 => (0..8_u64).prop_map(PermitEnd::Settle),
        2 => Just(PermitEnd::Refund),
        1 => reports().prop_map(PermitEnd::Report),
    ]
}

fn works() -> impl Strategy<Value = Work> {
    let ends = prop_oneof![
        4 => Just(End::Empty),
        4 => Just(End::Read),
        2 => Just(End::Dropped),
        3 => Just(End::Kept),
        1 => Just(End::Fails),
        1 => Just(End::Panics),
    ];
    let few = || prop_oneof![3 => vec(reports(), 0), 1 => vec(reports(), 1..3)];
    let permit = proptest::option::weighted(0.15, permit_ends());
    let actual = proptest::option::weighted(0.25, prop_oneof![Just(0), 0..8_u64]);
    (few(), permit, actual, ends, few()).prop_map(|(reports, permit, actual, end, streamed)| Work {
        reports,
        permit,
        actual,
        end,
        streamed,
    })
}

fn sent() -> impl Strategy<Value = Sent> {
    let polls = proptest::option::weighted(0.15, select(vec![0, 1, 12_usize]));
    (asks(), prop_oneof![20 => Just(false), 1 => Just(true)], works(), polls).prop_map(
        |(ask, is_exempt, mut work, polls)| {
            if polls.is_some() {
                work.end = End::Hangs;
            }
            Sent {
                ask,
                is_exempt,
                work,
                polls,
            }
        },
    )
}

fn passes() -> impl Strategy<Value = Pass> {
    let micros = prop_oneof![0..2_000_u64, 0..100_000_u64, 0..3_000_000_u64, 0..130_000_000_u64];
    prop_oneof![
        4 => micros.prop_map(Pass::Micros),
        1 => Just(Pass::AlmostTheWait),
        2 => Just(Pass::TheWait),
        1 => Just(Pass::RetryAfter),
    ]
}

fn faults() -> impl Strategy<Value = Option<Fault>> {
    use StoreErrorKind::{OutOfMemory, Unavailable, Unreachable};
    prop_oneof![
        1 => select(vec![OutOfMemory, Unavailable, Unreachable]).prop_map(|kind| Some(Fault::Fails(kind))),
        1 => Just(Some(Fault::Hangs)),
        3 => Just(None),
    ]
}

pub fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let which = || 0..4_usize;
    let limiter = || 0..2_usize;
    let forms = prop_oneof![2 => Just(AskForm::Check), 3 => Just(AskForm::Hold), 1 => Just(AskForm::Peek)];
    let access = select(vec![Access::Allow, Access::Block, Access::Limit, Access::Limit]);
    let ago = proptest::option::of(prop_oneof![0..2_000_u64, 0..5_000_000_u64, 0..90_000_000_u64]);
    let step = prop_oneof![
        30 => sent().prop_map(Step::Send),
        12 => passes().prop_map(Step::Pass),
        5 => (which(), any::<bool>()).prop_map(|(which, is_read)| Step::Body { which, is_read }),
        6 => (limiter(), asks(), forms).prop_map(|(limiter, ask, form)| Step::Ask { limiter, ask, form }),
        5 => (which(), permit_ends()).prop_map(|(which, end)| Step::Permit { which, end }),
        2 => (limiter(), asks(), ago).prop_map(|(limiter, ask, ago)| Step::Refund { limiter, ask, ago }),
        1 => (limiter(), asks()).prop_map(|(limiter, ask)| Step::Reset { limiter, ask }),
        1 => (limiter(), 0..3_u8, 0..4_u64, 1..30_u64)
            .prop_map(|(limiter, caller, units, seconds)| Step::TopUp { limiter, caller, units, seconds }),
        2 => (limiter(), 0..3_usize).prop_map(|(limiter, rules)| Step::Replace { limiter, rules }),
        1 => (limiter(), any::<bool>()).prop_map(|(limiter, is_on)| Step::Switch { limiter, is_on }),
        1 => (0..3_u8, access).prop_map(|(caller, access)| Step::Access { caller, access }),
        3 => faults().prop_map(Step::Fault),
    ];
    vec(step, 1..=most)
}
