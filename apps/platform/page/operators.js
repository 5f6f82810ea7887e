// The operators' page: polls the service every second, displays its state, and sends the operator's changes.

import { onFrame } from "./canvas.js";
import { byOutcome, describe, drawDecisions, drawLatency, series, short, swatch, time } from "./charts.js";
import { alertsOf, blocksOf, described, isFleetOff, orderOf, showChanges, showFleet, showVersions } from "./fleet.js";
import { History, MINUTES, quantile, read } from "./history.js";
import { isNetwork } from "./network.js";
import { differences } from "./rules.js";
import { make, rows, runbook, showEmpty, spoken, write } from "./words.js";

const SECOND = 1_000;
const NOW = 10 * SECOND;
const MINUTE = 60 * SECOND;
/** Longer than the five seconds for which the service waits for Redis. */
const PATIENCE = 8 * SECOND;
const MAX_ENTRIES = 50;
const MAX_REJECTED = 10;
const TIMES = [["600", "10 minutes"], ["3600", "1 hour"], ["86400", "1 day"], ["", "until an operator ends it"]];

const SCOPES = [["all", "on all instances"], ["here", "only on this instance"]];

const at = (id) => document.getElementById(id);
const history = new History();
/** The token is kept only in memory. */
let token = null;
let state = null;
let heard = 0;
let pause = 0;
let instances = [];
let isMixed = false;
let silence = null;
/** The last known state of the fleet, and the error of later requests. */
let fleet = null;
let fleetSilence = null;

/** An error response of the service. */
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

function reason(error) {
  if (error instanceof Failure) return error.message;
  return error.name === "TimeoutError" ? "The service did not answer. The change may have been made nevertheless: check before you try again." : "The service cannot be reached.";
}

// --- Words.

const many = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
const nameOf = (caller) => caller.user ?? caller.address;
const kindOf = (caller) => (caller.user === undefined ? "address" : "user");
const nameOfClient = ({ user, network, key }) => (user !== undefined ? `user ${user}` : network !== undefined ? `network ${network}` : `key ${key}`);
const isFleet = () => state?.fleet != null;
/** Describes the instances of a block. `isOwn` is `true` for a block of only this instance. */
const where = (isOwn) => (isFleet() && !isOwn ? "on all instances" : "on this instance");

// --- Actions of the operator.

function note(text, isError) {
  const now = new Date();
  const entry = make("li", { className: isError ? "is-error" : "" });
  entry.append(make("time", { dateTime: now.toISOString(), textContent: now.toLocaleTimeString() }), text);
  at("entries").prepend(entry);
  while (at("entries").childElementCount > MAX_ENTRIES) at("entries").lastElementChild.remove();
  at("no-entries").hidden = true;
}

/** Performs an action of the operator, displays the result next to it, and adds it to the list. */
async function act(place, text, action) {
  const said = at(place);
  said.className = "said";
  said.textContent = "…";
  try {
    const more = await action();
    await poll();
    said.textContent = more ?? `${text}.`;
    note(said.textContent, false);
    return true;
  } catch (error) {
    said.classList.add("is-error");
    said.textContent = reason(error);
    note(`Not done: ${text}. ${said.textContent}`, true);
    if (error instanceof Failure && error.status === 404 && error.message.includes("404")) signOut("Your token is no longer valid. Sign in again.");
    return false;
  }
}

/** Returns `true` if this instance has applied the change. */
const follows = (fleet, { number, switch_number: order, access_number: list }) =>
  (number === undefined ? fleet.switch_number >= order && fleet.access_number >= list : fleet.number >= number);

/** Sends a change. In a fleet, includes the author and waits until this instance has applied the change. */
async function send(method, path, body, fields = {}, more = "") {
  if (!isFleet()) {
    await ask(method, path, body, fields);
    return;
  }
  const { value } = await ask(method, `${path}?by=${encodeURIComponent(at("who").value.trim())}${more}`, body, fields);
  for (let look = 0; look < 30 && state !== null; look++) {
    await poll();
    if (state === null || follows(state.fleet, value)) break;
    await new Promise((done) => setTimeout(done, 200));
  }
  await pollFleet();
}

/** Resolves the open confirmation. */
let decide = () => {};

