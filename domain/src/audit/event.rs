//! The audit log: audit events, and the filters of a list of events (`docs/audit.md`).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::error::{Error, FieldErrors};
use crate::http::fields::Fields;
use crate::http::page::last_value;
use crate::time::Timestamp;

/// The workspace id of the region cell's own chain, for the operator's actions. Ids of real
/// workspaces begin at 1.
pub const CELL: i64 = 0;
/// An event has at most this number of characters of a command's line.
pub const MAX_LINE: usize = 1_024;
/// An event has at most this number of ids of a list.
pub const MAX_IDS: usize = 100;
/// The details of a refusal have at most this number of bytes of JSON.
pub const MAX_DENIAL_BYTES: usize = 1_024;
/// The bytes of [`MAX_DENIAL_BYTES`] that are left for `count`.
const COUNT_BYTES: usize = 32;
/// The maximum bytes of JSON of one value in the details of a refusal: first try, second try. Both
/// are longer than a hash in hexadecimal, which is useless if it is cut.
const DENIAL_VALUE_BYTES: [usize; 2] = [256, 80];
/// Maximum number that identifies a chain entry. JSON holds larger numbers inexactly.
const MAX_ENTRY: i64 = 1 << 53;

/// The kind of an actor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorType {
    /// A user of the workspace.
    User,
    /// The agent of a server.
    Agent,
    /// The holder of the operator token.
    Operator,
    /// A caller without a valid credential.
    Anonymous,
    /// Farhand itself, for example when a command expires.
    Service,
}

/// The kind of a credential.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CredentialType {
    /// A login token.
    Session,
    /// An API token.
    ApiToken,
    /// An agent's key. The credential's id is the server's id.
    AgentKey,
    /// A registration token.
    RegistrationToken,
    /// The operator token.
    OperatorToken,
    /// The key in the link of a password reset.
    ResetKey,
}

/// The outcome of an action.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// The action succeeded.
    Success,
    /// The password was wrong.
    Failure,
    /// The caller lacks the permission.
    Denied,
}

impl AuditOutcome {
    /// All outcomes.
    const ALL: [Self; 3] = [Self::Success, Self::Failure, Self::Denied];

    /// The name in requests, responses and D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Denied => "denied",
        }
    }
}

/// Who did something.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Actor {
    /// The kind of the actor.
    #[serde(rename = "type")]
    pub kind: ActorType,
    /// The id of the user or the server.
    pub id: Option<String>,
    /// The name of the user or the server at that time.
    pub name: Option<String>,
}

/// The credential of the actor. Only its id is stored, never its secret.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Credential {
    /// The kind of the credential.
    #[serde(rename = "type")]
    pub kind: CredentialType,
    /// The credential's id, if it has one.
    pub id: Option<String>,
}

/// The object of an action.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuditObject {
    /// The kind of the object: the first part of the action.
    #[serde(rename = "type")]
    pub kind: String,
    /// The object's id.
    pub id: Option<String>,
    /// The object's name at that time.
    pub name: Option<String>,
}

impl AuditObject {
    /// An object of a kind.
    pub fn new(kind: &str, id: Option<String>, name: Option<String>) -> Self {
        Self { kind: kind.to_owned(), id, name }
    }
}

/// Where a request came from.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Source {
    /// The client's address.
    pub remote_ip: Option<String>,
    /// The request's id.
    pub request_id: Option<String>,
}

/// An audit event, before it is stored.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AuditEvent {
    /// The event's id, a UUID of version 7.
    pub id: Uuid,
    /// When it happened.
    pub occurred_at: Timestamp,
    /// Who did it.
    pub actor: Actor,
    /// The actor's credential.
    pub credential: Option<Credential>,
    /// What was done: `<object type>.<verb>`.
    pub action: String,
    /// The object of the action.
    pub object: Option<AuditObject>,
    /// The outcome.
    pub outcome: AuditOutcome,
    /// Where the request came from.
    pub source: Source,
    /// More details, as a JSON object. They never contain a secret, or the environment or output of
    /// a command.
    pub details: Value,
}

impl AuditEvent {
    /// Creates a successful event of an anonymous actor, without object and details.
    pub fn new(id: Uuid, occurred_at: Timestamp, source: Source, action: &str) -> Self {
        Self {
            id,
            occurred_at,
            actor: Actor { kind: ActorType::Anonymous, id: None, name: None },
            credential: None,
            action: action.to_owned(),
            object: None,
            outcome: AuditOutcome::Success,
            source,
            details: json!({}),
        }
    }

