//! The example `login`, as its clients see it: from several addresses, over real connections.

#[path = "../../examples/login.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod example;

use std::{collections::HashMap, net::IpAddr, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use test_kit::load::until;
use tower::ServiceExt;
use tower_quota::{
    MemoryStore,
    clock::{Clock, Timestamp},
    key::PeerAddress,
};

use crate::Server;

const HOME: &str = "127.0.0.1";
const ELSEWHERE: &str = "127.0.0.2";

const RIGHT: &str = "correct horse";
const WRONG: &str = "guess";

/// The example with a manual clock.
struct Site {
    clock: Clock,
    url: String,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    content: Bytes,
}

impl Answer {
    fn field(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn violated(&self) -> Value {
        let problem: Value = serde_json::from_slice(&self.content).unwrap();
        problem["violated-policies"].clone()
    }
}

impl Site {
    async fn start() -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let server = Server::axum(example::app(store).unwrap()).await;
        let url = format!("http://{}/login", server.address);
        Self { clock, url }
    }

    /// Sends content from an address of this machine.
    async fn post(&self, from: &str, content: impl Into<Bytes>) -> Answer {
        let mut connector = HttpConnector::new();
        connector.set_local_address(Some(from.parse::<IpAddr>().unwrap()));
        let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
        let response = client.request(Request::post(&self.url).body(Full::new(content.into())).unwrap());
        let (head, body) = response.await.unwrap().into_parts();
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            content: body.collect().await.unwrap().to_bytes(),
        }
    }

    async fn log_in(&self, from: &str, account: &str, password: &str) -> Answer {
        let login = json!({"account": account, "password": password});
        self.post(from, login.to_string()).await
    }

    async fn statuses(&self, from: &str, account: &str, password: &str, attempts: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..attempts {
            statuses.push(self.log_in(from, account, password).await.status);
        }
        statuses
    }
}

#[tokio::test]
async fn after_five_wrong_passwords_an_account_is_locked_for_its_guesser_for_a_quarter_of_an_hour() {
    let site = Site::start().await;
    assert_eq!(site.statuses(ELSEWHERE, "alice", WRONG, 5).await, [401; 5]);
    let rejected = site.log_in(ELSEWHERE, "alice", RIGHT).await;
    assert_eq!(rejected.status, 429, "right, but not even looked at");
    assert_eq!(
        (rejected.field("retry-after"), rejected.violated()),
        ("900", json!(["guesses"]))
    );

    // The attacker has locked out no other user, and can still log in to their own account.
    assert_eq!(site.log_in(HOME, "alice", RIGHT).await.status, 200);
    assert_eq!(site.log_in(ELSEWHERE, "bob", "battery staple").await.status, 200);

    site.clock.advance(Duration::from_secs(899));
    until("the rejection is not of the cache", async || {
        site.log_in(ELSEWHERE, "alice", RIGHT).await.field("retry-after") == "1"
    })
    .await;
    site.clock.advance(Duration::from_secs(1));
    until("the lock is over", async || {
        site.log_in(ELSEWHERE, "alice", RIGHT).await.status == 200
    })
    .await;
}

