//! The senders of requests, their moments and their instances.

use std::{ops::Range, time::Duration};

pub(crate) const WINDOW: Duration = Duration::from_secs(60);
pub(crate) const QUOTA: u64 = 60_000;
pub(crate) const REGIONS: usize = 3;
/// The number of quiet callers that are simulated together.
pub(crate) const SLICE: u64 = 100_000;
/// The number of callers with many requests.
pub(crate) const BUSY: usize = 1_015;

/// The shares of the regions in the requests of a caller that is in all of them, in percent.
const SHARES: [u64; REGIONS] = [50, 30, 20];

/// A request that is due.
#[derive(Clone, Copy)]
pub(crate) struct Due {
    pub(crate) at: Duration,
    pub(crate) caller: u64,
    pub(crate) region: usize,
    /// By chance, for the choice of the instance.
    pub(crate) chance: u64,
}

/// Numbers by chance, the same in each run.
fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The requests of these callers in the order of time: nine of ten send one, the others ten, each from one region.
pub(crate) fn quiet(callers: Range<u64>) -> Vec<Due> {
    let dues = callers.flat_map(|caller| {
        let requests = if caller % 10 == 0 { 10 } else { 1 };
        (0..requests).map(move |number| (caller, number))
    });
    in_order(dues.map(|(caller, number)| due(caller, number, (mix(caller) % REGIONS as u64) as usize)))
}

/// Requests of a busy caller: 1 000 send 500 from one region, ten 80 % of their quota and five twice their quota from all.
pub(crate) fn sent(caller: usize) -> u64 {
    match caller {
        0..5 => QUOTA * 2,
        5..15 => QUOTA * 8 / 10,
        _ => 500,
    }
}

/// The requests of all busy callers in the order of time.
pub(crate) fn busy() -> Vec<Due> {
    let dues = (0..BUSY).flat_map(|caller| (0..sent(caller)).map(move |number| (caller, number)));
    in_order(dues.map(|(caller, number)| {
        let region = match caller {
            0..15 => number % 100,
            _ => mix(caller as u64) % 100,
        };
        let region = if region < SHARES[0] {
            0
        } else {
            1 + usize::from(region >= SHARES[0] + SHARES[1])
        };
        due(caller as u64, number, region)
    }))
}

fn due(caller: u64, number: u64, region: usize) -> Due {
    let chance = mix(mix(caller).wrapping_add(number));
    Due {
        // In whole milliseconds, the grain of the timers.
        at: Duration::from_millis(chance % WINDOW.as_millis() as u64),
        caller,
        region,
        chance: mix(chance),
    }
}

fn in_order(dues: impl Iterator<Item = Due>) -> Vec<Due> {
    let mut dues: Vec<_> = dues.collect();
    dues.sort_unstable_by_key(|due| due.at);
    dues
}
