//! Requests that no honest client sends.

use axum::{Router, routing::get};
use http::{Request, StatusCode};
use tower_quota::{
    MemoryStore,
    key::{self, ForwardingField},
};

use crate::{Server, limits, limits_by, remaining};

/// A GET request with these field lines, on a separate connection.
fn get_with(lines: &[&[u8]]) -> Vec<u8> {
    let mut request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n".to_vec();
    for line in lines {
        request.extend_from_slice(line);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    request
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

async fn server_by_user(quota: u64) -> Server {
    let app = Router::new().route("/", get(async || "ok"));
    Server::axum(app.layer(limits(MemoryStore::new(), "api", quota))).await
}

/// The trusted proxies are 127.0.0.1, where all requests come from, and 10.0.0.0/8.
async fn server_behind_proxies(field: ForwardingField, quota: u64) -> Server {
    let by_address = key::client_ip().trusted_proxies(field, ["127.0.0.1", "10.0.0.0/8"]);
    let limits = limits_by(by_address, MemoryStore::new(), "api", quota);
    let app = Router::new().route("/", get(async || "ok"));
    Server::axum(app.layer(limits.build().unwrap())).await
}

/// The units that an honest client behind the proxies has left after one request.
async fn left_to(server: &Server, field: &str, value: &str) -> u64 {
    let request = Request::get("/").header(field, value);
    remaining(&server.send(request.body(String::new()).unwrap()).await)
}

/// D16, E7
#[tokio::test]
async fn rate_limit_fields_of_a_request_have_no_effect() {
    let server = server_by_user(2).await;
    let claim = |limit: &str| {
        let limit = format!("ratelimit: {limit}");
        get_with(&[
            b"x-user-id: alice",
            limit.as_bytes(),
            br#"ratelimit-policy: "day";q=999;w=1"#,
        ])
    };
    let mut statuses = Vec::new();
    for limit in [
        r#""day";r=0;t=99"#,
        r#""day";r=999;t=1"#,
        r#""day";r=999;t=1;pk=:Ym9i:"#,
    ] {
        statuses.push(status(&server.answer_to(&claim(limit)).await));
    }
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn a_user_id_of_ten_kilobytes_is_a_user_of_its_own() {
    let server = server_by_user(1).await;
    let long = |last: u8| {
        let mut line = b"x-user-id: ".to_vec();
        line.extend_from_slice(&[b'a'; 10_000]);
        line.push(last);
        get_with(&[&line])
    };
    let mut statuses = Vec::new();
    for last in [b'1', b'1', b'2'] {
        statuses.push(status(&server.answer_to(&long(last)).await));
    }
    assert_eq!(statuses, [200, 429, 200]);
}

#[tokio::test]
async fn a_user_id_that_is_not_utf_8_is_a_user_of_its_own() {
    let server = server_by_user(1).await;
    let mut statuses = Vec::new();
    for user in [b"\xff\xfe", b"\xff\xfe", b"\xff\xff", b"\xc3\x28"] {
        let line = [b"x-user-id: ".as_slice(), user].concat();
        statuses.push(status(&server.answer_to(&get_with(&[&line])).await));
    }
    assert_eq!(statuses, [200, 429, 200, 200]);
}

#[tokio::test]
async fn two_user_ids_in_one_request_are_nobody() {
    let server = server_by_user(9).await;
    let both = get_with(&[b"x-user-id: alice", b"x-user-id: bob"]);
    assert_eq!(status(&server.answer_to(&both).await), 200);
    for user in ["alice", "bob"] {
        assert_eq!(remaining(&server.get_as(user, "/").await), 8);
    }
    // The address has paid.
    assert_eq!(remaining(&server.get("/").await), 7);
}

/// L31
#[tokio::test]
async fn a_thousand_forwarded_hops_do_not_lead_to_somebody_else() {
    let server = server_behind_proxies(ForwardingField::XForwardedFor, 9).await;
    let one_line = format!("x-forwarded-for: 192.0.2.1{}", ", 10.0.0.1".repeat(999));
    assert_eq!(status(&server.answer_to(&get_with(&[one_line.as_bytes()])).await), 200);

    // hyper accepts at most a hundred lines.
    let mut lines = vec!["x-forwarded-for: 192.0.2.1".to_owned()];
    lines.extend(vec![
        format!("x-forwarded-for: 10.0.0.1{}", ", 10.0.0.1".repeat(19));
        50
    ]);
    let lines: Vec<_> = lines.iter().map(String::as_bytes).collect();
    assert_eq!(status(&server.answer_to(&get_with(&lines)).await), 200);

    assert_eq!(left_to(&server, "x-forwarded-for", "192.0.2.1").await, 8);
}

/// L31: the line that the nearest proxy added counts, and the lines before it do not.
#[tokio::test]
async fn forwarded_lines_that_disagree_charge_the_one_whom_the_proxy_saw() {
    let server = server_behind_proxies(ForwardingField::Forwarded, 2).await;
    let mut statuses = Vec::new();
    for claim in [
        "for=192.0.2.1",
        "for=192.0.2.2;for=192.0.2.3",
        r#"for="[2001:db8::1]", for="#,
    ] {
        let claim = format!("forwarded: {claim}");
        let lines = get_with(&[claim.as_bytes(), b"forwarded: for=198.51.100.7"]);
        statuses.push(status(&server.answer_to(&lines).await));
    }
    assert_eq!(statuses, [200, 200, 429]);
    for honest in [
        "for=192.0.2.1",
        "for=192.0.2.2",
        "for=192.0.2.3",
        r#"for="[2001:db8::1]""#,
    ] {
        assert_eq!(left_to(&server, "forwarded", honest).await, 1, "{honest}");
    }
}

/// L31: a client that adds a line or a value to the proxy's own becomes unknown, and no other client pays.
#[tokio::test]
async fn a_field_with_one_address_that_holds_two_charges_neither() {
    let server = server_behind_proxies(ForwardingField::SingleAddress("X-Real-IP".into()), 2).await;
    let mut statuses = Vec::new();
    for claim in [
        &[b"x-real-ip: 192.0.2.1".as_slice(), b"X-Real-IP: 198.51.100.7"][..],
        &[b"x-real-ip: 192.0.2.1, 198.51.100.7"],
        &[b"x-real-ip: 198.51.100.7", b"x-real-ip:"],
    ] {
        statuses.push(status(&server.answer_to(&get_with(claim)).await));
    }
    // These limits reject requests without a key.
    assert_eq!(statuses, [403, 403, 403]);
    for honest in ["192.0.2.1", "198.51.100.7", "[2001:db8::1]:4711"] {
        assert_eq!(left_to(&server, "x-real-ip", honest).await, 1, "{honest}");
    }
}

/// L31
#[tokio::test]
async fn forwarded_fields_of_an_unknown_machine_count_for_nothing() {
    let app = Router::new().route("/", get(async || "ok"));
    let by_address = key::client_ip().trusted_proxies(ForwardingField::Forwarded, ["192.0.2.0/24"]);
    let limits = limits_by(by_address, MemoryStore::new(), "api", 2).build().unwrap();
    let server = Server::axum(app.layer(limits)).await;
    for (client, left) in [("for=203.0.113.1", 1), ("for=203.0.113.2", 0)] {
        assert_eq!(left_to(&server, "forwarded", client).await, left);
    }
    assert_eq!(server.get("/").await.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// I9: neither when they pass nor when they are rejected.
#[tokio::test]
async fn requests_put_nothing_of_theirs_into_responses() {
    let server = server_by_user(1).await;
    for user in [
        "mallory\r\nset-cookie: stolen=1",
        "mallory\r\n set-cookie: stolen=1",
        "mallory\rset-cookie: stolen=1",
        "mallory\nset-cookie: stolen=1",
        "mallory%0d%0aset-cookie:%20stolen=1",
        "mallory\\r\\nset-cookie: stolen=1",
        "mallory\u{560d}\u{560a}set-cookie: stolen=1",
        "mallory\", \"day\";r=999;t=1",
    ] {
        let line = format!("x-user-id: {user}");
        for _ in 0..2 {
            let answer = server.answer_to(&get_with(&[line.as_bytes()])).await;
            assert!(matches!(status(&answer), 200 | 400 | 429), "{answer}");
            for part in ["mallory", "set-cookie", "stolen", "r=999"] {
                assert!(!answer.contains(part), "{answer}");
            }
        }
    }
}

/// Bytes that are no request at all reach no quota.
#[tokio::test]
async fn what_is_not_http_is_not_counted() {
    let server = server_by_user(1).await;
    for noise in [
        b"\x00\xff\x00\xff\r\n\r\n".as_slice(),
        b"GET / HTTP/9.9\r\n\r\n",
        b"x-user-id: alice\r\n\r\n",
    ] {
        let answer = server.answer_to(noise).await;
        assert!(answer.is_empty() || status(&answer) == 400, "{answer}");
    }
    assert_eq!(server.get("/").await.status(), StatusCode::OK);
}
