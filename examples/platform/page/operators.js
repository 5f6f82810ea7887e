// The operators' page: it asks the service once a second, shows what it says, and sends what the operator decides.

import { onFrame } from "./canvas.js";
import { byOutcome, describe, drawDecisions, drawLatency, series, short, swatch, time } from "./charts.js";
import { History, MINUTES, quantile, read } from "./history.js";
import { differences } from "./rules.js";

const SECOND = 1_000;
const NOW = 10 * SECOND;
const MINUTE = 60 * SECOND;
/** The service waits for Redis for five seconds. */
const PATIENCE = 8 * SECOND;
const MAX_ENTRIES = 50;
const TIMES = [["600", "10 minutes"], ["3600", "1 hour"], ["86400", "1 day"], ["", "until somebody ends it"]];

const at = (id) => document.getElementById(id);
const history = new History();
/** The token, in the memory of this page only. */
let token = null;
let state = null;
let heard = 0;
let pause = 0;
let instances = [];
let isMixed = false;
let silence = null;

/** An answer of the service that is not a success. */
class Failure extends Error {
  constructor(status, text, retryAfter) {
    super(text);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

async function ask(method, path, body, fields = {}) {
  const answer = await fetch(`../admin/${path}`, {
    method,
    headers: { authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "content-type": "application/json" }), ...fields },
    body,
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(PATIENCE),
  });
  const text = await answer.text();
  if (!answer.ok) throw new Failure(answer.status, explain(answer, text), Number(answer.headers.get("retry-after")) || 0);
  return (answer.headers.get("content-type") ?? "").includes("json") ? { text, value: JSON.parse(text) } : { text, value: null };
}

function explain({ status, headers }, text) {
  if (status === 429) return `Too many wrong tokens came from your address. It is rejected for ${spoken(Number(headers.get("retry-after")))}; other addresses are not.`;
  if (status === 503) return `Redis did not answer: ${text.trim()}`;
  return text.trim() || `The service has answered ${status}.`;
}

/** The reason of a failure, for the operator. */
function reason(error) {
  if (error instanceof Failure) return error.message;
  return error.name === "TimeoutError" ? "The service did not answer. It may have done it all the same: look before you try again." : "The service cannot be reached.";
}

// --- Words.

