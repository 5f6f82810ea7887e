use std::{
    collections::hash_map::RandomState,
    env,
    fs::{self, DirBuilder},
    hash::{BuildHasher, Hasher},
    io::{self, BufRead, BufReader, Read},
    net::{Ipv4Addr, TcpListener},
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::resp;

const START_TIMEOUT: Duration = Duration::from_secs(10);
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
const PORT_TRIES: usize = 10;
const RESTART_TRIES: usize = 40;

/// Runs the server and kills it once standard input is at its end. That comes to pass when the test drops the other
/// end and also when the test's process is killed, and nothing else could end the server then.
///
/// The signals are ignored because a terminal or the end of a session would take the watchdog away before the server:
/// a process group with a stopped process in it gets a SIGHUP when it is orphaned.
const WATCHDOG: &str = r#"
trap '' HUP INT TERM
directory=$1
shift
(exec "$@" >&2) &
echo $!
exec >/dev/null 2>&1
while read -r _; do :; done
kill -9 $!
wait
rm -rf "$directory"
"#;

/// The shared server of this process, for tests that use their own keys and leave the server running.
pub fn shared_server() -> &'static RedisServer {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    SERVER.get_or_init(RedisServer::start)
}

/// A Redis server that is killed when this is dropped or the process ends, however it ends.
///
/// All methods block the thread, starting for some ten milliseconds.
#[derive(Debug)]
pub struct RedisServer {
    binary: PathBuf,
    setup: Mutex<Setup>,
    port: u16,
    process: Mutex<Option<Process>>,
}

/// The settings of a server besides its port.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The program. By default, `REDIS_SERVER` or the server in the `PATH`.
    pub binary: Option<PathBuf>,
    pub arguments: Vec<String>,
    /// A file in the server's directory that exists at every start. Its contents survive when the server is killed.
    pub file: Option<(&'static str, String)>,
    /// The file is the server's configuration, and the server a sentinel.
    pub is_sentinel: bool,
    /// The server takes the port 10 000 above, too.
    pub has_bus: bool,
}

impl RedisServer {
    /// Starts an empty server on a free port and waits until it answers.
    ///
    /// Without a server on this machine it panics: a test that is skipped would look like one that passed.
    pub fn start() -> Self {
        Self::start_with(Setup::default())
    }

