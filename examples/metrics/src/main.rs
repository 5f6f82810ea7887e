//! Serves the metrics of the limits to Prometheus.
//!
//! ```sh
//! cargo run -p example-metrics
//! ```
//!
//! Exceed the limit, then get the metrics:
//!
//! ```sh
//! for i in 1 2 3 4 5; do curl -is -H 'x-user-id: alice' http://127.0.0.1:3000/items; done
//! curl http://127.0.0.1:3000/metrics | grep tower_quota
//! ```
//!
//! `tower_quota::telemetry` documents the metrics and suitable alerts.
//!
//! `PORT` sets the port; 0 selects a free one.

use std::{env, error::Error, time::Duration};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tower_quota::{ConfigError, MemoryStore, QuotaPolicy, RateLimitLayer, key};

/// Bucket bounds of all histograms, in seconds: around 1 ms for a nearby store, around the deadline of 50 ms, and above
/// for queued requests. Alerts cannot distinguish values above the last bound.
const BUCKETS: [f64; 13] = [
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 2.5, 10.0, 60.0,
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Installed before the first request, because a layer registers its counters only once.
    let page = prometheus()?.install_recorder()?;
    tokio::spawn(upkeep(page.clone()));

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("Listening on {url}");
    println!();
    println!("Send more requests than are allowed, and read the page:");
    println!("  for i in 1 2 3 4 5; do curl -is -H 'x-user-id: alice' {url}/items; done");
    println!("  curl {url}/metrics | grep tower_quota");
    axum::serve(listener, app(page)?).await?;
    Ok(())
}

/// Without buckets, the exporter would report quantiles, which cannot be aggregated across instances.
pub(crate) fn prometheus() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
}

/// The exporter keeps every sample until it is scraped or this function runs.
async fn upkeep(page: PrometheusHandle) {
    let mut interval = tokio::time::interval(Duration::from_secs(5));
    loop {
        interval.tick().await;
        page.run_upkeep();
    }
}

/// The metrics are not rate-limited. In production, serve them on a port that only Prometheus can reach.
pub(crate) fn app(page: PrometheusHandle) -> Result<Router, ConfigError> {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("items")
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_minute("burst", 3))
        .policy(QuotaPolicy::per_day("daily", 1_000))
        .build()?;
    Ok(Router::new()
        .route("/items", get(|| async { "Some items.\n" }).layer(limits))
        .route("/metrics", get(async move || page.render())))
}
