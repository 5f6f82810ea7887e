//! The kill switch and the access list that apply without rules: their order of precedence, their ends, and a Redis that has lost
//! its data.

use std::{net::IpAddr, time::Duration};

use metrics::set_default_local_recorder;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use proptest::{collection::vec, prelude::*};
use serde_json::json;
use test_kit::{RedisServer, shared_cluster, shared_server};
use tower_quota::{
    Access, AccessList, RateLimitLayer, RedisStore, RedisStoreBuilder,
    clock::{Clock, Timestamp},
    key,
};
use tower_quota_fleet::{
    AccessEntry, Control, FleetErrorKind, Lost, Publication, RedisRules, RulesDocument, RulesFollower, RulesPublisher,
    RulesSource, RulesVersion, SwitchOrder,
};

use crate::source::{Source, builder, hour, layer, pass, poll, quota, reported, version};

/// Seconds since the Unix epoch.
const START: u64 = 1_800_000_000;

/// An instance with a separate clock.
struct Instance {
    layer: RateLimitLayer,
    access: AccessList,
    clock: Clock,
    follower: RulesFollower,
}

impl Instance {
    fn follow(source: impl RulesSource) -> Self {
        Self::with_layer(layer(), source)
    }

    fn with_layer(layer: RateLimitLayer, source: impl RulesSource) -> Self {
        let access = AccessList::new(key::client_ip());
        let clock = Clock::manual(Timestamp::from_micros(START * 1_000_000));
        let follower = RulesFollower::builder(layer.limiter().rules(), source)
            .access_list(access.clone())
            .clock(clock.clone())
            .start()
            .unwrap();
        Self {
            layer,
            access,
            clock,
            follower,
        }
    }

    fn is_on(&self) -> bool {
        self.layer.limiter().rules().is_enabled()
    }

    fn access(&self, address: &str) -> Access {
        let address: IpAddr = address.parse().unwrap();
        self.access.overlay_rules().access(Some(address), None)
    }

    fn lost(&self) -> Vec<(&'static str, u64, Option<u64>)> {
        let lost = self.follower.status();
        let parts = |lost: &Lost| (lost.what(), lost.had(), lost.found());
        lost.lost().iter().map(parts).collect()
    }

    async fn wait(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        poll().await;
    }
}

fn off(number: u64) -> SwitchOrder {
    SwitchOrder::new(number, true)
}

fn block(network: &str) -> AccessEntry {
    AccessEntry::network(network, Access::Block)
}

#[tokio::test(start_paused = true)]
async fn the_switch_and_the_list_take_effect_without_rules() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.order(off(5).with_end(START + 600));
    source.list(6, &[block("203.0.113.9")]);
    poll().await;
    assert!(!instance.is_on());
    assert_eq!(instance.access("203.0.113.9"), Access::Block);
    let status = instance.follower.status();
    assert_eq!(
        (status.version(), status.switch().map(SwitchOrder::number)),
        (None, Some(5))
    );
    assert_eq!(source.state().reports.last().unwrap().controls(), Some((5, 6)));
    // An older order, as a replica that lags has it, changes nothing.
    source.order(SwitchOrder::new(4, false));
    source.list(5, &[]);
    poll().await;
    assert!(!instance.is_on());
    assert_eq!(instance.access("203.0.113.9"), Access::Block);
    source.order(SwitchOrder::new(7, false));
    source.list(8, &[]);
    poll().await;
    assert!(instance.is_on());
    assert_eq!(instance.access("203.0.113.9"), Access::Limit);
}

#[tokio::test(start_paused = true)]
async fn an_order_that_redis_has_lost_ends_by_the_clock_of_the_instance() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.publish(&version(3));
    source.order(off(5).with_end(START + 600));
    source.list(
        5,
        &[block("203.0.113.9").with_expiry(START + 900), block("203.0.113.10")],
    );
    poll().await;
    assert!(instance.lost().is_empty());
    source.lose_everything();
    poll().await;
    let expected = [("rules", 3, None), ("switch", 5, None), ("access", 5, None)];
    assert_eq!(instance.lost(), expected);
    assert!(source.state().reports.last().unwrap().has_lost());
    instance.wait(599).await;
    assert!(!instance.is_on());
    assert_eq!(instance.access("203.0.113.9"), Access::Block);
    instance.wait(1).await;
    assert!(instance.is_on());
    instance.wait(300).await;
    assert_eq!(instance.access("203.0.113.9"), Access::Limit);
    assert_eq!(
        (instance.access("203.0.113.10"), quota(&instance.layer)),
        (Access::Block, 3)
    );
    // The operator publishes the document of the instance, and the next number ends the alarm.
    assert_eq!(instance.follower.document().unwrap().version(), 3);
    source.publish(&version(4));
    source.order(SwitchOrder::new(6, false));
    source.list(6, &[]);
    poll().await;
    assert_eq!((instance.lost(), quota(&instance.layer)), (vec![], 4));
}

