//! The operators' pages of two instances that follow one rule set, used as an engineer on call uses them.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use tower_quota_browser_tests::{App, Browser, RedisServer};

const TOKEN: &str = "7c211433f02071597741e6ff5a8ea34789abbf43";

/// An instance of the fleet, and its page.
struct Instance {
    page: Browser,
    platform: App,
}

impl Instance {
    fn start(redis: &RedisServer, operator: &str) -> Self {
        let variables = [
            ("REDIS_URL", &*redis.url()),
            ("RULES_SET", "platform"),
            ("ADMIN_TOKEN", TOKEN),
        ];
        let platform = App::start_with("platform", &variables);
        let mut page = Browser::open(&format!("{}operators", platform.url()), 1_400, 1_300);
        page.wait_for("document.activeElement.id === 'token'");
        page.set("#token", TOKEN);
        page.set("#who", operator);
        page.click("#sign-in button");
        page.wait_for_text("#instance", "all instances that follow the rule set “platform”");
        Self { page, platform }
    }

    /// Confirms the dialog, which must show `text`.
    fn confirm(&mut self, text: &str) {
        self.page.wait_for("document.querySelector('#confirm').open");
        self.page.wait_for_text("#confirm", text);
        self.page.click("#confirm-yes");
    }

    fn has_status(&self, user: &str, status: &str) -> bool {
        let response = self.platform.get_as(user).unwrap();
        response.starts_with(&format!("HTTP/1.1 {status}"))
    }

    /// Publishes the rules of the file, with another quota by the minute for users of the first tier.
    fn publish(&mut self, from: &str, to: &str) {
        self.page.click("#edit summary");
        self.page.wait_for(&format!(
            "document.querySelector('#draft').value.includes('\"quota\": {from},')"
        ));
        let changed = self.page.eval("document.querySelector('#draft').value");
        let changed = changed
            .as_str()
            .unwrap()
            .replace(&format!("\"quota\": {from},"), &format!("\"quota\": {to},"));
        self.page.set("#draft", &changed);
        self.page.click("#replace");
    }

    fn end_with(mut self, provoked: &[&str]) {
        let errors = self.page.errors();
        let is_provoked = |error: &String| provoked.iter().any(|text| error.contains(text));
        assert!(errors.iter().all(is_provoked), "{errors:#?}");
    }
}

/// The switch needs no rules, and its order names who gave it.
fn switch_off_and_on(one: &mut Instance, other: &mut Instance) {
    one.page.click("#switch");
    one.confirm("Switch the limits of all instances off?");
    other
        .page
        .wait_for_text("#alerts", "The limits are switched off on all instances.");
    other.page.wait_for_text("#alerts", "Ordered by Alice");
    other.page.wait_for_text("#changes", "limits OFF until ");
    one.page.screenshot("fleet-unpublished");
    // Its page may learn later than the other one that the limits are off.
    one.page.wait_for_text("#switch", "limits of all instances on");
    one.page.click("#switch");
    other.page.wait_for_text("#tile-limits", "on");
}

#[test]
fn what_one_operator_publishes_the_page_of_the_other_shows_with_its_author() {
    let redis = RedisServer::start();
    let (mut one, mut other) = (Instance::start(&redis, "Alice"), Instance::start(&redis, "Bob"));
    one.page.wait_for_text("#alerts", "Nothing is published yet.");
    switch_off_and_on(&mut one, &mut other);

    one.publish("20", "30");
    one.confirm("On all instances, within two seconds.");
    one.page.wait_for_text("#version", "Version 1, by Alice");
    other.page.wait_for_text("#version", "Version 1, by Alice");
    other
        .page
        .wait_for_text("#version", "This instance limits by version 1.");
    other
        .page
        .wait_for("document.querySelector('#instances tbody').rows.length === 2");
    other.page.wait_for_text("#instances", "this instance");
    other.page.wait_for_text("#running", "free / minute\t30 in 60 s\t1\t2");

    // Bob types while Alice publishes.
    other.page.click("#edit summary");
    let text = other
        .page
        .eval("document.querySelector('#draft').value")
        .as_str()
        .unwrap()
        .to_owned();
    other
        .page
        .set("#draft", &text.replace("\"quota\": 30,", "\"quota\": 50,"));
    one.publish("30", "40");
    one.confirm("policy \"minute\" changes: quota 30 → 40");
    other
        .page
        .wait_for_text("#draft-said", "The rules have changed since you began");
    other.page.click("#replace");
    other.page.wait_for_text("#rules-said", "version 2 by \"Alice\" holds");
    other.page.screenshot("fleet-conflict");

    other.page.click("#versions tbody tr:nth-child(2) button");
    other.confirm("quota 40 → 30");
    one.page.wait_for_text("#version", "Version 3, by Bob");
    one.end_with(&[]);
    other.end_with(&["/admin/rules"]);
}

