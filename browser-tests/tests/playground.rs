//! The playground in a real browser, used as a visitor uses it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;

use tower_quota_browser_tests::{App, Browser, Key, LOW_CONTRASTS};

/// The page of a separate playground.
struct Visit {
    page: Browser,
    app: App,
}

impl Visit {
    fn start() -> Self {
        Self::with(1_500, 1_180)
    }

    fn with(width: u32, height: u32) -> Self {
        let app = App::start("playground");
        let mut page = Browser::open(app.url(), width, height);
        page.wait_for_text("#meters", "5 of 5 left");
        Self { page, app }
    }

    /// Ends the visit. Not one message in the console may be an error.
    fn end(mut self) {
        let errors = self.page.errors();
        assert!(errors.is_empty(), "{errors:#?}");
    }
}

const METER: &str = ".meter:first-child .number";

#[test]
fn a_bucket_drains_with_each_request_and_fills_by_itself() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.click("#one");
    page.wait_for_text(METER, "4 of 5 left");
    page.click("#one");
    page.click("#one");
    page.wait_for_text(METER, "2 of 5 left");
    page.wait_for_text(
        "#response",
        "ratelimit-policy: \"burst\";q=5;w=10, \"minute\";q=20;w=60",
    );
    page.wait_for_text(METER, "3 of 5 left");
    page.wait_for_text(METER, "5 of 5 left");
    visit.end();
}

#[test]
fn a_rejection_counts_down_and_then_the_same_request_passes() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.click("#ten");
    page.wait_for_text("#legend", "5 rejected");
    ask_until_rejected(page);
    page.wait_for_text("#response", "HTTP/1.1 429 Too Many Requests");
    page.wait_for_text("#response", "\"violated-policies\":[\"burst\"]");
    page.wait_for_text("#countdown", "The same request passes in");
    page.screenshot("rejection");
    page.wait_for_text("#countdown", "the same request passes now");
    page.click("#one");
    page.wait_for_text("#response", "HTTP/1.1 200 OK");
    page.wait_for("document.querySelector('#countdown').hidden");
    visit.end();
}

#[test]
fn another_dialect_changes_the_fields_but_not_what_is_left() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.click("#one");
    page.wait_for_text("#response", "ratelimit: \"burst\";r=4");
    page.set("#dialect", "draft-06");
    page.wait_for_text("#program", "ResponseFields::draft06()");
    page.click("#one");
    page.wait_for_text("#response", "ratelimit-remaining: 3");
    page.wait_for_text("#response", "ratelimit-policy: 5;w=10, 20;w=60");
    page.set("#dialect", "x-unix-time");
    page.wait_for_text("#program", "LegacyReset::UnixTime");
    page.click("#one");
    page.wait_for_text("#response", "x-ratelimit-reset: 1");
    page.set("#dialect", "none");
    page.wait_for_text("#program", "ResponseFields::none()");
    page.click("#one");
    page.wait_for("!document.querySelector('#response').innerText.includes('ratelimit')");
    visit.end();
}

#[test]
fn each_part_of_a_response_is_explained_where_the_pointer_is() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.click("#one");
    page.wait_for_text("#response", "200 OK");
    page.eval("[...document.querySelectorAll('.part')].find((part) => part.textContent.startsWith('t=')).id = 'time'");
    page.hover("#time");
    page.wait_for_text("#explanation", "not “reset”");
    page.wait_for_text("#explanation", "gives units back one by one");
    // All that was received is shown.
    let (shown, parts) = (
        page.text("#response"),
        page.eval("document.querySelectorAll('.part').length"),
    );
    assert!(
        shown.ends_with("Hello!") && shown.contains("content-length: 7"),
        "{shown}"
    );
    assert!(parts.as_u64().unwrap() > 15, "{parts}");
    page.screenshot("explanation");
    visit.end();
}

/// `apps/tests/playground` compiles all programs of this file, without comments and blank lines.
#[test]
fn the_copied_program_is_one_that_a_test_compiles() {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../apps/tests/playground/programs.rs");
    let programs = fs::read_to_string(programs).unwrap();
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.allow_clipboard();
    let copy = |page: &mut Browser| {
        page.click("#copy");
        page.wait_for_text("#copied", "Copied");
        let copied = page.eval("navigator.clipboard.readText()");
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let code = copied.as_str().unwrap().split_inclusive('\n').filter(is_code);
        code.collect::<String>()
    };
    let first = copy(page);
    assert!(first.contains("fn main()") && programs.contains(&first), "{first}");

    page.set("[name=algorithm]", "leaky-bucket-queue");
    page.set("#dialect", "draft-06");
    page.wait_for_text("#program", "draft06");
    page.wait_for_text("#program", "LeakyBucketQueue { max_waiting: 5 }");
    let second = copy(page);
    assert!(programs.contains(&second), "{second}");
    visit.end();
}

