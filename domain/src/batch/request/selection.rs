//! The field `targets`: which servers a batch selects (contract 13.2).

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{Candidate, too_many_targets};
use crate::command::request::{MAX_TARGETS, ServerRef};
use crate::error::Error;
use crate::fleet::selector::Selector;
use crate::http::fields::Fields;
use crate::id;

/// Maximum length of a server's name, in characters.
const MAX_SERVER_NAME: usize = 64;

/// A union of servers. Its JSON has the form of the request.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetSelection {
    /// Servers by id or name. The caller must be able to access each of them.
    pub servers: Vec<ServerRef>,
    /// Ids of groups: the servers of these groups that the caller can access.
    pub groups: Vec<i64>,
    /// The servers that the caller can access and whose labels match.
    pub selector: Option<Selector>,
    /// Whether all servers that the caller can access are selected.
    pub all: bool,
}

/// Reads a server's id or name.
fn server(value: &Value) -> Option<ServerRef> {
    let text = value.as_str().filter(|text| !text.trim().is_empty() && !text.contains('\0'))?;
    let is_short = text.chars().count() <= MAX_SERVER_NAME;
    is_short
        .then(|| id::parse(text).map_or_else(|| ServerRef::Name(text.to_owned()), ServerRef::Id))
}

impl TargetSelection {
    /// Selects servers by their ids.
    pub fn of_servers(ids: impl IntoIterator<Item = Uuid>) -> Self {
        Self { servers: ids.into_iter().map(ServerRef::Id).collect(), ..Self::default() }
    }

    /// Reads the field `targets`. Returns `None` if it was rejected. Errors are recorded under the
    /// names of its members.
    pub(super) fn read(fields: &mut Fields) -> Option<Self> {
        let mut inner = fields.object("targets");
        let is_object = fields.value("targets").is_some_and(Value::is_object);
        let servers = inner.optional_list(
            "servers",
            MAX_TARGETS,
            "Enter the ids or names of servers.",
            server,
        );
        let groups = inner.optional_groups();
        let selector = Selector::read(inner.value("selector")).unwrap_or_else(|problem| {
            inner.reject("selector", problem);
            None
        });
        let all = inner.optional_boolean("all").unwrap_or(false);
        let is_valid = is_object && !inner.has_errors() && !inner.has_unknown();
        fields.absorb("targets", inner);
        if !is_valid {
            return None;
        }
        let selection = Self {
            servers: servers.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            selector,
            all,
        };
        if selection.is_empty() {
            fields.reject("targets", "Use at least one of servers, groups, selector and all.");
            return None;
        }
        Some(selection)
    }

    /// Whether the selection names nothing.
    fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.groups.is_empty() && self.selector.is_none() && !self.all
    }

    /// The servers that are named by their ids, and the servers that are named by their names.
    pub fn ids_and_names(&self) -> (Vec<String>, Vec<String>) {
        let (mut ids, mut names) = (Vec::new(), Vec::new());
        for server in &self.servers {
            match server {
                ServerRef::Id(id) => ids.push(id.to_string()),
                ServerRef::Name(name) => names.push(name.clone()),
            }
        }
        (ids, names)
    }

    /// Replaces the names of servers by ids. Another server that gets such a name later is not
    /// selected. `found` are the servers that this selection selects, and no name is unknown.
    ///
    /// # Errors
    /// The selection selects too many servers, so that `found` does not have all of them.
    pub fn replace_names(&mut self, found: &[Candidate]) -> Result<(), Error> {
        let ids: HashMap<&str, Uuid> =
            found.iter().map(|server| (server.name.as_str(), server.id)).collect();
        let id_of = |server: &ServerRef| match server {
            ServerRef::Id(id) => Some(*id),
            ServerRef::Name(name) => ids.get(name.as_str()).copied(),
        };
        let named = self.servers.iter().map(id_of).collect::<Option<Vec<_>>>();
        let mut seen = HashSet::new();
        let unique = named.ok_or_else(too_many_targets)?.into_iter().filter(|id| seen.insert(*id));
        self.servers = unique.map(ServerRef::Id).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SERVER: &str = "01936d3e-7a00-7000-8000-000000000000";

    fn read(targets: Value) -> Result<TargetSelection, Vec<String>> {
        let mut fields =
            Fields::from_json(json!({"targets": targets}).to_string().as_bytes()).unwrap();
        let selection = TargetSelection::read(&mut fields);
        match fields.finish() {
            Ok(()) => Ok(selection.expect("a valid selection")),
            Err(error) => {
                assert_eq!(selection, None, "{targets}");
                Err(error.fields.keys().map(ToString::to_string).collect())
            }
        }
    }

    #[test]
    fn a_selection_is_a_union_of_four_kinds() {
        let all = read(
            json!({"servers": [SERVER, "web-1"], "groups": [2, 1, 2], "selector": "env=prod", "all": true}),
        );
        let all = all.unwrap();
        assert_eq!((all.groups.as_slice(), all.all), (&[1, 2][..], true));
        assert_eq!(all.selector.as_ref().map(ToString::to_string).as_deref(), Some("env=prod"));
        assert_eq!(all.ids_and_names(), (vec![SERVER.to_owned()], vec!["web-1".to_owned()]));
        assert_eq!(serde_json::from_value::<TargetSelection>(json!(all)).unwrap(), all);
        assert!(read(json!({"all": true})).unwrap().all);
        assert_eq!(read(json!({"servers": ["a"], "groups": []})).unwrap().groups, [0; 0]);
    }

    #[test]
    fn names_become_the_ids_of_the_found_servers() {
        let mut selection = read(json!({"servers": ["web-1", SERVER, "web-2"]})).unwrap();
        let server = |n: u128, name: &str| Candidate {
            id: Uuid::from_u128(n),
            name: name.to_owned(),
            default_username: None,
            any_account: 0,
            is_pending: 0,
            is_connected: 1,
        };
        let first = server(id::parse(SERVER).unwrap().as_u128(), "web-1");
        let error = selection.replace_names(std::slice::from_ref(&first)).unwrap_err();
        assert!(error.fields.contains_key("targets"), "web-2 is not among the found servers");
        selection.replace_names(&[first.clone(), server(2, "web-2")]).unwrap();
        assert_eq!(selection.servers, [first.id, Uuid::from_u128(2)].map(ServerRef::Id));
        assert_eq!(selection.ids_and_names().1, [""; 0]);
    }

    #[test]
    fn other_selections_are_refused() {
        let names: Vec<String> = (0..=MAX_TARGETS).map(|n| format!("s{n}")).collect();
        for (bad, field) in [
            (json!(null), "targets"),
            (json!([]), "targets"),
            (json!("all"), "targets"),
            (json!({}), "targets"),
            (json!({"all": false}), "targets"),
            (json!({"servers": [], "groups": []}), "targets"),
            (json!({"servers": "web-1"}), "servers"),
            (json!({"servers": [7]}), "servers"),
            (json!({"servers": [" "]}), "servers"),
            (json!({"servers": ["a".repeat(65)]}), "servers"),
            (json!({"servers": names}), "servers"),
            (json!({"groups": ["ops"]}), "groups"),
            (json!({"selector": ""}), "selector"),
            (json!({"selector": 7}), "selector"),
            (json!({"all": "yes"}), "all"),
            (json!({"all": true, "label": "env=prod"}), "label"),
        ] {
            assert_eq!(
                read(bad.clone()),
                Err(vec![field.to_owned()]),
                "{field}: {:.80}",
                bad.to_string()
            );
        }
    }
}
