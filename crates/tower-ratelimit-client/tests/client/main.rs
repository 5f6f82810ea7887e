//! The client layer, from parsing a header to whole jobs against limited servers.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod advice;
mod dialects;
mod jobs;
mod layer;
mod pacing;
mod problems;
mod profiles;
mod properties;
mod readiness;
mod recorded;
mod rejections;
mod retries;

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, Request, Response, StatusCode, request};
use tokio::time::Instant;
use tokio_test::{
    assert_pending,
    task::{self, Spawn},
};
use tower::{Service, service_fn, util::BoxCloneSyncService};
use tower_layer::Layer;
use tower_ratelimit_client::{Advice, Caps, Client, ClientLayer, ClientLayerBuilder, Exchange};

static START: LazyLock<std::time::Instant> = LazyLock::new(|| Instant::now().into_std());

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> std::time::Instant {
    *START + Duration::from_secs(seconds)
}

/// An exchange that ends at Tue, 14 Nov 2023 22:13:20 GMT, or `received` seconds later.
fn exchange(received: u64, elapsed: u64) -> Exchange {
    Exchange {
        received: date() + seconds(received),
        elapsed: seconds(elapsed),
    }
}

/// Tue, 14 Nov 2023 22:13:20 GMT
fn date() -> SystemTime {
    UNIX_EPOCH + seconds(1_700_000_000)
}

/// Fields as a server sends them: `"ratelimit: \"a\";r=1"`.
fn headers(lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        headers.append(HeaderName::try_from(name).unwrap(), value.parse().unwrap());
    }
    headers
}

/// The fields of a text, which are separated by `|`.
fn lines(fields: &str) -> Vec<&str> {
    fields.split('|').map(str::trim).collect()
}

/// The advice that a client reads from a response that was sent at once.
fn advice_of(status: u16, lines: &[&str]) -> Advice {
    let status = StatusCode::from_u16(status).unwrap();
    Advice::read(status, &headers(lines), exchange(0, 0), &Caps::default())
}

/// A server that answers each request with the next line of its script, the last one for ever, and writes down when
/// requests came and what they were.
#[derive(Clone)]
struct Script(Arc<Mutex<ScriptState>>);

type ScriptedService = BoxCloneSyncService<Request<String>, Response<String>, Infallible>;

struct ScriptState {
    start: Instant,
    takes: Duration,
    answers: VecDeque<(u16, Vec<&'static str>)>,
    log: Vec<(u64, String)>,
}

impl Script {
    fn new(answers: impl IntoIterator<Item = (u16, Vec<&'static str>)>) -> Self {
        Self(Arc::new(Mutex::new(ScriptState {
            start: Instant::now(),
            takes: Duration::ZERO,
            answers: answers.into_iter().collect(),
            log: Vec::new(),
        })))
    }

    /// Responses arrive `takes` after requests.
    fn taking(self, takes: Duration) -> Self {
        self.0.lock().unwrap().takes = takes;
        self
    }

    #[allow(clippy::disallowed_methods, reason = "the time is virtual")]
    fn service(&self) -> ScriptedService {
        let script = self.clone();
        BoxCloneSyncService::new(service_fn(move |request: Request<String>| {
            let mut state = script.0.lock().unwrap();
            let (second, path) = (state.start.elapsed().as_secs(), request.uri().path().to_owned());
            state.log.push((second, path + request.body()));
            let (status, lines) = state.answers[0].clone();
            if state.answers.len() > 1 {
                state.answers.pop_front();
            }
            let mut response = Response::new(String::new());
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            *response.headers_mut() = headers(&lines);
            let takes = state.takes;
            async move {
                tokio::time::sleep(takes).await;
                Ok(response)
            }
        }))
    }

    /// A client of this server.
    fn client<R: Clone>(&self, builder: ClientLayerBuilder<R>) -> Client<ScriptedService, R> {
        builder.build().unwrap().layer(self.service())
    }

    /// The seconds at which requests came.
    fn times(&self) -> Vec<u64> {
        self.0.lock().unwrap().log.iter().map(|(second, _)| *second).collect()
    }

    fn requests(&self) -> Vec<String> {
        let log = &self.0.lock().unwrap().log;
        log.iter().map(|(_, request)| request.clone()).collect()
    }
}

/// Settings that tests can do sums with.
fn builder() -> ClientLayerBuilder {
    ClientLayer::builder().jitter_percent(0)
}

/// A call that cannot be completed yet.
fn pending<F: Future<Output: Debug>>(call: F) -> Spawn<F> {
    let mut call = task::spawn(call);
    assert_pending!(call.poll());
    call
}

fn get(uri: &str) -> Request<String> {
    Request::get(uri).body(String::new()).unwrap()
}

fn parts(uri: &str) -> request::Parts {
    get(uri).into_parts().0
}
