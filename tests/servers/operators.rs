//! The files that operators load, under a real Prometheus that reads the pages of the real programs, and of one
//! in which everything goes wrong at the same time. `make ops-test` runs this; without it, no Prometheus is needed.

#![allow(clippy::disallowed_methods, reason = "Prometheus does not follow virtual time")]

use std::{
    any::Any,
    collections::BTreeSet,
    convert::Infallible,
    env,
    fs::{self, File},
    future::IntoFuture,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use http::{Method, Request, Response};
use metrics::{set_default_local_recorder, with_local_recorder};
use metrics_exporter_prometheus::PrometheusHandle;
use reqwest::Url;
use serde_json::Value;
use test_kit::{RedisServer, TestStore, free_port, request};
use tokio::time::{Instant, sleep};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, ChargeTime, Direction, FailureMode, LateCharge, Limiter, Measurement, MemoryStore, PartitionKey, Plan,
    QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore, Refund, Rules, Settlement, Store, StoreErrorKind,
    StoreFuture, Tiers, WeakPermit,
    clock::{Clock, Timestamp},
    content::LingeringClose,
};
use tower_quota_fleet::{
    FileRules, RulesDocument, RulesFollower, RulesSource, RulesVersion, SourceFuture, SourceState, SwitchOrder,
};

use crate::{
    NO_SERVER, RemoteStore, listener,
    metrics::{builder, builder_of, day, look_up_a_tier, lose_a_settlement, recorder, send},
    tokens,
};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)).unwrap()
}

/// The same rules or queries for a run of a minute: rates over ten seconds, and no wait for what lasts.
fn hastened(rules: &str) -> String {
    let mut hastened = rules.to_owned();
    // The store was faster before.
    hastened = hastened.replace("[1d])))", "[10s] offset 20s)))");
    for range in ["5m", "15m", "30m", "1h", "1d", "$__rate_interval"] {
        hastened = hastened.replace(&format!("[{range}]"), "[10s]");
    }
    for minutes in ["1m", "5m", "15m"] {
        hastened = hastened.replace(&format!(" for: {minutes}\n"), " for: 0m\n");
    }
    // Floors are for services with more requests.
    for floor in [">= 1", ">= 10"] {
        for end in [" and", "\n"] {
            hastened = hastened.replace(&format!("{floor}{end}"), &format!("> 0{end}"));
        }
    }
    hastened
        .replace("offset 1d", "offset 10s")
        .replace("offset 1h", "offset 10s")
        .replace("> 1000 and", "> 10 and")
}

/// The token of administrators in the configuration of Prometheus, without which `platform` shows no metrics.
const TOKEN: &str = "secret";

/// Ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program on a free port, and returns its host and port.
fn start_program(name: &str, redis: &RedisServer) -> (Process, String) {
    let folder = env::var_os("PROGRAMS").expect("PROGRAMS is the folder of the built programs: run `make ops-test`");
    let process = Command::new(PathBuf::from(folder).join(name))
        .envs([("PORT", "0"), ("REDIS_URL", &redis.url()), ("ADMIN_TOKEN", TOKEN)])
        .stdout(Stdio::piped())
        .spawn();
    let mut process = Process(process.unwrap());
    let output = BufReader::new(process.0.stdout.take().unwrap());
    let mut lines = output.lines().map_while(Result::ok);
    let address = lines.find_map(|line| Some(line.split_once("http://")?.1.trim_end_matches('/').to_owned()));
    // A program whose output nothing reads would end with the next line.
    thread::spawn(move || lines.for_each(drop));
    (process, address.unwrap())
}

/// A Prometheus with the configuration and the alerts of the repository.
struct Prometheus {
    _process: Process,
    url: String,
    folder: PathBuf,
}

