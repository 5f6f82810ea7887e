//! Which responses have fields, and how much the fields reveal.

use std::{collections::HashSet, time::UNIX_EPOCH};

use http::Uri;
use tower_quota::{
    Direction, Outcome, PartitionId, PartitionKey, Scope,
    fields::{EmitWhen, Hints, LimitHint, PolicyHint},
};

use super::*;

fn told(answer: &Answer) -> bool {
    !answer.field("ratelimit").is_empty()
}

/// B13, D9
#[tokio::test]
async fn the_closest_policy_alone_is_shown_of_each_unit() {
    let scene = Scene::new();
    let policies = [
        minute(100),
        fixed(QuotaPolicy::per_day("day", 5_000)),
        QuotaPolicy::per_minute("bytes", 10).with_content_bytes(Direction::Both),
        QuotaPolicy::per_minute("more bytes", 11).with_content_bytes(Direction::Request),
        QuotaPolicy::concurrent("slots", 3),
    ];
    let layer = scene.layer(ResponseFields::draft11().tightest_only(), policies);
    let answer = take(&layer, 1).await;
    let limits = r#""minute";r=99;t=60, "bytes";r=5;t=30, "slots";r=2"#;
    assert_eq!(answer.field("ratelimit"), limits);
    let policies = answer.field("ratelimit-policy");
    assert_eq!(policies.matches(";q=").count(), 5, "{policies}");
}

/// D8: with a threshold of 10 %, 11 of 100 are silent and 10 are not.
#[tokio::test]
async fn fields_near_exhaustion_begin_at_the_threshold() {
    let scene = Scene::new();
    let fields = ResponseFields::draft11().emit_when(EmitWhen::NearExhaustion(10));
    let layer = scene.layer(fields, [minute(100), QuotaPolicy::per_day("day", 5_000)]);
    let silent = take(&layer, 89).await;
    assert_eq!((silent.outcome(), silent.fields(TOLD)), (Outcome::Allowed, [""; 3]));
    let limits = r#""minute";r=10;t=60, "day";r=4910;t=84845"#;
    let policies = r#""minute";q=100;w=60, "day";q=5000;w=86400"#;
    assert_eq!(take(&layer, 1).await.fields(TOLD), [limits, policies, ""]);
}

