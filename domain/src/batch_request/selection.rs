//! The field `targets`: which servers a batch selects (contract 13.2).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::MAX_TARGETS;
use crate::command::ServerRef;
use crate::fields::Fields;
use crate::id;
use crate::selector::Selector;

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
    pub fn of_servers(ids: impl IntoIterator<Item = uuid::Uuid>) -> Self {
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
