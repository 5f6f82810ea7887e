// The rules of the fleet: published versions, their authors, and the instances that run them.

import { make, rows, runbook, showEmpty, spoken, when, write } from "./words.js";

const at = (id) => document.getElementById(id);

/** Returns the blocks of all instances. */
export const blocksOf = (known) => (known?.controls.access ?? []).filter(({ access }) => access === "block");

/** Returns the last order of the fleet's switch, or `null` if there is none or it has expired. */
export function orderOf(known) {
  const order = known?.controls.switch ?? null;
  if (order === null || order.seconds === 0) return null;
  const end = order.seconds === null ? "without an end" : `for another ${spoken(order.seconds)}`;
  return { ...order, text: `Ordered by ${order.author === "" ? "an unknown author" : order.author}, ${when(order.time)}, ${end}${order.reason === "" ? "" : `: ${order.reason}`}.` };
}

/** Returns `true` if the limits of all instances are disabled. */
export const isFleetOff = (known) => orderOf(known)?.is_off === true;

/** Formats the number, author and time of a version. */
export function described({ number, author, time }) {
  return `Version ${number}, by ${author === "" ? "an unknown author" : author}, ${when(time)}`;
}

/** Returns the alerts about the fleet, each with a kind, a title, a text and, for problems, a link. `known` is the last known state of the fleet, or `null`. */
export function alertsOf(state, known, silence) {
  const { fleet } = state;
  const alerts = [];
  const published = known?.published ?? null;
  if (fleet.failure !== null || silence !== null) {
    alerts.push(["", "The rules of the fleet cannot be read.", `This instance keeps ${runs(fleet)}. This page does not know which version is published, which instances run it, or who is blocked on all instances${known === null ? "" : `: it shows the answer of ${known.heard}`}. Until Redis answers, changes for all instances are not possible; "Only this instance" and blocks "only on this instance" work. ${fleet.failure ?? silence}`, runbook("rules-are-not-followed")]);
  }
  if (fleet.is_overridden) {
    const own = state.is_on ? "on" : "off";
    alerts.push(["", `This instance overrides the fleet: its own switch is ${own}.`, `The switch of all instances has no effect on it, until you choose "As the fleet" under "Only this instance".`, runbook("switches-differ")]);
  }
  if (fleet.rejected !== null) {
    alerts.push(["", `This instance rejects version ${fleet.rejected.number}.`, `It keeps ${runs(fleet)}. The reason: ${fleet.rejected.message}. The switch and the blocks of all instances apply nevertheless. Roll back, or publish rules that this instance can apply.`, runbook("rules-are-rejected")]);
  }
  if (known?.problem) alerts.push(["", "What is published cannot be read.", known.problem, runbook("rules-are-rejected")]);
  if (known !== null && silence === null && published === null && !known.problem) {
    const lost = known.instances.filter(({ number }) => number !== null);
    alerts.push(lost.length === 0
      ? ["note", "Nothing is published yet.", 'Each instance applies the rules of its own file. The switch and blocks for all instances work. Publish rules for all instances under "Change the rules".']
      : ["", "Redis has lost the rules.", `${lost.length} instances still enforce version ${Math.max(...lost.map(({ number }) => number))}. Fetch the document of one of them (/admin/document), and publish it again: tower-quota-rules restore FILE.`, runbook("rules-are-lost")]);
  }
  if (fleet.lost.length > 0) {
    alerts.push(["", "Redis lost something that this instance enforces.", `${fleet.lost.join("; ")}. This instance still enforces it. See "When Redis loses its data" in the guide of the fleet.`, runbook("rules-are-lost")]);
  }
  if (fleet.controls_failure !== null) {
    alerts.push(["", "This instance does not obey the switch of all instances.", `${fleet.controls_failure}. On this instance, use "Only this instance".`, runbook("the-switch-is-not-read")]);
  }
  const others = (known?.instances ?? []).filter((instance) => hasProblem(instance) && !isHere(state, instance.name));
  if (silence === null && others.length > 0) alerts.push(["", `${others.length} of the other instances ${others.length === 1 ? "does" : "do"} not follow.`, `See "Instances": ${others.map(problemOf).join("; ")}.`, runbook("instances-differ")]);
  return alerts;
}

const runs = ({ number }) => (number === null ? "the rules of its own file" : `version ${number}`);

