use std::mem;

pub(crate) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
}

/// Dropped if a closure of the program panics, because it may hold a permit.
pub(crate) struct ReadyService<'a, S: Clone>(Option<&'a mut S>);

impl<'a, S: Clone> ReadyService<'a, S> {
    pub(crate) fn new(service: &'a mut S) -> Self {
        Self(Some(service))
    }

    pub(crate) fn keep(mut self) -> &'a mut S {
        self.0.take().expect("the service is stored once")
    }
}

impl<S: Clone> Drop for ReadyService<'_, S> {
    fn drop(&mut self) {
        if let Some(service) = self.0.take() {
            drop(take_ready(service));
        }
    }
}