#[tokio::test]
async fn only_failed_logins_count() {
    let site = Site::start().await;
    for _ in 0..3 {
        assert_eq!(site.statuses(HOME, "alice", RIGHT, 10).await, [200; 10]);
        assert_eq!(site.log_in(HOME, "alice", WRONG).await.status, 401);
    }
    let last = site.log_in(HOME, "alice", RIGHT).await;
    assert!(
        last.field("ratelimit").starts_with(r#""guesses";r=2;"#),
        "{}",
        last.field("ratelimit")
    );
    assert!(
        !last.field("ratelimit").contains("account"),
        "the limit of the account is hidden"
    );
}

/// Its charge begins the lock, which its refund lifts.
#[tokio::test]
async fn a_right_password_as_the_fifth_attempt_locks_nothing() {
    let site = Site::start().await;
    assert_eq!(site.statuses(HOME, "alice", WRONG, 4).await, [401; 4]);
    assert_eq!(site.statuses(HOME, "alice", RIGHT, 3).await, [200; 3]);
    assert_eq!(site.log_in(HOME, "alice", WRONG).await.status, 401);
    assert_eq!(site.log_in(HOME, "alice", RIGHT).await.status, 429);
}

#[tokio::test]
async fn of_guesses_at_the_same_moment_five_are_looked_at() {
    let site = Site::start().await;
    let guesses = join_all((0..40).map(|_| site.log_in(ELSEWHERE, "alice", WRONG))).await;
    let mut count = HashMap::new();
    for guess in guesses {
        *count.entry(guess.status).or_insert(0) += 1;
    }
    assert_eq!(count, HashMap::from([(401, 5), (429, 35)]));
}

#[tokio::test]
async fn an_account_has_one_quota_however_it_is_spelled() {
    let site = Site::start().await;
    for spelling in ["alice", "ALICE", " alice", "Alice\n", "aLICE "] {
        assert_eq!(site.log_in(HOME, spelling, WRONG).await.status, 401, "{spelling:?}");
    }
    assert_eq!(site.log_in(HOME, "alice", WRONG).await.status, 429);
}

#[tokio::test]
async fn one_password_tried_on_many_accounts_uses_up_the_quota_of_its_address_only() {
    let site = Site::start().await;
    for account in 0..20 {
        assert_eq!(
            site.log_in(ELSEWHERE, &format!("user {account}"), WRONG).await.status,
            401
        );
    }
    let rejected = site.log_in(ELSEWHERE, "bob", "battery staple").await;
    assert_eq!((rejected.status, rejected.violated()), (429, json!(["address"])));
    assert_eq!(site.log_in(HOME, "bob", "battery staple").await.status, 200);
}

/// Returns the number of failed logins from these addresses, each for a separate account, that the service checked.
async fn looked_at(app: &axum::Router, addresses: impl Iterator<Item = String>) -> usize {
    let mut looked_at = 0;
    for (number, address) in addresses.enumerate() {
        let status = attempt(app, &address, &format!("user-{number}"), WRONG).await;
        assert!([401, 429].contains(&status), "{status}");
        looked_at += usize::from(status == 401);
    }
    looked_at
}

async fn attempt(app: &axum::Router, address: &str, account: &str, password: &str) -> u16 {
    let login = json!({"account": account, "password": password});
    let mut request = Request::post("/login")
        .body(axum::body::Body::from(login.to_string()))
        .unwrap();
    let peer = format!("[{address}]:50000").parse().unwrap();
    request.extensions_mut().insert(PeerAddress(peer));
    app.clone().oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn guesses_from_one_site_do_not_lock_the_owner_of_an_account_out() {
    let app = example::app(MemoryStore::new()).unwrap();
    for attempt_number in 0..500 {
        let address = format!("2001:db8:1:{:x}::1", attempt_number / 5);
        attempt(&app, &address, "alice", WRONG).await;
    }
    assert_eq!(attempt(&app, "2001:db8:2::1", "alice", RIGHT).await, 200);
}

#[tokio::test]
async fn a_site_has_the_guesses_of_sixteen_addresses_and_a_hundred_homes_in_it_are_served() {
    let app = || {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        example::app(MemoryStore::builder().clock(clock).build().unwrap()).unwrap()
    };
    // 2 000 of the 65 536 networks of one /48, and one network of another one.
    let guesser = app();
    let networks = (0..2_000).map(|network| format!("2001:db8:1:{network:x}::1"));
    assert_eq!(looked_at(&guesser, networks).await, 320);
    assert_eq!(looked_at(&guesser, ["2001:db8:2::1".to_owned()].into_iter()).await, 1);
    // Each of them mistypes its password three times within an hour.
    let homes = (0..300).map(|attempt| format!("2001:db8:1:{:x}::1", attempt % 100));
    assert_eq!(looked_at(&app(), homes).await, 300);
}

/// One site cannot exhaust the quota of an account, but many can.
#[tokio::test]
async fn guesses_from_many_addresses_are_limited_by_account() {
    let site = Site::start().await;
    for address in 0..80 {
        let from = format!("127.0.1.{address}");
        assert_eq!(site.statuses(&from, "alice", WRONG, 5).await, [401; 5], "{from}");
    }
    let rejected = site.log_in("127.0.1.80", "alice", WRONG).await;
    assert_eq!(
        (rejected.status, rejected.violated()),
        (429, json!([])),
        "the policy is hidden"
    );
    assert_eq!(site.log_in("127.0.1.80", "bob", "battery staple").await.status, 200);
}

/// Also those that the limits of failed logins reject, before and after.
#[tokio::test]
async fn of_logins_in_a_minute_from_one_address_the_sixty_first_is_rejected_before_its_body_is_read() {
    let site = Site::start().await;
    assert_eq!(site.statuses(ELSEWHERE, "alice", WRONG, 5).await, [401; 5]);
    for attempt in 6..=60 {
        let rejected = site.log_in(ELSEWHERE, "alice", WRONG).await;
        assert_eq!(
            (rejected.status, rejected.violated()),
            (429, json!(["guesses"])),
            "{attempt}"
        );
    }
    for login in ["{", r#"{"account": "bob", "password": "battery staple"}"#] {
        let rejected = site.post(ELSEWHERE, login).await;
        assert_eq!((rejected.status, rejected.violated()), (429, json!(["attempts"])));
    }
    assert_eq!(site.log_in(HOME, "alice", RIGHT).await.status, 200);
}

#[tokio::test]
async fn content_that_is_no_login_or_too_long_costs_no_guess() {
    let site = Site::start().await;
    for (content, status) in [
        (String::new(), 400),
        ("{".to_owned(), 400),
        (r#"{"account": "alice"}"#.to_owned(), 400),
        (r#"{"account": " ", "password": "x"}"#.to_owned(), 400),
        (r#"{"account": ["alice"], "password": "x"}"#.to_owned(), 400),
        ("x".repeat(4_096), 400),
        ("x".repeat(4_097), 413),
    ] {
        assert_eq!(site.post(HOME, content).await.status, status);
    }
    let login = site.log_in(HOME, "alice", WRONG).await;
    assert!(
        login.field("ratelimit").starts_with(r#""guesses";r=4;"#),
        "{}",
        login.field("ratelimit")
    );
    // Invalid requests are limited, too: 60 requests a minute from an address, of which 8 are used.
    for _ in 0..52 {
        assert_eq!(site.post(HOME, "{").await.status, 400);
    }
    let rejected = site.post(HOME, "{").await;
    assert_eq!((rejected.status, rejected.violated()), (429, json!(["attempts"])));
}
