use std::{net::Ipv4Addr, sync::Arc};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

/// A call of the script that decides, as a server reads it.
#[derive(Clone, Debug)]
pub struct ScriptCall {
    /// Which of its connection's calls it is, from 0.
    pub place: usize,
    /// The number that the reply has to carry.
    pub number: [u8; 8],
    /// `EVAL` or `EVALSHA`, and what follows.
    pub words: Vec<Vec<u8>>,
}

impl ScriptCall {
    /// The reply of the script: the time, then the numbers of each partition.
    pub fn reply(&self, numbers: &[f64]) -> Vec<u8> {
        let (first, last) = self.number.split_at(4);
        let numbers: Vec<_> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        bulk(&[first, &numbers, last].concat())
    }
}

/// A bulk string.
pub fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Looks like a Redis server and answers each call of the script with the bytes that a test wants. The server runs
/// while the runtime that started it does.
#[derive(Debug)]
pub struct ScriptedServer {
    port: u16,
    task: JoinHandle<()>,
}

impl ScriptedServer {
    pub async fn start(answer: impl Fn(ScriptCall) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(answer);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let answer = Arc::clone(&answer);
                connections.spawn(async move { serve(stream, &*answer).await });
            }
        });
        Self { port, task }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, answer: &(impl Fn(ScriptCall) -> Vec<u8> + Send + Sync)) {
    stream.set_nodelay(true).unwrap();
    let mut stream = BufReader::new(stream);
    let mut place = 0;
    while let Some(words) = command(&mut stream).await {
        let reply = match words[0].as_slice() {
            b"EVAL" | b"EVALSHA" => {
                let keys: usize = std::str::from_utf8(&words[2]).unwrap().parse().unwrap();
                // A command that is not a decision has its number in an argument of its own.
                let number = words[3 + keys].last_chunk().or(words[words.len() - 1].last_chunk());
                let number = *number.unwrap();
                place += 1;
                answer(ScriptCall {
                    place: place - 1,
                    number,
                    words,
                })
            }
            _ => b"+OK\r\n".to_vec(),
        };
        if stream.get_mut().write_all(&reply).await.is_err() {
            return;
        }
    }
}

/// The words of the next command; none at the end.
async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let mut words = vec![Vec::new(); length(stream).await?];
    for word in &mut words {
        word.resize(length(stream).await? + 2, 0);
        stream.read_exact(word).await.ok()?;
        word.truncate(word.len() - 2);
    }
    Some(words)
}

/// The number of a line, behind its first byte.
async fn length(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}
