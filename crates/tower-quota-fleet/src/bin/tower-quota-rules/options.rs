use std::{collections::BTreeMap, env, ffi::OsString, time::Duration};

use tower_quota::{Access, CallerQuotas, PartitionId, PartitionKey, RedisStore, RedisStoreBuilder, clock::Clock};
use tower_quota_fleet::{
    AccessEntry, Contract, Contracts, Control, FleetError, Publication, RedisRules, RulesPublisher, TopUp,
};

use super::{
    files::{read_document, read_rules},
    outcome::Failure,
};

pub(crate) const HELP: &str = "\
tower-quota-rules COMMAND [OPTIONS]   manage the rules of all instances of a service

  show                      show what is published and what the instances enforce
  show --document           show the whole document as JSON
  history                   show the last changes, newest first
  check FILE                validate a rules file (needs no Redis; `-` is standard input)
  diff FILE                 show which callers a publication would affect, and how
  publish FILE              publish these rules for all callers
    --percent 10            ... for 10% of callers, the same on every instance
    --partition DIGEST      ... and for the caller with this key digest (32 hexadecimal digits)
    --restart-counts        ... even if counts of policies reset
    --overwrite             ... even if the published rules cannot be read
  rollback [--to VERSION]   publish the previous rules, or those of a version in the history
  restore FILE              publish a whole document again, as `show --document` or an instance printed it
  off                       switch off the limits on all instances, for an hour
    --for 10m               ... for this duration (s, m, h, d)
    --without-end           ... until `on`
  on                        switch on the limits
  block ADDRESS             block a network or an address on all instances
    --for 10m               ... for this duration (default: until `unblock`)
  unblock ADDRESS | unblock --all
  contract KIND VALUE       show the contract of the caller with this key, such as `customer 4711`
    minute=5000 ...         set the quotas of these policies and replace all earlier ones; each must be within the
                            bounds of a published policy
    --burst minute=50       set a burst capacity
    --month-begins 15       set the billing day
    --for 365d              end the contract after this duration
    --remove                remove the contract and its top-ups
  top-up KIND VALUE POLICY=UNITS --for 30d --id ID
                            add units for this duration; a second top-up with the same ID adds nothing
    `off`, `on`, `block` and `unblock` need no published rules, and work after Redis has lost its data.

  --redis URL               the URL of Redis, or of cluster nodes, separated by commas  [RULES_REDIS]
  --sentinel NAME           the URLs are those of sentinels; NAME is the service        [RULES_SENTINEL]
  --set NAME                the rule set                                                [RULES_SET]
  --prefix PREFIX           the key prefix of the stores (default: `quota:`)            [RULES_PREFIX]
  --author NAME             your name                                                   [USER]
  --because TEXT            the reason, for the history
  --yes                     skip the confirmation of `publish`, `rollback`, `restore`, and a block of a network larger
                            than /16 (IPv6: /32)
  --drastic                 skip the second confirmation of a quota of 0, a tenfold decrease of a quota, a block of
                            every address, and limits that stay off for more than a day
  --no-wait                 do not wait until the instances follow
  --json                    print one JSON object instead of text

Set the URL in RULES_REDIS: other users can read a password on a command line.
Exit codes: 0 success; 1 Redis failed, or its data cannot be read; 2 usage error; 3 rejected, nothing was changed;
4 not confirmed, nothing was changed; 5 published, but not all instances follow.
";

pub(crate) enum Command {
    Change {
        publication: Publication,
    },
    Check {
        file: String,
    },
    Contract {
        caller: PartitionKey,
        edit: ContractEdit,
    },
    Control {
        control: Control,
        part: Part,
        /// True if an operator must confirm the change first.
        asks: bool,
    },
    Diff(Publication),
    History,
    Show {
        whole: bool,
    },
}

/// The part of the controls that a command changes.
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

pub(crate) struct Options {
    pub(crate) command: Command,
    pub(crate) set: String,
    pub(crate) author: String,
    pub(crate) json: bool,
    pub(crate) yes: bool,
    pub(crate) drastic: bool,
    pub(crate) waits: bool,
    urls: Vec<String>,
    sentinel: Option<String>,
    prefix: Option<String>,
}

