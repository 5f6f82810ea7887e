//! A page for experiments with limits: configure limits, send requests, watch the decisions, inspect the responses, and
//! copy the Rust program.
//!
//! ```sh
//! cargo run -p tower-quota-apps --bin playground
//! ```
//!
//! A debug build sends a few hundred requests per second; use `--release` for the highest rates.
//!
//! Redis is not required; with `REDIS_URL`, the limits are in Redis. The requests are sent over HTTP through a
//! `RateLimitLayer`. The page also shows requests sent with `curl`:
//!
//! ```sh
//! curl -i -H 'x-user-id: alice' http://127.0.0.1:3000/try
//! ```
//!
//! The program listens only on 127.0.0.1, and accepts requests from its page and from local programs, but not from
//! other sites. All open pages share one configuration. `PORT` sets the port; 0 selects a free one.

mod api;
mod client;
mod load;
mod outage;
pub(crate) mod program;
mod same_site;
pub(crate) mod setup;
#[path = "../page/mod.rs"]
mod shared;
mod stage;
mod tally;

use std::{
    env,
    error::Error,
    net::SocketAddr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, extract::DefaultBodyLimit, middleware};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::broadcast,
    time::{Instant, MissedTickBehavior, interval},
};
use tower_quota::{MemoryStore, RedisStore, Store};

use self::{
    client::Client,
    load::Load,
    outage::RemovableStore,
    setup::{ALGORITHMS, Setup},
    stage::{Stage, Stores},
    tally::Tally,
};

/// The time between two messages to the page.
const TICK: Duration = Duration::from_millis(100);

/// The maximum backlog of a slow page, in ticks.
const BACKLOG: usize = 64;

const MAX_BODY: usize = 16 * 1_024;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let redis_url = env::var("REDIS_URL").ok();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let address = listener.local_addr()?;
    let app = app(address, redis_url.as_deref())?;
    println!("The quota is in {}.", redis_url.map_or("this process", |_| "Redis"));
    println!("Open http://{address}/");
    Ok(axum::serve(listener, app).await?)
}

/// Creates the page and its server, to which the program sends its requests at `address`.
///
/// # Errors
///
/// Returns an error if the URL of Redis is invalid.
pub(crate) fn app(address: SocketAddr, redis_url: Option<&str>) -> Result<Router, Box<dyn Error>> {
    let playground = Playground::new(Client::new(address), redis_url)?;
    tokio::spawn(Arc::clone(&playground.load).run());
    tokio::spawn(playground.clone().tell());
    Ok(api::routes()
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(address, same_site::same_site))
        .with_state(playground))
}

#[derive(Clone, Debug)]
pub(crate) struct Playground(Arc<Parts>);

#[derive(Debug)]
pub(crate) struct Parts {
    has_redis: bool,
    stores: Stores,
    stage: RwLock<Arc<Stage>>,
    /// The number of configurations since the start, so that each page detects changes by other pages.
    version: AtomicU64,
    load: Arc<Load>,
    tally: Tally,
    compared: Arc<[Tally; ALGORITHMS.len()]>,
    ticks: broadcast::Sender<String>,
}

impl std::ops::Deref for Playground {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Playground {
    fn new(client: Client, redis_url: Option<&str>) -> Result<Self, Box<dyn Error>> {
        let store: Arc<dyn Store> = match redis_url {
            Some(url) => Arc::new(RedisStore::new(url)?),
            None => Arc::new(MemoryStore::new()),
        };
        let stores = Stores {
            main: RemovableStore::new(store),
            fallback: MemoryStore::new(),
            compared: MemoryStore::new(),
        };
        Ok(Self(Arc::new(Parts {
            has_redis: redis_url.is_some(),
            stage: RwLock::new(Arc::new(Stage::new(Setup::default(), stores.clone())?)),
            version: AtomicU64::new(0),
            stores,
            load: Arc::new(Load::new(client)),
            tally: Tally::default(),
            compared: Arc::default(),
            ticks: broadcast::Sender::new(BACKLOG),
        })))
    }

    fn stage(&self) -> Arc<Stage> {
        Arc::clone(&self.stage.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, setup: Setup) -> Result<(), String> {
        let stage = Stage::new(setup, self.stores.clone()).map_err(|error| error.to_string())?;
        *self.stage.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(stage);
        self.version.fetch_add(1, Relaxed);
        Ok(())
    }

    fn describe(&self) -> Value {
        // Loaded before the setup. With an old number and a new setup, a page requests the state again. With a new
        // number and an old setup, the page would keep the old setup.
        let (version, stage) = (self.version.load(Relaxed), self.stage());
        json!({
            "version": version,
            "setup": stage.setup.to_json(),
            "program": program::program(&stage.setup, self.has_redis),
            "mistakes": stage.mistakes(),
            "has_redis": self.has_redis,
            "rate": self.load.rate(),
        })
    }

    /// Sends ticks to the open pages, and stops the load if there are none.
    async fn tell(self) {
        let (start, mut ticks) = (Instant::now(), interval(TICK));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            if self.ticks.receiver_count() == 0 {
                self.load.stop();
            }
            let tick = self.tick(start.elapsed()).await;
            // An error means that no page is open.
            let _ = self.ticks.send(tick.to_string());
        }
    }

    async fn tick(&self, age: Duration) -> Value {
        json!({
            "at": age.as_millis() as u64,
            "version": self.version.load(Relaxed),
            "all": self.tally.take(),
            "compared": self.compared.iter().map(Tally::take).collect::<Vec<_>>(),
            "left": self.stage().left().await,
            "is_available": !self.stores.main.is_taken_away(),
            "load": self.load.take(),
            "last": self.load.take_last(),
        })
    }
}
