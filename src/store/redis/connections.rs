//! Which server a call goes to, and to which other one if that has lost what it is about.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    cluster::{self, Cluster},
    connection::{SharedConnection, code, store_error},
    keyspace::{Key, Keyspace},
    pool::Pool,
    script::{Call, Reply},
    wire,
};
use crate::{
    error::StoreError,
    exchange::{PartNumbers, PartPlan, Plan},
};

/// The connections of one store.
pub(super) enum Connections {
    /// To one address.
    Server {
        pool: Pool,
        one_slot_per_call: bool,
    },
    /// To whichever server the sentinels call the primary.
    Primary {
        pool: Pool,
        one_slot_per_call: bool,
    },
    Cluster(Arc<Cluster>),
}

impl Connections {
    /// A connection to the server that has the keys of a call.
    pub(super) async fn get(&self, call: &Call) -> Result<Ready<'_>, StoreError> {
        Ok(match self {
            Self::Server { pool, .. } => Ready::Server(pool.get().await?, pool),
            Self::Primary { pool, .. } => Ready::Primary(pool.get().await?, pool),
            Self::Cluster(cluster) => Ready::Cluster(cluster.get(cluster::slot(call.key())).await?, cluster),
        })
    }

    /// The same, always the same one to that server: what is sent on it later is carried out later.
    pub(super) async fn get_ordered(&self, key: &Key) -> Result<Ready<'_>, StoreError> {
        Ok(match self {
            Self::Server { pool, .. } => Ready::Server(pool.get_ordered().await?, pool),
            Self::Primary { pool, .. } => Ready::Primary(pool.get_ordered().await?, pool),
            Self::Cluster(cluster) => Ready::Cluster(cluster.get_ordered(cluster::slot(key)).await?, cluster),
        })
    }

    /// Which parts of a plan can be in one call, in the order of their first ones.
    pub(super) fn groups(&self, keyspace: &Keyspace, plan: &Plan) -> SmallVec<[PartNumbers; 2]> {
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
            // How a proxy shards is its own affair; only keys with the same hash tag are sure to be together.
            Self::Primary { one_slot_per_call, .. } | Self::Server { one_slot_per_call, .. } if *one_slot_per_call => {
                u128::from_be_bytes(part.partition().to_bytes())
            }
            Self::Primary { .. } | Self::Server { .. } => 0,
        }
    }

    /// Whether partitions that have nothing to do with each other may be in one call.
    pub(super) fn may_share_calls(&self) -> bool {
        match self {
            Self::Cluster(_) => false,
            Self::Primary { one_slot_per_call, .. } | Self::Server { one_slot_per_call, .. } => !one_slot_per_call,
        }
    }

    /// Waits until all that the servers have sent by now, and that has arrived, is read.
    pub(super) async fn catch_up(&self) {
        wire::catch_up(match self {
            Self::Server { pool, .. } | Self::Primary { pool, .. } => pool.wires(),
            Self::Cluster(cluster) => cluster.wires(),
        })
        .await;
    }

    pub(super) fn has_own_breakers(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

/// A connection for one call.
pub(super) enum Ready<'a> {
    Server(SharedConnection, &'a Pool),
    Primary(SharedConnection, &'a Pool),
    Cluster(cluster::Ready, &'a Arc<Cluster>),
}

impl Ready<'_> {
    /// Sends the call, and once more to another server if the reply proves that nothing was done and there is one.
    pub(super) async fn send(self, call: &Call) -> Result<Reply, StoreError> {
        match self {
            Self::Server(connection, pool) => pool.send(connection, call).await.map_err(store_error),
            Self::Primary(connection, pool) => match pool.send(connection, call).await {
                // The old primary, which is a replica now. The script has stopped at its first write.
                Err(error) if code(&error) == Some("READONLY") => {
                    let connection = pool.get().await?;
                    pool.send(connection, call).await.map_err(store_error)
                }
                reply => reply.map_err(store_error),
            },
            Self::Cluster(ready, cluster) => cluster.send(ready, call).await,
        }
    }
}
