//! Unknown fields in request bodies are errors in every operation for users and operators (contract
//! 11.1).

use farhand_tests::client::{PASSWORD, unique};
use farhand_tests::mail::reset_link;
use farhand_tests::openapi::DOCUMENT;
use farhand_tests::{Api, Workspace};
use serde_json::{Value, json};

/// Operations whose bodies may contain unknown fields, with the reason.
const LENIENT: [(&str, &str); 1] =
    [("requestPasswordReset", "contract 11.1: no error in any case")];

/// An operation for users or operators that takes a JSON body.
struct StrictOperation {
    method: String,
    path: &'static str,
    schema: &'static Value,
    example: Value,
}

/// Follows a reference in the document.
fn resolved(schema: &'static Value) -> &'static Value {
    match schema["$ref"].as_str() {
        Some(reference) => resolved(DOCUMENT.pointer(&reference[1..]).unwrap()),
        None => schema,
    }
}

/// All operations that reject unknown fields. Operations of agents are not among them.
fn strict_operations() -> Vec<StrictOperation> {
    let mut all = Vec::new();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for method in ["post", "put", "patch", "delete"] {
            let operation = &item[method];
            let body = &operation["requestBody"]["content"]["application/json"];
            let is_lenient = LENIENT.iter().any(|(name, _)| operation["operationId"] == *name);
            if body.is_null() || is_lenient || operation["tags"] == json!(["Agents"]) {
                continue;
            }
            let schema = resolved(&body["schema"]);
            let example = body["example"].clone();
            all.push(StrictOperation { method: method.to_uppercase(), path, schema, example });
        }
    }
    all
}

/// Collects the pointers of all objects in a value for which the schema names the fields, and
/// asserts that the schema is closed there.
fn collect_closed_objects(
    at: &str,
    schema: &'static Value,
    value: &Value,
    found: &mut Vec<String>,
) {
    let schema = resolved(schema);
    if let Some(ways) = schema["anyOf"].as_array() {
        return ways.iter().for_each(|way| collect_closed_objects(at, way, value, found));
    }
    if let (Some(properties), Some(members)) = (schema["properties"].as_object(), value.as_object())
    {
        assert_eq!(schema["additionalProperties"], false, "{at} of {schema}");
        found.push(at.to_owned());
        for (name, member) in members {
            if let Some(inner) = properties.get(name) {
                collect_closed_objects(&format!("{at}/{name}"), inner, member, found);
            }
        }
    }
}

#[test]
fn every_request_schema_is_closed() {
    let all = strict_operations();
    assert!(all.len() > 20, "{}", all.len());
    for StrictOperation { method, path, schema, example } in all {
        assert_eq!(schema["additionalProperties"], false, "{method} {path}");
        let mut found = Vec::new();
        collect_closed_objects("", schema, &example, &mut found);
        assert!(!found.is_empty(), "{method} {path}");
    }
}

/// Resources of one workspace for trying out operations.
struct ExistingResources {
    workspace: Workspace,
    /// The values of path parameters: the path prefix of the collection, and the value.
    ids: Vec<(&'static str, String)>,
    deleted_server: String,
    reset_key: String,
}

impl ExistingResources {
    async fn make() -> Self {
        let workspace = Workspace::new().await;
        let session = workspace.session();
        let email = format!("{}@example.com", unique("u"));
        let user = workspace.user_with("carl", &json!({"email": email})).await;
        let mut ids = vec![("/api/iam/users/", user["id"].to_string())];
        let mut made = async |collection: &'static str, path: &str, body: Value| {
            let id = session.post(path, &body).await.expect(201)["id"].clone();
            ids.push((collection, id.as_str().map_or_else(|| id.to_string(), str::to_owned)));
            id
        };
        made("/api/auth/tokens/", "/api/auth/tokens/", json!({"name": "x", "expires_at": null}))
            .await;
        let group = made("/api/iam/groups/", "/api/iam/groups/", json!({"name": "ops"})).await;
        let membership = json!({"group": group, "user": user["id"]});
        made("/api/iam/memberships/", "/api/iam/memberships/", membership).await;
        made("/api/servers/", "/api/servers/", json!({"name": "web-1"})).await;
        let deleted = session.post("/api/servers/", &json!({"name": "old"})).await.expect(201);
        let deleted = deleted["id"].as_str().unwrap().to_owned();
        session.delete(&format!("/api/servers/servers/{deleted}/")).await.expect(204);
        let script = json!({"name": "clean", "body": "id"});
        made("/api/events/scripts/", "/api/events/scripts/", script).await;
        let schedule =
            json!({"name": "x", "cron": "@daily", "targets": {"all": true}, "line": "id"});
        made("/api/events/schedules/", "/api/events/schedules/", schedule).await;
        let reset_request = async {
            workspace.anonymous.post("/api/auth/reset-password/", &json!({"email": email})).await
        };
        let link = reset_link(&workspace, &email, reset_request).await;
        let reset_key = farhand_tests::mail::key_of(&link).to_owned();
        Self { workspace, ids, deleted_server: deleted, reset_key }
    }

    /// Replaces the parameters in a path pattern with values of existing resources.
    fn path(&self, pattern: &str) -> String {
        let id = self.ids.iter().find(|(collection, _)| pattern.starts_with(collection));
        let id = match pattern.ends_with("/undelete/") {
            true => &self.deleted_server,
            false => id.map_or("", |(_, id)| id),
        };
        [
            ("{id}", id),
            ("{username}", "carl"),
            ("{key}", self.reset_key.as_str()),
            ("{slug}", &self.workspace.slug),
        ]
        .into_iter()
        .fold(pattern.to_owned(), |path, (name, value)| path.replace(name, value))
    }

