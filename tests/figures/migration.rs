//! Slots of a Cluster that move while their callers send requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use test_kit::{RedisCluster, RedisServer};
use tokio::{
    runtime::Runtime,
    task::block_in_place,
    time::{sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{Decision, Limiter, Outcome, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore, key};

use super::table::{Table, percent};

/// For how long each slot is half moved: its keys are at one node, and what is new at the other.
const HALF_MOVED: Duration = Duration::from_millis(1_500);
const SLOTS: usize = 3;

pub fn measure(runtime: &Runtime, table: &mut Table) {
    let wanted = "≤ 1 % uncounted";
    table.run(
        runtime,
        "three slots of a Cluster half moved for 1.5 s each",
        wanted,
        async {
            let cluster = block_in_place(|| RedisCluster::start(3, 0));
            let layer = layer(&cluster);
            let users: Vec<String> = (0..SLOTS).map(|user| format!("user-{user}")).collect();
            let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let is_over = Arc::new(AtomicBool::new(false));
            for user in &users {
                until_decided(&layer, user).await;
            }
            let senders: Vec<_> = (0..30)
                .map(|sender| {
                    send_on(
                        layer.clone(),
                        users[sender % SLOTS].clone(),
                        Arc::clone(&counts),
                        Arc::clone(&is_over),
                    )
                })
                .map(tokio::spawn)
                .collect();
            for user in &users {
                move_slot_of(&cluster, user).await;
            }
            is_over.store(true, Ordering::Relaxed);
            for sender in senders {
                sender.await.unwrap();
            }
            let [decided, uncounted] = [0, 1].map(|index| counts[index].load(Ordering::Relaxed));
            let share = percent(uncounted, decided + uncounted);
            block_in_place(|| drop(cluster));
            (
                format!("{uncounted} of {} uncounted, {share:.2} %", decided + uncounted),
                share <= 1.0,
            )
        },
    );
}

fn layer(cluster: &RedisCluster) -> RateLimitLayer {
    RateLimitLayerBuilder::from(Limiter::builder(RedisStore::cluster(cluster.urls()).unwrap()).readable_keys())
        .scope("moving")
        .key(key::header("x-user-id"))
        // A key that has all its units back is gone.
        .policy(QuotaPolicy::per_day("day", 1_000_000))
        .build()
        .unwrap()
}

async fn outcome(layer: &RateLimitLayer, user: &str) -> Outcome {
    let inner = service_fn(async |_: Request<String>| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    let request = Request::builder()
        .header("x-user-id", user)
        .body(String::new())
        .unwrap();
    let response = layer.layer(inner).oneshot(request).await.unwrap();
    response.extensions().get().map_or(Outcome::Allowed, Decision::outcome)
}

async fn until_decided(layer: &RateLimitLayer, user: &str) {
    let waiting = async {
        while outcome(layer, user).await == Outcome::FailedOpen {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), waiting)
        .await
        .expect("the cluster decides");
}

async fn send_on(layer: RateLimitLayer, user: String, counts: Arc<[AtomicU64; 2]>, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::Relaxed) {
        let is_uncounted = outcome(&layer, &user).await == Outcome::FailedOpen;
        counts[usize::from(is_uncounted)].fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(5)).await;
    }
}

/// The user's keys go at once, and the slot a while later.
async fn move_slot_of(cluster: &RedisCluster, user: &str) {
    let keys = |server: &RedisServer| server.command(&["KEYS", "quota:*"]);
    let all: Vec<String> = block_in_place(|| cluster.nodes.iter().map(keys).collect());
    let mut keys = all.iter().flat_map(|keys| keys.lines());
    let key = keys.find(|key| key.contains(user)).expect("the user has a key");
    let slot = cluster.slot(key);
    let (from, to) = (cluster.owner(slot), (cluster.owner(slot) + 1) % 3);
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let (slot, ids) = (slot.to_string(), [cluster.id(from), cluster.id(to)]);
    let set = |server: &RedisServer, what: &str, id: &str| {
        assert_eq!(server.command(&["CLUSTER", "SETSLOT", &slot, what, id]), "OK");
    };
    block_in_place(|| {
        set(target, "IMPORTING", &ids[0]);
        set(source, "MIGRATING", &ids[1]);
        for key in source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).lines() {
            let port = target.port().to_string();
            source.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
    });
    sleep(HALF_MOVED).await;
    block_in_place(|| [target, source].map(|node| set(node, "NODE", &ids[1])));
}
