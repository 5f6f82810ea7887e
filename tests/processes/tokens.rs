//! Two processes on one Redis accept an anonymous token once.

use futures_util::future::join_all;
use test_kit::RedisServer;
use tower_quota::RedisStore;
use tower_quota_anonymous::{IssuerKey, Profile, Token};

use crate::{
    origins::{instance, new_key, status, tokens},
    together,
};

/// The variable that makes a process a child, with the server, the issuer's key and a token.
const TOLD: &str = "TOWER_QUOTA_TEST_TOKEN";

/// Runs as a process that a test has started, if it is one.
pub(crate) fn child() -> bool {
    std::env::var(TOLD).is_ok_and(|told| {
        an_origin(&told);
        true
    })
}

pub(crate) fn run() {
    of_fifty_equal_tokens_at_two_processes_one_passes();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// M31
#[tokio::main]
async fn of_fifty_equal_tokens_at_two_processes_one_passes() {
    let (server, key) = (RedisServer::start(), new_key());
    let layer = instance(&key, RedisStore::new(server.url()).unwrap()).build().unwrap();
    let token = tokens(&layer, &key, 1).await.remove(0);
    let told = [server.url(), hex(&key.to_bytes()), hex(&token.to_bytes())].join(" ");
    let accepted: Vec<u32> = together(2, TOLD, &told);
    assert_eq!(accepted.iter().sum::<u32>(), 1, "{accepted:?}");
    crate::passed("of_fifty_equal_tokens_at_two_processes_one_passes");
}

#[tokio::main(worker_threads = 2)]
async fn an_origin(told: &str) {
    let mut told = told.split(' ');
    let store = RedisStore::new(told.next().unwrap()).unwrap();
    let key = IssuerKey::from_bytes(Profile::P256, &unhex(told.next().unwrap())).unwrap();
    let token = Token::parse(&unhex(told.next().unwrap())).unwrap();
    let layer = instance(&key, store).build().unwrap();
    crate::wait_for_the_others();
    let statuses = join_all((0..25).map(|_| status(&layer, &token))).await;
    let are_known = statuses.iter().all(|status| [200, 429].contains(status));
    assert!(are_known, "{statuses:?}");
    println!("{}", statuses.iter().filter(|status| **status == 200).count());
}
