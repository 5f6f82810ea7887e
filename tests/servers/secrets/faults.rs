//! Faults of Redis, with administrative calls during each of them.

use super::*;

/// All calls that an administrator can make about a user, known or not.
async fn administer(layer: &RateLimitLayer) -> String {
    let (admin, user) = (layer.limiter(), User(USER));
    let refund = Refund::new(1, ChargeTime::Now).with_id(USER);
    let mut shown = format!("{admin:?} {:?}", admin.circuit());
    fn noted<T: std::fmt::Debug>(shown: &mut String, answer: Result<T, LimiterError>) {
        *shown += &match answer {
            Ok(answer) => format!("{answer:?} {answer:#?}"),
            Err(error) => said_by(&error),
        };
    }
    for tier in [None, Some("no tier")] {
        noted(&mut shown, admin.caller(&user).tier(tier).peek().await);
        noted(&mut shown, admin.keyed_by("no key", &user).tier(tier).peek().await);
        noted(&mut shown, admin.caller(&user).tier(tier).cost(1).peek().await);
        noted(&mut shown, admin.caller(&user).tier(tier).cost(u64::MAX).peek().await);
        noted(
            &mut shown,
            admin.caller(&user).tier(tier).units("no unit", 1).peek().await,
        );
        noted(&mut shown, admin.caller(&user).tier(tier).refund(&refund).await);
        noted(&mut shown, admin.caller(&user).tier(tier).refund(&refund).await);
    }
    noted(&mut shown, admin.caller(&user).reset().await);
    noted(&mut shown, admin.keyed_by("no key", &user).reset().await);
    let top_up = CallerQuotas::new().top_up("day", u64::MAX, Clock::system().now().saturating_add(HANG));
    noted(&mut shown, admin.caller(&user).quotas(top_up).peek().await);
    match admin.flush(HANG).await {
        Ok(()) => shown,
        Err(error) => shown + &said_by(&error),
    }
}

/// Requests, questions of administrators, and the store itself. Returns how the circuit is.
async fn meet(fault: &str, store: RedisStore, requests: usize) -> Option<CircuitState> {
    let by_user = || {
        let limiter = Limiter::builder(store.clone()).deadline(Duration::from_millis(50));
        builder_of(limiter.digest_key(DIGEST_KEY), key::extension::<User>())
    };
    let closed = by_user().scope("closed").failure_mode(FailureMode::Closed);
    let open = by_user().build().unwrap();
    statuses(&open, requests).await;
    let all = statuses(&closed.build().unwrap(), 1).await;
    assert!([200, 503].contains(&all[0]), "{fault}: {all:?}");
    let policies = PolicySet::new([QuotaPolicy::per_day("day", 2)]).unwrap();
    let user = Scope::with_digest_key("secrets", &DIGEST_KEY).partition(&User(USER).to_partition_key());
    let plan = Plan::new(policies, user, 1);
    let mut shown = format!("{plan:?} {store:?}");
    let answer = tokio::time::timeout(Duration::from_millis(50), store.decide(plan)).await;
    if let Ok(Err(error)) = answer {
        shown += &said_by(&error);
    }
    shown += &administer(&open).await;
    let circuit = open.limiter().circuit();
    assert_hidden(&secrets(), fault, format!("{shown} {circuit:?}"));
    circuit
}

fn is_open(circuit: Option<CircuitState>) -> bool {
    matches!(circuit, Some(CircuitState::Open { .. }))
}

