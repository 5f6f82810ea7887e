//! The Lua of an algorithm is next to its Rust file, in sections headed `--- name`: *numbers* are its constants,
//! *charge* decides a charge, *carry* updates a level whose policy only exists in another instance, *carry others* also
//! those of unknown kinds, *left* computes the remaining units, and *borders* checks calendar boundaries. All deciding
//! scripts contain all *carry* sections. A lockout is carried like a bucket.

mod text;

use std::{sync::Arc, time::Duration};

pub(crate) use self::text::Text;

const BUCKET: &str = include_str!("../../../algorithm/bucket.lua");

const HEAD: &str = include_str!("head.lua");
const USUAL: &str = include_str!("usual.lua");
const STEPS: &str = include_str!("steps.lua");
const VALUE: &str = include_str!("value.lua");
const CHARGES: &str = include_str!("charges.lua");
const CARRY: &str = include_str!("carry.lua");
const WRITE: &str = include_str!("write.lua");
const TAIL: &str = include_str!("tail.lua");
const QUESTIONS: &str = include_str!("questions.lua");

const EVERY_ALGORITHM: [&str; 8] = [
    BUCKET,
    include_str!("../../../algorithm/fixed_window.lua"),
    include_str!("../../../algorithm/sliding_counter.lua"),
    include_str!("../../../algorithm/sliding_log.lua"),
    include_str!("../../../algorithm/concurrency.lua"),
    include_str!("../../../algorithm/calendar.lua"),
    include_str!("../../../algorithm/lockout.lua"),
    include_str!("../../../algorithm/newcomer.lua"),
];

/// The maximum per partition.
const USUAL_BUCKETS: u8 = 4;

pub(crate) const EXPIRY_JITTER: u64 = 60_000;

/// All deciding scripts return the same decisions, at different costs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    Buckets,
    EveryAlgorithm,
    Questions,
    Renew,
}

impl Script {
    pub(crate) const COUNT: usize = 4;

    pub(crate) fn texts(expiry_jitter: Duration) -> Texts {
        let jitter = expiry_jitter.as_millis() as u64;
        let sources = [buckets(), every_algorithm(), questions(), renew()];
        Arc::new(sources.map(|source| Text::new(with_expiry_jitter(&source, jitter))))
    }
}

pub(crate) type Texts = Arc<[Text; Script::COUNT]>;

pub(crate) fn with_expiry_jitter(source: &str, jitter: u64) -> String {
    let setting = |jitter| format!("EXPIRY_JITTER = {jitter}\n");
    source.replace(&setting(EXPIRY_JITTER), &setting(jitter))
}

pub(crate) fn buckets() -> String {
    let usual = with_section(USUAL, "buckets", &usual_buckets());
    decision(&usual, &[BUCKET], "")
}

pub(crate) fn every_algorithm() -> String {
    decision(&sections(&EVERY_ALGORITHM, "borders"), &EVERY_ALGORITHM, "")
}

pub(crate) fn questions() -> String {
    decision(&sections(&EVERY_ALGORITHM, "borders"), &EVERY_ALGORITHM, QUESTIONS)
}

pub(crate) fn renew() -> String {
    stripped(include_str!("renew.lua"))
}

fn decision(first: &str, pieces: &[&str], questions: &str) -> String {
    let all = |name| sections(pieces, name);
    let every = |name| sections(&EVERY_ALGORITHM, name);
    let source = [
        HEAD,
        first,
        &with_section(STEPS, "numbers", &every("numbers")),
        VALUE,
        &all("newest"),
        &with_section(CHARGES, "charge", &all("charge")),
        &with_section(CARRY, "carry", &(every("carry") + &every("carry others"))),
        &with_section(WRITE, "write", &all("write")),
        TAIL,
    ];
    // The lockout needs the same check as the sliding counter.
    let mut source = source.concat().replace("@over\n", &every("over"));
    if !questions.is_empty() {
        let [before, after] = ["before what is left", "after what is left"].map(|name| section(questions, name));
        source = with_section(&source, "left", &[before, &all("left"), after].concat());
        for name in ["what", "again", "trial", "cost"] {
            source = with_section(&source, name, section(questions, name));
        }
    }
    stripped(&source)
}

/// `@` is replaced by the number of the bucket.
fn usual_buckets() -> String {
    let bucket = section(BUCKET, "usual");
    let numbers = 1..=USUAL_BUCKETS;
    numbers.map(|number| bucket.replace('@', &number.to_string())).collect()
}

fn sections(pieces: &[&str], name: &str) -> String {
    pieces.iter().map(|piece| section(piece, name)).collect()
}

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
