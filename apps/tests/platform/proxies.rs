//! Tests the platform behind proxies: the client address for limits, blocks and wrong tokens.

use std::{env, fs, net::SocketAddr, time::Duration};

use axum::{body::Body, extract::ConnectInfo};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use test_kit::shared_server;

use crate::{
    Answer, Platform, TOKEN,
    platform::{Settings, users},
    rules, send,
};

/// The environment of an instance behind proxies in this network.
const NAMED: (&str, &str) = ("TRUSTED_PROXIES", "10.0.0.0/8, 127.0.0.1");

const PROXY: [u8; 4] = [10, 0, 0, 1];

fn in_environment(set: &[(&str, &str)], name: &str) -> Option<String> {
    let set = set.iter().find(|(other, _)| *other == name);
    set.map(|(_, value)| (*value).to_owned())
}

/// The source of a test's requests: the peer address and the forwarding field.
struct From<'a> {
    platform: &'a Platform,
    peer: [u8; 4],
    field: (&'a str, &'a str),
}

impl From<'_> {
    async fn send(&self, method: Method, path: &str, token: Option<&str>, body: &str) -> Answer {
        let peer = ConnectInfo(SocketAddr::from((self.peer, 50_000)));
        let request = Request::builder().method(method).uri(path).extension(peer);
        let mut request = request.header(self.field.0, self.field.1);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
            request = request.header("content-type", "application/json");
        }
        send(&self.platform.app, request.body(Body::from(body.to_owned())).unwrap()).await
    }

    async fn get(&self) -> StatusCode {
        self.send(Method::GET, "/", None, "").await.status
    }

    async fn ask_with(&self, token: &str) -> StatusCode {
        self.send(Method::GET, "/admin/rules", Some(token), "").await.status
    }

    /// Sends `number` wrong tokens and returns the statuses.
    async fn guess(&self, number: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..number {
            statuses.push(self.ask_with("guess").await.as_u16());
        }
        statuses
    }
}

impl Platform {
    async fn behind(test: u8, environment: &[(&str, &str)]) -> Self {
        let file = env::temp_dir().join(format!("tower-quota-proxies-{}-{test}.json", std::process::id()));
        fs::write(&file, rules(100)).unwrap();
        let settings = Settings::read(|name| in_environment(environment, name)).unwrap();
        let settings = Settings {
            redis_url: shared_server().url(),
            rules: file,
            admin_token: Some(TOKEN.to_owned()),
            deadline: Duration::from_secs(10),
            tier_wait: Duration::from_secs(10),
            ..settings
        };
        let mut platform = Self::with_settings(test, settings).await;
        platform.is_own_file = true;
        platform
    }

    fn forwarded<'a>(&'a self, client: &'a str) -> From<'a> {
        self.from(PROXY, ("x-forwarded-for", client))
    }

    fn from<'a>(&'a self, peer: [u8; 4], field: (&'a str, &'a str)) -> From<'a> {
        let platform = self;
        From { platform, peer, field }
    }

    /// Returns the remaining daily units of an address, as shown to an administrator.
    async fn left_for(&self, address: &str) -> Value {
        self.caller(&format!("address={address}")).await["policies"][0]["remaining"].clone()
    }
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_have_limits_of_their_own_and_are_looked_up_by_their_address() {
    let platform = Platform::behind(120, &[NAMED]).await;
    let (one, other) = ("198.51.100.120", "198.51.100.121");
    for status in [200, 200, 200, 429] {
        assert_eq!(platform.forwarded(one).get().await, status);
    }
    assert_eq!(platform.forwarded(other).get().await, StatusCode::OK);

    assert_eq!(platform.left_for(one).await, 0);
    assert_eq!(platform.left_for(other).await, 2);
    let rejected = &platform.state().await["rejected"];
    assert_eq!(rejected.as_array().unwrap().len(), 1, "{rejected}");
    assert_eq!(rejected[0]["caller"], json!({ "address": one }));

    let reset = format!("/admin/caller?address={one}");
    platform.admin(Method::DELETE, &reset, "").await;
    assert_eq!(platform.forwarded(one).get().await, StatusCode::OK);
}

#[tokio::test]
async fn a_block_of_an_address_is_of_the_client_behind_the_proxy() {
    let platform = Platform::behind(122, &[NAMED]).await;
    let (one, other) = ("198.51.100.122", "198.51.100.123");
    let block = json!({"network": format!("{one}/32")}).to_string();
    let answer = platform.admin(Method::POST, "/admin/block", &block).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(platform.forwarded(one).get().await, StatusCode::FORBIDDEN);
    assert_eq!(platform.forwarded(other).get().await, StatusCode::OK);
}

