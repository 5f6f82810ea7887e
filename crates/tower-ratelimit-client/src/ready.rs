use std::mem;

/// Dropping a `ReadyService` releases the permit that the service may hold, because the request must wait or a closure
/// of the user has panicked.
pub(super) struct ReadyService<'a, S: Clone>(Option<&'a mut S>);

impl<'a, S: Clone> ReadyService<'a, S> {
    pub(super) fn new(service: &'a mut S) -> Self {
        Self(Some(service))
    }

    pub(super) fn keep(mut self) -> &'a mut S {
        self.0.take().expect("the service is stored once")
    }
}

impl<S: Clone> Drop for ReadyService<'_, S> {
    fn drop(&mut self) {
        if let Some(service) = self.0.take() {
            let clone = service.clone();
            drop(mem::replace(service, clone));
        }
    }
}
