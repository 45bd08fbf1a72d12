//! Requests that create and change schedules (contract 14.2).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::cron::Expression;
use super::{Misfire, Overlap, Timing};
use crate::batch::request::BatchSpec;
use crate::error::Error;
use crate::http::fields::Fields;
use crate::http::page::{boolean_parameter, last_value};
use crate::time::Timestamp;

/// Maximum length of a name, in characters.
const MAX_NAME: usize = 128;
/// Maximum length of `timezone`, in characters. A longer name is not a time zone.
const MAX_TIMEZONE: usize = 64;
/// The default of `timezone`.
const UTC: &str = "UTC";

/// The fields of a schedule object that `PUT` and `PATCH` accept and ignore.
const READ_ONLY: &[&str] = &["id", "owner", "next_runs", "last_run", "added_at", "updated_at"];
/// The fields that say what to run. One of them replaces the others in a `PATCH`.
const WHAT_TO_RUN: [&str; 4] = ["line", "command", "argv", "script"];
/// The fields that belong to `script`.
const SCRIPT_FIELDS: [&str; 2] = ["script_version", "params"];

/// The fields of a schedule that a request sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScheduleSpec {
    pub name: String,
    pub cron: String,
    /// A name from the IANA time zone database.
    pub timezone: String,
    pub timing: Timing,
    /// What each run runs, and where.
    pub batch: BatchSpec,
}

/// The filters of a list of schedules.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ScheduleFilter {
    /// The exact name.
    pub name: Option<String>,
    pub enabled: Option<bool>,
}

impl ScheduleFilter {
    /// Reads `name` and `enabled`.
    ///
    /// # Errors
    /// A field error if `enabled` is neither true nor false.
    pub fn from_query(query: &[(String, String)]) -> Result<Self, Error> {
        let enabled = boolean_parameter(query, "enabled")?;
        Ok(Self { name: last_value(query, "name").map(str::to_owned), enabled })
    }
}

/// The stored form of what a schedule runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredBatch {
    /// The fields that a response shows, in the form of a request.
    pub definition: Map<String, Value>,
    /// The fields that no response shows, in the form of a request.
    pub hidden: Map<String, Value>,
}

impl StoredBatch {
    pub fn new(batch: &BatchSpec) -> Self {
        let BatchSpec { command, targets, .. } = batch;
        let script = command.script.as_ref();
        // A response shows what the request had: with `argv` or `script` there was no line.
        let line = (command.argv.is_none() && script.is_none()).then_some(&command.line);
        let definition = [
            ("targets", json!(targets)),
            ("shell", json!(command.shell)),
            ("line", json!(line)),
            ("argv", json!(command.argv)),
            ("script", json!(script.map(|call| call.script))),
            ("script_version", json!(script.and_then(|call| call.version))),
            ("username", json!(command.username)),
            ("groupname", json!(command.groupname)),
            ("timeout", json!(command.timeout)),
            ("max_concurrency", json!(batch.max_concurrency)),
            ("max_errors", json!(batch.max_errors)),
            ("ramp", json!(batch.ramp)),
            ("on_offline", json!(batch.on_offline)),
        ];
        let definition =
            definition.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        let mut hidden = match json!(command.inputs) {
            Value::Object(inputs) => inputs,
            _ => Map::new(),
        };
        // A run makes the parameters' variables of the version that it runs.
        if let Some(params) = script.map(|call| &call.params).filter(|params| !params.is_empty()) {
            hidden.insert("params".to_owned(), json!(params));
        }
        Self { definition, hidden }
    }

    /// The fields of a request for the same batch.
    fn into_fields(self) -> Map<String, Value> {
        let mut fields = self.definition;
        fields.extend(self.hidden);
        fields
    }

    /// Reads the batch of a run.
    ///
    /// # Errors
    /// The fields are not valid any more.
    pub fn read(self) -> Result<BatchSpec, Error> {
        let mut fields = Fields::default().over(self.into_fields());
        let batch = BatchSpec::read(&mut fields);
        fields.finish_with(batch)
    }
}

