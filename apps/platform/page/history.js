// The growth of the service's counters in the last five minutes. Older samples are dropped.

export const MINUTES = 5;
const KEPT = MINUTES * 60_000;
/** Responses within this interval form one point, because the rate of a few milliseconds is not meaningful. */
const SHORTEST = 800;

/** The outcomes with separate colors. */
export const OUTCOMES = ["allowed", "unlimited", "failed_open", "failed_closed", "blocked", "rejected"];

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.points = [];
    this.last = null;
  }

  /** Adds a sample, with the time of the service in milliseconds. */
  push({ milliseconds: at, decisions, shadows, store_seconds: store, undecided }) {
    if (this.last !== null && at - this.last.at < SHORTEST) return;
    const counters = new Map();
    for (const [tier, policy, outcome, count] of decisions) counters.set(JSON.stringify([tier, outcome, policy]), count);
    for (const [tier, policy, count] of shadows) counters.set(JSON.stringify([tier, "shadow", policy]), count);
    for (const [reason, count] of Object.entries(undecided)) counters.set(JSON.stringify(["", "undecided", reason]), count);
    const buckets = store.map(([border, count]) => ({ border: border ?? Infinity, count }));
    const last = this.last;
    this.last = { at, counters, buckets };
    // Only the total is known for the time before.
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

  /** Returns the points of the last `time` milliseconds. */
  within(time) {
    return this.points.filter(({ at }) => at > this.now - time);
  }

  /** Returns the totals by tier, outcome and policy over a period, and the seconds with samples. */
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

  /** Returns the store calls in a period by bucket. */
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

/** Returns the bound of the bucket that contains the quantile, or `null` without calls. */
export function quantile(buckets, part) {
  const all = buckets.at(-1)?.count ?? 0;
  if (all <= 0) return null;
  return buckets.find(({ count }) => count >= all * part).border;
}

/** Returns the outcome of a series of the chart, and the rejecting policy. */
export function read(key) {
  const [tier, outcome, policy] = JSON.parse(key);
  return { tier, outcome, policy };
}
