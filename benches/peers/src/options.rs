//! The options of the command line.

use std::{fmt::Display, str::FromStr, time::Duration};

use crate::results::outputs::Outputs;

pub const USAGE: &str = "\
Options:
  --rounds N     rounds of every table of ratios (5)
  --seconds N    length of one turn of one limiter in a round (1)
  --users N      users that are counted (100000)
  --only NAME    only limiters with this in their names, beside the bare script and tower-quota
  --part NAME    only this part: allowed, rejected, size; may be given several times
  --json FILE    the numbers of the parts allowed and rejected for machines, also to FILE; - is stdout, and the text
                 goes to stderr
  --svg FILE     a picture of the part allowed, also to FILE; - is stdout, and the text goes to stderr";

const PARTS: [&str; 3] = ["allowed", "rejected", "size"];

#[derive(Clone, Debug)]
pub struct Options {
    pub rounds: usize,
    /// The length of one turn.
    pub length: Duration,
    pub users: u32,
    pub outputs: Outputs,
    only: Option<String>,
    parts: Vec<String>,
}

impl Options {
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            rounds: 5,
            length: Duration::from_secs(1),
            users: 100_000,
            outputs: Outputs::default(),
            only: None,
            parts: Vec::new(),
        };
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name}: a value is missing"))?;
            match name.as_str() {
                "--rounds" => options.rounds = number(&name, &value, 1, 1_000)?,
                "--seconds" => options.length = Duration::from_secs_f64(number(&name, &value, 0.05, 600.0)?),
                "--users" => options.users = number(&name, &value, 1, 999_999)?,
                "--only" => options.only = Some(value),
                "--part" if PARTS.contains(&value.as_str()) => options.parts.push(value),
                "--part" => return Err(format!("--part: {value} is none of {}", PARTS.join(", "))),
                _ if options.outputs.take(&name, || Some(value))? => {}
                _ => return Err(format!("{name}: no such option")),
            }
        }
        Ok(options)
    }

    pub fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }

    /// Returns `true` if this limiter is measured. The first two always are, because the others are compared to them.
    pub fn includes(&self, index: usize, name: &str) -> bool {
        index < 2 || self.only.as_ref().is_none_or(|only| name.contains(only))
    }
}

fn number<T: FromStr + PartialOrd + Display>(name: &str, value: &str, least: T, most: T) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| (&least..=&most).contains(&number));
    number.ok_or_else(|| format!("{name}: {value} is no number from {least} to {most}"))
}
