//! Redis Cluster: a call goes to the node that has its slot, and follows the slot when that moves.
//!
//! The `redis` crate has a client for clusters, too. This crate does not use it (looked at again in November 2026,
//! redis 1.8.1):
//!
//! - `refresh_slots` holds the lock that every request needs while it asks nodes over the network, one after the other. A
//!   node that hangs stops the requests to all others
//!   ([#2092](https://github.com/redis-rs/redis-rs/issues/2092); since then only reconnects run in the background).
//! - A request that its caller cancels stays in the queue of the client's one task.
//! - A request whose node is unavailable goes to other nodes in turn, and fails when it has met too many connections that
//!   have ended ([#2277](https://github.com/redis-rs/redis-rs/issues/2277)).
//!
//! Here a lost node costs only the callers whose slots it has, and a cancelled call is gone.

mod directory;
mod map;
mod node;
mod redirection;
mod settings;
mod slots;

use std::sync::Arc;

use ::redis::RedisError;

use self::{
    directory::Directory,
    node::Node,
    redirection::{Redirection, Redirections},
};
pub(crate) use self::{node::NodeConnection, settings::Settings, slots::slot};
use super::{
    super::{
        keyspace::Key,
        script::{Call, Reply},
    },
    connection::{code, store_error},
    pool::Lane,
    wire::Wire,
};
use crate::error::{StoreError, StoreErrorKind};

/// The nodes of a cluster.
pub(crate) struct Cluster(Arc<Directory>);

impl Cluster {
    pub(crate) fn new(settings: Settings) -> Self {
        Self(Directory::new(settings))
    }

    /// Returns a connection to the node that has the slot.
    pub(super) async fn get(&self, slot: u16, lane: Lane) -> Result<NodeConnection, StoreError> {
        let map = self.0.map().await?;
        let Some(node) = map.owner(slot) else {
            self.0.refresh();
            let message = format!("no node of the cluster has slot {slot}");
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        };
        self.connect(node, lane).await
    }

    /// The first of these keys on each node that has slots.
    pub(super) async fn one_for_each_node<T>(
        &self,
        candidates: impl Iterator<Item = (Key, T)>,
    ) -> Result<Vec<(Key, T)>, StoreError> {
        let map = self.0.map().await?;
        let mut missing: Vec<&Arc<Node>> = Vec::new();
        let owners = || (0..slots::SLOTS).map(|slot| map.owner(slot as u16));
        let lost = owners().filter(Option::is_none).count();
        if lost > 0 {
            let message = format!("{lost} of the {} slots of the cluster belong to no node", slots::SLOTS);
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        }
        for owner in owners().flatten() {
            if !missing.iter().any(|node| Arc::ptr_eq(node, owner)) {
                missing.push(owner);
            }
        }
        let mut found = Vec::new();
        for (key, candidate) in candidates {
            let Some(owner) = map.owner(slot(&key)) else {
                continue;
            };
            if let Some(place) = missing.iter().position(|node| Arc::ptr_eq(node, owner)) {
                missing.swap_remove(place);
                found.push((key, candidate));
            }
            if missing.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    async fn connect(&self, node: &Arc<Node>, lane: Lane) -> Result<NodeConnection, StoreError> {
        // A node that does not answer may have lost its slots to another one.
        node.connect(lane).await.inspect_err(|_| self.0.refresh())
    }

    /// Sends a call, and sends it again where the reply or a newer map names another node. A call that was answered like
    /// that was not carried out.
    pub(super) async fn send(&self, mut connection: NodeConnection, call: &Call) -> Result<Reply, StoreError> {
        let (slot, mut redirections) = (slot(call.key()), Redirections::default());
        loop {
            let asked = Arc::clone(&connection.node);
            let error = match connection.send(call).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let redirection = self.redirection(&asked, slot, &error);
            let error = store_error(error);
            // A slot that is being moved belongs to its old node until it has arrived.
            let is_moving = matches!(redirection, Some(Redirection::Asking(_) | Redirection::Later));
            if error.opens_circuit() && !is_moving {
                self.0.refresh();
            }
            connection = match redirections.follow(redirection).await {
                Some(Redirection::Owner(node)) => self.connect(&node, Lane::Any).await?,
                Some(Redirection::Asking(node)) => self.connect(&node, Lane::Any).await?.asking(),
                Some(Redirection::Later) => self.get(slot, Lane::Any).await?,
                None => return Err(error),
            };
        }
    }

    /// Returns the byte streams of all connections to all nodes.
    pub(super) fn wires(&self) -> Vec<Arc<Wire>> {
        let map = self.0.known_map();
        let nodes = map.as_ref().map_or(&[][..], |map| map.nodes());
        nodes.iter().flat_map(|node| node.pool.wires()).collect()
    }

    /// Returns where a call goes next, if the node that was asked has proved that it did nothing.
    fn redirection(&self, asked: &Arc<Node>, slot: u16, error: &RedisError) -> Option<Redirection> {
        let address = || {
            let (redirect, _) = error.redirect_node()?;
            slots::address(redirect, &asked.address.0)
        };
        match code(error)? {
            "MOVED" => Some(Redirection::Owner(self.0.moved(slot, address()?))),
            "ASK" => Some(Redirection::Asking(self.0.importing(address()?))),
            "TRYAGAIN" => Some(Redirection::Later),
            "LOADING" | "READONLY" => {
                let map = self.0.known_map();
                let owner = map.as_ref()?.owner(slot)?;
                (!Arc::ptr_eq(owner, asked)).then(|| Redirection::Owner(Arc::clone(owner)))
            }
            _ => None,
        }
    }
}
