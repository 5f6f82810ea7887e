//! The instance's own process: too much to do, and callers who leave.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::{runtime::Runtime, task::yield_now};

use super::{
    callers::{Caller, Kind},
    harness::{Cancelled, Scene},
    load::Client,
    table::{Table, percent},
};

const CONNECTIONS: u64 = 1_000;
const TIME: Duration = Duration::from_secs(8);

/// A thousand connections whose requests each take some processor time, without a pause.
pub fn starved(runtime: &Runtime, table: &mut Table) {
    let wanted = "no request passes because the circuit is open";
    let what = "a starved process: 1 000 connections without a pause on two threads";
    table.run(runtime, what, wanted, async {
        let scene = Scene::start().await;
        scene.record.take_totals();
        let end = Instant::now() + TIME;
        let connections = (0..CONNECTIONS).map(|number| {
            let client = scene.clients[(number % scene.clients.len() as u64) as usize].clone();
            tokio::spawn(connection(client, number, end))
        });
        for connection in join_all(connections.collect::<Vec<_>>()).await {
            connection.unwrap();
        }
        let counts = scene.record.take_totals().counts;
        let (missed, unasked) = (counts.undecided, counts.unasked);
        let all = counts.allowed + counts.rejected + missed + unasked;
        scene.until_limits_hold().await;
        let text = format!(
            "{:.2} % of {all} requests missed the deadline, {unasked} passed with the circuit open",
            percent(missed, all)
        );
        (text, unasked == 0)
    });
}

async fn connection(client: Client, number: u64, end: Instant) {
    while Instant::now() < end {
        client.ask(Caller::new(Kind::Quiet, number)).await;
        let work = Instant::now();
        while work.elapsed() < Duration::from_micros(100) {
            std::hint::spin_loop();
        }
        yield_now().await;
    }
}

/// Requests that are reset before there is a decision, as HTTP/2 allows.
pub fn resets(runtime: &Runtime, table: &mut Table) {
    let wanted = "all that asked are charged, once, unless their deadline was missed";
    table.run(runtime, "requests reset within 2 ms", wanted, async {
        let scene = Scene::start().await;
        let cancelled = scene.cancel_requests(Duration::from_secs(4)).await;
        let Cancelled {
            asked,
            unanswered,
            charged,
        } = cancelled;
        let text = format!("{charged} of {asked} charged, {unanswered} missed the deadline");
        (text, cancelled.are_charged())
    });
}
