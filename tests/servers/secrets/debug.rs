//! Settings, clients and errors, as `{:?}` shows them.

use tower_quota::{Exemption, RedisStore, key::ForwardingField};
use tower_quota_anonymous::{TokenClientLayer, TrustedIssuer};
use tower_quota_fleet::{FileRules, RulesDocument};
use tower_ratelimit_client::ClientLayer;

use super::*;

#[tokio::test]
async fn layers_and_stores_show_no_secret_when_they_are_printed() {
    let url = format!("redis://{REDIS_USER}:{REDIS_PASSWORD}@127.0.0.1:1/0?key={QUERY}");
    let redis = RedisStore::builder(&url);
    let store = redis.clone().build().unwrap();
    let sentinel = RedisStore::sentinel_builder([&url], "limits").primary_url(&url);
    let list = AccessList::new(key::client_ip());
    list.update(|rules| rules.set_key(User(USER).to_partition_key(), Access::Block))
        .unwrap();
    let exemption = Exemption::when(|request| request.headers.contains_key("x-api-key"));
    let limiter = || limiter(store.clone());
    let by_user = |limiter| builder_of(limiter, key::extension::<User>());
    let with_all = || by_user(limiter().digest_key(DIGEST_KEY)).access_list(list.clone());
    let readable = by_user(limiter().readable_keys());
    let exempting = with_all().exempt(exemption.and(Exemption::path("/")));
    for shown in [
        format!("{redis:?} {store:?} {sentinel:?}"),
        format!("{readable:?} {exempting:?} {:?}", with_all().build()),
        format!("{list:?} {:?}", list.rules()),
    ] {
        assert_hidden(&secrets(), "`Debug`", shown);
    }
}

#[test]
fn keys_plans_and_documents_show_no_secret_when_they_are_printed() {
    let by_header = key::header("x-api-key");
    let proxies = key::client_ip().trusted_proxies(ForwardingField::Forwarded, ["10.0.0.0/8"]);
    let user = User(USER).to_partition_key();
    let scope = Scope::with_digest_key("a", &DIGEST_KEY);
    let policies = PolicySet::new([QuotaPolicy::per_day("day", 1)]).unwrap();
    let plan = Plan::new(policies, scope.partition(&user), 1);
    let entry = AccessEntry::key("user", USER, Access::Block);
    let document = RulesDocument::new(1, day(5)).with_access([entry.clone()]);
    let publication = Publication::restore(document.clone());
    for shown in [
        format!("{by_header:?} {proxies:?} {user:?} {scope:?} {plan:?}"),
        format!("{entry:?} {document:?} {publication:?} {:?}", FileRules::new("/rules")),
        format!("{:?}", Control::set_access(entry.clone())),
    ] {
        assert_hidden(&secrets(), "`Debug`", shown);
    }
    assert!(format!("{entry:?}").contains("user"), "the kind of its key: {entry:?}");
}

#[tokio::test]
async fn what_clients_know_of_a_server_shows_no_secret() {
    let client = ClientLayer::builder().partition_by(|request| Some(request.headers["x-api-key"].as_bytes().to_vec()));
    let tiers = TierLayer::by_extension(async |_: User| Ok::<_, Infallible>(Some("pro")));
    let trusted = TrustedIssuer::new(
        "issuer.example",
        service_fn(async |_: Request<Bytes>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))),
    );
    let tokens = TokenClientLayer::builder().issuer(trusted);
    assert_hidden(&secrets(), "a builder", format!("{client:?} {tiers:?} {tokens:?}"));
    let watch = Watch::start();
    let layer = client.queue_timeout(Duration::ZERO).build().unwrap();
    let server = service_fn(async |_: Request<String>| {
        let response = Response::builder().status(429).header("retry-after", "60");
        Ok::<_, Infallible>(response.body(String::new()).unwrap())
    });
    let mut shown = format!("{layer:?}");
    for _ in 0..2 {
        let mut request = request();
        *request.uri_mut() = format!("https://{USER}:{AUTHORIZATION}@api.example/?{QUERY}")
            .parse()
            .unwrap();
        let (parts, _) = request.clone().into_parts();
        shown += &match layer.layer(server).oneshot(request).await {
            Ok(response) => format!("{:?}", response.status()),
            Err(error) => said_by(&error),
        };
        shown += &format!("{:?} {layer:?}", layer.origin_status(&parts));
    }
    assert!(shown.contains("Throttled"), "{shown}");
    assert_hidden(&secrets(), "a client", shown);
    watch.assert_hidden(&secrets());
}

#[test]
fn errors_of_settings_show_no_secret() {
    let login = format!("{REDIS_USER}:{REDIS_PASSWORD}");
    for url in [
        format!("http://{login}@127.0.0.1/"),
        format!("redis://{login}@127.0.0.1:99999/"),
        format!("redis://{login}@127.0.0.1/no-number"),
        format!("redis://{login}@"),
        format!("{login}@127.0.0.1"),
        format!("redis://{REDIS_USER}:my?{REDIS_PASSWORD}@127.0.0.1/"),
        format!("redis://{REDIS_USER}:my#{REDIS_PASSWORD}@127.0.0.1/"),
        format!("redis://{REDIS_USER}:/{REDIS_PASSWORD}@127.0.0.1/"),
        format!("redis+unix:///tmp/redis.sock?db=x&user={REDIS_USER}&pass={REDIS_PASSWORD}"),
    ] {
        for built in [
            RedisStore::new(&url),
            RedisStore::cluster([&url]),
            RedisStore::sentinel([&url], "limits"),
            RedisStore::sentinel_builder([NO_SERVER], "limits")
                .primary_url(&url)
                .build(),
            RedisStore::builder(&url).connections(0).build(),
        ] {
            // Some are not wrong for a socket or for the primary.
            let shown = built.map_or_else(|error| said_by(&error), |store| format!("{store:?}"));
            assert_hidden(&secrets(), &url, shown);
        }
    }
    // Without an `@`, the text before the colon is the host.
    let shown = said_by(&RedisStore::new(format!("redis://{login}")).unwrap_err());
    assert_hidden(&[Secret::new("the password", REDIS_PASSWORD)], "an error", shown);
    let limiter = || limiter(MemoryStore::new()).digest_key(DIGEST_KEY);
    let builder = || builder_of(limiter(), key::header("x-api-key"));
    for layer in [
        builder_of(limiter().readable_keys(), key::header("x-api-key")),
        builder().key(key::extension::<User>()),
        builder().scope(""),
        builder().policy(QuotaPolicy::per_day("day", 3)),
    ] {
        assert_hidden(&secrets(), "an error", said_by(&layer.build().unwrap_err()));
    }
}
