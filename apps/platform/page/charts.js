// Both charts are drawn together, at most once per frame.

import { LEFT, axes, colours, round, surface } from "./canvas.js";
import { MINUTES, OUTCOMES, quantile, read } from "./history.js";

const SPAN = MINUTES * 60_000;
const COLOURS = {
  allowed: "passed", unlimited: "waiting", failed_open: "uncounted", failed_closed: "failed", blocked: "second", rejected: "rejected",
};
const WORDS = {
  allowed: "allowed",
  unlimited: "unlimited",
  failed_open: "passed uncounted",
  failed_closed: "failed with 503",
  blocked: "blocked",
  abnormal: "abnormal usage",
  overloaded: "overloaded",
  unattributed: "without a key",
};

/** Returns the name of an outcome, with the rejecting policy. */
export function describe(outcome, policy) {
  if (outcome === "rejected") return policy === "" ? "rejected" : `rejected by ${policy}`;
  if (outcome === "shadow") return `would be rejected by ${policy} (shadow)`;
  return WORDS[outcome] ?? outcome;
}

/** Returns the CSS class with the color of an outcome. */
export function swatch(outcome, shade = 0) {
  const name = OUTCOMES.includes(outcome) || outcome === "shadow" ? outcome : "other";
  return `swatch o-${name} shade-${shade}`;
}

function palette() {
  return colours(["passed", "rejected", "uncounted", "failed", "waiting", "second"]);
}

/** The shades of the first policies. */
const SHADES = [1, 0.66, 0.42];

/** Returns the totals by outcome, without shadow policies and undecided requests, which are counted in other outcomes. */
export function byOutcome(grown) {
  const sums = new Map();
  for (const [key, count] of grown) {
    const { outcome } = read(key);
    if (outcome === "shadow" || outcome === "undecided") continue;
    const name = OUTCOMES.includes(outcome) ? outcome : "other";
    sums.set(name, (sums.get(name) ?? 0) + count);
  }
  return sums;
}

/** Returns the total rejections by policy name, over all tiers. */
function byPolicy(grown) {
  const sums = new Map();
  for (const [key, count] of grown) {
    const { outcome, policy } = read(key);
    if (outcome === "rejected") sums.set(policy, (sums.get(policy) ?? 0) + count);
  }
  return sums;
}

/** Returns the series of the chart from the bottom: outcomes, and rejections by policy. If there are more policies than shades, the policies with the fewest rejections share the last shade. */
export function series(grown) {
  const outcomes = byOutcome(grown);
  const policies = byPolicy(grown);
  const most = [...policies.keys()].sort((one, other) => policies.get(other) - policies.get(one));
  const shaded = most.length > SHADES.length ? most.slice(0, SHADES.length - 1) : most;
  const list = [...OUTCOMES, "other"].filter((name) => name !== "rejected" && outcomes.has(name));
  const all = list.map((outcome) => ({ outcome, shade: 0, text: outcome === "other" ? "other" : describe(outcome, ""), of: (point) => byOutcome(point).get(outcome) ?? 0 }));
  shaded.forEach((policy, shade) => all.push({ outcome: "rejected", shade, text: describe("rejected", policy), of: (point) => byPolicy(point).get(policy) ?? 0 }));
  if (shaded.length < most.length) {
    const rest = (point) => [...byPolicy(point)].reduce((sum, [policy, count]) => (shaded.includes(policy) ? sum : sum + count), 0);
    all.push({ outcome: "rejected", shade: SHADES.length - 1, text: "rejected by other policies", of: rest });
  }
  return all;
}

function frame(area, colours, rows) {
  const columns = [5, 4, 3, 2, 1, 0].map((minutes) => [1 - minutes / MINUTES, minutes === 0 ? "now" : `−${minutes} min`]);
  const bottom = axes(area, colours, rows, columns);
  const { context, width } = area;
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, width - LEFT, bottom + 1);
  context.clip();
  return bottom;
}

/** Draws stacked bars: one for each response of the service, as wide as the time since the previous one. */
export function drawDecisions(canvas, history) {
  const area = surface(canvas);
  if (area === null) return;
  const shown = series(history.sums(SPAN).sums);
  const bars = history.points.map(({ at, since, grown }) => ({ at, since, rates: shown.map(({ of }) => (of(grown) * 1_000) / (at - since)) }));
  const top = round(Math.max(...bars.map(({ rates }) => rates.reduce((sum, rate) => sum + rate, 0)), 4));
  const drawn = palette();
  const bottom = frame(area, drawn, [0, 0.5, 1].map((part) => [part, short(top * part)]));
  const { context, width } = area;
  const x = (at) => LEFT + ((at - history.now + SPAN) / SPAN) * (width - LEFT);
  for (const { at, since, rates } of bars) {
    let y = bottom;
    const wide = x(at) - x(since);
    rates.forEach((rate, index) => {
      const { outcome, shade } = shown[index];
      const height = (rate / top) * (bottom - 8);
      context.fillStyle = drawn[COLOURS[outcome] ?? "quiet"];
      context.globalAlpha = SHADES[shade];
      // Wide bars are separated by one pixel.
      context.fillRect(x(since), y - height, wide > 3 ? wide - 1 : wide + 0.3, height);
      y -= height;
    });
  }
  context.restore();
}

/** Draws two step lines: the buckets of p50 and p99. There is a gap if there were no calls. */
export function drawLatency(canvas, history) {
  const area = surface(canvas);
  if (area === null) return;
  const drawn = palette();
  const borders = (history.last?.buckets ?? []).map(({ border }) => border);
  const part = (border) => (borders.indexOf(border) + 1) / Math.max(borders.length, 1);
  const rows = [[0, "0"], ...borders.flatMap((border, index) => (index % 3 === 1 ? [[part(border), time(border)]] : []))];
  const bottom = frame(area, drawn, rows);
  const { context, width } = area;
  const x = (at) => LEFT + ((at - history.now + SPAN) / SPAN) * (width - LEFT);
  for (const [share, thick] of [[0.5, 1], [0.99, 2.5]]) {
    context.strokeStyle = drawn.passed;
    context.lineWidth = thick;
    context.beginPath();
    let before = false;
    for (const { at, since, calls } of history.points) {
      const border = quantile(calls, share);
      if (border === null) {
        before = false;
        continue;
      }
      const y = bottom - part(border) * (bottom - 8);
      if (before) context.lineTo(x(since), y);
      else context.moveTo(x(since), y);
      context.lineTo(x(at), y);
      before = true;
    }
    context.stroke();
  }
  context.restore();
}

/** Formats a bucket bound. */
export function time(seconds) {
  if (seconds === Infinity) return "> 60 s";
  return seconds < 1 ? `${seconds * 1_000} ms` : `${seconds} s`;
}

/** Formats a number with few digits. */
export function short(number) {
  if (number >= 10_000) return `${Math.round(number / 1_000)}k`;
  return number < 10 ? `${Math.round(number * 10) / 10}` : `${Math.round(number)}`;
}
