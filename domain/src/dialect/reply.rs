//! How the dialect rewrites the resources in a native response.
//!
//! The clients accept null for every field, and ignore unknown fields. A value of another type is
//! fatal for them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::time::Timestamp;

/// What a response shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A resource whose native form is also the client's form.
    Same,
    /// A user.
    User,
    /// A group, with summaries of its servers.
    Group,
    /// A membership, with the names of its group and its user.
    Membership,
    /// A server.
    Server,
    /// A registration token.
    RegistrationToken,
    /// A command.
    Command,
    /// A new command, as a list of one.
    NewCommand,
    /// An audit event.
    AuditEvent,
    /// A logout. It also succeeds with an API token, which stays valid.
    Logout,
    /// Text that does not depend on the response: JSON with this status.
    Fixed(u16, &'static str),
}

/// The names of the resources that a response only has the ids of.
#[derive(Default, Debug)]
pub struct Names {
    /// The names of groups.
    pub groups: BTreeMap<i64, String>,
    /// Native user objects.
    pub users: BTreeMap<i64, Value>,
    /// Native server objects.
    pub servers: BTreeMap<String, Value>,
}

/// The ids whose names a response needs.
#[derive(PartialEq, Eq, Default, Debug)]
pub struct NeededNames {
    /// Ids of groups.
    pub groups: BTreeSet<i64>,
    /// Ids of users.
    pub users: BTreeSet<i64>,
    /// Ids of servers.
    pub servers: BTreeSet<String>,
}

/// An id as text.
fn id_text(value: &Value) -> Value {
    value.as_i64().map_or(Value::Null, |id| json!(id.to_string()))
}

/// A list of ids as texts.
fn id_texts(value: &Value) -> Value {
    value.as_array().map_or(Value::Null, |ids| ids.iter().map(id_text).collect())
}

/// The summary of a user: of a native user object or summary.
fn user_summary(user: &Value) -> Value {
    if user.is_null() {
        return Value::Null;
    }
    json!({"id": id_text(&user["id"]), "name": user["username"], "email": user["email"]})
}

/// The summary of a server. `known` is its native object, if it is known.
pub fn server_summary(id: &Value, name: &Value, known: Option<&Value>) -> Value {
    let of = |field: &str| known.map_or(Value::Null, |server| server[field].clone());
    json!({
        "id": id,
        "name": known.map_or_else(|| name.clone(), |server| server["name"].clone()),
        "os": of("os_name"),
        "is_connected": of("is_connected"),
    })
}

/// The status of a command, and the phase in which it failed without a result.
fn status(text: &str, was_acked: bool) -> (&'static str, Option<&'static str>) {
    match text {
        "Scheduled" => ("scheduled", None),
        "Queued" => ("queued", None),
        "Sent" => ("delivered", None),
        "Acked" => ("acked", None),
        "Success" => ("success", None),
        "Failed" => ("failed", None),
        "Cancelled" => ("cancelled", None),
        "Stuck" if was_acked => ("stuck", Some("agent_timeout")),
        "Stuck" => ("stuck", Some("agent_disconnected")),
        "Expired" => ("error", Some("agent_disconnected")),
        _ => ("error", None),
    }
}

fn command(fields: &mut Map<String, Value>) {
    let native = fields.get("status").cloned().unwrap_or_default();
    let was_acked = fields.get("acked_at").is_some_and(|at| !at.is_null());
    let (status, phase) = status(native["text"].as_str().unwrap_or(""), was_acked);
    let server = fields.remove("server").unwrap_or_default();
    let name = fields.remove("server_name").unwrap_or_default();
    let requested_by = fields.get("requested_by").map_or(Value::Null, user_summary);
    fields.extend([
        ("status".to_owned(), json!(status)),
        ("error_phase".to_owned(), json!(phase)),
        ("cancellable".to_owned(), native["cancellable"].clone()),
        ("server".to_owned(), server_summary(&server, &name, None)),
        ("requested_by".to_owned(), requested_by),
        ("data".to_owned(), json!("")),
        ("run_after".to_owned(), json!([])),
    ]);
}

fn membership(fields: &mut Map<String, Value>, names: &Names) {
    let group = fields.get("group").and_then(Value::as_i64).unwrap_or(0);
    let user = fields.get("user").cloned().unwrap_or_default();
    let known = names.users.get(&user.as_i64().unwrap_or(0));
    fields.insert("group".to_owned(), json!(group.to_string()));
    fields.insert("group_name".to_owned(), json!(names.groups.get(&group)));
    let summary = known.map_or_else(|| json!({"id": id_text(&user)}), user_summary);
    fields.insert("user".to_owned(), summary);
}

