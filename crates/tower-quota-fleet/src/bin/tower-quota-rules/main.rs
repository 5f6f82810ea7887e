//! Shows and changes the rules of all instances of a service, and switches limits off, from a terminal.
//! ```sh
//! export RULES_REDIS=redis://publisher:password@10.0.0.1/ RULES_SET=api
//! cargo run --package tower-quota-fleet --features cli -- show
//! tower-quota-rules publish rules.json --percent 10   # the same 10 % of the callers on every instance
//! tower-quota-rules rollback
//! tower-quota-rules block 203.0.113.9 --for 10m
//! tower-quota-rules off
//! ```
//!
//! `tower-quota-rules --help` lists all commands, options and exit codes. README.md in this directory shows common
//! tasks.

mod changes;
mod contracts;
mod files;
mod fleet;
pub(crate) mod options;
mod outcome;
mod show;

use std::process::ExitCode;

use serde_json::json;

use self::{
    files::read_rules,
    options::{Command, Options},
    outcome::{Failure, Report},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args_os().skip(1)) {
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
        Command::Contract { caller, edit } => contracts::run(options, caller, edit).await,
        Command::Control { control, part, asks } => changes::control(options, control.clone(), *part, *asks).await,
    }
}

/// Requires no server.
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
