//! The little of the Redis protocol that a test needs, on purpose not by way of the client that is under test.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

/// Sends one command over a new connection and returns the raw reply.
pub(crate) fn call(port: u16, command: &[&[u8]], timeout: Duration) -> io::Result<Vec<u8>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(&encode(command))?;
    let mut reply = Vec::new();
    read_reply(&mut BufReader::new(stream), &mut reply)?;
    Ok(reply)
}

/// A command as it is sent.
pub fn encode(command: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Appends the bytes of exactly one reply.
pub fn read_reply(stream: &mut impl BufRead, reply: &mut Vec<u8>) -> io::Result<()> {
    let start = reply.len();
    stream.read_until(b'\n', reply)?;
    let line = reply[start..].strip_suffix(b"\r\n").ok_or(ErrorKind::UnexpectedEof)?;
    match line.first() {
        Some(b'$') => {
            if let Ok(length) = u64::try_from(length(line)?) {
                let wanted = length + 2;
                if stream.take(wanted).read_to_end(reply)? as u64 != wanted {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
        }
        Some(b'*') => {
            for _ in 0..length(line)? {
                read_reply(stream, reply)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The number after the type byte; negative means nil.
fn length(line: &[u8]) -> io::Result<i64> {
    std::str::from_utf8(&line[1..])
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or(ErrorKind::InvalidData.into())
}

/// Formats a reply: errors begin with `-`, nil is `nil`, and each element of an array is on a separate line.
pub(crate) fn text(reply: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = reply;
    write_text(&mut rest, &mut text);
    text
}

fn write_text(rest: &mut &[u8], text: &mut String) {
    let end = rest.windows(2).position(|pair| pair == b"\r\n").unwrap();
    let line = &rest[..end];
    *rest = &rest[end + 2..];
    match line[0] {
        b'$' | b'*' if length(line).unwrap() < 0 => text.push_str("nil"),
        b'$' => {
            let length = usize::try_from(length(line).unwrap()).unwrap();
            text.push_str(&String::from_utf8_lossy(&rest[..length]));
            *rest = &rest[length + 2..];
        }
        b'*' => {
            for index in 0..length(line).unwrap() {
                if index > 0 {
                    text.push('\n');
                }
                write_text(rest, text);
            }
        }
        b'+' | b':' => text.push_str(&String::from_utf8_lossy(&line[1..])),
        _ => text.push_str(&String::from_utf8_lossy(line)),
    }
}
