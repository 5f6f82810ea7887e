//! The task that watches the override file and expires orders and entries. Does not depend on the source.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use super::shared::Shared;
use crate::{file_rules::read_up_to, pause};

pub(super) struct Keeper {
    shared: Arc<Shared>,
    override_file: Option<SwitchFile>,
}

struct SwitchFile {
    path: Arc<PathBuf>,
    /// A read in progress: a file system that hangs blocks one thread, not one per attempt.
    reading: Option<JoinHandle<io::Result<Option<Vec<u8>>>>>,
    /// The last content; `None` if the file does not exist.
    said: Option<Word>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Off,
    On,
    /// Any other content, or unreadable.
    Other,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, override_file: Option<PathBuf>) -> Self {
        let override_file = override_file.map(|path| SwitchFile {
            path: Arc::new(path),
            reading: None,
            said: None,
        });
        Self { shared, override_file }
    }

    pub(super) async fn run(mut self) {
        loop {
            self.shared.keep();
            if let Some(file) = &mut self.override_file {
                file.look(&self.shared).await;
            }
            pause::between_polls().await;
        }
    }
}

impl SwitchFile {
    /// In bytes.
    const LENGTH: usize = 16;

    /// Bounds the delay of expiring orders and entries.
    const LIMIT: Duration = Duration::from_millis(500);

    async fn look(&mut self, shared: &Shared) {
        let is_new = self.reading.is_none();
        let path = Arc::clone(&self.path);
        let reading = self
            .reading
            .get_or_insert_with(|| spawn_blocking(move || read_up_to(&path, Self::LENGTH)));
        let Ok(read) = timeout(Self::LIMIT, reading).await else {
            return if is_new {
                shared.telemetry.unknown_switch()
            };
        };
        self.reading = None;
        let says = match read {
            Ok(Ok(None)) => None,
            Ok(Ok(Some(content))) => Some(match content.trim_ascii() {
                b"off" => Word::Off,
                b"on" => Word::On,
                _ => Word::Other,
            }),
            Ok(Err(_)) | Err(_) => Some(Word::Other),
        };
        if says == self.said {
            return;
        }
        self.said = says;
        let rules = shared.rules();
        match says {
            Some(Word::Off) => rules.disable(),
            Some(Word::On) => rules.enable(),
            None => rules.clear_switch_override(),
            Some(Word::Other) => return shared.telemetry.unknown_switch(),
        }
        shared.telemetry.switched_by_file(rules.is_enabled());
    }
}
