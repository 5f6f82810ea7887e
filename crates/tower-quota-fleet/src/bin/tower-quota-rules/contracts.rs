use serde::Serialize;
use serde_json::{Value, json};
use tower_quota::{PartitionKey, QuotaPolicy, Rules};
use tower_quota_fleet::{Contract, RulesDocument};

use super::{
    options::{ContractEdit, Options},
    outcome::{Failure, Report},
    show::date,
};

pub(crate) async fn run(options: &Options, caller: &PartitionKey, edit: &ContractEdit) -> Result<Report, Failure> {
    let contracts = options.contracts()?;
    let unchecked = check(options, edit).await?;
    let report = |text: &str, is_changed| {
        let mut report = Report::new(format!("{text}\n"), json!({"changed": is_changed}));
        if let Some(reason) = &unchecked {
            report.text += &format!("not checked against the rules: {reason}\n");
            report.json["unchecked"] = json!(reason);
        }
        report
    };
    Ok(match edit {
        ContractEdit::Show => match contracts.get(caller).await? {
            Some(contract) => {
                let json = json_of(&contract)?;
                Report::new(text_of(&contract, &json["quotas"]), json)
            }
            None => Report::new("no contract\n", Value::Null),
        },
        ContractEdit::Set(contract) => {
            contracts.set(caller, contract).await?;
            report("set; instances apply it within two seconds", true)
        }
        ContractEdit::TopUp(top_up) => match contracts.top_up(caller, top_up).await? {
            true => report("added; instances apply it within two seconds", true),
            false => report("a top-up with this ID already exists; nothing changes", false),
        },
        ContractEdit::Remove => match contracts.remove(caller).await? {
            true => report("removed; instances apply this within two seconds", true),
            false => report("no contract; nothing changes", false),
        },
    })
}

/// Fails for numbers that instances would ignore. Returns why they cannot be checked.
async fn check(options: &Options, edit: &ContractEdit) -> Result<Option<String>, Failure> {
    // The name of the policy, the kind of the number, and the number.
    let mut numbers: Vec<(String, &str, u64)> = Vec::new();
    match edit {
        ContractEdit::Set(contract) => {
            let quotas = value(contract.quotas())?;
            for (policy, own) in quotas["policies"].as_object().into_iter().flatten() {
                let number = |kind| Some((policy.clone(), kind, own[kind].as_u64()?));
                numbers.extend(["quota", "burst_capacity"].into_iter().filter_map(number));
            }
        }
        ContractEdit::TopUp(top_up) => numbers.push((top_up.policy().to_owned(), "top_up", top_up.units())),
        ContractEdit::Show | ContractEdit::Remove => return Ok(None),
    }
    let published = match options.publisher()?.current().await {
        Ok(Some(published)) => published,
        Ok(None) => return Ok(Some("nothing is published".to_owned())),
        // A user who manages contracts may have no access to the rules.
        Err(error) => return Ok(Some(error.to_string())),
    };
    for (name, kind, number) in numbers {
        check_number(published.document(), &name, kind, number).map_err(Failure::Rejected)?;
    }
    Ok(None)
}

/// The number must be valid in at least one tier.
fn check_number(document: &RulesDocument, name: &str, kind: &str, number: u64) -> Result<(), String> {
    let tried = document.roll_out().map(|roll_out| roll_out.rules());
    let all: Vec<&QuotaPolicy> = std::iter::once(document.rules())
        .chain(tried)
        .flat_map(Rules::all_policies)
        .map(|(_, policy)| policy)
        .collect();
    if all.iter().all(|policy| policy.name() != name) {
        let mut names: Vec<_> = all.iter().map(|policy| policy.name()).collect();
        names.sort_unstable();
        names.dedup();
        return Err(format!("no published policy has the name {name:?}, only {names:?}"));
    }
    let bounds = all.iter().filter(|policy| policy.name() == name);
    let bounds: Vec<_> = bounds.filter_map(|policy| policy.caller_quotas()).collect();
    let is_valid = bounds.iter().any(|bounds| match kind {
        "quota" => bounds.contains(&number),
        _ => number <= *bounds.end(),
    });
    match &*bounds {
        [] => Err(format!("policy {name:?} allows no individual quotas (`caller_quotas`)")),
        _ if is_valid => Ok(()),
        _ => {
            let (kind, bounds): (_, Vec<_>) = (
                kind.replace('_', " "),
                bounds.iter().map(|it| format!("{it:?}")).collect(),
            );
            Err(format!(
                "policy {name:?}: {kind} {number} is outside {}",
                bounds.join(", ")
            ))
        }
    }
}

fn value<T: Serialize + ?Sized>(of: &T) -> Result<Value, Failure> {
    serde_json::to_value(of).map_err(|error| Failure::Broken(error.to_string()))
}

fn json_of(contract: &Contract) -> Result<Value, Failure> {
    let mut json = value(contract)?;
    json["top_ups"] = value(contract.top_ups())?;
    Ok(json)
}

fn text_of(contract: &Contract, quotas: &Value) -> String {
    let mut text = String::new();
    for (policy, numbers) in quotas["policies"].as_object().into_iter().flatten() {
        let numbers = [
            ("quota", &numbers["quota"]),
            ("burst capacity", &numbers["burst_capacity"]),
        ];
        let numbers = numbers.into_iter().filter(|(_, number)| !number.is_null());
        let numbers: Vec<String> = numbers.map(|(name, number)| format!("{name} {number}")).collect();
        text += &format!("{policy}: {}\n", numbers.join(", "));
    }
    if let Some(day) = quotas["month_begins"].as_u64() {
        text += &format!("months begin on day {day}\n");
    }
    if let Some(end) = quotas["until"].as_u64() {
        text += &format!("until {}\n", date(end));
    }
    for top_up in contract.top_ups() {
        let (policy, units, end) = (top_up.policy(), top_up.units(), date(top_up.until()));
        text += &format!(
            "top-up {}: {policy} + {units} until {end}{}\n",
            top_up.id(),
            signed(top_up.author(), top_up.reason())
        );
    }
    if contract.time() > 0 {
        let since = date(contract.time());
        text += &format!("since {since}{}\n", signed(contract.author(), contract.reason()));
    }
    // The entry may have been written by another program.
    text.retain(|character| character == '\n' || !character.is_control());
    text
}

fn signed(author: &str, reason: &str) -> String {
    let by = if author.is_empty() {
        String::new()
    } else {
        format!(" by {author}")
    };
    if reason.is_empty() {
        by
    } else {
        format!("{by}: {reason}")
    }
}
