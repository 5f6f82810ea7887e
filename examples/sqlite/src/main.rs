//! A store in SQLite: the processes of one machine share the limits through a file.
//!
//! `cargo run -p example-sqlite -- /tmp/quota.db`, several times within an hour.

use std::{
    error::Error,
    sync::mpsc::{self, Sender},
    thread,
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use tokio::{sync::oneshot, time::timeout};
use tower_quota::{
    Limiter, Measurement, PartitionId, Plan, QuotaPolicy, Settlement, Store, StoreError, StoreErrorKind, StoreFuture,
    clock::Clock,
    ledger::{Change, Ledger},
};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS quota (partition BLOB PRIMARY KEY, bytes BLOB NOT NULL, expires_at INTEGER NOT NULL) \
    WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS quota_expires_at ON quota (expires_at);
";

/// Each transaction writes one or two rows and removes up to four expired ones, so that the table does not grow.
const REMOVE_EXPIRED: &str = "
    DELETE FROM quota WHERE partition IN (SELECT partition FROM quota WHERE expires_at < ?1 ORDER BY expires_at LIMIT 4)
";

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

#[derive(Clone, Debug)]
pub(crate) struct SqliteStore {
    /// Sends jobs to the thread that owns the connection. The thread runs them in order, as `Store::settle` requires.
    jobs: Sender<Job>,
    clock: Clock,
}

impl SqliteStore {
    pub(crate) fn new(mut connection: Connection, clock: Clock) -> rusqlite::Result<Self> {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        // Shorter than the deadline of a limiter, so that the limiter reports the lock and not a timeout.
        connection.busy_timeout(Duration::from_millis(40))?;
        connection.execute_batch(SCHEMA)?;
        let (jobs, received) = mpsc::channel::<Job>();
        thread::spawn(move || received.into_iter().for_each(|job| job(&mut connection)));
        Ok(Self { jobs, clock })
    }

    /// Runs `job` even if the future is not polled.
    fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let (done, result) = oneshot::channel();
        // If the job cannot be sent, its response channel is dropped with it.
        let _ = self.jobs.send(Box::new(move |connection| {
            let _ = done.send(job(connection));
        }));
        StoreFuture::boxed(async move {
            let ended = |_| StoreError::new(StoreErrorKind::Unavailable, "the thread of the database has ended");
            result.await.map_err(ended)?.map_err(store_error)
        })
    }

    fn change<T: Send + 'static>(
        &self,
        partitions: Vec<PartitionId>,
        step: impl FnOnce(&mut Ledger) -> T + Send + 'static,
    ) -> StoreFuture<T> {
        // Read here and not in the transaction, which may wait for earlier transactions and for other processes.
        let now = self.clock.now();
        self.run(move |connection| {
            // Locks the database before reading, so that no other process can write in between.
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut ledger = Ledger::at(now);
            for partition in partitions {
                let mut select = transaction.prepare_cached("SELECT bytes FROM quota WHERE partition = ?1")?;
                let bytes: Option<Vec<u8>> = select.query_row([partition.to_bytes()], |row| row.get(0)).optional()?;
                ledger.open(partition, bytes.as_deref());
            }
            let result = step(&mut ledger);
            for change in ledger.changes() {
                write(&transaction, change)?;
            }
            transaction
                .prepare_cached(REMOVE_EXPIRED)?
                .execute([now.as_micros().cast_signed()])?;
            transaction.commit()?;
            Ok(result)
        })
    }
}

fn write(transaction: &Transaction<'_>, change: Change) -> rusqlite::Result<usize> {
    let partition = change.partition.to_bytes();
    match change.bytes {
        Some(bytes) => transaction
            .prepare_cached("INSERT OR REPLACE INTO quota VALUES (?1, ?2, ?3)")?
            .execute(params![partition, bytes, change.expires_at.as_micros().cast_signed()]),
        None => transaction
            .prepare_cached("DELETE FROM quota WHERE partition = ?1")?
            .execute([partition]),
    }
}

impl Store for SqliteStore {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        self.change(plan.partitions().collect(), move |ledger| ledger.acquire(plan))
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.change(settlement.partitions().collect(), move |ledger| {
            ledger.settle(&settlement)
        })
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.change(plan.partitions().collect(), move |ledger| ledger.reset(&plan))
    }

    fn flush(&self, time: Duration) -> StoreFuture<()> {
        let last = self.run(|_| Ok(()));
        StoreFuture::boxed(async move {
            let late = |_| StoreError::new(StoreErrorKind::TimedOut, "transactions are in progress");
            timeout(time, last).await.map_err(late)?
        })
    }
}

fn store_error(error: rusqlite::Error) -> StoreError {
    let kind = match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => StoreErrorKind::TimedOut,
        Some(rusqlite::ErrorCode::CannotOpen | rusqlite::ErrorCode::DiskFull) => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Failed,
    };
    StoreError::new(kind, error.to_string()).with_source(error)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "quota.db".to_owned());
    let limiter = Limiter::builder(SqliteStore::new(Connection::open(&path)?, Clock::system())?)
        .scope("mails")
        .policy(QuotaPolicy::per_hour("hour", 5))
        .build()?;
    let decision = limiter.check("alice").await;
    println!("{:?}: {decision:?}", decision.outcome());
    limiter.flush(Duration::from_secs(1)).await?;
    Ok(())
}
