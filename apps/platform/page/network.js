// Validates networks before a block is confirmed. The service makes the final check.

const BYTE = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const IPV4 = new RegExp(`^${BYTE}(?:\\.${BYTE}){3}$`);

/** The parser of URLs validates the notation. The characters are checked first, so that nothing ends the brackets. */
const isIpv6 = (text) => /^[\da-f:.]+$/i.test(text) && URL.canParse(`http:[${text}]`);

/** Returns `true` for an IPv4 or IPv6 address, with or without a prefix length. */
export function isNetwork(text) {
  const [, address, length] = /^([^/]*)(?:\/(\d+))?$/.exec(text) ?? [];
  if (address === undefined) return false;
  if (IPV4.test(address)) return Number(length ?? 32) <= 32;
  return isIpv6(address) && Number(length ?? 128) <= 128;
}