    /// Sets the actor.
    pub fn with_actor(mut self, kind: ActorType, id: Option<String>, name: Option<String>) -> Self {
        self.actor = Actor { kind, id, name };
        self
    }

    /// Sets the credential.
    pub fn with_credential(mut self, kind: CredentialType, id: Option<String>) -> Self {
        self.credential = Some(Credential { kind, id });
        self
    }

    /// Sets the object. Its kind is the first part of the action.
    pub fn with_object(mut self, id: Option<String>, name: Option<&str>) -> Self {
        let kind = self.action.split('.').next().unwrap_or_default();
        self.object = Some(AuditObject::new(kind, id, name.map(str::to_owned)));
        self
    }

    /// Sets the outcome.
    pub fn with_outcome(mut self, outcome: AuditOutcome) -> Self {
        self.outcome = outcome;
        self
    }

    /// Sets the details.
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
}

/// Cuts a command's line to the beginning that an event has: [`MAX_LINE`] characters.
pub fn cut_line(line: &str) -> String {
    line.chars().take(MAX_LINE).collect()
}

/// Adds a list of ids to an event's details: the first [`MAX_IDS`] ids as `<name>`, and the number
/// of all ids as `<name>_total`.
pub fn add_ids(details: &mut Value, name: &str, ids: &[impl Serialize]) {
    details[name] = json!(ids.iter().take(MAX_IDS).collect::<Vec<_>>());
    details[format!("{name}_total")] = json!(ids.len());
}

fn json_bytes(value: &Value) -> usize {
    value.to_string().len()
}

/// Cuts texts to `max` bytes of JSON, and removes longer lists.
fn shorten(details: &mut Value, max: usize) {
    let Value::Object(members) = details else { return };
    members.retain(|_, value| !value.is_array() || json_bytes(value) <= max);
    for value in members.values_mut() {
        if let Value::String(text) = value {
            let mut bytes = 2;
            let fits = |character: &char| {
                bytes += json_bytes(&json!(character)) - 2;
                bytes <= max
            };
            *value = Value::String(text.chars().take_while(fits).collect());
        } else {
            shorten(value, max);
        }
    }
}

/// Shortens the details of a refusal, so that they have at most [`MAX_DENIAL_BYTES`] with `count`.
/// The caller chooses most of them, and may be refused often. First cuts texts and removes lists,
/// then removes the largest values.
pub fn shorten_denial(mut details: Value) -> Value {
    let is_long = |details: &Value| json_bytes(details) > MAX_DENIAL_BYTES - COUNT_BYTES;
    for max in DENIAL_VALUE_BYTES {
        if is_long(&details) {
            shorten(&mut details, max);
        }
    }
    while is_long(&details) {
        let Value::Object(members) = &mut details else { return json!({}) };
        let largest = members.iter().max_by_key(|(_, value)| json_bytes(value));
        let Some(name) = largest.map(|(name, _)| name.clone()) else { break };
        members.remove(&name);
    }
    details
}

/// The filters of a list of events (`docs/audit.md`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EventFilter {
    /// The actor's name.
    pub actor: Option<String>,
    /// The exact action.
    pub action: Option<String>,
    /// The object's id.
    pub object: Option<String>,
    /// The outcome.
    pub outcome: Option<AuditOutcome>,
    /// Events at this time or later.
    pub from: Option<Timestamp>,
    /// Events before this time.
    pub before: Option<Timestamp>,
}

impl EventFilter {
    /// Reads the filters of a query.
    ///
    /// # Errors
    /// All invalid parameters together.
    pub fn from_query(query: &[(String, String)]) -> Result<Self, Error> {
        let mut errors = FieldErrors::new();
        let mut time = |name: &'static str| match last_value(query, name).map(Timestamp::parse) {
            Some(Err(problem)) => {
                errors.insert(name.into(), vec![problem.to_string().into()]);
                None
            }
            read => read.and_then(Result::ok),
        };
        let (from, before) = (time("occurred_at__gte"), time("occurred_at__lt"));
        let mut text = |name: &'static str| {
            let text = last_value(query, name)?;
            if text.contains('\0') {
                errors.insert(name.into(), vec!["Null characters are not allowed.".into()]);
            }
            Some(text.to_owned())
        };
        let (actor, action, object) = (text("actor"), text("action"), text("object"));
        let outcome = last_value(query, "outcome").and_then(|name| {
            let outcome = AuditOutcome::ALL.into_iter().find(|outcome| outcome.as_str() == name);
            if outcome.is_none() {
                errors.insert("outcome".into(), vec!["Choose success, failure or denied.".into()]);
            }
            outcome
        });
        if !errors.is_empty() {
            return Err(Error::fields(errors));
        }
        Ok(Self { actor, action, object, outcome, from, before })
    }

    /// Whether the list has no filter.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Reads `first_link` of a request to verify the chain: the first entry to verify. By default it is
