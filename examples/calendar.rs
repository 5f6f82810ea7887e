//! Monthly plans: "100 requests per calendar month in your time zone", combined with a limit per minute.
//!
//! ```sh
//! cargo run --example calendar --features calendar
//! ```
//!
//! Send a request, get the page with the reset time of the quota, and send requests until one is rejected:
//!
//! ```sh
//! curl -i -H 'x-api-key: berlin' http://127.0.0.1:3000/
//! curl http://127.0.0.1:3000/plan
//! for i in $(seq 12); do curl -is -w '\n' -H 'x-api-key: berlin' http://127.0.0.1:3000/; done | grep -i -e http -e ratelimit
//! ```
//!
//! `PORT` sets the port (0 selects a free one), and `TIME_ZONE` the time zone.
//!
//! ```toml
//! [dependencies]
//! axum = "0.8"
//! tokio = { version = "1.47", features = ["macros", "net", "rt-multi-thread"] }
//! tower-quota = { version = "0.1.0", default-features = false, features = ["calendar"] }
//! ```

use std::{env, error::Error};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_quota::{
    MemoryStore, QuotaPolicy, RateLimitLayer,
    calendar::{CalendarPeriod, CalendarWindow},
    clock::Clock,
    key,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let time_zone = env::var("TIME_ZONE").unwrap_or_else(|_| "Europe/Berlin".to_owned());
    let month = CalendarWindow::new(CalendarPeriod::MONTH, time_zone.clone());

    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("calendar")
        .key(key::header("x-api-key"))
        // The limit per minute prevents the monthly quota from being exhausted within minutes.
        .policy(QuotaPolicy::per_calendar("month", 100, month.clone()))
        .policy(QuotaPolicy::per_calendar(
            "day",
            10,
            CalendarWindow::new(CalendarPeriod::Day, time_zone),
        ))
        .policy(QuotaPolicy::per_minute("minute", 60))
        .build()?;

    // The plan is public and not rate-limited.
    let app = Router::new().route("/", get(|| async { "Hello!\n" })).layer(limits);
    let app = app.route("/plan", get(async move || plan(&month)));

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let url = format!("http://{}/", listener.local_addr()?);
    println!("Listening on {url}");
    println!();
    println!("A request, and when the quota resets:");
    println!("  curl -i -H 'x-api-key: berlin' {url}");
    println!("  curl {url}plan");
    axum::serve(listener, app).await?;
    Ok(())
}

/// Shows the time until which the requests of this month must last.
fn plan(month: &CalendarWindow) -> String {
    match month.around(Clock::system().now()) {
        Ok([_, end]) => format!(
            "100 requests a month in {}; the next month begins at {} (seconds since 1970)\n",
            month.time_zone(),
            end.as_micros() / 1_000_000
        ),
        Err(error) => format!("{error}\n"),
    }
}
