//! Rules of a fleet: publishers, instances, their reports, and what they have in Redis.

use super::*;

/// It is waited for without a pause, and not for ever.
async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(HANG, wait).await;
    assert!(waited.is_ok(), "still not so: {what}");
}

fn shown_by<T: std::fmt::Debug, E: Error>(answer: Result<T, E>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => said_by(&error),
    }
}

/// Publications that succeed and that fail, roll-backs and orders.
async fn publish_everything(publisher: &RulesPublisher) -> String {
    let invalid = Rules::new().policy(QuotaPolicy::per_day("day", u64::MAX));
    let mut shown = format!("{publisher:?}");
    for publication in [
        Publication::roll_back(),
        Publication::rules(invalid),
        Publication::rules(day(5)),
        Publication::rules(day(6)).rollout_percent(10),
        Publication::roll_back(),
        Publication::roll_back(),
        Publication::roll_back_to(99),
        Publication::restore(RulesDocument::new(1, day(7))),
    ] {
        shown += &format!("{publication:?}");
        match publisher.propose(publication.because("a test")).await {
            Ok(proposal) => {
                shown += &format!("{proposal} {proposal:?}");
                shown += &shown_by(publisher.commit(&proposal).await);
                shown += &shown_by(publisher.commit(&proposal).await);
            }
            Err(error) => shown += &said_by(&error),
        }
    }
    for control in [
        Control::switch_off().because("a test"),
        Control::switch_on(),
        Control::block_network("203.0.113.9").expires_in(HANG),
        Control::block_network("no network"),
        Control::remove_access(AccessEntry::network("198.51.100.1", Access::Block)),
    ] {
        shown += &format!("{control:?}");
        shown += &shown_by(publisher.control(control).await);
    }
    shown += &shown_by(publisher.controls().await);
    shown += &shown_by(publisher.current().await);
    shown += &shown_by(publisher.changes().await);
    shown + &shown_by(publisher.history().await)
}

fn rules(server: &RedisServer) -> RedisRules {
    RedisRules::new(login(server), "secrets").unwrap()
}

/// An instance that follows what is published, and its layer.
async fn follow(server: &RedisServer) -> (RulesFollower, RateLimitLayer) {
    let limiter = limiter(store(server)).digest_key(DIGEST_KEY);
    let layer = builder_of(limiter, key::extension::<User>()).build().unwrap();
    let builder = RulesFollower::builder(layer.limiter().rules(), rules(server)).instance("web");
    let builder = builder.access_list(AccessList::new(key::client_ip()));
    assert_hidden(&secrets(), "a builder", format!("{builder:?}"));
    let follower = builder.start().unwrap();
    follower.wait_for_rules().await;
    (follower, layer)
}

fn shown_of(follower: &RulesFollower) -> String {
    let (status, controls, document) = (follower.status(), follower.controls(), follower.document());
    let json = document.as_ref().map(RulesDocument::to_json);
    format!("{follower:?} {status:?} {controls:?} {document:?} {json:?}")
}

/// Rules that another program has written, and that no instance can carry out.
fn publish_garbage(server: &RedisServer) {
    let document = r#"{"format": 1, "version": 99, "rules": {"policies": 7}, "author": "x"}"#;
    let head = RulesVersion::of(99, document.as_bytes()).to_string();
    server.command(&["SET", "rules:{quota:secrets}:document", document]);
    server.command(&["SET", "rules:{quota:secrets}:head", &head]);
}

#[tokio::test]
async fn an_instance_of_a_fleet_and_its_reports_show_no_secret() {
    let (watch, Some(server)) = (Watch::start(), server()) else {
        return;
    };
    let publisher = RulesPublisher::new(rules(&server), "a deployment");
    publisher.publish(Publication::rules(day(5))).await.unwrap();
    let (follower, layer) = follow(&server).await;
    assert_eq!(statuses(&layer, 2).await, [200, 200]);
    let invalid = Rules::new().policy(QuotaPolicy::per_day("", 1));
    let rejected = layer.limiter().rules().replace(invalid);
    assert_hidden(&secrets(), "rules that are not valid", said_by(&rejected.unwrap_err()));

    publish_garbage(&server);
    until("the rules are rejected", async || {
        follower.status().rejected().is_some()
    })
    .await;
    let source = rules(&server);
    let reports = async || source.instances().await.unwrap();
    let is_reported = async || reports().await.iter().any(|report| report.rejects().is_some());
    until("the instance reports it", is_reported).await;
    assert_hidden(&secrets(), "a report", format!("{source:?} {:?}", reports().await));
    assert_hidden(&secrets(), "Redis", dump(&server));

    for (denied, problem) in [("-mget", "missing permission"), ("-eval", "to run the 'eval' command")] {
        may(&server, &["~*", "+@all", denied]);
        let status = || follower.status();
        let is_named = async || status().failure().is_some_and(|failure| failure.contains(problem));
        until("nothing is read", is_named).await;
        assert_hidden(&secrets(), "an instance with a permission too few", shown_of(&follower));
    }
    watch.assert_logged(&["fleet rules cannot be read"]);
    watch.assert_hidden(&secrets());
}

#[tokio::test]
async fn publications_that_succeed_and_fail_show_no_secret() {
    let (watch, Some(server)) = (Watch::start(), server()) else {
        return;
    };
    let publisher = RulesPublisher::new(rules(&server), "a deployment");
    assert_hidden(&secrets(), "a publisher", publish_everything(&publisher).await);
    assert_hidden(&secrets(), "Redis", dump(&server));
    may(&server, &["~*", "+@all", "-get", "-mget", "-eval"]);
    let shown = publish_everything(&publisher).await;
    assert!(shown.contains("no permissions to run"), "{shown}");
    assert_hidden(&secrets(), "a publisher without permissions", shown);
    server.kill();
    assert_hidden(
        &secrets(),
        "a publisher without a server",
        publish_everything(&publisher).await,
    );
    let version = rules(&server).state().await.unwrap_err();
    assert_hidden(&secrets(), "a source without a server", said_by(&version));
    watch.assert_hidden(&secrets());
}
