// Explains the parts of a response.

const STATUS = {
  200: "The request has passed the layer, and the service has answered.",
  429: "Too Many Requests. At least one policy has too few remaining units. No policy was charged: a request is charged to all of them, or to none.",
  503: "Service Unavailable. The store made no decision, and this layer fails closed. Retry-After is 1 second.",
};

const FIELDS = {
  "content-type": "The type of the content. A rejection is application/problem+json (RFC 9457).",
  "content-length": "The bytes of the content.",
  date: "The time at which the server created the response.",
  "retry-after": "Seconds until the same request passes, if this caller sends no other request first. Rounded up to whole seconds, so that the client does not return too early.",
  ratelimit: "RateLimit: the remaining units of this caller, for each policy.",
  "ratelimit-policy": "RateLimit-Policy: the policies themselves, which are the same in each response.",
  "ratelimit-limit": "The quota of the policy closest to exhaustion. Draft-06 reports only one policy.",
  "ratelimit-remaining": "The remaining units of that policy. They are not guaranteed.",
  "x-ratelimit-limit": "The quota of the policy closest to exhaustion. No standard defines the X-RateLimit fields.",
  "x-ratelimit-remaining": "The remaining units of that policy.",
};

const GIVES_BACK = {
  "token-bucket": (policy) => `A token bucket gives units back one by one, here one every ${each(policy)}. It never resets.`,
  "strict-token-bucket": (policy) => `A strict token bucket gives units back one by one, at less than its quota per window, because its burst counts against the quota, too. It never resets.`,
  "fixed-window": (policy) => `A fixed window resets, at multiples of ${policy.window} s. If many units remain shortly before the reset, t is longer than the time to the reset: otherwise, a client that spends all units within t would send too fast.`,
  "sliding-window-counter": () => "A sliding window has no single reset time: units are restored while the window slides.",
  "sliding-window-log": () => "A log drops each request one window after its arrival. There is no single reset time.",
  "leaky-bucket-meter": (policy) => `A leaky bucket admits one unit every ${each(policy)}. It never resets.`,
  "leaky-bucket-queue": (policy) => `This queue releases one request every ${each(policy)}. It never resets.`,
};

const PROBLEM = {
  status: "The status again, for readers that have only the content.",
  title: "The title of this type of problem.",
  type: "The type of the problem, registered by IANA: quota-exceeded, or temporary-reduced-capacity when the store fails.",
  "violated-policies": "The policies that had too few remaining units for this request.",
};

function each(policy) {
  const seconds = policy.window / policy.quota;
  return seconds >= 1 ? `${+seconds.toFixed(2)} s` : `${+(seconds * 1_000).toFixed(2)} ms`;
}

/** Returns the parts of a response in order, as `{ text, note, kind }`. Their texts form the response. */
export function parts(response, setup) {
  const [head, body] = response.split("\r\n\r\n");
  const [status, ...fields] = head.split("\r\n");
  const code = Number(status.split(" ")[1]);
  const isRejected = code !== 200;
  const found = [{ text: status, note: STATUS[code] ?? "The status of the response.", kind: isRejected ? "status-bad" : "status-good" }];
  for (const field of fields) {
    const colon = field.indexOf(":");
    const name = field.slice(0, colon);
    found.push({ text: "\n" });
    found.push({ text: name, note: fieldNote(name, setup) }, { text: ": " });
    found.push(...valueParts(name, field.slice(colon + 2), { setup, isRejected }));
  }
  found.push({ text: "\n\n" }, ...bodyParts(body ?? ""));
  return found;
}

function fieldNote(name, setup) {
  if (name.endsWith("ratelimit-reset")) return resetNote(name, setup);
  return FIELDS[name] ?? "A field of the service.";
}

function valueParts(name, value, context) {
  if (name === "ratelimit" || name === "ratelimit-policy") return listParts(name, value, context);
  if (name.endsWith("ratelimit-reset")) return [{ text: value, note: resetNote(name, context.setup) }];
  return [{ text: value, note: FIELDS[name] ?? "A field of the service." }];
}