#[test]
fn requests_wait_in_a_queue_and_are_seen_to_wait() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.set("[name=algorithm]", "leaky-bucket-queue");
    page.wait_for_text("#meters", "6 of 6 left");
    page.click("#ten");
    page.wait_for_text("#legend", "5 waiting now");
    page.wait_for_text("#legend", "4 rejected");
    page.wait_for_text("#legend", "6 passed");
    page.wait_for_text("#legend", "0 waiting now");
    visit.end();
}

#[test]
fn a_slow_response_does_not_replace_that_of_a_later_request() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.set("[name=algorithm]", "leaky-bucket-queue");
    // One request in 4 seconds.
    page.set("[name=window]", "20");
    page.set("[name=max_waiting]", "1");
    page.wait_for_text("#program", "LeakyBucketQueue { max_waiting: 1 }");
    page.wait_for_text(METER, "2 of 2 left");
    page.click("#one");
    page.wait_for_text("#response", "200 OK");
    page.click("#one");
    page.wait_for_text("#legend", "1 waiting now");
    page.click("#one");
    page.wait_for_text("#response", "429");
    page.wait_for_text("#legend", "2 passed");
    page.wait_for_text("#legend", "0 waiting now");
    // Some ticks later, the slow response has arrived as well.
    page.eval("new Promise((done) => setTimeout(done, 500))");
    let response = page.text("#response");
    assert!(response.contains("429"), "{response}");
    visit.end();
}

#[test]
fn a_change_that_is_sent_slowly_does_not_replace_a_later_one() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.eval(
        "const send = fetch;
        let sent = 0;
        window.fetch = async (...request) => {
            sent += 1;
            if (sent === 1) await new Promise((done) => setTimeout(done, 500));
            return send(...request);
        };",
    );
    page.set("[name=quota]", "7");
    page.set("[name=quota]", "9");
    page.wait_for_text(METER, "9 of 9 left");
    // Both requests have been answered, and the page has had time to load the configuration of the server.
    page.eval("new Promise((done) => setTimeout(done, 1_000))");
    assert_eq!(page.eval("document.querySelector('[name=quota]').value"), "9");
    assert_eq!(page.text(METER), "9 of 9 left");
    visit.end();
}

#[test]
fn the_same_requests_are_counted_under_each_algorithm() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.click("#ten");
    let expected = [
        "5\t5\t0", "3\t7\t0", "5\t5\t0", "5\t5\t0", "5\t5\t0", "1\t9\t0", "\t4\t",
    ];
    for (index, numbers) in expected.iter().enumerate() {
        page.wait_for_text(&format!("#compared tbody tr:nth-child({})", index + 1), numbers);
    }
    // A meter has room for one unit.
    page.set("#cost", "2");
    page.wait_for_text("#compared tbody tr:nth-child(6)", "Not possible");
    visit.end();
}

#[test]
fn what_happens_without_the_store_is_the_failure_mode() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.click("#away");
    page.wait_for_text("#away", "End the outage");
    page.wait_for_text("#store-note", "fails open");
    page.wait_for_text("#meters", "unknown");
    page.click("#ten");
    page.wait_for_text("#legend", "10 passed uncounted");
    page.set("#outage", "closed");
    page.wait_for_text("#program", "FailureMode::Closed");
    page.click("#one");
    page.wait_for_text("#response", "503 Service Unavailable");
    page.wait_for_text("#legend", "1 failed with 503");
    page.set("#outage", "fallback");
    page.wait_for_text("#meters", "5 of 5 left");
    ask_until_rejected(page);
    page.wait_for_text(METER, "0 of 5 left");
    page.screenshot("outage");
    page.click("#away");
    page.wait_for_text("#away", "Simulate an outage");
    page.wait_for_text(METER, "5 of 5 left");
    visit.end();
}

#[test]
fn a_change_of_one_page_is_seen_by_the_others() {
    let mut visit = Visit::start();
    let mut other = Browser::open(visit.app.url(), 800, 600);
    other.wait_for_text("#meters", "5 of 5 left");
    visit.page.set("[name=quota]", "9");
    other.wait_for_text("#meters", "of 9 left");
    other.wait_for("document.querySelector('[name=quota]').value === '9'");
    let errors = other.errors();
    assert!(errors.is_empty(), "{errors:#?}");
    visit.end();
}

