//! The rules of all instances of a service, from a terminal: to look at them, to change them, and to switch them off.
//!
//! ```sh
//! export RULES_REDIS=redis://publisher:password@10.0.0.1/ RULES_SET=api
//! cargo run --package tower-quota-fleet --features cli -- show
//! tower-quota-rules publish rules.json --percent 10   # the same 10 % of the callers on every instance
//! tower-quota-rules rollback
//! tower-quota-rules block 203.0.113.9 --for 10m
//! tower-quota-rules off
//! ```
//!
//! `tower-quota-rules --help` has all commands, options and exit codes. README.md beside this file shows a night on call.

mod changes;
pub(crate) mod options;
mod show;

use std::{
    fmt,
    io::{self, Read},
    process::ExitCode,
};

use serde_json::{Value, json};
use tower_quota::{Rules, StoreError};
use tower_quota_fleet::{FleetError, FleetErrorKind, RulesDocument};

use self::options::{Command, Options};

/// The output of a command: lines for people, or one object for programs.
pub(crate) struct Report {
    text: String,
    json: Value,
    /// True if it was done, but not all of it.
    is_partial: bool,
}

impl Report {
    pub(crate) fn new(text: impl Into<String>, json: Value) -> Self {
        let (text, is_partial) = (text.into(), false);
        Self { text, json, is_partial }
    }

    pub(crate) fn code(&self) -> u8 {
        if self.is_partial { 5 } else { 0 }
    }

    pub(crate) fn printed(&self, as_json: bool) -> String {
        match as_json {
            true => format!("{}\n", self.json),
            false => self.text.clone(),
        }
    }
}

/// The reason why a command is not done, by what to do about it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Redis does not answer, or holds something that cannot be read.
    Broken(String),
    /// A person has said no.
    Unconfirmed,
    /// It makes no sense.
    Usage(String),
    /// It was understood, and is not done because of what it would do.
    Rejected(String),
}

impl Failure {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Broken(_) => 1,
            Self::Usage(_) => 2,
            Self::Rejected(_) => 3,
            Self::Unconfirmed => 4,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(message) | Self::Usage(message) | Self::Rejected(message) => f.write_str(message),
            Self::Unconfirmed => f.write_str("not confirmed, nothing was published"),
        }
    }
}

impl From<FleetError> for Failure {
    fn from(error: FleetError) -> Self {
        let message = error.to_string();
        match error.kind() {
            FleetErrorKind::Config => Self::Usage(message),
            FleetErrorKind::Unavailable => Self::Broken(message),
            FleetErrorKind::Unreadable => Self::Broken(format!(
                "{message}\n`rollback --overwrite` or `publish FILE --overwrite` takes its place"
            )),
            FleetErrorKind::CountsReset => Self::Rejected(format!(
                "{message}\nCallers would get a full quota once. If that is meant, add --restart-counts."
            )),
            FleetErrorKind::UnreadableAccess => Self::Broken(format!("{message}\n`unblock --all` begins a new list")),
            FleetErrorKind::AfterRollBack => Self::Rejected(format!("{message}\nAdd --to VERSION. See `history`.")),
            FleetErrorKind::NothingPublished => Self::Rejected(format!(
                "{message}\nIf Redis has lost the rules, `restore FILE` brings them back. See `show`."
            )),
            FleetErrorKind::Conflict => Self::Rejected(format!("{message}\nNothing was published. See `show`.")),
            _ => Self::Rejected(message),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Broken(error.to_string())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = match Options::from_environment() {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{}", options::HELP);
            return ExitCode::SUCCESS;
        }
        Err(failure) => {
            eprintln!("tower-quota-rules: {failure}");
            if let Failure::Usage(_) = failure {
                eprintln!("Try `tower-quota-rules --help`.");
            }
            return ExitCode::from(failure.code());
        }
    };
    match run(&options).await {
        Ok(report) => {
            print!("{}", report.printed(options.json));
            ExitCode::from(report.code())
        }
        Err(failure) => {
            if options.json {
                println!("{}", json!({"error": failure.to_string(), "exit_code": failure.code()}));
            }
            eprintln!("tower-quota-rules: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

pub(crate) async fn run(options: &Options) -> Result<Report, Failure> {
    match &options.command {
        Command::Check { file } => check(file),
        Command::Show { whole } => show::show(options, *whole).await,
        Command::History => show::history(options).await,
        Command::Diff(publication) => changes::diff(options, publication.clone()).await,
        Command::Change { publication } => changes::change(options, publication.clone()).await,
        Command::Control { control, asks } => changes::control(options, control.clone(), *asks).await,
    }
}

/// Reads rules and checks them, without any server.
fn check(file: &str) -> Result<Report, Failure> {
    let rules = read_rules(file)?;
    let (policies, tiers) = (rules.policies().len(), rules.tiers().count());
    let text = match tiers {
        0 => format!("{file}: {policies} policies for all callers, valid\n"),
        _ => format!("{file}: {tiers} tiers, valid\n"),
    };
    Ok(Report::new(
        text,
        json!({"valid": true, "policies": policies, "tiers": tiers}),
    ))
}

/// The rules of a file, or of standard input where it is `-`.
fn read_rules(file: &str) -> Result<Rules, Failure> {
    let in_file = |problem: &dyn fmt::Display| format!("{file}: {problem}");
    let rules: Rules = serde_json::from_slice(&read(file)?).map_err(|error| Failure::Rejected(in_file(&error)))?;
    let document = RulesDocument::new(1, rules.clone());
    document.check().map_err(|error| Failure::Rejected(in_file(&error)))?;
    Ok(rules)
}

/// A whole document.
fn read_document(file: &str) -> Result<RulesDocument, Failure> {
    RulesDocument::parse(&read(file)?).map_err(|error| Failure::Rejected(format!("{file}: {error}")))
}

fn read(file: &str) -> Result<Vec<u8>, Failure> {
    let in_file = |problem: &dyn fmt::Display| format!("{file}: {problem}");
    let unreadable = |error: io::Error| Failure::Usage(in_file(&error));
    let mut json = Vec::new();
    // A little more than any document may have is enough to see that it is too long.
    let most = RulesDocument::MAX_LENGTH as u64 + 1;
    let length = match file {
        "-" => io::stdin().take(most).read_to_end(&mut json),
        _ => std::fs::File::open(file).and_then(|opened| opened.take(most).read_to_end(&mut json)),
    };
    if length.map_err(unreadable)? > RulesDocument::MAX_LENGTH {
        return Err(Failure::Rejected(in_file(&"it is longer than 1 MiB")));
    }
    Ok(json)
}
