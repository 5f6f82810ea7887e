//! Publications: of several publishers one comes first, what is not valid is not written, and a way back stays.

use std::{error::Error, time::Duration};

use test_kit::{Mode, Proxy, RedisServer, load::until, shared_cluster, shared_server};
use tower_quota::{
    Access, Algorithm, Decision, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Rules, Scope, Store,
    StoreError, StoreErrorKind,
};
use tower_quota_fleet::{
    AccessEntry, Control, FleetError, FleetErrorKind, Publication, Published, RulesDocument, RulesPublisher,
    RulesSource, RulesVersion,
};

use crate::{
    servers::{GUIDE, PRODUCTION, add_user, documented_user, key, publisher, publisher_at, rules, rules_at},
    source::{follow, hour, layer, quota},
};

fn minute(quota: u64) -> Rules {
    Rules::new().policy(QuotaPolicy::per_minute("minute", quota))
}

fn windows(quota: u64) -> Rules {
    Rules::new().policy(QuotaPolicy::per_minute("minute", quota).with_algorithm(Algorithm::FixedWindow))
}

#[track_caller]
fn assert_published(published: &Published, version: u64, quota: u64) {
    assert_eq!(published.version().number(), version);
    assert_eq!(published.document().rules(), &minute(quota));
}

async fn numbers(publisher: &RulesPublisher) -> Vec<u64> {
    let history = publisher.history().await.unwrap();
    history.iter().map(RulesDocument::version).collect()
}

#[tokio::test]
async fn of_two_proposals_for_one_version_the_second_is_a_conflict_and_changes_nothing() {
    let alice = publisher("conflict");
    let first = alice.publish(Publication::rules(minute(1))).await.unwrap();
    let (mine, theirs) = (Publication::rules(minute(2)), Publication::rules(minute(3)));
    let mine = alice.propose(mine).await.unwrap();
    let theirs = alice.propose(theirs).await.unwrap();
    // Controls make no proposal conflict.
    for control in [Control::block_network("203.0.113.9"), Control::switch_off()] {
        alice.control(control).await.unwrap();
    }
    let second = alice.commit(&mine).await.unwrap();
    let error = alice.commit(&theirs).await.unwrap_err();
    assert_eq!(error.kind(), FleetErrorKind::Conflict);
    assert_eq!((first.version().number(), second.version().number()), (1, 2));
    let message = "another publication came first: expected version 1, found version 2";
    assert_eq!(error.to_string(), message);
    assert_eq!(alice.current().await.unwrap(), Some(second));
    // A second reply to the same publication is no conflict.
    assert!(alice.commit(&mine).await.is_ok());
    assert_eq!(numbers(&alice).await, [2, 1]);

    // A failover loses version 2, and another publisher publishes a different version 2.
    let proposal = alice.propose(Publication::rules(minute(4))).await.unwrap();
    let other = RulesDocument::new(2, minute(99)).to_json().unwrap();
    let head = RulesVersion::of(2, other.as_bytes()).to_string();
    let key = |kind| key("conflict", kind);
    shared_server().command(&["MSET", &key("head"), &head, &key("document"), &other]);
    let error = alice.commit(&proposal).await.unwrap_err();
    assert_eq!(error.to_string(), message.replace('1', "2"));
    assert_eq!(alice.current().await.unwrap().unwrap().document().rules(), &minute(99));
}

#[tokio::test]
async fn a_policy_that_starts_anew_is_rejected_unless_that_is_meant() {
    let alice = publisher("anew");
    alice.publish(Publication::rules(minute(60))).await.unwrap();
    let change = || Publication::rules(windows(60));
    for change in [change(), change().rollout_percent(1)] {
        let error = alice.publish(change).await.unwrap_err();
        let reset = "policy \"minute\" COUNTS RESET: algorithm token_bucket → fixed_window";
        assert_eq!(error.to_string(), format!("counts would be lost: {reset}"));
    }
    assert_eq!(numbers(&alice).await, [1]);
    let allowed = change().rollout_percent(1).allow_count_reset();
    alice.publish(allowed).await.unwrap();
    // For callers outside the one percent, the counts reset now.
    let error = alice.publish(change()).await.unwrap_err();
    assert_eq!(error.kind(), FleetErrorKind::CountsReset);
    assert_eq!(error.to_string().matches("COUNTS RESET").count(), 1, "{error}");
    alice.publish(change().allow_count_reset()).await.unwrap();
    // A rollback needs no confirmation, because it is urgent.
    alice.publish(Publication::roll_back()).await.unwrap();
    alice.publish(Publication::roll_back_to(1)).await.unwrap();
    assert_eq!(alice.current().await.unwrap().unwrap().document().rules(), &minute(60));
}

