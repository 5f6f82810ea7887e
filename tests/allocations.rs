//! The heap allocations for the fields of a response, and for the numbers for operators.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{alloc::System, convert::Infallible, future::ready, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response};
use http_body_util::Empty;
use metrics_exporter_prometheus::PrometheusBuilder;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use test_kit::RemoteStore;
use tower::{Service, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, LegacyReset, MemoryStore, Outcome, Plan, PolicySet, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder,
    ResponseFields, Scope, Store, ToPartitionKey, key,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Heap allocations of a request through a layer with these fields, after some others that were let pass or, with
/// nothing left, rejected. What grows and is moved for it counts, too.
fn allocations(fields: ResponseFields) -> [usize; 2] {
    [allocations_of(fields.clone(), 1), allocations_of(fields, 10_000)]
}

fn allocations_of(fields: ResponseFields, cost: u64) -> usize {
    let layer = builder(MemoryStore::new())
        .policy(QuotaPolicy::per_minute("minute", 100_000))
        .policy(QuotaPolicy::per_day("day", 1_000_000))
        .cost(cost)
        .response_fields(fields)
        // The map of fields is preallocated, here and below, because any other fields would need it, too.
        .respond_with(|rejection| {
            let mut response = rejection.to_response();
            response.headers_mut().reserve(16);
            response
        })
        .build()
        .unwrap();
    let with_places = |_: Request<String>| {
        let mut response = Response::new(Empty::<Bytes>::new());
        *response.headers_mut() = HeaderMap::with_capacity(16);
        ready(Ok::<_, Infallible>(response))
    };
    allocations_in(layer.layer(service_fn(with_places)))
}

fn builder(store: impl Store) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(store)
        .scope("allocations")
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_second("second", 10_000))
}

/// Heap allocations of a request of a user who has made some others.
fn allocations_in<S, B>(mut service: S) -> usize
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible>,
{
    let mut last = 0;
    // The first thousand are looked at for mistakes in how the limits are set up.
    for _ in 0..1_010 {
        let request = Request::builder()
            .header("x-user-id", "alice")
            .body(String::new())
            .unwrap();
        let region = Region::new(ALLOCATOR);
        let Some(Ok(response)) = service.call(request).now_or_never() else {
            panic!("nothing is waited for");
        };
        let change = region.change();
        last = change.allocations + change.reallocations;
        drop(response);
    }
    last
}

/// The same of a whole request as a program sees it: the response of the service below has no field yet.
fn allocations_of_all(layer: &RateLimitLayer) -> usize {
    let hello = |_: Request<String>| ready(Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())));
    allocations_in(layer.layer(service_fn(hello)))
}

/// Bytes of the heap for each partition of a store that is full, with three policies.
fn bytes_per_partition() -> usize {
    const CAP: usize = 50_000;

    let policies = [
        QuotaPolicy::per_second("second", 10),
        QuotaPolicy::per_minute("minute", 100),
        QuotaPolicy::per_day("day", 5_000),
    ];
    let (policies, scope) = (PolicySet::new(policies).unwrap(), Scope::new("allocations"));
    let region = Region::new(ALLOCATOR);
    let store = MemoryStore::builder().max_partitions(CAP).build().unwrap();
    for user in 0..2 * CAP as u64 {
        let plan = Plan::new(policies.clone(), scope.partition(&user.to_partition_key()), 1);
        assert!(store.decide(plan).now_or_never().unwrap().is_ok());
    }
    let change = region.change();
    (change.bytes_allocated - change.bytes_deallocated) / store.partitions()
}

