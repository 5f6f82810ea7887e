use ::redis::{Cmd, Value};

use super::call::{Body, Call};
use crate::{
    store::redis::keyspace::{Key, Keys},
    sync::mutex::Mutex,
};

impl Call {
    /// A command whose reply is stored in the call.
    pub(in super::super) fn query(key: Key, command: Cmd) -> Self {
        Self::new(Keys::from_iter([key]), Body::Query(command, Mutex::new(Value::Nil)))
    }

    /// Returns the reply to a [`query`](Self::query).
    pub(in super::super) fn into_value(self) -> Value {
        match self.body {
            Body::Query(_, reply) => std::mem::replace(&mut *reply.lock(), Value::Nil),
            Body::Command(_) | Body::Script(..) => Value::Nil,
        }
    }
}
