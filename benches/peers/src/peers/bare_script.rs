//! A script and nothing around it: what all the others are measured against. No service, no fields, no deadline.

use std::sync::Arc;

use redis::{Client, Script, cmd};

use super::{Answer, BoxFuture, Connected, Limiter, Peer, Windows, user_id};

pub(super) const PEER: Peer = Peer {
    name: "bare script",
    package: None,
    algorithm: "GCRA",
    atomic: "yes",
    fields: "none",
    failure: "error",
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
        let ask = move |user| {
            let (mut connection, hash, charges) = (connection.clone(), Arc::clone(&hash), Arc::clone(&charges));
            Box::pin(async move {
                let mut command = cmd("EVALSHA");
                let key = format!("bare:{{{}}}", user_id(user));
                command.arg(&*hash).arg(1).arg(key).arg(&*charges);
                match command.query_async::<Vec<u8>>(&mut connection).await.as_deref() {
                    Ok([1, ..]) => Answer::Allowed,
                    Ok(_) => Answer::Rejected,
                    Err(_) => Answer::Failed(500),
                }
            }) as BoxFuture<_>
        };
        Ok(Limiter(Arc::new(ask)))
    })
}
