//! Redis hangs for some seconds, or is killed and comes back empty. Every limiter has its own server, and all of them
//! are measured at the same time.

use std::{
    cmp::Reverse,
    fmt,
    time::{Duration, Instant},
};

use test_kit::RedisServer;
use tokio::{
    task::{JoinSet, block_in_place},
    time::{sleep, sleep_until, timeout},
};

use super::Bench;
use crate::{peers::{Answer, Limiter, Peer, Tables, Windows, windows}, table};

/// One user sends far more requests than this quota allows.
const QUOTA: Windows = windows(5, 100_000, 1_000_000);
const REQUESTS_PER_SECOND: u32 = 200;

const BEFORE: Duration = Duration::from_secs(2);
const AWAY: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(12);
/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Two requests.
const AT_ONCE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
enum Fault {
    Stopped,
    Killed,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "Redis stopped (SIGSTOP), then continued",
            Self::Killed => "Redis killed, then started again, empty",
        })
    }
}

/// A request and its outcome.
#[derive(Clone, Copy, Debug)]
struct Request {
    sent: Instant,
    took: Duration,
    /// None came in time.
    answer: Option<Answer>,
}

impl Request {
    fn is_decided(&self) -> bool {
        self.answer.is_some_and(Answer::is_decision)
    }
}

#[derive(Debug)]
struct Report {
    gone: Instant,
    back: Instant,
    requests: Vec<Request>,
}

impl Bench<'_> {
    pub(super) fn outages(&self) {
        for fault in [Fault::Stopped, Fault::Killed] {
            eprintln!("Outage: {fault}");
            let peers = self.peers.iter().copied().filter(|peer| peer.tables != Tables::Costs);
            let peers: Vec<&Peer> = peers.collect();
            let reports = self.block_on(go_through(&peers, fault));
            let rows = peers.iter().zip(&reports).map(|(peer, report)| report.row(peer.name));
            let title = format!(
                "{fault} after {} s: one user, {REQUESTS_PER_SECOND} requests a second, {} of them within the quota",
                AWAY.as_secs(),
                QUOTA[0].quota,
            );
            let head = [
                "",
                "answers meanwhile",
                "middle wait",
                "longest wait",
                "counts again after",
                "no decision since",
            ];
            table::print_text(&title, &head, &rows.collect::<Vec<_>>());
        }
    }
}

async fn go_through(peers: &[&Peer], fault: Fault) -> Vec<Report> {
    let mut running = JoinSet::new();
    for (index, peer) in peers.iter().enumerate() {
        let (connect, name) = (peer.connect, peer.name);
        running.spawn(async move {
            let server = block_in_place(RedisServer::start);
            let limiter = connect(server.url(), QUOTA).await;
            let limiter = limiter.unwrap_or_else(|error| panic!("{name}: {error}"));
            (index, report(&limiter, &server, fault).await)
        });
    }
    let mut reports = running.join_all().await;
    reports.sort_by_key(|(index, _)| *index);
    reports.into_iter().map(|(_, report)| report).collect()
}

async fn report(limiter: &Limiter, server: &RedisServer, fault: Fault) -> Report {
    let start = Instant::now();
    let disturb = async {
        sleep(BEFORE).await;
        let gone = Instant::now();
        block_in_place(|| match fault {
            Fault::Stopped => server.pause(),
            Fault::Killed => server.kill(),
        });
        sleep(AWAY).await;
        // A stopped server responds as soon as it is continued, a killed one only when `restart` has returned.
        let told = Instant::now();
        block_in_place(|| match fault {
            Fault::Stopped => server.resume(),
            Fault::Killed => server.restart(),
        });
        let back = match fault {
            Fault::Stopped => told,
            Fault::Killed => Instant::now(),
        };
        (gone, back)
    };
    let ((gone, back), requests) = tokio::join!(disturb, ask_steadily(limiter, start));
    Report { gone, back, requests }
}

