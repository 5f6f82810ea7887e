//! Changes the rules of all instances of a service: see README.md in this directory.
//!
//! ```sh
//! export RULES_REDIS=redis://publisher:password@10.0.0.1/ RULES_SET=api
//! cargo run -p tower-quota-fleet --features cli --bin tower-quota-rules -- show
//! tower-quota-rules publish rules.json --percent 10   # the same 10 % of the callers on every instance
//! tower-quota-rules rollback
//! tower-quota-rules block 203.0.113.9 --for 10m
//! tower-quota-rules off
//! ```

mod changes;
mod contracts;
mod files;
mod fleet;
pub(crate) mod options;
mod outcome;
mod show;

use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use tower_quota::Access;
use tower_quota_fleet::{AccessEntry, Control, Publication};

use self::{
    files::{read_document, read_rules},
    options::{Command, Options, Part, forced, is_large, lasting},
    outcome::{Failure, Report},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
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
    let publish = |publication: Publication| changes::change(options, publication.because(&options.because));
    let control =
        |control: Control, part, asks| changes::control(options, control.because(&options.because), part, asks);
    match &options.command {
        Command::Check { file } => check(file),
        Command::Show { document } => show::show(options, *document).await,
        Command::History => show::history(options).await,
        Command::Diff(new) => changes::diff(options, new.publication()?).await,
        Command::Publish(new) => publish(new.publication()?).await,
        Command::Rollback { to, overwrite } => {
            let publication = to.map_or_else(Publication::roll_back, Publication::roll_back_to);
            publish(forced(publication, *overwrite)).await
        }
        Command::Restore { file, overwrite } => {
            publish(forced(Publication::restore(read_document(file)?), *overwrite)).await
        }
        Command::Off { lasts, without_end } => {
            let off = lasting(Control::switch_off(), *lasts);
            let off = if *without_end { off.without_end() } else { off };
            control(off, Part::Switch, false).await
        }
        Command::On => control(Control::switch_on(), Part::Switch, false).await,
        Command::Block { address, lasts } => {
            let block = lasting(Control::block_network(address), *lasts);
            // A typo in the prefix length can lock out everyone.
            control(block, Part::Access, is_large(address)).await
        }
        Command::Unblock { address: None, .. } => control(Control::clear_access(), Part::Access, true).await,
        Command::Unblock {
            address: Some(address), ..
        } => {
            let entry = AccessEntry::network(address, Access::Block);
            control(Control::remove_access(entry), Part::Access, false).await
        }
        Command::Contract(of) => contracts::run(options, &of.caller(), &of.edit(&options.because)?).await,
        Command::TopUp(of) => contracts::run(options, &of.caller(), &of.edit(&options.because)).await,
    }
}

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
