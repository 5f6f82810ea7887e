use std::net::IpAddr;

use super::address;

/// The client may have sent one of two lines.
pub(super) fn hop<'a>(
    mut lines: impl Iterator<Item = &'a [u8]>,
    has_port: bool,
) -> impl Iterator<Item = Option<IpAddr>> {
    let (first, is_only) = (lines.next(), lines.next().is_none());
    let read = move |line: &[u8]| {
        let line = Some(line.trim_ascii()).filter(|_| is_only)?;
        if has_port {
            address::with_last_port(line)
        } else {
            address::hop(line)
        }
    };
    first.map(read).into_iter()
}