#[tokio::test]
async fn a_roll_out_grows_step_by_step_and_a_second_roll_back_names_its_version() {
    let alice = publisher("steps");
    alice.publish(Publication::rules(minute(60))).await.unwrap();
    let texts = [
        (1, "rollout: none → 1%\ncallers who join the rollout (1% of all):\n"),
        (10, "rollout: 1% → 10%\ncallers who join the rollout (9% of all):\n"),
        (100, "rollout: 10% → none\ncallers outside the rollout (90% of all):\n"),
    ];
    for (percent, text) in texts {
        let publication = Publication::rules(minute(30)).rollout_percent(percent);
        let proposal = alice.propose(publication).await.unwrap();
        let change = "  policy \"minute\" changes: quota 60 → 30\n";
        assert_eq!(proposal.to_string(), format!("{text}{change}"));
        alice.commit(&proposal).await.unwrap();
    }
    roll_back_step_by_step(&alice).await;
}

async fn roll_back_step_by_step(alice: &RulesPublisher) {
    let proposal = alice.propose(Publication::roll_back()).await.unwrap();
    assert_eq!(proposal.restores().map(RulesDocument::version), Some(3));
    assert!(proposal.to_string().starts_with("back to version 3 by \"alice\", "));
    let published = alice.commit(&proposal).await.unwrap();
    let roll_out = published.document().roll_out();
    assert_eq!(roll_out.map(|roll_out| roll_out.percent()), Some(10));
    // "The version before" would be the one that was rolled back.
    let error = alice.publish(Publication::roll_back()).await.unwrap_err();
    let message = "the current version is a rollback; specify the version to restore, one of [4, 2, 1]";
    assert_eq!(error.to_string(), message);
    for (to, version, percent) in [(2, 6, Some(1)), (1, 7, None)] {
        let published = alice.publish(Publication::roll_back_to(to)).await.unwrap();
        let roll_out = published.document().roll_out();
        assert_eq!(roll_out.map(|roll_out| roll_out.percent()), percent);
        assert_published(&published, version, 60);
    }
    let forward = alice.publish(Publication::roll_back_to(4)).await.unwrap();
    assert_published(&forward, 8, 30);
    assert_eq!(forward.document().roll_out(), None);
    assert!(alice.publish(Publication::roll_back_to(99)).await.is_err());
}

#[tokio::test]
async fn a_roll_back_goes_to_the_version_before_also_if_older_ones_had_the_same_rules() {
    let alice = publisher("before");
    for quota in [100, 200, 300, 200] {
        alice.publish(Publication::rules(minute(quota))).await.unwrap();
    }
    let published = alice.publish(Publication::roll_back()).await.unwrap();
    assert_eq!(published.document().rules(), &minute(300));
}

#[tokio::test]
async fn what_closes_a_policy_or_lowers_it_tenfold_is_said_to_be_drastic() {
    let alice = publisher("drastic");
    alice.publish(Publication::rules(minute(60))).await.unwrap();
    let slower = QuotaPolicy::new("minute", 60, Duration::from_secs(600));
    for (rules, is_drastic) in [
        (minute(0), true),
        (minute(6), true),
        (minute(7), false),
        (minute(600), false),
        (Rules::new().policy(slower), true),
        (minute(60).policy(QuotaPolicy::per_day("day", 0)), true),
        (minute(60).policy(QuotaPolicy::per_day("day", 1)), false),
    ] {
        let proposal = alice.propose(Publication::rules(rules)).await.unwrap();
        assert_eq!(proposal.drastic().count(), usize::from(is_drastic), "{proposal}");
    }
}

#[tokio::test]
async fn what_is_not_valid_is_not_published() {
    let alice = publisher("invalid");
    let error = alice.publish(Publication::rules(Rules::new())).await.unwrap_err();
    let message = "policies: at least one is required; add `policy` or `tiers`";
    assert_eq!((error.kind(), &*error.to_string()), (FleetErrorKind::Invalid, message));
    let document = || RulesDocument::new(1, minute(60));
    let network = AccessEntry::network("10.0.0.0/8", Access::Block);
    for document in [
        document().switched_off(true),
        document().with_access([network]),
        document().blocking_unknown_addresses(true),
    ] {
        let error = alice.propose(Publication::restore(document)).await.unwrap_err();
        assert_eq!(error.kind(), FleetErrorKind::Invalid, "{error}");
    }
    let nameless = RulesPublisher::new(rules("invalid"), "a\nb");
    assert!(nameless.publish(Publication::rules(minute(3))).await.is_err());
    assert_eq!(alice.current().await.unwrap(), None);
}

