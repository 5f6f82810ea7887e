//! Rules from a file that is looked at every second, or from an administrator. They hold for this process: give each
//! instance the same file. To change it, write another one and rename it, so that nobody reads half of it.

use std::{
    error::Error,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::{fs, time};
use tower_quota::RulesHandle;

/// The rules of the layer, and the text that they were read from.
#[derive(Clone)]
pub(crate) struct RuleBook {
    handle: RulesHandle,
    json: Arc<Mutex<String>>,
}

impl RuleBook {
    /// `json` is what the layer was built with.
    pub(crate) fn new(handle: RulesHandle, json: String) -> Self {
        let json = Arc::new(Mutex::new(json));
        Self { handle, json }
    }

    pub(crate) fn handle(&self) -> &RulesHandle {
        &self.handle
    }

    pub(crate) fn json(&self) -> String {
        self.json.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts these rules in the place of the old ones, or leaves those if there is a mistake in the new ones.
    pub(crate) fn replace(&self, json: String) -> Result<(), Box<dyn Error + Send + Sync>> {
        let rules = serde_json::from_str(&json)?;
        let mut current = self.json.lock().unwrap_or_else(PoisonError::into_inner);
        self.handle.replace(rules)?;
        *current = json;
        Ok(())
    }
}

pub(crate) struct RulesFile {
    path: PathBuf,
    modified: Option<SystemTime>,
}

impl RulesFile {
    /// The file, and what is in it.
    pub(crate) async fn open(path: PathBuf) -> io::Result<(Self, String)> {
        let mut file = Self { path, modified: None };
        // The time first: what is written between the two is read again.
        file.modified = file.modified().await;
        let json = file.read().await?;
        Ok((file, json))
    }

    /// Replaces the rules whenever the file has changed. A file with a mistake is reported once, and the old rules stay.
    pub(crate) async fn watch(mut self, rules: RuleBook) {
        let mut interval = time::interval(Duration::from_secs(1));
        loop {
            interval.tick().await;
            let Some(changed) = self.changed().await else {
                continue;
            };
            match changed.map_err(Into::into).and_then(|json| rules.replace(json)) {
                Ok(()) => tracing::info!("new rules from the file"),
                Err(error) => tracing::error!(%error, "the file of rules is rejected; the old rules stay"),
            }
        }
    }

    /// What is in the file, if it is another one than the last time.
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