async fn ask_steadily(limiter: &Limiter, start: Instant) -> Vec<Request> {
    let mut running = JoinSet::new();
    let total = (BEFORE + AWAY + AFTER).as_secs() as u32 * REQUESTS_PER_SECOND;
    for number in 0..total {
        let sent = start + Duration::from_secs(1) * number / REQUESTS_PER_SECOND;
        sleep_until(sent.into()).await;
        let limiter = limiter.clone();
        running.spawn(async move {
            let answer = timeout(PATIENCE, limiter.ask(0)).await.ok();
            Request {
                sent,
                took: sent.elapsed(),
                answer,
            }
        });
    }
    let mut requests = running.join_all().await;
    requests.sort_by_key(|request| request.sent);
    requests
}

impl Report {
    fn row(&self, name: &str) -> Vec<String> {
        let mut waits: Vec<_> = self.meanwhile().map(|request| request.took).collect();
        waits.sort();
        let middle = waits.get(waits.len() / 2).copied().unwrap_or_default();
        let asked = self.requests.iter().filter(|request| request.sent >= self.gone);
        let longest = asked.map(|request| request.took).max().unwrap_or_default();
        let undecided = self.since_return().iter().filter(|request| !request.is_decided());
        vec![
            name.to_owned(),
            self.answers(),
            wait(middle),
            wait(longest),
            self.counts_again(),
            undecided.count().to_string(),
        ]
    }

    /// Those sent while Redis was unavailable.
    fn meanwhile(&self) -> impl Iterator<Item = &Request> {
        let away = self.gone..self.back;
        self.requests.iter().filter(move |request| away.contains(&request.sent))
    }

    fn since_return(&self) -> &[Request] {
        &self.requests[self.requests.partition_point(|request| request.sent < self.back)..]
    }

    /// The answers to those sent while Redis was unavailable: each kind and its share.
    fn answers(&self) -> String {
        let mut kinds: Vec<(String, usize)> = Vec::new();
        for request in self.meanwhile() {
            let kind = match request.answer {
                Some(Answer::Allowed) => "200".to_owned(),
                Some(Answer::Rejected) => "429".to_owned(),
                Some(Answer::Uncounted) => "200 uncounted".to_owned(),
                Some(Answer::Failed(status)) => status.to_string(),
                None => "none".to_owned(),
            };
            match kinds.iter_mut().find(|(other, _)| *other == kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((kind, 1)),
            }
        }
        kinds.sort_by_key(|(_, count)| Reverse(*count));
        let total: usize = kinds.iter().map(|(_, count)| count).sum();
        let shares = kinds.iter().map(|(kind, count)| match 100 * count / total {
            0 => format!("{kind}: < 1 %"),
            share => format!("{kind}: {share} %"),
        });
        shares.collect::<Vec<_>>().join(", ")
    }

    /// When the first request was sent from which on, for a second, nearly all were decided on. A request that is never
    /// counted now and then, with Redis there, is in the last column.
    fn counts_again(&self) -> String {
        if self.meanwhile().chain(self.since_return()).all(Request::is_decided) {
            return "never stopped".to_owned();
        }
        let mut seconds = self.since_return().windows(REQUESTS_PER_SECOND as usize);
        let first = seconds.find(|requests| {
            let decided = requests.iter().filter(|request| request.is_decided()).count();
            requests[0].is_decided() && decided * 100 >= requests.len() * 95
        });
        first.map_or_else(
            || format!("not within {} s", AFTER.as_secs()),
            |requests| match requests[0].sent - self.back {
                after if after < AT_ONCE => "at once".to_owned(),
                after => format!("{:.2} s", after.as_secs_f64()),
            },
        )
    }
}

fn wait(took: Duration) -> String {
    if took >= PATIENCE {
        format!("> {} s", PATIENCE.as_secs())
    } else {
        format!("{:.2} s", took.as_secs_f64())
    }
}
