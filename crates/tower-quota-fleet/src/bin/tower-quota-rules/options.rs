use std::{collections::BTreeMap, time::Duration};

use clap::{Args, Parser, Subcommand};
use tower_quota::{CallerQuotas, PartitionId, PartitionKey, RedisStore, RedisStoreBuilder, clock::Clock};
use tower_quota_fleet::{Contract, Contracts, Control, Publication, RedisRules, RulesPublisher, TopUp};

use super::{files::read_rules, outcome::Failure};

/// Manages the rules of all instances of a service
#[derive(Parser)]
#[command(
    name = "tower-quota-rules",
    after_help = "\
`off`, `on`, `block` and `unblock` need no published rules, and work after Redis has lost its data.
Set the URL in RULES_REDIS: other users can read a password on a command line.
Exit codes: 0 success; 1 Redis failed, or its data cannot be read; 2 usage error; 3 rejected, nothing was changed;
4 not confirmed, nothing was changed; 5 published, but not all instances follow."
)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// The URL of Redis, or of cluster nodes, separated by commas
    #[arg(
        long,
        global = true,
        env = "RULES_REDIS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    #[arg(value_name = "URL", default_value = "redis://127.0.0.1/")]
    redis: Vec<String>,
    /// The service, if the URLs are those of sentinels
    #[arg(long, global = true, env = "RULES_SENTINEL", value_name = "NAME")]
    sentinel: Option<String>,
    /// The rule set
    #[arg(long, global = true, env = "RULES_SET", value_name = "NAME")]
    set: Option<String>,
    /// The key prefix of the stores
    #[arg(long, global = true, env = "RULES_PREFIX", default_value = "quota:")]
    prefix: String,
    /// Your name
    #[arg(long, global = true, env = "USER", default_value = "unknown", value_name = "NAME")]
    author: String,
    /// The reason, for the history
    #[arg(
        long,
        global = true,
        default_value = "",
        value_name = "TEXT",
        hide_default_value = true
    )]
    pub(crate) because: String,
    /// Skip the confirmation of `publish`, `rollback`, `restore`, and of a block larger than /16 (IPv6: /32)
    #[arg(long, short, global = true)]
    pub(crate) yes: bool,
    /// Skip the second confirmation (a quota of 0 or lowered tenfold, a block of every address, more than a day off)
    #[arg(long, global = true)]
    pub(crate) drastic: bool,
    /// Do not wait until the instances follow
    #[arg(long, global = true)]
    pub(crate) no_wait: bool,
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show what is published and what the instances enforce
    Show {
        /// Show the whole document as JSON
        #[arg(long)]
        document: bool,
    },
    /// Show the last changes, newest first
    History,
    /// Validate a rules file (needs no Redis)
    Check {
        /// `-` is standard input
        file: String,
    },
    /// Show which callers a publication affects, and how
    Diff(NewRules),
    /// Publish rules for all callers, or for a share of them
    Publish(NewRules),
    /// Publish the previous rules again
    Rollback {
        /// A version in the history
        #[arg(long, value_name = "VERSION")]
        to: Option<u64>,
        /// Even if the published rules cannot be read
        #[arg(long)]
        overwrite: bool,
    },
    /// Publish a document that `show --document` or an instance printed
    Restore {
        /// `-` is standard input
        file: String,
        /// Even if the published rules cannot be read
        #[arg(long)]
        overwrite: bool,
    },
    /// Switch off the limits on all instances, for an hour
    Off {
        /// For this duration (s, m, h, d)
        #[arg(long = "for", value_parser = duration, value_name = "10m", conflicts_with = "without_end")]
        lasts: Option<Duration>,
        /// Until `on`
        #[arg(long)]
        without_end: bool,
    },
    /// Switch on the limits on all instances
    On,
    /// Block a network or an address on all instances
    Block {
        address: String,
        /// For this duration (s, m, h, d); default: until `unblock`
        #[arg(long = "for", value_parser = duration, value_name = "10m")]
        lasts: Option<Duration>,
    },
    /// End the block of a network or an address
    Unblock {
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        address: Option<String>,
        /// Start a new access list, even if the current one is unreadable
        #[arg(long)]
        all: bool,
    },
    /// Show, set or remove the contract of a caller, such as `customer 4711`
    Contract(ContractOf),
    /// Add units to a caller's quota for a time, once per ID
    TopUp(TopUpOf),
}