#[test]
fn a_mistake_is_named_and_the_limits_stay() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.set("[name=quota]", "0");
    page.wait_for_text("#mistake", "Quota: Value must be");
    page.click("#one");
    page.wait_for_text(METER, "4 of 5 left");
    page.set("[name=quota]", "7");
    page.wait_for("document.querySelector('#mistake').textContent === ''");
    page.wait_for_text(METER, "of 7 left");
    let errors = page.errors();
    assert!(errors.is_empty(), "{errors:#?}");

    // `build()` finds what a field alone does not show.
    page.set("#cost", "8");
    page.wait_for_text("#mistake", "cost 8");
    // Answered with 422, which a browser reports by itself.
    let is_expected = |error: &String| error.contains("/api/setup");
    assert!(page.errors().iter().all(is_expected), "{:#?}", page.errors());
}

#[test]
fn everything_can_be_done_with_the_keyboard() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    let focus = |page: &mut Browser| {
        let focus =
            page.eval("document.activeElement.id || document.activeElement.className || document.activeElement.name");
        focus.as_str().unwrap_or_default().to_owned()
    };
    let tab_to = |page: &mut Browser, wanted: &str| {
        for _ in 0..60 {
            page.press(Key::Tab);
            if focus(page).contains(wanted) {
                return;
            }
        }
        panic!("no tab leads to {wanted}");
    };
    page.press(Key::Tab);
    assert_eq!(focus(page), "skip");
    page.press(Key::Enter);
    tab_to(page, "one");
    page.press(Key::Enter);
    page.wait_for_text(METER, "4 of 5 left");
    page.press(Key::Space);
    page.wait_for_text(METER, "3 of 5 left");
    tab_to(page, "rate");
    page.press(Key::ArrowRight);
    page.wait_for_text("#rate-shown", "1/s");
    page.press(Key::ArrowLeft);
    page.wait_for_text("#rate-shown", "off");
    tab_to(page, "part");
    let first = page.text("#explanation");
    page.press(Key::ArrowRight);
    page.press(Key::ArrowRight);
    page.wait_for(&format!(
        "document.querySelector('#explanation').innerText !== {first:?}"
    ));
    tab_to(page, "copy");
    tab_to(page, "program");
    visit.end();
}

#[test]
fn a_narrow_window_needs_no_sideways_scrolling() {
    let mut visit = Visit::with(360, 740);
    let page = &mut visit.page;
    ask_until_rejected(page);
    let width = page.eval("document.documentElement.scrollWidth");
    assert!(width.as_u64().unwrap() <= 360, "{width}");
    page.eval("void scrollTo(0, 0)");
    let bottom = page.eval("document.querySelector('#one').getBoundingClientRect().bottom");
    assert!(
        bottom.as_f64().unwrap() < 740.0,
        "the first button is below the window: {bottom}"
    );
    page.screenshot("narrow");
    visit.end();
}

#[test]
fn the_page_says_what_to_click_and_shows_a_rejection_of_requests_sent_at_once() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    assert!(page.text("header p").starts_with("Click "));
    assert_eq!(page.text("header strong"), page.text("#ten"));
    page.screenshot("start");
    let legend = page.text("#legend");
    assert!(legend.starts_with("0 passed"), "{legend}");
    page.click("#ten");
    page.wait_for_text("#legend", "5 rejected");
    page.wait_for_text("#response", "HTTP/1.1 429 Too Many Requests");
    visit.end();
}

#[test]
fn a_laptop_shows_the_response_beside_the_traffic() {
    let mut visit = Visit::with(1_280, 720);
    let page = &mut visit.page;
    // A rejection is the longest response.
    ask_until_rejected(page);
    let bottom = page.eval("document.querySelector('#response').getBoundingClientRect().bottom");
    assert!(bottom.as_f64().unwrap() < 720.0, "{bottom}");
    assert_eq!(page.eval("scrollY"), 0);
    let cut = page.eval("document.querySelector('.wide').scrollWidth - document.querySelector('.wide').clientWidth");
    assert_eq!(cut, 0);
    page.screenshot("laptop");
    page.resize(1_366, 768);
    let program = "document.querySelector('#program')";
    page.wait_for(&format!(
        "innerWidth === 1366 && {program}.scrollWidth <= {program}.clientWidth"
    ));
    // The narrowest window with three columns.
    for width in [1_169, 1_280] {
        page.resize(width, 720);
        let is_beside = "document.querySelector('#traffic').getBoundingClientRect().top
            === document.querySelector('#answers').getBoundingClientRect().top";
        page.wait_for(&format!("innerWidth === {width} && {is_beside}"));
        let needed = page.eval("document.documentElement.scrollWidth");
        assert!(needed.as_u64().unwrap() <= u64::from(width), "{needed} of {width}");
    }
    visit.end();
}

