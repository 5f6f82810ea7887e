#![doc = "A store of your own: quota in a key-value map whose entries can be compared and set."]

// Run with `cargo run --example own_store`. Included in the documentation of `ledger`.
//
// [dependencies]
// tokio = { version = "1.47", features = ["macros", "rt-multi-thread"] }
// tower-quota = { version = "0.1.0", default-features = false }

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tower_quota::{
    Measurement, Outcome, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Settlement, Store,
    StoreFuture,
    clock::Clock,
    ledger::{Change, Ledger},
};

/// Replaces a database, such as etcd, a table with a revision column, or a file with a lock.
#[derive(Debug, Default)]
struct Map(Mutex<HashMap<PartitionId, Entry>>);

#[derive(Clone, Debug, Default)]
struct Entry {
    revision: u64,
    bytes: Option<Vec<u8>>,
}

impl Map {
    fn get(&self, partition: PartitionId) -> Entry {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.get(&partition).cloned().unwrap_or_default()
    }

    /// Applies all changes, or none if the revision of an entry has changed since it was read.
    fn compare_and_set(&self, read: &HashMap<PartitionId, u64>, changes: Vec<Change>) -> bool {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unchanged = |(partition, revision): (&PartitionId, &u64)| {
            map.get(partition).map_or(0, |entry| entry.revision) == *revision
        };
        if !changes.is_empty() && !read.iter().all(is_unchanged) {
            return false;
        }
        // In a database, also set the expiry of an entry.
        for Change { partition, bytes, .. } in changes {
            let entry = map.entry(partition).or_default();
            *entry = Entry {
                revision: entry.revision + 1,
                bytes,
            };
        }
        true
    }
}

#[derive(Clone, Debug)]
pub(crate) struct OwnStore {
    map: Arc<Map>,
    clock: Clock,
}

impl OwnStore {
    pub(crate) fn new(clock: Clock) -> Self {
        let map = Arc::default();
        Self { map, clock }
    }

    /// Runs a transaction. Retries until no other task has written in between.
    fn change<T>(&self, partitions: &[PartitionId], step: impl Fn(&mut Ledger) -> T) -> T {
        loop {
            let (mut ledger, mut read) = (Ledger::at(self.clock.now()), HashMap::new());
            for partition in partitions {
                let entry = self.map.get(*partition);
                ledger.open(*partition, entry.bytes.as_deref());
                read.insert(*partition, entry.revision);
            }
            let result = step(&mut ledger);
            if self.map.compare_and_set(&read, ledger.changes().collect()) {
                return result;
            }
        }
    }
}

impl Store for OwnStore {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        let partitions: Vec<_> = plan.partitions().collect();
        // Use `StoreFuture::boxed` for an asynchronous database.
        StoreFuture::ready(Ok(self.change(&partitions, |ledger| ledger.acquire(plan.clone()))))
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        let partitions: Vec<_> = settlement.partitions().collect();
        self.change(&partitions, |ledger| ledger.settle(&settlement));
        StoreFuture::ready(Ok(()))
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        let partitions: Vec<_> = plan.partitions().collect();
        self.change(&partitions, |ledger| ledger.reset(&plan));
        StoreFuture::ready(Ok(()))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = OwnStore::new(Clock::system());
    let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 2)])?;
    let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    for expected in [Outcome::Allowed, Outcome::Allowed, Outcome::Rejected] {
        let decision = store.decide(Plan::new(policies.clone(), alice, 1)).await?;
        assert_eq!(decision.outcome(), expected);
        println!("{decision:?}");
    }
    Ok(())
}
