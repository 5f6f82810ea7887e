//! A rule set in a file.

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
    source::{RulesSource, SourceFuture},
    version::RulesVersion,
};

/// A rule set in a file, of which every instance has a copy: a mounted configuration map, for example.
///
/// You want it where rules come with a deployment and no Redis is to be asked for them. The file has a
/// [`RulesDocument`] and is read once a second; one with other bytes is another version, even if the number is the same. A
/// file that is not there has no rules, and one that is not a regular file (a pipe, say) cannot be read. To change it, write
/// another one and rename it, so that no instance reads half of it; an instance that does rejects it and reads it again.
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
    /// Held while the file is read: a file system that hangs takes one thread, not one for each poll.
    reading: Arc<tokio::sync::Mutex<()>>,
}

impl FileRules {
    /// The rule set in the file at this path. Nothing is read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            name: path.display().to_string().into(),
            path: path.into(),
            reading: Arc::default(),
        }
    }

    /// The path of the file.
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

/// The first bytes of a file; `None` if there is no such file.
pub(super) fn read_up_to(path: &Path, length: usize) -> io::Result<Option<Vec<u8>>> {
    let opened = fs::metadata(path).and_then(|metadata| match metadata.is_file() {
        true => File::open(path),
        // To open a pipe would wait for a writer.
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
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

    fn version(&self) -> SourceFuture<'_, Option<RulesVersion>> {
        Box::pin(async {
            let bytes = self.read().await?;
            Ok(bytes.map(|bytes| RulesVersion::of(version_in(&bytes), &bytes)))
        })
    }

    fn document(&self, _: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        Box::pin(async {
            let missing = || FleetError::unavailable(format!("{}: there is no such file", self.name));
            let bytes = self.read().await?.ok_or_else(missing)?;
            check_length(bytes.len())?;
            Ok(bytes)
        })
    }
}
