//! The operators' page of the platform in a real browser, used as an operator on call uses it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    env, fs,
    path::PathBuf,
    process,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use tower_quota_browser_tests::{App, Browser, Key, RedisServer};

const TOKEN: &str = "7c211433f02071597741e6ff5a8ea34789abbf43";

/// By the day, so that no unit comes back while a test runs.
const RULES: &str = r#"{
  "tiers": [
    {
      "name": "free",
      "policies": [
        {"name": "day", "quota": 20, "window_seconds": 86400},
        {"name": "planned", "quota": 3, "window_seconds": 86400, "shadow": true},
        {"name": "address", "quota": 100000, "window_seconds": 86400, "key": "address"}
      ]
    },
    {"name": "admin", "unlimited": true}
  ]
}
"#;

/// An operator's page of a separate platform.
struct Visit {
    page: Browser,
    platform: App,
    redis: RedisServer,
    rules: PathBuf,
}

impl Visit {
    /// The page before the token is typed.
    fn signed_out(width: u32, height: u32) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);

        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let rules = env::temp_dir().join(format!("tower-quota-operators-{}-{number}.json", process::id()));
        fs::write(&rules, RULES).unwrap();
        let redis = RedisServer::start();
        let variables = [
            ("REDIS_URL", &*redis.url()),
            ("RULES", rules.to_str().unwrap()),
            ("ADMIN_TOKEN", TOKEN),
        ];
        let platform = App::start_with("platform", &variables);
        let page = Browser::open(&format!("{}operators", platform.url()), width, height);
        let mut visit = Self {
            page,
            platform,
            redis,
            rules,
        };
        visit.page.wait_for("document.activeElement.id === 'token'");
        visit
    }

    fn start() -> Self {
        Self::with(1_400, 1_100)
    }

    fn with(width: u32, height: u32) -> Self {
        let mut visit = Self::signed_out(width, height);
        visit.sign_in(TOKEN);
        visit
            .page
            .wait_for_text("#alerts", "this page does not know if it answers");
        visit.page.wait_for_text("#version", "from the file");
        visit
    }

    fn sign_in(&mut self, token: &str) {
        self.page.set("#token", token);
        self.page.click("#sign-in button");
    }

    /// Sends requests of a user. Returns how many passed.
    fn send(&self, user: &str, count: u32) -> usize {
        let responses = (0..count).map(|_| self.platform.get_as(user).unwrap());
        responses
            .filter(|response| response.starts_with("HTTP/1.1 200"))
            .count()
    }

    fn look_up(&mut self, user: &str) {
        self.page.set("#name", user);
        self.page.click("#look-up button");
        self.page.wait_for_text("#found-name", user);
    }

    /// Confirms the dialog, which must show `text`.
    fn confirm(&mut self, text: &str) {
        self.page.wait_for("document.querySelector('#confirm').open");
        self.page.wait_for_text("#confirm", text);
        self.page.click("#confirm-yes");
    }

    /// Ends the visit. No message in the console may be an error, but for the answers that the test provokes.
    fn end_with(mut self, provoked: &[&str]) {
        let errors = self.page.errors();
        let is_provoked = |error: &String| provoked.iter().any(|text| error.contains(text));
        assert!(errors.iter().all(is_provoked), "{errors:#?}");
    }

    fn end(self) {
        self.end_with(&[]);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.rules);
    }
}

/// The text of the meter of a policy.
const DAY: &str = ".meter:first-child .number";

#[test]
fn a_wrong_token_shows_nothing_and_the_eleventh_is_rejected_with_the_time_to_wait() {
    let mut visit = Visit::signed_out(1_000, 700);
    for guess in ["wrong", "käse", " "] {
        visit.sign_in(guess);
        if guess != " " {
            visit.page.wait_for_text("#sign-in-said", "This token is not right.");
        }
        assert_eq!(visit.page.eval("document.querySelector('#signed-in').hidden"), true);
    }
    for guess in 0..10 {
        visit
            .page
            .eval("void (document.querySelector('#sign-in-said').textContent = '')");
        visit.sign_in(&format!("guess-{guess}"));
        visit
            .page
            .wait_for("document.querySelector('#sign-in-said').textContent !== ''");
    }
    visit.page.wait_for_text("#sign-in-said", "Too many wrong tokens");
    visit
        .page
        .wait_for_text("#sign-in-said", "min; other addresses are not.");
    // Accepting the right token would confirm a guess.
    visit
        .page
        .eval("void (document.querySelector('#sign-in-said').textContent = '')");
    visit.sign_in(TOKEN);
    visit.page.wait_for_text("#sign-in-said", "Too many wrong tokens");
    visit.page.screenshot("operators-sign-in");
    visit.end_with(&["/admin/state"]);
}

