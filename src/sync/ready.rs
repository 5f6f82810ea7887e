//! The contract of Tower: a service is called only after it was polled ready.

use std::mem;

/// The service that was polled ready; a clone, which need not be ready, takes its place.
pub(crate) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
}

/// A service that was polled ready, before a closure of the program runs. If the closure panics, the service is released: it
/// may hold a permit that others need.
pub(crate) struct ReadyService<'a, S: Clone>(Option<&'a mut S>);

impl<'a, S: Clone> ReadyService<'a, S> {
    pub(crate) fn new(service: &'a mut S) -> Self {
        Self(Some(service))
    }

    /// Returns the service, which is still ready.
    pub(crate) fn keep(mut self) -> &'a mut S {
        self.0.take().expect("a service is kept once")
    }
}

impl<S: Clone> Drop for ReadyService<'_, S> {
    fn drop(&mut self) {
        if let Some(service) = self.0.take() {
            drop(take_ready(service));
        }
    }
}
