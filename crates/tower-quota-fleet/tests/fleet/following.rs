//! Layers that follow a source: what they do when it has another version, a wrong one, or no answer.

use std::{
    future::{Future, ready},
    pin::Pin,
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use metrics::set_default_local_recorder;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use test_kit::limits;
use tokio::time::Instant;
use tower_quota::{
    Access, AccessList, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, Rules, Scope, Tiers,
    clock::{Clock, Timestamp},
    key,
};
use tower_quota_fleet::{
    AccessEntry, FleetErrorKind as Reason, Rollout, RulesDocument, RulesFollower, RulesFollowerBuilder, RulesSource,
    RulesVersion, SourceFuture, SourceState,
};

use crate::source::{Manner, Source, builder, follow, hour, layer, pass, poll, quota, send, version};

fn following(layer: &RateLimitLayer, source: &Source) -> RulesFollowerBuilder {
    RulesFollower::builder(layer.limiter().rules(), source.clone())
}

/// A source, and a layer that has its version 5.
async fn followed() -> (Source, RateLimitLayer, RulesFollower) {
    let (source, layer) = (Source::default(), layer());
    let follower = follow(&layer, source.clone());
    source.publish(&version(5));
    follower.wait_for_rules().await;
    (source, layer, follower)
}

#[tokio::test(start_paused = true)]
async fn instances_change_within_two_seconds_and_read_a_document_once() {
    let (source, layers) = (Source::default(), Vec::from_iter((0..100).map(|_| layer())));
    let followers = Vec::from_iter(layers.iter().map(|layer| follow(layer, source.clone())));
    pass(Duration::from_secs(60)).await;
    assert!(layers.iter().all(|layer| quota(layer) == 1));
    let [polls, documents] = source.asked();
    // Each instance polls about once a second, and there is no document to read.
    assert!((5_600..6_200).contains(&polls) && documents == 0, "{polls} {documents}");

    for number in 2..5 {
        let published = source.publish(&version(number));
        let (start, mut first) = (Instant::now(), None);
        while !layers.iter().all(|layer| quota(layer) == number) {
            pass(Duration::from_millis(10)).await;
            if first.is_none() && layers.iter().any(|layer| quota(layer) == number) {
                first = Some(start.elapsed());
            }
        }
        assert!(start.elapsed() <= Duration::from_secs(2), "{:?}", start.elapsed());
        // The instances do not poll at the same time.
        assert!(start.elapsed() - first.unwrap() > Duration::from_millis(500));
        pass(Duration::from_secs(20)).await;
        assert_eq!(source.asked()[1], 100);
        let follows = |follower: &RulesFollower| follower.status().version() == Some(published);
        assert!(followers.iter().all(follows));
    }
}

/// L12
#[tokio::test(start_paused = true)]
async fn requests_do_not_wait_for_a_source_that_hangs_and_the_rules_stay() {
    let (source, layer, follower) = followed().await;
    for manner in [Manner::Hangs, Manner::Fails] {
        source.state().manner = manner;
        source.publish(&version(6));
        pass(Duration::from_secs(30)).await;
        let [polls, _] = source.asked();
        // One poll after the other, each cancelled after a second.
        assert!((12..=40).contains(&polls), "{manner:?}: {polls}");
        assert!(send(&layer, "alice").now_or_never().unwrap().1.contains("q=5"));
        let failure = follower.status().failure().unwrap().to_owned();
        let hangs = manner == Manner::Hangs;
        let expected = if hangs { "no response within 1s" } else { "it is a test" };
        assert_eq!(failure, format!("rules source cannot be read: {expected}"));
    }
    source.state().manner = Manner::Answers;
    poll().await;
    assert_eq!((quota(&layer), follower.status().failure()), (6, None));
}

#[tokio::test(start_paused = true)]
async fn a_start_without_its_source_has_the_rules_of_the_program_or_waits() {
    let (source, layer) = (Source::default(), layer());
    source.state().manner = Manner::Fails;
    let follower = follow(&layer, source.clone());
    let waits = tokio::time::timeout(Duration::from_secs(60), follower.wait_for_rules());
    assert!(waits.await.is_err());
    assert_eq!((quota(&layer), follower.status().version()), (1, None));
    source.state().manner = Manner::Answers;
    let published = source.publish(&version(7));
    follower.wait_for_rules().await;
    assert_eq!((quota(&layer), follower.status().version()), (7, Some(published)));
}

/// Documents with the number 6 that no layer can apply.
fn wrong_documents() -> Vec<(String, Reason, &'static str)> {
    let of = |document: RulesDocument| document.to_json().unwrap();
    let cut = version(6).to_json().unwrap()[..50].to_owned();
    let newer = r#"{"rules": 7, "format": 18446744073709551615, "x": [{}]}"#.to_owned();
    let is_newer = "is newer than 1, the newest that this release of tower-quota can read";
    let no_rules = of(version(6).with_roll_out(Rollout::new(1, Rules::new())));
    let network = AccessEntry::network("everywhere", Access::Block).with_expiry(1);
    let network = of(version(6).with_access([network]));
    let no_network = "access rules: \"everywhere\" is not an IP address or network";
    let large = of(version(6).with_rules(hour(1_000_000_000_000_000)));
    let too_large = r#"policy "hour": quota 1000000000000000 is outside 0..=999999999999999"#;
    let tiers = of(version(6).with_rules(Rules::new().unlimited("free")));
    vec![
        (cut, Reason::Malformed, "EOF while parsing"),
        (newer, Reason::NewerFormat, is_newer),
        (" ".repeat(10 << 20), Reason::TooLong, "longer than 1048576 bytes"),
        (
            no_rules,
            Reason::Invalid,
            "roll_out: policies: at least one is required",
        ),
        (network, Reason::Invalid, no_network),
        (
            of(version(9)),
            Reason::Mismatched,
            "document number 9 does not match version 6",
        ),
        (large, Reason::Invalid, too_large),
        (tiers, Reason::Invalid, "tiers: no source of tiers"),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_version_that_cannot_be_put_in_force_is_rejected_with_its_reason_and_the_rules_before_stay() {
    let (source, layer, follower) = followed().await;
    let good = follower.status().version().unwrap();
    for (document, reason, message) in wrong_documents() {
        let published = source.publish_bytes(6, document);
        source.asked();
        poll().await;
        let status = follower.status();
        let (rejected, error) = status.rejected().unwrap_or_else(|| panic!("{message}"));
        assert_eq!((rejected, error.kind()), (published, reason), "{message}");
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!((quota(&layer), status.version()), (5, Some(good)));
        assert!(send(&layer, "alice").await.1.contains("q=5"));
        // A document that was rejected is not read again and again.
        pass(Duration::from_secs(60)).await;
        assert!(source.asked()[1] <= 25, "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_document_that_another_program_has_changed_is_rejected_until_it_is_that_of_its_version() {
    let (source, layer) = (Source::default(), layer());
    let follower = follow(&layer, source.clone());
    source.publish(&version(6));
    source.state().document.push(b' ');
    poll().await;
    let error = follower.status().rejected().unwrap().1.clone();
    assert_eq!(error.kind(), Reason::Mismatched);
    let expected = "document digest does not match version 6 ";
    assert!(error.to_string().starts_with(expected), "{error}");
    source.state().document.pop();
    pass(Duration::from_secs(15)).await;
    assert_eq!((quota(&layer), follower.status().rejected()), (6, None));
    // Another version does not wait for that.
    source.publish(&version(7));
    source.state().document.push(b' ');
    poll().await;
    source.publish(&version(8));
    poll().await;
    assert_eq!((quota(&layer), follower.status().rejected()), (8, None));
    // A failover has lost a publication, and the next publication has the same number.
    let published = source.publish(&version(8).with_rules(hour(88)));
    poll().await;
    assert_eq!((quota(&layer), follower.status().version()), (88, Some(published)));
}

#[tokio::test(start_paused = true)]
async fn rules_of_the_process_override_those_of_the_fleet_until_they_are_returned() {
    let (source, layer, follower) = followed().await;
    let handle = layer.limiter().rules();
    handle.replace(hour(50)).unwrap();
    source.publish(&version(6));
    poll().await;
    assert_eq!((quota(&layer), follower.status().is_overridden()), (50, true));
    // The rules are validated nevertheless.
    source.publish(&version(7).with_rules(Rules::new()));
    poll().await;
    assert_eq!(follower.status().rejected().unwrap().1.kind(), Reason::Invalid);
    handle.clear_overrides();
    poll().await;
    assert_eq!((quota(&layer), follower.status().is_overridden()), (6, false));
}

#[tokio::test(start_paused = true)]
async fn a_roll_out_is_for_the_same_callers_as_without_a_fleet_and_for_those_that_are_named() {
    let (source, layer, other) = (Source::default(), layer(), layer());
    let follower = follow(&layer, source.clone());
    let partition = |user: &str| Scope::new("test").partition(&PartitionKey::new("x-user-id", user));
    for percent in [0, 1, 10, 100] {
        let named = ["staff", "zoe"].map(partition);
        let roll_out = Rollout::new(percent, hour(77)).with_partitions(named);
        source.publish(&version(u64::from(percent) + 5).with_roll_out(roll_out));
        other.limiter().rules().roll_out(percent, hour(77)).unwrap();
        poll().await;
        let mut tried = 0;
        for user in 0..300 {
            let user = user.to_string();
            let is_tried = send(&layer, &user).await.1.contains("q=77");
            assert_eq!(is_tried, send(&other, &user).await.1.contains("q=77"), "{user}");
            tried += u32::from(is_tried);
        }
        assert!(tried.abs_diff(u32::from(percent) * 3) <= 20, "{percent}: {tried}");
        for user in ["staff", "zoe"] {
            assert!(send(&layer, user).await.1.contains("q=77"));
        }
    }
    assert_eq!(follower.status().version().map(RulesVersion::number), Some(105));
    // A version without a rollout ends the rollout.
    source.publish(&version(106));
    poll().await;
    assert!(send(&layer, "staff").await.1.contains("q=106"));
}

#[tokio::test(start_paused = true)]
async fn rules_of_the_access_list_end_by_themselves_and_those_of_the_process_go_before_them() {
    let (source, clock) = (Source::default(), Clock::manual(Timestamp::from_micros(1_000_000_000)));
    let list = AccessList::new(key::client_ip());
    let layer = builder().access_list(list.clone()).build().unwrap();
    let _follower = following(&layer, &source)
        .access_list(list.clone())
        .clock(clock.clone())
        .start()
        .unwrap();
    let entries = [
        block("mallory").with_expiry(1_600),
        block("eve"),
        block("late").with_expiry(900),
    ];
    source.publish(&version(100).with_access(entries));
    poll().await;
    let users = ["mallory", "eve", "late", "alice"];
    let statuses = async || join_all(users.map(async |user| send(&layer, user).await.0)).await;
    assert_eq!(statuses().await, [403, 403, 200, 200]);
    list.update(|rules| rules.set_key(PartitionKey::new("x-user-id", "eve"), Access::Limit))
        .unwrap();
    assert_eq!(statuses().await, [403, 200, 200, 200]);

    clock.set(Timestamp::from_micros(1_600_000_000));
    // No version has changed, and the source need not answer.
    source.state().manner = Manner::Fails;
    poll().await;
    assert_eq!(statuses().await, [200, 200, 200, 200]);
    source.state().manner = Manner::Answers;
    source.publish(&version(101).blocking_unknown_addresses(true));
    poll().await;
    assert_eq!(statuses().await, [403, 200, 403, 403]);
    source.publish(&version(102));
    poll().await;
    assert_eq!(statuses().await, [200; 4]);
}

fn block(user: &str) -> AccessEntry {
    AccessEntry::key("x-user-id", user, Access::Block)
}

/// A layer with this list, and its follower.
fn sharing(list: &AccessList, source: &Source) -> (RateLimitLayer, RulesFollower) {
    let layer = builder().access_list(list.clone()).build().unwrap();
    let follower = following(&layer, source).access_list(list.clone()).start().unwrap();
    (layer, follower)
}

#[tokio::test(start_paused = true)]
async fn followers_that_share_an_access_list_keep_the_rules_of_each_other() {
    let (api, admin) = (Source::default(), Source::default());
    let list = AccessList::new(key::client_ip());
    let network = |network: &str, access| AccessEntry::network(network, access);
    api.publish(&version(100).with_access([block("mallory"), network("203.0.113.0/24", Access::Block)]));
    let (first, _one) = sharing(&list, &api);
    poll().await;
    assert_eq!(send(&first, "mallory").await.0, 403);

    // The document of `admin` has no access list.
    admin.publish(&version(100));
    let (second, _other) = sharing(&list, &admin);
    poll().await;
    for layer in [&first, &second] {
        assert_eq!([send(layer, "mallory").await.0, send(layer, "eve").await.0], [403, 200]);
    }
    let specific = version(101).with_access([network("203.0.113.7", Access::Allow)]);
    admin.publish(&specific.blocking_unknown_addresses(true));
    poll().await;
    let rules = list.overlay_rules();
    let of = |address: &str| rules.access(Some(address.parse().unwrap()), None);
    assert_eq!([of("203.0.113.6"), of("203.0.113.7")], [Access::Block, Access::Allow]);
    assert_eq!((rules.len(), rules.access(None, None)), (3, Access::Block));

    api.publish(&version(101));
    admin.publish(&version(102).with_access([block("eve")]));
    poll().await;
    for layer in [&first, &second] {
        assert_eq!([send(layer, "mallory").await.0, send(layer, "eve").await.0], [200, 403]);
    }
    assert_eq!(list.overlay_rules().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_access_rules_of_a_follower_that_has_ended_stay_until_another_one_follows_in_its_place() {
    let (source, clock) = (Source::default(), Clock::manual(Timestamp::from_micros(1_000_000_000)));
    let list = AccessList::new(key::client_ip());
    let follow = |layer: &RateLimitLayer| {
        let follower = following(layer, &source).access_list(list.clone());
        follower.clock(clock.clone()).start().unwrap()
    };
    source.publish(&version(100).with_access([block("mallory").with_expiry(1_600)]));
    let layer = builder().access_list(list.clone()).build().unwrap();
    let follower = follow(&layer);
    poll().await;
    drop(follower);
    source.publish(&version(101));
    clock.advance(Duration::from_secs(700));
    poll().await;
    assert_eq!(send(&layer, "mallory").await.0, 403);

    // Another rule set for the same layer.
    source.state().name = Some("other");
    let follower = follow(&layer);
    assert_eq!(send(&layer, "mallory").await.0, 403);
    poll().await;
    assert_eq!(send(&layer, "mallory").await.0, 200);

    // A reload builds another layer for the rule set, which follows before the one before has ended.
    source.publish(&version(102).with_access([block("eve")]));
    let next = builder().scope("next").access_list(list.clone()).build().unwrap();
    let _next = follow(&next);
    poll().await;
    drop(follower);
    assert_eq!(send(&next, "eve").await.0, 403);
    source.publish(&version(103));
    poll().await;
    assert_eq!(send(&next, "eve").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_follower_ends_with_its_last_clone_although_its_source_hangs_and_the_rules_stay() {
    let (source, layer, follower) = followed().await;
    let error = following(&layer, &source).start().unwrap_err();
    assert_eq!(error.kind(), Reason::Claimed);
    let message = "rules follower: scope \"test\": rules are already claimed by another source";
    assert_eq!(error.to_string(), message);

    let clone = follower.clone();
    drop(follower);
    source.publish(&version(6));
    poll().await;
    assert_eq!(quota(&layer), 6);
    source.state().manner = Manner::Hangs;
    poll().await;
    drop(clone);
    source.publish(&version(7));
    source.asked();
    pass(Duration::from_secs(60)).await;
    assert_eq!((quota(&layer), source.asked()), (6, [0, 0]));
    source.state().manner = Manner::Answers;
    // The program has its rules again, and may follow again.
    layer.limiter().rules().replace(hour(60)).unwrap();
    let follower = follow(&layer, source.clone());
    follower.wait_for_rules().await;
    assert_eq!(quota(&layer), 7);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_panics_leaves_the_rules_as_they_are() {
    let (source, layer, follower) = followed().await;
    source.state().manner = Manner::Panics;
    poll().await;
    let version = follower.status().version().unwrap();
    assert_eq!((quota(&layer), version.number()), (5, 5));
    // Changes that need no source still take effect.
    layer.limiter().rules().disable();
    poll().await;
    assert!(follower.status().is_overridden());
}

#[tokio::test(start_paused = true)]
async fn an_instance_reports_what_it_runs_every_ten_seconds_and_when_that_changes() {
    let (source, layer) = (Source::default(), layer());
    let follower = following(&layer, &source).instance("web-7").start().unwrap();
    pass(Duration::from_secs(60)).await;
    let reports = std::mem::take(&mut source.state().reports);
    assert!((5..=9).contains(&reports.len()), "{reports:?}");
    assert!(reports.iter().all(|report| *report == reports[0]));
    assert_eq!(reports[0].version(), None);
    assert!(reports[0].instance().starts_with("web-7#") && reports[0].instance().len() == "web-7#".len() + 16);

    let good = source.publish(&version(5));
    poll().await;
    let bad = source.publish_bytes(6, "x");
    poll().await;
    layer.limiter().rules().disable();
    pass(Duration::from_secs(3)).await;
    let reports = std::mem::take(&mut source.state().reports);
    let said = reports
        .iter()
        .map(|report| (report.version(), report.rejects(), report.is_overridden()));
    let said: Vec<_> = said.collect();
    for (rejected, is_overridden) in [(None, false), (Some(bad), false), (Some(bad), true)] {
        assert!(said.contains(&(Some(good), rejected, is_overridden)), "{said:?}");
    }
    assert_eq!(follower.status().rejected().map(|(version, _)| version), Some(bad));
}

#[tokio::test(start_paused = true)]
async fn a_report_without_an_answer_or_the_end_of_a_layer_delays_no_poll() {
    let source = Source::default();
    source.state().hangs_on_reports = true;
    let _follower = follow(&layer(), source.clone());
    pass(Duration::from_secs(100)).await;
    let ([polls, _], reports) = (source.asked(), source.state().reports.len());
    assert!(polls >= 80, "{polls}");
    // The report is retried, one attempt at a time.
    assert!((40..=100).contains(&reports), "{reports}");
}

/// The lines of a page of metrics about rules, without the label that all lines share.
fn about_rules(page: &PrometheusHandle) -> Vec<String> {
    let page = page.render();
    let lines = page.lines().filter_map(|line| line.strip_prefix("tower_quota_rules_"));
    let without_name = |line: &str| line.replace(r#"{rules="test"}"#, "").replace(r#"rules="test","#, "");
    let of_controls = |line: &String| {
        let names = ["controls_unread", "lost", "switch_ends_seconds"];
        names.iter().any(|name| line.starts_with(name))
    };
    let mut lines: Vec<_> = lines.map(without_name).filter(|line| !of_controls(line)).collect();
    lines.sort_unstable();
    lines
}

/// Rules with these policies in one tier of two.
fn tiers(policies: &[&'static str]) -> Rules {
    let policies = policies.iter().map(|name| QuotaPolicy::per_hour(name, 1));
    Rules::new().tier("free", policies).unlimited("admin")
}

fn layer_with_tiers() -> RateLimitLayer {
    let tiers = Tiers::from_fn(|_| None).tier("free", [QuotaPolicy::per_hour("hour", 1)]);
    limits(MemoryStore::new()).tiers(tiers).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn metrics_say_what_an_instance_runs_why_it_rejects_a_version_and_that_it_has_no_answer() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recorder = set_default_local_recorder(&recorder);
    let (source, layer) = (Source::default(), layer_with_tiers());
    let follower = follow(&layer, source.clone());
    poll().await;
    assert_eq!(about_rules(&page), ["overridden 0", "unread_total 0", "version 0"]);

    source.publish(&version(5).with_rules(tiers(&["hour", "old"])));
    poll().await;
    source.publish(
        &version(6)
            .with_rules(tiers(&["hour"]))
            .with_roll_out(Rollout::new(1, tiers(&["new"]))),
    );
    poll().await;
    let running = [
        r#"policy_version{tier="free",policy="hour"} 6"#,
        r#"policy_version{tier="free",policy="new"} 6"#,
        r#"policy_version{tier="free",policy="old"} 0"#,
    ];
    let last = ["unread_total 0", "version 6"];
    let assert_shows = |overridden, rejected: &[&str]| {
        let expected = [&[overridden], &running[..], rejected, &last].concat();
        assert_eq!(about_rules(&page), expected);
    };
    assert_shows("overridden 0", &[]);

    source.publish_bytes(7, "x");
    layer.limiter().rules().disable();
    pass(Duration::from_secs(3)).await;
    assert_shows("overridden 1", &[r#"rejected{reason="malformed"} 1"#]);
    source.publish(&version(8).with_rules(Rules::new()));
    layer.limiter().rules().enable();
    poll().await;
    let rejected = [r#"rejected{reason="invalid"} 1"#, r#"rejected{reason="malformed"} 0"#];
    assert_shows("overridden 0", &rejected);
    source.state().manner = Manner::Fails;
    poll().await;
    assert!(!about_rules(&page).contains(&"unread_total 0".to_owned()));

    drop(follower);
    pass(Duration::from_secs(1)).await;
    let left = about_rules(&page).into_iter().filter(|line| !line.ends_with(" 0"));
    let left: Vec<_> = left.collect();
    assert!(left.iter().all(|line| line.starts_with("unread_total ")), "{left:?}");
}

/// A source that always reports a possible change.
#[derive(Debug)]
struct Restless(Source);

impl RulesSource for Restless {
    fn state(&self) -> SourceFuture<'_, SourceState> {
        RulesSource::state(&self.0)
    }

    fn document(&self, version: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        self.0.document(version)
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(ready(()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_told_of_changes_is_followed_at_once_and_never_asked_without_end() {
    let (source, layer) = (Source::default(), layer());
    let _follower = follow(&layer, Restless(source.clone()));
    pass(Duration::from_secs(10)).await;
    let [polls, _] = source.asked();
    assert!((190..=201).contains(&polls), "{polls}");
    source.publish(&version(5));
    pass(Duration::from_millis(100)).await;
    assert_eq!(quota(&layer), 5);
}

#[test]
fn settings_of_a_follower_are_checked_when_it_starts() {
    let (source, layer) = (Source::default(), layer());
    let error = following(&layer, &source).start().unwrap_err().to_string();
    assert_eq!(error, "rules follower: must be started within a Tokio runtime");
    for name in ["web\n7", "ü", &"w".repeat(65)] {
        let error = following(&layer, &source)
            .instance(name)
            .start()
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("must have at most 64 printable ASCII characters"),
            "{error}"
        );
    }
}
