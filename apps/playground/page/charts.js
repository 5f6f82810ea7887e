// Charts of the last minute. All charts are drawn together, at most once per frame.

import { LEFT, axes, colours as named, round, surface } from "/canvas.js";

export { onFrame } from "/canvas.js";
export const MINUTE = 60_000;
const BIN = 500;
const OUTCOMES = ["passed", "uncounted", "failed", "rejected"];

/** The ticks of the last minute, and their totals in bins of half a second. */
export class History {
  constructor() {
    this.ticks = [];
    this.bins = [];
  }

  push(tick) {
    this.ticks.push(tick);
    while (this.ticks.length > 0 && this.ticks[0].at < tick.at - MINUTE) this.ticks.shift();
    const start = tick.at - (tick.at % BIN);
    let bin = this.bins.at(-1);
    if (bin === undefined || bin.at !== start) {
      bin = { at: start, all: empty(), compared: tick.compared.map(empty) };
      this.bins.push(bin);
    }
    while (this.bins[0].at < tick.at - MINUTE - BIN) this.bins.shift();
    add(bin.all, tick.all);
    tick.compared.forEach((counts, index) => add(bin.compared[index], counts));
  }

  clear() {
    this.ticks = [];
    this.bins = [];
  }

  /** Returns the total of a minute. */
  sum(pick) {
    const total = empty();
    for (const bin of this.bins) add(total, pick(bin));
    return total;
  }
}

function empty() {
  return { passed: 0, uncounted: 0, failed: 0, rejected: 0, waiting: 0 };
}

function add(sum, counts) {
  for (const name of OUTCOMES) sum[name] += counts[name];
  sum.waiting = counts.waiting;
}

export function colours() {
  return named(["passed", "rejected", "uncounted", "failed", "waiting", "first", "second", "third"]);
}

function frame(area, colours, top, unit) {
  const rows = [0, 0.5, 1].map((part) => [part, `${top * part}${unit}`]);
  return axes(area, colours, rows, [60, 45, 30, 15, 0].map((seconds) => [1 - seconds / 60, seconds === 0 ? "now" : `−${seconds} s`]));
}

/** Draws the caller's remaining units of each policy, as a percentage of its capacity. There is a gap if they are unknown. */
export function drawLevels(canvas, history, caller, capacities, colours) {
  const area = surface(canvas);
  if (area === null) return;
  const { context, width } = area;
  const bottom = frame(area, colours, 100, "%");
  const now = history.ticks.at(-1)?.at ?? 0;
  const x = (at) => LEFT + ((at - now + MINUTE) / MINUTE) * (width - LEFT);
  const lines = [["first", []], ["second", [7, 3]], ["third", [2, 3]]];
  capacities.forEach((capacity, index) => {
    const [colour, dashes] = lines[index];
    context.strokeStyle = colours[colour];
    context.lineWidth = 2;
    context.setLineDash(dashes);
    context.beginPath();
    let previous = null;
    for (const tick of history.ticks) {
      const units = tick.left[caller]?.[index];
      if (units === undefined) {
        previous = null;
        continue;
      }
      const y = bottom - Math.min(units / capacity, 1) * (bottom - 8);
      if (previous === null) {
        context.moveTo(x(tick.at), y);
      } else {
        context.lineTo(x(tick.at), previous);
        context.lineTo(x(tick.at), y);
      }
      previous = y;
    }
    context.stroke();
  });
  context.setLineDash([]);
}

/** Draws stacked bars of outcomes, and a line of waiting requests. */
export function drawOutcomes(canvas, history, colours) {
  const area = surface(canvas);
  if (area === null) return;
  const { context, width } = area;
  const count = (bin) => OUTCOMES.reduce((sum, name) => sum + bin.all[name], 0);
  const most = Math.max(...history.bins.map((bin) => Math.max(count(bin), bin.all.waiting)), 0);
  const top = round(Math.max(most, 4));
  const bottom = frame(area, colours, top, "");
  const now = history.ticks.at(-1)?.at ?? 0;
  const x = (at) => LEFT + ((at - now + MINUTE) / MINUTE) * (width - LEFT);
  const bar = (BIN / MINUTE) * (width - LEFT);
  const scale = (bottom - 8) / top;
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, width - LEFT, bottom + 1);
  context.clip();
  for (const bin of history.bins) {
    let y = bottom;
    for (const name of OUTCOMES) {
      const height = bin.all[name] * scale;
      context.fillStyle = colours[name];
      context.fillRect(x(bin.at), y - height, Math.max(bar - 1, 1), height);
      y -= height;
    }
  }
  context.strokeStyle = colours.waiting;
  context.lineWidth = 2;
  context.beginPath();
  for (const bin of history.bins) {
    context.lineTo(x(bin.at), bottom - bin.all.waiting * scale);
    context.lineTo(x(bin.at) + bar, bottom - bin.all.waiting * scale);
  }
  if (history.bins.some((bin) => bin.all.waiting > 0)) context.stroke();
  context.restore();
}

/** Draws one algorithm: admitted requests above the line, and rejected requests below. All rows have the same scale. */
export function drawCompared(canvas, history, index, most, colours) {
  const area = surface(canvas);
  if (area === null) return;
  const { context, width, height } = area;
  const now = history.ticks.at(-1)?.at ?? 0;
  const line = Math.round(height * 0.6);
  const bar = (BIN / MINUTE) * width;
  context.fillStyle = colours.grid;
  context.fillRect(0, line, width, 1);
  // Few requests must remain visible next to many.
  const part = (count, room) => (count === 0 ? 0 : Math.max(Math.sqrt(count / most) * room, 2));
  for (const bin of history.bins) {
    const { passed, rejected } = bin.compared[index];
    const x = ((bin.at - now + MINUTE) / MINUTE) * width;
    context.fillStyle = colours.passed;
    const up = part(passed, line);
    context.fillRect(x, line - up, Math.max(bar - 1, 1), up);
    context.fillStyle = colours.rejected;
    context.fillRect(x, line + 1, Math.max(bar - 1, 1), part(rejected, height - line - 1));
  }
}

/** Returns the largest count in a bin of any algorithm. */
export function mostCompared(history) {
  const counts = history.bins.flatMap((bin) => bin.compared.map(({ passed, rejected }) => Math.max(passed, rejected)));
  return Math.max(...counts, 1);
}
