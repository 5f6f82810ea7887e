// The rules of the fleet: what is published, by whom, and which instances run it.

import { make, rows, showEmpty, spoken, when, write } from "./words.js";

const at = (id) => document.getElementById(id);

/** The entries of the published access list, as blocks of the page. */
export function blocksOf(published) {
  return (published?.access ?? []).filter(({ access }) => access === "block");
}

/** The words for a version: its number, its author and its time. */
export function described({ number, author, time }) {
  return `Version ${number}, by ${author === "" ? "an unknown author" : author}, ${when(time)}`;
}

/** The alerts about the fleet: a kind, a title and a text each. `known` is the last answer about it, or null. */
export function alertsOf(state, known, silence) {
  const { fleet } = state;
  const alerts = [];
  const published = known?.published ?? null;
  if (fleet.failure !== null || silence !== null) {
    alerts.push(["", "The rules of the fleet cannot be read.", `This instance goes on with ${runs(fleet)}. This page does not know what is published now, which instances run it, or who is blocked on all instances${known === null ? "" : `: it shows the answer of ${known.heard}`}. You can change nothing for all instances until Redis answers; "Only this instance" and blocks "only on this instance" work. ${fleet.failure ?? silence}`]);
  }
  if (fleet.is_overridden) {
    const own = state.is_on ? "on" : "off";
    alerts.push(["", `This instance overrides the fleet: its own switch is ${own}.`, `What you switch for all instances does not reach it, until you choose "As the fleet" under "Only this instance".`]);
  }
  if (fleet.rejected !== null) {
    alerts.push(["", `This instance rejects version ${fleet.rejected.number}.`, `It goes on with ${runs(fleet)}. The reason: ${fleet.rejected.message}. The switch and the blocks of version ${fleet.rejected.number} hold all the same. Roll back, or publish rules that this instance can carry out.`]);
  }
  if (known?.problem) alerts.push(["", "What is published cannot be read.", known.problem]);
  if (known !== null && silence === null && published === null && !known.problem) {
    alerts.push(["note", "Nothing is published yet.", 'Each instance limits by the rules of its own file. Publish rules for all instances first ("Change the rules"): before that, there is no switch and no block for all.']);
  }
  const others = (known?.instances ?? []).filter(({ name, rejects, is_overridden: own }) => (rejects !== null || own) && !isHere(state, name));
  if (silence === null && others.length > 0) alerts.push(["", `${others.length} of the other instances ${others.length === 1 ? "does" : "do"} not follow.`, `See "Instances": ${others.map(problemOf).join("; ")}.`]);
  return alerts;
}

const runs = ({ number }) => (number === null ? "the rules of its own file" : `version ${number}`);

/** True for the instance that answers this page. */
export const isHere = (state, name) => name.startsWith(`${state.instance}#`);

const nameOf = (name) => name.split("#")[0];

function problemOf({ name, rejects, is_overridden: own }) {
  const problems = [];
  if (rejects !== null) problems.push(`rejects version ${rejects}; its own page says why`);
  if (own) problems.push("its own switch overrides the fleet");
  return `${nameOf(name)} ${problems.join(", and ")}`;
}

/** The instances and the policies that they run. */
export function showFleet(state, known) {
  const published = known.published;
  const list = [...known.instances].sort((one, other) => (one.name < other.name ? -1 : 1));
  rows(at("instances").tBodies[0], list.slice(0, 100), ({ name }) => name, ({ name }) => make("tr", {}, make("th", { scope: "row", textContent: nameOf(name), title: name }), make("td"), make("td")), (row, instance) => {
    const here = isHere(state, instance.name) ? "this instance" : "";
    // Before the first publication, the rules of the file are those that an instance should have.
    const isCurrent = known.problem === null && instance.version === (published?.version ?? null);
    write(row.cells[1], instance.number === null ? "rules of its file" : `version ${instance.number}${isCurrent ? "" : ", not the published one"}`);
    write(row.cells[2], [here, ...(instance.rejects !== null || instance.is_overridden ? [problemOf(instance).slice(nameOf(instance.name).length + 1)] : [])].filter((text) => text !== "").join("; "));
    row.classList.toggle("is-error", !isCurrent || instance.rejects !== null || instance.is_overridden);
  });
  showEmpty(at("instances"), "No instance has reported within the last 30 s.");
  rows(at("running").tBodies[0], known.policies.slice(0, 100), (row) => JSON.stringify([row.tier, row.policy, row.number, row.percent !== null]), ({ tier, policy }) => make("tr", {}, make("th", { scope: "row", textContent: tier === "" ? policy : `${tier} / ${policy}` }), make("td"), make("td"), make("td")), (row, { quota, window_seconds: window, percent, number, instances }) => {
    write(row.cells[1], `${quota.toLocaleString("en")}${window === null ? "" : ` in ${spoken(window)}`}${percent === null ? "" : `, tried on ${percent} %`}`);
    write(row.cells[2], `${number}`);
    write(row.cells[3], `${instances}`);
  });
  showEmpty(at("running"), "No instance runs rules that are published.");
}

/** The last versions, each with a button that brings its rules back. */
export function showVersions(known, rollBack) {
  const current = known.published?.number;
  rows(at("versions").tBodies[0], known.history, ({ number, time }) => `${number} ${time}`, ({ number }) => {
    const button = make("button", { type: "button", textContent: "Roll back to it …" });
    button.setAttribute("aria-label", `Roll back to version ${number}`);
    button.addEventListener("click", () => rollBack(number));
    return make("tr", {}, make("th", { scope: "row", textContent: `${number}` }), make("td"), make("td"), make("td", {}, button));
  }, (row, { number, author, time, is_off: isOff, percent }) => {
    write(row.cells[1], author === "" ? "unknown" : author);
    const notes = [when(time), ...(percent === null ? [] : [`trial on ${percent} %`]), ...(isOff ? ["limits OFF"] : [])];
    write(row.cells[2], notes.join("; "));
    row.cells[3].firstElementChild.hidden = number === current;
  });
  showEmpty(at("versions"), "Nothing was published.");
}
