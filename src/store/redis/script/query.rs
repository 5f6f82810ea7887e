//! A command runs in a script, which returns the first half of a call number, the reply, and the second half: a lost,
//! doubled or swapped reply is then noticed.

use ::redis::{Arg, Cmd, Value, cmd, make_extension_error};

use super::reply::HALF;
use crate::{
    store::redis::{keyspace::Key, net::Unanswered},
    sync::{mutex::Mutex, random},
};

const COMMAND: &str = "return redis.call(unpack(ARGV))";

pub(super) struct Query {
    pub(super) command: Cmd,
    is_plain: bool,
    number: [u8; 2 * HALF],
    reply: Mutex<Value>,
}

impl Query {
    pub(super) fn new(keys: &[Key], command: &Cmd) -> Self {
        let number = random::long_number().to_le_bytes();
        let words: Vec<_> = command.args_iter().collect();
        let word = |position: usize| match words.get(position) {
            Some(Arg::Simple(word)) => *word,
            // A cursor begins at 0.
            _ => b"0",
        };
        let is_plain = !word(0).eq_ignore_ascii_case(b"EVAL");
        let mut numbered = cmd("EVAL");
        let rest = if is_plain {
            numbered.arg(with_number(COMMAND.as_bytes())).arg(keys.len());
            for key in keys {
                numbered.arg(&**key);
            }
            0
        } else {
            numbered.arg(with_number(word(1)));
            2
        };
        for position in rest..words.len() {
            numbered.arg(word(position));
        }
        numbered.arg(&number);
        Self {
            command: numbered,
            is_plain,
            number,
            reply: Mutex::new(Value::Nil),
        }
    }

    pub(super) fn read(&self, reply: Value) -> Option<()> {
        let Value::Array(parts) = reply else {
            return None;
        };
        let [first, value, last] = <[Value; 3]>::try_from(parts).ok()?;
        let (own_first, own_last) = self.number.split_at(HALF);
        let is_its_own = is_half(&first, own_first) && is_half(&last, own_last);
        is_its_own.then(|| *self.reply.lock() = value)
    }

    /// During a migration, keys may be on two nodes, where a plain command would do nothing. The server knows only one
    /// of them when it begins the script, so its error is not `TRYAGAIN`.
    pub(super) fn error(&self, unanswered: Unanswered) -> Unanswered {
        let words = "attempted to access a non local key";
        match unanswered {
            Unanswered::Failed(error) if self.is_plain && error.to_string().contains(words) => {
                Unanswered::Failed(make_extension_error("TRYAGAIN".to_owned(), Some(words.to_owned())))
            }
            other => other,
        }
    }

    pub(super) fn into_value(self) -> Value {
        std::mem::replace(&mut *self.reply.lock(), Value::Nil)
    }
}

fn is_half(value: &Value, half: &[u8]) -> bool {
    matches!(value, Value::BulkString(bytes) if bytes == half)
}

fn with_number(script: &[u8]) -> Vec<u8> {
    // Redis 7 reads flags of a script from its first line.
    let flags = match script.starts_with(b"#!") {
        true => script
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(script.len(), |end| end + 1),
        false => 0,
    };
    let (flags, body) = script.split_at(flags);
    let begins = b"local number = table.remove(ARGV) local reply = (function() ";
    let ends = b"\nend)() if reply == nil then reply = false end \
        return {string.sub(number, 1, 4), reply, string.sub(number, 5)}";
    [flags, begins, body, ends].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(bytes: &[u8]) -> Value {
        Value::BulkString(bytes.to_vec())
    }

    fn words(command: &Cmd) -> Vec<Vec<u8>> {
        let words = command.args_iter().map(|word| match word {
            Arg::Simple(word) => word.to_vec(),
            _ => Vec::new(),
        });
        words.collect()
    }

    #[test]
    fn a_reply_is_read_only_with_both_halves_of_its_number() {
        let query = Query::new(&[], cmd("GET").arg("key"));
        let (first, last) = query.number.split_at(HALF);
        let reply = |first: &[u8], last: &[u8]| Value::Array(vec![bulk(first), Value::Int(7), bulk(last)]);
        for foreign in [
            Value::Nil,
            Value::Int(7),
            bulk(b"value"),
            Value::Array(vec![]),
            Value::Array(vec![bulk(first), bulk(last)]),
            reply(first, b"none"),
            reply(b"none", last),
        ] {
            assert_eq!(query.read(foreign), None);
            assert_eq!(*query.reply.lock(), Value::Nil);
        }
        assert_eq!(query.read(reply(first, last)), Some(()));
        assert_eq!(*query.reply.lock(), Value::Int(7));
    }

    #[test]
    fn a_script_keeps_its_flags_its_keys_and_its_arguments() {
        let query = Query::new(
            &[],
            cmd("eval")
                .arg("#!lua flags=no-writes\nreturn 1")
                .arg(1)
                .arg("key")
                .arg("word"),
        );
        let words = words(&query.command);
        assert!(
            words[1].starts_with(b"#!lua flags=no-writes\nlocal number"),
            "{words:?}"
        );
        assert_eq!(words[2..5], [b"1".to_vec(), b"key".to_vec(), b"word".to_vec()]);
        assert_eq!(words[5..], [query.number.to_vec()]);
    }
}