/// entry 1. A response that covers only a part of the chain says where to continue.
///
/// # Errors
/// A field error if it is not the number of a chain entry.
pub fn read_first_link(mut fields: Fields) -> Result<i64, Error> {
    let first = fields.optional_integer("first_link", 1..=MAX_ENTRY).unwrap_or(1);
    fields.finish_with(Some(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_filtered_by_each_parameter() {
        let query = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert!(EventFilter::from_query(&query(&[("page", "2")])).unwrap().is_empty());
        let all = query(&[
            ("actor", "boss"),
            ("action", "command.create"),
            ("object", "7"),
            ("outcome", "denied"),
            ("occurred_at__gte", "2026-11-21T00:00:00Z"),
            ("occurred_at__lt", "2026-11-22T00:00:00Z"),
        ]);
        let filter = EventFilter::from_query(&all).unwrap();
        assert_eq!((filter.actor.as_deref(), filter.object.as_deref()), (Some("boss"), Some("7")));
        assert!(filter.from < filter.before && filter.outcome == Some(AuditOutcome::Denied));
        for outcome in AuditOutcome::ALL {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
            assert_eq!(
                EventFilter::from_query(&query(&[("outcome", outcome.as_str())])).unwrap().outcome,
                Some(outcome)
            );
        }
        let bad = query(&[
            ("occurred_at__gte", "today"),
            ("occurred_at__lt", "2026-11-22"),
            ("object", "\0"),
            ("outcome", ""),
        ]);
        let wrong = EventFilter::from_query(&bad).unwrap_err();
        assert_eq!(
            wrong.fields.keys().collect::<Vec<_>>(),
            ["object", "occurred_at__gte", "occurred_at__lt", "outcome"]
        );
    }

    #[test]
    fn the_first_entry_to_verify_is_a_positive_number() {
        let read = |body: &str| read_first_link(Fields::from_json(body.as_bytes()).unwrap());
        assert_eq!(read("{}"), Ok(1));
        assert_eq!(read("{\"first_link\": 1001}"), Ok(1001));
        for bad in ["0", "-1", "1.5", "\"x\"", "99999999999999999999"] {
            assert!(read(&format!("{{\"first_link\": {bad}}}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_long_line_is_cut() {
        assert_eq!(cut_line("id"), "id");
        assert_eq!(cut_line(&"ä".repeat(2_000)).chars().count(), MAX_LINE);
    }

    #[test]
    fn details_of_a_refusal_are_bounded() {
        let short = json!({"line": "reboot", "server": {"id": "x", "name": "web-1"}, "ids": [1]});
        assert_eq!(shorten_denial(short.clone()), short);

        let hash = "a".repeat(64);
        let ids = vec!["01936d3e-7a00-7000-8000-000000000000"; MAX_IDS];
        let long = json!({
            "line": "\0".repeat(2_000), "line_sha256": hash, "line_length": 2_000, "cwd": "ä".repeat(4_000),
            "targets": {"selector": "x".repeat(5_000), "servers": ids, "servers_total": MAX_IDS}, "code": "X",
        });
        let cut = shorten_denial(long);
        assert!(json_bytes(&cut) <= MAX_DENIAL_BYTES - COUNT_BYTES, "{cut}");
        assert_eq!((&cut["line_sha256"], &cut["line_length"]), (&json!(hash), &json!(2_000)));
        assert_eq!(cut["targets"]["servers_total"], json!(MAX_IDS));
        assert_eq!(cut["targets"]["servers"], Value::Null);
        assert!(cut["line"].as_str().unwrap().starts_with('\0'));

        let mut many = json!({"code": "X"});
        for number in 0..1_000 {
            many[format!("hash{number}")] = json!(hash);
        }
        let cut = shorten_denial(many);
        assert!(json_bytes(&cut) <= MAX_DENIAL_BYTES - COUNT_BYTES && cut["code"] == "X", "{cut}");
    }

    #[test]
    fn a_long_list_of_ids_is_cut_and_counted() {
        for (number, shown) in [(0, 0), (1, 1), (MAX_IDS, MAX_IDS), (5_000, MAX_IDS)] {
            let mut details = json!({"name": "x"});
            add_ids(&mut details, "servers", &(0..number).collect::<Vec<_>>());
            let ids: Vec<_> = (0..shown).collect();
            assert_eq!(details, json!({"name": "x", "servers": ids, "servers_total": number}));
        }
    }
}