/// Bytes allocated by a decision about two partitions, one of which has `requests` requests in its window and in
/// progress.
fn bytes_of_a_decision_about_two_partitions(requests: u64) -> usize {
    let store = MemoryStore::new();
    let user = PolicySet::new([QuotaPolicy::per_day("user", 100_000)]).unwrap();
    let all = PolicySet::new([
        QuotaPolicy::per_day("all", 10_000).with_algorithm(Algorithm::SlidingWindowLog),
        QuotaPolicy::concurrent("slots", 10_000),
    ])
    .unwrap();
    let id = |name: &str| Scope::new("allocations").partition(&name.to_partition_key());
    let acquire = || {
        let plan = Plan::new(user.clone(), id("alice"), 1).and(all.clone(), id("all"));
        store.decide(plan).now_or_never().unwrap().unwrap()
    };
    for _ in 0..requests {
        assert_eq!(acquire().outcome(), Outcome::Allowed);
    }
    let region = Region::new(ALLOCATOR);
    drop(acquire());
    region.change().bytes_allocated
}

/// One window, three, one with the decision in the response; then a rejection, by the store and from the rejection cache.
fn of_a_whole_request() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _context = runtime.enter();
    let three = |builder: RateLimitLayerBuilder| {
        let minute = builder.policy(QuotaPolicy::per_minute("minute", 100_000));
        minute.policy(QuotaPolicy::per_day("day", 1_000_000))
    };
    let one = builder(MemoryStore::new()).build().unwrap();
    let three_of = three(builder(MemoryStore::new())).build().unwrap();
    let told = builder(MemoryStore::new()).decision_in_response().build().unwrap();
    let dear = builder(MemoryStore::new()).cost_by(|_| 20_000).build().unwrap();
    let cached = builder(RemoteStore::<0>::default())
        .cost_by(|_| 20_000)
        .build()
        .unwrap();
    let counts = [&one, &three_of, &told, &dear, &cached].map(allocations_of_all);
    assert!(
        counts.iter().zip([3, 3, 8, 9, 8]).all(|(count, most)| *count <= most),
        "{counts:?}"
    );
}

fn of_partitions_and_decisions() {
    let bytes = bytes_per_partition();
    assert!((50..=81).contains(&bytes), "{bytes} bytes for each partition");

    let bytes = bytes_of_a_decision_about_two_partitions(8_500);
    assert!(bytes < 10_000, "{bytes} bytes for a decision");
}

/// One test, because allocations of others would be counted.
#[test]
fn fields_take_two_allocations_and_the_policies_and_the_numbers_for_operators_none() {
    of_partitions_and_decisions();
    of_a_whole_request();

    let without = allocations(ResponseFields::none());
    let policies = ResponseFields::without_limits;
    let decided = allocations(policies(ResponseFields::draft11()));
    // A charge in memory makes its decision, with its plan, only for fields that need it.
    assert_eq!(decided, [without[0] + 2, without[1] + 1]);
    assert_eq!(allocations(policies(ResponseFields::in_between())), decided);
    assert_eq!(allocations(policies(ResponseFields::draft06())), decided);
    for fields in [ResponseFields::draft11(), ResponseFields::in_between()] {
        assert_eq!(allocations(fields), [without[0] + 1, without[1] + 1]);
    }
    let cost = |fields| {
        let [passed, rejected] = allocations(fields);
        [passed - decided[0], rejected - decided[1]]
    };
    for (name, fields) in [
        ("draft-06", ResponseFields::draft06()),
        (
            "legacy",
            ResponseFields::legacy(LegacyReset::DeltaSeconds).without_policies(),
        ),
        ("closest", ResponseFields::draft11().tightest_only()),
        (
            "draft-11 and the limit of draft-06",
            ResponseFields::draft11().with_draft06_limit(),
        ),
        (
            "draft-11 with all that changes numbers",
            ResponseFields::draft11()
                .within_rate()
                .with_jitter(Duration::from_secs(9))
                .map_remaining(|allowance| allowance.remaining() / 2),
        ),
    ] {
        let cost = cost(fields);
        // The only extension of such a response is the marker that specifies the meaning of its reset.
        let mark = if name == "legacy" { 2 } else { 0 };
        assert!(
            (1..=2 + mark).contains(&cost[0]) && (1..=2).contains(&cost[1]),
            "{name}: {cost:?}"
        );
    }
    let recorder = PrometheusBuilder::new().build_recorder();
    let counted = metrics::with_local_recorder(&recorder, || allocations(ResponseFields::none()));
    assert_eq!(counted, without);
}