// The event arrives some time after the dialog has closed, when another dialog may be open.
at("confirm").addEventListener("close", () => {
  if (!at("confirm").open) decide(at("confirm").returnValue === "yes");
});

/** Asks for confirmation. Returns `true` only if the operator confirms. */
function confirmed(title, text, yes, list = []) {
  const dialog = at("confirm");
  decide(dialog.returnValue === "yes");
  at("confirm-title").textContent = title;
  at("confirm-text").textContent = text;
  at("confirm-yes").textContent = yes;
  at("confirm-list").replaceChildren(...list.map((line) => make("li", { textContent: line })));
  dialog.returnValue = "cancel";
  dialog.showModal();
  at("confirm-no").focus();
  return new Promise((done) => {
    decide = done;
  });
}

// --- Signing in and out.

async function signIn(event) {
  event.preventDefault();
  const given = at("token").value.trim();
  at("sign-in-said").textContent = "";
  try {
    // A token with other characters cannot be sent and is invalid.
    if (!/^[\x21-\x7e]+$/.test(given)) throw new Failure(404, "");
    // The timer polls only with a known token, so that no other answer arrives before this one.
    const { value } = await ask("GET", "state", undefined, { authorization: `Bearer ${given}` });
    token = given;
    hear(value);
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
  await pollFleet();
  loadRules();
  redraw();
}

/** Starts with the history kept by the service. */
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
  fleet = null;
  fleetSilence = null;
  for (const id of ["instances", "running", "versions"]) at(id).tBodies[0].replaceChildren();
  for (const id of ["found", "signed-in", "sign-out"]) at(id).hidden = true;
  for (const id of ["entries", "alerts", "problems", "current", "tried", "instance"]) at(id).replaceChildren();
  for (const shown of document.querySelectorAll("[data-key]")) delete shown.dataset.key;
  for (const said of document.querySelectorAll(".said")) said.textContent = "";
  draft = { number: null, text: "" };
  at("draft").value = "";
  at("name").value = "";
  at("rejected-filter").value = "";
  at("edit").open = false;
  if (at("confirm").open) at("confirm").close("cancel");
  at("sign-in").hidden = false;
  at("sign-in-said").textContent = text;
  at("token").focus();
}

// --- Answers of the service.

let isAsking = false;

/** Polls the state with one request at a time. Stops after a wrong token, because each request would count as a guess. */
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
      signOut("Your token is no longer valid. Sign in again.");
    } else {
      if (error.status === 429) pause = performance.now() + error.retryAfter * SECOND;
      silence = reason(error);
    }
  } finally {
    isAsking = false;
    redraw();
  }
}

let isAskingFleet = false;

/** Polls the state of the fleet, which requires Redis. The state of this instance does not wait for it. */
async function pollFleet() {
  if (token === null || !isFleet() || isAskingFleet || silence !== null) return;
  isAskingFleet = true;
  const asked = token;
  try {
    const { value } = await ask("GET", "fleet");
    if (token !== asked) return;
    fleet = { ...value, heard: new Date().toLocaleTimeString() };
    fleetSilence = null;
  } catch (error) {
    if (token === asked) fleetSilence = reason(error);
  } finally {
    isAskingFleet = false;
  }
  if (state !== null && rules.number !== null && rules.number !== numberOfRules()) loadRules();
  redraw();
}

/** Returns the base version of a change of rules. */
function numberOfRules() {
  if (!isFleet()) return state.rules.number;
  return fleet === null ? "unknown" : (fleet.published?.version ?? "none");
}

