// Text formatting, and elements with text.

export function spoken(seconds) {
  for (const [unit, length] of [["day", 86_400], ["h", 3_600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit}${unit === "day" ? "s" : ""}`;
  }
  return `${Math.round(seconds)} s`;
}

/** Formats a Unix time in the local time zone, without the date if it is today. */
export function when(seconds) {
  if (seconds === 0) return "at an unknown time";
  const time = new Date(seconds * 1_000);
  const isToday = time.toDateString() === new Date().toDateString();
  return `at ${isToday ? time.toLocaleTimeString() : time.toLocaleString()}`;
}

/** Changes the text of an element only if it differs, so that screen readers and selections are not disturbed. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Returns the URL of a section of the documentation of alerts. */
export const runbook = (section) => `https://docs.rs/tower-quota/latest/tower_quota/docs/alerts/#${section}`;

export function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/** Updates the rows of a table. Elements are reused for equal keys. */
export function rows(body, list, keyOf, create, update) {
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

export function showEmpty(table, text) {
  const body = table.tBodies[0];
  if (body.rows.length > 0) return;
  body.append(make("tr", { className: "empty" }, make("td", { className: "hint", colSpan: table.tHead.rows[0].cells.length, textContent: text })));
  body.rows[0].dataset.key = "empty";
}