fn audit_event(event: &Value) -> Value {
    let (app, verb) =
        event["action"].as_str().and_then(|action| action.split_once('.')).unwrap_or_default();
    let status = match event["outcome"].as_str() {
        Some("success") => 200,
        Some("denied") => 403,
        _ => 400,
    };
    let is_user = event["actor"]["type"] == "user";
    let user = json!({"id": event["actor"]["id"], "name": event["actor"]["name"], "email": null});
    json!({
        "id": event["id"],
        "user": if is_user { user } else { Value::Null },
        "username": event["actor"]["name"],
        "ip": event["remote_ip"],
        "app": app,
        "action": verb,
        "status_code": status,
        "added_at": event["occurred_at"],
        "model": event["object"]["type"],
        "description": event["object"]["name"],
    })
}

/// Rewrites a resource.
pub fn convert(shape: Shape, resource: Value, names: &Names, now: Timestamp) -> Value {
    let mut fields = match resource {
        Value::Object(fields) => fields,
        other => return other,
    };
    match shape {
        Shape::Same | Shape::Logout | Shape::Fixed(..) => {}
        Shape::User => {
            let id = fields.get("id").map_or(Value::Null, id_text);
            fields.insert("id".to_owned(), id);
        }
        Shape::Group => {
            let id = fields.get("id").map_or(Value::Null, id_text);
            let servers = fields.get("servers").and_then(Value::as_array).cloned();
            let summary = |id: &Value| {
                let known = names.servers.get(id.as_str().unwrap_or(""));
                server_summary(id, &json!(""), known)
            };
            let servers: Vec<Value> = servers.unwrap_or_default().iter().map(summary).collect();
            fields.insert("id".to_owned(), id);
            fields.insert("servers".to_owned(), json!(servers));
        }
        Shape::Membership => membership(&mut fields, names),
        Shape::Server => {
            let owner = fields.get("owner").map_or(Value::Null, user_summary);
            let groups = fields.get("groups").map_or(Value::Null, id_texts);
            fields.insert("owner".to_owned(), owner);
            fields.insert("groups".to_owned(), groups);
        }
        Shape::RegistrationToken => {
            let groups = fields.remove("groups").unwrap_or_default();
            let expires_at = fields.get("expires_at").and_then(Value::as_str);
            let is_expired = expires_at
                .and_then(|text| Timestamp::parse(text).ok())
                .is_some_and(|expires_at| expires_at <= now);
            let is_used_up = fields.get("uses").is_some_and(|uses| *uses == json!(0));
            fields.insert("allowed_groups".to_owned(), id_texts(&groups));
            fields.insert("enabled".to_owned(), json!(!is_expired && !is_used_up));
        }
        Shape::Command => command(&mut fields),
        Shape::NewCommand => {
            command(&mut fields);
            return json!([fields]);
        }
        Shape::AuditEvent => return audit_event(&Value::Object(fields)),
    }
    Value::Object(fields)
}

