// The page: sends the configuration, and displays the messages of the server ten times per second.

import { History, colours, drawCompared, drawLevels, drawOutcomes, mostCompared, onFrame } from "/charts.js";
import { parts, retryAfter } from "/explain.js";

const CALLERS = ["alice", "bob", "carol", "dave"];
const RATES = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];
const ALGORITHMS = [
  ["token-bucket", "token bucket"],
  ["strict-token-bucket", "strict token bucket"],
  ["fixed-window", "fixed window"],
  ["sliding-window-counter", "sliding window counter"],
  ["sliding-window-log", "sliding window log"],
  ["leaky-bucket-meter", "leaky bucket, meter"],
  ["leaky-bucket-queue", "leaky bucket, queue"],
];
const OUTCOMES = [
  ["passed", "passed"],
  ["rejected", "rejected"],
  ["waiting", "waiting now"],
  ["uncounted", "passed uncounted"],
  ["failed", "failed with 503"],
];
const AWAY = {
  open: "The store is unavailable. This layer fails open: requests pass uncounted and without fields.",
  closed: "The store is unavailable. This layer fails closed: requests get 503.",
  fallback: "The store is unavailable. A store in memory counts, for this instance only.",
};
const HAS_BURST = ["token-bucket", "strict-token-bucket"];

const at = (id) => document.getElementById(id);
const history = new History();
let setup = null;
let mistakes = [];
let caller = CALLERS[0];
let last = null;
let retry = null;
let isHeld = false;

// --- Requests of the page.

async function ask(method, path, body) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const value = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw new Error(value?.error ?? answer.statusText);
  return value;
}

const say = (error) => { at("mistake").textContent = error.message; };

// --- Limits.

function read() {
  const policies = [...document.querySelectorAll(".policy")].map((form) => {
    const field = (name) => form.querySelector(`[name=${name}]`);
    const whole = (name) => (field(name).value === "" ? null : Number(field(name).value));
    const algorithm = field("algorithm").value;
    return {
      name: field("name").value,
      algorithm,
      quota: whole("quota"),
      window: whole("window"),
      burst: HAS_BURST.includes(algorithm) ? whole("burst") : null,
      max_waiting: algorithm === "leaky-bucket-queue" ? whole("max_waiting") ?? 5 : null,
    };
  });
  return { policies, cost: Number(at("cost").value), dialect: at("dialect").value, outage: at("outage").value };
}

let exchanges = 0;
let lastExchange = Promise.resolve();
let typing;
let version = null;
let isAsking = false;

/**
 * Reads or changes the configuration of the server. An exchange starts after the previous one, because the server may
 * receive parallel requests in another order. Only the last one counts.
 */
function exchange(request, display = use) {
  const number = ++exchanges;
  isAsking = true;
  lastExchange = lastExchange.then(async () => {
    if (number !== exchanges) return;
    try {
      const description = await request();
      if (number === exchanges) display(description);
    } catch (error) {
      if (number === exchanges) say(error);
    }
    if (number === exchanges) isAsking = false;
  });
  return lastExchange;
}

function change() {
  clearTimeout(typing);
  showWhatApplies();
  exchange(() => {
    const wrong = at("setup").querySelector(":invalid:not(fieldset)");
    if (wrong === null) return ask("PUT", "/api/setup", read());
    throw new Error(`${wrong.labels[0]?.textContent ?? "Window"}: ${wrong.validationMessage}`);
  });
}

/** Displays the configuration of the server, at the start and after changes by other pages. */
function load() {
  return exchange(() => ask("GET", "/api/setup"), (description) => {
    write(description);
    use(description);
  });
}

function use(description) {
  ({ setup, mistakes, version } = description);
  at("mistake").textContent = "";
  at("program").textContent = description.program;
  at("copied").textContent = "";
  at("limits-summary").textContent = setup.policies.map(({ name, quota, window }) => `${name}: ${quota} per ${window} s`).join(", ");
  at("place").textContent = description.has_redis ? "in Redis" : "in this process";
  for (const [index, form] of [...document.querySelectorAll(".policy")].entries()) {
    form.querySelector("[name=burst]").placeholder = setup.policies[index]?.capacity ?? "";
  }
  showMeters();
  showMistakes();
  showResponse();
  redraw();
}

function write({ setup }) {
  at("policies").replaceChildren();
  setup.policies.forEach(addPolicy);
  at("cost").value = setup.cost;
  at("dialect").value = setup.dialect;
  at("outage").value = setup.outage;
  showWhatApplies();
}

