//! The kill switch and the access list that apply without rules: their order of precedence, their ends, and a Redis that has lost
//! its data.

use std::{net::IpAddr, time::Duration};

use metrics::set_default_local_recorder;
use metrics_exporter_prometheus::PrometheusBuilder;
use proptest::{collection::vec, prelude::*};
use serde_json::json;
use test_kit::{load::until, shared_server};
use tower_quota::{
    Access, AccessList, QuotaPolicy, RateLimitLayer, Rules,
    clock::{Clock, Timestamp},
    key,
};
use tower_quota_fleet::{
    AccessEntry, Change, Control, FleetErrorKind, InstanceReport, Lost, Publication, RedisRules, RulesFollower,
    RulesPublisher, RulesSource, RulesVersion, SwitchOrder,
};

use crate::{
    servers::{key, publisher, rules},
    source::{Source, builder, hour, layer, poll, quota, reported, send, version},
};

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

    /// With the time of a server.
    fn on(rules: RedisRules) -> Self {
        let instance = Self::follow(rules);
        instance.clock.set(Clock::system().now());
        instance
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
}

fn off(number: u64) -> SwitchOrder {
    SwitchOrder::new(number, true)
}

fn block(network: &str) -> AccessEntry {
    AccessEntry::network(network, Access::Block)
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
async fn a_document_with_rules_or_an_access_list_that_are_rejected_turns_the_switch_for_good() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    let first = version(5).with_access([block("203.0.113.9").with_expiry(START + 60)]);
    source.publish(&first);
    poll().await;
    let unknown_tier = Rules::new().tier("free", [QuotaPolicy::per_hour("hour", 6)]);
    source.publish(
        &first
            .clone()
            .with_version(6)
            .with_rules(unknown_tier)
            .switched_off(true),
    );
    poll().await;
    let rejected = || {
        instance
            .follower
            .status()
            .rejected()
            .map(|(version, _)| version.number())
    };
    assert_eq!(rejected(), Some(6));
    for _ in 0..20 {
        assert_eq!(send(&instance.layer, "alice").await, (200, String::new()));
    }
    // The version is still the earlier one, not a new one with the same rules.
    source.publish(&first);
    poll().await;
    let (status, policy) = send(&instance.layer, "alice").await;
    assert!(status == 200 && policy.contains("q=5"), "{policy}");
    assert_eq!(rejected(), None);

    source.publish(&first.with_version(7).switched_off(true));
    poll().await;
    assert!(!instance.is_on());
    source.publish(&version(8).with_access([block("everywhere")]));
    poll().await;
    assert!(instance.is_on());
    assert_eq!(instance.access("203.0.113.9"), Access::Block, "the last valid list");
    instance.clock.advance(Duration::from_secs(60));
    poll().await;
    assert!(instance.is_on(), "the end of a block turns no switch");
}

