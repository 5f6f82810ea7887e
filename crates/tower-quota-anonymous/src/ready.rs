//! The contract of Tower: a service is called only after it was polled ready.

use std::mem;

/// The service that was polled ready; a clone, which need not be ready, takes its place.
pub(super) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
}
