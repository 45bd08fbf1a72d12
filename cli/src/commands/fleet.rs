//! The servers of a batch or a schedule, and how it runs on them.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

#[derive(Args)]
pub struct Fleet {
    /// The servers whose labels match, such as env=prod,role=web
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// All servers
    #[arg(long, conflicts_with = "selector")]
    all: bool,
    /// How many commands may run concurrently, or the percentage of the servers. The service's
    /// default is 50
    #[arg(long, value_name = "N|N%", value_parser = amount)]
    max_concurrency: Option<Value>,
    /// Start with one command, and double the number up to `--max-concurrency`
    #[arg(long)]
    ramp: bool,
    /// How many commands may fail, or the percentage of the servers. After more failures, no
    /// further command starts. The default is no limit
    #[arg(long, value_name = "N|N%", value_parser = amount)]
    max_errors: Option<Value>,
    /// What happens to servers whose agent is not connected
    #[arg(long, value_enum, value_name = "WHAT")]
    on_offline: Option<Offline>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Offline {
    /// They are left out. The default.
    Skip,
    /// The command waits for their agent.
    Queue,
    /// Nothing runs.
    Reject,
}

impl Fleet {
    /// Whether the servers are selected by labels, or are all servers.
    pub fn selects(&self) -> bool {
        self.selector.is_some() || self.all
    }

    /// Whether an option needs a batch.
    pub fn is_given(&self) -> bool {
        self.selects()
            || self.max_concurrency.is_some()
            || self.ramp
            || self.max_errors.is_some()
            || self.on_offline.is_some()
    }

    /// Adds the fields of the request. `servers` are the servers that the user names.
    pub fn add_to(&self, fields: &mut Map<String, Value>, servers: &[String]) {
        let targets = match &self.selector {
            Some(selector) => json!({"selector": selector}),
            None if self.all => json!({"all": true}),
            None => json!({"servers": servers}),
        };
        fields.insert("targets".into(), targets);
        for (name, value) in
            [("max_concurrency", &self.max_concurrency), ("max_errors", &self.max_errors)]
        {
            fields.extend(value.clone().map(|value| (name.to_owned(), value)));
        }
        if self.ramp {
            fields.insert("ramp".into(), json!(true));
        }
        let name = match self.on_offline {
            None => return,
            Some(Offline::Skip) => "skip",
            Some(Offline::Queue) => "queue",
            Some(Offline::Reject) => "reject",
        };
        fields.insert("on_offline".into(), json!(name));
    }
}

/// Reads a number, or a percentage such as `25%`. The service checks its range.
fn amount(text: &str) -> Result<Value, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<u32>();
    match number {
        Ok(_) if text.ends_with('%') => Ok(json!(text)),
        Ok(number) => Ok(json!(number)),
        Err(_) => Err(format!("{text:?} is not a number or a percentage. Examples: 5, 25%.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_numbers_or_percentages() {
        assert_eq!(amount("5"), Ok(json!(5)));
        assert_eq!(amount("25%"), Ok(json!("25%")));
        for wrong in ["", "%", "-1", "5 %", "half", "5%%"] {
            assert!(amount(wrong).is_err(), "{wrong:?}");
        }
    }
}
