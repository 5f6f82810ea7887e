//! The cost of a layer for a request: time, and the time that two threads take from each other.
//!
//!     cargo bench -p tower-quota-tests --bench layer
//!
//! Each side is a whole request through a Tower layer around a ready service: the request is made, its key is read from
//! a header, and the response has the fields. The cost of a request without a layer, most of it for making the request,
//! is measured in the same turns and subtracted: *net*. tower_governor has the settings from its documentation. Its
//! three windows are three nested layers, which, unlike one decision of ours, are not charged together.
//!
//! - *one thread*: the sides in turns, for users in an order that has nothing to do with the one in which they were stored.
//! - *by hand*: the steps that a layer with these fields has to take, and nothing else.
//! - *two threads*: the time of a request where two threads use one layer, for different users, relative to one thread. On
//!   two processors that share nothing it is 1; *no layer* shows what this machine makes of it.
//!
//! `USERS` is the number of users (10,000), `TIMES` the number of requests per turn of a side (50,000), and `ROUNDS` the
//! number of turns per side (31). `SIDE=3` sends the requests of one side alone, by its position in the first table from
//! 0, for a profiler.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod by_hand;
mod limits;
mod rounds;

use std::{
    future::{Ready, ready},
    sync::Barrier,
    thread,
    time::Instant,
};

use axum::body::Body;
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, StatusCode};
use tower::{Layer, Service, service_fn};
use tower_governor::{GovernorError, GovernorLayer};

use self::{
    by_hand::ByHand,
    limits::{PLENTY, USER, User, layer},
    rounds::{Side, Values},
};

/// The sides of the first table.
const SIDES: usize = 7;

fn main() {
    let is_asked_for = rounds::is_asked_for();
    let times = rounds::setting("TIMES", if is_asked_for { 50_000 } else { 100 });
    let rounds = rounds::setting("ROUNDS", if is_asked_for { 31 } else { 1 });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime without threads");
    let _context = runtime.enter();
    let mut sides = one_thread();
    let alone = rounds::setting("SIDE", usize::MAX);
    if let Some(side) = sides.get_mut(alone) {
        for _ in 0..rounds * times {
            (side.send)();
        }
        return;
    }
    print_one_thread(sides, rounds, times);
    two_threads(&runtime, rounds, times);
}

/// A side, and what makes one request of it.
struct Requests {
    name: &'static str,
    send: Box<dyn FnMut()>,
}

