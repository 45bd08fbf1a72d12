//! The audit log: what an event is, and what a list of events is asked for with (`docs/audit.md`).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::error::{Error, FieldErrors};
use crate::fields::Fields;
use crate::page::parameter;
use crate::time::Timestamp;

/// The chain of the region cell's own, with what its operator does; workspaces have ids from 1 on.
pub const CELL: i64 = 0;
/// How much of a command's line an event has, in characters.
pub const MAX_LINE: usize = 1_024;
/// How many ids of a list an event has.
pub const MAX_IDS: usize = 100;
/// The highest number that JSON is exact for.
const MAX_LINK: i64 = 1 << 53;

/// Who did something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorType {
    /// A user of the workspace.
    User,
    /// The agent of a server.
    Agent,
    /// Whoever has the operator's token.
    Operator,
    /// Nobody who is known.
    Anonymous,
    /// Farhand itself, when something came due.
    Service,
}

/// With what somebody showed who they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CredentialType {
    /// A login token.
    Session,
    /// An API token.
    ApiToken,
    /// An agent's id and key; the id is its server's.
    AgentKey,
    /// A registration token.
    RegistrationToken,
    /// The operator's token.
    OperatorToken,
    /// The key in a mail for a password reset.
    ResetKey,
}

/// How it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Success,
    /// It was tried with a wrong password.
    Failure,
    /// It was refused for want of a right to it.
    Denied,
}

impl Outcome {
    /// All of them.
    const ALL: [Self; 3] = [Self::Success, Self::Failure, Self::Denied];

    /// Its name in requests, answers and D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Denied => "denied",
        }
    }
}

/// An actor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Actor {
    /// What kind.
    #[serde(rename = "type")]
    pub kind: ActorType,
    /// The user's or the server's id.
    pub id: Option<String>,
    /// The user's or the server's name at that time.
    pub name: Option<String>,
}

/// A credential, by its id: never by anything that it could be used with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Credential {
    /// What kind.
    #[serde(rename = "type")]
    pub kind: CredentialType,
    /// Its id, where it has one.
    pub id: Option<String>,
}

/// What something was done to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Object {
    /// What kind: the first part of the action.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its id.
    pub id: Option<String>,
    /// Its name at that time.
    pub name: Option<String>,
}

impl Object {
    /// An object with what is known of it.
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

/// Something that happened, before it is stored.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its id, version 7.
    pub id: Uuid,
    /// When.
    pub occurred_at: Timestamp,
    /// Who did it.
    pub actor: Actor,
    /// With what credential.
    pub credential: Option<Credential>,
    /// What was done: `<object type>.<verb>`.
    pub action: String,
    /// To what.
    pub object: Option<Object>,
    /// How it went.
    pub outcome: Outcome,
    /// From where.
    pub source: Source,
    /// What else is worth knowing: an object. Never a secret's value, a command's environment or
    /// its output.
    pub details: Value,
}

impl Event {
    /// An event that went well, of nobody who is known, with no object and no details.
    pub fn new(id: Uuid, occurred_at: Timestamp, source: Source, action: &str) -> Self {
        Self {
            id,
            occurred_at,
            actor: Actor { kind: ActorType::Anonymous, id: None, name: None },
            credential: None,
            action: action.to_owned(),
            object: None,
            outcome: Outcome::Success,
            source,
            details: json!({}),
        }
    }

    /// The same of an actor with a credential.
    pub fn by(mut self, kind: ActorType, id: Option<String>, name: Option<String>) -> Self {
        self.actor = Actor { kind, id, name };
        self
    }

    /// The same with a credential.
    pub fn with(mut self, kind: CredentialType, id: Option<String>) -> Self {
        self.credential = Some(Credential { kind, id });
        self
    }

    /// The same on an object, whose type is the action's.
    pub fn on(mut self, id: Option<String>, name: Option<&str>) -> Self {
        let kind = self.action.split('.').next().unwrap_or_default();
        self.object = Some(Object::new(kind, id, name.map(str::to_owned)));
        self
    }

    /// The same with another outcome.
    pub fn that(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }

    /// The same with details.
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
}

/// The beginning of a command's line that an event has.
pub fn shown_line(line: &str) -> String {
    line.chars().take(MAX_LINE).collect()
}

