//! An app under test, as a process.

use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
};

/// A running app, which is killed on drop.
#[derive(Debug)]
pub struct App {
    process: Child,
    url: String,
}

impl App {
    /// Starts an app on a free port and waits until it prints its URL.
    ///
    /// `PROGRAMS` is the folder of the built programs, which `make browser-test` sets.
    ///
    /// # Panics
    ///
    /// If the app was not built, or ends before it prints its URL.
    pub fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    /// Like [`start`](Self::start), with additional environment variables.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with(name: &str, variables: &[(&str, &str)]) -> Self {
        let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/debug");
        let program = env::var_os("PROGRAMS")
            .map_or_else(|| PathBuf::from(default), PathBuf::from)
            .join(name);
        let process = Command::new(&program)
            .env("PORT", "0")
            .env_remove("REDIS_URL")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = process.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let output = process.stdout.take().expect("it is piped");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let url = lines.find_map(|line| Some(line[line.find("http://")?..].to_owned()));
        // An app whose output nothing reads would end with the next line.
        thread::spawn(move || lines.for_each(drop));
        let url = url.unwrap_or_else(|| panic!("{name} ended before it listened"));
        Self { process, url }
    }

    /// The address of its page, with a slash at its end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends `GET /` as a user, and returns the response as it came.
    ///
    /// # Errors
    ///
    /// If the app cannot be reached.
    pub fn get_as(&self, user: &str) -> io::Result<String> {
        let host = self.url.trim_start_matches("http://").trim_end_matches('/');
        let mut connection = TcpStream::connect(host)?;
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nx-user-id: {user}\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes())?;
        let mut response = String::new();
        connection.read_to_string(&mut response)?;
        Ok(response)
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