#[derive(Args)]
pub(crate) struct NewRules {
    /// `-` is standard input
    file: String,
    /// Roll out to this percentage of the callers
    #[arg(long, value_parser = percent)]
    percent: Option<u8>,
    /// And to the caller with this key digest (32 hexadecimal digits)
    #[arg(long, value_name = "DIGEST", requires = "percent")]
    partition: Vec<PartitionId>,
    /// Even if counts of policies reset
    #[arg(long)]
    restart_counts: bool,
    /// Even if the published rules cannot be read
    #[arg(long)]
    overwrite: bool,
}

#[derive(Args)]
pub(crate) struct ContractOf {
    kind: String,
    value: String,
    /// Set the quotas of these policies, within their bounds; replaces all earlier ones
    #[arg(value_parser = assignment, value_name = "POLICY=QUOTA")]
    quotas: Vec<(String, u64)>,
    /// Set a burst capacity
    #[arg(long, value_parser = assignment, value_name = "POLICY=UNITS")]
    burst: Vec<(String, u64)>,
    /// Set the billing day
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=31), value_name = "DAY")]
    month_begins: Option<u8>,
    /// End the contract after this duration (s, m, h, d)
    #[arg(long = "for", value_parser = duration, value_name = "365d")]
    lasts: Option<Duration>,
    /// Remove the contract and its top-ups
    #[arg(long, conflicts_with_all = ["quotas", "burst", "month_begins", "lasts"])]
    remove: bool,
}

#[derive(Args)]
pub(crate) struct TopUpOf {
    kind: String,
    value: String,
    #[arg(value_parser = assignment, value_name = "POLICY=UNITS")]
    units: (String, u64),
    /// For this duration (s, m, h, d)
    #[arg(long = "for", value_parser = duration, value_name = "30d")]
    lasts: Duration,
    #[arg(long)]
    id: String,
}

#[derive(Clone, Copy)]
pub(crate) enum Part {
    Access,
    Switch,
}

pub(crate) enum ContractEdit {
    Remove,
    Set(Contract),
    Show,
    TopUp(TopUp),
}

impl Options {
    pub(crate) fn set(&self) -> Result<&str, Failure> {
        let missing = || usage("no rule set: set RULES_SET or --set NAME");
        self.set.as_deref().ok_or_else(missing)
    }

    pub(crate) fn contracts(&self) -> Result<Contracts, Failure> {
        Ok(Contracts::new(self.servers(), self.set()?)?.with_author(&self.author))
    }

    pub(crate) fn rules(&self) -> Result<RedisRules, Failure> {
        Ok(RedisRules::new(self.servers(), self.set()?)?)
    }

    pub(crate) fn publisher(&self) -> Result<RulesPublisher, Failure> {
        Ok(RulesPublisher::new(self.rules()?, &self.author))
    }

    fn servers(&self) -> RedisStoreBuilder {
        let servers = match (&self.sentinel, &*self.redis) {
            (Some(name), urls) => RedisStore::sentinel_builder(urls, name),
            (None, [url]) => RedisStore::builder(url),
            (None, urls) => RedisStore::cluster_builder(urls),
        };
        servers.key_prefix(&self.prefix)
    }
}

impl NewRules {
    pub(crate) fn publication(&self) -> Result<Publication, Failure> {
        let mut publication = Publication::rules(read_rules(&self.file)?).with_partitions(self.partition.clone());
        if let Some(percent) = self.percent {
            publication = publication.rollout_percent(percent);
        }
        if self.restart_counts {
            publication = publication.allow_count_reset();
        }
        Ok(forced(publication, self.overwrite))
    }
}

