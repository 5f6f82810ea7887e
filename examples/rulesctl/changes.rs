//! Changes: what they would do, and doing it.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::{Instant, interval};
use tower_quota::fleet::{Proposal, Publication, PublishError, Published};

use super::{
    Failure, Report,
    options::Options,
    show::{self, Fleet},
};

/// Instances follow within two seconds.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn diff(options: &Options, publication: Publication) -> Result<Report, Failure> {
    let proposal = options.publisher()?.propose(publication).await?;
    Ok(Report::new(proposal.to_string(), changes(&proposal)))
}

pub(crate) async fn change(options: &Options, publication: Publication, asks: bool) -> Result<Report, Failure> {
    let publisher = options.publisher()?;
    // A person confirms exactly the publication that follows. Without a question, a proposal is made again if another
    // publication comes first.
    let proposal = publisher.propose(publication.clone()).await?;
    let published = if asks && !proposal.is_empty() {
        confirm(options, &proposal)?;
        publisher.commit(&proposal).await?
    } else {
        publisher.publish(publication).await?
    };
    if proposal.is_empty() {
        let version = json!(published.version().number());
        return Ok(Report::new(
            "nothing changes\n",
            json!({"version": version, "changed": false}),
        ));
    }
    let text = match options.json {
        true => String::new(),
        false => format!("{proposal}published {published}\n"),
    };
    let mut report = Report::new(
        text,
        json!({"version": published.version().number(), "changed": true, "change": changes(&proposal)}),
    );
    if options.waits {
        follow(options, &published, &mut report).await?;
    }
    Ok(report)
}

/// Shows what changes, and asks.
fn confirm(options: &Options, proposal: &Proposal) -> Result<(), Failure> {
    let anew: Vec<_> = proposal.starting_anew().cloned().collect();
    if !anew.is_empty() && !proposal.restarts_counts() {
        return Err(PublishError::StartsAnew(anew).into());
    }
    if options.yes {
        return Ok(());
    }
    if options.json || !io::stdin().is_terminal() {
        let message = "there is no terminal to ask; add --yes";
        return Err(Failure::Usage(message.to_owned()));
    }
    eprint!("{proposal}Publish this for rule set {:?}? [y/N] ", options.set);
    let mut answer = String::new();
    let read = io::stderr()
        .flush()
        .and_then(|()| io::stdin().lock().read_line(&mut answer));
    match read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        true => Ok(()),
        false => Err(Failure::Unconfirmed),
    }
}

/// Waits until all instances that report run what was published, and says which do not.
async fn follow(options: &Options, published: &Published, report: &mut Report) -> Result<(), Failure> {
    let (rules, deadline) = (options.rules()?, Instant::now() + PATIENCE);
    let mut looks = interval(Duration::from_millis(200));
    let fleet = loop {
        looks.tick().await;
        let fleet = match rules.instances().await {
            Ok(instances) => Fleet::new(instances),
            // It was published, which is the news. That nothing more is known is no reason to hide it.
            Err(error) => {
                report.text.push_str(&format!("instances: unknown, {error}\n"));
                report.is_partial = true;
                return Ok(());
            }
        };
        if fleet.all_run(published.version()) || Instant::now() > deadline {
            break fleet;
        }
    };
    report.is_partial = !fleet.all_run(published.version());
    report
        .text
        .push_str(&show::instances_text(&fleet, Some(published.version())));
    report.json["instances"] = show::instances_json(&fleet);
    report.json["all_follow"] = json!(!report.is_partial);
    Ok(())
}

fn changes(proposal: &Proposal) -> Value {
    let effects = proposal.effects().map(|(callers, diff)| {
        let changes = diff.changes().iter().map(|change| {
            json!({
                "tier": change.tier(),
                "policy": change.policy(),
                "change": change.kind().as_str(),
                "details": change.details(),
            })
        });
        json!({"callers": callers, "changes": changes.collect::<Vec<_>>()})
    });
    json!({
        "before": proposal.before().map(|before| before.version().number()),
        "is_empty": proposal.is_empty(),
        "starts_anew": proposal.starting_anew().count() > 0,
        "effects": effects.collect::<Vec<_>>(),
        "text": proposal.to_string().lines().collect::<Vec<_>>(),
    })
}
