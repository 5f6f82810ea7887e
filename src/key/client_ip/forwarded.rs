//! `Forwarded`, [RFC 7239](https://www.rfc-editor.org/rfc/rfc7239):
//!
//! ```text
//! Forwarded         = 1#forwarded-element
//! forwarded-element = [ forwarded-pair ] *( ";" [ forwarded-pair ] )
//! forwarded-pair    = token "=" ( token / quoted-string )
//! ```
//!
//! Commas in quoted strings are no separators, so lines are split from the left. Anything outside the grammar makes its
//! element unreadable, except unquoted values such as `for=192.0.2.1:80`, which many proxies write.

use std::net::IpAddr;

use super::address::{self, MAX_HOPS, MAX_LINE};

/// From right to left. `None` for unreadable hops or lines, and once for all hops beyond the maximum.
pub(super) fn hops(line: &[u8]) -> impl Iterator<Item = Option<IpAddr>> {
    const UNREADABLE: ([&[u8]; MAX_HOPS], usize) = ([b""; MAX_HOPS], 1);
    let (last, count) = last_elements(line).unwrap_or(UNREADABLE);
    let nearest = (0..count).rev().take(MAX_HOPS);
    nearest
        .map(move |index| node(last[index % MAX_HOPS]))
        .chain((count > MAX_HOPS).then_some(None))
}

/// The number of elements, and the last `MAX_HOPS` of them: element `i` at `i % MAX_HOPS`. `None` if the line is
/// unreadable.
fn last_elements(line: &[u8]) -> Option<([&[u8]; MAX_HOPS], usize)> {
    if line.len() > MAX_LINE {
        return None;
    }
    let mut last: [&[u8]; MAX_HOPS] = [b""; MAX_HOPS];
    let mut count = 0;
    let mut rest = Some(line);
    while let Some(text) = rest {
        (last[count % MAX_HOPS], rest) = split_first(text, b',')?;
        count += 1;
    }
    Some((last, count))
}

fn node(element: &[u8]) -> Option<IpAddr> {
    let mut node = None;
    let mut rest = Some(element);
    while let Some(text) = rest {
        let pair;
        (pair, rest) = split_first(text, b';')?;
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            continue;
        }
        let (name, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        let value = unquoted(&value[1..])?;
        if !is_token(name) || (name.eq_ignore_ascii_case(b"for") && node.replace(value).is_some()) {
            return None;
        }
    }
    unescaped_hop(node?)
}

fn split_first(text: &[u8], separator: u8) -> Option<(&[u8], Option<&[u8]>)> {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        if *byte == separator {
            return Some((&text[..at], Some(&text[at + 1..])));
        }
        at += 1;
        if *byte == b'"' {
            at += closing_quote(&text[at..])? + 1;
        }
    }
    Some((text, None))
}

fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })
}

fn unquoted(value: &[u8]) -> Option<&[u8]> {
    if let [b'"', rest @ ..] = value {
        let end = closing_quote(rest)?;
        (end + 1 == rest.len()).then(|| &rest[..end])
    } else {
        let is_bare = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\".contains(byte);
        value.iter().all(is_bare).then_some(value)
    }
}

fn unescaped_hop(value: &[u8]) -> Option<IpAddr> {
    let mut hop = [0; MAX_NODE];
    let mut length = 0;
    let mut escaped = false;
    for byte in value {
        escaped = *byte == b'\\' && !escaped;
        if !escaped {
            *hop.get_mut(length)? = *byte;
            length += 1;
        }
    }
    address::hop(&hop[..length])
}

fn is_token(name: &[u8]) -> bool {
    let is_sign = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.iter().all(is_sign)
}

/// Enough for the longest IPv6 address in brackets (47 bytes) and a port.
const MAX_NODE: usize = 64;