function addPolicy(policy) {
  const form = at("policy").content.firstElementChild.cloneNode(true);
  for (const field of form.querySelectorAll("[name]")) {
    field.value = policy[field.name] ?? (field.name === "max_waiting" ? 5 : "");
  }
  form.querySelector(".remove").addEventListener("click", () => {
    form.remove();
    at("add").focus();
    change();
  });
  at("policies").append(form);
}

/** Displays the numbers, labels and fields of the selected algorithm. */
function showWhatApplies() {
  const forms = [...document.querySelectorAll(".policy")];
  forms.forEach((form, index) => {
    form.querySelector("legend").textContent = `Policy ${index + 1}`;
    for (const label of form.querySelectorAll("label")) {
      const field = label.dataset.for === undefined ? label.nextElementSibling : form.querySelector(`[name=${label.dataset.for}]`);
      const input = field.matches("span") ? field.firstElementChild : field;
      input.id = `${input.name}-${index}`;
      label.htmlFor = input.id;
    }
    const algorithm = form.querySelector("[name=algorithm]").value;
    showField(form, "burst", HAS_BURST.includes(algorithm));
    showField(form, "max_waiting", algorithm === "leaky-bucket-queue");
    const remove = form.querySelector(".remove");
    remove.hidden = forms.length === 1;
    remove.setAttribute("aria-label", `Remove policy ${index + 1}`);
  });
  at("add").hidden = forms.length >= 3;
}

function showField(form, name, isShown) {
  form.querySelector(`[data-for=${name}]`).hidden = !isShown;
  form.querySelector(`[name=${name}]`).hidden = !isShown;
}

// --- Traffic.

function senders() {
  const start = CALLERS.indexOf(caller);
  return Array.from({ length: Number(at("from").value) }, (_, index) => CALLERS[(start + index) % CALLERS.length]);
}

let loadChanged = 0;

function changeLoad() {
  const rate = RATES[at("rate").value];
  loadChanged = performance.now();
  showRate();
  ask("PUT", "/api/load", { rate, callers: senders() }).catch(say);
}

function showRate() {
  const rate = RATES[at("rate").value];
  const text = rate === 0 ? "off" : `${rate}/s`;
  at("rate-shown").textContent = text;
  at("rate").setAttribute("aria-valuetext", text);
}

function showCallers() {
  at("callers").replaceChildren(...CALLERS.map((name) => {
    const label = document.createElement("label");
    const radio = document.createElement("input");
    Object.assign(radio, { type: "radio", name: "caller", value: name, checked: name === caller });
    const spare = document.createElement("span");
    spare.className = "spare";
    label.append(radio, name, spare);
    return label;
  }));
}

function choose(name) {
  caller = name;
  retry = null;
  at("curl").textContent = `curl -i -H 'x-user-id: ${caller}' ${location.origin}/try`;
  if (RATES[at("rate").value] > 0) changeLoad();
  redraw();
}

// --- Messages of the server.

function listen() {
  const events = new EventSource("/api/events");
  events.addEventListener("open", () => { at("connection").textContent = ""; });
  events.addEventListener("error", () => { at("connection").textContent = "The server does not answer. Is it running?"; });
  events.addEventListener("message", ({ data }) => hear(JSON.parse(data)));
}

function hear(tick) {
  // The time of a restarted server starts at zero.
  if (history.ticks.length > 0 && tick.at < history.ticks.at(-1).at) {
    history.clear();
    version = null;
    if (RATES[at("rate").value] > 0) changeLoad();
  }
  if ((version === null || tick.version > version) && !isAsking) load();
  history.push(tick);
  const exchange = tick.last[caller];
  if (exchange !== undefined) {
    const seconds = retryAfter(exchange.response);
    retry = seconds === null ? null : { until: performance.now() + seconds * 1_000, seconds };
    last = { caller, ...exchange };
    if (!isHeld) showResponse();
  }
  showStore(tick.is_available);
  showLoad(tick.load);
  redraw();
}

function showStore(isAvailable) {
  const button = at("away");
  const note = isAvailable ? "" : AWAY[setup.outage];
  if (at("store-note").textContent !== note) at("store-note").textContent = note;
  if (button.classList.contains("is-away") !== isAvailable) return;
  button.textContent = isAvailable ? "Simulate an outage" : "End the outage";
  button.classList.toggle("is-away", !isAvailable);
}

let skipped = 0;

function showLoad({ rate, skipped: missed, broken }) {
  skipped = rate === 0 ? 0 : skipped + missed;
  const notes = [];
  const sent = sentPerSecond(rate);
  if (sent !== null && sent < rate * 0.8) notes.push(`This build sends only ${sent} requests per second; a build with cargo run --release sends more.`);
  if (skipped > 0) notes.push(`${skipped} requests were not sent, because 256 were in flight.`);
  if (broken > 0) notes.push(`${broken} connections broke.`);
  if (at("load-note").textContent !== notes.join(" ")) at("load-note").textContent = notes.join(" ");
  // Another page may have changed the load, and the load stops when no page is open.
  if (RATES[at("rate").value] !== rate && performance.now() - loadChanged > 1_000) {
    at("rate").value = Math.max(RATES.indexOf(rate), 0);
    showRate();
  }
}