function hear(told) {
  heard = performance.now();
  silence = null;
  const before = state;
  if (before !== null && before.instance !== told.instance) {
    // Alternating instances indicate a load balancer.
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
  if (rules.number !== null && rules.number !== numberOfRules()) loadRules();
}

// --- Showing.

const redraw = onFrame(() => {
  if (state === null || token === null) return;
  const instance = `${state.instance}, up for ${spoken(state.numbers.milliseconds / SECOND)}`;
  write(at("instance"), isFleet()
    ? `Numbers are those of one instance: ${instance}. Rules, blocks and the switch are those of all instances that follow the rule set “${state.fleet.set}”.`
    : `This page shows one instance: ${instance}. Changes affect only this instance.`);
  for (const element of document.querySelectorAll(".of-fleet")) element.hidden = !isFleet();
  for (const element of document.querySelectorAll(".of-instance")) element.hidden = isFleet();
  at("signed-in").classList.toggle("is-unknown", fleetSilence !== null);
  at("signed-in").classList.toggle("is-old", silence !== null);
  showAlerts();
  showTiles();
  drawDecisions(at("decisions"), history);
  drawLatency(at("latency"), history);
  showOutcomes();
  showRejected();
  showBlocks();
  showRules();
  if (fleet !== null) {
    showFleet(state, fleet);
    showVersions(fleet, rollBack);
    showChanges(fleet);
  }
});

/** Returns the rate of the outcomes that match a filter. */
function rate(sums, seconds, filter) {
  let sum = 0;
  for (const [name, count] of byOutcome(sums)) if (filter(name)) sum += count;
  return seconds === 0 ? 0 : sum / seconds;
}

function showAlerts() {
  const { sums, seconds } = history.sums(NOW);
  const failed = rate(sums, seconds, (name) => name === "failed_closed");
  const alerts = [];
  const add = (kind, title, text, link) => alerts.push([kind, title, text, link]);
  if (silence !== null) add("", "Old numbers.", `${silence} The last answer came ${spoken((performance.now() - heard) / SECOND)} ago.`);
  if (isMixed) add("", "More than one instance answers.", "A load balancer distributes your requests, so numbers jump, and a change may reach any of the instances. Open the page at the address of one instance.");
  if (isFleet()) alerts.push(...alertsOf(state, fleet, fleetSilence));
  const isUnknown = isFleet() && (fleet === null || fleetSilence !== null);
  if (isOff() && isFleet()) add("", `The limits ${isUnknown ? "were" : "are"} switched off on all instances${isUnknown ? " when Redis last answered" : ""}.`, `All requests pass uncounted, except on an instance whose own switch is on; only blocked clients are rejected. ${orderOf(fleet)?.text ?? `${described(fleet.published)}, says so.`}`, runbook("limits-are-switched-off"));
  else if (!state.is_on) add("", "The limits are switched off.", `All requests to this instance pass uncounted; only blocked clients are rejected. ${others(isUnknown)}`, runbook("limits-are-switched-off"));
  if (state.circuit?.is_open) {
    const what = failed > 0 ? "Requests get 503" : "Requests pass uncounted";
    add("", `The circuit to Redis is open, for ${spoken(state.circuit.seconds)}.`, `${what}. The last error: ${state.circuit.error}. While requests arrive, the service retries automatically, several times per second. Check whether Redis is up, and whether other instances report the same. If only this instance does, check the network between.`, runbook("the-store-is-unavailable"));
  } else {
    showUndecided(add);
  }
  const trial = trialOf();
  if (trial !== null) add("note", "New rules are tried", `on ${trial.percent} % of the callers.`);
  if (alerts.every(([kind]) => kind !== "")) {
    // Without requests, Redis is not called, so the circuit is uninformative.
    const isKnown = state.circuit === null || quantile(history.calls(MINUTE), 0.5) !== null;
    if (isKnown) add("good", "The limits are on", "on this instance, and Redis decides.");
    else add("note", "The limits are on", "on this instance. No request has called Redis in the last minute, so this page does not know if it answers.");
  }
  const key = JSON.stringify(alerts);
  if (at("alerts").dataset.key === key) return;
  at("alerts").dataset.key = key;
  const problems = alerts.filter(([kind]) => kind === "").map(([, title]) => title);
  at("problems").hidden = problems.length === 0;
  write(at("problems"), problems.join(" "));
  while (at("alerts").childElementCount > alerts.length) at("alerts").lastElementChild.remove();
  alerts.forEach(showAlert);
}

/** Undecided requests of all samples: those of a few seconds would come and go. The bounds are those of the alert. */
function showUndecided(add) {
  const { sums } = history.sums(MINUTES * MINUTE);
  const outcomes = byOutcome(sums);
  const [undecided, all] = [(outcomes.get("failed_open") ?? 0) + (outcomes.get("failed_closed") ?? 0), [...outcomes.values()].reduce((sum, count) => sum + count, 0)];
  if (undecided === 0) return;
  const byReason = [...sums].map(([key, count]) => [read(key), count]).filter(([{ outcome }]) => outcome === "undecided");
  const reasons = byReason.map(([{ policy }, count]) => `${policy} ${count}`).join(", ");
  const text = `${many(undecided, "request")} of ${all.toLocaleString("en")} in the last ${MINUTES} minutes${reasons === "" ? "" : ` (${reasons})`}, although Redis is called now.`;
  if (undecided >= 10 && undecided > all / 1_000) add("", "Limits leak: Redis did not decide", text, runbook("limits-leak"));
  else add("note", "Redis did not decide", text, runbook("limits-leak"));
}

/** Displays an alert in its place. The element is reused, because texts change every second, and the link may have the focus. */
function showAlert([kind, title, text, link], index) {
  const alert = at("alerts").children[index] ?? make("p", {}, make("strong"), make("span"), make("a", { textContent: "What to do", target: "_blank", rel: "noreferrer" }));
  const [shownTitle, shownText, anchor] = alert.children;
  alert.className = kind;
  write(shownTitle, title);
  write(shownText, ` ${text} `);
  anchor.hidden = link === undefined;
  anchor.href = link ?? "";
  anchor.setAttribute("aria-label", `What to do: ${title}`);
  if (!alert.isConnected) at("alerts").append(alert);
}

/** Describes the switches of the other instances, if known. */
function others(isUnknown) {
  if (isUnknown) return "This page does not know if the others limit.";
  const isOwn = isFleet() && state.fleet.is_overridden && fleet.published !== null;
  return isOwn ? "The other instances still enforce limits, because the switch of the fleet is on." : "Other instances still limit, unless they are switched off, too.";
}

/** Prevents the sticky alert titles from covering the focused control. */
function makeRoom() {
  const titles = at("problems");
  document.documentElement.style.scrollPaddingTop = `${titles.offsetHeight + 8}px`;
  if (!titles.classList.contains("is-shown")) return;
  const [focused, below] = [document.activeElement, titles.getBoundingClientRect().bottom];
  const { top, bottom, height } = focused.getBoundingClientRect();
  const isHidden = top < below && bottom > 0 && height < innerHeight / 2;
  if (isHidden && at("panels").contains(focused)) focused.scrollIntoView({ block: "nearest" });
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
  tile("limits", state.is_on ? "on" : "OFF", state.is_on ? versionInForce() : "nothing is counted", !state.is_on);
  tile("circuit", state.circuit === null ? "cluster" : isOpen ? "OPEN" : "closed", state.circuit === null ? "each node has one of its own" : isOpen ? "Redis is not asked" : most === null ? "no call in the last minute" : "Redis decides", isOpen);
  tile("all", `${short(all)} /s`, `${short(of("unlimited"))} /s without limits`);
  tile("rejected", `${short(rejected)} /s`, percent(rejected));
  tile("uncounted", `${short(of("failed_open"))} /s`, percent(of("failed_open")), of("failed_open") > 0);
  tile("store", most === null ? "–" : `≤ ${time(most)}`, most === null ? "not asked in the last minute" : `99 % of the last minute; half ≤ ${time(half)}`);
  const button = at("switch");
  const limits = isFleet() ? "limits of all instances" : "limits";
  write(button, isOff() ? `Switch the ${limits} on` : `Switch the ${limits} off …`);
  button.classList.toggle("quiet-danger", !isOff());
  button.classList.toggle("primary", isOff());
  if (!isFleet()) return;
  write(at("own-state"), ownSwitch());
  at("own-fleet").classList.toggle("primary", state.fleet.is_overridden);
}

/** Returns `true` if the switch of the large button is off. */
const isOff = () => (isFleet() ? isFleetOff(fleet) : !state.is_on);

const trialOf = () => {
  if (!isFleet()) return state.rules.roll_out;
  return state.fleet.percent === null ? null : { percent: state.fleet.percent };
};

function versionInForce() {
  if (!isFleet()) return `rules ${state.rules.digest}`;
  return state.fleet.number === null ? "rules of its own file" : `version ${state.fleet.number}`;
}

function ownSwitch() {
  const now = state.is_on ? "on" : "off";
  return state.fleet.is_overridden ? `the switch of this instance overrides the fleet: limits are ${now} here.` : `limits are ${now} here, as in the fleet.`;
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

/** A hovered or focused list is not reordered. */
const isHeld = (table) => table.matches(":hover") || table.contains(document.activeElement);

/** The filter of the displayed rows. */
let filtered = "";

function showRejected() {
  const table = at("rejected");
  const filter = at("rejected-filter").value.trim().toLowerCase();
  if (filter === filtered && isHeld(table) && table.tBodies[0].rows.length > 0) return;
  filtered = filter;
  const matching = state.rejected.filter(({ caller, policy }) => `${nameOf(caller)}\n${policy ?? "blocked"}`.toLowerCase().includes(filter));
  rows(table.tBodies[0], matching.slice(0, MAX_REJECTED), ({ caller, policy }) => JSON.stringify([caller, policy]), ({ caller }) => {
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
  showEmpty(table, state.rejected.length > 0 ? "No rejected caller matches the filter." : "Nobody was rejected in the last five minutes.");
}

function showBlocks() {
  const table = at("blocks");
  const own = state.blocks.map((block) => ({ ...block, isOwn: true }));
  rows(table.tBodies[0], isFleet() ? [...own, ...blocksOf(fleet)] : own, ({ client, isOwn }) => JSON.stringify([client, isOwn]), ({ client, isOwn }) => {
    const name = `${nameOfClient(client)}${isFleet() && isOwn ? ", only on this instance" : ""}`;
    const button = make("button", { type: "button", textContent: "Unblock" });
    button.setAttribute("aria-label", `Unblock ${name}`);
    button.addEventListener("click", () => unblock(client, isOwn));
    button.hidden = client.key !== undefined;
    return make("tr", { className: isOwn ? "is-own" : "" }, make("th", { scope: "row", textContent: name }), make("td"), make("td", {}, button));
  }, (row, { seconds }) => {
    write(row.cells[1], seconds === null ? "an operator ends it" : `in ${spoken(seconds)}`);
  });
  const isUnknown = isFleet() && (fleet === null || fleetSilence !== null);
  showEmpty(table, isUnknown ? "Unknown: Redis did not answer." : "Nobody is blocked.");
}

// --- The switch.

async function turn() {
  const who = isFleet() ? "all instances" : "this instance";
  if (isOff()) {
    await act("now-said", `The limits of ${who} are on`, () => send("POST", "switch/on"));
    return;
  }
  const isSure = await confirmed(
    `Switch the limits of ${who} off?`,
    `From now on, all requests to ${who} pass uncounted and without RateLimit fields, ${isFleet() ? "for an hour, or until an operator switches the limits on again" : "until an operator switches the limits on again, or the process ends"}. Blocked clients stay blocked.`,
    "Switch them off",
    isFleet() ? ["All instances follow within two seconds, except those whose own switch overrides the fleet."]
      : [`This instance: ${state.instance}.`, "Other instances still limit: switch them off one by one."],
  );
  if (isSure) await act("now-said", `The limits of ${who} are OFF`, () => send("POST", "switch/off"));
}

/** Changes the switch of this instance, which overrides the fleet's and does not require Redis. */
async function turnOwn(position) {
  if (position === "off") {
    const isSure = await confirmed("Switch the limits of only this instance off?",
      "All requests to this instance pass uncounted, regardless of the fleet, until you choose “As the fleet” or the process ends. This does not require Redis.",
      "Switch them off here", [`This instance: ${state.instance}.`, "Other instances still limit."]);
    if (!isSure) return;
  }
  const text = { off: "The limits of this instance are OFF", on: "The limits of this instance are on", fleet: "This instance follows the switch of the fleet" }[position];
  await act("own-said", text, () => ask("POST", `own-switch/${position}`).then(() => undefined));
}

// --- A caller.

/** The displayed caller. */
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

function showCaller(kind, name, { caller, tier, policies, is_blocked: isBlocked, is_blocked_here: isOwn }) {
  found = { kind, name: nameOf(caller), isBlocked, isOwn };
  at("found").hidden = false;
  at("found-name").textContent = `${found.name} · ${kind === "user" ? `tier ${tier}` : "requests without a user"} · at ${new Date().toLocaleTimeString()}`;
  at("found-blocked").textContent = isBlocked ? `Blocked ${where(isOwn)}.` : "";
  at("block-button").textContent = isBlocked ? "Unblock" : isFleet() ? "Block …" : "Block on this instance …";
  at("block-options").hidden = isBlocked;
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
    // A failed lookup has already displayed its error.
    if (at("caller-said").textContent === "") at("caller-said").textContent = said;
  }
}

function giveBack(event) {
  event.preventDefault();
  const units = Number(at("units").value);
  // Lets the service recognize the request if the browser sends it twice.
  const id = `operators-page ${[...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(16)).join("")}`;
  actOnCaller(({ name }) => `${many(units, "unit")} given back to ${name}`, async ({ kind, name }) => {
    const { value } = await ask("POST", `caller/give-back?${query(kind, name)}`, JSON.stringify({ units, id }));
    return value.given_back === "done" ? undefined : `Nothing was given back to ${name}, because no policy that limits it can refund units.`;
  });
}

async function block(event) {
  event.preventDefault();
  const { kind, name, isBlocked, isOwn } = found;
  const client = kind === "user" ? { user: name } : { network: name.includes(":") ? `${name}/64` : name };
  if (isBlocked) {
    await actOnCaller(() => `${nameOfClient(client)} unblocked ${where(isOwn)}`, () => unblocked(client, isOwn));
    return;
  }
  const [time, isHere] = [at("block-time"), isFleet() && at("block-scope").value === "here"];
  if (await sure(client, time, isHere)) {
    await actOnCaller(() => `${nameOfClient(client)} blocked ${where(isHere)} ${until(time)}`, () => blocked(client, time.value, isHere));
  }
}

const until = (times) => (times.value === "" ? "until an operator unblocks it" : `for ${times.selectedOptions[0].textContent}`);

function sure(client, times, isOwn) {
  const isForAll = isFleet() && !isOwn;
  return confirmed(
    `Block ${nameOfClient(client)}?`,
    `${isForAll ? "All instances answer" : "This instance answers"} its requests with 403, ${until(times)}${isForAll ? "" : ", or until the process ends"}.`,
    "Block",
    [...(isForAll ? [] : ["Other instances still serve it: block it on each."]), ...(client.network?.includes(":") ? ["An IPv6 subscriber has a whole network, at least a /64: a narrower block does not stop it."] : [])],
  );
}

/** Adds or removes a block. Does not require Redis for this instance. */
async function changeBlock(method, isOwn, body) {
  if (isFleet() && isOwn) await ask(method, "own-block", JSON.stringify(body));
  else await sendConfirmed(method, "block", JSON.stringify(body));
}

/** Sends a change. If the service requires explicit confirmation, asks again with the reason. */
async function sendConfirmed(method, path, body, fields, more = "") {
  try {
    await send(method, path, body, fields, more);
  } catch (error) {
    if (error.status !== 428) throw error;
    if (!(await confirmed("Is that meant?", reason(error), "It is meant", []))) throw error;
    await send(method, path, body, fields, `${more}&confirmed=true`);
  }
}

const blocked = (client, seconds, isOwn) =>
  changeBlock("POST", isOwn, { ...client, ...(seconds === "" ? {} : { seconds: Number(seconds) }) });

async function unblocked(client, isOwn) {
  try {
    await changeBlock("DELETE", isOwn, client);
  } catch (error) {
    if (error.status !== 404) throw error;
    return `${nameOfClient(client)} is not in the list of blocks. If it is blocked, the list has an entry for a wider network.`;
  }
  return undefined;
}

async function unblock(client, isOwn) {
  if (await act("blocked-said", `${nameOfClient(client)} unblocked ${where(isOwn)}`, () => unblocked(client, isOwn)) && found !== null) lookUp();
}

async function blockClient(event) {
  event.preventDefault();
  const [client, times] = [{ [at("network-kind").value]: at("network").value.trim() }, at("network-time")];
  const isOwn = isFleet() && at("network-scope").value === "here";
  const isRefused = client.network !== undefined && !isNetwork(client.network);
  at("blocked-said").className = isRefused ? "said is-error" : "said";
  at("blocked-said").textContent = isRefused ? `${client.network} is neither an IP address nor a network such as 203.0.113.0/24.` : "";
  if (isRefused) {
    at("network").select();
    return;
  }
  if (!(await sure(client, times, isOwn))) return;
  if (await act("blocked-said", `${nameOfClient(client)} blocked ${where(isOwn)} ${until(times)}`, () => blocked(client, times.value, isOwn))) at("network").value = "";
}

// --- Rules.

/** The texts of the rules with this number. */
let rules = { number: null, current: "", tried: "" };
/** Resolves when the texts match the number. */
let loading = Promise.resolve();
/** The rules on which the draft is based. */
let draft = { number: null, text: "" };

const isDrafted = () => at("draft").value !== draft.text;

function loadRules() {
  if (state !== null) loading = readRules();
  return loading;
}

async function readRules() {
  const number = numberOfRules();
  // Set before the response, so that it is not requested twice.
  rules = { ...rules, number };
  try {
    rules = { number, ...(await textsOfRules()) };
  } catch {
    // The next state response triggers another request.
    rules = { ...rules, number: -1 };
    return;
  }
  at("current").textContent = rules.current;
  at("tried").textContent = rules.tried;
  at("tried-box").hidden = rules.tried === "";
  if (!isDrafted()) startDraft();
  redraw();
}

/** Returns the published rules or, if there are none or they are unknown, the rules that this instance applies. */
async function textsOfRules() {
  const published = fleet?.published ?? null;
  if (isFleet() && published !== null) return { current: published.rules, tried: published.tried ?? "" };
  const current = (await ask("GET", "rules")).text;
  return { current, tried: trialOf() === null ? "" : (await ask("GET", "roll-out")).text };
}

function startDraft() {
  at("draft").value = rules.current;
  // As in the text area, which normalizes line endings.
  draft = { number: rules.number, text: at("draft").value };
  at("draft-said").textContent = "";
}

function showRules() {
  write(at("version"), isFleet() ? versionOfFleet() : versionOfInstance(state.rules));
  const trial = trialOf();
  at("trial").hidden = trial === null;
  if (trial !== null) {
    const tried = isFleet() ? "New rules are" : `Version ${trial.digest ?? "of another source"} is`;
    write(at("trial-text"), `${tried} tried on ${trial.percent} % of the callers, always the same ones.`);
    if (document.activeElement !== at("share-percent") && at("share-percent").dataset.shown !== `${trial.percent}`) {
      at("share-percent").value = trial.percent;
      at("share-percent").dataset.shown = `${trial.percent}`;
    }
  }
  const isOutdated = isDrafted() && draft.number !== numberOfRules();
  write(at("draft-said"), isOutdated ? "The rules have changed since you began: start again, because the service will reject your change." : "");
}

const versionOfInstance = ({ digest, origin, seconds }) => `Version ${digest}, from ${origin}, ${spoken(seconds)} ago. Instances with the same version have the same rules.`;

function versionOfFleet() {
  const here = `This instance limits by ${versionInForce()}.`;
  if (fleet === null) return `${here} This page does not know what is published.`;
  if (fleet.published === null) return `Nothing is published. ${here}`;
  return `${described(fleet.published)}, ${fleetSilence === null ? "is published" : "was published when Redis last answered"}. ${here}`;
}

/** Returns the differences as computed by this page. The service makes the final check. */
function changes(before, after) {
  try {
    return differences(before, after);
  } catch (error) {
    return [error instanceof SyntaxError ? `This is not JSON: ${error.message}` : "The differences cannot be shown."];
  }
}

async function changeRules(title, text, yes, listed, said, method, path, body, seen) {
  const fields = { "if-match": `"${seen}"` };
  let [list, more] = [[], ""];
  if (isFleet()) {
    const preview = await effects(method, path, body, fields);
    if (preview === null) return;
    const anew = preview.count_resets;
    if (anew.length > 0) more = "&restart_counts=true";
    list = [...preview.effects, ...(anew.length > 0 ? ["COUNTS ARE LOST: callers get a full quota once in each policy whose counts reset."] : [])];
  } else {
    await loading;
    list = listed();
  }
  const scope = isFleet() ? "On all instances, within two seconds." : "On this instance only, until the rules file changes or the process ends.";
  if (!(await confirmed(title, text, yes, [...list, scope]))) return;
  const isDone = await act("rules-said", said, () => sendConfirmed(method, path, body, fields, more));
  if (isDone && body !== undefined) {
    draft.text = body;
    at("edit").open = false;
  }
  await loadRules();
}

/** Requests the effects of a change on the fleet. Displays the reason and returns `null` if it cannot be published. */
async function effects(method, path, body, fields) {
  const said = at("rules-said");
  said.className = "said";
  said.textContent = "…";
  try {
    const { value } = await ask(method, `${path}?preview=true`, body, fields);
    said.textContent = "";
    return value;
  } catch (error) {
    said.classList.add("is-error");
    said.textContent = `Nothing was published: ${reason(error)}`;
    await pollFleet();
    return null;
  }
}

function rollBack(version) {
  changeRules(`Roll back to version ${version}?`, "Publishes its rules and its trial again, as a new version. The switch and the blocks stay as they are.", "Roll back", () => [],
    `The rules of version ${version} apply again`, "POST", `roll-back/${version}`, undefined, numberOfRules());
}

const endsTrial = () => (trialOf() === null ? "" : " This ends the current trial.");

function tryRules(event) {
  event.preventDefault();
  const percent = at("try-percent").value;
  const text = at("draft").value;
  changeRules(`Try these rules on ${percent} % of the callers?`, `Always the same callers, selected by their digests. The others keep the current rules.${endsTrial()}`, "Try them",
    () => changes(rules.current, text), `New rules are tried on ${percent} % of the callers`, "PUT", `roll-out/${percent}`, text, draft.number);
}

function replaceRules() {
  const text = at("draft").value;
  changeRules("Use these rules for all callers?", `The rules apply from the next request on. Used units remain used.${endsTrial()}`, "Use them for all",
    () => changes(rules.current, text), "New rules apply to all callers", "POST", "rules", text, draft.number);
}

function share(event) {
  event.preventDefault();
  const percent = at("share-percent").value;
  changeRules(`Try the new rules on ${percent} % of the callers?`, `It was ${trialOf()?.percent} %.`, "Change the share",
    () => changes(rules.current, rules.tried), `The new rules are tried on ${percent} % of the callers`, "PUT", `roll-out/${percent}`, undefined, numberOfRules());
}

function finish() {
  changeRules("Use the tried rules for all callers?", "This ends the trial.", "Use them for all",
    () => changes(rules.current, rules.tried), "The rules that were tried apply to all callers", "POST", "roll-out", undefined, numberOfRules());
}

function abandon() {
  changeRules("End the trial?", "All callers have the old rules again.", "End the trial",
    () => changes(rules.tried, rules.current), "The trial has ended; the old rules apply to all callers", "DELETE", "roll-out", undefined, numberOfRules());
}

// --- Start.

for (const times of document.querySelectorAll(".times")) {
  times.append(...TIMES.map(([value, textContent]) => make("option", { value, textContent })));
  times.value = "3600";
}
for (const scope of document.querySelectorAll(".scope")) {
  scope.append(...SCOPES.map(([value, textContent]) => make("option", { value, textContent })));
}
new ResizeObserver(makeRoom).observe(at("problems"));
new IntersectionObserver((entries) => {
  const { isIntersecting, boundingClientRect } = entries[entries.length - 1];
  at("problems").classList.toggle("is-shown", !isIntersecting && boundingClientRect.bottom <= 0);
}).observe(at("alerts"));
at("sign-in").addEventListener("submit", signIn);
at("sign-out").addEventListener("click", () => signOut());
at("switch").addEventListener("click", turn);
for (const position of ["off", "on", "fleet"]) at(`own-${position}`).addEventListener("click", () => turnOwn(position));
at("rejected-filter").addEventListener("input", redraw);
at("look-up").addEventListener("submit", (event) => {
  event.preventDefault();
  lookUp();
});
at("reset").addEventListener("click", () =>
  actOnCaller(({ name }) => `${name} has the whole quota again`, ({ kind, name }) => ask("DELETE", `caller?${query(kind, name)}`).then(() => undefined)));
at("give-back").addEventListener("submit", giveBack);
at("block").addEventListener("submit", block);
at("block-network").addEventListener("submit", blockClient);
at("network-kind").addEventListener("change", () => {
  at("network").placeholder = at("network-kind").value === "network" ? "203.0.113.0/24" : "";
});
at("try").addEventListener("submit", tryRules);
at("replace").addEventListener("click", replaceRules);
at("again").addEventListener("click", startDraft);
at("share").addEventListener("submit", share);
at("finish").addEventListener("click", finish);
at("abandon").addEventListener("click", abandon);
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
setInterval(pollFleet, 2 * SECOND);
setInterval(() => {
  poll();
  if (silence !== null) redraw();
}, SECOND);
at("token").focus();
