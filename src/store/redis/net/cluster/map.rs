use std::sync::Arc;

use super::{
    node::Node,
    slots::{Address, SLOTS},
};

#[derive(Clone)]
pub(super) struct SlotMap {
    /// The index plus one; 0 if no node owns the slot.
    owners: Box<[u16; SLOTS]>,
    nodes: Vec<Arc<Node>>,
}

impl SlotMap {
    /// Redis recommends at most about 1,000 nodes.
    const MOST_NODES: usize = 4_096;

    pub(super) fn new() -> Self {
        Self {
            owners: Box::new([0; SLOTS]),
            nodes: Vec::new(),
        }
    }

    pub(super) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        let place = *self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(place).checked_sub(1)?)
    }

    pub(super) fn node(&self, address: &Address) -> Option<&Arc<Node>> {
        self.nodes.iter().find(|node| node.address == *address)
    }

    pub(super) fn add(&mut self, node: &Arc<Node>) -> Option<usize> {
        let known = self.nodes.iter().position(|other| Arc::ptr_eq(other, node));
        let place = known.unwrap_or(self.nodes.len());
        if place == self.nodes.len() && place < Self::MOST_NODES {
            self.nodes.push(Arc::clone(node));
        }
        (place < self.nodes.len()).then_some(place)
    }

    pub(super) fn assign(&mut self, first: u16, last: u16, node: &Arc<Node>) {
        if let Some(place) = self.add(node)
            && let Some(owners) = self.owners.get_mut(usize::from(first)..=usize::from(last))
        {
            owners.fill(place as u16 + 1);
        }
    }
}