/// A head, a document and what is wrong with them. `other` is a document of another version.
fn unreadable(other: &str) -> [(String, String, &'static str); 5] {
    let newer = r#"{"format": 2, "version": 7}"#;
    let huge = "x".repeat(10_000_000);
    let head = |number, document: &str| RulesVersion::of(number, document.as_bytes()).to_string();
    let (broken, unlike) = (head(8, "{"), head(9, "other"));
    [
        (head(7, newer), newer.to_owned(), "format 2 is newer than 1"),
        (broken, "{".to_owned(), "EOF while parsing"),
        (unlike, other.to_owned(), "document digest does not match version 9"),
        (
            "garbage".to_owned(),
            newer.to_owned(),
            "version is not a number and a digest",
        ),
        (head(10, &huge), huge, "longer than 1048576 bytes"),
    ]
}

#[tokio::test]
async fn a_document_that_cannot_be_read_stays_until_it_is_overwritten() {
    let (alice, set, server) = (publisher("unreadable"), "unreadable", shared_server());
    let good = alice.publish(Publication::rules(minute(60))).await.unwrap();
    for (head, document, problem) in unreadable(&good.document().to_json().unwrap()) {
        server.command(&["MSET", &key(set, "head"), &head, &key(set, "document"), &document]);
        for publication in [Publication::rules(minute(30)), Publication::roll_back()] {
            let error = alice.publish(publication).await.unwrap_err().to_string();
            let begins = "published rules cannot be read: ";
            assert!(error.starts_with(begins) && error.contains(problem), "{error}");
        }
        assert!(alice.current().await.is_err());
        assert_eq!(server.command(&["GET", &key(set, "head")]), head);
    }
    let tried = Publication::rules(minute(1)).rollout_percent(1).force();
    let error = alice.publish(tried).await.unwrap_err();
    assert_eq!(error.kind(), FleetErrorKind::NothingPublished);
    // The last good rules come back, with a number after those that were seen.
    let published = alice.publish(Publication::roll_back().force()).await.unwrap();
    assert_published(&published, 11, 60);
    server.command(&["SET", &key(set, "head"), "garbage"]);
    let published = alice.publish(Publication::rules(minute(30)).force()).await.unwrap();
    assert_published(&published, 12, 30);
}

/// The kind of the error of the store, if the rule set was unavailable.
fn store_error(error: &FleetError) -> Option<StoreErrorKind> {
    assert_eq!(error.kind(), FleetErrorKind::Unavailable, "{error}");
    Some(error.source()?.downcast_ref::<StoreError>()?.kind())
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_nothing_is_written() {
    let (alice, set, server) = (publisher("types"), "types", shared_server());
    server.command(&["SET", &key(set, "history"), "not a list"]);
    let error = alice.publish(Publication::rules(minute(1))).await.unwrap_err();
    assert_eq!(store_error(&error), Some(StoreErrorKind::Failed), "{error}");
    let exist = server.command(&["EXISTS", &key(set, "head"), &key(set, "document")]);
    assert_eq!(exist, "0");
}

#[tokio::test]
async fn a_publication_whose_reply_is_lost_takes_effect_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let alice = publisher_at(RedisStore::builder(proxy.url()), "api");
    alice.publish(Publication::rules(minute(60))).await.unwrap();
    let proposal = alice.propose(Publication::rules(minute(30))).await.unwrap();
    // More than this was read by the connection that is open, and less will be by the next one.
    proxy.set_mode(Mode::CutAfter(200));
    let published = alice.commit(&proposal).await.unwrap();
    assert_eq!(published.version().number(), 2);
    assert_eq!(server.command(&["LLEN", &key("api", "history")]), "2");
    let head = server.command(&["GET", &key("api", "head")]);
    assert_eq!(head, published.version().to_string());
}

#[tokio::test]
async fn without_a_server_a_publication_is_an_error_and_not_a_wait_without_end() {
    let alice = publisher_at(RedisStore::builder("redis://127.0.0.1:1/"), "api");
    let error = alice.publish(Publication::rules(minute(60))).await.unwrap_err();
    assert_eq!(store_error(&error), Some(StoreErrorKind::Unreachable), "{error}");
}

#[tokio::test]
async fn a_cluster_has_all_of_a_rule_set_in_one_slot() {
    let rules = rules_at(RedisStore::cluster_builder(shared_cluster().urls()), "in-a-cluster");
    let (layer, alice) = (layer(), RulesPublisher::new(rules.clone(), "alice"));
    let follower = follow(&layer, rules.clone());
    alice.control(Control::switch_off()).await.unwrap();
    alice.control(Control::block_network("203.0.113.9")).await.unwrap();
    alice.publish(Publication::rules(hour(60))).await.unwrap();
    let rollout = Publication::rules(hour(30)).rollout_percent(10);
    alice.publish(rollout).await.unwrap();
    let last = alice.publish(Publication::roll_back()).await.unwrap();
    assert_eq!(numbers(&alice).await, [3, 2, 1]);
    until("all of it arrives", async || {
        let status = follower.status();
        let controls = status.is_off() && status.access_number() > 0;
        controls && status.version() == Some(last.version()) && quota(&layer) == 60
    })
    .await;
    until("it is reported", async || {
        let reports = rules.instances().await.unwrap();
        reports.iter().any(|report| report.version() == Some(last.version()))
    })
    .await;
}

/// The permissions are read from the documentation, so the test proves that the documented permissions suffice.
#[tokio::test]
async fn with_the_documented_permissions_only_publishers_publish_and_only_stores_count() {
    let server = RedisServer::start();
    if !server.has_users() {
        return;
    }
    let with_documented = |guide, name| add_user(&server, name, &documented_user(guide, name));
    let publisher_url = with_documented(GUIDE, "publisher");
    let store_url = with_documented(PRODUCTION, "limits");

    let alice = publisher_at(RedisStore::builder(&publisher_url), "api");
    alice.publish(Publication::rules(minute(60))).await.unwrap();
    let rollout = Publication::rules(minute(30)).rollout_percent(10);
    alice.publish(rollout).await.unwrap();
    alice.publish(Publication::roll_back()).await.unwrap();
    assert!(alice.history().await.unwrap().len() > 2);
    let rules = rules_at(RedisStore::builder(&publisher_url), "api");
    assert!(rules.instances().await.unwrap().is_empty());
    // The switch and the access list have a separate user, which cannot change rules.
    let bob = publisher_at(RedisStore::builder(with_documented(GUIDE, "on-call")), "api");
    bob.control(Control::switch_off()).await.unwrap();
    bob.control(Control::block_network("203.0.113.9")).await.unwrap();
    bob.control(Control::block_network("203.0.113.8")).await.unwrap();
    assert!(bob.changes().await.unwrap().len() > 4);
    assert_forbidden(bob.publish(Publication::rules(minute(1))).await.unwrap_err());
    assert_forbidden(alice.control(Control::switch_on()).await.unwrap_err());

    // An attacker who controls a service, and so has its password, can neither change nor read rules, even if its user
    // may run any command.
    let any_command = ["on", ">password", "~quota:*", "resetchannels", "+@all"];
    for url in [store_url.clone(), add_user(&server, "any-command", &any_command)] {
        let as_store = publisher_at(RedisStore::builder(url), "api");
        assert_forbidden(as_store.current().await.unwrap_err());
        assert_forbidden(as_store.publish(Publication::rules(minute(1))).await.unwrap_err());
        assert_forbidden(as_store.control(Control::switch_off()).await.unwrap_err());
    }
    // An instance follows, and does not publish.
    let instance_url = with_documented(GUIDE, "instances");
    let instance = rules_at(RedisStore::builder(&instance_url), "api");
    assert!(instance.state().await.unwrap().version().unwrap().is_some());
    let as_instance = publisher_at(RedisStore::builder(&instance_url), "api");
    let force = Publication::rules(minute(1)).force();
    assert_forbidden(as_instance.publish(force).await.unwrap_err());
    assert_forbidden(as_instance.control(Control::switch_off()).await.unwrap_err());
    // Publishers see no counts.
    assert!(decide(&store_url).await.is_ok());
    assert_forbidden(decide(&publisher_url).await.unwrap_err());
    assert_eq!(server.command(&["KEYS", "rules:*"]).lines().count(), 7);
}

fn assert_forbidden(error: impl std::fmt::Display) {
    // Within a script, servers of several versions word it in their own ways.
    let mut words = "permission|user executing the script can't run|ACL failure in script".split('|');
    let error = error.to_string();
    assert!(words.any(|words| error.contains(words)), "{error}");
}

async fn decide(url: &str) -> Result<Decision, StoreError> {
    let store = RedisStore::new(url).unwrap();
    let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
    let policies = PolicySet::new([QuotaPolicy::per_minute("minute", 1)]).unwrap();
    store.decide(Plan::new(policies, alice, 1)).await
}
