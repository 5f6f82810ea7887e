use std::mem;

/// Leaves a clone, which need not be ready.
pub(super) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
}