/// Otherwise there would be two switches and two lists, and an operator would have to clear both.
#[tokio::test(start_paused = true)]
async fn controls_that_a_source_gets_replace_those_of_its_documents_which_are_rejected_from_then_on() {
    let source = Source::default();
    let instance = Instance::follow(source.clone());
    let with_controls = version(2).with_access([block("203.0.113.9")]).switched_off(true);
    source.publish(&with_controls);
    poll().await;
    assert!(!instance.is_on() && instance.access("203.0.113.9") == Access::Block);
    source.publish(&version(3));
    source.list(7, &[block("192.0.2.1")]);
    poll().await;
    assert!(instance.is_on() && instance.access("203.0.113.9") == Access::Limit);
    source.order(off(1));
    poll().await;
    assert!(!instance.is_on());
    let documents = [
        version(4).switched_off(true),
        version(5).with_access([block("203.0.113.9")]),
        version(6).blocking_unknown_addresses(true),
    ];
    for document in documents {
        source.publish(&document);
        source.order(SwitchOrder::new(document.version(), false));
        poll().await;
        let status = instance.follower.status();
        let (rejected, error) = status.rejected().unwrap();
        assert_eq!(rejected.number(), document.version());
        assert_eq!(error.kind(), FleetErrorKind::Invalid);
        assert!(instance.is_on() && instance.access("203.0.113.9") == Access::Limit);
        assert_eq!(instance.access("192.0.2.1"), Access::Block);
        assert_eq!(quota(&instance.layer), 3);
    }
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
    let everywhere = r#"[{"network": "everywhere", "access": "block"}]"#;
    let long = "x".repeat(2_000_000);
    for (head, json) in [
        ("garbage", "garbage"),
        (everywhere, everywhere),
        (&long, &long),
        ("x", "[]"),
    ] {
        let head = RulesVersion::of(6, head.as_bytes());
        source.state().controls.as_mut().unwrap().access = Some((head, json.into()));
        // Once, it may have been replaced between two reads.
        poll().await;
        poll().await;
        let failure = instance.follower.status().controls_failure().map(str::to_owned);
        assert!(failure.unwrap().starts_with("access list: "));
        assert_eq!(instance.access("203.0.113.9"), Access::Block);
    }
    source.order(SwitchOrder::new(8, false));
    poll().await;
    assert!(instance.is_on(), "a list that cannot be read keeps no order away");
}

