//! The OpenAPI document is complete, it is served, and a client generated from it works. Every
//! test also compares each exchange with the document (`farhand_tests::openapi`); the tests here
//! check that this comparison finds differences.

use std::collections::BTreeSet;

use farhand_domain::error::Code;
use farhand_domain::http::endpoints::{Access, ROUTES};
use farhand_tests::client::PASSWORD;
use farhand_tests::openapi::{DOCUMENT, Exchange, differences};
use farhand_tests::{PATIENCE, ScriptedAgent, Workspace};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::api::endpoints::all;

/// The members of the document with path items. The second one has the paths with a catch-all
/// parameter such as `{*rest}`, which OpenAPI cannot express.
const PATH_MEMBERS: [&str; 2] = ["paths", "x-catch-alls"];
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// All operations: method, path and the operation object.
fn operations() -> impl Iterator<Item = (String, &'static str, &'static Value)> {
    PATH_MEMBERS.into_iter().flat_map(|member| DOCUMENT[member].as_object().unwrap()).flat_map(
        |(path, item)| {
            let methods = METHODS
                .into_iter()
                .filter_map(|method| Some((method.to_uppercase(), item.get(method)?)));
            methods.map(|(method, operation)| (method, path.as_str(), operation))
        },
    )
}

#[test]
fn the_document_lists_exactly_the_existing_endpoints() {
    let described: BTreeSet<(String, &str)> =
        operations().map(|(method, path, _)| (method, path)).collect();
    let existing = all().map(|(method, path, _)| (method.to_owned(), path));
    assert_eq!(described, existing.collect());
    let has_rest = |path: &&String| path.contains("{*");
    assert_eq!(DOCUMENT["paths"].as_object().unwrap().keys().find(has_rest), None);
    assert!(DOCUMENT["x-catch-alls"].as_object().unwrap().keys().all(|path| has_rest(&path)));
}

#[test]
fn the_document_requires_the_same_credentials_as_the_routes() {
    for (method, path, operation) in operations() {
        let route = ROUTES.iter().find(|route| route.path == path).unwrap();
        let schemes: BTreeSet<&str> = operation["security"]
            .as_array()
            .unwrap_or_else(|| panic!("{method} {path}"))
            .iter()
            .map(|requirement| {
                requirement.as_object().unwrap().keys().next().map_or("", String::as_str)
            })
            .collect();
        let is_optional = schemes.is_empty() || schemes.contains("");
        match route.access {
            Access::Open => assert!(is_optional, "{method} {path}"),
            Access::User => assert!(
                schemes.contains("loginToken") && !schemes.contains("agentKey"),
                "{method} {path}"
            ),
            Access::UserOrAgent => assert!(schemes.contains("loginToken"), "{method} {path}"),
            Access::Agent => assert_eq!(schemes, BTreeSet::from(["agentKey"]), "{method} {path}"),
            Access::Registration => {
                assert_eq!(schemes, BTreeSet::from(["registrationToken"]), "{method} {path}")
            }
            Access::Operator => {
                assert_eq!(schemes, BTreeSet::from(["operatorToken"]), "{method} {path}")
            }
        }
        assert_eq!(is_optional, route.access == Access::Open, "{method} {path}");
    }
}

/// Calls `visit` for every object with a schema: with the JSON pointer of the schema and the
/// examples next to the schema.
fn visit_schemas(pointer: &str, value: &Value, visit: &mut impl FnMut(&str, Vec<&Value>)) {
    // Inside schemas, examples have another form.
    if pointer.starts_with("/components/schemas") {
        return;
    }
    match value {
        Value::Object(members) => {
            if members.contains_key("schema") && members["schema"].is_object() {
                let named =
                    members.get("examples").and_then(Value::as_object).into_iter().flatten();
                let examples =
                    named.map(|(_, example)| &example["value"]).chain(members.get("example"));
                visit(&format!("{pointer}/schema"), examples.collect());
            }
            for (name, member) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                visit_schemas(&format!("{pointer}/{name}"), member, visit);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                visit_schemas(&format!("{pointer}/{index}"), item, visit);
            }
        }
        _ => {}
    }
}

#[test]
fn every_schema_has_examples_that_match_it() {
    let (mut problems, mut count) = (Vec::new(), 0);
    visit_schemas("", &DOCUMENT, &mut |schema, examples| {
        count += 1;
        if examples.is_empty() {
            problems.push(format!("{schema} has no example"));
        }
        for example in examples {
            problems.extend(
                differences(schema, example).iter().map(|problem| format!("{schema}: {problem}")),
            );
        }
    });
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count > operations().count(), "{count}");
}

