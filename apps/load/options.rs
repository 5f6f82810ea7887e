use std::{fmt::Display, ops::RangeInclusive, str::FromStr};

use super::results::outputs::{self, Outputs};

const USAGE: &str = "\
Usage: cargo run --release -p tower-quota-apps --bin load -- [OPTIONS]

  --rate NUMBER      requests a second, of all four instances together  [30000; find begins with 2000]
  --seconds NUMBER   how long requests are measured; without the layer,
                     as long again                                      [21; each step of find: 5]
  --users NUMBER     how many users there are to choose from            [1000000; rejection: 10000]
  --skew NUMBER      exponent of Zipf's law: 0 chooses evenly           [1]
  --mode MODE        normal      large quotas: all requests are allowed [normal]
                     rejection   small quotas: the cost of rejections
                     outage      Redis is paused, killed and started again
                     hot-key     all requests are those of one user, who has 100 a minute
                     find        the highest rate that this machine carries
                     callers     the memory that so many users take; --users alone counts
  --p99 NUMBER       the p99 up to which find goes on, in milliseconds         [5]
  --delay NUMBER     milliseconds by which the way to Redis and back is longer   [0]
  --together NUMBER  decisions that may share a call of the script, 1 to 64       [32]
  --help             this text
";

const END: &str = "
REDIS_URL says where Redis is. Without it, one is started: $REDIS_SERVER, else redis-server or valkey-server on the PATH.
";

pub(crate) fn usage() -> String {
    [USAGE, outputs::USAGE, END].concat()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Callers,
    Find,
    HotKey,
    Normal,
    Outage,
    Rejection,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Requests per second.
    pub(crate) rate: u64,
    pub(crate) seconds: u64,
    pub(crate) users: u64,
    /// The exponent of Zipf's law.
    pub(crate) skew: f64,
    pub(crate) mode: Mode,
    /// The maximum p99 of a sustainable rate, in milliseconds.
    pub(crate) p99: u64,
    /// The added round-trip time to Redis, in milliseconds.
    pub(crate) delay: u64,
    pub(crate) decisions_per_call: usize,
    pub(crate) redis_url: Option<String>,
    pub(crate) outputs: Outputs,
}

pub(crate) enum Asked {
    Help,
    Run(Options),
}

impl Options {
    pub(crate) fn parse(
        mut arguments: impl Iterator<Item = String>,
        redis_url: Option<String>,
    ) -> Result<Asked, String> {
        let (mut rate, mut seconds, mut users, mut skew, mut mode) = (None, None, None, 1.0, Mode::Normal);
        let (mut p99, mut delay, mut decisions_per_call, mut outputs) = (5, 0, 32, Outputs::default());
        while let Some(name) = arguments.next() {
            if name == "--help" {
                return Ok(Asked::Help);
            }
            if outputs.take(&name, || arguments.next())? {
                continue;
            }
            let mut value = || arguments.next().ok_or_else(|| format!("{name} has no value"));
            match &*name {
                "--rate" => rate = Some(number(&name, &value()?, 1..=1_000_000)?),
                "--seconds" => seconds = Some(number(&name, &value()?, 1..=86_400)?),
                "--users" => users = Some(number(&name, &value()?, 1..=1_000_000_000)?),
                "--skew" => skew = number(&name, &value()?, 0.0..=10.0)?,
                "--mode" => mode = Mode::parse(&value()?)?,
                "--p99" => p99 = number(&name, &value()?, 1..=10_000)?,
                "--delay" => delay = number(&name, &value()?, 0..=1_000)?,
                "--together" => decisions_per_call = number(&name, &value()?, 1..=64)?,
                _ => return Err(format!("{name} is no option")),
            }
        }
        let (usual_rate, usual_seconds) = if mode == Mode::Find { (2_000, 5) } else { (30_000, 21) };
        // With a million users, few exhaust even a small quota in half a minute.
        let usual_users = if mode == Mode::Rejection { 10_000 } else { 1_000_000 };
        let options = Self {
            rate: rate.unwrap_or(usual_rate),
            seconds: seconds.unwrap_or(usual_seconds),
            users: users.unwrap_or(usual_users),
            skew,
            mode,
            p99,
            delay,
            decisions_per_call,
            redis_url: redis_url.filter(|url| !url.is_empty()),
            outputs,
        };
        options.check_outage()?;
        Ok(Asked::Run(options))
    }

    fn check_outage(&self) -> Result<(), String> {
        if self.delay > 0 && (self.redis_url.is_some() || self.mode == Mode::Outage) {
            return Err(
                "--delay takes a server of its own that stays up: unset REDIS_URL, and no --mode outage".to_owned(),
            );
        }
        if self.mode != Mode::Outage {
            return Ok(());
        }
        if self.redis_url.is_some() {
            return Err("--mode outage stops Redis, so it does not take the one of REDIS_URL: unset it".to_owned());
        }
        if self.seconds < 7 {
            return Err(format!(
                "--seconds {}: the five phases of --mode outage take 7",
                self.seconds
            ));
        }
        Ok(())
    }
}

impl Mode {
    fn parse(name: &str) -> Result<Self, String> {
        Ok(match name {
            "callers" => Self::Callers,
            "find" => Self::Find,
            "hot-key" => Self::HotKey,
            "normal" => Self::Normal,
            "outage" => Self::Outage,
            "rejection" => Self::Rejection,
            _ => {
                let modes = "normal, rejection, outage, hot-key, find, callers";
                return Err(format!("--mode {name} is none of {modes}"));
            }
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Callers => "callers",
            Self::Find => "find",
            Self::HotKey => "hot-key",
            Self::Normal => "normal",
            Self::Outage => "outage",
            Self::Rejection => "rejection",
        }
    }
}

fn number<T: FromStr + PartialOrd + Display>(name: &str, value: &str, range: RangeInclusive<T>) -> Result<T, String> {
    let number = value.parse().map_err(|_| format!("{name} {value} is not a number"))?;
    if !range.contains(&number) {
        return Err(format!("{name} {value} is outside {}..={}", range.start(), range.end()));
    }
    Ok(number)
}
