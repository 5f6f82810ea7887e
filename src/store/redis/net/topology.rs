use std::time::Duration;

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
    decision::{PartNumbers, PartPlan, Plan},
    error::StoreError,
};

pub(crate) enum Topology {
    Single { pool: Pool, one_slot_per_call: bool },
    Cluster(Cluster),
}

impl Topology {
    pub(crate) async fn route(&self, key: &Key, lane: Lane) -> Result<Route<'_>, StoreError> {
        Ok(match self {
            Self::Single { pool, .. } => Route::Single(pool.get(lane).await?, pool),
            Self::Cluster(cluster) => {
                // Boxed, so that the futures of single-server decisions stay small.
                let connection = Box::pin(cluster.get(cluster::slot(key), lane)).await?;
                Route::Cluster(connection, cluster)
            }
        })
    }

    pub(crate) async fn one_for_each_server<T>(
        &self,
        mut candidates: impl Iterator<Item = (Key, T)>,
    ) -> Result<Vec<(Key, T)>, StoreError> {
        match self {
            Self::Single { .. } => Ok(candidates.next().into_iter().collect()),
            Self::Cluster(cluster) => cluster.one_for_each_node(candidates).await,
        }
    }

    pub(crate) async fn opened(&self, count: usize) {
        if let Self::Single { pool, .. } = self {
            pool.opened(count).await;
        }
    }

    pub(crate) async fn send(&self, call: &Call) -> Result<Reply, StoreError> {
        self.route(call.key(), Lane::Any).await?.send(call).await
    }

    /// Parts in a group can share a call. Groups are ordered by their first part.
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
            // The sharding rules of the proxy are unknown. Only keys with the same hash tag are known to share a
            // server.
            Self::Single { one_slot_per_call, .. } if *one_slot_per_call => {
                u128::from_be_bytes(part.partition().to_bytes())
            }
            Self::Single { .. } => 0,
        }
    }

    pub(crate) async fn silence(&self) -> Option<Duration> {
        let wires = match self {
            Self::Single { pool, .. } => pool.wires(),
            Self::Cluster(cluster) => cluster.wires(),
        };
        wire::silence(wires).await
    }

    pub(crate) fn routes_by_key(&self) -> bool {
        match self {
            Self::Single { one_slot_per_call, .. } => *one_slot_per_call,
            Self::Cluster(_) => true,
        }
    }

    pub(crate) fn is_behind_proxy(&self) -> bool {
        matches!(self, Self::Single { one_slot_per_call, .. } if *one_slot_per_call)
    }

    pub(crate) fn has_own_breakers(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

pub(crate) enum Route<'a> {
    Single(SharedConnection, &'a Pool),
    Cluster(cluster::NodeConnection, &'a Cluster),
}

impl Route<'_> {
    pub(crate) async fn send(self, call: &Call) -> Result<Reply, StoreError> {
        match self {
            Self::Single(connection, pool) => match pool.send(connection, call).await {
                // The script stopped at its first write, so it has charged nothing.
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