/// Adds the ids whose names a resource needs.
pub fn collect_needed(shape: Shape, resource: &Value, needed: &mut NeededNames) {
    match shape {
        Shape::Membership => {
            needed.groups.extend(resource["group"].as_i64());
            needed.users.extend(resource["user"].as_i64());
        }
        Shape::Group => {
            let ids = resource["servers"].as_array().into_iter().flatten();
            needed.servers.extend(ids.filter_map(|id| id.as_str().map(str::to_owned)));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaped(shape: Shape, resource: Value, names: &Names) -> Value {
        convert(shape, resource, names, Timestamp::parse("2026-11-21T00:00:00Z").unwrap())
    }

    fn plain(shape: Shape, resource: Value) -> Value {
        shaped(shape, resource, &Names::default())
    }

    fn boss() -> Value {
        json!({"id": 1, "username": "boss", "email": "b@x.y"})
    }

    const WEB: &str = "01936d3e-7a00-7000-8000-000000000000";

    #[test]
    fn a_command_has_a_text_as_status() {
        let native = |text: &str, acked_at: Value| {
            json!({"id": WEB, "server": WEB, "server_name": "web", "requested_by": boss(),
                "acked_at": acked_at, "status": {"text": text, "cancellable": true}})
        };
        let summary = json!({"id": WEB, "name": "web", "os": null, "is_connected": null});
        let command = plain(Shape::Command, native("Sent", json!(null)));
        assert_eq!(command["server"], summary);
        assert_eq!(command["requested_by"], json!({"id": "1", "name": "boss", "email": "b@x.y"}));
        assert_eq!(command["cancellable"], true);
        for (text, status, phase) in [
            ("Scheduled", "scheduled", json!(null)),
            ("Queued", "queued", json!(null)),
            ("Sent", "delivered", json!(null)),
            ("Acked", "acked", json!(null)),
            ("Success", "success", json!(null)),
            ("Failed", "failed", json!(null)),
            ("Cancelled", "cancelled", json!(null)),
            ("Stuck", "stuck", json!("agent_disconnected")),
            ("Expired", "error", json!("agent_disconnected")),
        ] {
            let command = plain(Shape::Command, native(text, json!(null)));
            assert_eq!((&command["status"], &command["error_phase"]), (&json!(status), &phase));
        }
        let stuck = plain(Shape::Command, native("Stuck", json!("2026-11-21T00:00:00Z")));
        assert_eq!(stuck["error_phase"], "agent_timeout");
        let new = plain(Shape::NewCommand, native("Sent", json!(null)));
        assert_eq!(new[0]["status"], "delivered");
        let deleted = json!({"requested_by": null, "status": {"text": "Sent"}});
        assert_eq!(plain(Shape::Command, deleted)["requested_by"], json!(null));
    }

    #[test]
    fn ids_become_texts() {
        assert_eq!(plain(Shape::User, boss())["id"], "1");
        let server = plain(Shape::Server, json!({"id": WEB, "owner": boss(), "groups": [3, 4]}));
        assert_eq!(server["owner"], json!({"id": "1", "name": "boss", "email": "b@x.y"}));
        assert_eq!((&server["groups"], &server["id"]), (&json!(["3", "4"]), &json!(WEB)));
        assert_eq!(plain(Shape::Server, json!({"owner": null}))["owner"], json!(null));
    }

    #[test]
    fn a_registration_token_is_enabled_until_it_expires_or_is_used_up() {
        let of = |expires_at: Value, uses: Value| {
            let native = json!({"groups": [1], "expires_at": expires_at, "uses": uses});
            plain(Shape::RegistrationToken, native)
        };
        let token = of(json!(null), json!(null));
        assert_eq!((&token["enabled"], &token["allowed_groups"]), (&json!(true), &json!(["1"])));
        assert!(token.get("groups").is_none());
        assert_eq!(of(json!("2026-11-21T00:00:00Z"), json!(1))["enabled"], false);
        assert_eq!(of(json!("2026-11-21T00:00:01Z"), json!(0))["enabled"], false);
        assert_eq!(of(json!("2026-11-21T00:00:01Z"), json!(1))["enabled"], true);
    }

    #[test]
    fn names_are_filled_in() {
        let names = Names {
            groups: BTreeMap::from([(2, "web".to_owned())]),
            users: BTreeMap::from([(1, boss())]),
            servers: BTreeMap::from([(
                WEB.to_owned(),
                json!({"name": "web-1", "os_name": "Debian", "is_connected": true}),
            )]),
        };
        let native = json!({"id": WEB, "group": 2, "user": 1, "role": "owner"});
        assert_eq!(
            shaped(Shape::Membership, native, &names),
            json!({"id": WEB, "group": "2", "group_name": "web", "role": "owner",
                "user": {"id": "1", "name": "boss", "email": "b@x.y"}})
        );
        let unknown = plain(Shape::Membership, json!({"group": 2, "user": 1}));
        assert_eq!((&unknown["group_name"], &unknown["user"]["id"]), (&json!(null), &json!("1")));
        let group = shaped(Shape::Group, json!({"id": 2, "servers": [WEB, "other"]}), &names);
        assert_eq!(
            group["servers"],
            json!([{"id": WEB, "name": "web-1", "os": "Debian", "is_connected": true},
                {"id": "other", "name": "", "os": null, "is_connected": null}])
        );
    }

    #[test]
    fn needed_names_are_collected() {
        let mut needed = NeededNames::default();
        collect_needed(Shape::Membership, &json!({"group": 2, "user": 1}), &mut needed);
        collect_needed(Shape::Group, &json!({"servers": [WEB]}), &mut needed);
        collect_needed(Shape::User, &boss(), &mut needed);
        let ids = |id: i64| BTreeSet::from([id]);
        let all = NeededNames {
            groups: ids(2),
            users: ids(1),
            servers: BTreeSet::from([WEB.to_owned()]),
        };
        assert_eq!(needed, all);
    }

    #[test]
    fn an_audit_event_is_an_activity() {
        let event = json!({"id": WEB, "actor": {"type": "user", "id": "1", "name": "boss"},
            "action": "api_token.create", "object": {"type": "api_token", "id": "x", "name": "ci"},
            "outcome": "denied", "remote_ip": null, "occurred_at": "2026-11-21T00:00:00Z"});
        assert_eq!(
            plain(Shape::AuditEvent, event),
            json!({"id": WEB, "user": {"id": "1", "name": "boss", "email": null},
                "username": "boss", "ip": null, "app": "api_token", "action": "create",
                "status_code": 403, "added_at": "2026-11-21T00:00:00Z", "model": "api_token",
                "description": "ci"})
        );
        let service = json!({"actor": {"type": "service"}, "object": null, "outcome": "success"});
        let activity = plain(Shape::AuditEvent, service);
        assert_eq!((&activity["user"], &activity["status_code"]), (&json!(null), &json!(200)));
    }
}
