use std::{
    io::{self, BufRead, IsTerminal, Write},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::{Instant, interval};
use tower_quota_fleet::{Control, Proposal, Publication, RulesPublisher};

use super::{
    fleet::{Fleet, REPORTED_WITHIN, until_reported},
    options::{Options, Part},
    outcome::{Failure, Report},
    show::{controls_json, controls_text},
};

const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn diff(options: &Options, publication: Publication) -> Result<Report, Failure> {
    let proposal = options.publisher()?.propose(publication).await?;
    Ok(Report::new(proposal.to_string(), changes(&proposal)))
}

pub(crate) async fn change(options: &Options, publication: Publication) -> Result<Report, Failure> {
    let publisher = options.publisher()?;
    // After a loss of data, instances need a second or two to report.
    let before = fleet_before(options, &publisher).await?;
    let proposal = publisher.propose(publication).await?;
    if !proposal.is_empty() {
        confirm(options, &proposal)?;
    }
    let published = publisher.commit(&proposal).await?;
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
    if !options.no_wait {
        let version = published.version();
        let follows = |fleet: &Fleet| fleet.all_run(version);
        if let Some(fleet) = follow(options, before, follows, &mut report).await? {
            report.text.push_str(&fleet.text(Some(version)));
        }
    }
    Ok(report)
}

pub(crate) async fn control(options: &Options, control: Control, part: Part, asks: bool) -> Result<Report, Failure> {
    let publisher = options.publisher()?;
    if asks && !options.yes {
        let question = format!("Change the access list of rule set {:?}?", options.set()?);
        ask(options, &question, "--yes")?;
    }
    if let Some(warning) = control.warning().filter(|_| !options.drastic) {
        ask(options, &format!("{warning}. Is this intended?"), "--drastic")?;
    }
    let before = match publisher.current().await {
        Ok(Some(_)) => reports_before(options).await?,
        // Redis may have just lost some reports, so wait for the full time.
        _ => usize::MAX,
    };
    let controls = publisher.control(control).await?;
    let mut report = Report::new(controls_text(&controls), controls_json(&controls));
    report.json["changed"] = json!(true);
    if !options.no_wait {
        let obeys = |fleet: &Fleet| fleet.all_obey(&controls, part);
        if let Some(fleet) = follow(options, before, obeys, &mut report).await? {
            report.text.push_str(&fleet.obedience_text(&controls, part));
        }
    }
    Ok(report)
}

/// Waits for instances that report a loss of data, because the next version must exceed theirs.
async fn fleet_before(options: &Options, publisher: &RulesPublisher) -> Result<usize, Failure> {
    if matches!(publisher.current().await, Ok(None)) {
        until_reported().await;
        return Ok(usize::MAX);
    }
    reports_before(options).await
}

/// Without reports, Redis may have just lost them, so the wait takes its full time.
async fn reports_before(options: &Options) -> Result<usize, Failure> {
    let reports = Fleet::read(&options.rules()?).await.map_or(0, |fleet| fleet.len());
    Ok(if reports == 0 { usize::MAX } else { reports })
}

fn confirm(options: &Options, proposal: &Proposal) -> Result<(), Failure> {
    proposal.check_count_resets()?;
    if !options.yes {
        ask(
            options,
            &format!("{proposal}Publish this for rule set {:?}?", options.set()?),
            "--yes",
        )?;
    }
    let drastic: Vec<_> = proposal.drastic().map(ToString::to_string).collect();
    if !drastic.is_empty() && !options.drastic {
        ask(
            options,
            &format!("{}\nIs this intended?", drastic.join("\n")),
            "--drastic",
        )?;
    }
    Ok(())
}

fn ask(options: &Options, question: &str, option: &str) -> Result<(), Failure> {
    if options.json || !io::stdin().is_terminal() {
        let message = format!("{question} No terminal for a confirmation; add {option}");
        return Err(Failure::Usage(message));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    let read = io::stderr()
        .flush()
        .and_then(|()| io::stdin().lock().read_line(&mut answer));
    match read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        true => Ok(()),
        false => Err(Failure::Unconfirmed),
    }
}

/// Waits up to 5 s until all instances follow, and 2 s for `before` reports.
async fn follow(
    options: &Options,
    before: usize,
    follows: impl Fn(&Fleet) -> bool,
    report: &mut Report,
) -> Result<Option<Fleet>, Failure> {
    let (rules, start) = (options.rules()?, Instant::now());
    let mut looks = interval(Duration::from_millis(200));
    let fleet = loop {
        looks.tick().await;
        let fleet = match Fleet::read(&rules).await {
            Ok(fleet) => fleet,
            // The publication succeeded, so its result is shown even if the reports are unavailable.
            Err(error) => {
                report.text.push_str(&format!("instances: unknown, {error}\n"));
                report.is_partial = true;
                return Ok(None);
            }
        };
        // If Redis has lost its data, it has also lost the reports, so wait for instances that have not reported yet.
        let are_all = fleet.len() >= before || start.elapsed() > REPORTED_WITHIN;
        if (are_all && follows(&fleet)) || start.elapsed() > PATIENCE {
            break fleet;
        }
    };
    report.is_partial = !follows(&fleet);
    report.json["instances"] = fleet.json();
    report.json["all_follow"] = json!(!report.is_partial);
    Ok(Some(fleet))
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
        "before": proposal.base().map(|before| before.version().number()),
        "is_empty": proposal.is_empty(),
        "starts_anew": proposal.count_resets().count() > 0,
        "effects": effects.collect::<Vec<_>>(),
        "text": proposal.to_string().lines().collect::<Vec<_>>(),
    })
}
