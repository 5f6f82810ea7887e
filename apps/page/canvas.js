// Drawing on a high-resolution canvas, with axes and one redraw per frame.

const still = matchMedia("(prefers-reduced-motion: reduce)");

/** The width of the labels to the left of a chart, in pixels. */
export const LEFT = 44;
const BELOW = 18;
const ABOVE = 8;

/** Schedules one call of `draw` for the next frame, or within a second if reduced motion is preferred. */
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

/** Returns a cleared canvas in device pixels, or `null` while it has no size. */
export function surface(canvas) {
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

/** Returns the colors with these names from the style sheet, and the colors of axes. */
export function colours(names) {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries([...names, "grid", "quiet"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Draws lines for rows and labels for columns, each at its share of the height or width. Returns the position of the lowest line. */
export function axes({ context, width, height }, colours, rows, columns) {
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1;
  const bottom = height - BELOW;
  for (const [part, text] of rows) {
    const y = Math.round(bottom - part * (bottom - ABOVE)) + 0.5;
    context.strokeStyle = colours.grid;
    context.beginPath();
    context.moveTo(LEFT, y);
    context.lineTo(width, y);
    context.stroke();
    context.fillStyle = colours.quiet;
    context.textAlign = "right";
    context.fillText(text, LEFT - 5, y + 4);
  }
  // Labels that would overlap are left out; the last one stays. At the ends, labels are not centered, and need half of their width more.
  const widest = 1.5 * Math.max(...columns.map(([, text]) => context.measureText(text).width)) + 8;
  const every = Math.ceil((widest * (columns.length - 1)) / (width - LEFT));
  for (const [index, [part, text]] of columns.entries()) {
    if ((columns.length - 1 - index) % every !== 0) continue;
    context.textAlign = part === 1 ? "right" : part === 0 ? "left" : "center";
    context.fillText(text, LEFT + (width - LEFT) * part, height - 4);
  }
  return bottom;
}

/** Rounds up to 1, 2, 4, 6, 8 or 10 times a power of ten. */
export function round(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 4, 6, 8, 10].map((digit) => digit * power).find((candidate) => candidate >= number) ?? 10 * power;
}
