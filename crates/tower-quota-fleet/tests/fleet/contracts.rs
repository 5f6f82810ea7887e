//! Contracts in Redis: what instances apply, and when.

#![allow(clippy::disallowed_methods, reason = "a server does not follow virtual time")]

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::{Request, Response};
use test_kit::{Proxy, RedisServer, shared_cluster, shared_server};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    CallerQuotas, Decision, Limiter, MemoryStore, PartitionId, PartitionKey, QuotaPolicy, RateLimitLayer, RedisStore,
    RedisStoreBuilder, ResolvedTier, Scope, Tiers, ToPartitionKey,
    clock::{Clock, Timestamp},
    key,
    redis::{cmd, from_redis_value},
    tier::{TierCache, TierLayer},
};
use tower_quota_fleet::{Contract, Contracts, FleetErrorKind, TopUp};

const HANG: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Customer(u64);

impl ToPartitionKey for Customer {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("customer", self.0.to_string())
    }
}

fn now() -> u64 {
    Clock::system().now().as_micros() / 1_000_000
}

fn digest(customer: &Customer) -> PartitionId {
    Scope::new("tiers").partition(&customer.to_partition_key())
}

fn minute(quota: u64) -> CallerQuotas {
    CallerQuotas::new().quota("minute", quota)
}

