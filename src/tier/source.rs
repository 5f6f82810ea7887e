//! The source of tiers: the user of a request, and the resolver that knows its tier.

use std::{fmt::Display, future::Future, marker::PhantomData, sync::Arc};

use http::request::Parts;

use super::cache::{Ask, Found, TierCache};
use crate::{partition::ToPartitionKey, rules::ResolvedTier};

/// Takes the types of user and resolver out of the types of the layer.
pub(super) trait Source: Send + Sync {
    fn find(&self, request: &Parts, cache: &TierCache) -> Found;
}

/// The user is a value of type `U` in the request's extensions.
pub(super) struct ByExtension<U, R> {
    resolver: Arc<R>,
    user: PhantomData<fn() -> U>,
}

impl<U, R> ByExtension<U, R> {
    pub(super) fn new(resolver: R) -> Self {
        Self {
            resolver: Arc::new(resolver),
            user: PhantomData,
        }
    }
}

impl<U, R, A, N, E> Source for ByExtension<U, R>
where
    U: ToPartitionKey + Clone + Send + Sync + 'static,
    R: Fn(U) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Option<N>, E>> + Send + 'static,
    N: AsRef<str>,
    E: Display,
{
    fn find(&self, request: &Parts, cache: &TierCache) -> Found {
        match request.extensions.get::<U>() {
            Some(user) => cache.find(&user.to_partition_key(), || ask(&self.resolver, user.clone())),
            None => Found::Now(None),
        }
    }
}

/// The user is what a closure makes of the request.
pub(super) struct ByFunction<F, R> {
    user: F,
    resolver: Arc<R>,
}

impl<F, R> ByFunction<F, R> {
    pub(super) fn new(user: F, resolver: R) -> Self {
        Self {
            user,
            resolver: Arc::new(resolver),
        }
    }
}

impl<U, F, R, A, N, E> Source for ByFunction<F, R>
where
    U: ToPartitionKey + Clone + Send + 'static,
    F: Fn(&Parts) -> Option<U> + Send + Sync + 'static,
    R: Fn(U) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Option<N>, E>> + Send + 'static,
    N: AsRef<str>,
    E: Display,
{
    fn find(&self, request: &Parts, cache: &TierCache) -> Found {
        match (self.user)(request) {
            Some(user) => cache.find(&user.to_partition_key(), || ask(&self.resolver, user)),
            None => Found::Now(None),
        }
    }
}

/// The longest name of a tier, so that an answer that is none does not fill the memory.
const LONGEST_NAME: usize = 256;

fn ask<U, R, A, N, E>(resolver: &Arc<R>, user: U) -> Ask
where
    U: Clone + Send + 'static,
    R: Fn(U) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Option<N>, E>> + Send + 'static,
    N: AsRef<str>,
    E: Display,
{
    let resolver = Arc::clone(resolver);
    Box::new(move || {
        let answer = resolver(user.clone());
        Box::pin(async move {
            let name = answer.await.map_err(|error| error.to_string())?;
            match name.as_ref().map(AsRef::as_ref) {
                Some(name) if name.len() > LONGEST_NAME => Err(format!(
                    "a tier's name of {} bytes is longer than {LONGEST_NAME}",
                    name.len()
                )),
                name => Ok(name.map(ResolvedTier::new)),
            }
        })
    })
}
