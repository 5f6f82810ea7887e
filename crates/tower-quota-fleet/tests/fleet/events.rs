//! The events of an instance that follows rules: what operators read in its log.

use std::{sync::LazyLock, time::Duration};

use test_kit::Log;
use tower_quota::{Access, QuotaPolicy};
use tower_quota_fleet::AccessEntry;

use crate::source::{Manner, Source, follow, hour, layer, pass, poll, version};

/// The lines of the log with this text. One subscriber serves all threads, because `tracing` remembers for the whole
/// process if an event is enabled.
pub(crate) fn log(text: &str) -> Vec<String> {
    static LOG: LazyLock<Log> = LazyLock::new(|| {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_thread_names(true)
            .with_writer(move || writer.clone());
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
        log
    });
    let log = LOG.text();
    let lines = log.lines().filter(|line| line.contains(text));
    lines.map(str::to_owned).collect()
}

/// The events about a rule set that only one test follows.
struct Events {
    rules: String,
    seen: usize,
}

impl Events {
    fn of(source: &Source, name: &'static str) -> Self {
        source.state().name = Some(name);
        let rules = format!(" rules={name}");
        Self {
            seen: log(&rules).len(),
            rules,
        }
    }

    /// Each of the new lines has one of these parts.
    fn expect(&mut self, parts: &[&str]) {
        let lines = log(&self.rules).split_off(self.seen);
        self.seen += lines.len();
        assert_eq!(lines.len(), parts.len(), "{parts:#?}: {lines:#?}");
        for (line, part) in lines.iter().zip(parts) {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_version_has_one_event_with_its_author_or_the_reason_of_its_rejection() {
    let (source, layer) = (Source::default(), layer());
    let mut events = Events::of(&source, "versions");
    let _follower = follow(&layer, source.clone());
    let fifth = source.publish(&version(5));
    poll().await;
    let in_force = format!("fleet rules applied rules=versions version={fifth} author=alice");
    events.expect(&[&in_force]);
    let third = source.publish(&version(3));
    poll().await;
    let lower =
        format!("did a failover lose a publication? rules=versions version={third} before={fifth} author=alice");
    events.expect(&[&lower]);

    let planet = hour(7).policy(QuotaPolicy::per_day("day", 7).keyed_by("planet"));
    source.publish(&version(7).with_rules(planet));
    poll().await;
    events.expect(&["published rules rejected; the previous rules stay in effect rules=versions version=7 "]);
    let entry = AccessEntry::network("203.0.113.0/24", Access::Block);
    source.publish(&version(8).with_access([entry]));
    poll().await;
    events.expect(&[
        "an access list, which is not enforced",
        "fleet rules applied rules=versions version=8 ",
    ]);
}

#[tokio::test(start_paused = true)]
async fn each_turn_of_a_switch_and_each_outage_has_an_event() {
    let (source, layer) = (Source::default(), layer());
    let mut events = Events::of(&source, "switch");
    let _follower = follow(&layer, source.clone());
    source.publish(&version(6).switched_off(true));
    poll().await;
    events.expect(&[
        "limits switched by the fleet rules=switch limits=off author=alice",
        "fleet rules applied rules=switch version=6 ",
    ]);

    layer.limiter().rules().enable();
    poll().await;
    events.expect(&["override of the fleet's rules or switch started or ended rules=switch overrides=true"]);
    layer.limiter().rules().clear_overrides();
    poll().await;
    events.expect(&["override of the fleet's rules or switch started or ended rules=switch overrides=false"]);

    source.state().head = None;
    pass(Duration::from_secs(30)).await;
    events.expect(&["rules source lost data; this instance keeps enforcing it. "]);
    source.state().manner = Manner::Fails;
    poll().await;
    events.expect(&["fleet rules cannot be read; the current rules stay in effect rules=switch error="]);
}

/// Requests wait while a thread of the runtime is busy with a large document.
#[tokio::test(start_paused = true)]
async fn a_document_is_applied_on_no_thread_of_the_runtime() {
    let (source, layer) = (Source::default(), layer());
    let events = Events::of(&source, "threads");
    let _follower = follow(&layer, source.clone());
    source.publish(&version(1).switched_off(true));
    poll().await;
    // The only thread of this runtime has the name of this test.
    let is_here = |line: &String| line.contains("a_document_is_applied_on_no_thread_of_the_runtime");
    let [switched, applied] = &*log(&events.rules) else {
        panic!("{:?}", log(&events.rules))
    };
    assert!(switched.contains("limits switched by the fleet") && !is_here(switched));
    assert!(applied.contains("fleet rules applied") && is_here(applied));
}
