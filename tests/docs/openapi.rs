//! The OpenAPI document: that it is whole, that it is served, that what differs from it is found,
//! and that a client made from it works. That every answer is as it says is checked wherever a test
//! asks for something (`farhand_tests::openapi`).

use std::collections::BTreeSet;

use farhand_domain::endpoints::{Access, ROUTES};
use farhand_domain::error::Code;
use farhand_tests::client::PASSWORD;
use farhand_tests::openapi::{DOCUMENT, Exchange, differences};
use farhand_tests::{PATIENCE, ScriptedAgent, Workspace};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::api::endpoints::all;

/// The parts of the document that have path items: OpenAPI has no form for the paths of the second.
const PARTS: [&str; 2] = ["paths", "x-catch-alls"];
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// All operations: method, path and what the document has of it.
fn operations() -> impl Iterator<Item = (String, &'static str, &'static Value)> {
    PARTS.into_iter().flat_map(|part| DOCUMENT[part].as_object().unwrap()).flat_map(
        |(path, item)| {
            let methods = METHODS
                .into_iter()
                .filter_map(|method| Some((method.to_uppercase(), item.get(method)?)));
            methods.map(|(method, operation)| (method, path.as_str(), operation))
        },
    )
}

#[test]
fn the_document_has_the_endpoints_that_there_are_and_no_others() {
    let described: BTreeSet<(String, &str)> =
        operations().map(|(method, path, _)| (method, path)).collect();
    let rows = all().map(|(method, path, _)| (method.to_owned(), path));
    assert_eq!(described, rows.collect());
    let has_rest = |path: &&String| path.contains("{*");
    assert_eq!(DOCUMENT["paths"].as_object().unwrap().keys().find(has_rest), None);
    assert!(DOCUMENT["x-catch-alls"].as_object().unwrap().keys().all(|path| has_rest(&path)));
}

#[test]
fn the_document_asks_for_the_credentials_that_the_endpoints_do() {
    for (method, path, operation) in operations() {
        let row = ROUTES.iter().find(|row| row.path == path).unwrap();
        let asked: BTreeSet<&str> = operation["security"]
            .as_array()
            .unwrap_or_else(|| panic!("{method} {path}"))
            .iter()
            .map(|way| way.as_object().unwrap().keys().next().map_or("", String::as_str))
            .collect();
        let is_optional = asked.is_empty() || asked.contains("");
        match row.access {
            Access::Open => assert!(is_optional, "{method} {path}"),
            Access::User => assert!(
                asked.contains("loginToken") && !asked.contains("agentKey"),
                "{method} {path}"
            ),
            Access::UserOrAgent => assert!(asked.contains("loginToken"), "{method} {path}"),
            Access::Agent => assert_eq!(asked, BTreeSet::from(["agentKey"]), "{method} {path}"),
            Access::Registration => {
                assert_eq!(asked, BTreeSet::from(["registrationToken"]), "{method} {path}")
            }
            Access::Operator => {
                assert_eq!(asked, BTreeSet::from(["operatorToken"]), "{method} {path}")
            }
        }
        assert_eq!(is_optional, row.access == Access::Open, "{method} {path}");
    }
}

/// Calls back with everything in the document that has a schema: where the schema is, and the
/// examples.
fn with_schemas(pointer: &str, value: &Value, found: &mut impl FnMut(&str, Vec<&Value>)) {
    // Schemas have examples of another form.
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
                found(&format!("{pointer}/schema"), examples.collect());
            }
            for (name, member) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                with_schemas(&format!("{pointer}/{name}"), member, found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                with_schemas(&format!("{pointer}/{index}"), item, found);
            }
        }
        _ => {}
    }
}