fn contracts(servers: RedisStoreBuilder, name: &str) -> Contracts {
    Contracts::new(servers, name).unwrap().with_author("tests")
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
        let tiers = TierLayer::by_extension(move |customer: Customer| {
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
    async fn quota(&self, customer: u64) -> u64 {
        let layer = RateLimitLayer::with_limiter(self.limiter.clone())
            .key(key::extension::<Customer>())
            .tiers(Tiers::resolved())
            .decision_in_response();
        let layer = layer.build().unwrap();
        let handler = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
        let service = self.tiers.layer(layer.layer(handler));
        let request = Request::builder()
            .extension(Customer(customer))
            .body(String::new())
            .unwrap();
        let response = service.oneshot(request).await.unwrap();
        let decision = response.extensions().get::<Decision>().unwrap();
        decision.allowances().next().unwrap().policy().quota()
    }

    async fn wait_for_quota(&self, customer: u64, quota: u64) {
        let wait = async {
            while self.quota(customer).await != quota {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = timeout(HANG, wait).await;
        assert!(waited.is_ok(), "customer {customer} still has no quota of {quota}");
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

async fn are_kept_and_read(servers: RedisStoreBuilder, name: &str) {
    let table = contracts(servers, name);
    let alice = Customer(1);
    assert_eq!(table.get(&alice).await.unwrap(), None);
    let quotas = minute(5_000).burst_capacity("minute", 50).month_begins(15);
    table
        .set(&alice, &Contract::new(quotas.clone()).because("offer 7"))
        .await
        .unwrap();
    let contract = table.get(&alice).await.unwrap().unwrap();
    assert_eq!((contract.author(), contract.reason()), ("tests", "offer 7"));
    assert_eq!((contract.quotas(), contract.top_ups()), (&quotas, &[][..]));
    assert!(contract.time().abs_diff(now()) < 100);

    top_ups_are_kept(&table, &alice, quotas).await;
    assert_eq!(table.quotas(&Customer(2)).await.unwrap(), None, "another customer");
    assert!(table.remove(&alice).await.unwrap());
    assert!(!table.remove(&alice).await.unwrap());
    assert_eq!(table.get(&alice).await.unwrap(), None);
}

async fn top_ups_are_kept(table: &Contracts, alice: &Customer, quotas: CallerQuotas) {
    let end = now() + 3_600;
    let top_up = TopUp::new("order 12", "minute", 500, end).because("paid");
    let given = join_all((0..8).map(|_| table.top_up(alice, &top_up))).await;
    let given = given.into_iter().filter(|given| *given.as_ref().unwrap()).count();
    assert_eq!(given, 1, "once, whoever gives it");
    assert!(
        table
            .top_up(alice, &TopUp::new("order 13", "minute", 1, end))
            .await
            .unwrap()
    );
    let until = Timestamp::from_micros(end * 1_000_000);
    let all = quotas.top_up("minute", 500, until).top_up("minute", 1, until);
    assert_eq!(table.quotas(alice).await.unwrap(), Some(all.clone()));
    let contract = table.get(alice).await.unwrap().unwrap();
    table
        .set(alice, &Contract::new(contract.quotas().clone()))
        .await
        .unwrap();
    assert_eq!(
        table.quotas(alice).await.unwrap(),
        Some(all),
        "a contract that is written again has no more"
    );
    let first = &contract.top_ups()[0];
    let seen = (
        first.id(),
        first.policy(),
        first.units(),
        first.until(),
        first.author(),
        first.reason(),
    );
    assert_eq!(seen, ("order 12", "minute", 500, end, "tests", "paid"));
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
    table.remove(&Customer(9)).await.unwrap();
    let instances = [Instance::start(&table), Instance::start(&table)];
    for instance in &instances {
        assert_eq!((instance.quota(1).await, instance.quota(2).await), (100, 100));
    }
    // The followers have their position, which empties the caches once.
    sleep(Duration::from_secs(2)).await;
    for instance in &instances {
        assert_eq!((instance.quota(1).await, instance.quota(2).await), (100, 100));
    }
    table.set(&Customer(1), &Contract::new(minute(5_000))).await.unwrap();
    for instance in &instances {
        instance.wait_for_quota(1, 5_000).await;
        assert_eq!(instance.tiers.cache().users(), 2, "the other customer is not forgotten");
    }
    let end = now() + 3_600;
    table
        .top_up(&Customer(1), &TopUp::new("a", "minute", 70, end))
        .await
        .unwrap();
    table
        .top_up(&Customer(2), &TopUp::new("a", "minute", 30, end))
        .await
        .unwrap();
    for instance in &instances {
        instance.wait_for_quota(1, 5_070).await;
        instance.wait_for_quota(2, 130).await;
    }
    table.remove(&Customer(1)).await.unwrap();
    for instance in &instances {
        instance.wait_for_quota(1, 100).await;
    }
}

#[tokio::test]
async fn while_redis_is_away_callers_keep_their_quotas_and_new_ones_have_the_plans() {
    let server = RedisServer::start();
    let table = contracts(RedisStore::builder(server.url()), "away");
    table.set(&Customer(1), &Contract::new(minute(5_000))).await.unwrap();
    let instance = Instance::start(&table);
    instance.wait_for_quota(1, 5_000).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(instance.quota(1).await, 5_000);
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
    table.set(&Customer(1), &Contract::new(minute(5_000))).await.unwrap();
    let instance = Instance::start(&contracts(RedisStore::builder(proxy.url()), "silent"));
    instance.wait_for_quota(1, 5_000).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(instance.quota(1).await, 5_000);
    proxy.silence();
    table.set(&Customer(1), &Contract::new(minute(6_000))).await.unwrap();
    // A poll and two silent connections take two seconds at most, and several polls of each took twenty.
    let seen = instance.wait_for_quota(1, 6_000);
    timeout(Duration::from_secs(10), seen)
        .await
        .expect("the connections are replaced");
}

/// A truncated or deleted stream does not contain the lost changes.
#[tokio::test]
async fn after_changes_were_lost_everything_is_read_again() {
    let server = RedisServer::start();
    let table = contracts(RedisStore::builder(server.url()), "lost");
    let store = RedisStore::new(server.url()).unwrap();
    let send = async |words: &[&str]| {
        let mut command = cmd(words[0]);
        command.arg(&words[1..]);
        store.command("any", command).await.unwrap();
    };
    let entry = format!("contracts:quota:lost:{}", digest(&Customer(1)));
    let instance = Instance::start(&table);
    for lost in [&["DEL", &entry, "contracts:quota:lost:changes"][..], &["FLUSHALL"]] {
        table.set(&Customer(1), &Contract::new(minute(5_000))).await.unwrap();
        instance.wait_for_quota(1, 5_000).await;
        sleep(Duration::from_secs(2)).await;
        assert_eq!(instance.quota(1).await, 5_000);
        send(lost).await;
        instance.wait_for_quota(1, 100).await;
    }
}

#[tokio::test]
async fn entries_end_with_the_last_of_their_fields() {
    let table = contracts(RedisStore::builder(shared_server().url()), "ends");
    let (alice, store) = (Customer(1), RedisStore::new(shared_server().url()).unwrap());
    let key = format!("contracts:quota:ends:{}", digest(&alice));
    let expires_at = async || -> i64 {
        let mut ask = cmd("TTL");
        ask.arg(&key);
        let left: i64 = from_redis_value(store.command(&key, ask).await.unwrap()).unwrap();
        left
    };
    let end = |seconds| Timestamp::from_micros((now() + seconds) * 1_000_000);
    table
        .set(&alice, &Contract::new(minute(1).until(end(1_000))))
        .await
        .unwrap();
    assert!((900..=1_000).contains(&expires_at().await));
    table
        .top_up(&alice, &TopUp::new("long", "minute", 1, now() + 5_000))
        .await
        .unwrap();
    assert!((4_900..=5_000).contains(&expires_at().await));
    table.set(&alice, &Contract::new(minute(1))).await.unwrap();
    assert_eq!(expires_at().await, -1, "it has no end");
    table
        .top_up(&alice, &TopUp::new("short", "minute", 1, now() + 1))
        .await
        .unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2_100) {
        sleep(Duration::from_millis(100)).await;
    }
    assert!(
        table
            .top_up(&alice, &TopUp::new("short", "minute", 1, now() + 9))
            .await
            .unwrap(),
        "it had ended"
    );
}

#[tokio::test]
async fn what_cannot_be_a_contract_is_rejected_and_what_cannot_be_read_is_an_error() {
    let table = contracts(RedisStore::builder(shared_server().url()), "wrong");
    let alice = Customer(1);
    let end = now() + 3_600;
    let kind = async |top_up: TopUp| table.top_up(&alice, &top_up).await.unwrap_err().kind();
    assert_eq!(kind(TopUp::new("", "minute", 1, end)).await, FleetErrorKind::Invalid);
    assert_eq!(kind(TopUp::new("a", "minute", 0, end)).await, FleetErrorKind::Invalid);
    assert_eq!(kind(TopUp::new("a", "minute", 1, 9)).await, FleetErrorKind::Invalid);
    assert_eq!(
        kind(TopUp::new("a\n", "minute", 1, end)).await,
        FleetErrorKind::Malformed
    );
    for number in 0..100 {
        table
            .top_up(&alice, &TopUp::new(number.to_string(), "minute", 1, end))
            .await
            .unwrap();
    }
    let error = table
        .top_up(&alice, &TopUp::new("one more", "minute", 1, end))
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "top-up: limit of 100 top-ups per caller reached");
    table.set(&alice, &Contract::new(minute(1))).await.unwrap();
    let error = Contracts::new(RedisStore::builder("redis://127.0.0.1/"), "{a}").unwrap_err();
    assert!(
        error.to_string().starts_with(r#"contracts "{a}": name must have"#),
        "{error}"
    );

    let key = format!("contracts:quota:wrong:{}", digest(&alice));
    let store = Arc::new(RedisStore::new(shared_server().url()).unwrap());
    let mut garbage = cmd("HSET");
    garbage.arg(&key).arg("contract").arg("{");
    store.command(&key, garbage).await.unwrap();
    assert_eq!(
        table.quotas(&alice).await.unwrap_err().kind(),
        FleetErrorKind::Malformed
    );
    let mut garbage = cmd("SET");
    garbage.arg(&key).arg("no hash");
    store.command(&key, garbage).await.unwrap();
    assert_eq!(
        table.quotas(&alice).await.unwrap_err().kind(),
        FleetErrorKind::Unavailable
    );
}

/// The stream was unavailable when the top-up was given.
#[tokio::test]
async fn a_top_up_that_is_given_again_is_announced_again() {
    let table = contracts(RedisStore::builder(shared_server().url()), "again");
    let store = RedisStore::new(shared_server().url()).unwrap();
    let stream = "contracts:quota:again:changes";
    let send = async |words: &[&str]| {
        let mut command = cmd(words[0]);
        command.arg(&words[1..]);
        store.command(stream, command).await.unwrap()
    };
    send(&["SET", stream, "no stream"]).await;
    let top_up = TopUp::new("order 12", "minute", 500, now() + 3_600);
    assert!(table.top_up(&Customer(1), &top_up).await.is_err());
    send(&["DEL", stream]).await;
    assert!(!table.top_up(&Customer(1), &top_up).await.unwrap());
    let announced: i64 = from_redis_value(send(&["XLEN", stream]).await).unwrap();
    assert_eq!(announced, 1);
}

#[tokio::test]
async fn a_change_that_another_program_has_written_stops_nothing() {
    let server = RedisServer::start();
    let table = contracts(RedisStore::builder(server.url()), "garbage");
    let instance = Instance::start(&table);
    table.set(&Customer(1), &Contract::new(minute(5_000))).await.unwrap();
    instance.wait_for_quota(1, 5_000).await;
    sleep(Duration::from_secs(2)).await;
    let store = RedisStore::new(server.url()).unwrap();
    let mut garbage = cmd("XADD");
    garbage
        .arg("contracts:quota:garbage:changes")
        .arg("*")
        .arg("note")
        .arg(&b"\xff"[..]);
    store.command("any", garbage).await.unwrap();
    table.set(&Customer(1), &Contract::new(minute(6_000))).await.unwrap();
    instance.wait_for_quota(1, 6_000).await;
}