/// D4: in any order of the policies, and also where the numbers of a memory store are shown without a decision.
#[tokio::test]
async fn retry_after_is_the_longest_of_all_times_that_are_told_of_violated_policies() {
    let buckets = [QuotaPolicy::per_minute("minute", 1), QuotaPolicy::per_hour("hour", 1)];
    for [minute, hour] in [buckets.clone(), buckets.map(fixed)] {
        for policies in [[minute.clone(), hour.clone()], [hour, minute]] {
            let layer = Scene::new().layer(ResponseFields::draft11(), policies);
            take(&layer, 1).await;
            let rejected = take(&layer, 1).await;
            let told = rejected.field("ratelimit");
            let both = [r#""minute";r=0;t=60"#, r#""hour";r=0;t=3600"#];
            assert!(both.iter().all(|limit| told.contains(limit)), "{told}");
            assert_eq!(rejected.field("retry-after"), "3600", "{told}");
        }
    }
}

/// A wait helps no request that costs more than a policy ever lets pass.
#[tokio::test]
async fn a_request_that_never_passes_is_told_so_and_no_time_to_wait() {
    let scene = Scene::new();
    let never = "The request cost exceeds the capacity of the quota.";
    for (policy, violated) in [(minute(5), vec!["minute"]), (minute(5).hidden(), vec![])] {
        let policies = [policy, fixed(QuotaPolicy::per_hour("hour", 90))];
        let layer = scene.layer(ResponseFields::draft11(), policies);
        let rejected = take(&layer, 6).await;
        assert_eq!((rejected.code(), rejected.field("retry-after")), (429, ""));
        let title = "Request cannot be satisfied as assigned quota has been exceeded";
        let mut expected = problem_of("quota-exceeded", title, 429, &violated);
        expected["detail"] = never.into();
        assert_eq!(problem(&rejected), expected);

        take(&layer, 4).await;
        let later = take(&layer, 4).await;
        assert_eq!((later.code(), later.field("retry-after")), (429, "60"));
        assert_eq!(super::problem(&later).get("detail"), None);
        scene.wait(60);
    }
}

/// I2: a client learns when to come back, and nothing else.
#[tokio::test]
async fn a_hidden_policy_is_enforced_and_in_no_field_and_no_body() {
    let scene = Scene::new();
    let policies = || [minute(1).hidden(), QuotaPolicy::per_minute("shown", 9)];
    for fields in dialects() {
        let layer = scene.layer(fields, policies());
        scene.wait(60);
        take(&layer, 1).await;
        let rejected = take(&layer, 1).await;
        assert_eq!(rejected.status(), 429);
        assert_eq!(rejected.field("retry-after"), "60");
        assert_eq!(problem(&rejected)["violated-policies"], serde_json::json!([]));
        let everything = format!("{:?} {:?}", rejected.headers(), rejected.body());
        assert!(!everything.contains("minute"), "{everything}");
        let decision = rejected.decision();
        assert_eq!(decision.violated().next().unwrap().policy().name(), "minute");
    }
    let all_hidden = scene.layer(ResponseFields::draft11(), [minute(9).hidden()]);
    let nothing = take(&all_hidden, 1).await;
    // A1: an empty list is not a valid value, so neither field is present.
    assert!(!TOLD.iter().any(|name| nothing.headers().contains_key(*name)));
}

/// D3: a client should not delay a request that the response instructs it to send.
#[tokio::test]
async fn a_redirect_does_not_show_a_low_limit() {
    let scene = Scene::new();
    let redirect = |status| {
        let mut response = ok();
        *response.status_mut() = status;
        response
    };
    let layer = scene.layer(ResponseFields::draft11(), [minute(20)]);
    let high = send(&layer, costing(17), redirect(StatusCode::MOVED_PERMANENTLY)).await;
    assert_eq!(high.field("ratelimit"), r#""minute";r=3;t=60"#);
    for status in [301, 302, 303, 307, 308] {
        let low = send(&layer, costing(0), redirect(StatusCode::from_u16(status).unwrap())).await;
        assert!(told(&low), "three of twenty are not low");
    }
    take(&layer, 3).await;
    for status in [301, 302, 303, 307, 308].map(|status| StatusCode::from_u16(status).unwrap()) {
        let low = send(&layer, costing(0), redirect(status)).await;
        assert_eq!(low.fields(TOLD), ["", r#""minute";q=20;w=60"#, ""], "{status}");
    }
    let not_modified = send(&layer, costing(0), redirect(StatusCode::NOT_MODIFIED)).await;
    assert!(told(&not_modified) && told(&take(&layer, 0).await));
}

/// D7, D5
#[tokio::test]
async fn a_closure_can_lower_what_is_shown_and_never_raise_it() {
    let scene = Scene::new();
    let lowered = ResponseFields::draft11().map_remaining(|allowance| allowance.remaining() / 3);
    let layer = scene.layer(lowered, [fixed(QuotaPolicy::per_minute("basic", 62))]);
    scene.wait(2);
    assert_eq!(take(&layer, 2).await.field("ratelimit"), r#""basic";r=20;t=58"#);
    let raised = ResponseFields::draft11().map_remaining(|_| u64::MAX);
    let layer = scene.layer(raised, [fixed(QuotaPolicy::per_minute("basic", 62))]);
    assert_eq!(take(&layer, 0).await.field("ratelimit"), r#""basic";r=60;t=58"#);
}

/// D4, D10, I6, J28
#[tokio::test]
async fn jitter_adds_the_same_seconds_to_all_times_of_a_response_and_other_ones_to_the_next() {
    let scene = Scene::new();
    let fields = ResponseFields::draft11().with_jitter(Duration::from_secs(20));
    let fields = fields.with_draft06_limit();
    let layer = scene.layer(fields, [minute(1)]);
    take(&layer, 1).await;
    let mut seen = HashSet::new();
    for _ in 0..300 {
        let rejected = take(&layer, 1).await;
        let seconds: u64 = rejected.field("retry-after").parse().unwrap();
        assert!((60..=80).contains(&seconds), "{seconds}");
        assert_eq!(rejected.field("ratelimit"), format!(r#""minute";r=0;t={seconds}"#));
        assert_eq!(rejected.field("ratelimit-reset"), seconds.to_string());
        seen.insert(seconds);
    }
    assert!(seen.len() > 10, "{seen:?}");
}

#[test]
fn settings_out_of_their_range_are_rejected_and_named() {
    let scene = Scene::new();
    let fields = ResponseFields::draft11;
    for (fields, message) in [
        (
            fields().with_jitter(Duration::from_secs(3_601)),
            "jitter 3601s exceeds 3600s",
        ),
        // Fields contain whole seconds, so a jitter of less than a second would have no effect.
        (
            fields().with_jitter(Duration::from_millis(999)),
            "jitter 999ms is not a whole number of seconds",
        ),
        (
            fields().emit_when(EmitWhen::NearExhaustion(101)),
            "percentage 101 is outside 0..=100",
        ),
    ] {
        let error = scene.builder([minute(1)]).response_fields(fields).build().unwrap_err();
        assert_eq!(error.kind(), tower_quota::ConfigErrorKind::ResponseFields);
        assert_eq!(error.to_string(), format!("response fields: {message}"));
    }
}

/// D18: a rejected client gets a date instead of a number, and the date is not too early.
#[tokio::test]
async fn retry_after_can_be_a_date() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::draft11().with_retry_after_as_date(), [minute(1)]);
    take(&layer, 1).await;
    let before = Duration::from_micros(Clock::system().now().as_micros());
    let rejected = take(&layer, 1).await;
    let date = httpdate::parse_http_date(rejected.field("retry-after")).unwrap();
    let wait = date.duration_since(UNIX_EPOCH + before).unwrap();
    assert!((60..3_600).contains(&wait.as_secs()), "{wait:?}");
}

/// E5: a caller's name is not in the key. Without a digest key of the server, a client can check a guess of the name;
/// with one, only a client that has the key can.
#[tokio::test]
async fn a_shown_partition_key_does_not_hold_the_name_and_with_a_digest_key_confirms_no_guess() {
    let scene = Scene::new();
    let policy = || [minute(9).show_partition_key()];
    let open = scene.layer(ResponseFields::draft11(), policy());
    let keyed = scene.keyed(policy());
    let guess = PartitionKey::new("x-user-id", "alice");
    let guesses = [Scope::new("fields"), Scope::new("alice")].map(|scope| scope.partition(&guess).shown_key().to_vec());
    for (layer, is_confirmed) in [(open, true), (keyed, false)] {
        let answer = take(&layer, 1).await;
        assert!(!format!("{:?} {:?}", answer.headers(), answer.body()).contains("alice"));
        let hints = Hints::read(answer.headers());
        let limits = hints.limits().iter().filter_map(LimitHint::partition_key);
        let policies = hints.policies().iter().filter_map(PolicyHint::partition_key);
        let shown: Vec<_> = limits.chain(policies).collect();
        assert_eq!(shown.len(), 2);
        for key in shown {
            assert!(!key.windows(5).any(|part| part == b"alice"));
            assert_eq!(guesses.iter().any(|guess| guess == key), is_confirmed);
        }
    }
}

/// A16, B8, E1, E4: each policy shows the partition that it counts for, the same one in both fields, and in either dialect that has
/// a word for it.
#[tokio::test]
async fn policies_of_several_partitions_show_each_its_own_key() {
    let scene = Scene::new();
    for fields in [ResponseFields::draft11(), ResponseFields::in_between()] {
        let route = QuotaPolicy::per_minute("route", 90).keyed_by("route");
        let day = QuotaPolicy::per_day("day", 900).keyed_by("route");
        let builder = scene.builder([minute(9).show_partition_key(), route.show_partition_key(), day]);
        let builder = builder.named_key("route", key::header("x-route"));
        let layer = builder.response_fields(fields).build().unwrap();
        let mut request = costing(1);
        request.headers_mut().insert("x-route", "books".parse().unwrap());
        let answer = send(&layer, request, ok()).await;
        let scope = Scope::new("fields");
        let user = PartitionKey::new("x-user-id", "alice");
        let route = PartitionKey::new("x-route", "books");
        let keys = [scope.partition(&user), scope.keyed_by("route").partition(&route)].map(PartitionId::shown_key);
        let expected = [Some(&keys[0][..]), Some(&keys[1][..]), None];
        let hints = Hints::read(answer.headers());
        let limits: Vec<_> = hints.limits().iter().map(LimitHint::partition_key).collect();
        assert_eq!(limits, expected);
        let policies: Vec<_> = hints.policies().iter().map(PolicyHint::partition_key).collect();
        assert_eq!(policies, expected);
    }
}

/// A19, J14, J18
#[tokio::test]
async fn vendor_parameters_are_written_and_bare_names_rejected() {
    let scene = Scene::new();
    let policy = || QuotaPolicy::per_minute("minute", 100).with_burst_capacity(120);
    let extended = || policy().with_extension("acme-burst", 20);
    for (fields, expected) in [
        (ResponseFields::draft11(), r#""minute";q=100;w=60;acme-burst=20"#),
        (ResponseFields::in_between(), "minute;q=100;w=60;acme-burst=20"),
        (ResponseFields::draft06(), "100;w=60;acme-burst=20"),
    ] {
        let layer = scene.layer(fields.clone(), [extended()]);
        assert_eq!(take(&layer, 1).await.field("ratelimit-policy"), expected);
        let builder = scene.builder([policy().with_extension("burst", 20)]);
        let error = builder.response_fields(fields).build().unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("vendor prefix"), "{cause}");
        assert_eq!(error.to_string(), format!(r#"policy "minute": {cause}"#));
    }
}

/// J27
#[tokio::test]
async fn the_application_adds_fields_of_its_own() {
    let scene = Scene::new();
    let fields = ResponseFields::none().with_extra_fields(|decision, headers| {
        for allowance in decision.allowances() {
            let quota = allowance.policy().quota();
            headers.insert("acme-ratelimit-daylimit", quota.into());
        }
    });
    let layer = scene.layer(fields, [QuotaPolicy::per_day("day", 5_000)]);
    assert_eq!(take(&layer, 1).await.field("acme-ratelimit-daylimit"), "5000");
}

/// D16, E7, I9: the layer ignores these fields in a request, and does not show its user ID.
#[tokio::test]
async fn fields_of_a_request_have_no_effect_and_none_of_its_text_is_shown() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::draft11(), [minute(2).show_partition_key()]);
    let request = || {
        Request::get(Uri::from_static("/%0d%0aratelimit:evil"))
            .header("x-user-id", "evil\t\"; r=9")
            .header("ratelimit", r#""minute";r=999;pk=:YQ==:"#)
            .header("ratelimit-policy", r#""minute";q=999"#)
            .body(String::new())
            .unwrap()
    };
    for left in [1, 0, 0] {
        let answer = send(&layer, request(), ok()).await;
        let (limits, expected) = (answer.field("ratelimit"), format!(r#""minute";r={left};t=60;"#));
        assert!(limits.starts_with(&expected), "{limits}");
        assert!(!format!("{:?}{:?}", answer.headers(), answer.body()).contains("evil"));
    }
}

/// C11, C12, C5
#[tokio::test]
async fn the_status_of_rejections_can_be_another_one() {
    let scene = Scene::new();
    let builder = || scene.builder([minute(1)]);
    let layer = builder().rejection_status(StatusCode::FORBIDDEN).build().unwrap();
    take(&layer, 1).await;
    let rejected = take(&layer, 1).await;
    assert_eq!((rejected.code(), &problem(&rejected)["status"]), (403, &403.into()));
    assert_eq!(
        rejected.fields(TOLD),
        [r#""minute";r=0;t=60"#, r#""minute";q=1;w=60"#, "60"]
    );
    let error = builder().rejection_status(StatusCode::OK).build().unwrap_err();
    assert_eq!(error.to_string(), "rejection status 200 is outside 400..=599");
}

/// RFC 9110, section 15.1: what caches may store by themselves would be given to clients that are not rejected.
#[tokio::test]
async fn a_rejection_that_a_cache_could_store_says_not_to() {
    let rejected = async |status: u16, own: Option<&'static str>, grpc: Option<&str>| {
        let builder = Scene::new().builder([minute(1)]).respond_with(move |rejection| {
            let mut response = rejection.to_response();
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            if let Some(own) = own {
                response.headers_mut().insert("cache-control", own.parse().unwrap());
            }
            response
        });
        let layer = builder.build().unwrap();
        take(&layer, 1).await;
        let mut request = costing(1);
        if let Some(method) = grpc {
            *request.method_mut() = method.parse().unwrap();
            let content_type = "application/grpc".parse().unwrap();
            request.headers_mut().insert("content-type", content_type);
        }
        let answer = send(&layer, request, ok()).await;
        assert_eq!(answer.status(), status);
        answer.field("cache-control").to_owned()
    };
    for status in 200..600 {
        let is_stored = [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 451, 501].contains(&status);
        let expected = if is_stored { "no-store" } else { "" };
        assert_eq!(rejected(status, None, None).await, expected, "{status}");
    }
    assert_eq!(rejected(404, Some("max-age=1"), None).await, "max-age=1");
    // A GET request that claims to be gRPC must not make the rejection cacheable for other clients.
    assert_eq!(rejected(200, None, Some("GET")).await, "no-store");
    assert_eq!(rejected(200, None, Some("POST")).await, "");

    let builder = Scene::new().builder([minute(1)]);
    let layer = builder.rejection_status(StatusCode::NOT_FOUND).build().unwrap();
    // The responses of the inner service are not changed.
    for expected in ["", "no-store"] {
        assert_eq!(take(&layer, 1).await.field("cache-control"), expected);
    }
}

/// D15
#[tokio::test]
async fn a_client_that_is_told_of_nothing_left_is_served_all_the_same_if_there_is() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::draft11().map_remaining(|_| 0), [minute(2)]);
    for _ in 0..2 {
        let served = take(&layer, 1).await;
        let limit = r#""minute";r=0;t=60"#;
        assert_eq!((served.code(), served.field("ratelimit")), (200, limit));
    }
    assert_eq!(take(&layer, 1).await.status(), 429);
}