#[test]
fn every_schema_and_field_has_a_description() {
    let mut undescribed = Vec::new();
    for (name, schema) in DOCUMENT["components"]["schemas"].as_object().unwrap() {
        if schema["description"].as_str().is_none_or(str::is_empty) {
            undescribed.push(name.clone());
        }
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            // A reference needs no description of its own, because its target has one.
            if property["description"].as_str().is_none_or(str::is_empty)
                && property.get("$ref").is_none()
            {
                undescribed.push(format!("{name}.{field}"));
            }
        }
    }
    assert!(undescribed.is_empty(), "{undescribed:?}");
}

/// Generators of clients give a type to a schema with a name only, and some read no `allOf`.
#[test]
fn every_json_body_has_a_named_schema() {
    let mut unnamed = Vec::new();
    let mut count = 0;
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in METHODS.iter().filter_map(|name| Some((name, item.get(name)?))) {
            let answers = operation["responses"].as_object().unwrap().iter();
            let bodies = answers.map(|(status, answer)| (status.as_str(), answer));
            for (part, body) in bodies.chain([("request", &operation["requestBody"])]) {
                let Some(json) = body["content"].get("application/json") else { continue };
                count += 1;
                // A server has one form for users, and another one for its agent.
                let schema = &json["schema"];
                let ways =
                    schema["anyOf"].as_array().map_or(vec![schema], |ways| ways.iter().collect());
                if ways.iter().any(|way| way["$ref"].is_null()) {
                    unnamed.push(format!("{method} {path}: {part}"));
                }
            }
        }
    }
    assert!(unnamed.is_empty(), "{unnamed:?}");
    assert!(count > 150, "{count}");
}

#[test]
fn the_document_lists_exactly_the_existing_error_codes() {
    let described = DOCUMENT["components"]["schemas"]["ErrorCode"]["enum"].as_array().unwrap();
    let described: BTreeSet<&str> = described.iter().map(|code| code.as_str().unwrap()).collect();
    assert_eq!(described, Code::ALL.iter().map(|code| code.as_str()).collect());
    // At least one response must mention each code.
    let components = &DOCUMENT["components"];
    let parts = [
        &DOCUMENT["paths"],
        &components["responses"],
        &components["headers"],
        &components["schemas"]["InternalError"],
    ];
    let responses = parts.map(ToString::to_string).concat();
    for code in described {
        let quoted = format!("\"{code}\"");
        assert!(
            responses.contains(&quoted)
                || DOCUMENT["components"]["schemas"]["CommandErrors"].to_string().contains(&quoted)
        );
    }
}

#[tokio::test]
async fn anyone_may_read_the_document() {
    let workspace = Workspace::new().await;
    for api in [
        &workspace.anonymous,
        &workspace.admin,
        &workspace.anonymous.with_authorization("nonsense"),
    ] {
        assert_eq!(api.get("/api/schema/").await.expect(200), *DOCUMENT);
    }
    workspace
        .anonymous
        .with_host("nobody.local.localhost")
        .get("/api/schema/")
        .await
        .expect_detail(404, None);
}

