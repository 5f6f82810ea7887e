use std::sync::Arc;

use super::{candidate::Candidate, config::LayerView, sets::Sets};
use crate::error::ConfigError;

/// Valid rules for all callers, and a rollout.
#[derive(Clone, Debug)]
pub(super) struct AppliedRules {
    pub(super) current: Arc<Sets>,
    pub(super) candidate: Option<Candidate>,
}

impl AppliedRules {
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Sets>> {
        let candidate = self.candidate.as_ref().map(|candidate| &candidate.sets);
        std::iter::once(&self.current).chain(candidate)
    }

    pub(super) fn with_layer(&self, position: usize, layer: &LayerView) -> Result<Self, ConfigError> {
        let candidate = self.candidate.as_ref().map(|candidate| {
            let sets = Arc::new(candidate.sets.with_layer(position, layer)?);
            Ok(Candidate {
                sets,
                ..candidate.clone()
            })
        });
        Ok(Self {
            current: Arc::new(self.current.with_layer(position, layer)?),
            candidate: candidate.transpose()?,
        })
    }
}
