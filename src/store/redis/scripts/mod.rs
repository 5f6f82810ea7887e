//! The scripts, put together from the pieces of the algorithms that they need.
//!
//! A piece stands beside the Rust file of its algorithm and has sections, each with a heading `--- name`: *charge* decides
//! about a charge, *carry* brings forward a level whose policy only another instance has, *left* says how much is left of a
//! policy, and *borders* looks at what a call has for calendars, before anything is done. All scripts that decide have all
//! *carry* sections, so that none needs another one; a lockout
//! is carried as the bucket that it is. Comments and indentation stay here.

mod text;

use std::{sync::Arc, time::Duration};

pub(crate) use self::text::Text;

const BUCKET: &str = include_str!("../../../algorithm/bucket.lua");
const FIXED_WINDOW: &str = include_str!("../../../algorithm/fixed_window.lua");
const SLIDING_COUNTER: &str = include_str!("../../../algorithm/sliding_counter.lua");
const SLIDING_LOG: &str = include_str!("../../../algorithm/sliding_log.lua");
const CONCURRENCY: &str = include_str!("../../../algorithm/concurrency.lua");
const CALENDAR: &str = include_str!("../../../algorithm/calendar.lua");
const LOCKOUT: &str = include_str!("../../../algorithm/lockout.lua");

const HEAD: &str = include_str!("head.lua");
const USUAL: &str = include_str!("usual.lua");
const STEPS: &str = include_str!("steps.lua");
const VALUE: &str = include_str!("value.lua");
const CHARGES: &str = include_str!("charges.lua");
const CARRY: &str = include_str!("carry.lua");
const WRITE: &str = include_str!("write.lua");
const TAIL: &str = include_str!("tail.lua");
const QUESTIONS: &str = include_str!("questions.lua");

const EVERY_ALGORITHM: [&str; 7] = [
    BUCKET,
    FIXED_WINDOW,
    SLIDING_COUNTER,
    SLIDING_LOG,
    CONCURRENCY,
    CALENDAR,
    LOCKOUT,
];

/// The maximum number of buckets of a partition in the usual case.
const USUAL_BUCKETS: u8 = 4;

/// The longest time, in milliseconds, for which the values of windows live on after they have ended.
pub(crate) const EXPIRY_JITTER: u64 = 60_000;

/// A script. All that decide make the same decision; they differ in what they cost the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    /// Decides and settles where all policies are buckets whose levels are narrow.
    Buckets,
    /// Decides and settles everything.
    EveryAlgorithm,
    /// Decides plans of which a part or nothing is charged.
    Questions,
    Renew,
}

impl Script {
    pub(crate) const COUNT: usize = 4;

    /// The texts of all scripts where keys live on for this time at most.
    pub(crate) fn texts(expiry_jitter: Duration) -> Texts {
        let jitter = expiry_jitter.as_millis() as u64;
        let sources = [buckets(), every_algorithm(), questions(), renew()];
        Arc::new(sources.map(|source| Text::new(with_expiry_jitter(&source, jitter))))
    }
}

/// By their number.
pub(crate) type Texts = Arc<[Text; Script::COUNT]>;

/// The same script with another longest time.
pub(crate) fn with_expiry_jitter(source: &str, jitter: u64) -> String {
    let setting = |jitter| format!("EXPIRY_JITTER = {jitter}\n");
    source.replace(&setting(EXPIRY_JITTER), &setting(jitter))
}

/// For calls with token buckets and leaky buckets only, whose levels are narrow.
pub(crate) fn buckets() -> String {
    let usual = with_section(USUAL, "buckets", &usual_buckets());
    decision(&usual, &[BUCKET], "")
}

/// For all other calls, and where a call has any other algorithm beside buckets.
pub(crate) fn every_algorithm() -> String {
    decision(section(CALENDAR, "borders"), &EVERY_ALGORITHM, "")
}

/// For plans that ask for as much as there is, and for those that only ask.
pub(crate) fn questions() -> String {
    decision(section(CALENDAR, "borders"), &EVERY_ALGORITHM, QUESTIONS)
}

/// Renews leases.
pub(crate) fn renew() -> String {
    stripped(include_str!("renew.lua"))
}

/// `first` stands before the steps. Each section of the questions has its place in another file.
fn decision(first: &str, pieces: &[&str], questions: &str) -> String {
    let all = |name| pieces.iter().map(|piece| section(piece, name)).collect::<String>();
    let carried = [BUCKET, SLIDING_COUNTER, CALENDAR, FIXED_WINDOW].map(|piece| section(piece, "carry"));
    let source = [
        HEAD,
        first,
        STEPS,
        VALUE,
        &all("newest"),
        &with_section(CHARGES, "charge", &all("charge")),
        &with_section(CARRY, "carry", &carried.concat()),
        &with_section(WRITE, "write", &all("write")),
        TAIL,
    ];
    // A lockout asks once more what the counter has asked before its charge.
    let mut source = source.concat().replace("@over\n", section(SLIDING_COUNTER, "over"));
    if !questions.is_empty() {
        let [before, after] = ["before what is left", "after what is left"].map(|name| section(questions, name));
        source = with_section(&source, "left", &[before, &all("left"), after].concat());
        for name in ["what", "again", "trial", "cost"] {
            source = with_section(&source, name, section(questions, name));
        }
    }
    stripped(&source)
}

/// The section that decides about one bucket in the usual case, for each of them: `@` stands for its number.
fn usual_buckets() -> String {
    let bucket = section(BUCKET, "usual");
    let numbers = 1..=USUAL_BUCKETS;
    numbers.map(|number| bucket.replace('@', &number.to_string())).collect()
}

/// The text below a heading of a piece, up to the next one; empty if it has no such section.
fn section<'a>(piece: &'a str, name: &str) -> &'a str {
    let section = piece.split_once(&heading(name)).map_or("", |(_, below)| below);
    section.split("--- ").next().unwrap_or_default()
}

fn with_section(source: &str, name: &str, section: &str) -> String {
    source.replace(&heading(name), section)
}

fn heading(name: &str) -> String {
    format!("--- {name}\n")
}

fn stripped(source: &str) -> String {
    let lines = source.lines().map(str::trim);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.fold(String::new(), |source, line| source + line + "\n")
}
