//! `docs/decisions.md` explains why this is not the client of the `redis` crate.

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

pub(crate) struct Cluster(Arc<Directory>);

impl Cluster {
    pub(crate) fn new(settings: Settings) -> Self {
        Self(Directory::new(settings))
    }

    pub(super) async fn get(&self, slot: u16, lane: Lane) -> Result<NodeConnection, StoreError> {
        let map = self.0.map().await?;
        let Some(node) = map.owner(slot) else {
            self.0.refresh();
            let message = format!("no cluster node owns slot {slot}");
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        };
        self.connect(node, lane).await
    }

    pub(super) async fn one_for_each_node<T>(
        &self,
        candidates: impl Iterator<Item = (Key, T)>,
    ) -> Result<Vec<(Key, T)>, StoreError> {
        let map = self.0.map().await?;
        let mut missing: Vec<&Arc<Node>> = Vec::new();
        let owners = || (0..slots::SLOTS).map(|slot| map.owner(slot as u16));
        let lost = owners().filter(Option::is_none).count();
        if lost > 0 {
            let message = format!(
                "{lost} of the {} cluster slots are not assigned to a node",
                slots::SLOTS
            );
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
        // Its slots may have another owner.
        node.connect(lane).await.inspect_err(|_| self.0.refresh())
    }

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

    pub(super) fn wires(&self) -> Vec<Arc<Wire>> {
        let map = self.0.known_map();
        let nodes = map.as_ref().map_or(&[][..], |map| map.nodes());
        nodes.iter().flat_map(|node| node.pool.wires()).collect()
    }

    /// `None` unless the reply proves that the call was not executed.
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
