use std::{
    fmt,
    io::{self, Read},
};

use tower_quota::Rules;
use tower_quota_fleet::RulesDocument;

use super::outcome::Failure;

pub(crate) fn read_rules(file: &str) -> Result<Rules, Failure> {
    let in_file = |problem: &dyn fmt::Display| format!("{file}: {problem}");
    let rules: Rules = serde_json::from_slice(&read(file)?).map_err(|error| Failure::Rejected(in_file(&error)))?;
    let document = RulesDocument::new(1, rules.clone());
    document.check().map_err(|error| Failure::Rejected(in_file(&error)))?;
    Ok(rules)
}

pub(crate) fn read_document(file: &str) -> Result<RulesDocument, Failure> {
    RulesDocument::parse(&read(file)?).map_err(|error| Failure::Rejected(format!("{file}: {error}")))
}

fn read(file: &str) -> Result<Vec<u8>, Failure> {
    let in_file = |problem: &dyn fmt::Display| format!("{file}: {problem}");
    let unreadable = |error: io::Error| Failure::Usage(in_file(&error));
    let mut json = Vec::new();
    // A single byte beyond the limit is enough to detect a document that is too long.
    let most = RulesDocument::MAX_LENGTH as u64 + 1;
    let length = match file {
        "-" => io::stdin().take(most).read_to_end(&mut json),
        _ => std::fs::File::open(file).and_then(|opened| opened.take(most).read_to_end(&mut json)),
    };
    if length.map_err(unreadable)? > RulesDocument::MAX_LENGTH {
        return Err(Failure::Rejected(in_file(&"longer than 1 MiB")));
    }
    Ok(json)
}
