//! Statistics that a Redis server reports.

use test_kit::RedisServer;

/// The number after `name` in a section of `INFO`, or 0 if the section does not have it.
pub fn info(server: &RedisServer, section: &str, name: &str) -> f64 {
    let info = server.command(&["INFO", section]);
    let values = info.lines().find_map(|line| line.strip_prefix(name));
    let number = values.unwrap_or("0").split(',').next();
    number.and_then(|number| number.trim().parse().ok()).expect("a number")
}

/// The CPU time that the server has used, reading and writing included.
pub fn seconds(server: &RedisServer) -> f64 {
    info(server, "cpu", "used_cpu_user:") + info(server, "cpu", "used_cpu_sys:")
}

pub fn reset_statistics(server: &RedisServer) {
    assert_eq!(server.command(&["CONFIG", "RESETSTAT"]), "OK");
}

/// The calls of scripts since the statistics were reset.
pub fn script_calls(server: &RedisServer) -> f64 {
    info(server, "commandstats", "cmdstat_evalsha:calls=")
}

/// The microseconds that they took.
pub fn script_micros(server: &RedisServer) -> f64 {
    let info = server.command(&["INFO", "commandstats"]);
    let scripts = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let micros = scripts.and_then(|stats| stats.split(',').find_map(|stat| stat.strip_prefix("usec=")));
    micros.and_then(|micros| micros.parse().ok()).unwrap_or(f64::NAN)
}

pub fn flush(server: &RedisServer) {
    assert_eq!(server.command(&["FLUSHALL"]), "OK");
}