#[test]
fn everything_has_an_example_that_is_as_its_schema_says() {
    let (mut problems, mut count) = (Vec::new(), 0);
    with_schemas("", &DOCUMENT, &mut |schema, examples| {
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
fn everything_says_what_it_is() {
    let mut silent = Vec::new();
    for (name, schema) in DOCUMENT["components"]["schemas"].as_object().unwrap() {
        if schema["description"].as_str().is_none_or(str::is_empty) {
            silent.push(name.clone());
        }
        for (field, is) in schema["properties"].as_object().into_iter().flatten() {
            // What a reference leads to says it, where there is nothing to add.
            if is["description"].as_str().is_none_or(str::is_empty) && is.get("$ref").is_none() {
                silent.push(format!("{name}.{field}"));
            }
        }
    }
    assert!(silent.is_empty(), "{silent:?}");
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
fn the_document_has_the_codes_that_there_are_and_no_others() {
    let described = DOCUMENT["components"]["schemas"]["ErrorCode"]["enum"].as_array().unwrap();
    let described: BTreeSet<&str> = described.iter().map(|code| code.as_str().unwrap()).collect();
    assert_eq!(described, Code::ALL.iter().map(|code| code.as_str()).collect());
    // Each is told of some answer.
    let components = &DOCUMENT["components"];
    let told = [
        &DOCUMENT["paths"],
        &components["responses"],
        &components["headers"],
        &components["schemas"]["InternalError"],
    ];
    let answers = told.map(ToString::to_string).concat();
    for code in described {
        let told = format!("\"{code}\"");
        assert!(
            answers.contains(&told)
                || DOCUMENT["components"]["schemas"]["CommandErrors"].to_string().contains(&told)
        );
    }
}

#[tokio::test]
async fn the_document_is_served_to_everybody() {
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

/// An answer as the service gives it, to be made wrong.
struct Answer {
    method: &'static str,
    path: &'static str,
    request: Value,
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    fn to(
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

    /// What the checks find, as one text.
    fn found(&self) -> String {
        let asked = HeaderMap::from_iter([(
            "content-type".parse().unwrap(),
            "application/json".parse().unwrap(),
        )]);
        let request = if self.request.is_null() { String::new() } else { self.request.to_string() };
        let exchange = Exchange {
            method: self.method,
            path: self.path,
            query: vec![],
            request_headers: &asked,
            request_body: Some(request.as_bytes()),
            status: self.status,
            headers: &self.headers,
            body: Some(&self.body.to_string()),
        };
        exchange.differences().join("\n")
    }
}

#[test]
fn what_differs_from_the_document_is_found() {
    let status = || Answer::to("GET", "/api/status/", Value::Null, 200, json!({"status": "ok"}));
    assert_eq!(status().found(), "");
    let wrong = |change: fn(&mut Answer), of: &str| {
        let mut answer = status();
        change(&mut answer);
        assert!(answer.found().contains(of), "{of}: {}", answer.found());
    };
    wrong(|answer| answer.body = json!({"status": "ok", "more": 1}), "more");
    wrong(|answer| answer.body = json!({"status": 1}), "/status");
    wrong(|answer| answer.body = json!({}), "required");
    wrong(|answer| answer.body = json!([]), "object");
    wrong(|answer| answer.status = 201, "201");
    wrong(|answer| answer.status = 503, "503");
    wrong(|answer| drop(answer.headers.remove("x-request-id")), "x-request-id is missing");
    wrong(
        |answer| drop(answer.headers.insert("cache-control", "public".parse().unwrap())),
        "cache-control",
    );
    wrong(
        |answer| drop(answer.headers.insert("x-more", "1".parse().unwrap())),
        "x-more is not described",
    );
    wrong(
        |answer| drop(answer.headers.insert("content-type", "text/html".parse().unwrap())),
        "text/html",
    );
    // A refusal of another form, a code that the status does not have, and one for a path or a
    // method that there is not.
    wrong(|answer| (answer.status, answer.body) = (404, json!({"error": "x"})), "error");
    wrong(
        |answer| (answer.status, answer.body) = (403, json!({"code": "THROTTLED", "detail": "x"})),
        "THROTTLED",
    );
    wrong(
        |answer| {
            (answer.status, answer.body) = (401, json!({"code": "UNAUTHENTICATED", "detail": "x"}))
        },
        "www-authenticate is missing",
    );
    wrong(|answer| answer.path = "/api/nothing/", "200");
    wrong(|answer| answer.method = "POST", "200");

    let token = json!({"name": "x", "expires_at": null});
    let mut made = json!({"id": "01936d3e-7a00-7000-8000-000000000001", "name": "x", "enabled": true, "acl": null,
        "added_at": "2026-11-21T01:23:45.678901+00:00", "updated_at": "2026-11-21T01:23:45.678901+00:00",
        "expires_at": null, "last_used_at": null, "key": "k".repeat(128)});
    let create = |request: &Value, made: &Value| {
        let mut answer =
            Answer::to("POST", "/api/auth/tokens/", request.clone(), 201, made.clone());
        answer
            .headers
            .insert("location", "http://acme.eu1.example.com/api/auth/tokens/x/".parse().unwrap());
        answer.found()
    };
    assert_eq!(create(&token, &made), "");
    // What was taken must be what the document lets one send.
    assert!(create(&json!({"name": "x"}), &made).contains("the request's body"));
    made["added_at"] = json!("2026-11-21T01:23:45+00:00");
    assert!(create(&token, &made).contains("/added_at"));
}

/// Runs a program of the tests with Node, in the project's folder.
///
/// # Panics
/// When it fails, with what it says.
async fn node(program: &str, args: &[&str]) -> String {
    let mut command = Command::new("node");
    command.arg(format!("tests/support/client/{program}")).args(args);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).kill_on_drop(true);
    let output =
        tokio::time::timeout(4 * PATIENCE, command.output()).await.expect("it ends").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_client_made_from_the_document_runs_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    node("make.mjs", &[path]).await;

    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let answers = tokio::spawn(async move {
        let command = agent.next_command().await;
        agent.ack(command["id"].as_str().unwrap()).await;
        agent.fin(command["id"].as_str().unwrap(), 0, "up 4 days\n").await;
        command
    });
    let port = workspace.anonymous.url.rsplit(':').next().unwrap();
    let url = format!("http://{}:{port}", workspace.anonymous.host);
    let told =
        node("run.mjs", &[path, "127.0.0.1", &url, "boss", PASSWORD, "web-1", "uptime"]).await;
    let told: Value = serde_json::from_str(&told).unwrap();
    let expected = json!({"authenticated": true, "result": "up 4 days\n", "status": "Success", "count": 1,
        "code": "INVALID_COMMAND"});
    assert_eq!(told, expected);
    assert_eq!(answers.await.unwrap()["line"], "uptime");
}
