//! Tests the program `platform` with a real Redis, as users, administrators and operators use it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(
    clippy::disallowed_methods,
    reason = "a server that restarts and a file that is looked at do not follow virtual time"
)]

mod fleet;
mod proxies;

#[path = "../../platform/main.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod platform;

use std::{
    convert::Infallible,
    env, fs,
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{Router, body::Body, extract::ConnectInfo};
use futures_util::{future::join_all, stream};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use metrics::{LocalRecorderGuard, set_default_local_recorder};
use platform::{
    Settings,
    blocks::{Blocks, Client},
    callers::Caller,
    numbers::of_scope,
    rejected::Rejected,
    rules::RulesFile,
};
use serde_json::{Value, json};
use test_kit::{Log, RedisServer, shared_server};
use tokio::{
    sync::Barrier,
    time::{sleep, timeout},
};
use tower::ServiceExt;
use tower_quota::{Access, AccessList, PartitionKey, fields::Hints, key};

/// The timeout of each step. A step that takes longer hangs.
const HANG: Duration = Duration::from_secs(20);

const TOKEN: &str = "7c211433f02071597741e6ff5a8ea34789abbf43";

/// A quota above the largest integer of a structured field.
const TOO_MUCH: u64 = 1_000_000_000_000_000;

/// The windows are at least a day, so that no units are restored while a test runs.
fn rules(premium: u64) -> String {
    let day = |name: &str, quota: u64| json!({"name": name, "quota": quota, "window_seconds": 86_400});
    let mut free = day("day", 3);
    free["caller_quotas"] = json!([1, 1_000]);
    let planned = json!({"name": "planned", "quota": 1, "window_seconds": 86_400, "shadow": true});
    let address = json!({"name": "address", "quota": 5, "window_seconds": 86_400, "key": "address"});
    let rules = json!({"tiers": [
        {"name": "free", "policies": [free, planned, address]},
        {"name": "premium", "policies": [day("day", premium), day("month", 500)]},
        {"name": "admin", "unlimited": true},
    ]});
    rules.to_string()
}

/// The program with a separate rules file and the metrics of this thread, on which all of its tasks run.
struct Platform {
    app: Router,
    file: PathBuf,
    /// True if the file was created for the test.
    is_own_file: bool,
    /// Different from the addresses of the other tests, which share the same Redis.
    address: SocketAddr,
    _recorder: LocalRecorderGuard<'static>,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    #[track_caller]
    fn assert_contains(&self, text: &str) {
        assert!(self.body.contains(text), "{}", self.body);
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns the remaining units of each policy.
    fn left(&self) -> Vec<(String, u64)> {
        let hints = Hints::read(&self.headers);
        let left = hints.limits().iter().map(|limit| (limit.name(), limit.remaining()));
        left.map(|(name, left)| (name.unwrap().to_owned(), left.unwrap()))
            .collect()
    }
}

fn left(left: &[(&str, u64)]) -> Vec<(String, u64)> {
    left.iter().map(|(name, left)| ((*name).to_owned(), *left)).collect()
}

impl Platform {
    async fn start(server: &RedisServer, test: u8) -> Self {
        let file = env::temp_dir().join(format!("tower-quota-platform-{}-{test}.json", std::process::id()));
        fs::write(&file, rules(100)).unwrap();
        let mut platform = Self::with(server, test, file, Some(TOKEN)).await;
        platform.is_own_file = true;
        platform
    }

    async fn with(server: &RedisServer, test: u8, file: PathBuf, token: Option<&str>) -> Self {
        Self::of(server, test, file, token, None).await
    }

    async fn of(server: &RedisServer, test: u8, file: PathBuf, token: Option<&str>, rule_set: Option<&str>) -> Self {
        let settings = Settings {
            redis_url: server.url(),
            rule_set: rule_set.map(str::to_owned),
            rules: file,
            admin_token: token.map(str::to_owned),
            client_ip: key::client_ip(),
            // On a busy machine, requests must not time out and pass uncounted.
            deadline: Duration::from_secs(10),
            tier_wait: Duration::from_secs(10),
        };
        Self::with_settings(test, settings).await
    }

    async fn with_settings(test: u8, settings: Settings) -> Self {
        drop(log());
        let recorder = Box::leak(Box::new(platform::metrics::prometheus().unwrap().build_recorder()));
        let file = settings.rules.clone();
        let guard = set_default_local_recorder(recorder);
        Self {
            app: platform::app(settings, recorder.handle()).await.unwrap(),
            file,
            is_own_file: false,
            address: SocketAddr::from(([192, 0, 2, test], 50_000)),
            _recorder: guard,
        }
    }

    /// Renames a new file into place. Its modification time always differs from that of the old file.
    fn write(&self, rules: &str) {
        let new = self.file.with_extension("new");
        let modified = |file: &Path| fs::metadata(file).and_then(|file| file.modified()).ok();
        fs::write(&new, rules).unwrap();
        while modified(&new) == modified(&self.file) {
            fs::write(&new, rules).unwrap();
        }
        fs::rename(&new, &self.file).unwrap();
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let request = Request::builder().method(method).uri(path);
        request.extension(ConnectInfo(self.address))
    }

    async fn get(&self, path: &str, user: &str) -> Answer {
        let request = self.request(Method::GET, path).header("x-user-id", user);
        send(&self.app, request.body(Body::empty()).unwrap()).await
    }

    /// Sends a request as an administrator, with the token.
    async fn admin(&self, method: Method, path: &str, body: &str) -> Answer {
        let request = self.request(method, path).header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {TOKEN}"));
        send(&self.app, request.body(Body::from(body.to_owned())).unwrap()).await
    }

    /// The state that the operators' page shows.
    async fn state(&self) -> Value {
        self.admin(Method::GET, "/admin/state", "").await.json()
    }

    /// The state of a caller, as shown to an administrator.
    async fn caller(&self, caller: &str) -> Value {
        self.admin(Method::GET, &format!("/admin/caller?{caller}"), "")
            .await
            .json()
    }

    async fn page(&self) -> String {
        self.admin(Method::GET, "/metrics", "").await.body
    }

    /// Returns the status and the limits of a user, as shown to an administrator.
    async fn shown(&self, user: &str) -> (String, Vec<(String, u64)>) {
        let shown = self.caller(&format!("user={user}")).await;
        let policies = shown["policies"].as_array().unwrap().iter();
        let name = |policy: &Value| policy["name"].as_str().unwrap().to_owned();
        let left = policies.map(|policy| (name(policy), policy["remaining"].as_u64().unwrap()));
        (shown["tier"].as_str().unwrap().to_owned(), left.collect())
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        if self.is_own_file {
            let _ = fs::remove_file(&self.file);
        }
    }
}

async fn send(app: &Router, request: Request<Body>) -> Answer {
    let response = timeout(HANG, app.clone().oneshot(request)).await.unwrap().unwrap();
    let (head, body) = response.into_parts();
    Answer {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap(),
    }
}

/// The log of all tests. One subscriber serves all threads, because `tracing` caches for the whole process whether an
/// event is enabled.
fn log() -> String {
    static LOG: LazyLock<Log> = LazyLock::new(|| {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone());
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
        log
    });
    LOG.text()
}

async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(HANG, wait).await.is_ok(), "still not so: {what}");
}

