//! Charts of the results of programs.

mod load;
mod others;

use serde_json::Value;

/// Draws the results of any supported program. Errors name the missing field.
pub(crate) fn draw(results: &Value) -> Result<String, String> {
    let read = Results(results);
    match (read.text("program")?, results["mode"].as_str()) {
        ("load", Some("find")) => load::rates(&read),
        ("load", Some("outage")) => load::outage(&read),
        ("load", Some("callers")) => load::callers(&read),
        ("load", _) => load::latencies(&read),
        ("peers", _) => others::peers(&read),
        ("soak", _) => others::soak(&read),
        (program, _) => Err(format!("there is no picture for the results of {program}")),
    }
}

/// Provides access to fields by path, such as `redis.used_bytes`.
struct Results<'a>(&'a Value);

impl<'a> Results<'a> {
    fn get(&self, path: &str) -> &'a Value {
        path.split('.').fold(self.0, |value, name| &value[name])
    }

    fn text(&self, path: &str) -> Result<&'a str, String> {
        self.get(path).as_str().ok_or_else(|| format!("no text at {path}"))
    }

    fn number(&self, path: &str) -> Result<f64, String> {
        self.get(path).as_f64().ok_or_else(|| format!("no number at {path}"))
    }

    fn entries(&self, path: &str) -> Result<Vec<Self>, String> {
        let entries = self.get(path).as_array().ok_or_else(|| format!("no list at {path}"))?;
        Ok(entries.iter().map(Results).collect())
    }

    /// Returns a point for each entry of a list.
    fn points(
        &self,
        path: &str,
        point: impl Fn(&Results<'a>) -> Result<(f64, f64), String>,
    ) -> Result<Vec<(f64, f64)>, String> {
        self.entries(path)?.iter().map(point).collect()
    }
}
