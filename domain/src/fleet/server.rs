//! Servers: the fields of requests about them (contract 6.1), and the commands that connect an
//! Alpamon.

use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use crate::agent::account::read_account;
use crate::agent::wire::PolicyMode;
use crate::error::{Error, FieldErrors};
use crate::fleet::labels::{self, Labels};
use crate::fleet::selector::{Selector, SelectorError};
use crate::http::fields::{Fields, as_id};
use crate::http::page::{
    Query, boolean_parameter, id_parameter, last_value, ordering, search_words,
};
use crate::id;
use crate::secret::Secret;
use crate::time::Timestamp;

/// The shell commands that connect an installed Alpamon 2.x to a server (contract 6.3). Root must
/// run them.
pub fn alpamon_install_commands(base_url: &str, server: Uuid, key: &Secret) -> String {
    let key = key.expose();
    format!(
        "umask 077 && mkdir -p /etc/alpamon && cat > /etc/alpamon/alpamon.conf <<'END'
[server]
url = {base_url}
id = {server}
key = {key}

[ssl]
verify = true
END
systemctl restart alpamon"
    )
}

/// The time in which the keys that a user rotates, and the servers that the user deletes, count.
pub const CHANGES_WINDOW: Duration = Duration::from_secs(60 * 60);

/// Maximum length of the name of a server or a group, in characters.
const MAX_NAME: usize = 64;

/// The fields of a server object that `PUT` and `PATCH` accept and ignore.
const READ_ONLY: &[&str] = &[
    "id",
    "is_connected",
    "remote_ip",
    "platform",
    "os_name",
    "os_version",
    "agent_version",
    "cpu_logical_cores",
    "physical_memory",
    "load",
    "registration",
    "fingerprint",
    "connected_at",
    "last_seen_at",
    "identity_conflict_at",
    "policy",
    "added_at",
    "updated_at",
    "key",
    "install",
    "install_alpamon",
];

/// Reads `name`, of a server or a group: 1 to 64 characters of `[a-z0-9-_.]`.
///
/// A name in the form of a UUID is rejected, because requests name a server by its name or its id.
pub fn read_name(fields: &mut Fields) -> Option<String> {
    let name = fields.text("name", 1..=MAX_NAME)?;
    let allowed =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    if !name.bytes().all(allowed) {
        fields
            .reject("name", "Use lower-case letters, digits, hyphens, underscores and dots only.");
    } else if id::parse(&name).is_some() {
        fields.reject("name", "A name may not have the form of a UUID.");
    } else {
        return Some(name);
    }
    None
}

/// Reads `default_username`, which may be null.
fn read_default_username(fields: &mut Fields) -> Option<Option<String>> {
    match fields.any("default_username")? {
        Value::Null => Some(None),
        _ => read_account(fields, "default_username", 1).map(Some),
    }
}

/// SQL that makes a name unique: it appends `-` and the number, from the second server on, and cuts
/// the name to the allowed length. `name` and `number` are SQL expressions. The name is ASCII.
pub fn unique_name_sql(name: &str, number: &str) -> String {
    format!(
        "iif({number} < 2, {name}, substr({name}, 1, {MAX_NAME} - length('-' || {number})) || '-' || {number})"
    )
}

/// A valid request to create or change a server. `None`: the field does not change.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ServerChanges {
    /// The unique name.
    pub name: Option<String>,
    /// The ids of its groups, sorted, without duplicates.
    pub groups: Option<Vec<i64>>,
    /// All labels of the server.
    pub labels: Option<Labels>,
    /// The user id of its owner; `Some(None)`: no owner.
    pub owner: Option<Option<i64>>,
    /// The default remote account of commands; `Some(None)`: the account that its agent reports, if
    /// it reports one.
    pub default_username: Option<Option<String>>,
}

/// Reads `owner`: a user's id or null. An object with an `id` is accepted too, because responses
/// show the owner as an object, and clients send it back.
fn read_owner(fields: &mut Fields) -> Option<Option<i64>> {
    let owner = match fields.any("owner")? {
        Value::Null => return Some(None),
        Value::Object(shown) => shown.get("id").and_then(as_id),
        value => as_id(value),
    };
    if owner.is_none() {
        fields.reject("owner", "Enter the id of a user, or null.");
    }
    owner.map(Some)
}

