use ::redis::Value;

pub(super) const SLOTS: usize = 16_384;

pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let length = rest.iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &rest[..length])
    });
    crc16(tag.unwrap_or(key)) % SLOTS as u16
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    })
}

pub(super) type Address = (String, u16);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) address: Address,
}

/// Replaces an unspecified address with `host`, the address that was queried.
pub(super) fn read(reply: &Value, host: &str) -> Vec<Range> {
    let Value::Array(ranges) = reply else {
        return Vec::new();
    };
    ranges.iter().filter_map(|range| read_range(range, host)).collect()
}

fn read_range(range: &Value, asked: &str) -> Option<Range> {
    let Value::Array(range) = range else {
        return None;
    };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = range.as_slice() else {
        return None;
    };
    let host = match primary.first()? {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        Value::Nil => "",
        _ => return None,
    };
    let Value::Int(port) = primary.get(1)? else {
        return None;
    };
    let number = |slot: i64| u16::try_from(slot).ok().filter(|slot| usize::from(*slot) < SLOTS);
    let host = match host {
        // The queried node does not know its own name.
        "?" => return None,
        "" | "0.0.0.0" | "::" => asked,
        host => host,
    };
    Some(Range {
        first: number(*first)?,
        last: number(*last)?,
        address: (host.to_owned(), u16::try_from(*port).ok()?),
    })
}

pub(super) fn address(redirect: &str, asked: &str) -> Option<Address> {
    let (host, port) = redirect.rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the Redis Cluster specification, after the check value of the algorithm.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % 16_384);
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
        assert_eq!(slot(b"{"), crc16(b"{") % 16_384);
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_node_without_a_name_has_that_of_whom_was_asked_and_an_unknown_one_is_left_out() {
        let reply = Value::Array(vec![
            range(0, 5, text(""), 1),
            range(6, 7, Value::Nil, 2),
            range(8, 9, text("?"), 3),
            range(10, 11, text("::1"), 4),
            range(12, 16_384, text("beyond"), 5),
            range(-1, 3, text("before"), 5),
            range(1, 3, text("port"), 70_000),
            Value::Nil,
        ]);
        let ranges = read(&reply, "asked");
        let found: Vec<_> = ranges
            .iter()
            .map(|range| (range.first, range.last, &*range.address.0, range.address.1))
            .collect();
        assert_eq!(found, [(0, 5, "asked", 1), (6, 7, "asked", 2), (10, 11, "::1", 4)]);
        assert_eq!(read(&Value::Okay, "asked"), []);
    }

    #[test]
    fn redirections_are_read_in_all_their_forms() {
        let found = |text| address(text, "asked");
        assert_eq!(found("127.0.0.1:6381"), Some(("127.0.0.1".to_owned(), 6_381)));
        assert_eq!(found(":6381"), Some(("asked".to_owned(), 6_381)));
        assert_eq!(found("::1:6381"), Some(("::1".to_owned(), 6_381)));
        assert_eq!(found("nowhere"), None);
        assert_eq!(found("host:port"), None);
    }
}
