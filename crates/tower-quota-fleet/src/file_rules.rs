use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::task::spawn_blocking;

use super::{
    document::{RulesDocument, check_length, version_in},
    error::FleetError,
    source::{RulesSource, SourceFuture, SourceState},
    version::RulesVersion,
};

/// A rule set in a file on each instance, such as a mounted ConfigMap.
///
/// Use this if rules are part of a deployment. The file contains a [`RulesDocument`] and is read about once per second.
/// To change it, rename a new file over it, because an incomplete one is rejected. Anything but a regular file is an
/// error; without a file, no rules are published.
///
/// ```
/// use tower_quota_fleet::FileRules;
///
/// let rules = FileRules::new("/etc/limits/rules.json");
/// assert_eq!(rules.path().to_str(), Some("/etc/limits/rules.json"));
/// ```
#[derive(Clone, Debug)]
pub struct FileRules {
    path: Arc<Path>,
    name: Arc<str>,
    /// A file system that hangs blocks one thread, not one per poll.
    reading: Arc<tokio::sync::Mutex<()>>,
}

impl FileRules {
    /// Creates a source for the file at `path`, without reading it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            name: path.display().to_string().into(),
            path: path.into(),
            reading: Arc::default(),
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn read(&self) -> Result<Option<Vec<u8>>, FleetError> {
        let path = Arc::clone(&self.path);
        let reading = Arc::clone(&self.reading).lock_owned().await;
        let read = spawn_blocking(move || {
            let _reading = reading;
            read_up_to(&path, RulesDocument::MAX_LENGTH + 1)
        });
        let read = read.await;
        let read = read.map_err(FleetError::unavailable)?;
        read.map_err(|error| FleetError::unavailable(format!("{}: {error}", self.name)))
    }
}

fn read_up_to(path: &Path, length: usize) -> io::Result<Option<Vec<u8>>> {
    let opened = fs::metadata(path).and_then(|metadata| match metadata.is_file() {
        true => File::open(path),
        // Opening a pipe would block until there is a writer.
        false => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
    });
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(length as u64).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

impl RulesSource for FileRules {
    fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> SourceFuture<'_, SourceState> {
        Box::pin(async {
            let bytes = self.read().await?;
            let version = bytes.map(|bytes| RulesVersion::of(version_in(&bytes), &bytes));
            Ok(SourceState::new(version))
        })
    }

    fn document(&self, _: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        Box::pin(async {
            let missing = || FleetError::unavailable(format!("{}: no such file", self.name));
            let bytes = self.read().await?.ok_or_else(missing)?;
            check_length(bytes.len())?;
            Ok(bytes)
        })
    }
}
