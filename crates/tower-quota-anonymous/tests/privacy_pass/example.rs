//! The example `anonymous`: its output describes what happens.

use test_kit::RedisServer;
#[path = "../../examples/anonymous/main.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod anonymous;

async fn told(redis_url: Option<String>) -> String {
    let site = anonymous::Site::start(0, redis_url).await.unwrap();
    let mut out = Vec::new();
    anonymous::tell(&site, &mut out).await.unwrap();
    let told = String::from_utf8(out).unwrap();
    // Ports and nonces are others in each run.
    let told = told.replace(&*site.issuer, "issuer");
    let told = told
        .replace(&*site.origins[0], "first")
        .replace(&*site.origins[1], "second");
    let lines = told.lines().map(|line| match line.split_once(" of nonce ") {
        Some((before, after)) => before.to_owned() + after.trim_start_matches(|digit: char| digit.is_ascii_digit()),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the output lines for requests of this client.
fn sent<'a>(told: &'a str, who: &str) -> Vec<&'a str> {
    told.lines()
        .filter_map(|line| line.trim_start().strip_prefix(who)?.strip_prefix(": "))
        .collect()
}

fn check(told: &str) {
    let (passed, rejected) = (
        "GET http://first/ → 200 OK",
        "GET http://first/ → 429 Too Many Requests",
    );
    assert_eq!(sent(told, "anybody"), [passed, passed, rejected], "{told}");
    for part in [
        r#"ratelimit-policy: "address";q=2;w=3600, "anonymous";q=3;w=3600"#,
        "asks for a token of ARC (P-256) by the issuer issuer\n",
        "for first and second: 3 in each window for each credential.",
    ] {
        assert!(told.contains(part), "{told}");
    }
    let with_token = "GET http://first/ with the token → 200 OK";
    let mut all = vec![
        rejected,
        "GET http://issuer/.well-known/private-token-issuer-directory → 200 OK",
        "POST http://issuer/arc/request → 200 OK",
        with_token,
        // The challenge of the 429 is remembered.
        with_token,
        with_token,
        rejected,
        "no token is left, and no more is sent",
    ];
    assert_eq!(sent(told, "bob"), all, "{told}");
    all.push("POST http://issuer/arc/request → 429 Too Many Requests");
    assert_eq!(sent(told, "alice"), all, "{told}");
    let again = |name| format!("GET http://{name}/ with the token → 429 Too Many Requests");
    let expected = [with_token, &again("second"), &again("first")];
    assert_eq!(sent(told, "carol"), expected, "{told}");
}

#[tokio::test]
async fn the_example_tells_what_happens_with_what_it_counts_in_memory() {
    check(&told(None).await);
}

#[tokio::test]
async fn the_example_tells_the_same_with_what_it_counts_in_redis() {
    let server = RedisServer::start();
    check(&told(Some(server.url())).await);
    assert!(!server.command(&["KEYS", "*"]).is_empty());
}