/** Returns `true` for the instance that serves this page. */
export const isHere = (state, name) => name.startsWith(`${state.instance}#`);

const nameOf = (name) => name.split("#")[0];

const hasProblem = ({ rejects, is_overridden: own, reads_controls: obeys, has_lost: hasLost }) => rejects !== null || own || !obeys || hasLost;

function problemOf({ name, rejects, is_overridden: own, reads_controls: obeys, has_lost: hasLost }) {
  const problems = [];
  if (!obeys) problems.push("does not obey the switch and the blocks of all instances");
  if (hasLost) problems.push("enforces something that Redis has lost");
  if (rejects !== null) problems.push(`rejects version ${rejects}; its own page says why`);
  if (own) problems.push("its own switch overrides the fleet");
  return `${nameOf(name)} ${problems.join(", and ")}`;
}

/** Displays the instances and their policies. */
export function showFleet(state, known) {
  const published = known.published;
  const list = [...known.instances].sort((one, other) => (one.name < other.name ? -1 : 1));
  rows(at("instances").tBodies[0], list.slice(0, 100), ({ name }) => name, ({ name }) => make("tr", {}, make("th", { scope: "row", textContent: nameOf(name), title: name }), make("td"), make("td")), (row, instance) => {
    const here = isHere(state, instance.name) ? "this instance" : "";
    // Before the first publication, instances should have the rules of the file.
    const isCurrent = known.problem === null && instance.version === (published?.version ?? null);
    write(row.cells[1], instance.number === null ? "rules of its file" : `version ${instance.number}${isCurrent ? "" : ", not the published one"}`);
    write(row.cells[2], [here, ...(instance.is_off ? ["limits OFF"] : []), ...(hasProblem(instance) ? [problemOf(instance).slice(nameOf(instance.name).length + 1)] : [])].filter((text) => text !== "").join("; "));
    row.classList.toggle("is-error", !isCurrent || hasProblem(instance));
  });
  showEmpty(at("instances"), "No instance has reported within the last 30 s.");
  rows(at("running").tBodies[0], known.policies.slice(0, 100), (row) => JSON.stringify([row.tier, row.policy, row.number, row.percent !== null]), ({ tier, policy }) => make("tr", {}, make("th", { scope: "row", textContent: tier === "" ? policy : `${tier} / ${policy}` }), make("td"), make("td"), make("td")), (row, { quota, window_seconds: window, percent, number, instances }) => {
    write(row.cells[1], `${quota.toLocaleString("en")}${window === null ? "" : ` in ${spoken(window)}`}${percent === null ? "" : `, tried on ${percent} %`}`);
    write(row.cells[2], `${number}`);
    write(row.cells[3], `${instances}`);
  });
  showEmpty(at("running"), "No instance runs rules that are published.");
}

/** Displays the last changes of rules, switch and blocks, with author and reason. */
export function showChanges(known) {
  rows(at("changes").tBodies[0], known.changes, ({ time, text, version }) => `${time} ${version} ${text}`, () => make("tr", {}, make("td"), make("td"), make("td")), (row, { time, author, reason, version, text }) => {
    write(row.cells[0], when(time));
    write(row.cells[1], author === "" ? "unknown" : author);
    write(row.cells[2], `${version === null ? "" : `version ${version}: `}${text}${reason === "" ? "" : ` (${reason})`}`);
  });
  showEmpty(at("changes"), "Nothing was changed.");
}

/** Displays the last versions, each with a rollback button. */
export function showVersions(known, rollBack) {
  const current = known.published?.number;
  rows(at("versions").tBodies[0], known.history, ({ number, time }) => `${number} ${time}`, ({ number }) => {
    const button = make("button", { type: "button", textContent: "Roll back to it …" });
    button.setAttribute("aria-label", `Roll back to version ${number}`);
    button.addEventListener("click", () => rollBack(number));
    return make("tr", {}, make("th", { scope: "row", textContent: `${number}` }), make("td"), make("td"), make("td", {}, button));
  }, (row, { number, author, time, percent }) => {
    write(row.cells[1], author === "" ? "unknown" : author);
    const notes = [when(time), ...(percent === null ? [] : [`trial on ${percent} %`])];
    write(row.cells[2], notes.join("; "));
    row.cells[3].firstElementChild.hidden = number === current;
  });
  showEmpty(at("versions"), "Nothing was published.");
}
