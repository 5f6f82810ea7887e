//! Rules of this process, from a file that is checked every second, or from an administrator. Use the same file for all
//! instances. To change it, write a new file and rename it, so that no instance reads a partial file.

use std::{
    error::Error,
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{
    fs,
    task::spawn_blocking,
    time::{self, Instant},
};
use tower_quota::{Rules, RulesHandle};

/// The rules of the layer, their JSON, and the rules in rollout.
#[derive(Clone)]
pub(crate) struct RuleBook {
    handle: RulesHandle,
    book: Arc<Mutex<Book>>,
}

struct Book {
    /// The number of changes, which detects conflicting changes of administrators.
    number: u64,
    since: Instant,
    origin: Origin,
    json: String,
    tried: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Administrator,
    File,
}

#[derive(Debug)]
pub(crate) enum Mistake {
    /// Another change was made first.
    Outdated,
    /// There is no rollout.
    NotTried,
    Rules(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outdated => f.write_str("the rules have changed meanwhile; look at them again"),
            Self::NotTried => f.write_str("no rules are being tried"),
            Self::Rules(error) => error.fmt(f),
        }
    }
}

/// Runs work on rules from outside on a thread for blocking work, because requests would wait for large rules.
pub(crate) async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.expect("the work does not panic")
}

impl RuleBook {
    /// `json` must contain the rules with which the layer was built.
    fn new(handle: RulesHandle, json: String) -> Self {
        let book = Book {
            number: 1,
            since: Instant::now(),
            origin: Origin::File,
            json,
            tried: None,
        };
        let book = Arc::new(Mutex::new(book));
        Self { handle, book }
    }

    /// Also watches `file` for changes.
    pub(crate) fn watching(file: RulesFile, handle: RulesHandle, json: String) -> Self {
        let book = Self::new(handle, json);
        tokio::spawn(file.watch(book.clone()));
        book
    }

    pub(crate) fn handle(&self) -> &RulesHandle {
        &self.handle
    }

    pub(crate) fn json(&self) -> String {
        self.book().json.clone()
    }

    /// Returns the rules in rollout, if any.
    pub(crate) fn tried(&self) -> Option<String> {
        self.book().tried.clone()
    }

    /// Replaces the rules and ends a rollout. Changes nothing if the new rules are invalid.
    pub(crate) fn replace(&self, json: String, origin: Origin, seen: Option<u64>) -> Result<(), Mistake> {
        let mut book = self.book_as(seen)?;
        self.handle.replace(read(&json)?).map_err(rejected)?;
        book.json = json;
        book.tried = None;
        book.changed(origin);
        Ok(())
    }

    /// Rolls out rules to `percent` percent of the callers. Without `json`, changes the percentage of the current
    /// rollout.
    pub(crate) fn roll_out(&self, percent: u8, json: Option<String>, seen: Option<u64>) -> Result<(), Mistake> {
        let mut book = self.book_as(seen)?;
        let json = json.or_else(|| book.tried.clone()).ok_or(Mistake::NotTried)?;
        self.handle.roll_out(percent, read(&json)?).map_err(rejected)?;
        book.tried = Some(json);
        book.number += 1;
        Ok(())
    }

    /// Ends a rollout: the rules in rollout then apply to all callers, or to none.
    pub(crate) fn end_roll_out(&self, is_for_all: bool, seen: Option<u64>) -> Result<(), Mistake> {
        let mut book = self.book_as(seen)?;
        let tried = book.tried.clone().ok_or(Mistake::NotTried)?;
        let json = if is_for_all { &tried } else { &book.json };
        self.handle.replace(read(json)?).map_err(rejected)?;
        book.tried = None;
        match is_for_all {
            true => {
                book.json = tried;
                book.changed(Origin::Administrator);
            }
            false => book.number += 1,
        }
        Ok(())
    }

    /// Returns the version of the rules. Instances with equal digests have the same rules.
    pub(crate) fn to_json(&self) -> Value {
        let book = self.book();
        let roll_out = self.handle.rollout().map(|(percent, _)| {
            json!({
                "percent": percent,
                "digest": book.tried.as_deref().map(digest),
            })
        });
        json!({
            "number": book.number,
            "digest": digest(&book.json),
            "origin": match book.origin {
                Origin::Administrator => "an administrator",
                Origin::File => "the file",
            },
            "seconds": book.since.elapsed().as_secs(),
            "roll_out": roll_out,
        })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails unless `seen` is the current number.
    fn book_as(&self, seen: Option<u64>) -> Result<MutexGuard<'_, Book>, Mistake> {
        let book = self.book();
        match seen {
            Some(seen) if seen != book.number => Err(Mistake::Outdated),
            _ => Ok(book),
        }
    }
}

impl Book {
    fn changed(&mut self, origin: Origin) {
        self.number += 1;
        self.since = Instant::now();
        self.origin = origin;
    }
}

fn read(json: &str) -> Result<Rules, Mistake> {
    serde_json::from_str(json).map_err(rejected)
}

fn rejected(error: impl Error + Send + Sync + 'static) -> Mistake {
    Mistake::Rules(Box::new(error))
}

fn digest(json: &str) -> String {
    let digest = Sha256::digest(json);
    digest[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) struct RulesFile {
    path: PathBuf,
    modified: Option<SystemTime>,
}

impl RulesFile {
    /// Opens and reads the file.
    pub(crate) async fn open(path: PathBuf) -> io::Result<(Self, String)> {
        let mut file = Self { path, modified: None };
        // The modification time is read first, so that a write between the two is read again.
        file.modified = file.modified().await;
        let json = file.read().await?;
        Ok((file, json))
    }

    /// Replaces the rules whenever the file has changed. An invalid file is logged once and does not change the rules.
    pub(crate) async fn watch(mut self, rules: RuleBook) {
        let mut interval = time::interval(Duration::from_secs(1));
        loop {
            interval.tick().await;
            let Some(changed) = self.changed().await else {
                continue;
            };
            let rules = rules.clone();
            let replaced = match changed {
                Ok(json) => off_runtime(move || rules.replace(json, Origin::File, None)).await,
                Err(error) => Err(rejected(error)),
            };
            match replaced {
                Ok(()) => tracing::info!("new rules from the file"),
                Err(error) => tracing::error!(%error, "the file of rules is rejected; the old rules stay"),
            }
        }
    }

    /// Returns the content of the file if it has changed since the last call.
    pub(crate) async fn changed(&mut self) -> Option<io::Result<String>> {
        let modified = self.modified().await;
        if modified == self.modified {
            return None;
        }
        self.modified = modified;
        Some(self.read().await)
    }

    async fn read(&self) -> io::Result<String> {
        let error = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display()));
        fs::read_to_string(&self.path).await.map_err(error)
    }

    async fn modified(&self) -> Option<SystemTime> {
        fs::metadata(&self.path).await.ok()?.modified().ok()
    }
}