#[test]
fn the_switch_and_blocks_are_for_all_and_the_own_switch_is_for_one() {
    let redis = RedisServer::start();
    let (mut one, mut other) = (Instance::start(&redis, ""), Instance::start(&redis, ""));
    one.publish("20", "30");
    one.confirm("Use these rules for all callers?");
    other
        .page
        .wait_for_text("#version", "Version 1, by the operators' page");

    one.page.click("#switch");
    one.confirm("Switch the limits of all instances off?");
    one.page
        .wait_for_text("#alerts", "The limits are switched off on all instances.");
    other
        .page
        .wait_for_text("#alerts", "The limits are switched off on all instances.");
    other.page.wait_for_text("#tile-limits", "OFF");
    other.page.click("#own-on");
    other
        .page
        .wait_for_text("#alerts", "This instance overrides the fleet: its own switch is on.");
    one.page
        .wait_for_text("#alerts", "1 of the other instances does not follow.");
    one.page.screenshot("fleet-overridden");
    other.page.click("#own-fleet");
    other
        .page
        .wait_for_text("#own-state", "limits are off here, as in the fleet.");
    one.page.click("#switch");
    other.page.wait_for_text("#tile-limits", "on\nversion 1");

    other.page.set("#network", "127.0.0.0/8");
    other.page.click("#block-network button");
    other.confirm("All instances answer its requests with 403");
    other.page.wait_for_text("#blocked-said", "blocked on all instances");
    one.page.wait_for_text("#blocks", "network 127.0.0.0/8");
    assert!(other.has_status("erin", "403"));
    one.page.click("#blocks tbody button");
    other.page.wait_for_text("#blocks", "Nobody is blocked.");
    one.end_with(&[]);
    other.end_with(&[]);
}

#[test]
fn without_redis_the_page_says_what_it_does_not_know_and_switches_its_own_instance() {
    let mut redis = RedisServer::start();
    let mut one = Instance::start(&redis, "Alice");
    one.publish("20", "30");
    one.confirm("Use these rules for all callers?");
    one.page.wait_for_text("#version", "Version 1, by Alice");

    redis.kill();
    one.page
        .wait_for_text("#alerts", "The rules of the fleet cannot be read.");
    one.page.wait_for_text("#alerts", "This instance keeps version 1.");
    one.page.click("#switch");
    one.confirm("Switch the limits of all instances off?");
    one.page.wait_for_text("#now-said", "Redis did not answer");
    one.page.click("#own-off");
    one.confirm("Switch the limits of only this instance off?");
    one.page
        .wait_for_text("#own-said", "The limits of this instance are OFF");
    one.page
        .wait_for_text("#alerts", "This instance overrides the fleet: its own switch is off.");
    one.page.screenshot("fleet-without-redis");
    for _ in 0..40 {
        assert!(one.has_status("dave", "200"));
    }
    one.page
        .wait_for_text("#alerts", "This page does not know if the others limit.");

    one.page.set("#network-kind", "user");
    one.page.set("#network", "mallory");
    one.page.set("#network-scope", "here");
    one.page.click("#block-network button");
    one.confirm("This instance answers its requests with 403");
    one.page.wait_for_text("#blocks", "user mallory, only on this instance");
    assert!(one.has_status("mallory", "403") && one.has_status("dave", "200"));
    one.page.screenshot("fleet-own-block");
    one.page.click("#blocks .is-own button");
    one.page.wait_for_text("#blocks", "Unknown: Redis did not answer.");
    assert!(one.has_status("mallory", "200"));
    one.end_with(&["/admin/"]);
}

