//! A global rate limit service for Envoy: `envoy.service.ratelimit.v3.RateLimitService`, with limits in memory or in
//! Redis.
//!
//! ```sh
//! cargo run -p tower-quota-apps --features envoy --bin envoy -- --rules apps/envoy/rules.json --store redis://127.0.0.1/
//! ```
//!
//! `README.md` describes the configuration of Envoy and the rules file.

mod config;
mod domain;
mod service;
#[path = "../../src/response/rejection/grpc/timeout.rs"]
mod timeout;

use std::{collections::BTreeMap, env, error::Error, fs, process::ExitCode, time::Duration};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{RateLimitServiceServer, SERVICE_NAME};
use futures_util::future::try_join_all;
use tokio::{net::TcpListener, select, signal::unix, sync::oneshot, time};
use tonic::transport::{Server, server::TcpIncoming};
use tower_quota::{FailureMode, Limiter, MemoryStore, RedisStore};

use self::{
    config::DomainForm,
    domain::Domain,
    service::{RateLimits, set_deadline},
};

const USAGE: &str = "Usage: envoy --rules FILE [OPTIONS]
  --rules FILE       JSON: an object that maps each domain to its rules
  --store STORE      memory, or the URL of a Redis                        [memory]
  --listen ADDRESS   address and port of the gRPC server          [127.0.0.1:8081]
  --deadline MS      milliseconds for a decision; a shorter timeout of Envoy
                     shortens them                                            [15]
  --closed           reject requests that the store does not decide; by default,
                     they are admitted uncounted";

/// The maximum time for calls in progress and settlements after SIGTERM.
const SHUTDOWN: Duration = Duration::from_secs(5);

type Domains = BTreeMap<String, Domain>;

/// Returns the service and the address to listen on.
fn read(mut arguments: impl Iterator<Item = String>) -> Result<(RateLimits, String), Box<dyn Error>> {
    let (mut file, mut store, mut listen) = (None, "memory".to_owned(), "127.0.0.1:8081".to_owned());
    // Envoy waits for 20 ms by default.
    let (mut deadline, mut mode) = (15, FailureMode::Open);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(USAGE);
        match &*name {
            "--rules" => file = Some(value()?),
            "--store" => store = value()?,
            "--listen" => listen = value()?,
            "--deadline" => deadline = value()?.parse().or(Err(USAGE))?,
            "--closed" => mode = FailureMode::Closed,
            _ => return Err(USAGE.into()),
        }
    }
    let file = file.ok_or(USAGE)?;
    let json = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let forms: BTreeMap<String, DomainForm> =
        serde_json::from_str(&json).map_err(|error| format!("{file}: {error}"))?;
    let redis = (store != "memory").then(|| RedisStore::new(&store));
    let (redis, memory) = (redis.transpose()?, MemoryStore::new());
    let deadline = Duration::from_millis(deadline);
    let domain = |(name, form): (String, DomainForm)| {
        let limiter = match &redis {
            Some(redis) => Limiter::builder(redis.clone()),
            None => Limiter::builder(memory.clone()),
        };
        let limiter = limiter.deadline(deadline).failure_mode(mode);
        let domain = Domain::new(limiter, &name, form);
        let domain = domain.map_err(|error| format!("{file}: domain {name:?}: {error}"));
        Ok::<_, String>((name, domain?))
    };
    let domains: Domains = forms.into_iter().map(domain).collect::<Result<_, _>>()?;
    Ok((
        RateLimits {
            domains,
            mode,
            deadline,
        },
        listen,
    ))
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = run().await.map_err(|error| eprintln!("{error}"));
    result.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let (service, listen) = read(env::args().skip(1))?;
    let limiters: Vec<Limiter> = service.domains.values().map(|domain| domain.limiter.clone()).collect();
    let listener = TcpListener::bind(&listen).await;
    let listener = listener.map_err(|error| format!("--listen {listen}: {error}"))?;
    let mut terminate = unix::signal(unix::SignalKind::terminate())?;
    eprintln!("listening on {}", listener.local_addr()?);
    tokio::spawn(report_store(limiters.first().cloned(), service.mode));

    let (mut health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<RateLimitServiceServer<RateLimits>>().await;
    let server = Server::builder()
        .add_service(RateLimitServiceServer::with_interceptor(service, set_deadline))
        .add_service(health_service);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let (stop, stopped) = oneshot::channel::<()>();
    let mut server = tokio::spawn(server.serve_with_incoming_shutdown(incoming, async { drop(stopped.await) }));
    select! {
        served = &mut server => return Ok(served??),
        _ = terminate.recv() => drop(stop),
    }
    // Ends the streams of clients that watch a service: open streams delay the shutdown.
    health.clear_service_status(SERVICE_NAME).await;
    health.clear_service_status("").await;
    // An unresponsive client keeps its connection open.
    drop(time::timeout(SHUTDOWN, server).await);
    try_join_all(limiters.iter().map(|limiter| limiter.flush(SHUTDOWN))).await?;
    Ok(())
}

/// Reports whether the store, which all domains share, makes decisions.
async fn report_store(limiter: Option<Limiter>, mode: FailureMode) {
    let Some(limiter) = limiter else { return };
    match limiter.ready(Duration::from_secs(2)).await {
        Ok(report) => report.warnings().for_each(|warning| eprintln!("store: {warning}")),
        Err(error) if mode == FailureMode::Closed => eprintln!("store: {error}; until it works, requests are rejected"),
        Err(error) => eprintln!("store: {error}; until it works, requests are admitted uncounted"),
    }
}
