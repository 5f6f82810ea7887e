use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    fmt,
    future::{self, Future},
    pin::Pin,
};

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{CredentialError, Profile, UsedNonces, mutex::Mutex};

/// The future of a [`CredentialStorage`].
pub type StorageFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StorageError>> + Send + 'a>>;

/// The name of a credential or a presentation context: a digest.
///
/// ```
/// use tower_quota_anonymous::ContextName;
///
/// let name = ContextName::of(b"a context");
/// assert_eq!(name, ContextName::of(b"a context"));
/// assert_ne!(name, ContextName::of(b"another"));
/// assert_eq!(name.as_bytes().len(), 32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextName([u8; 32]);

impl ContextName {
    /// Computes the name of a context.
    pub fn of(context: &[u8]) -> Self {
        Self(Sha256::digest(context).into())
    }

    /// Returns the SHA-256 digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A credential and one of its nonces, reserved for one use.
#[derive(Clone)]
pub struct Reserved {
    /// The bytes of [`Credential::to_bytes`](crate::Credential::to_bytes).
    pub credential: Zeroizing<Vec<u8>>,
    /// The reserved nonce.
    pub nonce: u32,
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reserved")
    }
}

/// Stores the credentials of a client, whose bytes are secret.
///
/// **A nonce must never be returned twice**, to different threads or processes or after a crash: the second token is
/// rejected, and can be linked to the first. [`reserve`](Self::reserve) must persist the nonce *before* it returns.
///
/// ```
/// use std::{collections::BTreeMap, sync::Mutex};
/// use tower_quota_anonymous::{
///     ContextName, CredentialStorage, Profile, Reserved, StorageError, StorageFuture, UsedNonces,
/// };
///
/// /// Stands for a database with two tables.
/// #[derive(Default)]
/// struct Database {
///     credentials: Mutex<BTreeMap<ContextName, Vec<u8>>>,
///     nonces: Mutex<BTreeMap<(ContextName, ContextName), UsedNonces>>,
/// }
///
/// impl CredentialStorage for Database {
///     fn reserve(&self, credential: ContextName, context: ContextName, limit: u32) -> StorageFuture<'_, Option<Reserved>> {
///         Box::pin(async move {
///             // In one transaction, which must be committed before the nonce is returned.
///             let Some(bytes) = self.credentials.lock().unwrap().get(&credential).cloned() else {
///                 return Ok(None);
///             };
///             let mut nonces = self.nonces.lock().unwrap();
///             let nonce = nonces.entry((credential, context)).or_default().draw(limit)?;
///             Ok(Some(Reserved { credential: bytes.into(), nonce }))
///         })
///     }
///
///     fn save(&self, credential: ContextName, _: Profile, bytes: &[u8]) -> StorageFuture<'_, ()> {
///         // A new credential has no used nonces.
///         self.nonces.lock().unwrap().retain(|(of, _), _| *of != credential);
///         self.credentials.lock().unwrap().insert(credential, bytes.to_vec());
///         Box::pin(async { Ok(()) })
///     }
/// }
///
/// # tokio_test::block_on(async {
/// let (storage, mine, minute) = (Database::default(), ContextName::of(b"mine"), ContextName::of(b"minute"));
/// assert!(storage.reserve(mine, minute, 2).await?.is_none());
/// storage.save(mine, Profile::P256, b"secret").await?;
/// let first = storage.reserve(mine, minute, 2).await?.expect("the credential was saved");
/// let second = storage.reserve(mine, minute, 2).await?.expect("the credential was saved");
/// assert_ne!(first.nonce, second.nonce);
/// assert!(matches!(storage.reserve(mine, minute, 2).await, Err(StorageError::LimitReached)));
/// # Ok::<_, StorageError>(())
/// # }).unwrap();
/// ```
pub trait CredentialStorage: Send + Sync + 'static {
    /// Reserves an unused nonce below `limit` for this credential and presentation context.
    ///
    /// Returns `None` without such a credential. Keep all contexts of a credential, because an origin can repeat an old
    /// challenge; to limit storage, delete both.
    fn reserve(&self, credential: ContextName, context: ContextName, limit: u32)
    -> StorageFuture<'_, Option<Reserved>>;

    /// Stores a credential, and replaces any with this name and its nonces.
    fn save(&self, credential: ContextName, profile: Profile, bytes: &[u8]) -> StorageFuture<'_, ()>;
}

/// The error of a [`CredentialStorage`].
#[derive(Debug)]
#[non_exhaustive]
pub enum StorageError {
    /// The storage cannot be read or written.
    Failed(Box<dyn Error + Send + Sync>),
    /// All nonces below the limit are used in this context.
    LimitReached,
}

