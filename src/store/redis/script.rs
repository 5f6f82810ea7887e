//! The script that decides, and how it is spoken to.

use std::sync::LazyLock;

use ::redis::{Cmd, Script};

use crate::{
    clock::Timestamp,
    decision::{Decision, Used},
    error::{StoreError, StoreErrorKind},
    plan::Plan,
    quota::{Bucket, EXACT},
};

const SOURCE: &str = include_str!("acquire.lua");

/// The name under which a server remembers the script.
static HASH: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

/// The bytes of one charge, as the script unpacks them.
const CHARGE: usize = 44;

/// One EVALSHA for one decision.
pub(super) fn call_by_hash(key: &[u8], plan: &Plan, now: Option<Timestamp>) -> Cmd {
    call("EVALSHA", &HASH, key, plan, now)
}

/// The same with the script itself, for a server that does not know it yet; the server then remembers it.
pub(super) fn call_by_source(key: &[u8], plan: &Plan, now: Option<Timestamp>) -> Cmd {
    call("EVAL", SOURCE, key, plan, now)
}

fn call(verb: &str, script: &str, key: &[u8], plan: &Plan, now: Option<Timestamp>) -> Cmd {
    let mut call = ::redis::cmd(verb);
    call.arg(script).arg(1).arg(key).arg(encode(plan));
    if let Some(now) = now {
        call.arg(now.as_micros());
    }
    call
}

/// Doubles hold these numbers exactly: all are integers of at most 2⁵³.
fn encode(plan: &Plan) -> Vec<u8> {
    let charges = plan.charges();
    let mut bytes = Vec::with_capacity(charges.len() * CHARGE);
    for charge in charges {
        let &Bucket {
            weight,
            drain,
            limit,
            bound,
        } = charge.policy().bucket();
        bytes.extend_from_slice(&charge.policy().id().to_le_bytes());
        for number in [weight, drain, limit, bound, charge.weight()] {
            bytes.extend_from_slice(&(number as f64).to_le_bytes());
        }
    }
    bytes
}

/// The decision that a reply stands for. Whatever else a server may say is an error, never a panic.
pub(super) fn decode(plan: Plan, reply: &[u8]) -> Result<Decision, StoreError> {
    let unreadable = || StoreError::new(StoreErrorKind::Rejected, "the reply of the script is unreadable");
    let (numbers, rest) = reply.as_chunks::<8>();
    let [_now, used @ ..] = numbers else {
        return Err(unreadable());
    };
    if !rest.is_empty() || used.len() != plan.charges().len() {
        return Err(unreadable());
    }
    let used: Option<Used> = used
        .iter()
        .map(|bytes| exact_integer(f64::from_le_bytes(*bytes)))
        .collect();
    Ok(Decision::measured(plan, used.ok_or_else(unreadable)?))
}

fn exact_integer(number: f64) -> Option<u64> {
    ((0.0..EXACT as f64).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}
