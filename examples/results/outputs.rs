//! The options `--json` and `--svg` for the output files of a program.

use std::{
    error::Error,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::pictures;

pub(crate) const USAGE: &str = "\
  --json FILE        the results for machines, also to FILE; - is stdout, in place of the text
  --svg FILE         a picture of the results, also to FILE; - is stdout, in place of the text
";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outputs {
    json: Option<Target>,
    svg: Option<Target>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Stdout,
    File(PathBuf),
}

impl Outputs {
    /// Parses the options of a program without other options.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let (mut outputs, mut arguments) = (Self::default(), arguments.into_iter());
        while let Some(name) = arguments.next() {
            if !outputs.take(&name, || arguments.next())? {
                return Err(format!("{name} is no option"));
            }
        }
        Ok(outputs)
    }

    /// Sets an option. Returns `false` for unknown options.
    pub(crate) fn take(&mut self, name: &str, value: impl FnOnce() -> Option<String>) -> Result<bool, String> {
        let own = match name {
            "--json" => &mut self.json,
            "--svg" => &mut self.svg,
            _ => return Ok(false),
        };
        let value = value().ok_or_else(|| format!("{name} has no value"))?;
        *own = Some(match &*value {
            "-" => Target::Stdout,
            path => Target::File(file(name, Path::new(path))?),
        });
        if self.json == self.svg {
            return Err(format!("--json and --svg both go to {value}"));
        }
        Ok(true)
    }

    /// Returns `true` if results are written to stdout, so that no text may be.
    pub(crate) fn take_stdout(&self) -> bool {
        [&self.json, &self.svg].contains(&&Some(Target::Stdout))
    }

    /// Writes the text to stdout, unless results are written there, and the results to the requested files.
    pub(crate) fn write(&self, text: &str, results: &Value) -> Result<(), Box<dyn Error>> {
        if !self.take_stdout() {
            Target::Stdout.write(text)?;
        }
        if let Some(target) = &self.json {
            target.write(&lines(results))?;
        }
        if let Some(target) = &self.svg {
            target.write(&pictures::draw(results)?)?;
        }
        Ok(())
    }
}

/// Creates the file early, so that an invalid path is reported before minutes of work.
fn file(name: &str, path: &Path) -> Result<PathBuf, String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.is_none_or(Path::is_dir) && !path.is_dir() && path.file_name().is_some() {
        true => Ok(path.to_owned()),
        false => Err(format!("{name} {}: there can be no such file", path.display())),
    }
}

impl Target {
    fn write(&self, text: &str) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Stdout => io::stdout().lock().write_all(text.as_bytes())?,
            Self::File(path) => fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?,
        }
        Ok(())
    }
}

/// Formats JSON with a line for each field and list entry.
pub(crate) fn lines(results: &Value) -> String {
    let Value::Object(fields) = results else {
        return format!("{results}\n");
    };
    let fields = fields.iter().map(|(name, value)| match value {
        Value::Array(entries) if entries.iter().any(Value::is_object) => {
            let entries: Vec<_> = entries.iter().map(|entry| format!("    {entry}")).collect();
            format!("  {}: [\n{}\n  ]", json!(name), entries.join(",\n"))
        }
        value => format!("  {}: {value}", json!(name)),
    });
    format!("{{\n{}\n}}\n", fields.collect::<Vec<_>>().join(",\n"))
}

/// Rounds to three decimal places, which exceeds the precision of the measurements.
pub(crate) fn rounded(number: f64) -> Value {
    json!((number * 1_000.0).round() / 1_000.0)
}