#[tokio::test]
async fn wrong_tokens_of_a_client_do_not_lock_out_operators_behind_the_same_proxy() {
    let platform = Platform::behind(124, &[NAMED]).await;
    let [guesser, operator] = ["198.51.100.124", "198.51.100.125"].map(|client| platform.forwarded(client));
    assert_eq!(guesser.guess(10).await, [404; 10]);
    assert_eq!(guesser.guess(2).await, [429; 2]);
    // Accepting the right token would confirm a guess.
    assert_eq!(guesser.ask_with(TOKEN).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(operator.ask_with(TOKEN).await, StatusCode::OK);
}

#[tokio::test]
async fn a_peer_that_is_no_proxy_is_the_client_whatever_its_fields_say() {
    for (test, environment) in [(126, &[NAMED][..]), (127, &[])] {
        let platform = Platform::behind(test, environment).await;
        let (peer, blocked) = ([198, 51, 100, test], format!("198.51.100.{test}/32"));
        let mut statuses = Vec::new();
        for client in ["203.0.113.1", "203.0.113.2", "127.0.0.1", "203.0.113.4"] {
            statuses.push(platform.from(peer, ("x-forwarded-for", client)).get().await.as_u16());
        }
        assert_eq!(statuses, [200, 200, 200, 429]);

        let mut guesses = Vec::new();
        for guess in 1..=11 {
            let client = format!("203.0.113.{guess}");
            guesses.extend(platform.from(peer, ("x-forwarded-for", &client)).guess(1).await);
        }
        assert_eq!((&guesses[..10], guesses[10]), (&[404; 10][..], 429));

        let block = json!({ "network": blocked }).to_string();
        platform.admin(Method::POST, "/admin/block", &block).await;
        let as_another = platform.from(peer, ("x-forwarded-for", "203.0.113.9"));
        assert_eq!(as_another.get().await, StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn a_client_behind_a_proxy_cannot_name_another_one() {
    let platform = Platform::behind(128, &[NAMED]).await;
    for (claim, status) in [("192.0.2.1", 200), ("10.0.0.7", 200), ("nonsense", 200), ("", 429)] {
        let list = format!("{claim}, 198.51.100.128");
        assert_eq!(platform.forwarded(&list).get().await, status, "{claim}");
    }
}

#[tokio::test]
async fn the_field_is_the_one_that_the_proxies_write_and_no_other() {
    let fields = [("Forwarded", "for=198.51.100.130"), ("X-Real-IP", "198.51.100.131")];
    for (test, (name, value)) in (130..).zip(fields) {
        let platform = Platform::behind(test, &[NAMED, ("FORWARDING_FIELD", name)]).await;
        let field = name.to_ascii_lowercase();
        let client = platform.from(PROXY, (&field, value));
        let ten_and_one = [vec![404; 10], vec![429]].concat();
        assert_eq!(client.guess(11).await, ten_and_one, "{name}");
        // A request without the field is attributed to the proxy.
        let without = platform.forwarded("198.51.100.132");
        assert_eq!(without.guess(11).await, ten_and_one, "{name}");
        let other = platform.forwarded("198.51.100.133").ask_with(TOKEN).await;
        assert_eq!(other, StatusCode::TOO_MANY_REQUESTS, "{name}");
    }
}

#[test]
fn a_setting_of_proxies_with_a_mistake_is_an_error_that_names_it() {
    let error = |environment: &[(&str, &str)]| users::client_ip(|name| in_environment(environment, name)).err();
    for (proxies, named) in [
        ("10.0.0.0/99", r#""10.0.0.0/99" is not"#),
        ("127.0.0.1,proxy.internal", r#""proxy.internal" is not"#),
        ("127.0.0.1,", r#""" is not"#),
    ] {
        let error = error(&[("TRUSTED_PROXIES", proxies)]).unwrap();
        assert!(error.starts_with("TRUSTED_PROXIES") && error.contains(named), "{error}");
    }
    let field = error(&[NAMED, ("FORWARDING_FIELD", "X Real IP")]).unwrap();
    assert!(
        field.contains(r#"FORWARDING_FIELD: key: "X Real IP" is not"#),
        "{field}"
    );
    for right in [
        &[][..],
        &[NAMED],
        &[("TRUSTED_PROXIES", " ")],
        &[("FORWARDING_FIELD", "")],
    ] {
        assert_eq!(error(right), None);
    }
    assert!(Settings::read(|name| in_environment(&[("TRUSTED_PROXIES", "nowhere")], name)).is_err());
}
