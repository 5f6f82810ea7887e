//! The routes of the page.

use std::convert::Infallible;

use axum::{
    Json, Router,
    extract::{Request, State},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::{get, post, put},
};
use futures_util::{Stream, stream};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tower::ServiceExt;
use tower_quota::Decision;

use super::{
    Playground,
    load::MAX_RATE,
    setup::{Setup, number},
    shared,
    tally::CALLERS,
};

/// For more requests, the page has a load slider.
const MAX_AT_ONCE: u64 = 100;

type Answer = Result<Json<Value>, Mistake>;

/// A rejected request of the page, with a reason for the user.
pub(crate) struct Mistake(String);

impl IntoResponse for Mistake {
    fn into_response(self) -> Response {
        (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({ "error": self.0 }))).into_response()
    }
}

impl From<String> for Mistake {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

pub(crate) fn routes() -> Router<Playground> {
    Router::new()
        .route("/", get(|| shared::html(include_str!("page/index.html"))))
        .route("/base.css", get(|| shared::style(shared::BASE_CSS)))
        .route("/style.css", get(|| shared::style(include_str!("page/style.css"))))
        .route("/canvas.js", get(|| shared::script(shared::CANVAS_JS)))
        .route(
            "/playground.js",
            get(|| shared::script(include_str!("page/playground.js"))),
        )
        .route("/charts.js", get(|| shared::script(include_str!("page/charts.js"))))
        .route("/explain.js", get(|| shared::script(include_str!("page/explain.js"))))
        .route("/api/setup", get(setup).put(change_setup))
        .route("/api/events", get(events))
        .route("/api/send", post(send))
        .route("/api/load", put(change_load))
        .route("/api/store", put(change_store))
        .route("/api/refill", post(refill))
        .route("/try", get(limited))
}

/// The rate-limited route, for `curl` and for the page's requests.
async fn limited(State(playground): State<Playground>, request: Request) -> Response {
    let stage = playground.stage();
    let under_way = playground.tally.begin();
    if let Some(caller) = request.headers().get("x-user-id").and_then(|name| name.to_str().ok()) {
        stage.compare(caller, &playground.compared);
    }
    let Ok(response) = stage.limited.clone().oneshot(request).await;
    under_way.end(response.extensions().get::<Decision>());
    response
}

async fn setup(State(playground): State<Playground>) -> Json<Value> {
    Json(playground.describe())
}

async fn change_setup(State(playground): State<Playground>, Json(value): Json<Value>) -> Answer {
    playground.change(Setup::from_json(&value)?)?;
    Ok(Json(playground.describe()))
}

async fn send(State(playground): State<Playground>, Json(value): Json<Value>) -> Answer {
    let (callers, count) = (callers(&value)?, number(&value, "count")?);
    if count > MAX_AT_ONCE {
        return Err(format!("count: {count}; at once there may be {MAX_AT_ONCE}").into());
    }
    playground
        .load
        .send(callers.iter().cycle().take(count as usize).cloned());
    Ok(Json(Value::Null))
}

async fn change_load(State(playground): State<Playground>, Json(value): Json<Value>) -> Answer {
    let (callers, rate) = (callers(&value)?, number(&value, "rate")?);
    if rate > MAX_RATE {
        return Err(format!("rate: {rate}; {MAX_RATE} a second are the most").into());
    }
    playground.load.set(rate, callers);
    Ok(Json(Value::Null))
}

async fn change_store(State(playground): State<Playground>, Json(value): Json<Value>) -> Answer {
    let is_available = value["is_available"].as_bool();
    let is_available = is_available.ok_or_else(|| "is_available: true or false is needed".to_owned())?;
    playground.stores.main.take_away(!is_available);
    Ok(Json(Value::Null))
}

async fn refill(State(playground): State<Playground>, Json(_): Json<Value>) -> Json<Value> {
    playground.stage().refill().await;
    Json(Value::Null)
}

/// Only known names are allowed, because they are used in requests and in the page.
fn callers(value: &Value) -> Result<Vec<String>, String> {
    let names = value["callers"].as_array().ok_or("callers: a list is needed")?;
    let known = CALLERS.iter().filter(|known| names.iter().any(|name| name == *known));
    Ok(known.map(|name| (*name).to_owned()).collect())
}

/// Sends the changes ten times per second.
async fn events(State(playground): State<Playground>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let events = stream::unfold(playground.ticks.subscribe(), |mut ticks| async {
        loop {
            match ticks.recv().await {
                Ok(tick) => return Some((Ok(Event::default().data(tick)), ticks)),
                // A background page that missed messages continues with the latest.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}
