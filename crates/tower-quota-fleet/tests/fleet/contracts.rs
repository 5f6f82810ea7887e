//! Contracts in Redis: what instances apply, and when.

#![allow(clippy::disallowed_methods, reason = "a server does not follow virtual time")]

use std::{convert::Infallible, time::Duration};

use futures_util::future::join_all;
use http::{Request, Response};
use test_kit::{Proxy, RedisServer, load::until, shared_cluster, shared_server};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    CallerQuotas, Decision, Limiter, MemoryStore, PartitionId, PartitionKey, QuotaPolicy, RateLimitLayer, RedisStore,
    RedisStoreBuilder, ResolvedTier, Scope, Tiers,
    clock::{Clock, Timestamp},
    key,
    tier::{TierCache, TierLayer},
};
use tower_quota_fleet::{Contract, Contracts, FleetError, FleetErrorKind, TopUp};

fn customer(number: u64) -> PartitionKey {
    PartitionKey::new("customer", number.to_string())
}

fn now() -> u64 {
    Clock::system().now().as_micros() / 1_000_000
}

fn digest(customer: &PartitionKey) -> PartitionId {
    Scope::new("tiers").partition(customer)
}

fn minute(quota: u64) -> CallerQuotas {
    CallerQuotas::new().quota("minute", quota)
}

fn contracts(servers: RedisStoreBuilder, name: &str) -> Contracts {
    Contracts::new(servers, name).unwrap().with_author("tests")
}

/// Tops up the quota a minute for this many seconds.
async fn top_up(
    table: &Contracts,
    customer: &PartitionKey,
    id: impl Into<String>,
    units: u64,
    seconds: u64,
) -> Result<bool, FleetError> {
    let top_up = TopUp::new(id, "minute", units, now() + seconds);
    table.top_up(customer, &top_up).await
}

/// An instance that reads contracts, and follows their changes.
struct Instance {
    limiter: Limiter,
    tiers: TierLayer,
    follower: JoinHandle<()>,
}

impl Instance {
    fn start(contracts: &Contracts) -> Self {
        let table = contracts.clone();
        let tiers = TierLayer::by_extension(move |customer: PartitionKey| {
            let table = table.clone();
            async move {
                let plan = ResolvedTier::new("premium");
                Ok::<_, Infallible>(Some(plan.with_quotas_or_last(table.quotas(&customer).await)))
            }
        });
        let tiers = tiers.build().unwrap();
        let (cache, follower): (TierCache, Contracts) = (tiers.cache().clone(), contracts.clone());
        let policy = QuotaPolicy::per_minute("minute", 100).with_caller_quotas(1..=10_000);
        Self {
            limiter: Limiter::builder(MemoryStore::new())
                .scope("api")
                .policy(policy)
                .build()
                .unwrap(),
            tiers,
            follower: tokio::spawn(async move { follower.follow(&cache).await }),
        }
    }

    /// The quota by which a request of the customer is limited.
    async fn quota(&self, number: u64) -> u64 {
        let layer = RateLimitLayer::with_limiter(self.limiter.clone())
            .key(key::extension::<PartitionKey>())
            .tiers(Tiers::resolved())
            .decision_in_response();
        let layer = layer.build().unwrap();
        let handler = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
        let service = self.tiers.layer(layer.layer(handler));
        let request = Request::builder().extension(customer(number));
        let request = request.body(String::new()).unwrap();
        let response = service.oneshot(request).await.unwrap();
        let decision = response.extensions().get::<Decision>().unwrap();
        decision.allowances().next().unwrap().policy().quota()
    }

    async fn wait_for_quota(&self, customer: u64, quota: u64) {
        let what = format!("customer {customer} has a quota of {quota}");
        until(&what, async || self.quota(customer).await == quota).await;
    }