impl ContractOf {
    pub(crate) fn caller(&self) -> PartitionKey {
        PartitionKey::new(&self.kind, &self.value)
    }

    pub(crate) fn edit(&self, because: &str) -> Result<ContractEdit, Failure> {
        if self.remove {
            return Ok(ContractEdit::Remove);
        }
        if self.quotas.is_empty() && self.burst.is_empty() && self.month_begins.is_none() {
            return match self.lasts {
                Some(_) => Err(usage("--for requires quotas")),
                None => Ok(ContractEdit::Show),
            };
        }
        let mut quotas = CallerQuotas::new();
        for (name, quota) in distinct(&self.quotas)? {
            quotas = quotas.quota(name, quota);
        }
        for (name, capacity) in distinct(&self.burst)? {
            quotas = quotas.burst_capacity(name, capacity);
        }
        if let Some(day) = self.month_begins {
            quotas = quotas.month_begins(day);
        }
        if let Some(time) = self.lasts {
            quotas = quotas.until(Clock::system().now().saturating_add(time));
        }
        Ok(ContractEdit::Set(Contract::new(quotas).because(because)))
    }
}

impl TopUpOf {
    pub(crate) fn caller(&self) -> PartitionKey {
        PartitionKey::new(&self.kind, &self.value)
    }

    pub(crate) fn edit(&self, because: &str) -> ContractEdit {
        let end = Clock::system().now().saturating_add(self.lasts);
        let ((policy, units), seconds) = (&self.units, end.as_micros().div_ceil(1_000_000));
        ContractEdit::TopUp(TopUp::new(&self.id, policy, *units, seconds).because(because))
    }
}

pub(crate) fn forced(publication: Publication, overwrite: bool) -> Publication {
    match overwrite {
        true => publication.force(),
        false => publication,
    }
}

pub(crate) fn lasting(control: Control, time: Option<Duration>) -> Control {
    time.into_iter().fold(control, Control::expires_in)
}

pub(crate) fn is_large(network: &str) -> bool {
    let smallest = if network.contains(':') { 32 } else { 16 };
    let prefix = network
        .split_once('/')
        .and_then(|(_, prefix)| prefix.parse::<u8>().ok());
    prefix.is_some_and(|prefix| prefix < smallest)
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::Usage(message.into())
}

fn distinct(assignments: &[(String, u64)]) -> Result<BTreeMap<String, u64>, Failure> {
    let mut numbers = BTreeMap::new();
    for (name, number) in assignments {
        if let Some(other) = numbers.insert(name.clone(), *number) {
            let message = format!("policy {name:?} occurs twice, with {other} and {number}");
            return Err(usage(message));
        }
    }
    Ok(numbers)
}

/// For example, `minute=5000`.
fn assignment(text: &str) -> Result<(String, u64), &'static str> {
    let parts = text.rsplit_once('=').filter(|(name, _)| !name.is_empty());
    let parts = parts.and_then(|(name, number)| Some((name.to_owned(), number.parse().ok()?)));
    parts.ok_or("not POLICY=NUMBER, such as minute=5000")
}

fn percent(text: &str) -> Result<u8, &'static str> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok();
    percent
        .filter(|percent| *percent <= 100)
        .ok_or("not a percentage from 0 to 100")
}

/// For example, `90s`, `10m`, `2h` or `1d`.
fn duration(text: &str) -> Result<Duration, &'static str> {
    let seconds_of = |unit| match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(3_600),
        'd' => Some(86_400),
        _ => None,
    };
    let (last, _) = text.char_indices().next_back().unwrap_or_default();
    let (number, unit) = text.split_at(last);
    let seconds = || -> Option<u64> {
        let unit: u64 = seconds_of(unit.chars().next()?)?;
        let number: u64 = number.parse().ok().filter(|number| *number > 0)?;
        number.checked_mul(unit)
    };
    let seconds = seconds().ok_or("not a duration, such as 90s, 10m, 2h or 1d");
    seconds.map(Duration::from_secs)
}