/** Returns the mean of the last three seconds, or `null` after a change of the rate. */
function sentPerSecond(rate) {
  const ticks = history.ticks.slice(-30);
  const time = ticks.at(-1).at - ticks[0].at;
  if (rate === 0 || time < 2_500 || ticks.some(({ load }) => load.rate !== rate)) return null;
  const sent = ticks.slice(1).reduce((sum, { load }) => sum + load.sent + load.skipped, 0);
  return Math.round((sent * 1_000) / time);
}

const redraw = onFrame(() => {
  if (setup === null) return;
  const palette = colours();
  const capacities = setup.policies.map(({ capacity }) => capacity);
  const tick = history.ticks.at(-1);
  drawLevels(at("levels"), history, caller, capacities, palette);
  drawOutcomes(at("outcomes"), history, palette);
  const most = mostCompared(history);
  for (const [index, row] of [...at("compared").tBodies[0].rows].entries()) {
    const canvas = row.querySelector("canvas");
    if (canvas === null) continue;
    drawCompared(canvas, history, index, most, palette);
    const { passed, rejected, waiting } = history.sum((bin) => bin.compared[index]);
    [passed, rejected, waiting].forEach((count, cell) => { row.cells[cell + 2].textContent = count; });
  }
  showNumbers(tick, capacities);
  showCountdown();
});

function showNumbers(tick, capacities) {
  const left = tick?.left[caller];
  [...at("meters").children].forEach((meter, index) => {
    const units = left?.[index];
    const track = meter.querySelector(".track");
    meter.querySelector(".fill").style.width = `${units === undefined ? 0 : Math.min(units / capacities[index], 1) * 100}%`;
    meter.querySelector(".number").textContent = units === undefined ? "unknown" : `${units} of ${capacities[index]} left`;
    if (units === undefined) track.removeAttribute("aria-valuenow");
    else track.setAttribute("aria-valuenow", units);
  });
  for (const label of at("callers").children) {
    const units = tick?.left[label.firstElementChild.value];
    label.lastElementChild.textContent = units ? `${Math.min(...units)} left` : "";
  }
  const sum = history.sum((bin) => bin.all);
  const shown = OUTCOMES.filter(([name], index) => index < 3 || sum[name] > 0);
  const texts = shown.map(([name, text]) => `${sum[name]} ${text}`);
  const legend = at("legend");
  if (legend.childElementCount !== shown.length) {
    legend.replaceChildren(...shown.map(([name]) => {
      const item = document.createElement("span");
      const swatch = document.createElement("i");
      swatch.className = `i-${name}`;
      item.append(swatch, "");
      return item;
    }));
  }
  texts.forEach((text, index) => { legend.children[index].lastChild.data = text; });
  at("outcomes").setAttribute("aria-label", `In the last minute: ${texts.join(", ")}`);
  at("levels").setAttribute("aria-label", `${caller}: ${setup.policies.map(({ name }, index) => `${name} ${left?.[index] ?? "unknown"} of ${capacities[index]}`).join(", ")}`);
}

function showMeters() {
  at("meters").replaceChildren(...setup.policies.map(({ name, capacity }) => {
    const meter = document.createElement("div");
    meter.className = "meter";
    const label = document.createElement("span");
    Object.assign(label, { className: "name", textContent: name, title: name });
    const track = document.createElement("div");
    track.className = "track";
    for (const [attribute, value] of [["role", "meter"], ["aria-label", `Left of ${name}`], ["aria-valuemin", 0], ["aria-valuemax", capacity]]) {
      track.setAttribute(attribute, value);
    }
    const fill = document.createElement("div");
    fill.className = "fill";
    track.append(fill);
    const number = document.createElement("span");
    number.className = "number";
    meter.append(label, track, number);
    return meter;
  }));
}

/** Displays the rows of the comparison, with the reason if an algorithm does not support the policies. */
function showMistakes() {
  const own = setup.policies.map(({ algorithm }) => algorithm);
  at("compared").tBodies[0].replaceChildren(...ALGORITHMS.map(([name, title], index) => {
    const row = document.createElement("tr");
    row.className = own.every((algorithm) => algorithm === name) ? "own" : "";
    const head = document.createElement("th");
    Object.assign(head, { scope: "row", textContent: title });
    row.append(head);
    const cells = mistakes[index] === null ? 4 : 1;
    for (let cell = 0; cell < cells; cell++) row.append(document.createElement("td"));
    if (mistakes[index] === null) row.cells[1].append(document.createElement("canvas"));
    else Object.assign(row.cells[1], { colSpan: 4, className: "error", textContent: `Not possible: ${mistakes[index]}` });
    return row;
  }));
}

