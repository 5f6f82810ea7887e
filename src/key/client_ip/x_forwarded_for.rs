//! `X-Forwarded-For`: addresses separated by commas, without a standard and without quoting.

use std::net::IpAddr;

use super::address::{self, MAX_LINE};

pub(super) fn hops(line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    right_end(line)
        .rsplit(|byte| *byte == b',')
        .map(|hop| address::hop(hop.trim_ascii()))
}

/// The last `MAX_LINE` bytes. The truncated hop is empty, because the end of an address may be another valid address.
fn right_end(line: &[u8]) -> &[u8] {
    if line.len() <= MAX_LINE {
        return line;
    }
    let kept = &line[line.len() - MAX_LINE..];
    let comma = kept.iter().position(|byte| *byte == b',').unwrap_or(kept.len());
    &kept[comma..]
}