#[test]
fn signing_out_forgets_the_token_and_what_was_shown() {
    let mut visit = Visit::start();
    visit.send("alice", 1);
    visit.look_up("alice");
    visit.page.click("#sign-out");
    visit.page.wait_for("document.activeElement.id === 'token'");
    let shown = visit.page.text("body");
    assert!(!shown.contains("alice") && !shown.contains("process"), "{shown}");
    let kept = visit
        .page
        .eval("[document.querySelector('#token').value, localStorage.length, sessionStorage.length, document.cookie]");
    assert_eq!(kept, serde_json::json!(["", 0, 0, ""]));
    visit.sign_in(TOKEN);
    visit.page.wait_for_text("#alerts", "The limits are on");
    visit.end();
}

#[test]
fn the_switch_asks_first_and_cancels_by_default() {
    let mut visit = Visit::start();
    assert_eq!(visit.send("dave", 25), 20);
    visit.page.click("#switch");
    visit.page.wait_for_text("#confirm", "Other instances still limit");
    visit.page.screenshot("operators-switch");
    assert_eq!(visit.page.eval("document.activeElement.id"), "confirm-no");
    visit.page.press(Key::Enter);
    visit.page.wait_for("!document.querySelector('#confirm').open");
    visit.page.click("#switch");
    visit.page.wait_for("document.querySelector('#confirm').open");
    visit.page.press(Key::Escape);
    visit.page.wait_for("!document.querySelector('#confirm').open");
    assert_eq!(visit.send("dave", 2), 0);

    visit.page.click("#switch");
    visit.confirm("Switch the limits of this instance off?");
    visit.page.wait_for_text("#alerts", "The limits are switched off.");
    visit
        .page
        .wait_for("document.querySelector('#alerts a').href.endsWith('#limits-are-switched-off')");
    visit.page.wait_for_text("#tile-limits", "OFF");
    visit
        .page
        .wait_for_text("#entries", "The limits of this instance are OFF");
    assert_eq!(visit.send("dave", 2), 2);
    visit.page.screenshot("operators-off");
    visit.page.click("#switch");
    visit.page.wait_for_text("#alerts", "The limits are on");
    visit.page.wait_for("document.querySelector('#alerts a').hidden");
    assert_eq!(visit.send("dave", 2), 0);
    visit.end();
}

#[test]
fn rules_are_tried_on_some_callers_then_used_for_all_and_each_change_is_shown_first() {
    let mut visit = Visit::start();
    let new = RULES.replace("\"quota\": 20", "\"quota\": 30");
    visit.page.click("#edit summary");
    visit.page.set("#draft", &new);
    visit.page.set("#try-percent", "100");
    visit.page.click("#try button");
    visit.confirm("free / day: quota 20 → 30");
    visit.page.wait_for_text("#alerts", "on 100 % of the callers");
    visit.look_up("erin");
    visit.page.wait_for_text(DAY, "30 of 30 left");

    visit.page.set("#share-percent", "0");
    visit.page.click("#share button");
    visit.confirm("It was 100 %.");
    visit.page.wait_for_text("#trial-text", "on 0 % of the callers");
    visit.look_up("erin");
    visit.page.wait_for_text(DAY, "20 of 20 left");
    visit.page.click("#shown summary");
    visit.page.wait_for_text("#tried", "30");
    visit.page.screenshot("operators-trial");

    visit.page.click("#finish");
    visit.confirm("Use the tried rules for all callers?");
    visit.page.wait_for_text("#version", "from an administrator");
    visit.page.wait_for("document.querySelector('#trial').hidden");
    visit.look_up("erin");
    visit.page.wait_for_text(DAY, "30 of 30 left");

    // Another trial, which ends without a change.
    visit.page.click("#edit summary");
    visit
        .page
        .wait_for("document.querySelector('#draft').value.includes('30')");
    visit.page.set("#draft", RULES);
    visit.page.click("#try button");
    visit.confirm("free / day: quota 30 → 20");
    visit.page.wait_for_text("#alerts", "on 100 % of the callers");
    visit.page.click("#abandon");
    visit.confirm("All callers have the old rules again.");
    visit.page.wait_for("document.querySelector('#trial').hidden");
    visit.look_up("erin");
    visit.page.wait_for_text(DAY, "30 of 30 left");
    visit.end();
}

