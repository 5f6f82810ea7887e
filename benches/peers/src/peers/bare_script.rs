//! A script and nothing around it: what all the others are measured against. No service, no fields, no deadline.

use std::sync::Arc;

use axum::Router;
use http::{HeaderMap, StatusCode};
use redis::{Client, Script, cmd};

use super::{Answer, BoxFuture, Connected, Limiter, Peer, Tables, USER, Windows, user_id};

pub(super) const PEER: Peer = Peer {
    name: "bare script",
    package: None,
    algorithm: "GCRA",
    atomic: "yes",
    fields: "none",
    failure: "error",
    tables: Tables::Costs,
    connect,
};

fn connect(url: String, windows: Windows) -> BoxFuture<Connected> {
    Box::pin(async move {
        let mut connection = Client::open(url)?.get_multiplexed_async_connection().await?;
        let script = Script::new(include_str!("bare_script.lua"));
        script.prepare_invoke().load_async(&mut connection).await?;
        let hash: Arc<str> = script.get_hash().into();
        let mut charges = Vec::new();
        for window in windows {
            let most = window.length.as_micros() as f64;
            charges.extend((most / f64::from(window.quota)).ceil().to_le_bytes());
            charges.extend(most.to_le_bytes());
        }
        let charges: Arc<[u8]> = charges.into();
        let decide = move |user: String| {
            let (mut connection, hash, charges) = (connection.clone(), Arc::clone(&hash), Arc::clone(&charges));
            async move {
                let mut command = cmd("EVALSHA");
                let key = format!("bare:{{{user}}}");
                command.arg(&*hash).arg(1).arg(key).arg(&*charges);
                match command.query_async::<Vec<u8>>(&mut connection).await.as_deref() {
                    Ok([1, ..]) => Answer::Allowed,
                    Ok(_) => Answer::Rejected,
                    Err(_) => Answer::Failed(500),
                }
            }
        };
        let served = decide.clone();
        let handler = move |headers: HeaderMap| async move {
            let user = headers.get(USER).and_then(|value| value.to_str().ok());
            match served(user.unwrap_or_default().to_owned()).await {
                Answer::Allowed => StatusCode::OK,
                Answer::Rejected => StatusCode::TOO_MANY_REQUESTS,
                Answer::Uncounted | Answer::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            }
        };
        Ok(Limiter {
            ask: Arc::new(move |user| Box::pin(decide(user_id(user)))),
            router: Router::new().fallback(handler),
        })
    })
}