function spoken(seconds) {
  for (const [unit, length] of [["day", 86_400], ["h", 3_600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit}${unit === "day" ? "s" : ""}`;
  }
  return `${Math.round(seconds)} s`;
}

const many = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
const nameOf = (caller) => caller.user ?? caller.address;
const kindOf = (caller) => (caller.user === undefined ? "address" : "user");
const nameOfClient = (client) => (client.user === undefined ? `network ${client.network}` : `user ${client.user}`);

/** Changes the text of an element only if it is another one, so that readers and selections are not disturbed. */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

// --- What the operator has done.

function note(text, isError) {
  const now = new Date();
  const entry = make("li", { className: isError ? "is-error" : "" });
  entry.append(make("time", { dateTime: now.toISOString(), textContent: now.toLocaleTimeString() }), text);
  at("entries").prepend(entry);
  while (at("entries").childElementCount > MAX_ENTRIES) at("entries").lastElementChild.remove();
  at("no-entries").hidden = true;
}

/** Does something for the operator: says beside it what came of it, and keeps that in the list. */
async function act(place, text, action) {
  const said = at(place);
  said.className = "said";
  said.textContent = "…";
  try {
    const more = await action();
    said.textContent = more ?? `${text}.`;
    note(said.textContent, false);
    await poll();
    return true;
  } catch (error) {
    said.classList.add("is-error");
    said.textContent = reason(error);
    note(`Not done: ${text}. ${said.textContent}`, true);
    if (error instanceof Failure && error.status === 404 && error.message.includes("404")) signOut("Your token is no longer right. Sign in again.");
    return false;
  }
}

/** Asks before something is done; the answer is no unless the operator says yes. */
function confirmed(title, text, yes, list = []) {
  const dialog = at("confirm");
  at("confirm-title").textContent = title;
  at("confirm-text").textContent = text;
  at("confirm-yes").textContent = yes;
  at("confirm-list").replaceChildren(...list.map((line) => make("li", { textContent: line })));
  dialog.returnValue = "cancel";
  dialog.showModal();
  at("confirm-no").focus();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
}

// --- Signing in and out.

async function signIn(event) {
  event.preventDefault();
  token = at("token").value.trim();
  at("sign-in-said").textContent = "";
  try {
    // A token with other characters cannot be sent, and is none.
    if (!/^[\x21-\x7e]+$/.test(token)) throw new Failure(404, "");
    hear((await ask("GET", "state")).value);
    await begin();
  } catch (error) {
    token = null;
    at("sign-in-said").textContent = error.status === 404 ? "This token is not right." : reason(error);
    at("token").select();
    return;
  }
  at("token").value = "";
  at("sign-in").hidden = true;
  at("signed-in").hidden = false;
  at("sign-out").hidden = false;
  at("now-heading").tabIndex = -1;
  at("now-heading").focus();
  loadRules();
  redraw();
}

/** Begins with what the service has kept of the last minutes. */
async function begin() {
  const kept = await ask("GET", "history").then(({ value }) => value, () => []);
  history.clear();
  for (const numbers of [...kept, state.numbers]) history.push(numbers);
}

function signOut(text = "") {
  token = null;
  state = null;
  history.clear();
  instances = [];
  isMixed = false;
  rules = { number: null, current: "", tried: "" };
  for (const id of ["found", "signed-in", "sign-out"]) at(id).hidden = true;
  for (const id of ["entries", "alerts", "current", "tried", "instance"]) at(id).replaceChildren();
  for (const shown of document.querySelectorAll("[data-key]")) delete shown.dataset.key;
  for (const said of document.querySelectorAll(".said")) said.textContent = "";
  draft = { number: null, text: "" };
  at("draft").value = "";
  at("name").value = "";
  at("edit").open = false;
  if (at("confirm").open) at("confirm").close("cancel");
  at("sign-in").hidden = false;
  at("sign-in-said").textContent = text;
  at("token").focus();
}

// --- What the service says.

let isAsking = false;

/** Asks for the state, one question at a time. A wrong token ends it: each of ten would be a guess. */
async function poll() {
  if (token === null || isAsking || performance.now() < pause) return;
  isAsking = true;
  const asked = token;
  try {
    const { value } = await ask("GET", "state");
    if (token === asked) hear(value);
  } catch (error) {
    if (token !== asked) return;
    if (error.status === 404) {
      signOut("Your token is no longer right. Sign in again.");
    } else {
      if (error.status === 429) pause = performance.now() + error.retryAfter * SECOND;
      silence = reason(error);
    }
  } finally {
    isAsking = false;
    redraw();
  }
}

function hear(told) {
  heard = performance.now();
  silence = null;
  const before = state;
  if (before !== null && before.instance !== told.instance) {
    // Two that take turns: there is something between that spreads requests.
    isMixed = instances.includes(told.instance);
    history.clear();
    note(`The answers come from another instance now: ${told.instance}.`, false);
  } else if (before !== null && told.numbers.milliseconds < before.numbers.milliseconds) {
    history.clear();
    note("The service was started again.", false);
  }
  if (!instances.includes(told.instance)) instances = [...instances, told.instance].slice(-10);
  state = told;
  history.push(told.numbers);
  if (rules.number !== null && rules.number !== told.rules.number) loadRules();
}

// --- Showing.

const redraw = onFrame(() => {
  if (state === null || token === null) return;
  write(at("instance"), `This page shows and changes one instance: ${state.instance}, up for ${spoken(state.numbers.milliseconds / SECOND)}. Other instances have numbers and switches of their own.`);
  at("signed-in").classList.toggle("is-old", silence !== null);
  showAlerts();
  showTiles();
  drawDecisions(at("decisions"), history);
  drawLatency(at("latency"), history);
  showOutcomes();
  showRejected();
  showBlocks();
  showRules();
});

/** The rate of the outcomes that a filter lets pass, over the last ten seconds. */
function rate(sums, seconds, filter) {
  let sum = 0;
  for (const [name, count] of byOutcome(sums)) if (filter(name)) sum += count;
  return seconds === 0 ? 0 : sum / seconds;
}

function showAlerts() {
  const { sums, seconds } = history.sums(NOW);
  const uncounted = rate(sums, seconds, (name) => name === "failed_open");
  const failed = rate(sums, seconds, (name) => name === "failed_closed");
  const alerts = [];
  const add = (kind, title, text) => alerts.push([kind, title, text]);
  if (silence !== null) add("", "Old numbers.", `${silence} The last answer came ${spoken((performance.now() - heard) / SECOND)} ago.`);
  if (isMixed) add("", "More than one instance answers.", "Something between this page and the service spreads your requests. Numbers jump, and a change reaches any of them. Open the page of one instance, by its own address.");
  if (!state.is_on) add("", "The limits are switched off.", "All requests to this instance pass uncounted; only blocked clients are rejected. Other instances still limit, unless they are switched off, too.");
  if (state.circuit?.is_open) {
    const what = failed > 0 ? "Requests get 503" : "Requests pass uncounted";
    add("", `The circuit to Redis is open, for ${spoken(state.circuit.seconds)}.`, `${what}. The last error: ${state.circuit.error}. While requests come, the service tries again by itself, some times a second. Is Redis up? Do other instances say the same? If only this one does, look at the network between.`);
  } else if (uncounted + failed > 0) {
    const undecided = [...sums].map(([key, count]) => [read(key), count]).filter(([{ outcome }]) => outcome === "undecided");
    const reasons = undecided.map(([{ policy }, count]) => `${policy} ${short(count / seconds)}/s`).join(", ");
    add("", "Limits leak.", `${short(uncounted + failed)} requests a second are not decided, although Redis is asked${reasons === "" ? "" : `: ${reasons}`}.`);
  }
  const { roll_out: trial } = state.rules;
  if (trial !== null) add("note", "New rules are tried", `on ${trial.percent} % of the callers.`);
  if (alerts.every(([kind]) => kind !== "")) {
    // Without a request, nothing tries Redis, and the circuit says nothing.
    const isKnown = state.circuit === null || quantile(history.calls(MINUTE), 0.5) !== null;
    if (isKnown) add("good", "The limits are on", "on this instance, and Redis decides.");
    else add("note", "The limits are on", "on this instance. No request has asked Redis in the last minute, so this page does not know if it answers.");
  }
  const key = JSON.stringify(alerts);
  if (at("alerts").dataset.key === key) return;
  at("alerts").dataset.key = key;
  at("alerts").replaceChildren(...alerts.map(([kind, title, text]) => make("p", { className: kind }, make("strong", { textContent: title }), ` ${text}`)));
}

function tile(id, text, small, isBad = false) {
  const place = at(`tile-${id}`);
  const key = `${text}\n${small}\n${isBad}`;
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.classList.toggle("is-bad", isBad);
  place.replaceChildren(text, make("small", { textContent: small }));
}

function showTiles() {
  const { sums, seconds } = history.sums(NOW);
  const of = (...names) => rate(sums, seconds, (name) => names.includes(name));
  const all = rate(sums, seconds, () => true);
  const percent = (part) => (all === 0 ? "no requests" : `${short((100 * part) / all)} % of the requests`);
  const rejected = all - of("allowed", "unlimited", "failed_open");
  const [half, most] = [0.5, 0.99].map((part) => quantile(history.calls(MINUTE), part));
  const isOpen = state.circuit?.is_open === true;
  tile("limits", state.is_on ? "on" : "OFF", state.is_on ? `rules ${state.rules.digest}` : "nothing is counted", !state.is_on);
  tile("circuit", state.circuit === null ? "cluster" : isOpen ? "OPEN" : "closed", state.circuit === null ? "each node has one of its own" : isOpen ? "Redis is not asked" : "Redis decides", isOpen);
  tile("all", `${short(all)} /s`, `${short(of("unlimited"))} /s without limits`);
  tile("rejected", `${short(rejected)} /s`, percent(rejected));
  tile("uncounted", `${short(of("failed_open"))} /s`, percent(of("failed_open")), of("failed_open") > 0);
  tile("store", most === null ? "–" : `≤ ${time(most)}`, most === null ? "not asked in the last minute" : `99 % of the last minute; half ≤ ${time(half)}`);
  const button = at("switch");
  write(button, state.is_on ? "Switch the limits off …" : "Switch the limits on");
  button.classList.toggle("danger", state.is_on);
  button.classList.toggle("primary", !state.is_on);
}

/** The rows of a table, which stay the same elements while their keys do. */
function rows(body, list, keyOf, create, update) {
  const keys = list.map(keyOf);
  const old = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const wanted = list.map((item, index) => {
    const row = old.get(keys[index]) ?? create(item);
    row.dataset.key = keys[index];
    update(row, item);
    return row;
  });
  const isSame = wanted.length === body.rows.length && wanted.every((row, index) => row === body.rows[index]);
  if (!isSame) body.replaceChildren(...wanted);
}

function showOutcomes() {
  const [now, minute, all] = [NOW, MINUTE, MINUTES * MINUTE].map((time) => history.sums(time));
  const shown = [...all.sums.keys()].filter((key) => read(key).outcome !== "undecided");
  shown.sort((one, other) => all.sums.get(other) - all.sums.get(one));
  const list = shown.slice(0, 40).sort();
  rows(at("outcomes").tBodies[0], list, (key) => key, (key) => {
    const { tier, outcome, policy } = read(key);
    const row = make("tr", {}, make("th", { scope: "row", textContent: tier || "–" }));
    row.append(make("td", {}, make("i", { className: swatch(outcome) }), describe(outcome, policy)), make("td"), make("td"), make("td"));
    return row;
  }, (row, key) => {
    write(row.cells[2], now.seconds === 0 ? "–" : short((now.sums.get(key) ?? 0) / now.seconds));
    write(row.cells[3], (minute.sums.get(key) ?? 0).toLocaleString("en"));
    write(row.cells[4], all.sums.get(key).toLocaleString("en"));
  });
  showLegend(all);
  const counts = [...byOutcome(minute.sums)].map(([name, count]) => `${describe(name, "")} ${count}`);
  at("decisions").setAttribute("aria-label", `Requests of the last minute: ${counts.join(", ") || "none"}`);
}

function showLegend({ sums }) {
  const shown = series(sums);
  const key = JSON.stringify(shown);
  const legend = at("legend");
  if (legend.dataset.key === key) return;
  legend.dataset.key = key;
  legend.replaceChildren(...shown.map(({ outcome, shade, text }) => make("span", {}, make("i", { className: swatch(outcome, shade) }), text)));
}

/** A list that is pointed at, or has the focus, does not move. */
const isHeld = (table) => table.matches(":hover") || table.contains(document.activeElement);

function showRejected() {
  const table = at("rejected");
  if (isHeld(table) && table.tBodies[0].rows.length > 0) return;
  rows(table.tBodies[0], state.rejected, ({ caller, policy }) => JSON.stringify([caller, policy]), ({ caller }) => {
    const button = make("button", { type: "button", textContent: nameOf(caller), title: "Look this caller up" });
    button.addEventListener("click", () => {
      at("kind").value = kindOf(caller);
      at("name").value = nameOf(caller);
      at("caller").scrollIntoView({ block: "nearest" });
      lookUp();
    });
    const row = make("tr", {}, make("th", { scope: "row" }, button, ` ${kindOf(caller)}`));
    row.append(make("td"), make("td"), make("td"));
    return row;
  }, (row, { policy, rejections, seconds }) => {
    write(row.cells[1], policy ?? "blocked");
    write(row.cells[2], rejections.toLocaleString("en"));
    write(row.cells[3], seconds < 2 ? "now" : `${spoken(seconds)} ago`);
  });
  showEmpty(table, "Nobody was rejected in the last five minutes.");
}

function showEmpty(table, text) {
  const body = table.tBodies[0];
  if (body.rows.length > 0) return;
  body.append(make("tr", { className: "empty" }, make("td", { className: "hint", colSpan: table.tHead.rows[0].cells.length, textContent: text })));
  body.rows[0].dataset.key = "empty";
}

function showBlocks() {
  const table = at("blocks");
  rows(table.tBodies[0], state.blocks, ({ client }) => JSON.stringify(client), ({ client }) => {
    const button = make("button", { type: "button", textContent: "Unblock" });
    button.setAttribute("aria-label", `Unblock ${nameOfClient(client)}`);
    button.addEventListener("click", () => unblock(client, "blocked-said"));
    return make("tr", {}, make("th", { scope: "row", textContent: nameOfClient(client) }), make("td"), make("td", {}, button));
  }, (row, { seconds }) => {
    write(row.cells[1], seconds === null ? "somebody ends it" : `in ${spoken(seconds)}`);
  });
  showEmpty(table, "Nobody is blocked.");
}

// --- The switch.

async function turn() {
  if (!state.is_on) {
    await act("now-said", "The limits of this instance are on", () => ask("POST", "switch/on").then(() => undefined));
    return;
  }
  const isSure = await confirmed(
    "Switch the limits of this instance off?",
    "From now on, all requests to this instance pass uncounted and without RateLimit fields, until somebody switches the limits on again, or the process ends. Blocked clients stay blocked.",
    "Switch them off",
    [`This instance: ${state.instance}.`, "Other instances still limit: switch them off one by one."],
  );
  if (isSure) await act("now-said", "The limits of this instance are OFF", () => ask("POST", "switch/off").then(() => undefined));
}

// --- A caller.

/** The caller that is shown, as the query of its requests. */
let found = null;
let lookUps = 0;

const query = (kind, name) => `${kind}=${encodeURIComponent(name)}`;

async function lookUp() {
  const [kind, name] = [at("kind").value, at("name").value.trim()];
  const number = ++lookUps;
  const said = at("caller-said");
  said.className = "said";
  said.textContent = "";
  if (name === "") return;
  try {
    const { value } = await ask("GET", `caller?${query(kind, name)}`);
    if (number === lookUps) showCaller(kind, name, value);
  } catch (error) {
    if (number !== lookUps) return;
    at("found").hidden = true;
    found = null;
    said.classList.add("is-error");
    said.textContent = error.status === 400 ? `${name} is not an address.` : reason(error);
  }
}

function showCaller(kind, name, { caller, tier, policies, is_blocked: isBlocked }) {
  found = { kind, name: nameOf(caller), isBlocked };
  at("found").hidden = false;
  at("found-name").textContent = `${found.name} · ${kind === "user" ? `tier ${tier}` : "requests without a user"} · at ${new Date().toLocaleTimeString()}`;
  at("found-blocked").textContent = isBlocked ? "Blocked on this instance." : "";
  at("block-button").textContent = isBlocked ? "Unblock" : "Block on this instance …";
  at("block-time").hidden = isBlocked;
  at("block").querySelector("label").hidden = isBlocked;
  const meters = policies.map((policy) => meter(policy));
  at("found-policies").replaceChildren(...(meters.length > 0 ? meters : [make("p", { textContent: "No policy limits this caller." })]));
}

function meter({ name, capacity, remaining, key, is_shadow: isShadow, full_after_seconds: full, reset_seconds: reset }) {
  const fill = make("div", { className: "fill" });
  fill.style.width = `${(100 * Math.min(remaining / capacity, 1)) || 0}%`;
  const track = make("div", { className: "track" }, fill);
  for (const [attribute, value] of [["role", "meter"], ["aria-label", `Left of ${name}`], ["aria-valuemin", 0], ["aria-valuemax", capacity], ["aria-valuenow", Math.min(remaining, capacity)]]) {
    track.setAttribute(attribute, value);
  }
  const notes = [];
  if (isShadow) notes.push("a shadow: it rejects nothing");
  if (key !== null) notes.push(`counts by ${key}`);
  if (remaining === 0 && reset !== null) notes.push(`the next unit in ${spoken(reset)}`);
  notes.push(full === null ? "nothing is used" : `full in ${spoken(full)}`);
  return make("div", { className: "meter" },
    make("span", { className: "name", textContent: name, title: name }), track,
    make("span", { className: "number", textContent: `${remaining.toLocaleString("en")} of ${capacity.toLocaleString("en")} left` }),
    make("span", { className: "more", textContent: notes.join("; ") }));
}

async function actOnCaller(text, action) {
  const about = found;
  if (about === null) return;
  if (await act("caller-said", `${text(about)}`, () => action(about))) {
    const said = at("caller-said").textContent;
    await lookUp();
    // A look-up that failed has said why.
    if (at("caller-said").textContent === "") at("caller-said").textContent = said;
  }
}

function giveBack(event) {
  event.preventDefault();
  const units = Number(at("units").value);
  // The service knows it again if the browser sends the request twice.
  const id = `operators-page ${[...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(16)).join("")}`;
  actOnCaller(({ name }) => `${many(units, "unit")} given back to ${name}`, async ({ kind, name }) => {
    const { value } = await ask("POST", `caller/give-back?${query(kind, name)}`, JSON.stringify({ units, id }));
    return value.given_back === "done" ? undefined : `Nothing was given back to ${name}: no policy counts its requests in units that can be given back.`;
  });
}

async function block(event) {
  event.preventDefault();
  const { kind, name, isBlocked } = found;
  const client = kind === "user" ? { user: name } : { network: name.includes(":") ? `${name}/64` : name };
  if (isBlocked) {
    await actOnCaller(() => `${nameOfClient(client)} unblocked`, () => unblocked(client));
    return;
  }
  if (await sure(client, at("block-time"))) {
    await actOnCaller(() => `${nameOfClient(client)} blocked on this instance ${until(at("block-time"))}`, () => blocked(client, at("block-time").value));
  }
}

const until = (times) => (times.value === "" ? "until somebody unblocks it" : `for ${times.selectedOptions[0].textContent}`);

function sure(client, times) {
  return confirmed(
    `Block ${nameOfClient(client)}?`,
    `This instance answers its requests with 403, ${until(times)}.`,
    "Block",
    ["Other instances still serve it: block it on each.", ...(client.network?.includes(":") ? ["An IPv6 subscriber has a whole network, at least a /64: a narrower block does not stop it."] : [])],
  );
}

const blocked = (client, seconds) =>
  ask("POST", "block", JSON.stringify({ ...client, ...(seconds === "" ? {} : { seconds: Number(seconds) }) })).then(() => undefined);

async function unblocked(client) {
  try {
    await ask("DELETE", "block", JSON.stringify(client));
  } catch (error) {
    if (error.status !== 404) throw error;
    return `${nameOfClient(client)} has no block of its own. If it is blocked, a wider network is: see the list.`;
  }
  return undefined;
}

async function unblock(client, place) {
  if (await act(place, `${nameOfClient(client)} unblocked`, () => unblocked(client)) && found !== null) lookUp();
}

async function blockNetwork(event) {
  event.preventDefault();
  const [client, times] = [{ network: at("network").value.trim() }, at("network-time")];
  if (!(await sure(client, times))) return;
  if (await act("blocked-said", `${nameOfClient(client)} blocked on this instance ${until(times)}`, () => blocked(client, times.value))) at("network").value = "";
}

// --- Rules.

/** The texts of the rules, at this number. */
let rules = { number: null, current: "", tried: "" };
/** The rules that the draft was begun with. */
let draft = { number: null, text: "" };

const isDrafted = () => at("draft").value !== draft.text;

async function loadRules() {
  if (state === null) return;
  const { number, roll_out: trial } = state.rules;
  // Before the answer, so that it is not asked for twice.
  rules = { ...rules, number };
  try {
    const current = (await ask("GET", "rules")).text;
    const tried = trial === null ? "" : (await ask("GET", "roll-out")).text;
    rules = { number, current, tried };
  } catch {
    // The next answer about the state asks again.
    rules = { ...rules, number: -1 };
    return;
  }
  at("current").textContent = rules.current;
  at("tried").textContent = rules.tried;
  at("tried-box").hidden = rules.tried === "";
  if (!isDrafted()) startDraft();
  redraw();
}

function startDraft() {
  at("draft").value = rules.current;
  // As the field has it: it changes the ends of lines.
  draft = { number: rules.number, text: at("draft").value };
  at("draft-said").textContent = "";
}

function showRules() {
  const { number, digest, origin, seconds, roll_out: trial } = state.rules;
  write(at("version"), `Version ${digest}, from ${origin}, ${spoken(seconds)} ago. Instances that show the same version have the same rules.`);
  at("trial").hidden = trial === null;
  if (trial !== null) {
    write(at("trial-text"), `Version ${trial.digest ?? "of another source"} is tried on ${trial.percent} % of the callers, always the same ones.`);
    if (document.activeElement !== at("share-percent") && at("share-percent").dataset.shown !== `${trial.percent}`) {
      at("share-percent").value = trial.percent;
      at("share-percent").dataset.shown = `${trial.percent}`;
    }
  }
  const isOutdated = isDrafted() && draft.number !== number;
  write(at("draft-said"), isOutdated ? "The rules have changed since you began: start again, or the service rejects your change." : "");
}

/** What changes, as far as this page can read it: the service has the last word. */
function changes(before, after) {
  try {
    return differences(before, after);
  } catch (error) {
    return [error instanceof SyntaxError ? `This is not JSON: ${error.message}` : "The differences cannot be shown."];
  }
}

async function changeRules(title, text, yes, list, said, method, path, body, seen) {
  if (!(await confirmed(title, text, yes, [...list, "On this instance only, until the file of rules changes or the process ends."]))) return;
  const isDone = await act("rules-said", said, () => ask(method, path, body, { "if-match": `"${seen}"` }).then(() => undefined));
  if (isDone && body !== undefined) {
    draft.text = body;
    at("edit").open = false;
  }
  await loadRules();
}

const endsTrial = () => (state.rules.roll_out === null ? "" : " The trial that runs ends with it.");

function tryRules(event) {
  event.preventDefault();
  const percent = at("try-percent").value;
  const text = at("draft").value;
  changeRules(`Try these rules on ${percent} % of the callers?`, `Always the same callers, chosen by their digests. The others keep the rules of now.${endsTrial()}`, "Try them",
    changes(rules.current, text), `New rules are tried on ${percent} % of the callers`, "PUT", `roll-out/${percent}`, text, draft.number);
}

function replaceRules() {
  const text = at("draft").value;
  changeRules("Use these rules for all callers?", `From the next request on. What callers have used stays used.${endsTrial()}`, "Use them for all",
    changes(rules.current, text), "New rules hold for all callers", "POST", "rules", text, draft.number);
}

function share(event) {
  event.preventDefault();
  const percent = at("share-percent").value;
  changeRules(`Try the new rules on ${percent} % of the callers?`, `It was ${state.rules.roll_out?.percent} %.`, "Change the share",
    changes(rules.current, rules.tried), `The new rules are tried on ${percent} % of the callers`, "PUT", `roll-out/${percent}`, undefined, state.rules.number);
}

function finish() {
  changeRules("Use the tried rules for all callers?", "The trial ends with it.", "Use them for all",
    changes(rules.current, rules.tried), "The rules that were tried hold for all callers", "POST", "roll-out", undefined, state.rules.number);
}

function abandon() {
  changeRules("End the trial?", "All callers have the old rules again.", "End the trial",
    changes(rules.tried, rules.current), "The trial has ended; the old rules hold for all callers", "DELETE", "roll-out", undefined, state.rules.number);
}

// --- Start.

for (const times of document.querySelectorAll(".times")) {
  times.append(...TIMES.map(([value, textContent]) => make("option", { value, textContent })));
  times.value = "3600";
}
at("sign-in").addEventListener("submit", signIn);
at("sign-out").addEventListener("click", () => signOut());
at("switch").addEventListener("click", turn);
at("look-up").addEventListener("submit", (event) => {
  event.preventDefault();
  lookUp();
});
at("reset").addEventListener("click", () =>
  actOnCaller(({ name }) => `${name} has the whole quota again`, ({ kind, name }) => ask("DELETE", `caller?${query(kind, name)}`).then(() => undefined)));
at("give-back").addEventListener("submit", giveBack);
at("block").addEventListener("submit", block);
at("block-network").addEventListener("submit", blockNetwork);
at("try").addEventListener("submit", tryRules);
at("replace").addEventListener("click", replaceRules);
at("again").addEventListener("click", startDraft);
at("share").addEventListener("submit", share);
at("finish").addEventListener("click", finish);
at("abandon").addEventListener("click", abandon);
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
setInterval(() => {
  poll();
  if (silence !== null) redraw();
}, SECOND);
at("token").focus();
