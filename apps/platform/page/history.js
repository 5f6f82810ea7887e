// The growth of the service's counters in the last five minutes. Older numbers are dropped.

export const MINUTES = 5;
const KEPT = MINUTES * 60_000;
/** Answers that come sooner after each other are one point: a rate of some milliseconds says little. */
const SHORTEST = 800;

/** The outcomes with a colour of their own. */
export const OUTCOMES = ["allowed", "unlimited", "failed_open", "failed_closed", "blocked", "rejected"];

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.points = [];
    this.last = null;
  }

  /** Takes the numbers of a moment, in milliseconds of the service. */
  push({ milliseconds: at, decisions, shadows, store_seconds: store, undecided }) {
    if (this.last !== null && at - this.last.at < SHORTEST) return;
    const counters = new Map();
    for (const [tier, policy, outcome, count] of decisions) counters.set(JSON.stringify([tier, outcome, policy]), count);
    for (const [tier, policy, count] of shadows) counters.set(JSON.stringify([tier, "shadow", policy]), count);
    for (const [reason, count] of Object.entries(undecided)) counters.set(JSON.stringify(["", "undecided", reason]), count);
    const buckets = store.map(([border, count]) => ({ border: border ?? Infinity, count }));
    const last = this.last;
    this.last = { at, counters, buckets };
    // Of the time before, only the sum is known.
    if (last === null) return;
    const grown = new Map();
    for (const [key, count] of counters) {
      const more = count - (last.counters.get(key) ?? 0);
      if (more > 0) grown.set(key, more);
    }
    const calls = buckets.map(({ border, count }, index) => ({ border, count: count - (last.buckets[index]?.count ?? 0) }));
    this.points.push({ at, since: last.at, grown, calls });
    while (this.points[0].at < at - KEPT) this.points.shift();
  }

  get now() {
    return this.last?.at ?? 0;
  }

  /** The points of the last so many milliseconds. */
  within(time) {
    return this.points.filter(({ at }) => at > this.now - time);
  }

  /** The sums by tier, outcome and policy over a time, and the seconds that are known of it. */
  sums(time) {
    const points = this.within(time);
    const sums = new Map();
    let milliseconds = 0;
    for (const { at, since, grown } of points) {
      milliseconds += at - since;
      for (const [key, count] of grown) sums.set(key, (sums.get(key) ?? 0) + count);
    }
    return { sums, seconds: milliseconds / 1_000 };
  }

  /** The calls of the store over a time, by bucket. */
  calls(time) {
    const sums = [];
    for (const { calls } of this.within(time)) {
      calls.forEach(({ border, count }, index) => {
        sums[index] ??= { border, count: 0 };
        sums[index].count += count;
      });
    }
    return sums;
  }
}

/** The border of the bucket in which a part of the calls ends; `null` if there were none. */
export function quantile(buckets, part) {
  const all = buckets.at(-1)?.count ?? 0;
  if (all <= 0) return null;
  return buckets.find(({ count }) => count >= all * part).border;
}

/** The outcome that a series of the chart has, and the policy where it rejects. */
export function read(key) {
  const [tier, outcome, policy] = JSON.parse(key);
  return { tier, outcome, policy };
}