    /// Waits for the quota of customer 1, and until the follower has the position of this change.
    async fn settles(&self, quota: u64) {
        self.wait_for_quota(1, quota).await;
        sleep(Duration::from_secs(2)).await;
        assert_eq!(self.quota(1).await, quota);
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

async fn are_kept_and_read(servers: RedisStoreBuilder, name: &str) {
    let table = contracts(servers, name);
    let alice = customer(1);
    assert_eq!(table.get(&alice).await.unwrap(), None);
    let quotas = minute(5_000).burst_capacity("minute", 50).month_begins(15);
    let offer = Contract::new(quotas.clone()).because("offer 7");
    table.set(&alice, &offer).await.unwrap();
    let contract = table.get(&alice).await.unwrap().unwrap();
    assert_eq!((contract.author(), contract.reason()), ("tests", "offer 7"));
    assert_eq!((contract.quotas(), contract.top_ups()), (&quotas, &[][..]));
    assert!(contract.time().abs_diff(now()) < 100);

    top_ups_are_kept(&table, &alice, quotas).await;
    assert_eq!(table.quotas(&customer(2)).await.unwrap(), None, "another customer");
    assert!(table.remove(&alice).await.unwrap());
    assert!(!table.remove(&alice).await.unwrap());
    assert_eq!(table.get(&alice).await.unwrap(), None);
}

async fn top_ups_are_kept(table: &Contracts, alice: &PartitionKey, quotas: CallerQuotas) {
    let end = now() + 3_600;
    let top_up = TopUp::new("order 12", "minute", 500, end).because("paid");
    let given = join_all((0..8).map(|_| table.top_up(alice, &top_up))).await;
    let given = given.into_iter().filter(|given| *given.as_ref().unwrap()).count();
    assert_eq!(given, 1, "once, whoever gives it");
    let second = TopUp::new("order 13", "minute", 1, end);
    assert!(table.top_up(alice, &second).await.unwrap());
    let until = Timestamp::from_micros(end * 1_000_000);
    let all = quotas.top_up("minute", 500, until).top_up("minute", 1, until);
    assert_eq!(table.quotas(alice).await.unwrap(), Some(all.clone()));
    let contract = table.get(alice).await.unwrap().unwrap();
    let again = Contract::new(contract.quotas().clone());
    table.set(alice, &again).await.unwrap();
    assert_eq!(table.quotas(alice).await.unwrap(), Some(all), "no more");
    let first = &contract.top_ups()[0];
    let terms = (first.id(), first.policy(), first.units(), first.until());
    assert_eq!(terms, ("order 12", "minute", 500, end));
    assert_eq!((first.author(), first.reason()), ("tests", "paid"));
}

#[tokio::test]
async fn contracts_and_top_ups_are_kept_by_one_server_and_by_a_cluster() {
    are_kept_and_read(RedisStore::builder(shared_server().url()), "kept").await;
    let urls = shared_cluster().urls();
    are_kept_and_read(RedisStore::cluster_builder(urls), "kept").await;
}

#[tokio::test]
async fn a_change_is_seen_by_all_instances_that_know_the_caller_and_by_no_other_look_up() {
    let table = contracts(RedisStore::builder(shared_server().url()), "changes");
    // The first change of all empties the caches once.
    table.remove(&customer(9)).await.unwrap();
    let instances = [Instance::start(&table), Instance::start(&table)];
    for instance in &instances {
        assert_eq!((instance.quota(1).await, instance.quota(2).await), (100, 100));
    }
    // The followers have their position, which empties the caches once.
    sleep(Duration::from_secs(2)).await;
    for instance in &instances {
        assert_eq!((instance.quota(1).await, instance.quota(2).await), (100, 100));
    }
    table.set(&customer(1), &Contract::new(minute(5_000))).await.unwrap();
    for instance in &instances {
        instance.wait_for_quota(1, 5_000).await;
        assert_eq!(instance.tiers.cache().users(), 2, "the other customer is not forgotten");
    }
    top_up(&table, &customer(1), "a", 70, 3_600).await.unwrap();
    top_up(&table, &customer(2), "a", 30, 3_600).await.unwrap();
    for instance in &instances {
        instance.wait_for_quota(1, 5_070).await;
        instance.wait_for_quota(2, 130).await;
    }
    table.remove(&customer(1)).await.unwrap();
    for instance in &instances {
        instance.wait_for_quota(1, 100).await;
    }
}

#[tokio::test]
async fn while_redis_is_away_callers_keep_their_quotas_and_new_ones_have_the_plans() {
    let server = RedisServer::start();
    let table = contracts(RedisStore::builder(server.url()), "away");
    table.set(&customer(1), &Contract::new(minute(5_000))).await.unwrap();
    let instance = Instance::start(&table);
    instance.settles(5_000).await;
    server.kill();
    sleep(Duration::from_secs(2)).await;
    assert_eq!((instance.quota(1).await, instance.quota(2).await), (5_000, 100));
}

/// Nothing but the follower uses the connections, and nothing tells it that they are dead. Until the server closes them,
/// a balancer that has forgotten connections does the same.
#[tokio::test]
async fn a_change_is_seen_although_all_connections_have_gone_silent() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let table = contracts(RedisStore::builder(server.url()), "silent");
    table.set(&customer(1), &Contract::new(minute(5_000))).await.unwrap();
    let instance = Instance::start(&contracts(RedisStore::builder(proxy.url()), "silent"));
    instance.settles(5_000).await;
    proxy.silence();
    table.set(&customer(1), &Contract::new(minute(6_000))).await.unwrap();
    // A poll and two silent connections take two seconds at most, and several polls of each took twenty.
    let seen = instance.wait_for_quota(1, 6_000);
    timeout(Duration::from_secs(10), seen)
        .await
        .expect("the connections are replaced");
}

/// A truncated or deleted stream does not contain the lost changes.
#[tokio::test]
async fn after_changes_were_lost_everything_is_read_again_and_a_change_that_is_none_stops_nothing() {
    let server = RedisServer::start();
    let table = contracts(RedisStore::builder(server.url()), "lost");
    let changes = "contracts:quota:lost:changes";
    let entry = format!("contracts:quota:lost:{}", digest(&customer(1)));
    let instance = Instance::start(&table);
    for lost in [&["DEL", &entry, changes][..], &["FLUSHALL"]] {
        table.set(&customer(1), &Contract::new(minute(5_000))).await.unwrap();
        instance.settles(5_000).await;
        server.command(lost);
        instance.wait_for_quota(1, 100).await;
    }
    // The follower skips an entry that another program has written.
    table.set(&customer(1), &Contract::new(minute(5_000))).await.unwrap();
    instance.settles(5_000).await;
    server.command_bytes(&[b"XADD", changes.as_bytes(), b"*", b"note", b"\xff"]);
    table.set(&customer(1), &Contract::new(minute(6_000))).await.unwrap();
    instance.wait_for_quota(1, 6_000).await;
}

#[tokio::test]
async fn entries_end_with_the_last_of_their_fields() {
    let table = contracts(RedisStore::builder(shared_server().url()), "ends");
    let alice = customer(1);
    let key = format!("contracts:quota:ends:{}", digest(&alice));
    let expires_in = || shared_server().command(&["TTL", &key]).parse::<i64>().unwrap();
    let end = |seconds| Timestamp::from_micros((now() + seconds) * 1_000_000);
    let limited = Contract::new(minute(1).until(end(1_000)));
    table.set(&alice, &limited).await.unwrap();
    assert!((900..=1_000).contains(&expires_in()));
    top_up(&table, &alice, "long", 1, 5_000).await.unwrap();
    assert!((4_900..=5_000).contains(&expires_in()));
    table.set(&alice, &Contract::new(minute(1))).await.unwrap();
    assert_eq!(expires_in(), -1, "it has no end");
    top_up(&table, &alice, "short", 1, 1).await.unwrap();
    sleep(Duration::from_millis(2_100)).await;
    let is_new = top_up(&table, &alice, "short", 1, 9).await.unwrap();
    assert!(is_new, "it had ended");
}

#[tokio::test]
async fn what_cannot_be_a_contract_is_rejected_and_what_cannot_be_read_is_an_error() {
    let table = contracts(RedisStore::builder(shared_server().url()), "wrong");
    let alice = customer(1);
    let past = TopUp::new("a", "minute", 1, 9);
    let error = table.top_up(&alice, &past).await.unwrap_err();
    assert_eq!(error.kind(), FleetErrorKind::Invalid);
    for (id, units, kind) in [
        ("", 1, FleetErrorKind::Invalid),
        ("a", 0, FleetErrorKind::Invalid),
        ("a\n", 1, FleetErrorKind::Malformed),
    ] {
        let error = top_up(&table, &alice, id, units, 3_600).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{id:?}");
    }
    for number in 0..100 {
        top_up(&table, &alice, number.to_string(), 1, 3_600).await.unwrap();
    }
    let error = top_up(&table, &alice, "one more", 1, 3_600).await.unwrap_err();
    assert_eq!(error.to_string(), "top-up: limit of 100 top-ups per caller reached");
    table.set(&alice, &Contract::new(minute(1))).await.unwrap();
    let error = Contracts::new(RedisStore::builder("redis://127.0.0.1/"), "{a}").unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with(r#"contracts "{a}": name must have"#), "{error}");

    let key = format!("contracts:quota:wrong:{}", digest(&alice));
    for (garbage, kind) in [
        (&["HSET", &key, "contract", "{"][..], FleetErrorKind::Malformed),
        (&["SET", &key, "no hash"], FleetErrorKind::Unavailable),
    ] {
        shared_server().command(garbage);
        assert_eq!(table.quotas(&alice).await.unwrap_err().kind(), kind);
    }
}

/// The stream was unavailable when the top-up was given.
#[tokio::test]
async fn a_top_up_that_is_given_again_is_announced_again() {
    let table = contracts(RedisStore::builder(shared_server().url()), "again");
    let (server, stream) = (shared_server(), "contracts:quota:again:changes");
    server.command(&["SET", stream, "no stream"]);
    let top_up = async || top_up(&table, &customer(1), "order 12", 500, 3_600).await;
    assert!(top_up().await.is_err());
    server.command(&["DEL", stream]);
    assert!(!top_up().await.unwrap());
    assert_eq!(server.command(&["XLEN", stream]), "1");
}