#[test]
fn mistaken_and_outdated_rules_are_rejected_with_the_reason() {
    let mut visit = Visit::start();
    visit.page.click("#edit summary");
    visit
        .page
        .set("#draft", &RULES.replace("\"quota\": 20", "\"quota\": -1"));
    visit.page.click("#replace");
    visit.confirm("free / day: quota 20 → -1");
    visit.page.wait_for_text("#rules-said", "invalid value");
    visit.page.set("#draft", "{\"tiers\": [");
    visit.page.click("#replace");
    visit.confirm("This is not JSON");
    visit.page.wait_for_text("#rules-said", "EOF while parsing");
    visit.page.screenshot("operators-mistake");

    // The file changes while the operator types.
    visit
        .page
        .set("#draft", &RULES.replace("\"quota\": 20", "\"quota\": 40"));
    let new = visit.rules.with_extension("new");
    fs::write(&new, RULES.replace("\"quota\": 20", "\"quota\": 25")).unwrap();
    fs::rename(&new, &visit.rules).unwrap();
    visit
        .page
        .wait_for_text("#draft-said", "The rules have changed since you began");
    visit.page.click("#replace");
    visit.confirm("quota 25 → 40");
    visit
        .page
        .wait_for_text("#rules-said", "the rules have changed meanwhile");
    visit.page.click("#again");
    visit
        .page
        .wait_for("document.querySelector('#draft').value.includes('25')");
    visit.end_with(&["/admin/rules"]);
}

#[test]
fn a_caller_is_looked_up_reset_given_units_back_and_blocked_for_a_time() {
    let mut visit = Visit::start();
    assert_eq!(visit.send("dave", 25), 20);
    visit.page.wait_for_text("#rejected", "dave");
    // By the list of those that are rejected most.
    visit.page.click("#rejected tbody button");
    visit.page.wait_for_text("#found-name", "dave · tier free");
    visit.page.wait_for_text(DAY, "0 of 20 left");
    visit
        .page
        .wait_for_text("#found-policies", "a shadow: it rejects nothing");

    visit.page.set("#units", "7");
    visit.page.click("#give-back button");
    visit.page.wait_for_text("#caller-said", "7 units given back to dave.");
    visit.page.wait_for_text(DAY, "7 of 20 left");
    assert_eq!(visit.send("dave", 10), 7);
    visit.page.click("#reset");
    visit
        .page
        .wait_for_text("#caller-said", "dave has the whole quota again.");
    visit.page.wait_for_text(DAY, "20 of 20 left");

    visit.page.set("#block-time", "600");
    visit.page.click("#block-button");
    visit.confirm("Block user dave?");
    visit.page.wait_for_text("#found-blocked", "Blocked on this instance.");
    visit.page.wait_for_text("#blocks", "user dave\tin 10 min");
    assert!(visit.platform.get_as("dave").unwrap().starts_with("HTTP/1.1 403"));
    visit.page.screenshot("operators-caller");
    visit.page.click("#block-button");
    visit.page.wait_for_text("#blocks", "Nobody is blocked.");
    assert_eq!(visit.send("dave", 1), 1);

    visit.page.set("#network", "127.0.0.0/8");
    visit.page.click("#block-network button");
    visit.confirm("Block network 127.0.0.0/8?");
    visit.page.wait_for_text("#blocks", "network 127.0.0.0/8");
    assert_eq!(visit.send("erin", 1), 0);
    visit.page.click("#blocks tbody button");
    visit.page.wait_for_text("#blocks", "Nobody is blocked.");
    assert_eq!(visit.send("erin", 1), 1);
    visit.end();
}

