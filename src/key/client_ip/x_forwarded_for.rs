//! `X-Forwarded-For`: addresses between commas. It has no standard, and no quoting.

use std::net::IpAddr;

use super::address::{self, MAX_LINE};

/// The hops of a field line from right to left, `None` for those that cannot be read.
pub(super) fn hops(line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    right_end(line)
        .rsplit(|byte| *byte == b',')
        .map(|hop| address::hop(hop.trim_ascii()))
}

/// The line, or the last part of one that is too long.
///
/// The part begins with a comma, that is with an empty hop: of the hop that was cut in two nothing may be read, since
/// the end of one address may be another.
fn right_end(line: &[u8]) -> &[u8] {
    if line.len() <= MAX_LINE {
        return line;
    }
    let kept = &line[line.len() - MAX_LINE..];
    let comma = kept.iter().position(|byte| *byte == b',').unwrap_or(kept.len());
    &kept[comma..]
}