#[tokio::test(start_paused = true)]
async fn orders_and_entries_that_have_ended_are_no_loss() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.order(off(5).with_end(START + 60));
    source.list(5, &[block("203.0.113.9").with_expiry(START + 60)]);
    poll().await;
    source.lose_everything();
    poll().await;
    assert_eq!(instance.lost().len(), 2);
    instance.wait(60).await;
    assert_eq!(instance.lost(), []);
}

#[tokio::test(start_paused = true)]
async fn a_number_far_ahead_of_the_time_is_no_order() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.order(off(RulesVersion::MAX_NUMBER));
    source.list(RulesVersion::MAX_NUMBER, &[block("203.0.113.9")]);
    poll().await;
    assert_eq!(instance.access("203.0.113.9"), Access::Limit);
    let failure = instance.follower.status().controls_failure().map(str::to_owned);
    assert!(instance.is_on() && failure.unwrap().contains("is more than a year in the future"));
    source.order(off(START * 1_000));
    source.list(START * 1_000, &[block("203.0.113.9")]);
    poll().await;
    assert_eq!(instance.access("203.0.113.9"), Access::Block);
    assert!(!instance.is_on() && instance.follower.status().controls_failure().is_none());
}

/// The last switch that was read applies, even if the rest of its document is invalid.
#[tokio::test(start_paused = true)]
async fn a_document_with_an_invalid_access_list_turns_the_switch_for_good() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.publish(
        &version(3)
            .switched_off(true)
            .with_access([block("203.0.113.9").with_expiry(START + 60)]),
    );
    poll().await;
    assert!(!instance.is_on());
    source.publish(&version(4).with_access([block("everywhere")]));
    poll().await;
    assert!(instance.is_on());
    assert_eq!(instance.access("203.0.113.9"), Access::Block, "the last valid list");
    instance.wait(60).await;
    assert!(instance.is_on(), "the end of a block turns no switch");
}

#[tokio::test(start_paused = true)]
async fn limits_are_on_again_when_the_last_follower_ends() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.publish(&version(3));
    source.order(off(5));
    poll().await;
    let Instance { layer, follower, .. } = instance;
    assert!(!layer.limiter().rules().is_enabled());
    drop(follower);
    poll().await;
    assert!(layer.limiter().rules().is_enabled());
    assert_eq!(quota(&layer), 3, "the rules stay");
}

#[tokio::test(start_paused = true)]
async fn the_switch_reaches_an_instance_that_cannot_read_the_document() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.publish_bytes(9, r#"{"format": 2, "version": 9}"#);
    source.order(off(5).with_end(START + 600));
    poll().await;
    assert!(instance.follower.status().rejected().is_some());
    assert!(!instance.is_on());
}

#[tokio::test(start_paused = true)]
async fn an_order_ends_by_itself_and_the_process_takes_precedence_over_it() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.publish(&version(3));
    source.order(off(5));
    poll().await;
    assert!(!instance.is_on());
    // A new document does not change that.
    source.publish(&version(4));
    poll().await;
    assert!(!instance.is_on());
    source.order(SwitchOrder::new(6, false));
    poll().await;
    assert!(instance.is_on(), "the order switches the limits on");
    instance.layer.limiter().rules().disable();
    poll().await;
    assert!(!instance.is_on() && instance.follower.status().is_off());
    // One task reads the switch, and another task reports it with its next poll.
    poll().await;
    assert!(source.state().reports.last().unwrap().is_off());
    instance.layer.limiter().rules().clear_overrides();
    source.order(off(7).with_end(START + 60));
    poll().await;
    assert!(!instance.is_on());
    instance.wait(60).await;
    assert!(instance.is_on());
}