/// A page with two alerts, and nothing published.
fn in_trouble(redis: &mut RedisServer) -> Instance {
    let mut one = Instance::start(redis, "Alice");
    redis.kill();
    one.page.click("#own-off");
    one.confirm("Switch the limits of only this instance off?");
    one.page.wait_for_text("#alerts", "This instance overrides the fleet");
    one.page
        .wait_for_text("#alerts", "The rules of the fleet cannot be read.");
    one
}

/// An operator reads and types at the bottom of the page while something goes wrong.
#[test]
fn alerts_stay_in_sight_and_hide_no_control_that_gets_the_focus() {
    let mut one = in_trouble(&mut RedisServer::start());
    assert_eq!(one.page.eval(SHOWN), serde_json::json!(["hidden", 0, true]));
    for (width, height) in [(1_400, 500), (360, 640)] {
        one.page.resize(width, height);
        one.page.eval("void scrollTo(0, 1e6)");
        one.page
            .wait_for("getComputedStyle(document.querySelector('#problems')).visibility === 'visible'");
        assert_eq!(one.page.eval(SHOWN), serde_json::json!(["visible", 0, true]), "{width}");
        for title in ["cannot be read.", "This instance overrides", "are switched off."] {
            one.page.wait_for_text("#problems", title);
        }
        one.page.screenshot(&format!("fleet-alerts-{width}"));
        // From the bottom to the top, as with Shift and Tab.
        let hidden = one.page.eval(
            "[...document.querySelectorAll('#panels :is(button, input, select, summary, textarea)')].reverse()
                .filter((control) => control.checkVisibility())
                .filter((control) => {
                    control.focus();
                    const below = document.querySelector('#problems').getBoundingClientRect().bottom;
                    return document.activeElement === control && control.getBoundingClientRect().top < below;
                })
                .map((control) => control.outerHTML)",
        );
        assert_eq!(hidden, serde_json::json!([]), "{width}");
    }
    // A click on the titles leads to the alerts.
    one.page.eval("void scrollTo(0, 1e6)");
    one.page
        .wait_for("getComputedStyle(document.querySelector('#problems')).visibility === 'visible'");
    one.page.click("#problems");
    one.page
        .wait_for("getComputedStyle(document.querySelector('#problems')).visibility === 'hidden'");
    one.end_with(&["/admin/"]);
}

/// The titles of the alerts: visible or not, their place, and true if they take less than half of the window.
const SHOWN: &str = "(() => {
    const titles = document.querySelector('#problems');
    const { top, height } = titles.getBoundingClientRect();
    const fits = height > 20 && height < innerHeight / 2 && document.documentElement.scrollWidth <= innerWidth;
    return [getComputedStyle(titles).visibility, Math.round(top), fits];
})()";

#[test]
fn alerts_that_become_more_hide_no_control_that_has_the_focus() {
    let mut one = in_trouble(&mut RedisServer::start());
    one.page.resize(1_400, 500);
    one.page.eval("void scrollTo(0, 1e6)");
    one.page
        .wait_for("getComputedStyle(document.querySelector('#problems')).visibility === 'visible'");
    one.page
        .eval("void document.querySelector('#block-network button').focus()");
    one.page.eval(
        "(() => {
            const titles = document.querySelector('#problems');
            const space = document.activeElement.getBoundingClientRect().top - titles.getBoundingClientRect().bottom;
            scrollBy(0, space - 4);
            titles.textContent += ' Another problem, which needs a second line.'.repeat(5);
        })()",
    );
    one.page.wait_for(
        "document.activeElement.getBoundingClientRect().top
            >= document.querySelector('#problems').getBoundingClientRect().bottom",
    );
    one.end_with(&["/admin/"]);
}
