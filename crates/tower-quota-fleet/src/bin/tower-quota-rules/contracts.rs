use serde::Serialize;
use serde_json::{Value, json};
use tower_quota::PartitionKey;
use tower_quota_fleet::Contract;

use super::{
    options::{ContractEdit, Options},
    outcome::{Failure, Report},
    show::date,
};

pub(crate) async fn run(options: &Options, caller: &PartitionKey, edit: &ContractEdit) -> Result<Report, Failure> {
    let contracts = options.contracts()?;
    let report = |text: &str, is_changed| Report::new(format!("{text}\n"), json!({"changed": is_changed}));
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

fn json_of(contract: &Contract) -> Result<Value, Failure> {
    fn value<T: Serialize + ?Sized>(of: &T) -> Result<Value, Failure> {
        serde_json::to_value(of).map_err(|error| Failure::Broken(error.to_string()))
    }
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
