//! Fields with one address and nothing else: `X-Real-IP`, `CF-Connecting-IP` and their like.

use std::net::IpAddr;

use super::address;

/// The only hop, if there is a line; `None` in place of it if it cannot be read, or if there are two lines. A second
/// address would be the client's own, put there in front of a proxy that adds the field and does not overwrite it.
pub(super) fn hop<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = Option<IpAddr>> {
    let (first, is_only) = (lines.next(), lines.next().is_none());
    let read = |line: &[u8]| is_only.then(|| address::hop(line.trim_ascii())).flatten();
    first.map(read).into_iter()
}