impl ServerChanges {
    /// Reads a `PATCH`. All fields are optional.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        let name = fields.has("name").then(|| read_name(&mut fields)).flatten();
        let groups = fields.optional_groups();
        let labels = labels::read(&mut fields);
        let owner = read_owner(&mut fields);
        let default_username = read_default_username(&mut fields);
        fields.finish()?;
        Ok(Self { name, groups, labels, owner, default_username })
    }

    /// Reads a `POST`. The creator becomes the owner, so `owner` is an unknown field.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read_new(fields: Fields) -> Result<Self, Error> {
        Self::read_common(fields, None)
    }

    /// Reads a `PUT`. The name is required. The meaning of omitted groups depends on the caller's
    /// permission, so the handler decides. An omitted owner does not change.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read_all(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        let owner = read_owner(&mut fields);
        Self::read_common(fields, owner)
    }

    /// Reads the fields that a `POST` and a `PUT` share. The name is required.
    fn read_common(mut fields: Fields, owner: Option<Option<i64>>) -> Result<Self, Error> {
        let name = read_name(&mut fields);
        let groups = fields.optional_groups();
        let labels = labels::read(&mut fields);
        let default_username = Some(read_default_username(&mut fields).flatten());
        let name = fields.finish_with(name)?;
        Ok(Self { name: Some(name), groups, labels, owner, default_username })
    }
}

/// How long the old key of a server is valid after a rotation, unless an agent connects with the new
/// key first.
pub const OLD_KEY_VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads the request for a new key: whether the old key is refused immediately.
///
/// # Errors
/// All invalid fields together.
pub fn read_rotation(mut fields: Fields) -> Result<bool, Error> {
    let now = fields.optional_boolean("now");
    fields.finish()?;
    Ok(now.unwrap_or(false))
}

/// Reads the request to undelete a server: its new name; `None`: the name that it had.
///
/// # Errors
/// All invalid fields together.
pub fn read_undeletion(mut fields: Fields) -> Result<Option<String>, Error> {
    let name = fields.has("name").then(|| read_name(&mut fields)).flatten();
    fields.finish()?;
    Ok(name)
}

/// The 429 for a user who has rotated as many keys and deleted as many servers within an hour as
/// allowed (contract 11.4). `oldest`: the change that must be over an hour ago first.
pub fn changes_exceeded(oldest: Timestamp, now: Timestamp) -> Error {
    let left = oldest.plus(CHANGES_WINDOW).seconds_since(now).ceil().max(1.0);
    Error::quota_exceeded(
        "You rotated as many keys and deleted as many servers in the last hour as you may.",
        left as u64,
    )
}

/// A field by which a list of servers can be ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerOrderField {
    /// `name`.
    Name,
    /// `added_at`.
    Added,
    /// `updated_at`.
    Updated,
    /// `connected_at`.
    Connected,
    /// `last_seen_at`.
    Seen,
    /// `is_connected`.
    IsConnected,
    /// `deleted_at`: the order of deleted servers, unless the client asks for another one.
    Deleted,
}

impl ServerOrderField {
    /// The fields that a client can name.
    pub const ALL: [Self; 6] =
        [Self::Name, Self::Added, Self::Updated, Self::Connected, Self::Seen, Self::IsConnected];

    /// The name in requests, responses and D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Added => "added_at",
            Self::Updated => "updated_at",
            Self::Connected => "connected_at",
            Self::Seen => "last_seen_at",
            Self::IsConnected => "is_connected",
            Self::Deleted => "deleted_at",
        }
    }
}

/// Which servers a list shows, and in which order. A filter that is `None` is not applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerList {
    /// Whether the list shows deleted servers, in place of the others.
    pub is_deleted: bool,
    /// The exact name.
    pub name: Option<String>,
    /// Whether an agent is connected.
    pub is_connected: Option<bool>,
    /// The id of a group of the server.
    pub group: Option<i64>,
    /// The owner's user id.
    pub owner: Option<i64>,
    /// The exact platform.
    pub platform: Option<String>,
    /// The exact version of the agent.
    pub agent_version: Option<String>,
    /// The kind of the host's policy, as the agent reports it.
    pub policy: Option<PolicyMode>,
    /// A selector that the labels must match.
    pub label: Option<Selector>,
    /// Words in lower case. The texts of the server must contain all words.
    pub words: Vec<String>,
    /// The fields of the order, each with whether it is descending. At least one field. Servers
    /// with equal fields are ordered by id, in the direction of the first field.
    pub order: Vec<(ServerOrderField, bool)>,
}

/// Reads a query parameter that is a selector.
///
/// # Errors
/// A field error with the position of the syntax error.
fn selector_parameter(query: &Query, name: &'static str) -> Result<Option<Selector>, Error> {
    let read = |text: &str| {
        text.parse().map_err(|error: SelectorError| Error::field(name, error.to_string()))
    };
    last_value(query, name).map(read).transpose()
}