#[test]
fn an_invalid_network_is_refused_before_the_dialog_opens() {
    let mut visit = Visit::start();
    let invalid = [
        "300.1.1.1",
        "203.0.113",
        "203.0.113.0/33",
        "203.0.113.0/",
        "2001:db8::/129",
        "1::2::3",
        "example.org",
    ];
    for network in invalid {
        visit.page.set("#network", network);
        visit.page.click("#block-network button");
        visit.page.wait_for_text(
            "#blocked-said",
            &format!("{network} is neither an IP address nor a network"),
        );
        assert_eq!(visit.page.eval("document.querySelector('#confirm').open"), false);
    }
    visit.page.screenshot("operators-network");
    for network in ["203.0.113.7", "203.0.113.0/24", "2001:db8::/64", "::ffff:203.0.113.7"] {
        visit.page.set("#network", network);
        visit.page.click("#block-network button");
        visit.page.wait_for("document.querySelector('#confirm').open");
        visit
            .page
            .wait_for_text("#confirm-title", &format!("Block network {network}?"));
        assert_eq!(visit.page.text("#blocked-said"), "");
        visit.page.click("#confirm-no");
        visit.page.wait_for("!document.querySelector('#confirm').open");
    }
    visit.end();
}

#[test]
fn the_service_validates_networks_and_a_user_may_have_the_name_of_one() {
    let mut visit = Visit::start();
    visit.page.set("#network", "203.0.113.7/24");
    visit.page.click("#block-network button");
    visit.confirm("Block network 203.0.113.7/24?");
    visit.page.wait_for_text("#blocked-said", "203.0.113.0/24");
    visit.page.set("#network-kind", "user");
    visit.page.set("#network", "300.1.1.1");
    visit.page.click("#block-network button");
    visit.confirm("Block user 300.1.1.1?");
    visit.page.wait_for_text("#blocks", "user 300.1.1.1");
    visit.end_with(&["/admin/block"]);
}

#[test]
fn the_list_of_rejected_callers_has_a_filter_that_lasts() {
    let mut visit = Visit::start();
    for user in ["alice", "bob"] {
        assert_eq!(visit.send(user, 22), 20);
        visit.page.wait_for_text("#rejected", user);
    }
    visit.page.set("#rejected-filter", "ALI");
    visit
        .page
        .wait_for("document.querySelector('#rejected tbody').rows.length === 1");
    for user in ["alice", "bob"] {
        assert_eq!(visit.send(user, 3), 0);
    }
    // The list refreshes.
    visit.page.wait_for_text("#rejected", "day\t5\t");
    let shown = visit.page.text("#rejected");
    assert!(shown.contains("alice") && !shown.contains("bob"), "{shown}");
    visit.page.screenshot("operators-filter");

    visit.page.set("#rejected-filter", "carol");
    visit
        .page
        .wait_for_text("#rejected", "No rejected caller matches the filter.");
    // By the policy.
    visit.page.set("#rejected-filter", "day");
    for user in ["alice", "bob"] {
        visit.page.wait_for_text("#rejected", user);
    }
    visit.end();
}

#[test]
fn names_of_callers_are_shown_as_text_whatever_is_in_them() {
    let mut visit = Visit::start();
    let names = [
        "<img src=x onerror=alert(1)>",
        "../rules",
        "a&user=b",
        "100%",
        "ä/ö?#",
        "..",
    ];
    for name in names {
        visit.page.set("#name", name);
        visit.page.click("#look-up button");
        visit.page.wait_for(&format!(
            "document.querySelector('#found-name').innerText.startsWith({name:?})"
        ));
    }
    assert_eq!(visit.send("<b>bold</b>", 22), 20);
    visit.page.wait_for_text("#rejected", "<b>bold</b>");

    visit.page.set("#kind", "address");
    visit.page.set("#name", "not-an-address");
    visit.page.click("#look-up button");
    visit
        .page
        .wait_for_text("#caller-said", "not-an-address is not an address.");
    visit.page.set("#name", "127.0.0.1");
    visit.page.click("#look-up button");
    visit
        .page
        .wait_for_text("#found-name", "127.0.0.1 · requests without a user");
    visit.page.wait_for_text("#found-policies", "counts by address");
    visit.end_with(&["/admin/caller"]);
}