#[tokio::test]
async fn garbage_in_redis_shows_no_secret() {
    let (watch, Some(server)) = (Watch::start(), server()) else {
        return;
    };
    assert!(!is_open(meet("no fault", store(&server), 3).await));
    assert_hidden(&secrets(), "Redis", dump(&server));
    let keys = String::from_utf8(server.command_bytes(&[b"KEYS", b"quota:*"])).unwrap();
    let keys: Vec<_> = keys.lines().filter(|line| line.starts_with("quota:")).collect();
    assert!(!keys.is_empty());
    for key in &keys {
        server.command(&["SET", key, &"\u{7f}".repeat(99)]);
    }
    meet("garbage in Redis", store(&server), 1).await;
    for key in &keys {
        server.command(&["DEL", key]);
        server.command(&["RPUSH", key, "1"]);
    }
    meet("a value of another type", store(&server), 1).await;
    watch.assert_hidden(&secrets());
}

#[tokio::test]
async fn missing_permissions_show_neither_the_login_of_redis_nor_who_has_called() {
    let (watch, Some(server)) = (Watch::start(), server()) else {
        return;
    };
    may(&server, &["~quota:*", "+@all", "-evalsha", "-eval"]);
    meet("no permission", store(&server), 1).await;
    may(&server, &["~quota:*", "+@all", "-get"]);
    meet("no permission inside of a script", store(&server), 1).await;
    may(&server, &["~other:*", "+@all"]);
    meet("no permission for the keys", store(&server), 1).await;
    may(&server, &["~*", "+@all", "-select"]);
    let database = url(REDIS_PASSWORD, server.port()) + "3";
    meet("no permission to connect", RedisStore::new(database).unwrap(), 1).await;
    watch.assert_logged(&[
        "mistake=no-permission",
        "no permissions to run the 'evalsha' command",
        "no permissions to run the 'select' command",
    ]);
    watch.assert_hidden(&secrets());
}

#[tokio::test]
async fn outages_of_redis_show_neither_its_login_nor_who_has_called() {
    let (watch, Some(server)) = (Watch::start(), server()) else {
        return;
    };
    let wrong = RedisStore::new(url("wrong-".to_owned() + REDIS_PASSWORD, server.port())).unwrap();
    assert!(is_open(meet("a wrong password", wrong, 6).await));
    let connected = store(&server);
    meet("no fault", connected.clone(), 1).await;
    server.pause();
    assert!(is_open(meet("a server that hangs", connected.clone(), 6).await));
    server.resume();
    server.kill();
    assert!(is_open(meet("a killed server", connected, 6).await));
    assert!(is_open(meet("no server", store(&server), 6).await));
    let nowhere = url(REDIS_PASSWORD, 1);
    meet("no cluster", RedisStore::cluster([&nowhere]).unwrap(), 2).await;
    meet("no sentinel", RedisStore::sentinel([&nowhere], "limits").unwrap(), 2).await;
    watch.assert_logged(&[
        "Password authentication failed",
        "circuit opened",
        "store timed out",
        "store unreachable",
        "connection to Redis failed",
        "cluster node not responding",
    ]);
    watch.assert_hidden(&secrets());
}

/// Redis 7.2, Valkey and newer ones put the name of the user into the error.
#[tokio::test]
async fn errors_of_servers_that_name_the_user_are_shown_without_the_name() {
    for (error, shown) in [
        (
            "NOPERM User _ has no permissions to run the 'evalsha' command",
            "this user has no permissions to run the 'evalsha'",
        ),
        (
            "NOPERM User _ has no permissions to access the 'a' key",
            "this user has no permissions to access the 'a' key",
        ),
        (
            "NOPERM ACL failure in script: User _ has no permissions to run the 'get' command",
            "ACL failure in script: this user has no permissions to run the 'get' command",
        ),
    ] {
        let watch = Watch::start();
        let reply = format!("-{}\r\n", error.replace('_', REDIS_USER)).into_bytes();
        let server = ScriptedServer::start(move |_| reply.clone()).await;
        let url = server.url().replace("//", &format!("//{REDIS_USER}:{REDIS_PASSWORD}@"));
        meet("a user without permission", RedisStore::new(url).unwrap(), 1).await;
        watch.assert_logged(&["mistake=no-permission", shown]);
        watch.assert_hidden(&secrets());
    }
}