/// The command line before validation.
#[derive(Default)]
struct Words {
    values: Vec<String>,
    redis: Option<String>,
    sentinel: Option<String>,
    set: Option<String>,
    prefix: Option<String>,
    author: Option<String>,
    percent: Option<u8>,
    partitions: Vec<PartitionId>,
    to: Option<u64>,
    bursts: Vec<String>,
    month_begins: Option<u8>,
    id: Option<String>,
    remove: bool,
    lasts: Option<Duration>,
    restart_counts: bool,
    overwrite: bool,
    document: bool,
    without_end: bool,
    all: bool,
    because: Option<String>,
    json: bool,
    yes: bool,
    drastic: bool,
    no_wait: bool,
    help: bool,
}

impl Options {
    /// Returns `None` for `--help`.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Option<Self>, Failure> {
        let words = Words::parse(arguments).map_err(|error| Failure::Usage(error.to_string()))?;
        if words.help || words.values.first().is_some_and(|word| word == "help") {
            return Ok(None);
        }
        let variable = |given: &Option<String>, name: &str| given.clone().or_else(|| env::var(name).ok());
        let urls = variable(&words.redis, "RULES_REDIS").unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
        let command = words.command()?;
        let set = variable(&words.set, "RULES_SET");
        Ok(Some(Self {
            set: match (&command, set) {
                (Command::Check { .. }, set) => set.unwrap_or_default(),
                (_, Some(set)) => set,
                (_, None) => {
                    return Err(usage("no rule set: set RULES_SET or --set NAME"));
                }
            },
            command,
            author: variable(&words.author, "USER").unwrap_or_else(|| "unknown".to_owned()),
            sentinel: variable(&words.sentinel, "RULES_SENTINEL"),
            prefix: variable(&words.prefix, "RULES_PREFIX"),
            json: words.json,
            yes: words.yes,
            drastic: words.drastic,
            waits: !words.no_wait,
            urls: urls.split(',').map(str::to_owned).collect(),
        }))
    }

    fn servers(&self) -> RedisStoreBuilder {
        let servers: RedisStoreBuilder = match (&self.sentinel, &*self.urls) {
            (Some(name), urls) => RedisStore::sentinel_builder(urls, name),
            (None, [url]) => RedisStore::builder(url),
            (None, urls) => RedisStore::cluster_builder(urls),
        };
        match &self.prefix {
            Some(prefix) => servers.key_prefix(prefix),
            None => servers,
        }
    }

    pub(crate) fn contracts(&self) -> Result<Contracts, FleetError> {
        Ok(Contracts::new(self.servers(), &self.set)?.with_author(&self.author))
    }

    pub(crate) fn rules(&self) -> Result<RedisRules, FleetError> {
        RedisRules::new(self.servers(), &self.set)
    }

    pub(crate) fn publisher(&self) -> Result<RulesPublisher, FleetError> {
        Ok(RulesPublisher::new(self.rules()?, &self.author))
    }
}

impl Words {
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;