#[tokio::test(start_paused = true)]
async fn controls_that_a_source_gets_replace_the_switch_and_the_list_of_its_documents() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    let document = version(3).with_access([block("203.0.113.9")]);
    source.publish(&document.switched_off(true));
    poll().await;
    assert!(!instance.is_on() && instance.access("203.0.113.9") == Access::Block);
    source.list(7, &[block("192.0.2.1")]);
    poll().await;
    assert!(instance.is_on() && instance.access("203.0.113.9") == Access::Limit);
    assert_eq!(instance.access("192.0.2.1"), Access::Block);
}

/// Otherwise there would be two switches and two lists, and an operator would have to clear both.
#[tokio::test(start_paused = true)]
async fn a_document_with_a_switch_or_a_list_is_rejected_if_its_source_has_controls() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.publish(&version(3));
    source.list(7, &[block("192.0.2.1")]);
    poll().await;
    let documents = [
        version(4).switched_off(true),
        version(5).with_access([block("203.0.113.9")]),
        version(6).blocking_unknown_addresses(true),
    ];
    for document in documents {
        source.publish(&document);
        poll().await;
        let status = instance.follower.status();
        let (rejected, error) = status.rejected().unwrap();
        assert_eq!(
            (rejected.number(), error.kind()),
            (document.version(), FleetErrorKind::Invalid)
        );
        assert!(instance.is_on() && instance.access("203.0.113.9") == Access::Limit);
        assert_eq!(
            (instance.access("192.0.2.1"), quota(&instance.layer)),
            (Access::Block, 3)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_restored_backup_no_blocked_address_is_served_until_a_higher_number() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.publish(&version(40));
    source.list(7, &[block("192.0.2.1")]);
    poll().await;
    source.publish(&version(42));
    source.order(SwitchOrder::new(8, false));
    source.list(9, &[block("192.0.2.1"), block("192.0.2.2")]);
    poll().await;
    // The backup is older than all of that.
    source.publish(&version(40));
    source.order(off(6));
    source.list(7, &[block("192.0.2.1")]);
    poll().await;
    let expected = [("rules", 42, Some(40)), ("switch", 8, Some(6)), ("access", 9, Some(7))];
    assert_eq!(instance.lost(), expected);
    assert_eq!(quota(&instance.layer), 40, "the rules are those that Redis has");
    assert!(instance.is_on(), "the newest order");
    for address in ["192.0.2.1", "192.0.2.2"] {
        assert_eq!(instance.access(address), Access::Block, "{address}");
    }
    assert_eq!(source.state().reports.last().unwrap().newest(), 42);
    // That is what an operator wants to publish again.
    assert_eq!(instance.follower.document().unwrap().version(), 42);
    let controls = instance.follower.controls();
    assert_eq!((controls.access().len(), controls.access_number()), (2, 9));
    // The number 41 is not higher than what was seen.
    source.publish(&version(41));
    source.list(8, &[]);
    poll().await;
    assert_eq!(
        (instance.access("192.0.2.2"), quota(&instance.layer)),
        (Access::Block, 41)
    );
    source.publish(&version(43));
    source.list(10, &[]);
    poll().await;
    assert_eq!(
        (instance.access("192.0.2.2"), quota(&instance.layer)),
        (Access::Limit, 43)
    );
}

/// A file has no orders, and its number may decrease: a deployment put an older one back.
#[tokio::test(start_paused = true)]
async fn a_source_without_orders_may_go_back_to_a_lower_number() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.publish(&version(9).with_access([block("203.0.113.1")]).switched_off(true));
    poll().await;
    source.publish(&version(2));
    poll().await;
    assert!(instance.is_on() && instance.lost().is_empty());
    assert_eq!(
        (instance.access("203.0.113.1"), quota(&instance.layer)),
        (Access::Limit, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_leaves_the_last_orders_in_force_and_rules_still_come() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    source.order(off(5).with_end(START + 600));
    source.list(5, &[block("203.0.113.9")]);
    poll().await;
    source.publish(&version(3));
    source.state().controls.as_mut().unwrap().failure = Some("NOPERM");
    poll().await;
    let status = instance.follower.status();
    assert_eq!((status.controls_failure(), quota(&instance.layer)), (Some("NOPERM"), 3));
    assert_eq!(source.state().reports.last().unwrap().controls(), None);
    assert!(!instance.is_on());
    source.state().controls.as_mut().unwrap().failure = None;
    for json in [
        "garbage",
        r#"[{"network": "everywhere", "access": "block"}]"#,
        &"x".repeat(2_000_000),
    ] {
        let head = RulesVersion::of(6, json.as_bytes());
        source.state().controls.as_mut().unwrap().access = Some((head, json.into()));
        // Once, it may have been replaced between two reads.
        poll().await;
        poll().await;
        let failure = instance.follower.status().controls_failure().map(str::to_owned);
        assert!(failure.unwrap().starts_with("access list: "));
        assert_eq!(instance.access("203.0.113.9"), Access::Block);
    }
    // The digest of another list.
    source.state().controls.as_mut().unwrap().access = Some((RulesVersion::of(7, b"x"), b"[]".to_vec()));
    poll().await;
    assert_eq!(instance.access("203.0.113.9"), Access::Block);
    source.order(SwitchOrder::new(8, false));
    poll().await;
    assert!(instance.is_on(), "a list that cannot be read keeps no order away");
}

fn assert_shows(page: &PrometheusHandle, expected: &[&str]) {
    let page = page.render();
    for line in expected {
        let line = format!("tower_quota_{line}");
        assert!(page.lines().any(|shown| shown == line), "{line} is not in {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_gauge_shows_whether_an_instance_applies_its_limits_and_when_it_will_again() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recorder = set_default_local_recorder(&recorder);
    let source = Source::default();
    // A separate scope, because the gauge counts all layers of a scope in this process.
    let layer = builder().scope("gauge").build().unwrap();
    let instance = Instance::with_layer(layer, source.clone());
    // Each series exists from the start.
    let (is_on, is_off) = (r#"limits_off{scope="gauge"} 0"#, r#"limits_off{scope="gauge"} 1"#);
    assert_shows(&page, &[is_on, r#"rules_switch_ends_seconds{rules="test"} 0"#]);
    source.order(off(5).with_end(START + 600));
    poll().await;
    assert_shows(
        &page,
        &[is_off, r#"rules_switch_ends_seconds{rules="test"} 1800000600"#],
    );
    source.order(off(6));
    poll().await;
    assert_shows(&page, &[is_off, r#"rules_switch_ends_seconds{rules="test"} inf"#]);
    instance.layer.limiter().rules().enable();
    assert_shows(&page, &[is_on]);
    instance.layer.limiter().rules().clear_overrides();
    assert_shows(&page, &[is_off]);
    drop(instance);
    // The tasks of a follower end a moment later.
    poll().await;
    assert_shows(&page, &[is_on, r#"rules_switch_ends_seconds{rules="test"} 0"#]);
}

#[tokio::test(start_paused = true)]
async fn a_gauge_shows_what_the_source_lost_and_whether_the_switch_is_read() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recorder = set_default_local_recorder(&recorder);
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    let lost = |what: &str, value| format!(r#"rules_lost{{rules="test",what="{what}"}} {value}"#);
    let all = |values: [u8; 3]| {
        let lines = ["access", "rules", "switch"].into_iter().zip(values);
        lines.map(|(what, value)| lost(what, value)).collect::<Vec<_>>()
    };
    let assert_lost = |values| assert_shows(&page, &all(values).iter().map(String::as_str).collect::<Vec<_>>());
    assert_lost([0, 0, 0]);
    assert_shows(&page, &[r#"rules_controls_unread{rules="test"} 0"#]);
    source.publish(&version(3));
    source.order(off(5));
    poll().await;
    source.lose_everything();
    poll().await;
    assert_lost([0, 1, 1]);
    source.state().controls.as_mut().unwrap().failure = Some("NOPERM");
    poll().await;
    assert_shows(&page, &[r#"rules_controls_unread{rules="test"} 1"#]);
    drop(instance);
    poll().await;
    assert_lost([0, 0, 0]);
    assert_shows(&page, &[r#"rules_controls_unread{rules="test"} 0"#]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Order { rises: bool, off: bool, lasts: Option<u64> },
    Document { rises: bool, off: bool },
    Own(Option<bool>),
    Lose,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let lasts = prop_oneof![Just(None), (1..100_u64).prop_map(Some)];
    prop_oneof![
        (any::<bool>(), any::<bool>(), lasts).prop_map(|(rises, off, lasts)| Step::Order { rises, off, lasts }),
        (any::<bool>(), any::<bool>()).prop_map(|(rises, off)| Step::Document { rises, off }),
        prop_oneof![Just(None), any::<bool>().prop_map(Some)].prop_map(Step::Own),
        Just(Step::Lose),
        (1..100_u64).prop_map(Step::Wait),
    ]
}

/// The precedence in three lines. Either orders or documents turn the switch of the fleet.
#[derive(Debug, Default)]
struct Model {
    own: Option<bool>,
    order: Option<(u64, bool, Option<u64>)>,
    document: bool,
}

impl Model {
    fn is_on(&self, now: u64) -> bool {
        let order = self.order.filter(|(_, _, end)| end.is_none_or(|end| now < end));
        let fleet = order.map_or(self.document, |(_, off, _)| off);
        self.own.unwrap_or(!fleet)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn limits_are_on_or_off_by_process_then_order_or_file(steps in vec(step(), 1..30), is_file in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let source = Source::default();
            if !is_file {
                source.order(None);
            }
            let instance = Instance::follow(source.clone());
            let (mut model, mut number) = (Model::default(), 100);
            let mut now = START;
            for step in steps {
                number += 10;
                // Either larger than all before, or much smaller.
                let of = |rises| if rises { number } else { number / 7 };
                match step {
                    Step::Order { .. } if is_file => {}
                    Step::Order { rises, off, lasts } => {
                        let end = lasts.map(|lasts| now + lasts);
                        let order = SwitchOrder::new(of(rises), off);
                        source.order(end.map_or(order.clone(), |end| order.with_end(end)));
                        if model.order.is_none_or(|(newest, ..)| of(rises) > newest) {
                            model.order = Some((of(rises), off, end));
                        }
                    }
                    Step::Document { rises, off } => {
                        let off = off && is_file;
                        source.publish(&RulesDocument::new(of(rises), hour(1)).switched_off(off));
                        model.document = off;
                    }
                    Step::Own(position) => {
                        let handle = instance.layer.limiter().rules();
                        match position {
                            Some(true) => handle.enable(),
                            Some(false) => handle.disable(),
                            None => handle.clear_overrides(),
                        }
                        model.own = position;
                    }
                    Step::Lose if is_file => source.state().head = None,
                    Step::Lose => source.lose_everything(),
                    Step::Wait(seconds) => {
                        instance.clock.advance(Duration::from_secs(seconds));
                        now += seconds;
                    }
                }
                poll().await;
                assert_eq!(instance.is_on(), model.is_on(now), "{step:?} {model:?}");
            }
        });
    }
}

// --- With a real server.

fn rules_at(servers: RedisStoreBuilder, set: &str) -> RedisRules {
    RedisRules::new(servers, set).unwrap()
}

fn publisher(server: &RedisServer, set: &str) -> RulesPublisher {
    RulesPublisher::new(rules_at(RedisStore::builder(server.url()), set), "alice")
}

async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    for _ in 0..300 {
        if condition().await {
            return;
        }
        pass(Duration::from_millis(50)).await;
    }
    panic!("still not so: {what}");
}

#[tokio::test]
async fn the_switch_and_blocks_work_while_the_version_of_the_rules_is_malformed() {
    let server = RedisServer::start();
    let alice = publisher(&server, "api");
    let one = Instance::follow(rules_at(RedisStore::builder(server.url()), "api"));
    one.clock.set(Clock::system().now());
    server.command(&["SET", "rules:{quota:api}:head", "not a version"]);
    alice.control(Control::switch_off()).await.unwrap();
    alice.control(Control::block_network("203.0.113.9")).await.unwrap();
    eventually("it is off", async || !one.is_on()).await;
    eventually("it blocks", async || one.access("203.0.113.9") == Access::Block).await;
    let failure = one.follower.status().failure().unwrap_or_default().to_owned();
    assert!(failure.contains("the head of the rule set"), "{failure}");
}

#[tokio::test]
async fn on_an_empty_redis_the_switch_and_blocks_work_and_a_flush_does_not_stop_them() {
    let server = RedisServer::start();
    let alice = publisher(&server, "api");
    let one = Instance::follow(rules_at(RedisStore::builder(server.url()), "api"));
    one.clock.set(Clock::system().now());
    let control = alice
        .control(Control::switch_off().because("the gateway is down"))
        .await
        .unwrap();
    let order = control.switch().unwrap().clone();
    assert_eq!((order.author(), order.reason()), ("alice", "the gateway is down"));
    assert_eq!(order.until(), Some(order.time() + 3_600));
    alice.control(Control::block_network("203.0.113.9")).await.unwrap();
    eventually("it is off", async || !one.is_on()).await;
    eventually("it blocks", async || one.access("203.0.113.9") == Access::Block).await;

    server.command(&["FLUSHALL"]);
    eventually("it says what is lost", async || one.lost().len() == 2).await;
    assert!(!one.is_on());
    // Redis is empty, but the number of a new order is still above the lost one.
    let controls = alice.control(Control::switch_on()).await.unwrap();
    assert!(controls.switch().unwrap().number() > order.number() && controls.access().is_empty());
    eventually("it is on", async || one.is_on()).await;
    assert_eq!(one.access("203.0.113.9"), Access::Block, "until a newer list is there");
    alice.control(Control::block_network("203.0.113.10")).await.unwrap();
    eventually("it has the new list", async || {
        one.access("203.0.113.9") == Access::Limit
    })
    .await;
    eventually("nothing is lost", async || one.lost().is_empty()).await;
}

#[tokio::test]
async fn rules_that_were_lost_come_back_from_an_instance_with_a_number_above_all_before() {
    let server = RedisServer::start();
    let alice = publisher(&server, "api");
    let one = Instance::follow(rules_at(RedisStore::builder(server.url()), "api"));
    for quota in [10, 20, 30] {
        alice.publish(Publication::rules(hour(quota))).await.unwrap();
    }
    eventually("it has them", async || quota(&one.layer) == 30).await;
    server.command(&["FLUSHALL"]);
    let rules = rules_at(RedisStore::builder(server.url()), "api");
    let has_reported = async || {
        let reports = rules.instances().await.unwrap();
        reports
            .first()
            .is_some_and(|report| report.has_lost() && report.newest() == 3)
    };
    eventually("it reports the loss", has_reported).await;
    // A file on a disk would do as well.
    let json = one.follower.document().unwrap().to_json().unwrap();
    let document = RulesDocument::parse(json.as_bytes()).unwrap();
    let proposal = alice.propose(Publication::restore(document)).await.unwrap();
    assert!(proposal.to_string().contains("30 requests per 3600 s"), "{proposal}");
    let published = alice.commit(&proposal).await.unwrap();
    assert_eq!(published.version().number(), 4);
    eventually("nothing is lost", async || one.lost().is_empty()).await;
    // Without a file: rules that are published again also get a number above the lost ones.
    server.command(&["FLUSHALL"]);
    eventually("it reports the loss", async || {
        let reports = rules.instances().await.unwrap();
        reports.first().is_some_and(|report| report.has_lost())
    })
    .await;
    let published = alice.publish(Publication::rules(hour(40))).await.unwrap();
    assert_eq!(published.version().number(), 5);
}

#[tokio::test]
async fn a_report_of_an_absurd_number_does_not_use_up_the_numbers() {
    let set = "absurd";
    let alice = publisher(shared_server(), set);
    let rules = rules_at(RedisStore::builder(shared_server().url()), set);
    let report = reported("hacked", json!({"newest": RulesVersion::MAX_NUMBER}));
    rules.report(&report).await.unwrap();
    let published = alice.publish(Publication::rules(hour(1))).await.unwrap();
    assert_eq!(published.version().number(), 1);
}

#[tokio::test]
async fn the_same_rules_are_published_again_above_a_number_that_redis_has_lost() {
    let set = "same-again";
    let alice = publisher(shared_server(), set);
    alice.publish(Publication::rules(hour(1))).await.unwrap();
    assert!(alice.propose(Publication::rules(hour(1))).await.unwrap().is_empty());
    let rules = rules_at(RedisStore::builder(shared_server().url()), set);
    let report = reported("web-1", json!({"newest": 42}));
    rules.report(&report).await.unwrap();
    let proposal = alice.propose(Publication::rules(hour(1))).await.unwrap();
    assert!(!proposal.is_empty());
    assert_eq!(alice.commit(&proposal).await.unwrap().version().number(), 43);
}

/// The clock of the server with the last order was fast, or the clock of its replacement is slow.
#[tokio::test]
async fn an_order_is_newer_than_all_that_instances_report_whatever_the_clock_of_the_server_says() {
    let set = "clocks";
    let alice = publisher(shared_server(), set);
    let now = Clock::system().now().as_micros() / 1_000;
    let (ahead, absurd) = (now + 86_400_000, RulesVersion::MAX_NUMBER);
    let rules = rules_at(RedisStore::builder(shared_server().url()), set);
    for (name, numbers) in [("web-1", (ahead, ahead + 5)), ("hacked", (absurd, absurd))] {
        let report = reported(name, json!({"controls": {"switch": numbers.0, "access": numbers.1}}));
        rules.report(&report).await.unwrap();
    }
    let order = alice.control(Control::switch_on()).await.unwrap();
    assert_eq!(order.switch().unwrap().number(), ahead + 1);
    // An order that no instance obeys does not count.
    let absurd_order = serde_json::to_string(&off(absurd)).unwrap();
    shared_server().command(&["SET", "rules:{quota:clocks}:switch", &absurd_order]);
    let order = alice.control(Control::switch_on()).await.unwrap();
    assert_eq!(order.switch().unwrap().number(), ahead + 1);
    let list = alice.control(Control::block_network("203.0.113.9")).await.unwrap();
    assert_eq!(list.access_number(), ahead + 6);
}

#[tokio::test]
async fn a_block_of_a_colleague_does_not_make_a_draft_of_rules_conflict() {
    let alice = publisher(shared_server(), "draft");
    alice.publish(Publication::rules(hour(1))).await.unwrap();
    let proposal = alice.propose(Publication::rules(hour(2))).await.unwrap();
    let bob = publisher(shared_server(), "draft");
    bob.control(Control::block_network("203.0.113.9")).await.unwrap();
    bob.control(Control::switch_off()).await.unwrap();
    assert_eq!(alice.commit(&proposal).await.unwrap().version().number(), 2);
}

#[tokio::test]
async fn controls_of_many_publishers_at_once_are_all_there() {
    let tasks = (0..4).map(|task| {
        tokio::spawn(async move {
            let publisher = publisher(shared_server(), "many-controls");
            for number in 0..5 {
                let block = Control::block_network(format!("10.0.{task}.{number}"));
                publisher.control(block).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let alice = publisher(shared_server(), "many-controls");
    assert_eq!(alice.controls().await.unwrap().access().len(), 20);
    assert_eq!(alice.changes().await.unwrap().len(), 20);
}

#[tokio::test]
async fn a_block_ends_by_itself_and_its_network_may_be_written_in_another_way() {
    let alice = publisher(shared_server(), "access");
    let block = || Control::block_network("203.0.113.9");
    let error = alice.control(Control::block_network("example.com")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "access rules: \"example.com\" is not an IP address or network"
    );
    let controls = alice
        .control(block().expires_in(Duration::from_secs(600)))
        .await
        .unwrap();
    assert!(controls.access()[0].expiry() > Some(1_700_000_600));
    let longer = Control::block_network("::ffff:203.0.113.9/128").expires_in(Duration::from_secs(7_200));
    let controls = alice.control(longer).await.unwrap();
    assert_eq!(controls.access().len(), 1, "in place of the first");
    let mallory = AccessEntry::key("user", "mallory", Access::Block);
    alice.control(Control::set_access(mallory.clone())).await.unwrap();
    let unblock = || Control::remove_access(AccessEntry::network("203.0.113.9/32", Access::Limit));
    let controls = alice.control(unblock()).await.unwrap();
    assert_eq!(controls.access(), [mallory]);
    let error = alice.control(unblock()).await.unwrap_err();
    assert_eq!(error.kind(), FleetErrorKind::NotListed);
    let long = "x".repeat(257);
    for reason in ["a\nb", &long] {
        let error = alice.control(block().because(reason)).await.unwrap_err();
        assert!(error.to_string().contains("reason: longer than 256 bytes"), "{error}");
    }
}

#[tokio::test]
async fn an_order_works_where_the_last_one_is_garbage_and_a_broken_list_is_an_error() {
    let (server, set) = (shared_server(), "broken-controls");
    let alice = publisher(server, set);
    let key = |kind: &str| format!("rules:{{quota:{set}}}:{kind}");
    server.command(&["SET", &key("switch"), "garbage"]);
    assert!(
        alice
            .control(Control::switch_off())
            .await
            .unwrap()
            .switch()
            .unwrap()
            .is_off()
    );
    alice.control(Control::block_network("203.0.113.9")).await.unwrap();
    server.command(&["SET", &key("access"), "[]"]);
    let error = alice.control(Control::block_network("203.0.113.8")).await.unwrap_err();
    assert_eq!(error.kind(), FleetErrorKind::UnreadableAccess, "{error}");
    let on = alice.control(Control::switch_on()).await.unwrap();
    assert!(on.access_problem().is_some() && on.access_number() > 0);
    // The switch is still readable, for an instance as for a publisher.
    for head in ["garbage", ""] {
        server.command(&["SET", &key("access_head"), head]);
        let switch = alice.controls().await.unwrap();
        assert_eq!(switch.switch(), on.switch());
        let one = Instance::follow(rules_at(RedisStore::builder(server.url()), set));
        one.clock.set(Clock::system().now());
        eventually("it has the order", async || {
            one.follower.status().switch() == on.switch()
        })
        .await;
        eventually("it says why", async || {
            one.follower.status().controls_failure().is_some()
        })
        .await;
    }
    alice.control(Control::clear_access()).await.unwrap();
    let block = alice.control(Control::block_network("203.0.113.8")).await.unwrap();
    assert_eq!((block.access().len(), block.access_problem()), (1, None));
}

#[tokio::test]
async fn rules_switch_and_blocks_are_in_one_history_with_author_and_reason() {
    let alice = publisher(shared_server(), "changes");
    alice
        .publish(Publication::rules(hour(60)).because("the first"))
        .await
        .unwrap();
    alice
        .control(Control::switch_off().because("incident 7"))
        .await
        .unwrap();
    alice.control(Control::block_network("203.0.113.9")).await.unwrap();
    alice
        .control(Control::remove_access(block("203.0.113.9")))
        .await
        .unwrap();
    alice.publish(Publication::rules(hour(30))).await.unwrap();
    alice.publish(Publication::roll_back()).await.unwrap();
    let changes = alice.changes().await.unwrap();
    let lines: Vec<_> = changes
        .iter()
        .map(|change| {
            (
                change.version(),
                change.reason(),
                change.text().lines().next_back().unwrap(),
            )
        })
        .collect();
    assert_eq!(lines[0], (Some(3), "", "  policy \"hour\" changes: quota 30 → 60"));
    assert!(changes[0].is_roll_back() && changes[0].text().starts_with("back to version 1 by \"alice\""));
    assert_eq!(lines[1], (Some(2), "", "  policy \"hour\" changes: quota 60 → 30"));
    assert_eq!(lines[2], (None, "", "access list: - block 203.0.113.9"));
    assert_eq!(lines[3], (None, "", "access list: + block 203.0.113.9"));
    assert!(lines[4].2.starts_with("limits OFF until ") && lines[4].1 == "incident 7");
    assert_eq!((lines[5].0, lines[5].1), (Some(1), "the first"));
    assert!(
        changes
            .iter()
            .all(|change| change.author() == "alice" && change.time() > 1_700_000_000)
    );
}

#[tokio::test]
async fn a_cluster_has_the_switch_and_the_list_in_the_slot_of_the_rules() {
    let urls = || shared_cluster().nodes.iter().map(RedisServer::url);
    let rules = rules_at(RedisStore::cluster_builder(urls()), "controls-in-a-cluster");
    let alice = RulesPublisher::new(rules.clone(), "alice");
    let one = Instance::follow(rules);
    one.clock.set(Clock::system().now());
    alice.control(Control::switch_off()).await.unwrap();
    alice.control(Control::block_network("203.0.113.9")).await.unwrap();
    alice.publish(Publication::rules(hour(7))).await.unwrap();
    eventually("all of it arrives", async || {
        !one.is_on() && one.access("203.0.113.9") == Access::Block && quota(&one.layer) == 7
    })
    .await;
}