#[test]
fn the_chart_moves_with_the_requests_and_is_drawn_once_a_frame() {
    let mut visit = Visit::start();
    visit.page.eval(
        "globalThis.frames = 0; globalThis.draws = 0;
         const count = () => { frames++; requestAnimationFrame(count); };
         const clear = CanvasRenderingContext2D.prototype.clearRect;
         CanvasRenderingContext2D.prototype.clearRect = function (...area) {
             if (this.canvas.id === 'decisions') draws++;
             return clear.apply(this, area);
         };
         requestAnimationFrame(count);",
    );
    let picture = "document.querySelector('#decisions').toDataURL()";
    let before = visit.page.eval(picture);
    visit.send("admin-carol", 10);
    assert_eq!(visit.send("dave", 60), 20);
    visit.page.wait_for_text("#outcomes", "rejected by day");
    visit
        .page
        .wait_for_text("#outcomes", "would be rejected by planned (shadow)");
    visit.page.wait_for_text("#legend", "allowed");
    visit.page.wait_for_text("#legend", "rejected by day");
    visit.page.wait_for_text("#tile-store", "99 % of the last minute");
    visit.page.wait_for_text("#alerts", "and Redis decides");
    visit
        .page
        .wait_for("document.querySelector('#decisions').ariaLabel.includes('rejected 40')");
    assert!(visit.page.eval(picture) != before);
    // Each answer of the service, once a second, draws once.
    visit.page.wait_for("draws > 5");
    let drawn = visit.page.eval("[draws, frames]");
    assert!(drawn[0].as_u64() <= drawn[1].as_u64(), "{drawn}");
    visit.page.screenshot("operators");
    visit.end();
}

#[test]
fn the_page_begins_with_the_minutes_before_it_was_opened() {
    let mut visit = Visit::signed_out(1_400, 1_100);
    assert_eq!(visit.send("dave", 22), 20);
    // The service keeps its numbers every five seconds.
    thread::sleep(Duration::from_secs(6));
    assert_eq!(visit.send("dave", 3), 0);
    visit.sign_in(TOKEN);
    visit.page.wait_for_text("#outcomes", "rejected by day");
    visit.page.wait_for_text("#rejected", "dave");
    visit.end();
}

/// There is one alert. Its text changes every second, and its link keeps the focus.
fn assert_links_to(page: &mut Browser, section: &str) {
    let links =
        "[...document.querySelectorAll('#alerts a')].map((link) => [link.href, link.target, link.checkVisibility()])";
    let url = format!("https://docs.rs/tower-quota/latest/tower_quota/docs/alerts/#{section}");
    assert_eq!(page.eval(links), serde_json::json!([[url, "_blank", true]]));
    page.eval("void document.querySelector('#alerts a').focus()");
    let before = page.text("#alerts");
    page.wait_for(&format!("document.querySelector('#alerts').innerText !== {before:?}"));
    assert_eq!(page.eval("document.activeElement.href"), url);
}

