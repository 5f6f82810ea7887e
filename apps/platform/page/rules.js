// Describes the differences between two sets of rules.

/** Returns the policies of rules by tier and name, with the specified values. */
function policies(rules) {
  const found = new Map();
  const add = (tier, list) => list.forEach((policy) => found.set(tier === null ? policy.name : `${tier} / ${policy.name}`, policy));
  if (Array.isArray(rules.policies)) add(null, rules.policies);
  for (const { name, policies: list, ...more } of rules.tiers ?? []) {
    found.set(`tier ${name}`, more);
    if (Array.isArray(list)) add(name, list);
  }
  return found;
}

const show = (value) => (value === undefined ? "not set" : JSON.stringify(value));

/** Returns sentences that describe the changes. */
export function differences(before, after) {
  const [old, young] = [policies(JSON.parse(before)), policies(JSON.parse(after))];
  const lines = [];
  for (const [name, policy] of young) {
    const was = old.get(name);
    if (was === undefined) {
      const { name: _, ...values } = policy;
      lines.push(`${name} is new: ${JSON.stringify(values)}`);
      continue;
    }
    for (const key of new Set([...Object.keys(was), ...Object.keys(policy)])) {
      if (show(was[key]) !== show(policy[key])) lines.push(`${name}: ${key} ${show(was[key])} → ${show(policy[key])}`);
    }
  }
  for (const name of old.keys()) if (!young.has(name)) lines.push(`${name} is removed`);
  return lines.length === 0 ? ["No policy changes."] : lines;
}
