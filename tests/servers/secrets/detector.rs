//! Finds secrets in everything a program writes, in every form in which they might appear.

use std::error::Error;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use test_kit::{Log, RedisServer};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::{
    Layer,
    filter::filter_fn,
    fmt::{self, format::FmtSpan},
    layer::SubscriberExt,
    registry,
};

use crate::metrics::Page;

/// A secret, and all texts that would show a part of it. Bytes are characters of the same number.
pub(super) struct Secret {
    name: &'static str,
    shown: Vec<String>,
}

impl Secret {
    /// Secrets are searched for in parts of this many bytes. If fewer bytes are shown, nothing is found.
    const PART: usize = 12;

    pub(super) fn new(name: &'static str, secret: impl AsRef<[u8]>) -> Self {
        let parts = secret.as_ref().chunks_exact(Self::PART);
        assert!(parts.len() > 0, "{name} is too short to be told from other texts");
        let shown = parts.flat_map(forms).collect();
        Self { name, shown }
    }

    pub(super) fn is_in(&self, bytes: &[u8]) -> bool {
        let text = characters(bytes);
        // Hexadecimal digits may be large or small.
        let small = text.to_ascii_lowercase();
        self.shown
            .iter()
            .any(|shown| text.contains(shown) || small.contains(shown))
    }
}

fn characters(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// The texts in which these bytes may appear.
pub(super) fn forms(bytes: &[u8]) -> Vec<String> {
    let digits = |before: &str| -> String { bytes.iter().map(|byte| format!("{before}{byte:02x}")).collect() };
    let numbers: Vec<_> = bytes.iter().map(u8::to_string).collect();
    let mut forms = vec![
        characters(bytes),
        digits(""),
        digits("%"),
        digits("\\x"),
        numbers.join(", "),
        numbers.join(","),
        bytes.escape_ascii().to_string(),
    ];
    // Bytes before a secret move it by up to two places, so that each of its digits is another one.
    for before in 0..3 {
        let moved = [&[0; 2][..before], bytes].concat();
        for encoded in [STANDARD_NO_PAD.encode(&moved), URL_SAFE_NO_PAD.encode(&moved)] {
            // The digits that have bits of nothing else.
            let own = (before * 8).div_ceil(6)..moved.len() * 8 / 6;
            forms.push(encoded[own].to_owned());
        }
    }
    forms
}

/// Fails if a secret is shown, with the lines that show it.
#[track_caller]
pub(super) fn assert_hidden(secrets: &[Secret], place: &str, shown: impl AsRef<[u8]>) {
    let shown = shown.as_ref();
    if let Some(secret) = secrets.iter().find(|secret| secret.is_in(shown)) {
        let lines = shown.split(|byte| *byte == b'\n').filter(|line| secret.is_in(line));
        let lines: Vec<_> = lines.map(|line| line.escape_ascii().to_string()).collect();
        panic!("{place} shows {}:\n{}", secret.name, lines.join("\n"));
    }
}

/// The messages of an error and its causes.
pub(super) fn said_by(error: &dyn Error) -> String {
    let mut said = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        said += &format!("{error}\n{error:?}\n{error:#?}\n");
        next = error.source();
    }
    said
}

/// Every key of a server and its value.
pub(super) fn dump(server: &RedisServer) -> Vec<u8> {
    let mut all = server.command_bytes(&[b"KEYS", b"*"]);
    let keys = redis::parse_redis_value(&all).unwrap();
    let keys: Vec<Vec<u8>> = redis::from_redis_value(keys).unwrap();
    for key in keys {
        let kind = server.command_bytes(&[b"TYPE", &key]);
        let value: &[&[u8]] = match &*kind {
            b"+string\r\n" => &[b"GET", &key],
            b"+list\r\n" => &[b"LRANGE", &key, b"0", b"-1"],
            b"+set\r\n" => &[b"SMEMBERS", &key],
            b"+hash\r\n" => &[b"HGETALL", &key],
            b"+zset\r\n" => &[b"ZRANGE", &key, b"0", b"-1", b"WITHSCORES"],
            // The key has expired since then.
            b"+none\r\n" => continue,
            other => panic!("{} has the type {}", key.escape_ascii(), other.escape_ascii()),
        };
        all.extend(server.command_bytes(value));
    }
    all
}

/// Collects events, spans and metrics of this thread, on which all tasks of a test run.
pub(super) struct Watch {
    log: Log,
    page: Page,
    _subscriber: DefaultGuard,
}

impl Watch {
    /// At level TRACE, of the crate, the examples and the spans of the tests. Servers and clients log the fields of requests.
    pub(super) fn start() -> Self {
        let log = Log::default();
        let writer = log.clone();
        let of_this_project = filter_fn(|metadata| {
            let target = metadata.target();
            target.starts_with("tower_quota") || target.starts_with("servers")
        });
        let layer = fmt::layer()
            .with_ansi(false)
            .with_span_events(FmtSpan::NEW | FmtSpan::CLOSE)
            .with_writer(move || writer.clone())
            .with_filter(of_this_project);
        Self {
            log,
            page: Page::start(),
            _subscriber: tracing::subscriber::set_default(registry().with(layer)),
        }
    }

    pub(super) fn log(&self) -> String {
        self.log.text()
    }

    pub(super) fn page(&self) -> String {
        self.page.text()
    }

    /// Each of these events must be in the log. Otherwise, the test has not caused what it claims to cause.
    #[track_caller]
    pub(super) fn assert_logged(&self, events: &[&str]) {
        let log = self.log();
        for event in events {
            assert!(log.contains(event), "{event:?} is not in\n{log}");
        }
    }

    #[track_caller]
    pub(super) fn assert_hidden(&self, secrets: &[Secret]) {
        assert_hidden(secrets, "the log", self.log());
        assert_hidden(secrets, "the page of metrics", self.page());
    }
}
