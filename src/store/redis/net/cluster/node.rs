use std::sync::Arc;

use ::redis::RedisError;

use super::{
    super::{
        super::script::{Call, Reply},
        connection::{MIN_CANCEL_MICROS, SharedConnection, code, store_error},
        opener::at,
        pool::{Endpoint, Lane, Pool},
    },
    settings::Settings,
    slots::Address,
};
use crate::{
    breaker::{Admission, Breaker, CircuitTelemetry},
    clock::{Clock, Timestamp},
    error::{StoreError, StoreErrorKind},
    sync::mutex::Mutex,
    telemetry::{self, OneMore},
};

pub(super) struct Node {
    pub(super) address: Address,
    pub(super) pool: Pool,
    breaker: Breaker,
}

impl Node {
    pub(super) fn new(settings: &Settings, address: Address) -> Self {
        let like = &settings.seeds[0];
        let info = like.clone().set_addr(at(like.addr(), address.clone()));
        let (host, port) = &address;
        let log = NodeTelemetry::new(format!("{host}:{port}"));
        Self {
            address,
            pool: Pool::new(
                Endpoint::Address(Box::new(info)),
                settings.opener.clone(),
                settings.connections,
            ),
            breaker: Breaker::new(Clock::system(), Arc::new(log)),
        }
    }

    pub(super) fn is_believed(&self) -> bool {
        self.breaker.is_closed()
    }

    pub(super) async fn connect(self: &Arc<Self>, lane: Lane) -> Result<NodeConnection, StoreError> {
        let attempt = NodeAttempt::start(&self.breaker).ok_or_else(|| {
            let (host, port) = &self.address;
            let message = format!("cluster node {host}:{port} was not called");
            StoreError::new(StoreErrorKind::CircuitOpen, message)
        })?;
        match self.pool.get(lane).await {
            Ok(connection) => Ok(NodeConnection {
                node: Arc::clone(self),
                connection,
                attempt,
            }),
            Err(error) => {
                attempt.end(Some(&error));
                Err(error)
            }
        }
    }
}

pub(crate) struct NodeConnection {
    pub(super) node: Arc<Node>,
    connection: SharedConnection,
    attempt: NodeAttempt,
}

impl NodeConnection {
    pub(super) fn asking(mut self) -> Self {
        self.connection = self.connection.asking();
        self
    }

    /// Errors about a slot do not count against the node.
    pub(super) async fn send(self, call: &Call) -> Result<Reply, RedisError> {
        let reply = self.node.pool.send(self.connection, call).await;
        let is_about_slot =
            |error: &RedisError| matches!(code(error), Some("ASK" | "CLUSTERDOWN" | "MOVED" | "TRYAGAIN"));
        let failure = reply.as_ref().err().filter(|error| !is_about_slot(error));
        self.attempt.end(failure.cloned().map(store_error).as_ref());
        reply
    }
}

pub(super) struct NodeAttempt {
    breaker: Breaker,
    admission: Option<Admission>,
    since: Timestamp,
}

impl NodeAttempt {
    pub(super) fn start(breaker: &Breaker) -> Option<Self> {
        match breaker.admit() {
            Admission::Rejected => None,
            admission => Some(Self {
                breaker: breaker.clone(),
                admission: Some(admission),
                since: Clock::system().now(),
            }),
        }
    }

    pub(super) fn is_trial(&self) -> bool {
        matches!(self.admission, Some(Admission::HalfOpen(_)))
    }

    pub(super) fn end(mut self, error: Option<&StoreError>) {
        if let Some(admission) = self.admission.take() {
            self.breaker.record(admission, error);
        }
    }
}

impl Drop for NodeAttempt {
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take()
            && Clock::system().now().micros_since(self.since) >= MIN_CANCEL_MICROS
        {
            let error = StoreError::new(StoreErrorKind::TimedOut, "no reply before the call was cancelled");
            self.breaker.record(admission, Some(&error));
        }
    }
}

#[derive(Debug)]
pub(super) struct NodeTelemetry {
    address: String,
    /// Set while the circuit is open. Dropped with the node.
    lost: Mutex<Option<OneMore>>,
}

impl NodeTelemetry {
    pub(super) fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            lost: Mutex::default(),
        }
    }
}

impl CircuitTelemetry for NodeTelemetry {
    fn opened(&self, error: &StoreError) {
        *self.lost.lock() = Some(telemetry::node_lost(&self.address, error));
    }

    fn closed(&self, rejected: u64) {
        *self.lost.lock() = None;
        telemetry::node_back(&self.address, rejected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn give_up(mut attempt: NodeAttempt) {
        attempt.since = Timestamp::default();
    }

    #[test]
    fn a_node_that_has_answered_others_meanwhile_is_asked_on() {
        let breaker = Breaker::new(Clock::system(), Arc::new(NodeTelemetry::new("node")));
        let attempts = || -> Vec<_> { (0..10).filter_map(|_| NodeAttempt::start(&breaker)).collect() };
        let late = attempts();
        NodeAttempt::start(&breaker).unwrap().end(None);
        late.into_iter().for_each(give_up);
        assert!(breaker.is_closed());
        attempts().into_iter().for_each(give_up);
        assert!(!breaker.is_closed());
    }
}