#[test]
fn a_phone_folds_the_settings_above_the_traffic_and_cuts_no_column() {
    let mut visit = Visit::with(390, 844);
    let page = &mut visit.page;
    page.click("#one");
    page.wait_for_text("#response", "200 OK");
    let tops = page
        .eval("['limits', 'traffic', 'response'].map((id) => document.getElementById(id).getBoundingClientRect().top)");
    let tops: Vec<_> = tops
        .as_array()
        .unwrap()
        .iter()
        .map(|top| top.as_f64().unwrap())
        .collect();
    assert!(tops.is_sorted(), "{tops:?}");
    assert_eq!(page.text("#limits-summary"), "burst: 5 per 10 s, minute: 20 per 60 s");
    assert_eq!(page.eval("document.querySelector('#setup').checkVisibility()"), false);
    page.click("#limits-shown summary");
    page.wait_for("document.querySelector('#setup').checkVisibility()");
    let width = page.eval("document.documentElement.scrollWidth");
    assert!(width.as_u64().unwrap() <= 390, "{width}");
    let cut = page.eval("document.querySelector('.wide').scrollWidth - document.querySelector('.wide').clientWidth");
    assert_eq!(cut, 0);
    page.screenshot("phone");
    visit.end();
}

/// Sends requests until the last response is a rejection.
fn ask_until_rejected(page: &mut Browser) {
    page.wait_for(
        "(document.querySelector('#one').click(), document.querySelector('#response').innerText.includes('429'))",
    );
}

/// The condition that at least `count` requests of the last minute were rejected.
fn rejected_are(count: u32) -> String {
    format!(r"Number(document.querySelector('#legend').innerText.match(/(\d+) rejected/)[1]) >= {count}")
}

#[test]
fn text_can_be_read_in_light_and_in_dark() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    assert_readable(page, "before a request");
    page.click("#one");
    page.wait_for_text("#response .status-good", "200 OK");
    assert_readable(page, "after a request that passed");
    page.set("#rate", "3");
    page.set("#from", "2");
    page.wait_for_text("#response", "429");
    page.wait_for(&rejected_are(8));
    assert_readable(page, "after rejections");
    for scheme in ["light", "dark"] {
        page.prefer("prefers-color-scheme", scheme);
        page.screenshot(scheme);
    }
    visit.end();
}

fn assert_readable(page: &mut Browser, when: &str) {
    for scheme in ["light", "dark"] {
        page.prefer("prefers-color-scheme", scheme);
        let low = page.eval(LOW_CONTRASTS);
        assert!(low.as_array().unwrap().is_empty(), "{scheme}, {when}: {low:#}");
    }
}

#[test]
fn the_fastest_load_draws_the_page_at_most_once_a_frame() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.eval(
        "globalThis.frames = 0; globalThis.draws = 0;
         const count = () => { frames++; requestAnimationFrame(count); };
         const clear = CanvasRenderingContext2D.prototype.clearRect;
         CanvasRenderingContext2D.prototype.clearRect = function (...area) {
             if (this.canvas.id === 'levels') draws++;
             return clear.apply(this, area);
         };
         requestAnimationFrame(count);",
    );
    page.set("#from", "4");
    page.set("#rate", "10");
    page.wait_for(&rejected_are(2_000));
    let (draws, frames) = (page.eval("draws"), page.eval("frames"));
    assert!(
        draws.as_u64() <= frames.as_u64() && draws.as_u64() > Some(5),
        "{draws} in {frames} frames"
    );
    page.set("#rate", "0");
    page.wait_for_text("#rate-shown", "off");
    visit.end();
}

#[test]
fn the_page_keeps_one_minute_however_long_it_is_open() {
    let mut visit = Visit::start();
    let kept = visit.page.eval(
        "import('/charts.js').then(({ History }) => {
             const counts = { passed: 100, uncounted: 0, failed: 0, rejected: 0, waiting: 0 };
             const history = new History();
             for (let at = 0; at < 3_600_000; at += 100) history.push({ at, all: counts, compared: [counts], left: {} });
             return [history.ticks.length, history.bins.length, history.sum((bin) => bin.all).passed];
         })",
    );
    assert_eq!(kept, serde_json::json!([601, 121, 60_500]));
    visit.end();
}

/// At as many requests a second as the playground sends; the test before has the bound at any rate.
#[test]
#[ignore = "it takes six minutes: `make browser-soak` runs it"]
fn after_six_minutes_of_the_fastest_load_the_page_is_as_small_as_after_one() {
    let mut visit = Visit::start();
    let page = &mut visit.page;
    page.set("#from", "4");
    page.set("#rate", "10");
    let mut heaps = Vec::new();
    for _ in 0..6 {
        for _ in 0..6 {
            page.eval("new Promise((done) => setTimeout(done, 10_000))");
        }
        heaps.push(page.heap());
        println!(
            "{} bytes; {}",
            heaps[heaps.len() - 1],
            page.text("#legend").replace('\n', ", ")
        );
    }
    // The first minute fills the history.
    assert!(heaps[5] < heaps[0] * 3 / 2, "{heaps:?}");
    visit.end();
}