/// An exchange that agrees with the document. The tests change it and expect a difference.
struct SampleExchange {
    method: &'static str,
    path: &'static str,
    request: Value,
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl SampleExchange {
    fn new(
        method: &'static str,
        path: &'static str,
        request: Value,
        status: u16,
        body: Value,
    ) -> Self {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-request-id", "abc"),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("content-type", "application/json"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        Self { method, path, request, status, headers, body }
    }

    /// The differences from the document, one on each line.
    fn differences(&self) -> String {
        let request_headers = HeaderMap::from_iter([(
            "content-type".parse().unwrap(),
            "application/json".parse().unwrap(),
        )]);
        let request = if self.request.is_null() { String::new() } else { self.request.to_string() };
        let exchange = Exchange {
            method: self.method,
            path: self.path,
            query: vec![],
            request_headers: &request_headers,
            request_body: Some(request.as_bytes()),
            status: self.status,
            headers: &self.headers,
            body: Some(&self.body.to_string()),
        };
        exchange.differences().join("\n")
    }
}

#[test]
fn the_comparison_finds_differences_from_the_document() {
    let status =
        || SampleExchange::new("GET", "/api/status/", Value::Null, 200, json!({"status": "ok"}));
    assert_eq!(status().differences(), "");
    let assert_found = |change: fn(&mut SampleExchange), expected: &str| {
        let mut sample = status();
        change(&mut sample);
        let differences = sample.differences();
        assert!(differences.contains(expected), "{expected}: {differences}");
    };
    assert_found(|sample| sample.body = json!({"status": "ok", "more": 1}), "more");
    assert_found(|sample| sample.body = json!({"status": 1}), "/status");
    assert_found(|sample| sample.body = json!({}), "required");
    assert_found(|sample| sample.body = json!([]), "object");
    assert_found(|sample| sample.status = 201, "201");
    assert_found(|sample| sample.status = 503, "503");
    assert_found(|sample| drop(sample.headers.remove("x-request-id")), "x-request-id is missing");
    assert_found(
        |sample| drop(sample.headers.insert("cache-control", "public".parse().unwrap())),
        "cache-control",
    );
    assert_found(
        |sample| drop(sample.headers.insert("x-more", "1".parse().unwrap())),
        "x-more is not described",
    );
    assert_found(
        |sample| drop(sample.headers.insert("content-type", "text/html".parse().unwrap())),
        "text/html",
    );
    // An error in another form, a code that the status does not allow, a 401 without its header,
    // and a response from a path or a method that does not exist.
    assert_found(|sample| (sample.status, sample.body) = (404, json!({"error": "x"})), "error");
    assert_found(
        |sample| (sample.status, sample.body) = (403, json!({"code": "THROTTLED", "detail": "x"})),
        "THROTTLED",
    );
    assert_found(
        |sample| {
            (sample.status, sample.body) = (401, json!({"code": "UNAUTHENTICATED", "detail": "x"}))
        },
        "www-authenticate is missing",
    );
    assert_found(|sample| sample.path = "/api/nothing/", "200");
    assert_found(|sample| sample.method = "POST", "200");

    let token = json!({"name": "x", "expires_at": null});
    let mut created = json!({"id": "01936d3e-7a00-7000-8000-000000000001", "name": "x", "enabled": true, "acl": null,
        "added_at": "2026-11-21T01:23:45.678901+00:00", "updated_at": "2026-11-21T01:23:45.678901+00:00",
        "expires_at": null, "last_used_at": null, "key": "k".repeat(128)});
    let create = |request: &Value, created: &Value| {
        let mut sample =
            SampleExchange::new("POST", "/api/auth/tokens/", request.clone(), 201, created.clone());
        sample
            .headers
            .insert("location", "http://acme.eu1.example.com/api/auth/tokens/x/".parse().unwrap());
        sample.differences()
    };
    assert_eq!(create(&token, &created), "");
    // The service must accept only the request bodies that the document allows.
    assert!(create(&json!({"name": "x"}), &created).contains("the request's body"));
    created["added_at"] = json!("2026-11-21T01:23:45+00:00");
    assert!(create(&token, &created).contains("/added_at"));
}

/// Runs a script of `tests/support/client` with Node in the project's folder, and returns what it
/// prints.
///
/// # Panics
/// If the script fails, with its error output.
async fn run_node(program: &str, args: &[&str]) -> String {
    let mut command = Command::new("node");
    command.arg(format!("tests/support/client/{program}")).args(args);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).kill_on_drop(true);
    let output = tokio::time::timeout(4 * PATIENCE, command.output())
        .await
        .expect("the script ends in time")
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_client_generated_from_the_document_runs_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    run_node("make.mjs", &[path]).await;

    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let delivered = tokio::spawn(async move {
        let command = agent.next_command().await;
        agent.ack(command["id"].as_str().unwrap()).await;
        agent.fin(command["id"].as_str().unwrap(), 0, "up 4 days\n").await;
        command
    });
    let port = workspace.anonymous.url.rsplit(':').next().unwrap();
    let url = format!("http://{}:{port}", workspace.anonymous.host);
    let output =
        run_node("run.mjs", &[path, "127.0.0.1", &url, "boss", PASSWORD, "web-1", "uptime"]).await;
    let output: Value = serde_json::from_str(&output).unwrap();
    let expected = json!({"authenticated": true, "result": "up 4 days\n", "status": "Success", "count": 1,
        "code": "INVALID_COMMAND"});
    assert_eq!(output, expected);
    assert_eq!(delivered.await.unwrap()["line"], "uptime");
}
