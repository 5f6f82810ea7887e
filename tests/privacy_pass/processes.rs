//! Two processes on one Redis accept a token once.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

use futures_util::future::join_all;
use tower_quota::{
    RedisStore,
    privacy_pass::{IssuerKey, Profile, Token},
};

use crate::{
    instances::{instance, new_key, status, tokens},
    support::RedisServer,
};

/// What the parent tells a child: the server, the issuer's key and a token.
const TOLD: &str = "TOWER_QUOTA_TEST_TOKEN";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// M31
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_equal_tokens_at_two_processes_one_passes() {
    let (server, key) = (RedisServer::start(), new_key());
    let layer = instance(&key, RedisStore::new(server.url()).unwrap()).build().unwrap();
    let token = tokens(&layer, &key, 1).await.remove(0);
    let told = [server.url(), hex(&key.to_bytes()), hex(&token.to_bytes())].join(" ");
    let mut children = [0, 1].map(|_| start(&told));
    // Both are ready before any of them begins.
    let mut outputs = children
        .each_mut()
        .map(|child| BufReader::new(child.stdout.take().unwrap()).lines());
    let mut said = |child: usize, what: &str| {
        let mut lines = outputs[child].by_ref().map(Result::unwrap);
        lines
            .find_map(|line| Some(line.split_once(what)?.1.to_owned()))
            .unwrap()
    };
    said(0, "ready");
    said(1, "ready");
    for child in &mut children {
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
    let accepted = [0, 1].map(|child| said(child, "accepted ").parse::<usize>().unwrap());
    for child in &mut children {
        assert!(child.wait().unwrap().success(), "an instance failed");
    }
    assert_eq!(accepted.iter().sum::<usize>(), 1, "{accepted:?}");
}

/// This program once more, of which only the test below runs.
fn start(told: &str) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "processes::an_instance", "--ignored", "--nocapture"])
        .env(TOLD, told)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
#[ignore = "a process that another test starts"]
fn an_instance() {
    let Ok(told) = env::var(TOLD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut told = told.split(' ');
        let store = RedisStore::new(told.next().unwrap()).unwrap();
        let key = IssuerKey::from_bytes(Profile::P256, &unhex(told.next().unwrap())).unwrap();
        let token = Token::parse(&unhex(told.next().unwrap())).unwrap();
        let layer = instance(&key, store).build().unwrap();
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let statuses = join_all((0..25).map(|_| status(&layer, &token))).await;
        assert!(
            statuses.iter().all(|status| [200, 429].contains(status)),
            "{statuses:?}"
        );
        println!("accepted {}", statuses.iter().filter(|status| **status == 200).count());
    });
}