impl Prometheus {
    fn start(targets: &[String]) -> Self {
        let program = env::var_os("PROMETHEUS").expect("PROMETHEUS is the path of one: run `make ops-test`");
        let folder = env::temp_dir().join(format!("tower-quota-prometheus-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let targets = format!("- {}", targets.join("\n          - "));
        let configuration = read("ops/prometheus/prometheus.yml").replace("15s", "1s");
        assert!(configuration.contains("- 127.0.0.1:3000"));
        assert!(configuration.contains(&format!("credentials: {TOKEN}\n")));
        let configuration = configuration.replace("- 127.0.0.1:3000", &targets);
        fs::write(folder.join("prometheus.yml"), configuration).unwrap();
        fs::write(folder.join("alerts.yml"), hastened(&read("ops/prometheus/alerts.yml"))).unwrap();
        let address = format!("127.0.0.1:{}", free_port(false));
        let process = Command::new(program)
            .current_dir(&folder)
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .stderr(File::create(folder.join("log")).unwrap())
            .spawn();
        Self {
            _process: Process(process.unwrap()),
            url: format!("http://{address}/api/v1/"),
            folder,
        }
    }

    /// The data of an answer; `None` while it does not answer yet.
    async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Option<Value> {
        let url = Url::parse_with_params(&format!("{}{path}", self.url), parameters).unwrap();
        let text = reqwest::get(url).await.ok()?.text().await.ok()?;
        let answer: Value = serde_json::from_str(&text).ok()?;
        assert_eq!(answer["status"], "success", "{parameters:?}: {answer}");
        Some(answer["data"].clone())
    }

    /// The labels of each series that a query returns now.
    async fn series(&self, query: &str) -> Vec<Value> {
        let data = self.get("query", &[("query", query)]).await.unwrap_or_default();
        let series = data["result"].as_array().cloned().unwrap_or_default();
        series.iter().map(|series| series["metric"].clone()).collect()
    }

    /// The names of the alerts that fire, and the scopes that they name.
    async fn firing(&self) -> BTreeSet<(String, String)> {
        let data = self.get("alerts", &[]).await.unwrap_or_default();
        let alerts = data["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        let label = |alert: &Value, name: &str| alert["labels"][name].as_str().unwrap_or_default().to_owned();
        firing
            .map(|alert| (label(alert, "alertname"), label(alert, "scope")))
            .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A query of the dashboard, and the labels that its legend names.
struct Query {
    expression: String,
    labels: Vec<String>,
}

fn queries_of_the_dashboard() -> Vec<Query> {
    let dashboard: Value = serde_json::from_str(&read("ops/grafana.json")).unwrap();
    let rows = dashboard["panels"].as_array().unwrap();
    let hidden = rows.iter().filter_map(|row| row["panels"].as_array()).flatten();
    let targets = rows
        .iter()
        .chain(hidden)
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    targets
        .map(|target| Query {
            expression: hastened(target["expr"].as_str().unwrap())
                .replace("$scope", ".*")
                .replace("$namespace", ".*")
                .replace("$job", ".*")
                .replace("$instance", ".*"),
            labels: target["legendFormat"]
                .as_str()
                .unwrap()
                .split("{{")
                .skip(1)
                .map(|label| label.split("}}").next().unwrap().to_owned())
                .collect(),
        })
        .collect()
}

/// A memory store that is 40 ms away after some seconds.
#[derive(Debug)]
struct Late {
    store: MemoryStore,
    from: Instant,
}

impl Late {
    fn new() -> Self {
        Self {
            store: MemoryStore::new(),
            from: Instant::now() + Duration::from_secs(15),
        }
    }
}

impl Store for Late {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        let (store, is_late) = (self.store.clone(), Instant::now() > self.from);
        StoreFuture::boxed(async move {
            sleep(Duration::from_millis(if is_late { 40 } else { 1 })).await;
            store.acquire(plan).await
        })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.store.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.store.reset(plan)
    }
}

/// Layers that have one fault each.
struct Faults {
    sent: Vec<(RateLimitLayer, Request<String>)>,
    tiers: RateLimitLayer,
    units: RateLimitLayer,
    /// Delays requests; no part of this test waits for them.
    queue: RateLimitLayer,
    /// Its callers are new ones, more and more of them.
    growing: RateLimitLayer,
    /// Its only caller is reset by another instance each time.
    forgetful: (RateLimitLayer, RateLimitLayer, Clock),
    _slot: Box<dyn Any>,
    _followers: Vec<RulesFollower>,
}

/// Layers whose store is at fault, each with a request for it.
fn faults_of_stores() -> Vec<(RateLimitLayerBuilder, Request<String>)> {
    let failing = |kind| builder(TestStore::failing(kind)).policy(day(9));
    let layers = [
        failing(StoreErrorKind::Unavailable),
        failing(StoreErrorKind::OutOfMemory).scope("full"),
        failing(StoreErrorKind::Failed).failure_mode(FailureMode::Closed),
        builder(Late::new()).scope("late").policy(day(1_000_000)),
        builder(RedisStore::new(NO_SERVER).unwrap())
            .scope("redis")
            .policy(day(9)),
        builder(RedisStore::cluster([NO_SERVER]).unwrap())
            .scope("cluster")
            .policy(day(9)),
    ];
    layers.map(|layer| (layer, request("alice"))).into()
}

/// Layers that are set up wrongly for the request beside them, or that reject it.
fn faults_of_requests() -> Vec<(RateLimitLayerBuilder, Request<String>)> {
    let memory = || builder(MemoryStore::new());
    let free = |name, quota| {
        let planned = QuotaPolicy::per_day("planned", 1).shadow();
        Tiers::from_fn(move |_| Some(name)).tier("free", [day(quota), planned])
    };
    let soft = QuotaPolicy::per_second("soft", 1).with_algorithm(Algorithm::FixedWindow);
    let soft = Tiers::from_fn(|_| Some("free")).tier("free", [soft.with_overage(10_000)]);
    let mut upload = request("alice");
    *upload.method_mut() = Method::POST;
    let bytes = day(1_000_000).with_content_bytes(Direction::Request);
    let unread = memory()
        .policy(day(1))
        .lingering_close(LingeringClose::new().max_bodies(0));
    let mut with_body = request("alice");
    "content".clone_into(with_body.body_mut());
    vec![
        (unread, with_body),
        (memory().policy(day(1_000_000)), Request::new(String::new())),
        (builder(RemoteStore::<1>::default()).policy(day(1)), request("alice")),
        (memory().tiers(free("gold", 1)), request("alice")),
        (memory().tiers(free("free", 1_000_000)), request("alice")),
        (memory().cost_by(|_| 7).policy(day(5)), request("alice")),
        (memory().tiers(soft), request("alice")),
        (memory().policy(bytes), upload),
    ]
}

impl Faults {
    async fn new(folder: &Path) -> Self {
        let memory = || builder(MemoryStore::new());
        let layers = faults_of_stores().into_iter().chain(faults_of_requests());
        let slots = memory().policy(QuotaPolicy::concurrent("at once", 9)).build().unwrap();
        let handler = async |_: Request<String>| Ok::<_, Infallible>(Response::new(Body::from("not read yet")));
        let slot = slots.layer(service_fn(handler)).oneshot(request("alice")).await;
        let tokens = QuotaPolicy::per_day("tokens", 1_000_000_000).with_unit("tokens");
        let units = memory().policy(tokens).unit_cost("tokens", |_| 10);
        let queue = QuotaPolicy::per_minute("queue", 20).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 1 });
        let (clock, store) = (Clock::manual(Timestamp::from_micros(0)), RemoteStore::<1>::default());
        let forgetful = || {
            builder_of(Limiter::builder(store.clone()).clock(clock.clone()))
                .policy(day(1))
                .build()
                .unwrap()
        };
        Self {
            forgetful: (forgetful(), forgetful(), clock.clone()),
            sent: layers
                .map(|(layer, request)| (layer.build().unwrap(), request))
                .collect(),
            tiers: memory().policy(day(1_000_000)).build().unwrap(),
            units: units.build().unwrap(),
            queue: memory().policy(queue).build().unwrap(),
            growing: builder(RemoteStore::<1>::default())
                .scope("growing")
                .policy(day(9))
                .build()
                .unwrap(),
            _slot: Box::new(slot.unwrap()),
            _followers: followers(folder).await,
        }
    }

    /// Everything goes wrong once more.
    async fn provoke(&self, round: usize) {
        for (layer, request) in &self.sent {
            send(layer, request.clone()).await;
        }
        look_up_a_tier(&self.tiers, Ok(Some("pro"))).await;
        look_up_a_tier(&self.tiers, Err("the database is down")).await;
        let used = service_fn(async |request: Request<String>| {
            let permit = request.extensions().get().and_then(WeakPermit::upgrade);
            permit.unwrap().set("tokens", 30);
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        drop(self.units.layer(used).oneshot(request("alice")).await.unwrap());
        let alice = PartitionKey::new("x-user-id", "alice");
        self.tiers
            .limiter()
            .caller(&alice)
            .refund(&Refund::new(1, ChargeTime::Now))
            .await
            .unwrap();
        let bob = self.tiers.limiter().caller("bob");
        bob.charge(&LateCharge::new(9_000_000)).await.unwrap();
        let (own, other, clock) = &self.forgetful;
        send(own, request("alice")).await;
        other.limiter().caller(&alice).reset().await.unwrap();
        clock.advance(Duration::from_secs(2));
        for _ in 0..2 {
            let (queue, user) = (self.queue.clone(), format!("user {round}"));
            tokio::spawn(async move { send(&queue, request(&user)).await });
        }
        let full = MemoryStore::builder().max_partitions(10).build().unwrap();
        let full = builder(full).policy(day(9)).build().unwrap();
        for user in 0..15 {
            send(&full, request(&user.to_string())).await;
        }
        tokens::of_every_outcome().await;
        tokens::of_forged_tokens(100).await;
        let strangers = if round < 20 { 1 } else { 400 };
        for stranger in 0..strangers {
            send(&self.growing, request(&format!("{round} {stranger}"))).await;
        }
    }
}

/// A fleet that is switched off by an order that is lost after some seconds, or that cannot be read.
#[derive(Debug)]
struct Switched {
    name: &'static str,
    from: Instant,
    order: Option<SwitchOrder>,
}

impl RulesSource for Switched {
    fn name(&self) -> &str {
        self.name
    }

    fn state(&self) -> SourceFuture<'_, SourceState> {
        let is_there = self.from.elapsed() < Duration::from_secs(5);
        let state = SourceState::new(None);
        let state = match &self.order {
            Some(order) => state.with_controls(is_there.then(|| order.clone()), None),
            None => state.without_controls("NOPERM"),
        };
        Box::pin(async { Ok(state) })
    }

    fn document(&self, _: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// One follower has a version and rejects the next one, and one cannot read its rules.
async fn followers(folder: &Path) -> Vec<RulesFollower> {
    let path = folder.join("rules");
    let rules = Rules::new().tier("free", [day(8)]);
    fs::write(&path, RulesDocument::new(1, rules).to_json().unwrap()).unwrap();
    let follow = |path: &Path| {
        let layer = builder(MemoryStore::new()).tiers(Tiers::from_fn(|_| Some("free")).tier("free", [day(9)]));
        let layer = layer.build().unwrap();
        RulesFollower::builder(layer.limiter().rules(), FileRules::new(path))
            .start()
            .unwrap()
    };
    let switched = |name, order| {
        let layer = builder(MemoryStore::new()).scope("switched").policy(day(9));
        let handle = layer.build().unwrap().limiter().rules();
        let from = Instant::now();
        RulesFollower::builder(handle, Switched { name, from, order })
            .start()
            .unwrap()
    };
    let off = SwitchOrder::new(1, true);
    // A folder is no file.
    let followers = vec![
        follow(&path),
        follow(folder),
        switched("for good", Some(off.clone())),
        switched("until 2100", Some(off.with_end(4_102_444_800))),
        switched("unread", None),
    ];
    followers[0].wait_for_rules().await;
    fs::write(&path, "no rules").unwrap();
    followers
}

/// Serves the page as `metrics` does, and returns its host and port.
async fn serve(page: impl Fn() -> String + Clone + Send + Sync + 'static) -> String {
    let (listener, address) = listener().await;
    let app = Router::new().route("/metrics", get(async move || page()));
    tokio::spawn(axum::serve(listener, app).into_future());
    address.to_string()
}

/// The page of this process, and of one that follows a later version of the rules, is not switched off, has for some seconds a
/// scope that is gone afterwards, and is the same for the rest.
async fn serve_two_instances(page: PrometheusHandle) -> [String; 2] {
    let (ahead, start) = (page.clone(), Instant::now());
    let ahead = move || {
        let page = ahead.render();
        let lines = page.lines().map(|line| match line.rsplit_once(' ') {
            Some((series, "1")) if series.starts_with("tower_quota_rules_version{") => format!("{series} 2\n"),
            Some((series, _)) if series.starts_with("tower_quota_limits_off{") => format!("{series} 0\n"),
            _ => format!("{line}\n"),
        });
        let page: String = lines.collect();
        match start.elapsed() < Duration::from_secs(10) {
            true => page + "tower_quota_limits_off{scope=\"gone\"} 0\n",
            false => page,
        }
    };
    [serve(move || page.render()).await, serve(ahead).await]
}

/// The alerts and panels that were not seen yet. Some alerts end while others are still awaited.
async fn missing(
    prometheus: &Prometheus,
    alerts: &BTreeSet<String>,
    fired: &mut BTreeSet<(String, String)>,
    queries: &mut Vec<Query>,
) -> Vec<String> {
    fired.extend(prometheus.firing().await);
    let has_fired = |name: &str, scope: &str| fired.contains(&(name.to_owned(), scope.to_owned()));
    let mut missing: Vec<_> = alerts
        .iter()
        .filter(|name| !fired.iter().any(|(fired, _)| fired == *name))
        .cloned()
        .collect();
    // The Redis of the program `platform` is down.
    for name in ["TowerQuotaLimitsAreNotEnforced", "TowerQuotaAnInstanceIsCutOff"] {
        if !has_fired(name, "platform") {
            missing.push(format!("{name} of the platform"));
        }
    }
    let mut unseen = Vec::new();
    for query in queries.drain(..) {
        let series = prometheus.series(&query.expression).await;
        let has = |label: &String| series.iter().any(|series| series.get(label).is_some());
        if series.is_empty() || !query.labels.iter().all(has) {
            missing.push(format!("{} with {:?}: {series:?}", query.expression, query.labels));
            unseen.push(query);
        }
    }
    *queries = unseen;
    missing
}

#[tokio::test]
#[ignore = "it needs Prometheus and two minutes: `make ops-test`"]
async fn every_alert_fires_and_every_query_of_the_dashboard_returns_a_series() {
    let (recorder, page) = recorder();
    let _recorder = set_default_local_recorder(&recorder);
    let redis = RedisServer::start();
    let programs = ["platform", "example-metrics"].map(|name| start_program(name, &redis));
    let [platform, items] = [0, 1].map(|program| programs[program].1.clone());
    let instances = serve_two_instances(page).await;
    let targets = [&platform, &items, &instances[0], &instances[1]].map(String::clone);
    let prometheus = Prometheus::start(&targets);
    let faults = Faults::new(&prometheus.folder).await;
    let client = reqwest::Client::new();
    let alerts = read("ops/prometheus/alerts.yml");
    let alerts = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: BTreeSet<_> = alerts.map(str::to_owned).collect();
    let mut queries = queries_of_the_dashboard();
    assert!(alerts.len() > 20 && queries.len() > 30, "{}", queries.len());

    let (mut left, mut fired) = (Vec::new(), BTreeSet::new());
    for round in 0..300 {
        for path in [format!("http://{platform}/"), format!("http://{items}/items")] {
            let request = client.get(path).header("x-user-id", "alice");
            request.send().await.unwrap();
        }
        faults.provoke(round).await;
        let lose = || with_local_recorder(&recorder, lose_a_settlement);
        thread::scope(|scope| scope.spawn(lose).join().unwrap());
        if round == 5 {
            redis.kill();
        }
        sleep(Duration::from_millis(300)).await;
        left = missing(&prometheus, &alerts, &mut fired, &mut queries).await;
        if round > 5 && left.is_empty() {
            break;
        }
    }
    let up = prometheus.series("up == 1").await.len();
    assert_eq!((up, left), (4, Vec::<String>::new()));
}