#[tokio::test]
async fn the_file_of_the_example_has_limits_for_each_tier() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("platform/rules.json");
    let platform = Platform::with(shared_server(), 1, file, None).await;
    let free = r#""burst";q=5;w=1, "minute";q=20;w=60, "day";q=1000;w=86400, "address";q=600;w=60"#;
    let premium = r#""burst";q=50;w=1, "minute";q=1000;w=60, "day";q=100000;w=86400"#;
    for (user, policies) in [
        ("tiers", Some(free)),
        ("premium-tiers", Some(premium)),
        ("admin-tiers", None),
    ] {
        let answer = platform.get("/", user).await;
        assert_eq!((answer.status, &*answer.body), (StatusCode::OK, "Hello!\n"), "{user}");
        let shown = answer.headers.get("ratelimit-policy");
        assert_eq!(shown.map(|shown| shown.to_str().unwrap()), policies, "{user}");
    }
}

#[tokio::test]
async fn users_have_the_limits_of_their_tier_and_share_that_of_their_address() {
    let platform = Platform::start(shared_server(), 2).await;
    for day in [2, 1, 0] {
        let answer = platform.get("/", "first").await;
        assert_eq!(answer.left(), left(&[("day", day), ("address", day + 2)]));
    }
    let rejected = platform.get("/", "first").await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    rejected.assert_contains(r#""violated-policies":["day"]"#);
    assert!(rejected.headers.contains_key("retry-after"));

    for address in [1, 0] {
        let second = platform.get("/", "second").await.left();
        assert_eq!(second[1], ("address".to_owned(), address));
    }
    let rejected = platform.get("/", "third").await;
    rejected.assert_contains(r#""violated-policies":["address"]"#);

    let premium = platform.get("/", "premium-first").await.left();
    assert_eq!(premium, left(&[("day", 99), ("month", 499)]));
    for _ in 0..10 {
        let unlimited = platform.get("/", "admin-first").await;
        assert_eq!((unlimited.status, unlimited.left()), (StatusCode::OK, Vec::new()));
    }
}

#[tokio::test]
async fn somebody_without_a_name_is_counted_by_address_in_the_first_tier() {
    let platform = Platform::start(shared_server(), 3).await;
    for name in [None, Some("")] {
        let mut request = platform.request(Method::GET, "/");
        if let Some(name) = name {
            request = request.header("x-user-id", name);
        }
        send(&platform.app, request.body(Body::empty()).unwrap()).await;
    }
    let request = platform.request(Method::GET, "/").body(Body::empty()).unwrap();
    let answer = send(&platform.app, request).await;
    assert_eq!(answer.left(), left(&[("day", 0), ("address", 2)]));
}

#[tokio::test]
async fn health_checks_cost_nothing() {
    let platform = Platform::start(shared_server(), 4).await;
    for _ in 0..10 {
        let answer = platform.get("/health", "healthy").await;
        assert_eq!((answer.status, answer.left()), (StatusCode::OK, Vec::new()));
    }
    let counted = platform.get("/", "healthy").await.left();
    assert_eq!(counted, left(&[("day", 2), ("address", 4)]));
}

#[tokio::test]
async fn a_changed_file_takes_effect_while_requests_run_and_one_with_a_mistake_does_not() {
    let platform = Platform::start(shared_server(), 5).await;
    assert_eq!(platform.get("/", "premium-file").await.left()[0].1, 99);

    let app = platform.app.clone();
    let others = tokio::spawn(async move {
        loop {
            let request = Request::get("/").header("x-user-id", "admin-file").body(Body::empty());
            assert_eq!(send(&app, request.unwrap()).await.status, StatusCode::OK);
            sleep(Duration::from_millis(1)).await;
        }
    });

    let quota = async || platform.admin(Method::GET, "/admin/rules", "").await.body == rules(200);
    platform.write(&rules(200));
    eventually("the new rules hold", quota).await;
    assert_eq!(platform.get("/", "premium-file").await.left()[0].1, 198);

    platform.write(&rules(TOO_MUCH));
    let mistake = r#"the old rules stay error=tier "premium": policy "day": quota 1000000000000000 is outside"#;
    eventually("the mistake is in the log", async || log().contains(mistake)).await;
    assert_eq!(platform.get("/", "premium-file").await.left()[0].1, 197);
    assert!(quota().await);

    fs::remove_file(&platform.file).unwrap();
    let missing = format!("the old rules stay error={}: No such file", platform.file.display());
    eventually("the missing file is in the log", async || log().contains(&missing)).await;
    assert_eq!(platform.get("/", "premium-file").await.left()[0].1, 196);

    platform.write(&rules(300));
    let mended = async || platform.admin(Method::GET, "/admin/rules", "").await.body == rules(300);
    eventually("what was mended holds", mended).await;
    assert_eq!(platform.get("/", "premium-file").await.left()[0].1, 295);
    assert!(!others.is_finished(), "{:?}", others.await);
    others.abort();
}

#[tokio::test]
async fn a_file_is_read_once_after_each_change() {
    let platform = Platform::start(shared_server(), 14).await;
    let (mut file, json) = RulesFile::open(platform.file.clone()).await.unwrap();
    assert_eq!(json, rules(100));
    assert!(file.changed().await.is_none());

    platform.write(&rules(200));
    assert_eq!(file.changed().await.unwrap().unwrap(), rules(200));
    assert!(file.changed().await.is_none());

    fs::remove_file(&platform.file).unwrap();
    assert!(file.changed().await.unwrap().is_err());
    assert!(file.changed().await.is_none());
}

#[tokio::test]
async fn without_the_token_there_are_no_administrators() {
    let server = shared_server();
    let platform = Platform::start(server, 6).await;
    let file = platform.file.clone();
    let without = Platform::with(server, 7, file.clone(), None).await;
    let empty = Platform::with(server, 8, file, Some("")).await;

    // Each guess comes from a different address, so that none is rejected because of the others.
    let mut addresses = (1..=255).map(|host| SocketAddr::from(([198, 51, 100, host], 50_000)));
    for (method, path) in [
        (Method::GET, "/admin/rules"),
        (Method::POST, "/admin/rules"),
        (Method::POST, "/admin/switch/off"),
        (Method::GET, "/admin/caller?user=alice"),
        (Method::DELETE, "/admin/caller?user=alice"),
        (Method::GET, "/admin/state"),
        (Method::PUT, "/admin/roll-out/50"),
        (Method::POST, "/admin/roll-out"),
        (Method::POST, "/admin/block"),
        (Method::DELETE, "/admin/block"),
        (Method::PUT, "/admin/rules"),
        (Method::GET, "/admin/nothing"),
        (Method::GET, "/metrics"),
    ] {
        for platform in [&platform, &without, &empty] {
            for told in [
                None,
                Some("Bearer "),
                Some("Bearer guess"),
                Some(&format!("Bearer {TOKEN}x")),
                Some(&format!("Bearer {}", &TOKEN[1..])),
            ] {
                let request = Request::builder().method(method.clone()).uri(path);
                let mut request = request.extension(ConnectInfo(addresses.next().unwrap()));
                if let Some(told) = told {
                    request = request.header("authorization", told);
                }
                let answer = send(&platform.app, request.body(Body::from(rules(7))).unwrap()).await;
                assert_eq!(answer.status, StatusCode::NOT_FOUND, "{method} {path} {told:?}");
                assert_eq!(
                    (&*answer.body, answer.left()),
                    ("", Vec::new()),
                    "{method} {path} {told:?}"
                );
            }
        }
    }
    assert_eq!(platform.get("/", "premium-nobody").await.left()[0].1, 99);
}

#[tokio::test]
async fn an_address_that_guesses_the_token_is_rejected_after_ten_guesses_and_others_are_not() {
    let platform = Platform::start(shared_server(), 16).await;
    let ask = async |host: u8, token: &str| {
        let request = Request::get("/admin/rules").header("authorization", format!("Bearer {token}"));
        let request = request.extension(ConnectInfo(SocketAddr::from(([203, 0, 113, host], 50_000))));
        send(&platform.app, request.body(Body::empty()).unwrap()).await
    };
    for guess in 1..=300 {
        let answer = ask(1, &format!("guess-{guess}")).await;
        let wait = answer
            .headers
            .get("retry-after")
            .map(|wait| wait.to_str().unwrap().parse().unwrap());
        let expected = if guess <= 10 { (404, false) } else { (429, true) };
        let seen = (
            answer.status.as_u16(),
            wait.is_some_and(|wait: u64| (1..=360).contains(&wait)),
        );
        assert_eq!(seen, expected, "guess {guess}: {wait:?}");
    }
    // Accepting the right token would confirm a guess.
    assert_eq!(ask(1, TOKEN).await.status, StatusCode::TOO_MANY_REQUESTS);
    for _ in 0..30 {
        assert_eq!(ask(2, TOKEN).await.status, StatusCode::OK);
    }
    assert_eq!(ask(2, "guess").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn requests_with_the_right_token_are_no_guesses_while_they_run_and_those_with_a_wrong_one_are() {
    let platform = Platform::start(shared_server(), 90).await;
    let ask = async |token: &str, body: Body| {
        let request = platform.request(Method::POST, "/admin/rules");
        let request = request.header("authorization", format!("Bearer {token}")).body(body);
        send(&platform.app, request.unwrap()).await.status
    };
    // No body ends before all requests have reached the route.
    let all_run = Arc::new(Barrier::new(16));
    let no_rules = || {
        let all_run = Arc::clone(&all_run);
        Body::from_stream(stream::once(async move {
            all_run.wait().await;
            Ok::<_, Infallible>("{")
        }))
    };
    let right = join_all((0..16).map(|_| ask(TOKEN, no_rules())));
    let right = timeout(HANG, right).await.expect("all of them come to the route");
    assert_eq!(right, [StatusCode::UNPROCESSABLE_ENTITY; 16]);

    let wrong = join_all((0..16).map(|_| ask("guess", Body::empty()))).await;
    let count = |status| wrong.iter().filter(|answer| **answer == status).count();
    let counts = [StatusCode::NOT_FOUND, StatusCode::TOO_MANY_REQUESTS].map(count);
    assert_eq!(counts, [10, 6]);
    assert_eq!(ask(TOKEN, Body::empty()).await, StatusCode::TOO_MANY_REQUESTS);
}

#[test]
fn an_instance_follows_a_rule_set_only_if_it_is_named() {
    let rule_set = |given: &[(&str, &str)]| {
        let variable = |name: &str| given.iter().find(|(other, _)| *other == name);
        let settings = Settings::read(|name| variable(name).map(|(_, value)| (*value).to_owned()));
        settings.unwrap().rule_set
    };
    let redis = ("REDIS_URL", "redis://127.0.0.1:6390/");
    assert_eq!(rule_set(&[]), None);
    assert_eq!(rule_set(&[redis]), None);
    assert_eq!(rule_set(&[redis, ("RULES_SET", "")]), None);
    assert_eq!(rule_set(&[redis, ("RULES_SET", "api")]), Some("api".to_owned()));
}

#[tokio::test]
async fn administrators_see_and_change_the_rules() {
    let platform = Platform::start(shared_server(), 9).await;
    let answer = platform.admin(Method::GET, "/admin/rules", "").await;
    assert_eq!(answer.body, rules(100));
    assert_eq!(answer.headers["content-type"], "application/json");

    let too_much = r#"tier "premium": policy "day": quota 1000000000000000 is outside 0..=999999999999999"#;
    let planet = rules(5).replace("address\",\"n", "planet\",\"n");
    for (mistaken, message) in [
        (&*rules(TOO_MUCH), too_much),
        ("{\"tiers\": [", "EOF while parsing a list at line 1 column 11"),
        (&planet, r#"tier "free": policy "address": unknown key "planet""#),
    ] {
        let answer = platform.admin(Method::POST, "/admin/rules", mistaken).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(answer.body, format!("{message}\n"));
    }
    assert_eq!(platform.get("/", "premium-rules").await.left()[0].1, 99);

    let answer = platform.admin(Method::POST, "/admin/rules", &rules(70)).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(platform.get("/", "premium-rules").await.left()[0].1, 68);
    assert_eq!(platform.admin(Method::GET, "/admin/rules", "").await.body, rules(70));

    for (position, limited) in [("off", false), ("sideways", false), ("on", true)] {
        let path = format!("/admin/switch/{position}");
        let answer = platform.admin(Method::POST, &path, "").await;
        assert_eq!(answer.status == StatusCode::NO_CONTENT, position != "sideways");
        let is_limited = !platform.get("/", "premium-switch").await.left().is_empty();
        assert_eq!(is_limited, limited, "{position}");
    }

    // Rules without tiers: the same policies for all users.
    let same = r#"{"policies": [{"name": "day", "quota": 9, "window_seconds": 86400}]}"#;
    platform.admin(Method::POST, "/admin/rules", same).await;
    assert_eq!(platform.get("/", "premium-rules").await.left(), left(&[("day", 6)]));
    let shown = platform.shown("premium-rules").await;
    assert_eq!(shown, ("premium".to_owned(), left(&[("day", 6)])));
}

#[tokio::test]
async fn administrators_see_what_a_user_has_left_without_a_charge_and_give_it_back() {
    let platform = Platform::start(shared_server(), 10).await;
    let full = left(&[("day", 3), ("planned", 1)]);
    assert_eq!(platform.shown("seen").await, ("free".to_owned(), full.clone()));
    for _ in 0..4 {
        platform.get("/", "seen").await;
    }
    let used = left(&[("day", 0), ("planned", 0)]);
    for _ in 0..2 {
        assert_eq!(platform.shown("seen").await, ("free".to_owned(), used.clone()));
    }
    platform.get("/", "premium-seen").await;
    let premium = left(&[("day", 99), ("month", 499)]);
    assert_eq!(platform.shown("premium-seen").await, ("premium".to_owned(), premium));
    assert_eq!(platform.shown("admin-seen").await, ("admin".to_owned(), Vec::new()));

    let answer = platform.admin(Method::DELETE, "/admin/caller?user=seen", "").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(platform.shown("seen").await.1, full);
    assert_eq!(platform.get("/", "seen").await.left()[0].1, 2);
    assert_eq!(platform.shown("premium-seen").await.1[0].1, 99);
}

#[tokio::test]
async fn administrators_top_up_a_user_once_for_each_id() {
    let platform = Platform::start(shared_server(), 22).await;
    let user = format!("topped-up-{}", std::process::id());
    platform.get("/", &user).await;
    let top_up = async |json: &str| {
        let path = format!("/admin/caller/top-up?user={user}");
        platform.admin(Method::POST, &path, json).await
    };
    let more = r#"{"id": "order 12", "policy": "day", "units": 5, "seconds": 3600}"#;
    for given in [true, false] {
        assert_eq!(top_up(more).await.body, json!({ "given": given }).to_string());
    }
    assert_eq!(platform.shown(&user).await.1[0].1, 7);
    let followed = async {
        // Each request charges one of the five units of the address.
        while platform.get("/", &user).await.left()[0].1 < 3 {
            sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(HANG, followed).await.unwrap();
    assert_eq!(platform.shown("unseen").await.1[0].1, 3);
    let wrong = more.replace("3600", "0");
    assert_eq!(top_up(&wrong).await.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn administrators_block_users_and_networks_until_they_unblock_them() {
    let platform = Platform::start(shared_server(), 11).await;
    let block = async |method, client: &str| platform.admin(method, "/admin/block", client).await.status;
    let statuses = async || {
        let of = async |user| platform.get("/", user).await.status.as_u16();
        (of("premium-mallory").await, of("premium-other").await)
    };
    let (mallory, network) = (r#"{"user": "premium-mallory"}"#, r#"{"network": "192.0.2.11/32"}"#);

    assert_eq!(block(Method::POST, mallory).await, StatusCode::NO_CONTENT);
    assert_eq!(statuses().await, (403, 200));
    assert_eq!(block(Method::DELETE, mallory).await, StatusCode::NO_CONTENT);
    assert_eq!(block(Method::DELETE, mallory).await, StatusCode::NOT_FOUND);
    assert_eq!(statuses().await, (200, 200));

    assert_eq!(block(Method::POST, network).await, StatusCode::NO_CONTENT);
    assert_eq!(statuses().await, (403, 403));
    assert_eq!(block(Method::DELETE, network).await, StatusCode::NO_CONTENT);
    assert_eq!(statuses().await, (200, 200));

    for mistaken in [r#"{"network": "somewhere"}"#, r#"{"planet": "Mars"}"#, "{}"] {
        let status = block(Method::POST, mistaken).await;
        assert!(status.is_client_error(), "{mistaken}: {status}");
    }
    assert_eq!(statuses().await, (200, 200));
}

#[tokio::test]
async fn rules_are_tried_on_some_callers_and_then_hold_for_all_or_for_none() {
    let platform = Platform::start(shared_server(), 17).await;
    let admin = async |method, path: &str, body: &str| platform.admin(method, path, body).await.status;
    let quota = async || platform.get("/", "premium-trial").await.left()[0].1;
    assert_eq!(quota().await, 99);
    assert_eq!(admin(Method::POST, "/admin/roll-out", "").await, StatusCode::CONFLICT);
    assert_eq!(admin(Method::PUT, "/admin/roll-out/50", "").await, StatusCode::CONFLICT);
    for (percent, quota) in [(101, 200), (100, TOO_MUCH)] {
        let status = admin(Method::PUT, &format!("/admin/roll-out/{percent}"), &rules(quota)).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    assert_eq!(admin(Method::GET, "/admin/roll-out", "").await, StatusCode::NO_CONTENT);

    admin(Method::PUT, "/admin/roll-out/100", &rules(200)).await;
    assert_eq!(quota().await, 198);
    assert_eq!(platform.state().await["rules"]["roll_out"]["percent"], 100);
    // Changes only the percentage of the rollout.
    admin(Method::PUT, "/admin/roll-out/0", "").await;
    assert_eq!(quota().await, 97);
    let tried = platform.admin(Method::GET, "/admin/roll-out", "").await;
    assert_eq!(tried.body, rules(200));
    admin(Method::DELETE, "/admin/roll-out", "").await;
    assert_eq!(platform.state().await["rules"]["roll_out"], Value::Null);
    assert_eq!(platform.admin(Method::GET, "/admin/rules", "").await.body, rules(100));

    admin(Method::PUT, "/admin/roll-out/5", &rules(300)).await;
    assert_eq!(admin(Method::POST, "/admin/roll-out", "").await, StatusCode::NO_CONTENT);
    assert_eq!(quota().await, 296);
    assert_eq!(platform.admin(Method::GET, "/admin/rules", "").await.body, rules(300));
}

#[tokio::test]
async fn of_two_administrators_the_second_one_notices_the_change_of_the_first() {
    let platform = Platform::start(shared_server(), 18).await;
    let change = async |number: &str, quota| {
        let request = platform.request(Method::POST, "/admin/rules");
        let request = request.header("authorization", format!("Bearer {TOKEN}"));
        let request = request.header("if-match", number).body(Body::from(rules(quota)));
        send(&platform.app, request.unwrap()).await
    };
    let number = platform.state().await["rules"]["number"].to_string();
    assert_eq!(change(&number, 150).await.status, StatusCode::NO_CONTENT);
    for outdated in [&*number, &format!("\"{number}\""), "*", ""] {
        let answer = change(outdated, 160).await;
        assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED, "{outdated}");
        assert_eq!(answer.body, "the rules have changed meanwhile; look at them again\n");
    }
    assert_eq!(platform.admin(Method::GET, "/admin/rules", "").await.body, rules(150));
}

#[tokio::test]
async fn units_are_given_back_once_for_each_id() {
    let platform = Platform::start(shared_server(), 19).await;
    for _ in 0..4 {
        platform.get("/", "given").await;
    }
    let give = async |caller: &str, units: u64, id: &str| {
        let path = format!("/admin/caller/give-back?{caller}");
        let body = json!({"units": units, "id": id}).to_string();
        platform.admin(Method::POST, &path, &body).await.json()
    };
    for (id, answer, day) in [("a", "done", 2), ("a", "repeated", 2), ("b", "done", 3)] {
        assert_eq!(give("user=given", 2, id).await, json!({ "given_back": answer }));
        assert_eq!(platform.shown("given").await.1[0].1, day);
    }
    assert_eq!(
        give("user=admin-given", 2, "c").await,
        json!({"given_back": "not_counted"})
    );
    // The four requests were also charged to the address.
    let address = format!("address={}", platform.address.ip());
    assert_eq!(give(&address, 1, "d").await, json!({"given_back": "done"}));
    let shown = platform.caller(&address).await;
    let by_address = shown["policies"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&by_address["name"], &by_address["remaining"]),
        (&json!("address"), &json!(3))
    );

    for mistaken in "|user=|user=a&address=192.0.2.1|address=somewhere|planet=Mars".split('|') {
        let path = format!("/admin/caller?{mistaken}");
        let answer = platform.admin(Method::GET, &path, "").await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{mistaken}");
    }
}

#[tokio::test]
async fn the_state_has_who_is_rejected_most_and_by_which_policy() {
    let platform = Platform::start(shared_server(), 20).await;
    for _ in 0..6 {
        platform.get("/", "most").await;
    }
    let block = r#"{"user": "premium-bad", "seconds": 60}"#;
    platform.admin(Method::POST, "/admin/block", block).await;
    platform.get("/", "premium-bad").await;
    let state = platform.state().await;
    let rejected = &state["rejected"];
    assert_eq!(rejected[0]["caller"], json!({"user": "most"}));
    assert_eq!(
        (&rejected[0]["policy"], &rejected[0]["rejections"]),
        (&json!("day"), &json!(3))
    );
    assert_eq!(rejected[1]["caller"], json!({"user": "premium-bad"}));
    assert_eq!(rejected[1]["policy"], Value::Null);
    assert_eq!(
        state["blocks"],
        json!([{"client": {"user": "premium-bad"}, "seconds": 60}])
    );
    assert_eq!(state["circuit"], json!({"is_open": false}));
    let decisions = state["numbers"]["decisions"].as_array().unwrap();
    assert!(
        decisions.contains(&json!(["free", "day", "rejected", 3.0])),
        "{decisions:?}"
    );

    // If the policy of the address rejects a request, the caller is listed by address.
    for _ in 0..3 {
        platform.get("/", "another").await;
    }
    let rejected = platform.state().await["rejected"].clone();
    let address = json!({"address": platform.address.ip()});
    let mut callers = rejected.as_array().unwrap().iter().map(|rejected| &rejected["caller"]);
    assert!(callers.any(|caller| *caller == address), "{rejected}");
}

#[tokio::test(start_paused = true)]
async fn the_callers_that_are_rejected_most_are_found_among_many_and_forgotten_after_five_minutes() {
    let rejected = Rejected::new();
    let reject = |name: &str| rejected.count(Caller::User(name.to_owned()), Some("day".to_owned()));
    for number in 0..20_000 {
        reject(&format!("flood-{number}"));
        if number % 20 == 0 {
            reject("heavy");
        }
    }
    let most = rejected.most();
    assert_eq!(most.as_array().unwrap().len(), 100);
    assert_eq!(most[0]["caller"], json!({"user": "heavy"}));
    let found = most[0]["rejections"].as_u64().unwrap();
    // The count is a lower bound, because other callers replaced this caller for a while.
    assert!((500..=1_000).contains(&found), "{found}");

    tokio::time::advance(Duration::from_secs(4 * 60)).await;
    reject("late");
    assert_eq!(rejected.most()[0]["caller"], json!({"user": "heavy"}));
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(rejected.most().as_array().unwrap().len(), 1);
    tokio::time::advance(Duration::from_secs(3_600)).await;
    assert_eq!(rejected.most(), json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_block_ends_by_itself_and_a_network_is_one_however_it_is_written() {
    let access = AccessList::new(key::client_ip());
    let blocks = Blocks::new(access.clone());
    tokio::spawn(blocks.clone().watch());
    let network = |text: &str| Client::Network(text.to_owned());
    let of = |address: &str| access.rules().access(address.parse().ok(), None);
    // A longer block replaces the shorter one.
    for (client, seconds) in [
        (network("::ffff:192.0.2.0/120"), Some(60)),
        (network("198.51.100.0/24"), None),
        (Client::User("mallory".to_owned()), Some(600)),
        (network("192.0.2.0/24"), Some(120)),
    ] {
        blocks.add(client, seconds.map(Duration::from_secs)).unwrap();
    }
    assert_eq!(blocks.to_json().as_array().unwrap().len(), 3);
    assert!(blocks.add(network("somewhere"), None).is_err());

    sleep(Duration::from_secs(90)).await;
    assert_eq!(of("192.0.2.1"), Access::Block);
    sleep(Duration::from_secs(32)).await;
    assert_eq!((of("192.0.2.1"), of("198.51.100.1")), (Access::Limit, Access::Block));
    let mallory = PartitionKey::new("user", "mallory");
    assert!(blocks.is_blocked(None, &mallory));
    sleep(Duration::from_secs(3_600)).await;
    assert!(!blocks.is_blocked(None, &mallory));
    let endless = json!([{"client": {"network": "198.51.100.0/24"}, "seconds": null}]);
    assert_eq!(blocks.to_json(), endless);
    assert!(blocks.end(&network("::ffff:198.51.100.0/120")).unwrap());
    assert_eq!(blocks.to_json(), json!([]));
}

#[test]
fn names_of_policies_are_read_whatever_is_in_them() {
    let page = concat!(
        "# TYPE tower_quota_decisions_total counter\n",
        r#"tower_quota_decisions_total{scope="a",tier="",policy="a \"b\\,}\n= c",outcome="rejected"} 7"#,
        "\n",
        r#"tower_quota_decisions_total{scope="b",tier="",policy="",outcome="allowed"} 9"#,
        "\ntower_quota_evictions_total 3\ntower_quota_decisions_total{scope=\"a\n",
    );
    let decisions = json!([["", "a \"b\\,}\n= c", "rejected", 7.0]]);
    assert_eq!(of_scope("a", page)["decisions"], decisions);
}

/// The page loads nothing from other servers, has no inline scripts or styles, and cannot be framed. Without a token,
/// there is no page.
#[tokio::test]
async fn the_operators_page_is_of_this_service_alone() {
    let platform = Platform::start(shared_server(), 21).await;
    let page = platform.get("/operators/", "").await;
    assert_eq!(page.status, StatusCode::OK);
    for forbidden in ["http://", "https://", "<style", " style=", " onclick=", "<script>"] {
        // An XML namespace, which is not requested.
        let own = page.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!own.contains(forbidden), "{forbidden}");
    }
    let files =
        "base.css operators.css canvas.js operators.js history.js charts.js rules.js fleet.js network.js words.js";
    for path in files.split(' ').map(|file| format!("/operators/{file}")) {
        let file = platform.get(&path, "").await;
        assert_eq!(file.status, StatusCode::OK, "{path}");
        // The alerts link to their documentation.
        let own = file.body.replace("https://docs.rs/tower-quota/latest/", "");
        assert!(!own.contains("innerHTML") && !own.contains("://"), "{path}");
    }
    for path in ["/operators/", "/operators/operators.js", "/admin/state"] {
        let headers = platform.get(path, "").await.headers;
        let policy = headers["content-security-policy"].to_str().unwrap();
        let parts = "default-src 'none'; script-src 'self'; frame-ancestors 'none'; form-action 'none'";
        for part in parts.split("; ") {
            assert!(policy.contains(part) && !policy.contains("unsafe"), "{path}: {policy}");
        }
        assert_eq!(headers["cache-control"], "no-store", "{path}");
        for forbidden in ["set-cookie", "access-control-allow-origin"] {
            assert!(!headers.contains_key(forbidden), "{path}");
        }
    }
    // The preflight request of another site's script is not answered.
    let preflight = platform.request(Method::OPTIONS, "/admin/switch/off");
    let preflight = preflight.header("origin", "https://evil.example");
    let preflight = preflight.header("access-control-request-headers", "authorization");
    let answer = send(&platform.app, preflight.body(Body::empty()).unwrap()).await;
    assert!(!answer.status.is_success() && !answer.headers.contains_key("access-control-allow-headers"));

    let without = Platform::with(shared_server(), 22, platform.file.clone(), None).await;
    assert_eq!(without.get("/operators/", "").await.status, StatusCode::NOT_FOUND);
}

#[track_caller]
fn assert_lines(page: &str, lines: &[&str]) {
    for line in lines {
        assert!(page.lines().any(|of_page| of_page == *line), "{line} is not in\n{page}");
    }
}

#[tokio::test]
async fn the_page_for_prometheus_has_the_decisions() {
    let platform = Platform::start(shared_server(), 12).await;
    for _ in 0..5 {
        platform.get("/", "counted").await;
    }
    platform.get("/", "admin-counted").await;
    platform.get("/health", "").await;
    let page = platform.page().await;
    for line in [
        r#"tier="free",policy="",outcome="allowed"} 3"#,
        r#"tier="free",policy="day",outcome="rejected"} 2"#,
        r#"tier="admin",policy="",outcome="unlimited"} 1"#,
        r#"tier="free",policy="",outcome="unlimited"} 1"#,
    ] {
        let line = format!(r#"tower_quota_decisions_total{{scope="platform",{line}"#);
        assert_lines(&page, &[&line]);
    }
    assert!(page.contains(r#"tower_quota_store_seconds_bucket{scope="platform",le="0.05"}"#));
}

#[tokio::test]
async fn while_redis_is_away_requests_pass_and_the_page_says_so() {
    let server = RedisServer::start();
    let platform = Platform::start(&server, 13).await;
    assert_eq!(platform.get("/", "away").await.left()[0].1, 2);

    server.kill();
    for _ in 0..7 {
        let answer = platform.get("/", "away").await;
        assert_eq!((answer.status, answer.left()), (StatusCode::OK, Vec::new()));
    }
    let page = platform.page().await;
    let failed = r#"tower_quota_failed_total{scope="platform",mode="open"} 7"#;
    assert_lines(&page, &[failed, r#"tower_quota_circuit_open{scope="platform"} 1"#]);
    let answer = platform.admin(Method::GET, "/admin/caller?user=away", "").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.body.starts_with("store unreachable: "), "{}", answer.body);

    server.restart();
    let is_limited = async || !platform.get("/", "premium-back").await.left().is_empty();
    eventually("requests are limited again", is_limited).await;
    assert_lines(
        &platform.page().await,
        &[r#"tower_quota_circuit_open{scope="platform"} 0"#],
    );
}