/// Adds a list of ids to an event's details, under a name: the first 100, and under `<name>_total`
/// how many there are.
pub fn show_ids(details: &mut Value, name: &str, ids: &[impl Serialize]) {
    details[name] = json!(ids.iter().take(MAX_IDS).collect::<Vec<_>>());
    details[format!("{name}_total")] = json!(ids.len());
}

/// What a list of events is asked for with (`docs/audit.md`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EventFilter {
    /// The actor's name.
    pub actor: Option<String>,
    /// The action.
    pub action: Option<String>,
    /// The object's id.
    pub object: Option<String>,
    /// How it went.
    pub outcome: Option<Outcome>,
    /// The earliest time.
    pub from: Option<Timestamp>,
    /// The time before which.
    pub before: Option<Timestamp>,
}

impl EventFilter {
    /// Reads a query.
    ///
    /// # Errors
    /// All bad parameters together.
    pub fn of(query: &[(String, String)]) -> Result<Self, Error> {
        let mut errors = FieldErrors::new();
        let mut time = |name: &'static str| match parameter(query, name).map(Timestamp::parse) {
            Some(Err(problem)) => {
                errors.insert(name.into(), vec![problem.to_string().into()]);
                None
            }
            read => read.and_then(Result::ok),
        };
        let (from, before) = (time("occurred_at__gte"), time("occurred_at__lt"));
        let mut text = |name: &'static str| {
            let text = parameter(query, name)?;
            if text.contains('\0') {
                errors.insert(name.into(), vec!["Null characters are not allowed.".into()]);
            }
            Some(text.to_owned())
        };
        let (actor, action, object) = (text("actor"), text("action"), text("object"));
        let outcome = parameter(query, "outcome").and_then(|name| {
            let outcome = Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == name);
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

    /// Whether nothing is filtered.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// From which link on a verification begins: the first, or where the last one told to go on.
///
/// # Errors
/// It is no number of a link.
pub fn read_first_link(mut fields: Fields) -> Result<i64, Error> {
    let first = fields.optional_integer("first_link", 1..=MAX_LINK).unwrap_or(1);
    fields.finish_with(Some(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        let query = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert!(EventFilter::of(&query(&[("page", "2")])).unwrap().is_empty());
        let all = query(&[
            ("actor", "boss"),
            ("action", "command.create"),
            ("object", "7"),
            ("outcome", "denied"),
            ("occurred_at__gte", "2026-11-21T00:00:00Z"),
            ("occurred_at__lt", "2026-11-22T00:00:00Z"),
        ]);
        let filter = EventFilter::of(&all).unwrap();
        assert_eq!((filter.actor.as_deref(), filter.object.as_deref()), (Some("boss"), Some("7")));
        assert!(filter.from < filter.before && filter.outcome == Some(Outcome::Denied));
        for outcome in Outcome::ALL {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
            assert_eq!(
                EventFilter::of(&query(&[("outcome", outcome.as_str())])).unwrap().outcome,
                Some(outcome)
            );
        }
        let bad = query(&[
            ("occurred_at__gte", "today"),
            ("occurred_at__lt", "2026-11-22"),
            ("object", "\0"),
            ("outcome", ""),
        ]);
        let wrong = EventFilter::of(&bad).unwrap_err();
        assert_eq!(
            wrong.fields.keys().collect::<Vec<_>>(),
            ["object", "occurred_at__gte", "occurred_at__lt", "outcome"]
        );
    }

    #[test]
    fn where_to_begin() {
        let read = |body: &str| read_first_link(Fields::from_json(body.as_bytes()).unwrap());
        assert_eq!(read("{}"), Ok(1));
        assert_eq!(read("{\"first_link\": 1001}"), Ok(1001));
        for bad in ["0", "-1", "1.5", "\"x\"", "99999999999999999999"] {
            assert!(read(&format!("{{\"first_link\": {bad}}}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_are_cut_by_characters() {
        assert_eq!(shown_line("id"), "id");
        assert_eq!(shown_line(&"ä".repeat(2_000)).chars().count(), MAX_LINE);
    }

    #[test]
    fn lists_are_cut_and_counted() {
        for (number, shown) in [(0, 0), (1, 1), (MAX_IDS, MAX_IDS), (5_000, MAX_IDS)] {
            let mut details = json!({"name": "x"});
            show_ids(&mut details, "servers", &(0..number).collect::<Vec<_>>());
            let ids: Vec<_> = (0..shown).collect();
            assert_eq!(details, json!({"name": "x", "servers": ids, "servers_total": number}));
        }
    }
}
