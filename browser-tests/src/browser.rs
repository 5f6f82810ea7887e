//! The browser, driven by the Chrome DevTools Protocol.

use std::{
    env, fs,
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{self, Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

/// Longer than a call takes unless the browser hangs.
const HANG: Duration = Duration::from_secs(90);

/// The longest time that a test waits for a condition on the page, in milliseconds.
const PATIENCE: u32 = 30_000;

/// An expression of JavaScript: the texts of a page whose contrast is below 4.5 to 1 (WCAG 2.2, 1.4.3).
pub const LOW_CONTRASTS: &str = r"(() => {
    const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
    const light = ([red, green, blue]) => [red, green, blue]
        .map((part) => part / 255)
        .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
    const behind = (element) => {
        for (let here = element; here !== null; here = here.parentElement) {
            const colour = parse(getComputedStyle(here).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const own = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== '');
    return [...document.querySelectorAll('body *')]
        .filter((element) => own(element) && element.checkVisibility())
        .map((element) => {
            const [one, other] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
            const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
            return [contrast, element.outerHTML.slice(0, 120)];
        })
        .filter(([contrast]) => contrast < 4.5);
})()";

/// A headless Chromium with one page. The process is killed on drop.
#[derive(Debug)]
pub struct Browser {
    process: Child,
    calls: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last_call: u64,
    errors: Vec<String>,
    profile: PathBuf,
}

/// A key of the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Moves down or forward.
    ArrowDown,
    /// Moves left.
    ArrowLeft,
    /// Moves right.
    ArrowRight,
    /// The key that activates what has the focus.
    Enter,
    /// The key that closes a dialog.
    Escape,
    /// The space bar.
    Space,
    /// The key that moves the focus on.
    Tab,
}

impl Key {
    /// Its name, its code, and the text that it types.
    const fn parts(self) -> (&'static str, u32, &'static str) {
        match self {
            Self::ArrowDown => ("ArrowDown", 40, ""),
            Self::ArrowLeft => ("ArrowLeft", 37, ""),
            Self::ArrowRight => ("ArrowRight", 39, ""),
            Self::Enter => ("Enter", 13, "\r"),
            Self::Escape => ("Escape", 27, ""),
            Self::Space => (" ", 32, " "),
            Self::Tab => ("Tab", 9, ""),
        }
    }
}

impl Browser {
    /// Starts the browser `$BROWSER`, by default `chromium`, with a separate profile, and opens a page of `width` ×
    /// `height`.
    ///
    /// # Panics
    ///
    /// If there is no such browser.
    pub fn open(url: &str, width: u32, height: u32) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);

        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let profile = env::temp_dir().join(format!("tower-quota-browser-{}-{number}", process::id()));
        fs::create_dir_all(&profile).expect("a folder for the profile");
        let mut process = start(&profile);
        let calls = process.stdin.take().expect("it is piped");
        let output = process.stdout.take().expect("it is piped");
        let mut browser = Self {
            process,
            calls,
            messages: read(output),
            session: None,
            last_call: 0,
            errors: Vec::new(),
            profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", target);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser.resize(width, height);
        browser.call("Page.navigate", json!({ "url": url }));
        browser
    }

    /// Sends a command of the protocol and waits for its result.
    ///
    /// # Panics
    ///
    /// If the browser answers with an error, or not at all.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_call += 1;
        let mut call = json!({ "id": self.last_call, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        let sent = write!(self.calls, "{call}\0").and_then(|()| self.calls.flush());
        sent.unwrap_or_else(|error| panic!("{method}: the browser has ended: {error}"));
        loop {
            let message = self.messages.recv_timeout(HANG);
            let mut message = message.unwrap_or_else(|_| panic!("{method}: the browser does not answer"));
            if message["id"] == self.last_call {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.keep_errors(&message);
        }
    }

    fn keep_errors(&mut self, message: &Value) {
        let parameters = &message["params"];
        let is_error = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => parameters["type"] == "error",
            Some("Log.entryAdded") => parameters["entry"]["level"] == "error",
            _ => false,
        };
        if is_error {
            self.errors.push(parameters.to_string());
        }
    }

    /// Returns the console errors since the start.
    pub fn errors(&mut self) -> &[String] {
        // A call reads all events that came before its answer.
        self.eval("0");
        &self.errors
    }

    /// The value of an expression of JavaScript on the page; of a promise, what it becomes.
    ///
    /// # Panics
    ///
    /// If it throws.
    pub fn eval(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true });
        let mut answer = self.call("Runtime.evaluate", parameters);
        let exception = &answer["exceptionDetails"];
        assert!(exception.is_null(), "{expression}: {exception}");
        answer["result"]["value"].take()
    }

    /// The text of an element as a reader sees it.
    pub fn text(&mut self, selector: &str) -> String {
        let text = self.eval(&format!("document.querySelector({selector:?}).innerText"));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    ///
    /// If it is not within half a minute. The message has the text of the page.
    pub fn wait_for(&mut self, condition: &str) {
        let waited = self.eval(&format!(
            "new Promise((done) => {{
                const start = performance.now();
                const look = () => {{
                    let isTrue = false;
                    try {{ isTrue = Boolean({condition}); }} catch {{}}
                    if (isTrue || performance.now() - start > {PATIENCE}) done(isTrue);
                    else setTimeout(look, 20);
                }};
                look();
            }})"
        ));
        if waited != true {
            let page = self.text("body");
            panic!("{condition} did not come; errors: {:?}; the page:\n{page}", self.errors);
        }
    }

    /// Waits until the text of an element contains another one.
    pub fn wait_for_text(&mut self, selector: &str, text: &str) {
        self.wait_for(&format!(
            "document.querySelector({selector:?}).innerText.includes({text:?})"
        ));
    }

    /// Clicks an element as soon as nothing covers its middle.
    ///
    /// The look and the click are one step of the page, which may move the element at any moment.
    pub fn click(&mut self, selector: &str) {
        self.wait_for(&format!(
            "(() => {{
                const element = document.querySelector({selector:?});
                element.scrollIntoView({{ block: 'nearest', behavior: 'instant' }});
                const box = element.getClientRects()[0];
                const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
                if (element.disabled || !element.contains(hit)) return false;
                element.focus();
                element.click();
                return true;
            }})()"
        ));
    }

    /// Moves the mouse over the middle of an element.
    pub fn hover(&mut self, selector: &str) {
        let middle = self.eval(&format!(
            "(() => {{
                const element = document.querySelector({selector:?});
                element.scrollIntoView({{ block: 'nearest', behavior: 'instant' }});
                const box = element.getClientRects()[0];
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"
        ));
        let event = json!({ "type": "mouseMoved", "x": middle[0], "y": middle[1] });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Presses a key and lets it go.
    pub fn press(&mut self, key: Key) {
        let (name, code, text) = key.parts();
        let code = json!({ "key": name, "code": name, "windowsVirtualKeyCode": code });
        let mut down = code.clone();
        down["type"] = json!("keyDown");
        down["text"] = json!(text);
        self.call("Input.dispatchKeyEvent", down);
        let mut up = code;
        up["type"] = json!("keyUp");
        self.call("Input.dispatchKeyEvent", up);
    }

    /// Sets the value of a field or a selection, and sends the same events as user input.
    pub fn set(&mut self, selector: &str, value: &str) {
        self.eval(&format!(
            "(() => {{
                const field = document.querySelector({selector:?});
                field.value = {value:?};
                field.dispatchEvent(new Event('input', {{ bubbles: true }}));
                field.dispatchEvent(new Event('change', {{ bubbles: true }}));
            }})()"
        ));
    }

    /// Changes the size of the window.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets a preference of the user, such as `prefers-color-scheme`.
    pub fn prefer(&mut self, feature: &str, value: &str) {
        let features = json!({ "features": [{ "name": feature, "value": value }] });
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Lets the page read and write the clipboard.
    pub fn allow_clipboard(&mut self) {
        let permissions = json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] });
        let session = self.session.take();
        self.call("Browser.grantPermissions", permissions);
        self.session = session;
        self.call("Emulation.setFocusEmulationEnabled", json!({ "enabled": true }));
    }

    /// The heap of the page after a collection, in bytes.
    pub fn heap(&mut self) -> u64 {
        self.call("HeapProfiler.collectGarbage", json!({}));
        let usage = self.call("Runtime.getHeapUsage", json!({}));
        usage["usedSize"].as_f64().unwrap_or_default() as u64
    }

    /// Keeps a picture of the window as `$SCREENSHOTS/<name>.png`, by default in the target folder of this package.
    pub fn screenshot(&mut self, name: &str) {
        let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/screenshots");
        let folder = env::var_os("SCREENSHOTS").map_or_else(|| PathBuf::from(default), PathBuf::from);
        fs::create_dir_all(&folder).expect("a folder for pictures");
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let picture = BASE64_STANDARD.decode(picture["data"].as_str().unwrap_or_default());
        fs::write(folder.join(format!("{name}.png")), picture.expect("base64")).expect("a picture can be written");
    }
}

/// Chromium takes calls on the file descriptor 3 and answers on 4, which a shell makes of its input and output.
fn start(profile: &Path) -> Child {
    let browser = env::var("BROWSER").unwrap_or_else(|_| "chromium".to_owned());
    let log = File::create(profile.join("log")).expect("a file for the log");
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >&2"#, &browser]);
    command.args([
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-first-run",
        "--disable-gpu",
    ]);
    command.args([
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--force-color-profile=srgb",
    ]);
    // Chromium does not start as root with its sandbox, and it opens the app's page only.
    command.arg("--no-sandbox");
    command.arg(format!("--user-data-dir={}", profile.display()));
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    command.spawn().unwrap_or_else(|error| panic!("{browser}: {error}"))
}

/// Messages end with a zero byte.
fn read(output: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for message in BufReader::new(output).split(0).map_while(Result::ok) {
            let Ok(message) = serde_json::from_slice(&message) else {
                continue;
            };
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        let _ = write!(self.calls, "{}\0", json!({ "id": 0, "method": "Browser.close" }));
        let _ = self.calls.flush();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}