impl Requests {
    fn new<S, B>(name: &'static str, mut service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + 'static,
    {
        let (users, mut next) = (users(), 0);
        Self {
            name,
            send: Box::new(move || {
                next = (next + 7_919) % users.len();
                assert_eq!(send(&mut service, users[next].clone()), StatusCode::OK);
            }),
        }
    }
}

fn number_of_users() -> usize {
    rounds::setting("USERS", 10_000)
}

fn users() -> Vec<HeaderValue> {
    let value = |user| HeaderValue::try_from(format!("user-{user:08}")).expect("a name is ASCII");
    (0..number_of_users()).map(value).collect()
}

fn send<S, B>(service: &mut S, user: HeaderValue) -> StatusCode
where
    S: Service<Request<Body>, Response = Response<B>>,
{
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(USER, user);
    let response = service.call(request).now_or_never().expect("nothing here waits");
    response.map_or(StatusCode::INTERNAL_SERVER_ERROR, |response| response.status())
}

fn answer(_: Request<Body>) -> Ready<Result<Response<Body>, GovernorError>> {
    ready(Ok(Response::new(Body::empty())))
}

/// The same steps by hand, behind the same future: what no layer with these fields goes below.
fn by_hand(windows: usize) -> impl Service<Request<Body>, Response = Response<Body>> {
    let mut limits = ByHand::new(windows, PLENTY.into());
    service_fn(move |request: Request<Body>| {
        let mut response = Response::new(Body::empty());
        let user = request.headers().get(USER).expect("each request has one");
        assert!(limits.decide(user, response.headers_mut()));
        ready(Ok::<_, GovernorError>(response))
    })
}

fn one_thread() -> [Requests; SIDES] {
    let governor = || GovernorLayer::<User, _, Body>::new(limits::governor());
    let one = governor().layer(service_fn(answer));
    let three = governor().layer(governor().layer(governor().layer(service_fn(answer))));
    [
        Requests::new("no layer", service_fn(answer)),
        Requests::new("tower_governor, one window", one),
        Requests::new("tower_governor, three windows in a row", three),
        Requests::new("tower-quota, one window", layer(1).layer(service_fn(answer))),
        Requests::new("tower-quota, three windows", layer(3).layer(service_fn(answer))),
        Requests::new("by hand, one window", by_hand(1)),
        Requests::new("by hand, three windows", by_hand(3)),
    ]
}

fn print_one_thread(sides: [Requests; SIDES], rounds: usize, times: usize) {
    let mut sides = sides.map(|Requests { name, mut send }| {
        for _ in 0..number_of_users() {
            send();
        }
        Side::new(name, move || {
            let start = Instant::now();
            (0..times).for_each(|_| send());
            start.elapsed().as_nanos() as f64 / times as f64
        })
    });
    let values = rounds::measure(rounds, &mut sides);
    let title = format!("one thread, with fields, {} users", number_of_users());
    rounds::print(&title, "ns", &sides, &values);
    let net = |side: usize| values[side].without(&values[0]);
    for (name, own, other) in [
        ("one window", 3, 1),
        ("three windows", 4, 2),
        ("by hand, one window", 5, 1),
        ("by hand, three windows", 6, 2),
    ] {
        let (own, other) = (net(own), net(other));
        println!(
            "  net of the request, {name}: {:.0} ns, {:.2} of tower_governor",
            own.median(),
            own.ratio(&other)
        );
    }
}

/// The time of a request while `threads` threads make requests, each with a clone of the service.
fn with_threads<S, B>(
    runtime: &tokio::runtime::Runtime,
    threads: usize,
    times: usize,
    service: &S,
    users: &[HeaderValue],
) -> f64
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send,
{
    let start = Barrier::new(threads);
    let requests = |thread: usize| {
        let (mut service, mut next, start) = (service.clone(), thread * users.len() / 2, &start);
        // Threads that share a name would share its reference count.
        let users: Vec<_> = users
            .iter()
            .map(|user| HeaderValue::from_bytes(user.as_bytes()).expect("it is one"))
            .collect();
        move || {
            let _context = runtime.enter();
            start.wait();
            let begun = Instant::now();
            for _ in 0..times {
                next = (next + 7_919) % users.len();
                send(&mut service, users[next].clone());
            }
            begun.elapsed().as_nanos() as f64 / times as f64
        }
    };
    let nanos: f64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(requests(thread))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|nanos| nanos.expect("it does not panic")).sum()
    });
    nanos / threads as f64
}

fn two_threads(runtime: &tokio::runtime::Runtime, rounds: usize, times: usize) {
    let users = users();
    println!("\ntwo threads on one layer, time of a request to that with one thread");
    let print = |name: &str, measure: &dyn Fn(usize) -> f64| {
        measure(1);
        let mut sides = [1, 2].map(|threads| Side::new("", move || measure(threads)));
        let values: Vec<Values> = rounds::measure(rounds, &mut sides);
        let [alone, together] = [0, 1].map(|side| values[side].median());
        let ratio = values[1].ratio(&values[0]);
        println!("  {name:42} {alone:6.0} ns, {together:6.0} ns {ratio:7.2}");
    };
    let bare = service_fn(answer);
    print("no layer", &|threads| {
        with_threads(runtime, threads, times, &bare, &users)
    });
    for (name, windows) in [("one window", 1), ("three windows", 3)] {
        let service = layer(windows).layer(bare);
        print(name, &|threads| with_threads(runtime, threads, times, &service, &users));
    }
}
