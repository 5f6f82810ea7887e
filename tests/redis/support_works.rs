//! The servers and proxies that the other tests rely on work as documented.

use std::{
    env,
    io::{BufRead, BufReader, ErrorKind},
    process::{Command, Output, Stdio},
    time::Duration,
};

use test_kit::{Mode, Proxy, RedisServer, shared_server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn a_started_server_answers_at_its_url_and_the_shared_one_is_one_server() {
    let server = RedisServer::start();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
    assert_eq!(server.command(&["PING"]), "PONG");
    assert_eq!(shared_server().command(&["PING"]), "PONG");
    assert_eq!(shared_server().pid(), shared_server().pid());
}

#[test]
fn every_kind_of_reply_has_a_text() {
    let server = shared_server();
    let reply = |script: &str| server.command(&["EVAL", script, "0"]);
    assert_eq!(reply("return redis.status_reply('FINE')"), "FINE");
    assert_eq!(reply("return redis.error_reply('BAD thing')"), "-BAD thing");
    assert_eq!(reply("return -7"), "-7");
    assert_eq!(reply("return 'two\\r\\nlines'"), "two\r\nlines");
    assert_eq!(reply("return ''"), "");
    assert_eq!(reply("return false"), "nil");
    assert_eq!(reply("return {1, {'two', 3}, {}, 'four'}"), "1\ntwo\n3\n\nfour");
}

#[test]
fn a_user_is_set_also_on_a_server_that_knows_no_rules_for_channels() {
    let server = RedisServer::start();
    if server.has_users() {
        server.set_user("reader", &["on", "nopass", "resetchannels", "-@all", "+get", "~*"]);
        assert!(server.command(&["ACL", "GETUSER", "reader"]).contains("+get"));
    }
}

#[test]
fn a_command_in_bytes_gets_the_reply_in_bytes() {
    let server = shared_server();
    assert_eq!(
        server.command_bytes(&[b"SET", b"support\xff", b"\x00\r\n\xfe"]),
        b"+OK\r\n"
    );
    assert_eq!(
        server.command_bytes(&[b"GET", b"support\xff"]),
        b"$4\r\n\x00\r\n\xfe\r\n"
    );
    assert_eq!(server.command_bytes(&[b"GET", b"support none"]), b"$-1\r\n");
}

#[test]
fn a_killed_server_comes_back_empty_on_the_same_port() {
    let server = RedisServer::start();
    let port = server.port();
    server.command(&["SET", "key", "value"]);
    server.kill();
    let rejected = server.try_command(&["PING"], LONG).unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::ConnectionRefused);
    server.restart();
    assert_eq!(server.port(), port);
    assert_eq!(server.command(&["GET", "key"]), "nil");
}

#[test]
fn a_running_server_can_be_restarted() {
    let server = RedisServer::start();
    let first = server.pid();
    server.restart();
    assert_ne!(server.pid(), first);
    assert!(!is_alive(first));
    assert_eq!(server.command(&["PING"]), "PONG");
}

#[test]
fn a_restart_waits_until_its_port_is_free() {
    let server = RedisServer::start();
    server.kill();
    let other = std::net::TcpListener::bind(("127.0.0.1", server.port())).unwrap();
    std::thread::scope(|scope| {
        let restart = scope.spawn(|| server.restart());
        std::thread::sleep(SHORT);
        assert!(!restart.is_finished());
        drop(other);
    });
    assert_eq!(server.command(&["PING"]), "PONG");
}

#[test]
fn a_paused_server_answers_only_after_it_is_resumed() {
    let server = RedisServer::start();
    server.pause();
    let silent = server.try_command(&["PING"], SHORT).unwrap_err();
    assert!(
        matches!(silent.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        "{silent}"
    );
    server.resume();
    assert_eq!(server.command(&["PING"]), "PONG");
}

#[test]
fn a_dropped_server_is_gone() {
    let server = RedisServer::start();
    let pid = server.pid();
    assert!(is_alive(pid));
    let directory = server.command(&["CONFIG", "GET", "dir"]).split_off("dir\n".len());
    assert!(std::fs::exists(&directory).unwrap());
    server.pause();
    drop(server);
    assert!(!is_alive(pid));
    assert!(!std::fs::exists(&directory).unwrap());
}

#[test]
fn a_server_is_gone_after_a_panic() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let server = RedisServer::start();
        sender.send(server.pid()).unwrap();
        panic!("on purpose");
    });
    assert!(test.join().is_err());
    assert!(!is_alive(receiver.recv().unwrap()));
}