/** Parses `"burst";r=4;t=8, "minute";r=19;t=57`, also with Tokens or numbers as names. */
function listParts(field, value, context) {
  const found = [];
  for (const [index, item] of splitAt(",", value).entries()) {
    if (index > 0) found.push({ text: ", " });
    const [name, ...parameters] = splitAt(";", item.trim());
    const bare = name.startsWith('"') ? name.slice(1, -1).replace(/\\(.)/g, "$1") : name;
    const isNumber = /^\d+$/.test(name);
    const policy = isNumber
      ? context.setup.policies.find((policy) => String(policy.quota) === name)
      : context.setup.policies.find((policy) => policy.name === bare);
    const note = isNumber ? `The quota of a policy. Draft-06 has no names.` : `The policy ${name}.`;
    found.push({ text: name, note: policy ? `${note} ${describe(policy)}` : note });
    const values = Object.fromEntries(parameters.map((parameter) => parameter.split("=")));
    for (const parameter of parameters) {
      found.push({ text: ";" }, { text: parameter, note: parameterNote(field, parameter, values, policy, context) });
    }
  }
  return found;
}

/** Splits at a character outside quoted names. */
function splitAt(character, text) {
  const parts = { ",": /(?:"(?:[^"\\]|\\.)*"|[^",])+/g, ";": /(?:"(?:[^"\\]|\\.)*"|[^";])+/g };
  return text.match(parts[character]) ?? [];
}

function describe(policy) {
  return `${policy.quota} units per ${policy.window} s, as a ${policy.algorithm.replaceAll("-", " ")}.`;
}

function parameterNote(field, parameter, values, policy, { isRejected }) {
  const [name, value] = parameter.split("=");
  switch (name) {
    case "r":
      return `r: ${value} units remain. They are not guaranteed, because other requests of this caller are charged to them, too.`;
    case "t":
      return windowNote(value, values, policy, isRejected);
    case "q":
      return `q: the quota, ${value} units in each window.`;
    case "w":
      return `w: the window, ${value} seconds.`;
    default:
      return "A parameter that an application has added.";
  }
}

function windowNote(value, values, policy, isRejected) {
  const how = policy === undefined ? "" : ` ${GIVES_BACK[policy.algorithm]?.(policy) ?? ""}`;
  if (isRejected && Number(values.r) < 1) {
    return `t: the wait, ${value} s. No units of this policy remain, so t is the time until the next unit is restored, not until the whole quota is.${how}`;
  }
  return `t: the effective window, ${value} s, and not “reset”. The ${values.r} remaining units must last for this time: if the client spreads them over t, they do not run out early.${how}`;
}

function resetNote(name, setup) {
  const unit = setup.dialect === "x-unix-time" ? "A Unix time" : "Seconds";
  return `${unit}: the time that draft-11 calls t. Despite its name, only a fixed window resets at that time. Later drafts therefore replaced the field by t, the time for which the remaining units must last. In a response with Retry-After, both specify the same time.`;
}

function bodyParts(body) {
  if (!body.startsWith("{")) return [{ text: body.trimEnd(), note: "The content, from the service behind the layer." }];
  const found = [{ text: "{" }];
  for (const [index, [name, value]] of Object.entries(JSON.parse(body)).entries()) {
    if (index > 0) found.push({ text: "," });
    found.push({ text: `${JSON.stringify(name)}:${JSON.stringify(value)}`, note: PROBLEM[name] ?? "A member of the problem details." });
  }
  found.push({ text: "}" });
  // Unknown formats are displayed unchanged.
  return found.map(({ text }) => text).join("") === body ? found : [{ text: body, note: PROBLEM.type }];
}

/** Returns the seconds of `Retry-After`, or `null`. */
export function retryAfter(response) {
  const found = /\r\nretry-after: (\d+)\r\n/i.exec(response);
  return found === null ? null : Number(found[1]);
}