#[test]
fn an_outage_of_redis_is_said_with_its_reason_and_so_is_its_end() {
    let mut visit = Visit::start();
    visit.send("dave", 3);
    visit.redis.kill();
    visit.send("dave", 10);
    visit.page.wait_for_text("#alerts", "The circuit to Redis is open, for");
    visit.page.wait_for_text("#alerts", "Requests pass uncounted.");
    // On a busy machine the first errors are deadlines that have passed. The error of the last trial is shown.
    for _ in 0..100 {
        if visit.page.text("#alerts").contains("Connection refused") {
            break;
        }
        visit.send("dave", 1);
        thread::sleep(Duration::from_millis(100));
    }
    visit.page.wait_for_text("#alerts", "Connection refused");
    visit.page.wait_for_text("#tile-circuit", "OPEN");
    assert_links_to(&mut visit.page, "the-store-is-unavailable");
    visit.page.set("#name", "dave");
    visit.page.click("#look-up button");
    visit.page.wait_for_text("#caller-said", "Redis did not answer");
    visit.page.screenshot("operators-outage");
    visit.redis.restart();
    for _ in 0..100 {
        visit.send("dave", 1);
        if visit.page.text("#tile-circuit").starts_with("closed") {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    visit.page.wait_for_text("#tile-circuit", "Redis decides");
    visit.end_with(&["/admin/caller"]);
}

#[test]
fn everything_can_be_done_with_the_keyboard() {
    let mut visit = Visit::signed_out(1_400, 1_100);
    visit
        .page
        .eval(&format!("void (document.querySelector('#token').value = {TOKEN:?})"));
    visit.page.press(Key::Enter);
    visit.page.wait_for_text("#alerts", "The limits are on");
    let page = &mut visit.page;
    let tab_to = |page: &mut Browser, wanted: &str| {
        for _ in 0..60 {
            page.press(Key::Tab);
            let focus = page.eval("document.activeElement.id || document.activeElement.parentElement.id");
            if focus == wanted {
                return;
            }
        }
        panic!("no tab leads to {wanted}");
    };
    tab_to(page, "switch");
    page.press(Key::Enter);
    page.wait_for("document.activeElement.id === 'confirm-no'");
    page.press(Key::Tab);
    page.press(Key::Enter);
    page.wait_for_text("#alerts", "The limits are switched off.");
    assert_eq!(page.eval("document.activeElement.id"), "switch");
    page.press(Key::Space);
    page.wait_for_text("#alerts", "The limits are on");
    tab_to(page, "name");
    page.eval("void (document.querySelector('#name').value = 'alice')");
    page.press(Key::Enter);
    page.wait_for_text("#found-name", "alice");
    tab_to(page, "reset");
    page.press(Key::Enter);
    page.wait_for_text("#caller-said", "alice has the whole quota again.");
    tab_to(page, "network");
    tab_to(page, "shown");
    page.press(Key::Enter);
    tab_to(page, "current");
    visit.end();
}

#[test]
fn a_narrow_window_needs_no_sideways_scrolling() {
    let mut visit = Visit::with(360, 740);
    visit.send("a-caller-with-a-name-that-is-longer-than-a-narrow-window-is-wide", 25);
    visit.page.wait_for_text("#rejected", "a-caller-with");
    visit.page.click("#rejected tbody button");
    visit.page.wait_for_text(DAY, "0 of 20 left");
    visit.page.click("#edit summary");
    let width = visit.page.eval("document.documentElement.scrollWidth");
    assert!(width.as_u64().unwrap() <= 360, "{width}");
    visit.page.eval("void scrollTo(0, 0)");
    let bottom = visit
        .page
        .eval("document.querySelector('#switch').getBoundingClientRect().bottom");
    assert!(
        bottom.as_f64().unwrap() < 740.0,
        "the switch is below the window: {bottom}"
    );
    visit.page.screenshot("operators-narrow");
    visit.end();
}

#[test]
fn text_can_be_read_in_light_and_in_dark() {
    let mut visit = Visit::start();
    visit.send("dave", 25);
    visit.look_up("dave");
    visit.page.wait_for_text("#rejected", "dave");
    visit.page.click("#shown summary");
    for scheme in ["light", "dark"] {
        visit.page.prefer("prefers-color-scheme", scheme);
        let low = visit.page.eval(tower_quota_browser_tests::LOW_CONTRASTS);
        assert!(low.as_array().unwrap().is_empty(), "{scheme}: {low:#}");
        visit.page.screenshot(&format!("operators-{scheme}"));
    }
    visit.end();
}

#[test]
fn the_page_keeps_five_minutes_however_long_it_is_open() {
    let mut visit = Visit::start();
    let kept = visit.page.eval(
        "import('./history.js').then(({ History }) => {
             const history = new History();
             for (let second = 0; second < 7_200; second++) {
                 const decisions = Array.from({ length: 100 }, (_, policy) => ['free', `p${policy}`, 'rejected', second * 10]);
                 history.push({ milliseconds: second * 1_000, decisions, shadows: [], store_seconds: [[0.1, second], [null, second]], undecided: {} });
             }
             const { sums, seconds } = history.sums(300_000);
             return [history.points.length, sums.size, seconds, [...sums.values()][0]];
         })",
    );
    assert_eq!(kept, serde_json::json!([301, 100, 300, 3_000]));
    visit.end();
}

/// More callers than the list can show, each with a different name, while the page is open.
#[test]
#[ignore = "it takes nine minutes: `make browser-soak` runs it"]
fn after_seven_rounds_of_load_the_page_is_as_small_as_after_five() {
    let mut visit = Visit::start();
    let mut heaps = Vec::new();
    for round in 0..7 {
        for second in 0..60 {
            for caller in 0..10 {
                visit.send(&format!("caller-{}", caller * (round * 60 + second)), 5);
            }
            visit.page.eval("new Promise((done) => setTimeout(done, 700))");
        }
        heaps.push(visit.page.heap());
        println!("{} bytes", heaps[heaps.len() - 1]);
    }
    // A round takes more than a minute, so the first five fill the history.
    assert!(heaps[6] < heaps[4] * 3 / 2, "{heaps:?}");
    visit.end();
}