#[test]
fn a_server_is_gone_when_the_process_that_started_it_is_killed() {
    for paused in ["", "paused"] {
        let mut holder = hold_server().env(HOLD, paused).stdout(Stdio::piped()).spawn().unwrap();
        let pid = BufReader::new(holder.stdout.take().unwrap())
            .lines()
            .find_map(|line| line.unwrap().strip_prefix("server ").map(|pid| pid.parse().unwrap()))
            .unwrap();
        assert!(is_alive(pid));
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert!(
            (0..1000).any(|_| !is_alive(pid)),
            "the server outlived its process ({paused})"
        );
    }
}

#[test]
fn without_a_server_on_the_machine_a_test_fails_and_says_what_to_do() {
    let Output { status, stdout, stderr } = hold_server()
        .env(HOLD, "")
        .env_remove("REDIS_SERVER")
        .env("PATH", "")
        .output()
        .unwrap();
    let output = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert!(!status.success());
    assert!(
        output.contains("make test") && output.contains("REDIS_SERVER"),
        "{output}"
    );
}

#[tokio::test]
async fn a_proxy_forwards_and_counts_connections() {
    let proxy = Proxy::start(shared_server().port()).await;
    assert_eq!(proxy.url(), format!("redis://127.0.0.1:{}/", proxy.port()));
    assert_eq!(proxy.connections(), 0);
    for count in 1..=2 {
        assert_pong(&mut connect(&proxy).await).await;
        assert_eq!(proxy.connections(), count);
    }
}

