use std::{fmt::Display, future::Future, sync::Arc};

use http::request::Parts;

use super::{cache::TierCache, look_up::Ask, on_unknown_tier::LONGEST_NAME, shared::Found};
use crate::rules::ResolvedTier;

/// Erases the types of user and resolver from the type of the layer.
pub(super) type Source = dyn Fn(&Parts, &TierCache) -> Found + Send + Sync;

/// A lookup that can be repeated.
pub(super) fn ask<U, R, A, N, E>(resolver: &Arc<R>, user: U) -> Ask
where
    U: Clone + Send + 'static,
    R: Fn(U) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Option<N>, E>> + Send + 'static,
    N: Into<ResolvedTier>,
    E: Display,
{
    let resolver = Arc::clone(resolver);
    Box::new(move || {
        let answer = resolver(user.clone());
        Box::pin(async move {
            let tier = answer.await.map_err(|error| error.to_string())?;
            match tier.map(N::into) {
                Some(tier) if tier.len() > LONGEST_NAME => {
                    Err(format!("tier name length {} exceeds {LONGEST_NAME} bytes", tier.len()))
                }
                tier => Ok(tier),
            }
        })
    })
}