        let mut words = Self::default();
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(word) = parser.next()? {
            match word {
                Value(value) => words.values.push(value.string()?),
                Long("redis") => words.redis = Some(parser.value()?.string()?),
                Long("sentinel") => words.sentinel = Some(parser.value()?.string()?),
                Long("set") => words.set = Some(parser.value()?.string()?),
                Long("prefix") => words.prefix = Some(parser.value()?.string()?),
                Long("author") => words.author = Some(parser.value()?.string()?),
                Long("percent") => words.percent = Some(parser.value()?.parse_with(percent)?),
                Long("partition") => words.partitions.push(parser.value()?.parse()?),
                Long("to") => words.to = Some(parser.value()?.parse()?),
                Long("burst") => words.bursts.push(parser.value()?.string()?),
                Long("month-begins") => words.month_begins = Some(parser.value()?.parse_with(day)?),
                Long("id") => words.id = Some(parser.value()?.string()?),
                Long("remove") => words.remove = true,
                Long("for") => words.lasts = Some(parser.value()?.parse_with(duration)?),
                Long("restart-counts") => words.restart_counts = true,
                Long("overwrite") => words.overwrite = true,
                Long("document") => words.document = true,
                Long("json") => words.json = true,
                Long("yes") | Short('y') => words.yes = true,
                Long("drastic") => words.drastic = true,
                Long("all") => words.all = true,
                Long("without-end") => words.without_end = true,
                Long("because") => words.because = Some(parser.value()?.string()?),
                Long("no-wait") => words.no_wait = true,
                Long("help") | Short('h') => words.help = true,
                _ => return Err(word.unexpected()),
            }
        }
        Ok(words)
    }

    fn command(&self) -> Result<Command, Failure> {
        let values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        self.check_options(values.first().copied().unwrap_or_default())?;
        let reason = || self.because.clone().unwrap_or_default();
        let change = |publication: Publication| Command::Change {
            publication: self.force(publication).because(reason()),
        };
        Ok(match &*values {
            [] => return Err(usage("no command")),
            ["show"] => Command::Show { whole: self.document },
            ["history"] => Command::History,
            ["check", file] => Command::Check {
                file: (*file).to_owned(),
            },
            ["diff", file] => Command::Diff(self.publication(file)?),
            ["publish", file] => change(self.publication(file)?),
            ["restore", file] => change(Publication::restore(read_document(file)?)),
            ["rollback"] => change(match self.to {
                Some(version) => Publication::roll_back_to(version),
                None => Publication::roll_back(),
            }),
            ["off"] if self.without_end => self.control(Control::switch_off().without_end(), Part::Switch, false),
            ["off"] => self.control(self.lasting(Control::switch_off()), Part::Switch, false),
            ["on"] => self.control(Control::switch_on(), Part::Switch, false),
            // A typo in the prefix length can lock out everyone.
            ["block", address] => self.control(
                self.lasting(Control::block_network(*address)),
                Part::Access,
                is_large(address),
            ),
            ["unblock"] if self.all => self.control(Control::clear_access(), Part::Access, true),
            ["unblock", address] => {
                let entry = AccessEntry::network(*address, Access::Block);
                self.control(Control::remove_access(entry), Part::Access, false)
            }
            ["contract" | "top-up", ..] => self.contract_command(&values)?,
            [command @ ("check" | "diff" | "publish" | "restore"), ..] => {
                return Err(usage(format!("`{command}` requires one FILE")));
            }
            [command @ ("block" | "unblock"), ..] => return Err(usage(format!("`{command}` requires one ADDRESS"))),
            [command @ ("show" | "history" | "rollback" | "off" | "on"), ..] => {
                return Err(usage(format!("`{command}` takes no arguments")));
            }
            [command, ..] => return Err(usage(format!("unknown command {command:?}"))),
        })
    }

    fn control(&self, control: Control, part: Part, asks: bool) -> Command {
        let control = control.because(self.because.clone().unwrap_or_default());
        Command::Control { control, part, asks }
    }

    fn lasting(&self, control: Control) -> Control {
        self.lasts.into_iter().fold(control, Control::expires_in)
    }

    /// Unknown options are errors, because ignoring `--percent` in `block --percent 10` would block for all.
    fn check_options(&self, command: &str) -> Result<(), Failure> {
        let of_rules: &[&str] = &["diff", "publish"];
        for (is_given, option, commands) in [
            (self.percent.is_some(), "--percent", of_rules),
            (!self.partitions.is_empty(), "--partition", of_rules),
            (self.restart_counts, "--restart-counts", of_rules),
            (
                self.overwrite,
                "--overwrite",
                &["diff", "publish", "restore", "rollback"],
            ),
            (self.to.is_some(), "--to", &["rollback"]),
            (self.lasts.is_some(), "--for", &["block", "contract", "off", "top-up"]),
            (!self.bursts.is_empty(), "--burst", &["contract"]),
            (self.month_begins.is_some(), "--month-begins", &["contract"]),
            (self.remove, "--remove", &["contract"]),
            (self.id.is_some(), "--id", &["top-up"]),
            (self.without_end, "--without-end", &["off"]),
            (self.all, "--all", &["unblock"]),
            (self.document, "--document", &["show"]),
        ] {
            if is_given && !commands.contains(&command) {
                return Err(usage(format!(
                    "{option} applies to {}, not to {command:?}",
                    commands.join(", ")
                )));
            }
        }
        Ok(())
    }

    fn contract_command(&self, values: &[&str]) -> Result<Command, Failure> {
        let (kind, value, edit) = match values {
            ["contract", kind, value, policies @ ..] => (kind, value, self.contract(policies)?),
            ["top-up", kind, value, policy] => (kind, value, ContractEdit::TopUp(self.top_up(policy)?)),
            ["contract", ..] => return Err(usage("`contract` requires the KIND and VALUE of a key")),
            _ => return Err(usage("`top-up` requires KIND, VALUE and POLICY=UNITS")),
        };
        let caller = PartitionKey::new(*kind, value);
        Ok(Command::Contract { caller, edit })
    }

    fn contract(&self, policies: &[&str]) -> Result<ContractEdit, Failure> {
        let changes = !policies.is_empty() || !self.bursts.is_empty() || self.month_begins.is_some();
        match (self.remove, changes) {
            (true, true) => return Err(usage("--remove cannot be combined with quotas")),
            (true, false) => return Ok(ContractEdit::Remove),
            (false, false) if self.lasts.is_some() => return Err(usage("--for requires quotas")),
            (false, false) => return Ok(ContractEdit::Show),
            (false, true) => {}
        }
        let mut quotas = CallerQuotas::new();
        for (name, quota) in assignments(policies)? {
            quotas = quotas.quota(name, quota);
        }
        for (name, capacity) in assignments(&self.bursts)? {
            quotas = quotas.burst_capacity(name, capacity);
        }
        if let Some(day) = self.month_begins {
            quotas = quotas.month_begins(day);
        }
        if let Some(time) = self.lasts {
            quotas = quotas.until(Clock::system().now().saturating_add(time));
        }
        let reason = self.because.clone().unwrap_or_default();
        Ok(ContractEdit::Set(Contract::new(quotas).because(reason)))
    }

    fn top_up(&self, policy: &str) -> Result<TopUp, Failure> {
        let (name, units) = assignment(policy)?;
        let (Some(id), Some(time)) = (&self.id, self.lasts) else {
            return Err(usage("`top-up` requires --id and --for"));
        };
        let end = Clock::system()
            .now()
            .saturating_add(time)
            .as_micros()
            .div_ceil(1_000_000);
        let reason = self.because.clone().unwrap_or_default();
        Ok(TopUp::new(id, name, units, end).because(reason))
    }

    fn publication(&self, file: &str) -> Result<Publication, Failure> {
        let rules = read_rules(file)?;
        let publication = Publication::rules(rules).with_partitions(self.partitions.iter().copied());
        let publication = match (self.percent, &*self.partitions) {
            (Some(percent), _) => publication.rollout_percent(percent),
            (None, []) => publication,
            (None, _) => return Err(usage("--partition requires --percent, which may be 0")),
        };
        let publication = match self.restart_counts {
            true => publication.allow_count_reset(),
            false => publication,
        };
        Ok(self.force(publication))
    }

    fn force(&self, publication: Publication) -> Publication {
        match self.overwrite {
            true => publication.force(),
            false => publication,
        }
    }
}

