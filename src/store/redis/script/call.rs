use std::sync::Arc;

use ::redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use smallvec::SmallVec;

use super::{
    super::{
        keyspace::{Key, Keys},
        net::{SharedConnection, Unanswered},
        scripts::{Script, Text, Texts},
    },
    calendars::{ServerTime, unsteady_clock},
    query::Query,
    reply::{ExpectedReply, Reply},
};
use crate::{clock::Timestamp, sync::mutex::Mutex};

pub(super) const BEFORE_BORDERS: usize = 6;

pub(crate) struct Call {
    pub(super) keys: Keys,
    pub(super) body: Body,
    pub(crate) sent_on: Option<Arc<SentOn>>,
    /// Later calls on the same connection depend on this one.
    pub(super) is_ordered: bool,
    pub(super) server_time: Option<ServerTime>,
}

pub(crate) type SentOn = Mutex<Option<SharedConnection>>;

pub(super) type Arguments = SmallVec<[Vec<u8>; 1]>;

pub(super) enum Body {
    Script(Texts, Script, Arguments, ExpectedReply),
    Query(Query),
}

impl Call {
    pub(super) fn new(keys: Keys, body: Body) -> Self {
        Self {
            keys,
            body,
            sent_on: None,
            is_ordered: false,
            server_time: None,
        }
    }

    pub(crate) fn query(keys: Keys, is_routed: bool, command: &Cmd) -> Self {
        let query = Query::new(if is_routed { &keys } else { &[] }, command);
        Self::new(keys, Body::Query(query))
    }

    pub(crate) fn into_value(self) -> Value {
        match self.body {
            Body::Query(query) => query.into_value(),
            Body::Script(..) => Value::Nil,
        }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.keys[0]
    }

    pub(crate) async fn send(&self, connection: &mut SharedConnection) -> Result<Reply, Unanswered> {
        if let Some(sent_on) = &self.sent_on {
            *sent_on.lock() = Some(connection.clone());
        }
        let reply = match &self.body {
            Body::Query(query) => {
                let reply = connection.send(&query.command).await;
                query
                    .read(reply.map_err(|unanswered| query.error(unanswered))?)
                    .map(|()| Reply::default())
            }
            Body::Script(texts, script, arguments, expected) => {
                let reply = expected.read(self.run(texts, *script, arguments, connection).await?);
                match reply.as_ref().and_then(|reply| self.time_without_borders(reply)) {
                    Some(time) => Box::pin(self.run_by(time, connection)).await?,
                    None => reply,
                }
            }
        };
        reply.ok_or_else(|| Unanswered::Failed(connection.mismatched()))
    }

    fn time_without_borders(&self, reply: &Reply) -> Option<Timestamp> {
        self.server_time.as_ref().and_then(|_| reply.only_time())
    }

    async fn run_by(
        &self,
        mut time: Timestamp,
        connection: &mut SharedConnection,
    ) -> Result<Option<Reply>, Unanswered> {
        // One suffices unless the clock jumps.
        const TRIES: u32 = 2;
        let (Body::Script(texts, script, arguments, expected), Some(server_time)) = (&self.body, &self.server_time)
        else {
            return Ok(None);
        };
        let mut arguments = arguments.clone();
        for _ in 0..TRIES {
            server_time.learn(time);
            arguments[BEFORE_BORDERS] = expected.calendars.around(time);
            let reply = expected.read(self.run(texts, *script, &arguments, connection).await?);
            match reply.as_ref().and_then(Reply::only_time) {
                Some(other) => time = other,
                None => return Ok(reply),
            }
        }
        Err(Unanswered::Failed(unsteady_clock(time)))
    }

    /// Sends the script in full if the server did not know its hash.
    async fn run(
        &self,
        texts: &Texts,
        script: Script,
        arguments: &[Vec<u8>],
        connection: &mut SharedConnection,
    ) -> Result<Value, Unanswered> {
        // At the second try, another call has just uploaded the script.
        const TRIES: u32 = 3;
        let Text { source, hash } = &texts[script as usize];
        if self.is_ordered && connection.loading(script).is_to_be_sent() {
            return connection.send(&self.eval("EVAL", source, arguments)).await;
        }
        let mut tries = 0;
        loop {
            let seen = connection.loading(script).count();
            match connection.send(&self.eval("EVALSHA", hash, arguments)).await {
                Err(Unanswered::Failed(error)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {}
                reply => {
                    connection.loading(script).known();
                    return reply;
                }
            }
            tries += 1;
            let other = connection.clone();
            let loading = other.loading(script);
            if let Some(_turn) = loading.begin(seen, tries == TRIES).await {
                let reply = connection.send(&self.eval("EVAL", source, arguments)).await;
                loading.loaded();
                return reply;
            }
        }
    }

    fn eval(&self, verb: &str, script: &str, arguments: &[Vec<u8>]) -> Cmd {
        let lengths = self.keys.iter().map(|key| key.len());
        let bytes: usize = lengths.chain(arguments.iter().map(Vec::len)).sum();
        // Verb, script and number of keys; the number has at most twenty digits.
        let mut command = Cmd::with_capacity(
            3 + self.keys.len() + arguments.len(),
            verb.len() + script.len() + 20 + bytes,
        );
        command.arg(verb).arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(&**key);
        }
        for argument in arguments {
            command.arg(argument.as_slice());
        }
        command
    }
}