/// Reads the query parameter `policy`.
///
/// # Errors
/// A field error with the accepted values.
fn policy_parameter(query: &Query) -> Result<Option<PolicyMode>, Error> {
    let read = |name: &str| {
        let mode = PolicyMode::ALL.into_iter().find(|mode| mode.as_str() == name);
        mode.ok_or_else(|| Error::field("policy", "Use open, accounts, argv, custom or none."))
    };
    last_value(query, "policy").map(read).transpose()
}

impl ServerList {
    /// Reads the filters, `search` and `ordering`. Without `ordering`, the newest server is first, and
    /// of deleted servers the last deleted one.
    ///
    /// # Errors
    /// All invalid parameters together.
    pub fn from_query(query: &Query) -> Result<Self, Error> {
        fn take<T>(read: Result<T, Error>, errors: &mut FieldErrors) -> Option<T> {
            read.map_err(|error| errors.extend(error.fields)).ok()
        }
        let mut errors = FieldErrors::new();
        let is_deleted = take(boolean_parameter(query, "deleted"), &mut errors);
        let is_connected = take(boolean_parameter(query, "is_connected"), &mut errors);
        let group = take(id_parameter(query, "group"), &mut errors);
        let owner = take(id_parameter(query, "owner"), &mut errors);
        let words = take(search_words(query), &mut errors);
        let order =
            take(ordering(query, &ServerOrderField::ALL, ServerOrderField::as_str), &mut errors);
        let label = take(selector_parameter(query, "label"), &mut errors);
        let policy = take(policy_parameter(query), &mut errors);
        let text = |name| last_value(query, name).map(ToOwned::to_owned);
        let read = || {
            let is_deleted = is_deleted?.unwrap_or(false);
            let newest =
                if is_deleted { ServerOrderField::Deleted } else { ServerOrderField::Added };
            Some(Self {
                is_deleted,
                name: text("name"),
                is_connected: is_connected?,
                group: group?,
                owner: owner?,
                platform: text("platform"),
                agent_version: text("agent_version"),
                policy: policy?,
                label: label?,
                words: words?,
                order: order?.unwrap_or_else(|| vec![(newest, true)]),
            })
        };
        read().ok_or_else(|| Error::fields(errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_and_not_uuids() {
        let read = |name: &str| {
            let mut fields = Fields::from_form([("name".to_owned(), name.to_owned())]);
            (read_name(&mut fields).is_some(), fields.finish().is_ok())
        };
        let longest = "a".repeat(64);
        for good in ["a", "web-1", "db_2.example", "1", "-", &longest] {
            assert_eq!(read(good), (true, true), "{good}");
        }
        let too_long = "a".repeat(65);
        for bad in
            ["", " ", "Web", "a b", "ä", "a/b", "01936d3e-7a00-7000-8000-000000000000", &too_long]
        {
            assert_eq!(read(bad), (false, false), "{bad}");
        }
    }

    #[test]
    fn changes_ignore_read_only_and_refuse_unknown_fields() {
        let fields = |body: Value| Fields::from_json(body.to_string().as_bytes()).unwrap();
        let wrong = |read: Result<ServerChanges, Error>| {
            read.unwrap_err().fields.into_keys().collect::<Vec<_>>()
        };
        let whole =
            || fields(serde_json::json!({"name": "web-1", "id": "x", "added_at": 7, "load": 1}));
        assert!(ServerChanges::read(whole()).is_ok() && ServerChanges::read_all(whole()).is_ok());
        assert_eq!(wrong(ServerChanges::read_new(whole())), ["added_at", "id", "load"]);
        assert_eq!(
            wrong(ServerChanges::read(fields(serde_json::json!({"tags": ["prod"]})))),
            ["tags"]
        );
    }

    #[test]
    fn a_rotation_and_an_undeletion_have_optional_fields() {
        let fields = |body: &str| Fields::from_json(body.as_bytes()).unwrap();
        assert!(!read_rotation(fields("{}")).unwrap());
        assert!(read_rotation(fields(r#"{"now": true}"#)).unwrap());
        assert_eq!(read_undeletion(fields("{}")).unwrap(), None);
        let named = read_undeletion(fields(r#"{"name": "web-2"}"#)).unwrap();
        assert_eq!(named.as_deref(), Some("web-2"));
        for (body, field) in [(r#"{"now": 1}"#, "now"), (r#"{"zzz": 1}"#, "zzz")] {
            assert!(read_rotation(fields(body)).unwrap_err().fields.contains_key(field));
        }
        for (body, field) in [(r#"{"name": "Web 2"}"#, "name"), (r#"{"zzz": 1}"#, "zzz")] {
            assert!(read_undeletion(fields(body)).unwrap_err().fields.contains_key(field));
        }
    }

    #[test]
    fn too_many_changes_say_when_the_next_one_is_allowed() {
        let now = Timestamp::parse("2026-11-22T12:00:00Z").unwrap();
        let after = |oldest| changes_exceeded(oldest, now).retry_after;
        assert_eq!(after(now.plus_seconds(-600)), Some(3_000));
        assert_eq!(after(now.plus_seconds(-3_600)), Some(1));
    }

    #[test]
    fn an_owner_is_an_id_or_the_object_of_a_response() {
        let owner = |body: &str| {
            ServerChanges::read(Fields::from_json(body.as_bytes()).unwrap()).map(|read| read.owner)
        };
        assert_eq!(owner("{}").unwrap(), None);
        assert_eq!(owner(r#"{"owner": null}"#).unwrap(), Some(None));
        assert_eq!(owner(r#"{"owner": 7}"#).unwrap(), Some(Some(7)));
        let shown = r#"{"owner": {"id": 7, "username": "deploy", "email": "deploy@example.com"}}"#;
        assert_eq!(owner(shown).unwrap(), Some(Some(7)), "as responses show it");
        for bad in [r#""7""#, "7.5", "true", "[7]", "{}", r#"{"id": null}"#] {
            let error = owner(&format!(r#"{{"owner": {bad}}}"#)).unwrap_err();
            assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["owner"], "{bad}");
        }
        let new = Fields::from_json(br#"{"name": "web-1", "owner": 7}"#).unwrap();
        let error = ServerChanges::read_new(new).unwrap_err();
        assert!(error.fields.contains_key("owner"), "a new server belongs to its creator");
    }

    #[test]
    fn a_list_reads_filters_search_and_ordering() {
        let of = |pairs: &[(&str, &str)]| {
            let query: Query =
                pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            ServerList::from_query(&query)
        };
        assert_eq!(of(&[]).unwrap().order, [(ServerOrderField::Added, true)]);
        let list =
            of(&[("search", " Web\tUBUNTU "), ("ordering", "-last_seen_at,name,last_seen_at")])
                .unwrap();
        assert_eq!(
            (list.words, list.order),
            (
                vec!["web".into(), "ubuntu".into()],
                vec![(ServerOrderField::Seen, true), (ServerOrderField::Name, false)]
            )
        );
        let list = of(&[
            ("group", "7"),
            ("owner", "-1"),
            ("platform", "debian"),
            ("agent_version", "2.0.0"),
            ("policy", "none"),
        ])
        .unwrap();
        assert_eq!((list.group, list.owner), (Some(7), Some(0)));
        assert_eq!(
            (list.platform.as_deref(), list.agent_version.as_deref()),
            (Some("debian"), Some("2.0.0"))
        );
        assert_eq!(list.policy, Some(PolicyMode::None));
        let wrong = [
            ("is_connected", "x"),
            ("group", "ops"),
            ("owner", ""),
            ("search", "\0"),
            ("ordering", "load"),
            ("label", "env="),
            ("label", "env=prod,"),
            ("policy", "Open"),
        ];
        let wrong = of(&wrong).unwrap_err();
        assert_eq!(
            wrong.fields.keys().collect::<Vec<_>>(),
            ["group", "is_connected", "label", "ordering", "owner", "policy", "search"]
        );
        assert_eq!(wrong.fields["policy"], ["Use open, accounts, argv, custom or none."]);
        assert_eq!(wrong.fields["label"], ["At position 10: a term is missing at the end."]);
        let list = of(&[("deleted", "true")]).unwrap();
        assert_eq!((list.is_deleted, list.order), (true, vec![(ServerOrderField::Deleted, true)]));
        let list = of(&[("deleted", "false"), ("ordering", "name")]).unwrap();
        assert_eq!((list.is_deleted, list.order), (false, vec![(ServerOrderField::Name, false)]));
        for (name, value) in [("deleted", "yes"), ("ordering", "deleted_at")] {
            assert!(of(&[(name, value)]).unwrap_err().fields.contains_key(name));
        }
        let list = of(&[("label", "env = prod")]).unwrap();
        assert_eq!(list.label.unwrap().to_string(), "env=prod");
    }
}