/// Returns `true` for networks larger than a typical provider's allocation.
fn is_large(network: &str) -> bool {
    let smallest = if network.contains(':') { 32 } else { 16 };
    let prefix = network
        .split_once('/')
        .and_then(|(_, prefix)| prefix.parse::<u8>().ok());
    prefix.is_some_and(|prefix| prefix < smallest)
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::Usage(message.into())
}

/// A name that occurs twice is an error, because the last number would replace the others.
fn assignments(texts: &[impl AsRef<str>]) -> Result<BTreeMap<String, u64>, Failure> {
    let mut numbers = BTreeMap::new();
    for text in texts {
        let (name, number) = assignment(text.as_ref())?;
        if let Some(other) = numbers.insert(name.clone(), number) {
            return Err(usage(format!(
                "policy {name:?} occurs twice, with {other} and {number}"
            )));
        }
    }
    Ok(numbers)
}

/// For example, `minute=5000`.
fn assignment(text: &str) -> Result<(String, u64), Failure> {
    let parts = text.rsplit_once('=').filter(|(name, _)| !name.is_empty());
    let parts = parts.and_then(|(name, number)| Some((name.to_owned(), number.parse().ok()?)));
    parts.ok_or_else(|| usage(format!("{text:?} is not POLICY=NUMBER, such as minute=5000")))
}

fn day(text: &str) -> Result<u8, String> {
    let day = text.parse().ok().filter(|day| (1..=31).contains(day));
    day.ok_or_else(|| format!("{text:?} is not a day from 1 to 31"))
}

fn percent(text: &str) -> Result<u8, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok();
    percent
        .filter(|percent| *percent <= 100)
        .ok_or_else(|| format!("{text:?} is not a percentage from 0 to 100"))
}

/// For example, `90s`, `10m`, `2h` or `1d`.
fn duration(text: &str) -> Result<Duration, String> {
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
    let seconds = seconds().ok_or_else(|| format!("{text:?} is not a duration, such as 90s, 10m, 2h or 1d"));
    seconds.map(Duration::from_secs)
}