#[tokio::test(start_paused = true)]
async fn gauges_show_the_limits_the_end_of_an_order_and_what_is_lost_or_unread_until_the_follower_ends() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recorder = set_default_local_recorder(&recorder);
    let source = Source::default();
    // A separate scope, because the gauge counts all layers of a scope in this process.
    let layer = builder().scope("gauge").build().unwrap();
    let handle = layer.limiter().rules();
    let instance = Instance::with_layer(layer, source.clone());
    let assert_shows = |limits_off: u8, end: &str, lost: [u8; 3], unread: u8| {
        let [access, rules, switch] = lost;
        let page = page.render();
        for line in [
            format!(r#"limits_off{{scope="gauge"}} {limits_off}"#),
            format!(r#"rules_switch_ends_seconds{{rules="test"}} {end}"#),
            format!(r#"rules_lost{{rules="test",what="access"}} {access}"#),
            format!(r#"rules_lost{{rules="test",what="rules"}} {rules}"#),
            format!(r#"rules_lost{{rules="test",what="switch"}} {switch}"#),
            format!(r#"rules_controls_unread{{rules="test"}} {unread}"#),
        ] {
            let line = format!("tower_quota_{line}");
            assert!(page.lines().any(|shown| shown == line), "{line} is not in {page}");
        }
    };
    // Each series exists from the start.
    assert_shows(0, "0", [0; 3], 0);
    source.publish(&version(3));
    source.order(off(5).with_end(START + 600));
    poll().await;
    assert_shows(1, "1800000600", [0; 3], 0);
    source.order(off(6));
    poll().await;
    assert_shows(1, "inf", [0; 3], 0);
    handle.enable();
    assert_shows(0, "inf", [0; 3], 0);
    handle.clear_overrides();
    source.lose_everything();
    poll().await;
    assert_shows(1, "inf", [0, 1, 1], 0);
    source.state().controls.as_mut().unwrap().failure = Some("NOPERM");
    poll().await;
    assert_shows(1, "inf", [0, 1, 1], 1);
    drop(instance.follower);
    // The tasks of a follower end a moment later.
    poll().await;
    assert_shows(0, "0", [0; 3], 0);
    assert!(handle.is_enabled());
}

/// For how many seconds an address is blocked after an order has ended.
const BLOCKED: u64 = 20;

/// A switch, and a list that blocks an address if the switch is off.
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

/// Either orders or documents turn the switch of the fleet.
#[derive(Debug, Default)]
struct Model {
    own: Option<bool>,
    order: Option<(u64, bool, Option<u64>)>,
    document: bool,
    /// The numbers of the last document, and of the newest one.
    rules: Option<u64>,
    newest: Option<u64>,
    /// The numbers of document and order that the source has.
    found: [Option<u64>; 2],
}

impl Model {
    fn active(&self, now: u64) -> Option<(u64, bool)> {
        let (number, off, end) = self.order?;
        end.is_none_or(|end| now < end).then_some((number, off))
    }

    fn is_off(&self, now: u64) -> bool {
        self.active(now).map_or(self.document, |(_, off)| off)
    }

    fn is_blocking(&self, now: u64) -> bool {
        let is_listed = |(_, off, end): (u64, bool, Option<u64>)| off && end.is_none_or(|end| now < end + BLOCKED);
        self.order.map_or(self.document, is_listed)
    }

    fn lost(&self, now: u64) -> Vec<(&'static str, u64, Option<u64>)> {
        let [rules, order] = self.found;
        let (number, ..) = self.order.filter(|_| self.is_blocking(now)).unwrap_or_default();
        let had = [
            ("rules", self.newest.unwrap_or(0), rules),
            ("switch", self.active(now).map_or(0, |(number, _)| number), order),
            ("access", number, order),
        ];
        let is_lost = |(_, had, found): &(_, u64, Option<u64>)| *had > 0 && found.is_none_or(|found| found < *had);
        had.into_iter().filter(is_lost).collect()
    }

    fn assert_same(&self, instance: &Instance, now: u64) {
        let is_off = self.is_off(now);
        let is_on = self.own.unwrap_or(!is_off);
        let access = instance.access("203.0.113.9");
        assert_eq!(instance.is_on(), is_on);
        assert_eq!(access == Access::Block, self.is_blocking(now));
        assert_eq!(instance.lost(), self.lost(now));
        let status = instance.follower.status();
        let is_overridden = self.own == Some(is_off);
        assert_eq!((status.is_off(), status.is_overridden()), (!is_on, is_overridden));
        assert_eq!(status.version().map(RulesVersion::number), self.rules);
        assert_eq!(quota(&instance.layer), self.rules.unwrap_or(1));
        // An operator can publish this document again.
        assert_eq!(instance.follower.document().map(|newest| newest.version()), self.newest);
        let controls = instance.follower.controls();
        assert_eq!(controls.switch(), status.switch());
        let (number, off, _) = self.order.unwrap_or_default();
        assert_eq!(status.switch().map_or(0, SwitchOrder::number), number);
        assert_eq!(controls.access().len(), usize::from(off));
        assert_eq!(controls.access_number(), number);
    }

    fn assert_reported(&self, report: &InstanceReport, now: u64) {
        let is_off = !self.own.unwrap_or(!self.is_off(now));
        let (number, ..) = self.order.unwrap_or_default();
        assert_eq!((report.is_off(), report.controls()), (is_off, Some((number, number))));
        assert_eq!(report.has_lost(), !self.lost(now).is_empty());
        assert_eq!(report.newest(), self.newest.unwrap_or(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn limits_and_blocks_follow_process_then_order_or_file_and_losses_are_shown(
        steps in vec(step(), 1..30),
        is_file in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let source = Source::default();
            if !is_file {
                source.order(None);
            }
            let layer = layer();
            let handle = layer.limiter().rules();
            // No fleet is followed yet, so these calls override nothing.
            handle.disable();
            handle.enable();
            let instance = Instance::with_layer(layer, source.clone());
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
                        let entry = block("203.0.113.9");
                        let entry = end.map_or(entry.clone(), |end| entry.with_expiry(end + BLOCKED));
                        source.list(of(rises), &Vec::from_iter(off.then_some(entry)));
                        model.found[1] = Some(of(rises));
                        if model.order.is_none_or(|(newest, ..)| of(rises) > newest) {
                            model.order = Some((of(rises), off, end));
                        }
                    }
                    Step::Document { rises, off } => {
                        let off = off && is_file;
                        let document = version(of(rises)).switched_off(off);
                        source.publish(&document.with_access(off.then(|| block("203.0.113.9"))));
                        model.document = off;
                        model.found[0] = Some(of(rises));
                        // The number of a file may decrease: a deployment put an older one back.
                        model.newest = model.newest.filter(|_| !is_file).max(model.found[0]);
                        model.rules = model.found[0];
                    }
                    Step::Own(position) => {
                        match position {
                            Some(true) => handle.enable(),
                            Some(false) => handle.disable(),
                            None => handle.clear_overrides(),
                        }
                        model.own = position;
                    }
                    Step::Lose => {
                        match is_file {
                            true => source.state().head = None,
                            false => source.lose_everything(),
                        }
                        model.found = [None; 2];
                    }
                    Step::Wait(seconds) => {
                        instance.clock.advance(Duration::from_secs(seconds));
                        now += seconds;
                    }
                }
                // One task obeys, and another one shows it a moment later.
                poll().await;
                poll().await;
                model.assert_same(&instance, now);
            }
            poll().await;
            poll().await;
            model.assert_reported(source.state().reports.last().unwrap(), now);
        });
    }
}

// --- With a real server.

#[tokio::test]
async fn the_same_rules_are_published_again_above_a_number_that_redis_has_lost() {
    let rules = rules("same-again");
    let alice = RulesPublisher::new(rules.clone(), "alice");
    alice.publish(Publication::rules(hour(1))).await.unwrap();
    assert!(alice.propose(Publication::rules(hour(1))).await.unwrap().is_empty());
    // An absurd number does not use up the numbers.
    for (name, newest) in [("web-1", 42), ("hacked", RulesVersion::MAX_NUMBER)] {
        let report = reported(name, json!({"newest": newest}));
        rules.report(&report).await.unwrap();
    }
    let proposal = alice.propose(Publication::rules(hour(1))).await.unwrap();
    assert!(!proposal.is_empty());
    assert_eq!(alice.commit(&proposal).await.unwrap().version().number(), 43);
}

/// The clock of the server with the last order was fast, or the clock of its replacement is slow.
#[tokio::test]
async fn an_order_is_newer_than_all_that_instances_report_whatever_the_clock_of_the_server_says() {
    let rules = rules("clocks");
    let alice = RulesPublisher::new(rules.clone(), "alice");
    let now = Clock::system().now().as_micros() / 1_000;
    let (ahead, absurd) = (now + 86_400_000, RulesVersion::MAX_NUMBER);
    for (name, numbers) in [("web-1", (ahead, ahead + 5)), ("hacked", (absurd, absurd))] {
        let report = reported(name, json!({"controls": {"switch": numbers.0, "access": numbers.1}}));
        rules.report(&report).await.unwrap();
    }
    let order = alice.control(Control::switch_on()).await.unwrap();
    assert_eq!(order.switch().unwrap().number(), ahead + 1);
    // An order that no instance obeys does not count.
    let absurd_order = serde_json::to_string(&off(absurd)).unwrap();
    shared_server().command(&["SET", &key("clocks", "switch"), &absurd_order]);
    let order = alice.control(Control::switch_on()).await.unwrap();
    assert_eq!(order.switch().unwrap().number(), ahead + 1);
    let list = alice.control(Control::block_network("203.0.113.9")).await.unwrap();
    assert_eq!(list.access_number(), ahead + 6);
}

#[tokio::test]
async fn controls_of_many_publishers_at_once_are_all_there() {
    let tasks = (0..4).map(|task| {
        tokio::spawn(async move {
            let publisher = publisher("many-controls");
            for number in 0..5 {
                let block = Control::block_network(format!("10.0.{task}.{number}"));
                publisher.control(block).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let alice = publisher("many-controls");
    assert_eq!(alice.controls().await.unwrap().access().len(), 20);
    assert_eq!(alice.changes().await.unwrap().len(), 20);
}

#[tokio::test]
async fn a_block_ends_by_itself_and_its_network_may_be_written_in_another_way() {
    let alice = publisher("access");
    let block = || Control::block_network("203.0.113.9");
    let ends = block().expires_in(Duration::from_secs(600));
    let controls = alice.control(ends).await.unwrap();
    assert!(controls.access()[0].expiry() > Some(1_700_000_600));
    let longer = Control::block_network("::ffff:203.0.113.9/128").expires_in(Duration::from_secs(7_200));
    let controls = alice.control(longer).await.unwrap();
    assert_eq!(controls.access().len(), 1, "in place of the first");
    let mallory = AccessEntry::key("user", "mallory", Access::Block);
    alice.control(Control::set_access(mallory.clone())).await.unwrap();
    let unblock = Control::remove_access(AccessEntry::network("203.0.113.9/32", Access::Limit));
    let controls = alice.control(unblock).await.unwrap();
    assert_eq!(controls.access(), [mallory]);
    let long = "x".repeat(257);
    for reason in ["a\nb", &long] {
        let error = alice.control(block().because(reason)).await.unwrap_err();
        assert!(error.to_string().contains("reason: longer than 256 bytes"), "{error}");
    }
}

#[tokio::test]
async fn an_order_works_where_the_last_one_is_garbage_and_a_broken_list_is_an_error() {
    let (server, set) = (shared_server(), "broken-controls");
    let alice = publisher(set);
    let key = |kind| key(set, kind);
    // Nor does a version that is malformed matter.
    for kind in ["head", "switch"] {
        server.command(&["SET", &key(kind), "garbage"]);
    }
    let off = Control::switch_off().because("the gateway is down");
    let controls = alice.control(off).await.unwrap();
    let order = controls.switch().unwrap();
    assert!(order.is_off() && controls.access().is_empty());
    assert_eq!((order.author(), order.reason()), ("alice", "the gateway is down"));
    assert_eq!(order.until(), Some(order.time() + 3_600));
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
        let one = Instance::on(rules(set));
        until("it has the order", async || {
            one.follower.status().switch() == on.switch()
        })
        .await;
        until("it says why", async || {
            one.follower.status().controls_failure().is_some()
        })
        .await;
    }
    alice.control(Control::clear_access()).await.unwrap();
    let block = alice.control(Control::block_network("203.0.113.8")).await.unwrap();
    assert_eq!((block.access().len(), block.access_problem()), (1, None));
    let one = Instance::on(rules(set));
    until("it blocks", async || one.access("203.0.113.8") == Access::Block).await;
    until("it says that the version is malformed", async || {
        let status = one.follower.status();
        status
            .failure()
            .is_some_and(|failure| failure.contains("the head of the rule set"))
    })
    .await;
}

#[tokio::test]
async fn rules_switch_and_blocks_are_in_one_history_with_author_and_reason() {
    let alice = publisher("changes");
    let first = Publication::rules(hour(60)).because("the first");
    alice.publish(first).await.unwrap();
    for control in [
        Control::switch_off().without_end().because("incident 7"),
        Control::block_network("203.0.113.9"),
        Control::remove_access(block("203.0.113.9")),
    ] {
        alice.control(control).await.unwrap();
    }
    alice.publish(Publication::rules(hour(30))).await.unwrap();
    alice.publish(Publication::roll_back()).await.unwrap();
    let changes = alice.changes().await.unwrap();
    let lines = changes.iter().map(|change| {
        let effect = change.text().lines().next_back().unwrap();
        (change.version(), change.reason(), effect)
    });
    let expected = [
        (Some(3), "", "  policy \"hour\" changes: quota 30 → 60"),
        (Some(2), "", "  policy \"hour\" changes: quota 60 → 30"),
        (None, "", "access list: - block 203.0.113.9"),
        (None, "", "access list: + block 203.0.113.9"),
        (None, "incident 7", "limits OFF"),
        (Some(1), "the first", "  policy \"hour\" is new: 60 requests per 3600 s"),
    ];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
    assert!(changes[0].is_roll_back() && changes[0].text().starts_with("back to version 1 by \"alice\""));
    let is_signed = |change: &Change| change.author() == "alice" && change.time() > 1_700_000_000;
    assert!(changes.iter().all(is_signed));
}
