//! One node of a cluster: its connections, and whether it is asked at all.

use std::{future::Future, sync::Arc};

use ::redis::ConnectionInfo;

use super::super::{
    client::Opener,
    connection::{IMPATIENT_MICROS, SharedConnection},
    pool::{Pool, Target},
    sentinel::at,
};
use crate::{
    breaker::{Admission, Breaker, CircuitTelemetry},
    clock::{Clock, Timestamp},
    error::{StoreError, StoreErrorKind},
    mutex::Mutex,
    telemetry::{self, LostNode},
};

pub(super) struct Node {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) pool: Pool,
    breaker: Breaker,
}

impl Node {
    /// `like` says everything but the address.
    pub(super) fn new(like: &ConnectionInfo, host: String, port: u16, opener: &Opener, connections: u32) -> Self {
        let info = like.clone().set_addr(at(like.addr(), host.clone(), port));
        let log = NodeTelemetry::new(format!("{host}:{port}"));
        Self {
            host,
            port,
            pool: Pool::new(Target::Server(Box::new(info)), opener.clone(), connections),
            breaker: Breaker::new(Clock::system(), Arc::new(log)),
        }
    }

    /// Whether its circuit is closed.
    pub(super) fn is_believed(&self) -> bool {
        self.breaker.is_closed()
    }

    /// A connection, unless the node does not answer at the moment: whoever asks then is told at once.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Ready, StoreError> {
        self.connect_by(self.pool.get()).await
    }

    /// The same, always with the same connection.
    pub(super) async fn connect_ordered(self: &Arc<Self>) -> Result<Ready, StoreError> {
        self.connect_by(self.pool.get_ordered()).await
    }

    async fn connect_by(
        self: &Arc<Self>,
        connection: impl Future<Output = Result<SharedConnection, StoreError>>,
    ) -> Result<Ready, StoreError> {
        let attempt = Attempt::start(&self.breaker).ok_or_else(|| {
            let message = format!("the cluster's node {}:{} was not asked", self.host, self.port);
            StoreError::new(StoreErrorKind::CircuitOpen, message)
        })?;
        match connection.await {
            Ok(connection) => Ok(Ready {
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

/// A connection to the node that has a slot, for one call.
pub(in super::super) struct Ready {
    pub(super) node: Arc<Node>,
    pub(in super::super) connection: SharedConnection,
    pub(super) attempt: Attempt,
}

impl Ready {
    /// The same for a slot that is being moved to this node.
    pub(super) fn asking(self) -> Self {
        Self {
            connection: self.connection.asking(),
            ..self
        }
    }
}

/// Something that a breaker has let through. It has failed if it is given up without an answer.
pub(super) struct Attempt {
    breaker: Breaker,
    admission: Option<Admission>,
    since: Timestamp,
}

impl Attempt {
    /// `None` if the circuit is open.
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

    /// Whether it is the one that tries while the others are rejected.
    pub(super) fn is_trial(&self) -> bool {
        matches!(self.admission, Some(Admission::HalfOpen(_)))
    }

    pub(super) fn end(mut self, error: Option<&StoreError>) {
        if let Some(admission) = self.admission.take() {
            self.breaker.record(admission, error);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take()
            && Clock::system().now().micros_since(self.since) >= IMPATIENT_MICROS
        {
            let error = StoreError::new(StoreErrorKind::TimedOut, "no answer before the call was given up");
            self.breaker.record(admission, Some(&error));
        }
    }
}

/// Tells operators about the node of this address.
#[derive(Debug)]
pub(super) struct NodeTelemetry {
    address: String,
    /// Kept while the circuit is open. A node that is dropped meanwhile, because the cluster has no use for it any more,
    /// is not lost.
    lost: Mutex<Option<LostNode>>,
}

impl NodeTelemetry {
    pub(super) fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            lost: Mutex::default(),
        }
    }

    fn set(&self, lost: Option<LostNode>) {
        *self.lost.lock() = lost;
    }
}

impl CircuitTelemetry for NodeTelemetry {
    fn opened(&self, error: &StoreError) {
        self.set(Some(telemetry::node_lost(&self.address, error)));
    }

    fn closed(&self, rejected: u64) {
        self.set(None);
        telemetry::node_back(&self.address, rejected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends it without an answer, long after its beginning.
    fn give_up(mut attempt: Attempt) {
        attempt.since = Timestamp::default();
    }

    #[test]
    fn a_node_that_has_answered_others_meanwhile_is_asked_on() {
        let breaker = Breaker::new(Clock::system(), Arc::new(NodeTelemetry::new("node")));
        let attempts = || -> Vec<_> { (0..10).filter_map(|_| Attempt::start(&breaker)).collect() };
        let late = attempts();
        Attempt::start(&breaker).unwrap().end(None);
        late.into_iter().for_each(give_up);
        assert!(breaker.is_closed());
        attempts().into_iter().for_each(give_up);
        assert!(!breaker.is_closed());
    }
}
