//! Callers who have more than their rules say, for some time.

use std::{collections::HashMap, sync::Arc};

use super::set::QuotaSet;
use crate::{
    clock::Timestamp,
    error::{ConfigError, ConfigErrorKind},
    partition::PartitionId,
    sync::mutex::Mutex,
};

/// The maximum number of callers with a grant: they are exceptions.
const MAX_GRANTS: usize = 10_000;

/// The grants of a layer.
pub(super) type Grants = HashMap<PartitionId, Arc<Grant>>;

/// The additional units of one caller.
#[derive(Debug)]
pub(crate) struct Grant {
    units: u64,
    until: Timestamp,
    /// The raised policies, and those that they were made of: most often the same as the last time.
    raised: Mutex<Option<[Arc<QuotaSet>; 2]>>,
}

/// Puts a grant in the place of an earlier one of the same caller; those that are over make room.
pub(super) fn give(all: &Grants, to: PartitionId, grant: &Arc<Grant>, now: Timestamp) -> Result<Grants, ConfigError> {
    let mut grants = all.clone();
    grants.retain(|partition, grant| grant.until > now && *partition != to);
    if grants.len() >= MAX_GRANTS {
        let message = format!("grants: there are {MAX_GRANTS} already, and no more can be given");
        return Err(ConfigError::new(ConfigErrorKind::Grant, message));
    }
    grants.insert(to, Arc::clone(grant));
    Ok(grants)
}

impl Grant {
    pub(crate) fn new(units: u64, until: Timestamp) -> Self {
        let raised = Mutex::default();
        Self { units, until, raised }
    }

    /// The policies with what was granted, if that is not over.
    pub(super) fn raise(
        &self,
        set: &Arc<QuotaSet>,
        now: Timestamp,
        raise: impl FnOnce(&QuotaSet, u64) -> Option<QuotaSet>,
    ) -> Option<Arc<QuotaSet>> {
        if now >= self.until {
            return None;
        }
        let mut raised = self.raised.lock();
        match &*raised {
            Some([base, raised]) if base.is_same(set) => Some(Arc::clone(raised)),
            _ => {
                let new = Arc::new(raise(set, self.units)?);
                *raised = Some([Arc::clone(set), Arc::clone(&new)]);
                Some(new)
            }
        }
    }
}
