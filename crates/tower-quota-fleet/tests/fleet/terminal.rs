//! The command-line program for operators on call.

#[path = "../../src/bin/tower-quota-rules/main.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod program;

use std::{fs, path::PathBuf, time::Duration};

use clap::Parser;
use serde_json::{Value, json};
use test_kit::{RedisServer, shared_server};
use tower_quota::{QuotaPolicy, RateLimitLayer, RedisStore, Rules};
use tower_quota_fleet::{InstanceReport, RulesFollower, RulesSource, RulesVersion};

use self::program::options::Options;
use crate::{
    servers::{key, rules, rules_at},
    source::{layer, pass, reported},
};

/// A separate rule set, and files of rules.
struct Terminal {
    set: &'static str,
    url: String,
    directory: PathBuf,
}

impl Terminal {
    fn new(set: &'static str) -> Self {
        Self::on(shared_server().url(), set)
    }

    fn on(url: String, set: &'static str) -> Self {
        let directory = std::env::temp_dir().join(format!("tower-quota-rules-{}-{set}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let terminal = Self { set, url, directory };
        terminal.file("60.json", &policy(60));
        terminal.file("30.json", &policy(30));
        let mut window = policy(60);
        window["policies"][0]["algorithm"] = json!("fixed_window");
        terminal.file("window.json", &window);
        terminal
    }

    fn file(&self, name: &str, content: &Value) {
        fs::write(self.directory.join(name), content.to_string()).unwrap();
    }

    /// The exit code, and what is printed to either output.
    async fn types(&self, line: &str) -> (u8, String) {
        let words = line.split(' ').map(|word| match word.ends_with(".json") {
            true => self.directory.join(word).to_str().unwrap().to_owned(),
            false => word.to_owned(),
        });
        let options = ["--redis", &self.url, "--set", self.set, "--author", "alice"].map(str::to_owned);
        let words = ["tower-quota-rules".to_owned()].into_iter().chain(words).chain(options);
        let options = match Options::try_parse_from(words) {
            Ok(options) => options,
            Err(error) => return (error.exit_code() as u8, error.to_string()),
        };
        match program::run(&options).await {
            Ok(report) => (report.code(), report.printed(options.json)),
            Err(failure) => (failure.code(), failure.to_string()),
        }
    }

    /// Types each line, which follows its expected exit code, and asserts that it prints the text after `=>`. Returns
    /// the whole output.
    async fn carries_out(&self, lines: &str) -> String {
        let mut all = String::new();
        for line in lines.replace("\n | ", r"\n").trim().lines() {
            let (code, line) = line.split_once(": ").unwrap();
            let (line, printed) = line.split_once(" => ").unwrap();
            let (exit, text) = self.types(line).await;
            assert_eq!(exit.to_string(), code, "{line}: {text}");
            assert!(text.contains(&printed.replace(r"\n", "\n")), "{line}: {text}");
            all += &text;
        }
        all
    }

    async fn json(&self, line: &str) -> Value {
        let (code, printed) = self.types(&format!("{line} --json")).await;
        assert_eq!(code, 0, "{printed}");
        serde_json::from_str(&printed).unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn policy(quota: u64) -> Value {
    json!({"policies": [{"name": "minute", "quota": quota, "window_seconds": 60}]})
}

const NIGHT: &str = r#"
0: show => nothing published; instances use the built-in rules of their program
5: off --for 10m => limits: OFF, all requests pass uncounted, until
5: on => limits: on, by "alice"
3: publish 30.json --percent 10 --yes => nothing is published yet; publish rules for all callers first
0: publish 60.json --yes --no-wait => there is no earlier version to compare with
 | all callers:
 |   policy "minute" is new: 60 requests per 60 s
 | published version 1 by "alice"
0: publish 60.json --yes => nothing changes
0: publish 30.json --percent 10 --yes => callers who join the rollout (10% of all):
 |   policy "minute" changes: quota 60 → 30
0: show => rules for 10%:\n  "minute": 30 requests per 60 s
5: block 203.0.113.9 --for 10m => access list: block 203.0.113.9 until
0: off --because incident --no-wait => limits: OFF, all requests pass uncounted, until
0: show => (incident)\naccess list: block 203.0.113.9 until
5: on => limits: on, by "alice"
0: rollback --yes --no-wait => back to version 1 by "alice"
3: rollback --yes => the current version is a rollback; specify the version to restore, one of [2]
5: unblock 203.0.113.9/32 => instances: no reports within the last 30 s; is this the right rule set?
3: unblock 203.0.113.9 => access list: no entry for this network or key
3: publish window.json --yes => policy "minute" COUNTS RESET: algorithm token_bucket → fixed_window
3: publish window.json --yes => add --restart-counts
0: diff window.json => policy "minute" COUNTS RESET
0: publish window.json --yes --restart-counts --no-wait => published version 4 by "alice"
0: rollback --to 1 --yes --no-wait => published version 5 by "alice"
0: history => version 5, a rollback, by "alice"
0: history => policy "minute" COUNTS RESET
0: history => (incident):\n  limits OFF until
0: restore document.json --yes --no-wait => published version 78 by "alice"
2: publish zero.json --yes => quota 70 → 0\nIs this intended? No terminal for a confirmation; add --drastic
0: publish zero.json --yes --drastic --no-wait => published version 79
2: off --without-end => limits stay off until switched on. Is this intended? No terminal
2: off --for 25h => add --drastic
0: show --document => "quota": 0"#;

#[tokio::test]
async fn a_night_on_call_is_told_line_by_line() {
    let terminal = Terminal::new("night");
    terminal.file("zero.json", &policy(0));
    let lost = json!({"format": 1, "version": 77, "author": "bob", "rules": policy(70)});
    terminal.file("document.json", &lost);
    terminal.carries_out(NIGHT).await;
}

/// Without a terminal, nothing can be confirmed.
const SLIPS: &str = r#"
2: publsh 60.json => unrecognized subcommand 'publsh'
2: publish => required arguments were not provided:\n  <FILE>
2: publish 60.json 30.json => unexpected argument
2: publish missing.json => missing.json: No such file
3: publish typo.json --yes => unknown field `window_secods`
3: check typo.json => at line 1 column
2: off now => unexpected argument 'now'
2: block => required arguments were not provided:\n  <ADDRESS>
2: block 1.1.1.1 --percent 10 => unexpected argument '--percent'
2: block 1.1.1.1 --for 10 => not a duration, such as 90s, 10m, 2h or 1d
2: block 1.1.1.1 --for 0m => not a duration, such as
2: block 1.1.1.1 --for 99999999999999999999d => not a duration, such as
3: block example.com => "example.com" is not an IP address or network
2: publish 30.json --percent 101 => not a percentage from 0 to 100
2: publish 30.json --partition x --percent 1 => is not 32 hexadecimal digits
2: show --qwerty => --qwerty
2: publish 30.json => No terminal for a confirmation; add --yes
2: block 0.0.0.0/0 => No terminal for a confirmation; add --yes
2: block 0.0.0.0/0 --yes => 0.0.0.0/0 contains every IPv4 address. Is this intended? No terminal
2: block 0.0.0.0/0 --yes => No terminal for a confirmation; add --drastic
2: block ::/0 --for 1m => No terminal for a confirmation; add --yes
3: restore 60.json => missing field `format`
2: on --for 1h => unexpected argument '--for'
2: off --for 1h --without-end => cannot be used with '--without-end'
2: unblock => required arguments were not provided
2: unblock 1.1.1.1 --all => cannot be used with '--all'
2: diff 30.json --partition 2b9742679fc3d12b0b3b07f9e18313f7 => --percent <PERCENT>"#;

#[tokio::test]
async fn a_line_that_cannot_be_meant_so_is_not_carried_out() {
    let terminal = Terminal::new("lines");
    let typo = json!({"policies": [{"name": "minute", "quota": 1, "window_secods": 60}]});
    terminal.file("typo.json", &typo);
    terminal.types("publish 60.json --yes").await;
    terminal.carries_out(SLIPS).await;
    assert_eq!(terminal.json("show").await["version"], 1);
    let (code, help) = terminal.types("--help").await;
    assert_eq!(code, 0);
    assert!(help.contains("unblock") && help.contains("Exit codes: "), "{help}");
    let large = terminal.types("block 10.0.0.0/8 --yes --no-wait").await;
    assert_eq!(large.0, 0, "{}", large.1);
}

#[tokio::test]
async fn programs_read_the_same_as_one_object() {
    let terminal = Terminal::new("programs");
    assert_eq!(terminal.json("show").await["version"], Value::Null);
    let published = terminal.json("publish 60.json --yes").await;
    assert_eq!(
        (&published["version"], &published["changed"]),
        (&json!(1), &json!(true))
    );
    let again = terminal.json("publish 60.json --yes").await;
    assert_eq!(again, json!({"version": 1, "changed": false}));
    let on = terminal.json("on --no-wait").await;
    assert_eq!((&on["switch"]["off"], &on["changed"]), (&json!(false), &json!(true)));
    let diff = terminal.json("diff window.json").await;
    assert_eq!(diff["starts_anew"], true);
    assert_eq!(diff["effects"][0]["changes"][0]["change"], "starts_anew");
    assert_eq!(terminal.json("show").await["document"]["rules"], policy(60));
    assert_eq!(terminal.json("history").await[0]["author"], "alice");
    assert_eq!(terminal.json("check 60.json").await["valid"], true);
}

/// The report of an instance that reads the switch and the access list.
fn reading(name: &str, version: RulesVersion, mut more: Value) -> InstanceReport {
    more["version"] = json!(version.to_string());
    more["controls"] = json!({"switch": 0, "access": 0});
    reported(name, more)
}

#[tokio::test]
async fn the_instances_that_do_not_follow_are_named() {
    let terminal = Terminal::new("followers");
    terminal.types("publish 60.json --yes").await;
    let rules = rules(terminal.set);
    let first = rules.state().await.unwrap().version().unwrap().unwrap();
    let report = |name: &str, version: RulesVersion| reading(name, version, json!({}));
    let web_2 = |more: Value| reading("web-2", first, more);
    rules.report(&report("web-1", first)).await.unwrap();
    rules.report(&web_2(json!({"overridden": true}))).await.unwrap();
    let (_, shown) = terminal.types("show").await;
    let expected = "instances: 2\n  2 run version 1\n  web-2 is overridden locally\n";
    assert!(shown.ends_with(expected), "{shown}");

    // A build that does not read the switch, and an order that no instance has read yet.
    let old = reported("web-3", json!({"version": first.to_string()}));
    rules.report(&old).await.unwrap();
    let (code, text) = terminal.types("off").await;
    let expected = "instances: applied by 0 of 3\n  web-1 has not read the change yet\n  \
                    web-2 has not read the change yet\n  web-3 does not read the switch and the access list\n";
    assert!(code == 5 && text.ends_with(expected), "{code} {text}");
    let old = serde_json::to_string(&old).unwrap();
    shared_server().command(&["ZREM", &key("followers", "instances"), &old]);

    let (code, text) = terminal.types("publish 30.json --yes").await;
    for part in ["published version 2", "2 run version 1: web-1, web-2"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(code, 5, "they are no real instances");
    let second = rules.state().await.unwrap().version().unwrap().unwrap();
    let newer = report("web-1", second);
    rules.report(&newer).await.unwrap();
    let rejecting = web_2(json!({"rejects": RulesVersion::of(2, b"").to_string()}));
    rules.report(&rejecting).await.unwrap();
    let (_, shown) = terminal.types("show").await;
    let rejected = "  1 run version 2\n  1 run version 1: web-2\n  web-2 REJECTS version 2; see its log for the \
                    reason\n";
    assert!(shown.ends_with(rejected), "{shown}");
    assert_eq!(terminal.types("off --no-wait").await.0, 0);
}

/// Reports of instances are lost with the rules, and come back one by one.
#[tokio::test]
async fn after_a_flush_instances_that_report_late_are_counted() {
    let terminal = Terminal::new("flushed");
    let rules = rules(terminal.set);
    let lost = RulesVersion::of(42, b"lost");
    let report = move |name: &str| {
        let controls = json!({"switch": 7, "access": 0});
        let more = json!({"version": lost.to_string(), "newest": 42, "controls": controls, "lost": true});
        reported(name, more)
    };
    rules.report(&report("web-1")).await.unwrap();
    let late = tokio::spawn({
        let rules = rules.clone();
        async move {
            pass(Duration::from_secs(1)).await;
            rules.report(&report("web-2")).await.unwrap();
        }
    });
    let (code, text) = terminal.types("off").await;
    let expected = "instances: applied by 0 of 2\n  web-1 has not read the change yet\n  \
                    web-2 has not read the change yet\n";
    assert_eq!(code, 5, "they are no real instances");
    assert!(text.ends_with(expected), "{text}");
    late.await.unwrap();
    let shown = "0: show => but instances enforce version 42. Redis has lost the rules";
    terminal.carries_out(shown).await;
    let (_, text) = terminal.types("publish 60.json --yes").await;
    for part in ["published version 43", "2 run version 42: web-1, web-2"] {
        assert!(text.contains(part), "{text}");
    }
}

/// Two instances that follow the rule set of a terminal, and a server that can lose its data.
struct Losing {
    server: RedisServer,
    terminal: Terminal,
    instances: Vec<(RateLimitLayer, RulesFollower)>,
}

impl Losing {
    async fn start(set: &'static str) -> Self {
        let server = RedisServer::start();
        let rules = rules_at(RedisStore::builder(server.url()), set);
        let instances = ["web-1", "web-2"].map(|name| {
            let layer = layer();
            let follower = RulesFollower::builder(layer.limiter().rules(), rules.clone());
            (layer, follower.instance(name).start().unwrap())
        });
        let terminal = Terminal::on(server.url(), set);
        let instances = instances.into();
        while rules.instances().await.unwrap().len() < 2 {
            pass(Duration::from_millis(10)).await;
        }
        Self {
            server,
            terminal,
            instances,
        }
    }

    fn lose(&self, command: &[&str]) {
        assert_eq!(self.server.command(command), "OK", "{command:?}");
    }

    async fn types(&self, line: &str, printed: &str) {
        let (code, text) = self.terminal.types(line).await;
        assert!(code == 0 && text.contains(printed), "{line}: {code}, {text}");
    }
}

/// The instances still enforce the part that is lost, or that a restored backup contains with a smaller number.
#[tokio::test]
async fn an_order_after_a_loss_of_the_other_part_is_applied_by_all() {
    const APPLIED: &str = "instances: applied by 2 of 2\n";
    let all = Losing::start("lost-part").await;
    all.types("block 203.0.113.8", APPLIED).await;
    let [head, list] = ["access_head", "access"].map(|kind| key("lost-part", kind));
    let backup = [&head, &list].map(|key| all.server.command(&["GET", key]));
    all.types("block 203.0.113.9", APPLIED).await;
    for (key, value) in [&head, &list].into_iter().zip(&backup) {
        all.lose(&["SET", key, value]);
    }
    all.types("on", APPLIED).await;
    all.lose(&["FLUSHALL"]);
    all.types("off", APPLIED).await;
    let is_off = |(layer, _): &(RateLimitLayer, RulesFollower)| !layer.limiter().rules().is_enabled();
    assert!(all.instances.iter().all(is_off));
    all.lose(&["FLUSHALL"]);
    all.types("block 203.0.113.10", APPLIED).await;
}

/// The instances have nothing to report before the publication, because they have lost nothing.
#[tokio::test]
async fn a_publication_after_a_loss_of_the_reports_waits_for_the_instances() {
    let all = Losing::start("lost-reports").await;
    all.lose(&["FLUSHALL"]);
    let applied = |version| format!("instances: 2\n  2 run version {version}\n");
    all.types("publish 60.json --yes", &applied(1)).await;
    // If a server was unavailable for a while, its reports have expired.
    let deleted = all.server.command(&["DEL", &key("lost-reports", "instances")]);
    assert_eq!(deleted, "1");
    all.types("publish 30.json --yes", &applied(2)).await;
}

#[tokio::test]
async fn what_cannot_be_read_is_said_with_the_way_out() {
    let terminal = Terminal::new("broken");
    terminal.types("publish 60.json --yes").await;
    shared_server().command(&["SET", &key("broken", "document"), "{}"]);
    let lines = "
1: show => `rollback --overwrite`
1: publish 30.json --yes => `rollback --overwrite`
1: rollback --yes => `rollback --overwrite`
0: rollback --overwrite --yes => published version 2";
    terminal.carries_out(lines).await;
}

const CONTRACTS: &str = r#"
0: contract customer 4711 => no contract
0: contract customer 4711 minute=5000 day=9 --burst minute=50 --month-begins 15 --because offer => set;
0: top-up customer 4711 day=3 --for 30d --id order-12 => added;
0: top-up customer 4711 day=3 --for 30d --id order-12 => nothing changes
0: contract customer 4711 => day: quota 9\nminute: quota 5000, burst capacity 50\nmonths begin on day 15\n
0: contract customer 4711 => top-up order-12: day + 3 until
0: contract customer 4711 => by alice: offer\n
2: contract customer 4711 minute=x => not POLICY=NUMBER
2: contract customer 4711 --month-begins 32 => 32 is not in 1..=31
2: contract customer 4711 --remove minute=5 => '--remove' cannot be used with
2: contract customer 4711 --for 1d => --for requires quotas
2: contract customer => required arguments were not provided:\n  <VALUE>
2: top-up customer 4711 day=3 --for 30d => required arguments were not provided:\n  --id <ID>
2: contract customer 4711 minute=5000 minute=7000 => policy "minute" occurs twice, with 5000 and 7000
2: contract customer 4711 minute=1 --burst day=2 --burst day=2 => policy "day" occurs twice
3: top-up customer 4711 day=0 --for 30d --id a => units must be at least 1
2: block 203.0.113.9 --id a => unexpected argument '--id'"#;

#[tokio::test]
async fn contracts_are_set_topped_up_shown_and_removed() {
    let terminal = Terminal::new("contracts-of-the-terminal");
    terminal.carries_out(CONTRACTS).await;
    let shown = terminal.json("contract customer 4711").await;
    let minute = &shown["quotas"]["policies"]["minute"];
    assert_eq!(*minute, json!({"quota": 5_000, "burst_capacity": 50}));
    assert_eq!(shown["top_ups"][0]["id"], "order-12");
    assert_eq!(shown["author"], "alice");
    let removed = terminal.json("contract customer 4711 --remove").await;
    assert_eq!(removed, json!({"changed": true}));
    assert_eq!(terminal.json("contract customer 4711").await, Value::Null);
    let unchecked = terminal.json("contract customer 4711 minute=1 --for 1h").await;
    assert_eq!(unchecked, json!({"changed": true, "unchecked": "nothing is published"}));
    assert!(terminal.types("contract customer 4711").await.1.contains("until "));
}

/// Free callers have at most 100 a minute.
const CHECKED: &str = r#"
0: contract user alice minute=5000 => set;
3: contract user alice minutte=7000 => no published policy has the name "minutte", only ["day", "hour", "minute",
3: contract user alice minute=7001 => policy "minute": quota 7001 is outside 1..=100, 10..=7000
3: contract user alice minute=0 => quota 0 is outside
3: contract user alice day=7 => policy "day" allows no individual quotas
3: contract user alice minute=60 --burst minut=7 => has the name "minut"
3: contract user alice minute=60 --burst minute=7001 => policy "minute": burst capacity 7001 is outside
3: top-up user alice minutte=5 --for 1d --id a => has the name "minutte"
3: top-up user alice day=5 --for 1d --id a => allows no individual quotas
3: top-up user alice minute=7001 --for 1d --id a => top up 7001 is outside
0: contract user alice => minute: quota 5000\nsince
0: contract user alice hour=20 minute=7000 => set;
0: top-up user alice minute=7000 --for 1d --id a => added;"#;

#[tokio::test]
async fn a_contract_that_the_published_rules_would_not_follow_changes_nothing() {
    let terminal = Terminal::new("checked-contracts");
    let minute = |bounds| QuotaPolicy::per_minute("minute", 60).with_caller_quotas(bounds);
    let day = || QuotaPolicy::per_day("day", 9);
    let rules = Rules::new().tier("free", [minute(1..=100), day()]);
    let rules = rules.tier("premium", [minute(10..=7_000), QuotaPolicy::per_second("second", 5)]);
    let hour = QuotaPolicy::per_hour("hour", 10).with_caller_quotas(1..=20);
    let tried = Rules::new()
        .tier("free", [hour, day()])
        .tier("premium", [minute(10..=7_000)]);
    terminal.file("rules.json", &serde_json::to_value(rules).unwrap());
    terminal.file("tried.json", &serde_json::to_value(tried).unwrap());
    for file in ["rules.json", "tried.json --percent 10 --restart-counts"] {
        let line = format!("publish {file} --yes --drastic --no-wait");
        let (code, text) = terminal.types(&line).await;
        assert_eq!(code, 0, "{text}");
    }
    let printed = terminal.carries_out(CHECKED).await;
    assert!(!printed.contains("not checked"), "{printed}");
}