impl From<CredentialError> for StorageError {
    fn from(error: CredentialError) -> Self {
        match error {
            CredentialError::LimitReached => Self::LimitReached,
            error => Self::Failed(error.into()),
        }
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(cause) => write!(f, "storage failed: {cause}"),
            Self::LimitReached => f.write_str("all nonces of the credential are used up in this context"),
        }
    }
}

impl Error for StorageError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(cause) => Some(&**cause),
            Self::LimitReached => None,
        }
    }
}

/// The default storage, in the memory of this process.
///
/// Evicts the least recently used credential, and one with too many contexts.
///
/// ```
/// use tower_quota_anonymous::{ContextName, CredentialStorage, MemoryCredentials, Profile};
///
/// # tokio_test::block_on(async {
/// let (storage, minute) = (MemoryCredentials::new(2, 1_024), ContextName::of(b"minute"));
/// for name in ["a", "b", "c"] {
///     storage.save(ContextName::of(name.as_bytes()), Profile::P256, b"secret").await?;
/// }
/// // There is room for two credentials.
/// assert!(storage.reserve(ContextName::of(b"a"), minute, 9).await?.is_none());
/// assert!(storage.reserve(ContextName::of(b"c"), minute, 9).await?.is_some());
/// # Ok::<_, tower_quota_anonymous::StorageError>(())
/// # }).unwrap();
/// ```
pub struct MemoryCredentials {
    state: Mutex<State>,
    max_credentials: usize,
    max_contexts: usize,
}

#[derive(Default)]
struct State {
    kept: BTreeMap<ContextName, Kept>,
    uses: u64,
}

struct Kept {
    bytes: Zeroizing<Vec<u8>>,
    used: HashMap<ContextName, UsedNonces>,
    /// In all contexts together.
    nonces: u32,
    last_use: u64,
}

impl MemoryCredentials {
    /// At four bytes each plus the overhead of the set.
    const MAX_NONCES: u32 = 1 << 20;

    /// Creates a storage for `max_credentials` credentials with `max_contexts` contexts each, at least 1.
    ///
    /// Defaults: 64 and 4,096. A credential has at most 1,048,576 used tokens in all contexts together.
    pub fn new(max_credentials: usize, max_contexts: usize) -> Self {
        Self {
            state: Mutex::default(),
            max_credentials: max_credentials.max(1),
            max_contexts: max_contexts.max(1),
        }
    }

    fn draw(
        &self,
        credential: ContextName,
        context: ContextName,
        limit: u32,
    ) -> Result<Option<Reserved>, StorageError> {
        let mut state = self.state.lock();
        state.uses += 1;
        let uses = state.uses;
        let Some(kept) = state.kept.get_mut(&credential) else {
            return Ok(None);
        };
        let is_new = !kept.used.contains_key(&context);
        if is_new && kept.used.len() >= self.max_contexts || kept.nonces >= Self::MAX_NONCES {
            state.kept.remove(&credential);
            return Ok(None);
        }
        let nonce = kept.used.entry(context).or_default().draw(limit)?;
        kept.nonces += 1;
        kept.last_use = uses;
        Ok(Some(Reserved {
            credential: kept.bytes.clone(),
            nonce,
        }))
    }

    fn put(&self, credential: ContextName, bytes: &[u8]) {
        let mut state = self.state.lock();
        state.uses += 1;
        let kept = Kept {
            bytes: Zeroizing::new(bytes.to_vec()),
            used: HashMap::new(),
            nonces: 0,
            last_use: state.uses,
        };
        state.kept.insert(credential, kept);
        if state.kept.len() > self.max_credentials {
            let oldest = state
                .kept
                .iter()
                .min_by_key(|(_, kept)| kept.last_use)
                .map(|(name, _)| *name);
            oldest.map(|oldest| state.kept.remove(&oldest));
        }
    }
}

impl Default for MemoryCredentials {
    fn default() -> Self {
        Self::new(64, 4_096)
    }
}

impl CredentialStorage for MemoryCredentials {
    fn reserve(
        &self,
        credential: ContextName,
        context: ContextName,
        limit: u32,
    ) -> StorageFuture<'_, Option<Reserved>> {
        Box::pin(future::ready(self.draw(credential, context, limit)))
    }

    fn save(&self, credential: ContextName, _: Profile, bytes: &[u8]) -> StorageFuture<'_, ()> {
        self.put(credential, bytes);
        Box::pin(future::ready(Ok(())))
    }
}

impl fmt::Debug for MemoryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCredentials")
            .field("credentials", &self.state.lock().kept.len())
            .finish_non_exhaustive()
    }
}