    pub fn start_with(setup: Setup) -> Self {
        let binary = setup.binary.clone().unwrap_or_else(find_binary);
        let mut log = String::new();
        for _ in 0..PORT_TRIES {
            let port = free_port(setup.has_bus);
            match Process::start(&binary, port, &setup) {
                Ok(process) => {
                    return Self {
                        binary,
                        setup: Mutex::new(setup),
                        port,
                        process: Mutex::new(Some(process)),
                    };
                }
                Err(text) => log = text,
            }
        }
        panic!("{} did not start:\n{log}", binary.display());
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The process id of the running server.
    pub fn pid(&self) -> u32 {
        self.process().as_ref().expect("the server was killed").pid
    }

    /// Kills the server: connections break and new ones are rejected.
    pub fn kill(&self) {
        let mut process = self.process();
        if let Some(process) = &*process {
            signal("KILL", process.pid);
            let mut setup = self.setup();
            if let Some((name, kept)) = &mut setup.file {
                let lines = fs::read_to_string(process.directory.join(name)).unwrap();
                // A sentinel writes down where it runs, and will run elsewhere.
                let lines = lines.lines().filter(|line| !line.starts_with("dir "));
                *kept = lines.flat_map(|line| [line, "\n"]).collect();
            }
        }
        *process = None;
    }

    /// Starts an empty server on the same port, after killing the one that runs. A node of a cluster knows what it has
    /// known of the cluster.
    pub fn restart(&self) {
        self.kill();
        let (mut process, setup) = (self.process(), self.setup().clone());
        let mut log = String::new();
        for _ in 0..RESTART_TRIES {
            match Process::start(&self.binary, self.port, &setup) {
                Ok(started) => {
                    *process = Some(started);
                    return;
                }
                Err(text) => log = text,
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!(
            "{} did not start again on port {}:\n{log}",
            self.binary.display(),
            self.port
        );
    }

    /// Stops the server without ending it: connections stay and new ones are accepted, but nothing is answered.
    pub fn pause(&self) {
        let pid = self.pid();
        signal("STOP", pid);
        // The signal takes effect a moment later. Where there is no /proc, that moment is all the difference.
        let stat = format!("/proc/{pid}/stat");
        let deadline = Instant::now() + REPLY_TIMEOUT;
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") T ")) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn resume(&self) {
        signal("CONT", self.pid());
    }

    /// The reply to a command as text: errors begin with `-`, nil is `nil`, every element of an array has a line.
    pub fn command(&self, command: &[&str]) -> String {
        self.try_command(command, REPLY_TIMEOUT)
            .unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Returns `true` if the server has users, as Redis 6 and newer and Valkey do. What only users show cannot be tested
    /// without them.
    pub fn has_users(&self) -> bool {
        self.command(&["ACL", "WHOAMI"]) == "default"
    }

    /// Adds a user, or changes one. Redis 6.0 knows no rules for channels.
    pub fn set_user(&self, name: &str, rules: &[&str]) {
        let set = |rules: &[&str]| self.command(&[&["ACL", "SETUSER", name], rules].concat());
        let is_about_channels = |rule: &str| rule.starts_with('&') || rule == "resetchannels";
        let reply = match set(rules) {
            reply if reply.contains("Syntax error") => {
                let rules = rules.iter().copied().filter(|rule| !is_about_channels(rule));
                set(&rules.collect::<Vec<_>>())
            }
            reply => reply,
        };
        assert_eq!(reply, "OK", "{name}");
    }

    /// Adds the user `limits`, with the password `password`, the permissions that the guide for production gives it, and
    /// `more`.
    pub fn set_documented_user(&self, more: &[&str]) {
        let (_, rules) = include_str!("../../../../docs/PRODUCTION.md")
            .split_once("ACL SETUSER limits ")
            .unwrap();
        let rules = rules.split("```").next().unwrap().split_whitespace();
        self.set_user("limits", &rules.chain(more.iter().copied()).collect::<Vec<_>>());
    }

    /// Sends a command, with an error instead of a panic when no reply comes.
    pub fn try_command(&self, command: &[&str], timeout: Duration) -> io::Result<String> {
        let command: Vec<_> = command.iter().map(|word| word.as_bytes()).collect();
        Ok(resp::text(&resp::call(self.port, &command, timeout)?))
    }

    /// Returns `true` if the server has this role, `master` or `slave`. A server that changes its role ends connections, so
    /// that one without an answer has neither.
    pub fn has_role(&self, role: &str) -> bool {
        let reply = self.try_command(&["ROLE"], REPLY_TIMEOUT);
        reply.is_ok_and(|reply| reply.starts_with(role))
    }

    /// The reply to a command as it comes from the server, type bytes and all.
    pub fn command_bytes(&self, command: &[&[u8]]) -> Vec<u8> {
        resp::call(self.port, command, REPLY_TIMEOUT).unwrap()
    }

    fn setup(&self) -> MutexGuard<'_, Setup> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Process {
    watchdog: Child,
    pid: u32,
    directory: PathBuf,
    /// Collects what the server prints, and so ends when the server does.
    log: Option<thread::JoinHandle<String>>,
}

impl Process {
    /// Returns what the server printed if it does not come to answer.
    fn start(binary: &Path, port: u16, setup: &Setup) -> Result<Self, String> {
        let mut process = Self::spawn(binary, port, setup);
        let deadline = Instant::now() + START_TIMEOUT;
        while !process.has_ended() && Instant::now() < deadline {
            if process.answers(port) {
                return Ok(process);
            }
            thread::sleep(Duration::from_millis(2));
        }
        let log = process.log.take();
        drop(process);
        Err(log.and_then(|log| log.join().ok()).unwrap_or_default())
    }

    fn spawn(binary: &Path, port: u16, setup: &Setup) -> Self {
        let directory = env::temp_dir().join(format!("tower-quota-{}-{:016x}", std::process::id(), random()));
        DirBuilder::new().mode(0o700).create(&directory).unwrap();
        if let Some((name, content)) = &setup.file {
            fs::write(directory.join(name), content).unwrap();
        }
        let mut watchdog = Command::new("sh");
        watchdog
            .args(["-c", WATCHDOG, "redis-watchdog"])
            .arg(&directory)
            .arg(binary);
        if let Some((name, _)) = setup.file.as_ref().filter(|_| setup.is_sentinel) {
            watchdog.arg(directory.join(name)).arg("--sentinel");
        } else {
            watchdog.args(["--save", "", "--appendonly", "no"]);
        }
        let mut watchdog = watchdog
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--daemonize", "no"])
            .args(&setup.arguments)
            .arg("--dir")
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("sh starts");
        let mut stderr = watchdog.stderr.take().unwrap();
        let log = thread::spawn(move || {
            let mut log = Vec::new();
            let _ = stderr.read_to_end(&mut log);
            String::from_utf8_lossy(&log).into_owned()
        });
        let mut pid = String::new();
        BufReader::new(watchdog.stdout.take().unwrap())
            .read_line(&mut pid)
            .unwrap();
        // No server has the process ID 0. If the ID is missing, the log shows why.
        Self {
            watchdog,
            pid: pid.trim().parse().unwrap_or(0),
            directory,
            log: Some(log),
        }
    }

    fn has_ended(&self) -> bool {
        self.log.as_ref().is_none_or(thread::JoinHandle::is_finished)
    }

    /// Returns `true` if this server answers, and not one that was quicker to take the port.
    fn answers(&self, port: u16) -> bool {
        let this = format!("process_id:{}\r\n", self.pid);
        resp::call(port, &[b"INFO", b"server"], Duration::from_millis(500))
            .is_ok_and(|reply| resp::text(&reply).contains(&this))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Closes the pipe first.
        let _ = self.watchdog.wait();
    }
}

fn find_binary() -> PathBuf {
    let binary = match env::var_os("REDIS_SERVER").filter(|path| !path.is_empty()) {
        Some(path) => Some(PathBuf::from(path)),
        None => ["redis-server", "valkey-server"].iter().find_map(|name| {
            let path = env::var_os("PATH")?;
            env::split_paths(&path)
                .map(|directory| directory.join(name))
                .find(|path| path.is_file())
        }),
    };
    binary.filter(|path| path.is_file()).expect(
        "no Redis server found: run the tests with `make test`, which finds or installs one, or set REDIS_SERVER to the \
         path of redis-server or valkey-server",
    )
}

/// A port below those that the system gives to outgoing connections. From among them, one could be given away while
/// the server is down, and a client that connects to a port which it was itself given even succeeds.
pub fn free_port(has_bus: bool) -> u16 {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let range = if has_bus { 7_000 } else { 15_000 };
    (0..100)
        .map(|_| 15_000 + (random() % range) as u16)
        .find(|&port| is_free(port) && (!has_bus || is_free(port + 10_000)))
        .expect("one of a hundred ports is free")
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// By way of the shell, which has `kill` built in.
fn signal(name: &str, pid: u32) {
    let status = Command::new("sh")
        .args(["-c", r#"kill -s "$0" "$1""#, name, &pid.to_string()])
        .status();
    assert!(status.unwrap().success(), "SIG{name} could not be sent to {pid}");
}