#[tokio::test]
async fn a_swallowing_proxy_keeps_connections_open_and_silent() {
    let server = RedisServer::start();
    let (proxy, mut old) = proxied(&server).await;
    proxy.set_mode(Mode::Swallow);
    let mut new = connect(&proxy).await;
    server.kill();
    let mut without_server = connect(&proxy).await;
    for client in [&mut old, &mut new, &mut without_server] {
        timeout(SHORT, ping(client)).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_swallowing_proxy_forwards_again_without_what_it_swallowed() {
    let (proxy, mut client) = proxied(shared_server()).await;
    proxy.set_mode(Mode::Swallow);
    client.write_all(b"ECHO lost\r\n").await.unwrap();
    timeout(SHORT, ping(&mut client)).await.unwrap_err();
    proxy.set_mode(Mode::Forward);
    assert_pong(&mut client).await;
}

#[tokio::test]
async fn a_rejecting_proxy_closes_new_connections_and_keeps_old_ones() {
    let (proxy, mut old) = proxied(shared_server()).await;
    proxy.set_mode(Mode::Reject);
    assert_closed(&mut connect(&proxy).await).await;
    assert_pong(&mut old).await;
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn a_cut_closes_open_connections_only() {
    let (proxy, mut old) = proxied(shared_server()).await;
    proxy.cut().await;
    assert_closed(&mut old).await;
    assert_pong(&mut connect(&proxy).await).await;
}

#[tokio::test]
async fn a_reset_is_an_error_where_a_cut_is_an_end() {
    let (proxy, mut client) = proxied(shared_server()).await;
    proxy.reset().await;
    let error = timeout(LONG, client.read(&mut [0; 64])).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    proxy.set_mode(Mode::Reset);
    assert_closed(&mut connect(&proxy).await).await;
    proxy.set_mode(Mode::Forward);
    let mut client = connect(&proxy).await;
    assert_pong(&mut client).await;
    proxy.cut().await;
    assert_eq!(timeout(LONG, client.read(&mut [0; 64])).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_delaying_proxy_keeps_the_order_also_when_the_delay_ends() {
    let (proxy, mut client) = proxied(shared_server()).await;
    proxy.set_mode(Mode::Delay(SHORT));
    client.write_all(b"ECHO first\r\n").await.unwrap();
    timeout(SHORT, client.readable()).await.unwrap_err();
    proxy.set_mode(Mode::Forward);
    client.write_all(b"ECHO second\r\n").await.unwrap();
    let expected = b"$5\r\nfirst\r\n$6\r\nsecond\r\n";
    let mut replies = [0; 23];
    timeout(LONG, client.read_exact(&mut replies)).await.unwrap().unwrap();
    assert_eq!(&replies, expected);
}

#[tokio::test]
async fn one_direction_can_be_swallowed_alone() {
    let server = RedisServer::start();
    let (proxy, mut client) = proxied(&server).await;
    proxy.set_mode(Mode::SwallowReplies);
    client.write_all(b"SET heard yes\r\n").await.unwrap();
    timeout(SHORT, client.readable()).await.unwrap_err();
    assert_eq!(server.command(&["GET", "heard"]), "yes");
    proxy.set_mode(Mode::SwallowRequests);
    client.write_all(b"SET heard no\r\n").await.unwrap();
    timeout(SHORT, client.readable()).await.unwrap_err();
    assert_eq!(server.command(&["GET", "heard"]), "yes");
    proxy.set_mode(Mode::Forward);
    assert_pong(&mut client).await;
}

#[tokio::test]
async fn a_connection_can_end_in_the_middle_of_a_reply() {
    let (proxy, mut client) = proxied(shared_server()).await;
    proxy.set_mode(Mode::CutAfter(7 + 9));
    assert_pong(&mut client).await;
    assert_eq!(ping(&mut client).await, "+P");
    assert_closed(&mut client).await;
    assert_pong(&mut connect(&proxy).await).await;
}

#[tokio::test]
async fn a_proxy_shows_the_end_of_the_server() {
    let server = RedisServer::start();
    let (proxy, mut client) = proxied(&server).await;
    server.kill();
    assert_closed(&mut client).await;
    assert_closed(&mut connect(&proxy).await).await;
}

#[tokio::test]
async fn a_dropped_proxy_is_gone() {
    let proxy = Proxy::start(shared_server().port()).await;
    let port = proxy.port();
    let mut client = connect(&proxy).await;
    assert_pong(&mut client).await;
    drop(proxy);
    assert_closed(&mut client).await;
    // A process that another test is just starting holds the listener too, until it runs its own program.
    let rejected = async { while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {} };
    timeout(LONG, rejected).await.unwrap();
}

const HOLD: &str = "SUPPORT_WORKS_HOLD";

/// This program again, running only the test below.
fn hold_server() -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "support_works::a_server_is_held_until_killed", "--nocapture"]);
    command
}

/// Not a test by itself: other tests run it in a process that they kill.
#[test]
fn a_server_is_held_until_killed() {
    let Ok(paused) = env::var(HOLD) else { return };
    let server = RedisServer::start();
    if !paused.is_empty() {
        server.pause();
    }
    println!("\nserver {}", server.pid());
    loop {
        std::thread::park();
    }
}

fn is_alive(pid: u32) -> bool {
    Command::new("sh")
        .args(["-c", r#"kill -0 "$0" 2>/dev/null"#, &pid.to_string()])
        .status()
        .unwrap()
        .success()
}

/// A proxy in front of a server, and a client that it has served.
async fn proxied(server: &RedisServer) -> (Proxy, TcpStream) {
    let proxy = Proxy::start(server.port()).await;
    let mut client = connect(&proxy).await;
    assert_pong(&mut client).await;
    (proxy, client)
}

async fn assert_pong(client: &mut TcpStream) {
    assert_eq!(ping(client).await, "+PONG\r\n");
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap()
}

async fn ping(client: &mut TcpStream) -> String {
    client.write_all(b"PING\r\n").await.unwrap();
    let mut reply = [0; 64];
    let length = client.read(&mut reply).await.unwrap();
    assert_ne!(length, 0, "the connection was closed");
    String::from_utf8(reply[..length].to_vec()).unwrap()
}

async fn assert_closed(client: &mut TcpStream) {
    let read = timeout(LONG, client.read(&mut [0; 64]))
        .await
        .expect("the connection is closed");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}
