//! The servers of a store, and which of them has the key of a call.

use smallvec::SmallVec;

use super::{
    super::{
        keyspace::{Key, Keyspace},
        script::{Call, Reply},
    },
    cluster::{self, Cluster},
    connection::{SharedConnection, code, store_error},
    pool::{Lane, Pool},
    wire,
};
use crate::{
    clock::Timestamp,
    decision::{PartNumbers, PartPlan, Plan},
    error::StoreError,
};

/// The servers of a store.
pub(crate) enum Topology {
    /// One server at a time: of one address, or the primary that sentinels name.
    Single {
        pool: Pool,
        one_slot_per_call: bool,
    },
    Cluster(Cluster),
}

impl Topology {
    /// Returns a connection of the lane to the server that has the key.
    pub(crate) async fn route(&self, key: &Key, lane: Lane) -> Result<Route<'_>, StoreError> {
        Ok(match self {
            Self::Single { pool, .. } => Route::Single(pool.get(lane).await?, pool),
            Self::Cluster(cluster) => {
                // On the heap, here and below: it would make the future of each decision on a single server as large.
                let connection = Box::pin(cluster.get(cluster::slot(key), lane)).await?;
                Route::Cluster(connection, cluster)
            }
        })
    }

    /// The first of these keys on each server, with what belongs to it.
    pub(crate) async fn one_for_each_server<T>(
        &self,
        mut candidates: impl Iterator<Item = (Key, T)>,
    ) -> Result<Vec<(Key, T)>, StoreError> {
        match self {
            Self::Single { .. } => Ok(candidates.next().into_iter().collect()),
            Self::Cluster(cluster) => cluster.one_for_each_node(candidates).await,
        }
    }

    /// Sends a call on any connection.
    pub(crate) async fn send(&self, call: &Call) -> Result<Reply, StoreError> {
        self.route(call.key(), Lane::Any).await?.send(call).await
    }

    /// Returns the parts of a plan that can share a call, in the order of their first ones.
    pub(crate) fn groups(&self, keyspace: &Keyspace, plan: &Plan) -> SmallVec<[PartNumbers; 2]> {
        let mut groups: SmallVec<[(u128, PartNumbers); 2]> = SmallVec::new();
        for (number, part) in plan.parts().enumerate() {
            let name = self.group(keyspace, part);
            match groups.iter_mut().find(|(other, _)| *other == name) {
                Some((_, parts)) => parts.push(number),
                None => groups.push((name, PartNumbers::from_iter([number]))),
            }
        }
        groups.into_iter().map(|(_, parts)| parts).collect()
    }

    fn group(&self, keyspace: &Keyspace, part: PartPlan<'_>) -> u128 {
        match self {
            Self::Cluster(_) => u128::from(cluster::slot(&keyspace.partition(part))),
            // A proxy may shard by rules of its own; only keys with the same hash tag are sure to be together.
            Self::Single { one_slot_per_call, .. } if *one_slot_per_call => {
                u128::from_be_bytes(part.partition().to_bytes())
            }
            Self::Single { .. } => 0,
        }
    }

    /// Waits until calls are written and all that the servers have sent is read. Returns `true` if one of them may still be
    /// about to answer: bytes were written to it or read from it since a moment, or shortly before.
    pub(crate) async fn catch_up(&self, since: Timestamp) -> bool {
        let wires = match self {
            Self::Single { pool, .. } => pool.wires(),
            Self::Cluster(cluster) => cluster.wires(),
        };
        wire::catch_up(wires, since).await
    }

    pub(crate) fn has_own_breakers(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

/// A connection for one call.
pub(crate) enum Route<'a> {
    Single(SharedConnection, &'a Pool),
    Cluster(cluster::NodeConnection, &'a Cluster),
}

impl Route<'_> {
    /// Sends the call, and once more to another server if there is one and the reply proves that nothing was done.
    pub(crate) async fn send(self, call: &Call) -> Result<Reply, StoreError> {
        match self {
            Self::Single(connection, pool) => match pool.send(connection, call).await {
                // The old primary, which is a replica now. The script has stopped at its first write.
                Err(error) if pool.follows_primary() && code(&error) == Some("READONLY") => {
                    let again = async {
                        let connection = pool.get(Lane::Any).await?;
                        pool.send(connection, call).await.map_err(store_error)
                    };
                    Box::pin(again).await
                }
                reply => reply.map_err(store_error),
            },
            Self::Cluster(connection, cluster) => Box::pin(cluster.send(connection, call)).await,
        }
    }
}
