//! Requests that are rejected, that fail, and whose keys may be read.

use super::*;

const DIALECTS: [ResponseFields; 7] = [
    ResponseFields::draft11(),
    ResponseFields::draft11().with_draft06_limit(),
    ResponseFields::in_between(),
    ResponseFields::draft07(),
    ResponseFields::draft06(),
    ResponseFields::legacy(LegacyReset::DeltaSeconds),
    ResponseFields::none(),
];

#[tokio::test]
async fn rejections_in_all_dialects_show_no_secret_of_the_request() {
    let (watch, Some(server)) = (Watch::start(), server()) else {
        return;
    };
    for (number, fields) in DIALECTS.into_iter().enumerate() {
        for (kind, layer) in by_each_key(&server).into_iter().enumerate() {
            let layer = layer
                .response_fields(fields.clone())
                .scope(format!("{number} {kind}"))
                .build()
                .unwrap();
            assert_eq!(statuses(&layer, 3).await, [200, 200, 429]);
            let mut call = request();
            call.headers_mut()
                .insert("content-type", "application/grpc".parse().unwrap());
            let (status, shown) = send(&layer, call).await;
            assert!(status == 200 && shown.contains("grpc-status: 8"), "{shown}");
            assert_hidden(&secrets(), "a gRPC status", shown);
        }
    }
    assert_hidden(&secrets(), "Redis", dump(&server));
    watch.assert_hidden(&secrets());
}

#[tokio::test]
async fn rejections_for_other_reasons_show_no_secret_of_the_request() {
    let watch = Watch::start();
    let blocking = AccessList::new(key::client_ip());
    blocking
        .update(|rules| rules.set_key(User(USER).to_partition_key(), Access::Block))
        .unwrap();
    let by_user = || builder(MemoryStore::new(), key::extension::<User>()).scope("screened");
    let abnormal = |_: &_| Some(AbnormalUsage::new().with_violated_policy("spam"));
    let no_key = builder(MemoryStore::new(), key::header("x-not-sent")).scope("no key");
    for (layer, status) in [
        (by_user().access_list(blocking), 403),
        (by_user().abnormal_usage(abnormal), 429),
        (no_key.on_missing_key(MissingKey::Reject), 403),
    ] {
        assert_eq!(statuses(&layer.build().unwrap(), 1).await, [status]);
    }
    static LOGGED: Mutex<String> = Mutex::new(String::new());
    let layer = by_user()
        .scope("logged")
        .policy(QuotaPolicy::per_day("closed", 0))
        .respond_with(|rejection| {
            *LOGGED.lock().unwrap() += &format!("{rejection:?} {rejection:#?}");
            rejection.to_response()
        });
    statuses(&layer.build().unwrap(), 1).await;
    let logged = LOGGED.lock().unwrap();
    assert!(logged.contains("Rejection"));
    assert_hidden(&secrets(), "a rejection", &*logged);
    watch.assert_hidden(&secrets());
}

#[tokio::test]
async fn a_handler_that_panics_and_a_tier_that_is_not_found_show_no_secret() {
    let (watch, Some(server)) = (Watch::start(), server()) else {
        return;
    };
    let layer = builder(store(&server), key::extension::<User>()).build().unwrap();
    let handler =
        service_fn(async |_: Request<String>| -> Result<Response<Full<Bytes>>, Infallible> { panic!("in a test") });
    let answer = AssertUnwindSafe(layer.layer(handler).oneshot(request()))
        .catch_unwind()
        .await;
    let panic = *answer.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!(panic, "in a test");
    layer.limiter().flush(HANG).await.unwrap();

    let find = async |_: User| Err::<Option<&str>, _>("the database is down");
    let tiers = TierLayer::by_extension(find).build().unwrap();
    let limits = builder(store(&server), key::extension::<User>())
        .scope("tiers")
        .tiers(Tiers::resolved().unlimited("a"));
    let limits = limits.build();
    assert_hidden(&secrets(), "an error of `build()`", said_by(&limits.unwrap_err()));
    let handler = service_fn(async |_: Request<String>| Ok::<_, Infallible>(()));
    tiers.layer(handler).oneshot(request()).await.unwrap();
    watch.assert_logged(&["tier lookup failed"]);
    assert_hidden(
        &secrets(),
        "the cache of tiers",
        format!("{tiers:?} {:?}", tiers.cache()),
    );
    assert_hidden(&secrets(), "Redis", dump(&server));
    watch.assert_hidden(&secrets());
}

/// The exception, and how far it goes.
#[tokio::test]
async fn readable_keys_show_callers_in_the_keys_of_redis_and_nowhere_else() {
    let (watch, Some(server)) = (Watch::start(), server()) else {
        return;
    };
    let limiter = limiter(store(&server)).readable_keys();
    let layer = builder_of(limiter, key::header("x-user-id")).build().unwrap();
    assert_eq!(statuses(&layer, 3).await, [200, 200, 429]);
    assert_hidden(&credentials(), "Redis", dump(&server));
    let keys = server.command_bytes(&[b"KEYS", b"*"]);
    let shown = format!("quota:{{scope:secrets/x-user-id:{USER}}}");
    assert!(
        String::from_utf8_lossy(&keys).contains(&shown),
        "{}",
        keys.escape_ascii()
    );

    may(&server, &["~other:*", "+@all"]);
    statuses(&layer, 1).await;
    let admin = layer.limiter();
    let user = PartitionKey::new("x-user-id", USER);
    assert_hidden(
        &secrets(),
        "an error",
        said_by(&admin.caller(&user).reset().await.unwrap_err()),
    );
    server.kill();
    statuses(&layer, 6).await;
    watch.assert_hidden(&secrets());
    assert_hidden(
        &secrets(),
        "a layer",
        format!("{layer:?} {admin:?} {:?}", admin.circuit()),
    );
}