/// Reads an optional choice. `choices` are the values with their names; the first is the default.
fn read_choice<T: Copy>(
    fields: &mut Fields,
    name: &'static str,
    choices: &[(&'static str, T)],
) -> Option<T> {
    let Some(sent) = fields.value(name) else { return choices.first().map(|(_, value)| *value) };
    let found = choices.iter().find(|(choice, _)| sent.as_str() == Some(choice));
    if found.is_none() {
        let names: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
        fields.reject(name, format!("Choose {}.", names.join(" or ")));
    }
    found.map(|(_, value)| *value)
}

/// Reads a time that may be missing or null.
fn read_time(fields: &mut Fields, name: &'static str) -> Option<Timestamp> {
    let text = fields.optional_text(name, 1..=64)?;
    Timestamp::parse(&text).map_err(|problem| fields.reject(name, problem.to_string())).ok()
}

impl ScheduleSpec {
    /// Reads a `POST`, or a `PUT` with `is_replacement`. `is_zone`: whether the platform knows a
    /// time zone.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(
        mut fields: Fields,
        is_replacement: bool,
        is_zone: impl Fn(&str) -> bool,
    ) -> Result<Self, Error> {
        if is_replacement {
            fields.ignore(READ_ONLY);
        }
        let name = fields.text("name", 1..=MAX_NAME);
        let cron = fields.text("cron", 1..=usize::MAX);
        if let Some(Err(problem)) = cron.as_deref().map(Expression::parse) {
            fields.reject("cron", problem.to_string());
        }
        let timezone = fields.optional_text("timezone", 1..=usize::MAX);
        let timezone = timezone.unwrap_or_else(|| UTC.to_owned());
        if timezone.chars().count() > MAX_TIMEZONE || !is_zone(&timezone) {
            let message = "Enter a time zone of the IANA database, such as Europe/Berlin.";
            fields.reject("timezone", message);
        }
        let enabled = fields.optional_boolean("enabled").unwrap_or(true);
        let (starts_at, ends_at) =
            (read_time(&mut fields, "starts_at"), read_time(&mut fields, "ends_at"));
        if starts_at.zip(ends_at).is_some_and(|(start, end)| end <= start) {
            fields.reject("ends_at", "Ensure this is later than starts_at.");
        }
        let misfires = [("run_once", Misfire::RunOnce), ("skip", Misfire::Skip)];
        let misfire = read_choice(&mut fields, "misfire", &misfires);
        let overlaps =
            [("skip", Overlap::Skip), ("allow", Overlap::Allow), ("queue", Overlap::Queue)];
        let overlap = read_choice(&mut fields, "overlap", &overlaps);
        let batch = BatchSpec::read(&mut fields);
        let choices = misfire.zip(overlap);
        let (((name, cron), batch), (misfire, overlap)) =
            fields.finish_with(name.zip(cron).zip(batch).zip(choices))?;
        let timing = Timing { enabled, starts_at, ends_at, misfire, overlap };
        Ok(Self { name, cron, timezone, timing, batch })
    }

    /// Reads a `PATCH` of this schedule.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn changed(&self, fields: Fields, is_zone: impl Fn(&str) -> bool) -> Result<Self, Error> {
        let mut old = StoredBatch::new(&self.batch).into_fields();
        if WHAT_TO_RUN.iter().any(|name| fields.has(name)) {
            WHAT_TO_RUN.iter().chain(&SCRIPT_FIELDS).for_each(|name| _ = old.remove(*name));
        }
        let timing = &self.timing;
        let own = [
            ("name", json!(self.name)),
            ("cron", json!(self.cron)),
            ("timezone", json!(self.timezone)),
            ("enabled", json!(timing.enabled)),
            ("starts_at", json!(timing.starts_at)),
            ("ends_at", json!(timing.ends_at)),
            ("misfire", json!(timing.misfire)),
            ("overlap", json!(timing.overlap)),
        ];
        old.extend(own.map(|(name, value)| (name.to_owned(), value)));
        Self::read(fields.over(old), true, is_zone)
    }

    /// Whether a change from `old` is of the name or of `enabled` only. Another change makes the
    /// caller the owner.
    pub fn keeps_owner(&self, old: &Self) -> bool {
        let timing = Timing { enabled: old.timing.enabled, ..self.timing.clone() };
        *old == Self { name: old.name.clone(), timing, ..self.clone() }
    }

    /// The names of the fields that differ from `old`.
    ///
    /// # Errors
    /// A field cannot be written as JSON.
    pub fn changed_fields(&self, old: &Self) -> Result<Vec<String>, Error> {
        let timing = |spec: &Self| serde_json::to_value(&spec.timing);
        let all = |spec: &Self| -> Result<Map<String, Value>, Error> {
            let mut all = StoredBatch::new(&spec.batch).into_fields();
            if let Value::Object(timing) = timing(spec)? {
                all.extend(timing);
            }
            for (name, value) in
                [("name", &spec.name), ("cron", &spec.cron), ("timezone", &spec.timezone)]
            {
                all.insert(name.to_owned(), json!(value));
            }
            Ok(all)
        };
        let (new, old) = (all(self)?, all(old)?);
        let mut changed: Vec<String> = new
            .iter()
            .filter(|(name, value)| old.get(*name) != Some(value))
            .map(|(name, _)| name.clone())
            .collect();
        changed.extend(old.keys().filter(|name| !new.contains_key(*name)).cloned());
        changed.sort_unstable();
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "01920000-0000-7000-8000-000000000001";

    fn fields(body: &Value) -> Fields {
        Fields::from_json(body.to_string().as_bytes()).unwrap()
    }

    fn is_zone(name: &str) -> bool {
        ["UTC", "Europe/Berlin"].contains(&name)
    }

    fn body() -> Value {
        json!({
            "name": "nightly", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "line": "backup",
            "targets": {"all": true}, "env": {"TOKEN": "s3cret"}, "max_errors": "10%",
        })
    }

    /// Reads the fields of `body`, with those of `other` over them.
    fn read(other: Value) -> Result<ScheduleSpec, Vec<String>> {
        let mut body = body();
        body.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        ScheduleSpec::read(fields(&body), false, is_zone)
            .map_err(|error| error.fields.keys().map(ToString::to_string).collect())
    }

    fn patch(old: &ScheduleSpec, change: Value) -> ScheduleSpec {
        old.changed(fields(&change), is_zone).unwrap()
    }

    #[test]
    fn a_schedule_has_the_fields_of_a_batch_and_its_own() {
        let spec = read(json!({})).unwrap();
        assert_eq!((spec.name.as_str(), spec.timezone.as_str()), ("nightly", "Europe/Berlin"));
        assert_eq!(spec.batch.command.line, "backup");
        let Timing { enabled, starts_at, ends_at, misfire, overlap } = spec.timing;
        assert_eq!((enabled, starts_at, ends_at), (true, None, None));
        assert_eq!((misfire, overlap), (Misfire::RunOnce, Overlap::Skip));
        let times = json!({"starts_at": "2026-11-21T00:00:00Z", "ends_at": "2026-11-22T00:00:00Z", "misfire": "skip", "overlap": "queue"});
        let timing = read(times).unwrap().timing;
        assert!(timing.starts_at < timing.ends_at && timing.starts_at.is_some());
        assert_eq!((timing.misfire, timing.overlap), (Misfire::Skip, Overlap::Queue));
    }

    #[test]
    fn other_fields_are_refused() {
        for (bad, field) in [
            (json!({"name": " "}), "name"),
            (json!({"name": "a".repeat(129)}), "name"),
            (json!({"cron": "0 25 * * *"}), "cron"),
            (json!({"cron": null}), "cron"),
            (json!({"cron": 5}), "cron"),
            (json!({"timezone": "Europe/Atlantis"}), "timezone"),
            (json!({"timezone": ""}), "timezone"),
            (json!({"timezone": 1}), "timezone"),
            (json!({"enabled": "yes"}), "enabled"),
            (json!({"starts_at": "tomorrow"}), "starts_at"),
            (json!({"ends_at": "2026-11-21T00:00:00"}), "ends_at"),
            (
                json!({"starts_at": "2026-11-21T00:00:00Z", "ends_at": "2026-11-21T00:00:00Z"}),
                "ends_at",
            ),
            (json!({"misfire": "run"}), "misfire"),
            (json!({"overlap": 1}), "overlap"),
            (json!({"targets": null}), "targets"),
            (json!({"line": ""}), "line"),
            (json!({"argv": ["ls"]}), "argv"),
            (json!({"scheduled_at": "2026-11-21T00:00:00Z"}), "scheduled_at"),
            (json!({"expires_at": "2026-11-21T00:00:00Z"}), "expires_at"),
            (json!({"dry_run": true}), "dry_run"),
            (json!({"owner": null}), "owner"),
            (json!({"server": "web"}), "server"),
        ] {
            assert_eq!(read(bad.clone()), Err(vec![field.to_owned()]), "{bad}");
        }
    }

    #[test]
    fn a_stored_batch_is_read_again() {
        for what in [
            json!({}),
            json!({"line": null, "argv": ["ls", "-l"], "stdin": "x", "cwd": "/tmp"}),
            json!({"line": null, "script": SCRIPT, "params": {"KEY": "s3cret"}}),
            json!({"line": null, "script": SCRIPT, "script_version": 2}),
        ] {
            let batch = read(what).unwrap().batch;
            let stored = StoredBatch::new(&batch);
            let shown = json!(stored.definition).to_string();
            assert!(!shown.contains("s3cret") && !shown.contains("/tmp"), "{shown}");
            assert_eq!(stored.read().unwrap(), batch);
        }
    }

    #[test]
    fn a_patch_replaces_a_script_with_its_version_and_parameters() {
        let script =
            json!({"line": null, "script": SCRIPT, "script_version": 2, "params": {"N": 1}});
        let old = read(script).unwrap();
        let other = patch(&old, json!({"params": {"N": 2}}));
        let call = other.batch.command.script.clone().unwrap();
        assert_eq!((call.version, json!(call.params)), (Some(2), json!({"N": 2})));
        let line = patch(&old, json!({"line": "uptime"})).batch.command;
        assert_eq!((line.script, line.line.as_str()), (None, "uptime"));
        let back = patch(&read(json!({})).unwrap(), json!({"script": SCRIPT})).batch.command;
        assert_eq!(back.script.unwrap().version, None);
    }

    #[test]
    fn a_patch_keeps_all_other_fields() {
        let old = read(json!({"ends_at": "2030-01-01T00:00:00Z"})).unwrap();
        assert_eq!(patch(&old, json!({})), old);
        let named = patch(&old, json!({"name": "weekly", "enabled": false, "id": 7}));
        assert!(named.keeps_owner(&old) && !named.timing.enabled);
        assert_eq!(named.changed_fields(&old).unwrap(), ["enabled", "name"]);
        let words = patch(&old, json!({"argv": ["ls"], "ends_at": null}));
        assert_eq!(words.batch.command.line, "ls");
        assert_eq!(words.batch.command.inputs, old.batch.command.inputs);
        assert!(!words.keeps_owner(&old));
        assert_eq!(words.changed_fields(&old).unwrap(), ["argv", "ends_at", "line"]);
        let without = patch(&old, json!({"env": null}));
        assert_eq!(without.batch.command.inputs, None);
        assert_eq!(without.changed_fields(&old).unwrap(), ["env"]);
        assert!(!without.keeps_owner(&old));
    }
}
