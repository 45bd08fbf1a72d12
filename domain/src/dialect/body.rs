//! How the dialect rewrites the JSON body of a request, field by field.
//!
//! A field without a rule goes to the native endpoint as it is. So a field that the native endpoint
//! does not know is refused there, with 400.

use serde_json::{Map, Value, json};

use super::Client;

/// What happens to a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Dropped: the native API has no such field, and the field restricts nothing.
    Ignored,
    /// Dropped if it asks for nothing (`asks_for_nothing`). Otherwise it stays, and the native
    /// endpoint refuses it.
    IgnoredIfEmpty,
    /// The id of a user or a group: a text, a number, or an object with an `id`.
    Id,
    /// A list of such ids.
    Ids,
    /// A list of servers: ids, or objects with an `id`.
    Servers,
    /// A list of group ids that the native API calls `groups`.
    AllowedGroups,
    /// The account's group. `alpacon-mcp` sends `alpacon` by default, which means no group.
    Groupname,
}

/// The rules for fields: each rule with the names of its fields.
pub type Rules = &'static [(Rule, &'static [&'static str])];

/// Whether a value restricts nothing and asks for nothing: null, false, an empty text, list or
/// object, or the list `["*"]`, which means everything.
fn asks_for_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_set) => !is_set,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty() || items.as_slice() == [json!("*")],
        Value::Object(members) => members.is_empty(),
        Value::Number(_) => false,
    }
}

/// The number in a decimal text, or in the `id` of an object. Other values stay as they are.
fn id(value: Value) -> Value {
    match value {
        Value::String(text) => match text.parse::<u64>() {
            Ok(number) if number.to_string() == text => json!(number),
            _ => Value::String(text),
        },
        Value::Object(mut members) => match members.remove("id") {
            Some(inner @ (Value::String(_) | Value::Number(_))) => id(inner),
            Some(other) => other,
            None => Value::Object(members),
        },
        other => other,
    }
}

/// Applies a function to the items of a list. A value that is not a list stays unchanged.
fn each(value: Value, item: impl Fn(Value) -> Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(item).collect()),
        other => other,
    }
}

/// The id of a server, which may be in an object.
fn server(value: Value) -> Value {
    match value {
        Value::Object(mut members) => members.remove("id").unwrap_or(Value::Null),
        other => other,
    }
}

fn apply(rule: Rule, client: Client, name: &str, fields: &mut Map<String, Value>) {
    let Some(value) = fields.remove(name) else { return };
    let (name, value) = match rule {
        Rule::Ignored => return,
        Rule::IgnoredIfEmpty | Rule::AllowedGroups if asks_for_nothing(&value) => return,
        Rule::IgnoredIfEmpty => (name, value),
        Rule::Id => (name, id(value)),
        Rule::Ids => (name, each(value, id)),
        Rule::Servers => (name, each(value, server)),
        Rule::AllowedGroups => ("groups", each(value, id)),
        Rule::Groupname if client == Client::Mcp && value == "alpacon" => (name, json!("")),
        Rule::Groupname => (name, value),
    };
    fields.insert(name.to_owned(), value);
}

/// Rewrites a body. Returns `None` if the body is not a JSON object: then the native endpoint
/// refuses it.
pub fn rewrite(body: &[u8], rules: Rules, client: Client) -> Option<Vec<u8>> {
    let mut fields: Map<String, Value> = serde_json::from_slice(body).ok()?;
    for (rule, names) in rules {
        for name in *names {
            apply(*rule, client, name, &mut fields);
        }
    }
    serde_json::to_vec(&fields).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn rewritten(body: &Value, rules: Rules, client: Client) -> Value {
        let body = rewrite(body.to_string().as_bytes(), rules, client).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn only_named_fields_are_ignored() {
        let rules: Rules =
            &[(Rule::Ignored, &["tags"]), (Rule::IgnoredIfEmpty, &["scopes", "data"])];
        for nothing in [json!(null), json!(""), json!([]), json!({}), json!(false), json!(["*"])] {
            let body = json!({"tags": "x", "scopes": nothing, "name": "ci", "other": 1});
            assert_eq!(rewritten(&body, rules, Client::Cli), json!({"name": "ci", "other": 1}));
        }
        for restriction in [json!(["servers:read"]), json!(["*", "x"]), json!("x"), json!(0)] {
            let body = json!({"scopes": restriction, "name": "ci"});
            assert_eq!(rewritten(&body, rules, Client::Cli), body);
        }
    }

    #[test]
    fn ids_become_numbers() {
        let rules: Rules = &[
            (Rule::Id, &["user", "owner"]),
            (Rule::Ids, &["groups"]),
            (Rule::Servers, &["servers"]),
        ];
        let body = json!({"user": "7", "owner": {"id": "1", "name": "boss"}, "groups": ["2", 3],
            "servers": [{"id": "a", "name": "web"}, "b"]});
        let native = json!({"user": 7, "owner": 1, "groups": [2, 3], "servers": ["a", "b"]});
        assert_eq!(rewritten(&body, rules, Client::Cli), native);
        // The native endpoint refuses what is not an id.
        for bad in [json!("07"), json!("x"), json!(""), json!("-1"), json!(null), json!(1.5)] {
            let body = json!({"user": bad, "groups": bad, "servers": bad});
            assert_eq!(rewritten(&body, rules, Client::Cli), body);
        }
        assert_eq!(rewritten(&json!({"owner": null}), rules, Client::Cli), json!({"owner": null}));
    }

    #[test]
    fn allowed_groups_are_the_native_groups() {
        let rules: Rules = &[(Rule::AllowedGroups, &["allowed_groups"])];
        let of = |groups: Value| rewritten(&json!({"allowed_groups": groups}), rules, Client::Cli);
        assert_eq!(of(json!(["1", "2"])), json!({"groups": [1, 2]}));
        assert_eq!(of(json!([])), json!({}));
        assert_eq!(of(json!("x")), json!({"groups": "x"}));
    }

    #[test]
    fn only_the_mcp_servers_default_group_is_none() {
        let rules: Rules = &[(Rule::Groupname, &["groupname"])];
        let of = |client, name: &str| rewritten(&json!({"groupname": name}), rules, client);
        assert_eq!(of(Client::Mcp, "alpacon"), json!({"groupname": ""}));
        assert_eq!(of(Client::Mcp, "adm"), json!({"groupname": "adm"}));
        assert_eq!(of(Client::Cli, "alpacon"), json!({"groupname": "alpacon"}));
    }

    #[test]
    fn a_body_that_is_no_object_is_left_to_the_native_endpoint() {
        for bad in ["", "[]", "{", "null", "\"x\""] {
            assert_eq!(rewrite(bad.as_bytes(), &[], Client::Cli), None, "{bad}");
        }
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        assert_eq!(rewrite(format!("{{\"x\":{deep}}}").as_bytes(), &[], Client::Cli), None);
    }
}
