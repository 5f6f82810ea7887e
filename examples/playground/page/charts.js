// Charts of the last minute. All of them are drawn together, at most once in a frame.

export const MINUTE = 60_000;
const BIN = 500;
const OUTCOMES = ["passed", "uncounted", "failed", "rejected"];
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Ticks of the last minute, and their sums in bins of half a second. What is older is dropped. */
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

  /** The sum of a minute. */
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

/** Calls `draw` in the next frame; with less motion, once a second. However often it is called, once. */
export function onFrame(draw) {
  let isPlanned = false;
  let drawn = -Infinity;
  const frame = (now) => {
    if (still.matches && now - drawn < 1_000) {
      setTimeout(() => requestAnimationFrame(frame), 1_000 - (now - drawn));
      return;
    }
    isPlanned = false;
    drawn = now;
    draw();
  };
  return () => {
    if (isPlanned) return;
    isPlanned = true;
    requestAnimationFrame(frame);
  };
}

/** A canvas in the pixels of the screen, cleared; `null` while it has no size. */
function surface(canvas) {
  const scale = devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (width === 0 || height === 0) return null;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["passed", "rejected", "uncounted", "failed", "waiting", "first", "second", "third", "grid", "quiet"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const LEFT = 38;
const BELOW = 18;

function frame({ context, width, height }, colours, top, unit) {
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1;
  const bottom = height - BELOW;
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(bottom - part * (bottom - 8)) + 0.5;
    context.strokeStyle = colours.grid;
    context.beginPath();
    context.moveTo(LEFT, y);
    context.lineTo(width, y);
    context.stroke();
    context.fillStyle = colours.quiet;
    context.textAlign = "right";
    context.fillText(`${top * part}${unit}`, LEFT - 5, y + 4);
  }
  for (const seconds of [60, 45, 30, 15, 0]) {
    const x = LEFT + (width - LEFT) * (1 - seconds / 60);
    context.textAlign = seconds === 0 ? "right" : seconds === 60 ? "left" : "center";
    context.fillText(seconds === 0 ? "now" : `−${seconds} s`, x, height - 4);
  }
  return bottom;
}

/** What the caller has left of each policy, in percent of its capacity. A gap where no store knows it. */
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

/** Stacked bars of what became of the requests, and a line of what waits. */
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

/** The next number with one digit and zeros, and even. */
function round(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 4, 6, 8, 10].map((digit) => digit * power).find((candidate) => candidate >= number) ?? 10 * power;
}

/** One algorithm: what passes above the line, what is rejected below it. All rows have one scale. */
export function drawCompared(canvas, history, index, most, colours) {
  const area = surface(canvas);
  if (area === null) return;
  const { context, width, height } = area;
  const now = history.ticks.at(-1)?.at ?? 0;
  const line = Math.round(height * 0.6);
  const bar = (BIN / MINUTE) * width;
  context.fillStyle = colours.grid;
  context.fillRect(0, line, width, 1);
  // Few requests have to be seen beside many.
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

/** The largest count in a bin of any algorithm. */
export function mostCompared(history) {
  const counts = history.bins.flatMap((bin) => bin.compared.map(({ passed, rejected }) => Math.max(passed, rejected)));
  return Math.max(...counts, 1);
}