    fn api(&self, pattern: &str) -> Api {
        if pattern.starts_with("/operator/") { Api::operator() } else { self.workspace.session() }
    }
}

#[tokio::test]
async fn unknown_fields_are_rejected_at_every_depth() {
    let resources = ExistingResources::make().await;
    for StrictOperation { method, path, schema, mut example } in strict_operations() {
        let what = format!("{method} {path}");
        if resolved(schema)["properties"].get("acl").is_some() {
            example["acl"] = json!({"read_only": true});
        }
        let mut places = Vec::new();
        collect_closed_objects("", schema, &example, &mut places);
        for place in places {
            let mut body = example.clone();
            body.pointer_mut(&place).unwrap()["zzz"] = json!(1);
            let reply = resources.api(path).send_json(&method, &resources.path(path), &body).await;
            let errors = reply.expect(400);
            let messages = if place == "/acl" { &errors["acl"] } else { &errors["zzz"] };
            assert!(messages.to_string().contains("Unknown field."), "{what} {place}: {errors}");
            let code = if path.starts_with("/api/events/commands/") {
                "INVALID_COMMAND"
            } else {
                "INVALID_INPUT"
            };
            assert_eq!(reply.header("X-Error-Code"), code, "{what}");
        }
    }
    assert_eq!(
        resources.workspace.admin.get("/api/iam/users/").await.expect(200)["count"],
        2,
        "nothing was created"
    );
    assert_eq!(
        resources.workspace.admin.get("/api/servers/").await.expect(200)["count"],
        1,
        "nothing was created"
    );
}

#[tokio::test]
async fn a_misspelled_limit_creates_no_unlimited_token() {
    let workspace = Workspace::new().await;
    let session = workspace.session();
    let before = session.get("/api/auth/tokens/").await.expect(200);
    for (name, value) in [
        ("ACL", json!({"read_only": true})),
        ("scopes", json!(["servers:read"])),
        ("expires", json!(1)),
    ] {
        let body = json!({"name": "x", "expires_at": null, name: value});
        let errors = session.post("/api/auth/tokens/", &body).await.expect_fields(400, &[name]);
        assert_eq!(errors, json!({name: ["Unknown field."]}));
    }
    assert_eq!(session.get("/api/auth/tokens/").await.expect(200), before);
    let body = json!({"name": "x", "allowed_groups": [1]});
    session
        .post("/api/servers/registration-tokens/", &body)
        .await
        .expect_fields(400, &["allowed_groups"]);
    let server = workspace.server("web-1").await;
    let path = format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    session.patch(&path, &json!({"tags": ["prod"]})).await.expect_fields(400, &["tags"]);
    // A client may send back what it has read.
    let mut whole = session.get(&path).await.expect(200);
    whole["name"] = json!("web-2");
    assert_eq!(session.put(&path, &whole).await.expect(200)["name"], "web-2");
}

#[tokio::test]
async fn a_login_rejects_unknown_fields() {
    let workspace = Workspace::new().await;
    let sessions =
        workspace.session().get("/api/auth/sessions/").await.expect(200)["count"].clone();
    let login = json!({"username": "boss", "password": PASSWORD, "zzz": "x"});
    workspace.anonymous.post("/api/auth/login/", &login).await.expect_fields(400, &["zzz"]);
    assert_eq!(workspace.session().get("/api/auth/sessions/").await.expect(200)["count"], sessions);
}

#[tokio::test]
async fn operations_without_fields_reject_all_fields() {
    let (workspace, operator) = (Workspace::new().await, Api::operator());
    let server = workspace.server("web-1").await;
    let queued = json!({"server": "web-1", "line": "id", "on_offline": "queue"});
    let command = workspace.admin.post("/api/events/commands/", &queued).await.expect(201);
    let [command, server] = [
        format!("/api/events/commands/{}/", command["id"].as_str().unwrap()),
        format!("/api/servers/servers/{}/", server["id"].as_str().unwrap()),
    ];
    let key = workspace.admin.get(&server).await.expect(200)["updated_at"].clone();
    let session = workspace.session();
    for path in [&format!("{command}cancel/"), &format!("{command}kill/")] {
        let refusal = workspace.admin.post(path, &json!({"zzz": 1})).await;
        refusal.expect_fields(400, &["zzz"]);
    }
    let deleted = workspace.server("deleted").await;
    let deleted = format!("/api/servers/servers/{}/", deleted["id"].as_str().unwrap());
    workspace.admin.delete(&deleted).await.expect(204);
    for path in [format!("{server}rotate-key/"), format!("{deleted}undelete/")] {
        let refusal = workspace.admin.post(&path, &json!({"zzz": 1})).await;
        refusal.expect_fields(400, &["zzz"]);
    }
    session.post("/api/auth/logout/", &json!({"zzz": 1})).await.expect_fields(400, &["zzz"]);
    for action in ["undelete", "resync"] {
        let path = format!("/operator/workspaces/{}/{action}/", workspace.slug);
        operator.post(&path, &json!({"zzz": 1})).await.expect_fields(400, &["zzz"]);
    }
    assert_eq!(workspace.admin.get(&command).await.expect(200)["state"], "queued");
    assert_eq!(workspace.admin.get(&server).await.expect(200)["updated_at"], key);
    // An empty object and null contain no fields.
    workspace.admin.post(&format!("{command}cancel/"), &json!({})).await.expect(200);
    session.post("/api/auth/logout/", &Value::Null).await.expect(200);
}

#[tokio::test]
async fn a_reset_request_ignores_unknown_fields() {
    let workspace = Workspace::new().await;
    let reset = json!({"email": "nobody@example.com", "zzz": 1});
    assert_eq!(
        workspace.anonymous.post("/api/auth/reset-password/", &reset).await.expect(200),
        Value::Null
    );
}