// --- The last response.

function showResponse() {
  if (last === null || setup === null) return;
  const box = at("response");
  at("to").textContent = `to ${last.caller}`;
  box.replaceChildren(...parts(last.response, setup).map(({ text, note, kind }) => {
    if (note === undefined) return document.createTextNode(text);
    const part = document.createElement("span");
    part.className = `part ${kind ?? ""}`;
    part.textContent = text;
    part.dataset.note = note;
    part.tabIndex = -1;
    return part;
  }));
  box.querySelector(".part").tabIndex = 0;
}

function explain(part) {
  at("response").querySelectorAll(".part.shown").forEach((shown) => shown.classList.remove("shown"));
  part.classList.add("shown");
  at("explanation").textContent = part.dataset.note;
}

function move(event) {
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  const all = [...at("response").querySelectorAll(".part")];
  const here = all.indexOf(document.activeElement);
  if (!(event.key in steps) || here < 0) return;
  event.preventDefault();
  const next = all[Math.min(Math.max(here + steps[event.key], 0), all.length - 1)];
  all[here].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

/** Keeps the response while a user reads it. */
function hold(isHeldNow) {
  if (isHeld && !isHeldNow) showResponse();
  isHeld = isHeldNow;
}

function showCountdown() {
  const box = at("countdown");
  box.hidden = retry === null;
  if (retry === null) return;
  const left = (retry.until - performance.now()) / 1_000;
  const text = left > 0
    ? `Rejected. The same request passes in ${Math.ceil(left)} s, if this caller sends no other request first.`
    : "Retry-After is over: the same request passes now.";
  if (at("countdown-text").textContent !== text) at("countdown-text").textContent = text;
  at("countdown-bar").value = left > 0 ? 1 - left / retry.seconds : 1;
}

async function copy() {
  const text = at("program").textContent;
  try {
    await navigator.clipboard.writeText(text);
    at("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(at("program"));
    at("copied").textContent = "The program is selected: copy it with the keyboard.";
  }
}

// --- Start.

// A partially typed number may be invalid.
at("setup").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(change, 300);
});
at("setup").addEventListener("change", change);
at("setup").addEventListener("submit", (event) => event.preventDefault());
at("add").addEventListener("click", () => {
  const names = read().policies.map(({ name }) => name);
  const name = ["burst", "minute", "hour", "more"].find((name) => !names.includes(name));
  const window = { burst: 10, minute: 60, hour: 3_600, more: 30 }[name];
  addPolicy({ name, algorithm: "token-bucket", quota: window === 3_600 ? 500 : 20, window });
  document.querySelector(".policy:last-child [name=name]").focus();
  change();
});
at("one").addEventListener("click", () => ask("POST", "/api/send", { callers: [caller], count: 1 }).catch(say));
at("ten").addEventListener("click", () => ask("POST", "/api/send", { callers: senders(), count: 10 }).catch(say));
at("refill").addEventListener("click", () => {
  retry = null;
  ask("POST", "/api/refill", {}).catch(say);
});
at("away").addEventListener("click", () => {
  const isAvailable = at("away").classList.contains("is-away");
  ask("PUT", "/api/store", { is_available: isAvailable }).catch(say);
});
at("rate").addEventListener("input", changeLoad);
at("from").addEventListener("change", changeLoad);
at("callers").addEventListener("change", (event) => choose(event.target.value));
at("copy").addEventListener("click", copy);
const response = at("response");
response.addEventListener("pointerover", ({ target }) => { if (target.matches(".part")) explain(target); });
response.addEventListener("focusin", ({ target }) => { if (target.matches(".part")) explain(target); });
response.addEventListener("keydown", move);
response.addEventListener("pointerenter", () => hold(true));
response.addEventListener("pointerleave", () => hold(response.contains(document.activeElement)));
response.addEventListener("focusin", () => hold(true));
response.addEventListener("focusout", ({ relatedTarget }) => { if (!response.contains(relatedTarget)) hold(response.matches(":hover")); });
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

at("limits-shown").open = !matchMedia("(max-width: 52rem)").matches;
matchMedia("(max-width: 52rem)").addEventListener("change", ({ matches }) => { at("limits-shown").open = !matches; });
showCallers();
showRate();
choose(caller);
load().then(listen);
