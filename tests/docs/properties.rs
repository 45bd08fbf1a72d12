//! Random requests that are generated from the OpenAPI document: valid ones, near misses, and
//! arbitrary ones. Whatever the request, the response must conform to the document. The client
//! checks that for every response, and it also checks that accepted requests conform.
//!
//! A round has its own workspace with users, a server and a command. It sends one request of each
//! operation in random order with a random credential. A round is determined by its seed. New
//! rounds start for `FARHAND_PROPERTIES_SECONDS` (30). `FARHAND_PROPERTIES_SEED` repeats one round.
//! The catch-alls for unused reports of agents (`x-catch-alls`) are not included;
//! tests/api/bad_input.rs has them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farhand_tests::agents::credential;
use farhand_tests::client::{encoded, unique};
use farhand_tests::openapi::DOCUMENT;
use farhand_tests::{Api, Dice, Workspace};
use serde_json::{Map, Value, json};

/// Seeds that once found a bug.
const REGRESSIONS: [u64; 0] = [];
/// The maximum depth of generated objects. The document allows unlimited depth.
const MAX_DEPTH: usize = 6;

/// Follows a reference.
fn resolved(value: &Value) -> &Value {
    match value["$ref"].as_str() {
        Some(reference) => resolved(
            DOCUMENT.pointer(&reference[1..]).expect("a reference in the document has a target"),
        ),
        None => value,
    }
}

/// An operation of the document, with its parameters and the schema of its body.
struct Operation {
    method: String,
    path: &'static str,
    parameters: Vec<&'static Value>,
    body: Option<&'static Value>,
}

fn operations() -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if !["get", "post", "put", "patch", "delete"].contains(&method.as_str()) {
                continue;
            }
            let lists = [&item["parameters"], &operation["parameters"]];
            let parameters =
                lists.into_iter().filter_map(Value::as_array).flatten().map(resolved).collect();
            let body = resolved(&operation["requestBody"]);
            let body = body["content"].get("application/json").map(|content| &content["schema"]);
            all.push(Operation { method: method.to_uppercase(), path, parameters, body });
        }
    }
    all
}

/// A value that no schema expects.
fn arbitrary_value(dice: &mut Dice) -> Value {
    match dice.roll(18) {
        0 => Value::Null,
        1 => json!(dice.once_in(2)),
        2 => json!(-1),
        3 => json!(0),
        4 => json!(1.5),
        5 => json!(1e308),
        6 => json!(1_u64 << 53),
        7 => json!(u64::MAX),
        8 => json!(i64::MIN),
        9 => json!(""),
        10 => json!(" \u{a0}\t"),
        11 => json!("a\0b"),
        12 => json!("\u{202e}😀İß\u{feff}'\";--%_*"),
        13 => json!("x".repeat(1 << dice.roll(18))),
        14 => json!([]),
        15 => json!([null, [[]], {"a": 1}, "x"]),
        16 => json!({"": {"a": []}}),
        _ => json!("2026-02-30T25:00:00Z"),
    }
}

/// How a request is generated.
#[derive(Clone, Copy, PartialEq, Debug)]
enum RequestKind {
    /// Valid according to the document.
    Valid,
    /// At the bounds or one beyond, with missing or unknown members.
    NearMiss,
    /// With arbitrary values.
    Arbitrary,
}

/// A number between bounds. For a near miss, a number at a bound or one beyond it.
fn between(least: i64, most: i64, request_kind: RequestKind, dice: &mut Dice) -> i64 {
    if request_kind == RequestKind::Valid {
        let range = usize::try_from(most.saturating_sub(least).clamp(0, 40)).unwrap();
        return least + dice.roll(range + 1) as i64;
    }
    *dice.pick(&[least.saturating_sub(1), least, most, most.saturating_add(1)])
}

fn text(schema: &Value, request_kind: RequestKind, dice: &mut Dice) -> String {
    let examples = schema["examples"]
        .as_array()
        .filter(|examples| !examples.is_empty() && request_kind == RequestKind::Valid);
    if let Some(example) = examples.and_then(|examples| dice.pick(examples).as_str()) {
        return example.to_owned();
    }
    match schema["format"].as_str() {
        Some("uuid") => return "01936d3e-7a00-7000-8000-000000000000".to_owned(),
        Some("date-time") => {
            return dice.pick(&["2090-01-01T00:00:00Z", "2026-11-21T01:23:45.5+01:00"]).to_string();
        }
        Some("email") => return format!("{}@example.com", unique("e")),
        _ => {}
    }
    let least = schema["minLength"].as_i64().unwrap_or(0);
    let most = schema["maxLength"].as_i64().unwrap_or(least + 20);
    let length =
        usize::try_from(between(least, most, request_kind, dice).clamp(0, 20_000)).unwrap();
    let word = unique("p");
    word.chars().chain("abcdefgh".chars().cycle()).take(length).collect()
}

/// A value for a schema.
fn value(schema: &Value, request_kind: RequestKind, depth: usize, dice: &mut Dice) -> Value {
    let schema = resolved(schema);
    if depth > MAX_DEPTH {
        return Value::Null;
    }
    if request_kind == RequestKind::Arbitrary && dice.once_in(3) {
        return arbitrary_value(dice);
    }
    for choice in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[choice].as_array() {
            return value(dice.pick(choices), request_kind, depth + 1, dice);
        }
    }
    if let Some(choices) = schema["enum"].as_array() {
        return dice.pick(choices).clone();
    }
    if let Some(only) = schema.get("const") {
        return only.clone();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => dice.pick(kinds).as_str().unwrap_or_default(),
        kind => kind.as_str().unwrap_or("object"),
    };
    match kind {
        "null" => Value::Null,
        "boolean" => json!(dice.once_in(2)),
        "integer" | "number" => {
            let least = schema["minimum"].as_i64().unwrap_or(0);
            json!(between(
                least,
                schema["maximum"].as_i64().unwrap_or(least + 100),
                request_kind,
                dice
            ))
        }
        "string" => json!(text(schema, request_kind, dice)),
        "array" => {
            let most = if request_kind == RequestKind::Valid {
                3
            } else {
                schema["maxItems"].as_i64().unwrap_or(3).min(6_000)
            };
            let count =
                between(schema["minItems"].as_i64().unwrap_or(0), most, request_kind, dice).max(0);
            let item = value(&schema["items"], request_kind, depth + 1, dice);
            (0..count).map(|_| item.clone()).collect()
        }
        _ => object(schema, request_kind, depth, dice),
    }
}

fn object(schema: &Value, request_kind: RequestKind, depth: usize, dice: &mut Dice) -> Value {
    let mut members = Map::new();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        if let Value::Object(more) = value(part, request_kind, depth + 1, dice) {
            members.extend(more);
        }
    }
    let is_required = |name: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name))
    };
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let is_there = if is_required(name) {
            request_kind == RequestKind::Valid || !dice.once_in(6)
        } else {
            dice.once_in(3)
        };
        if is_there {
            members.insert(name.clone(), value(member, request_kind, depth + 1, dice));
        }
    }
    if request_kind != RequestKind::Valid && dice.once_in(3) {
        members.insert("other".to_owned(), arbitrary_value(dice));
    }
    Value::Object(members)
}

/// A workspace with the resources and credentials that requests use.
struct RoundSetup {
    workspace: Workspace,
    operator: Api,
    credentials: Vec<Api>,
    /// Ids of resources, by the beginning of the paths that take them.
    ids: Vec<(&'static str, String)>,
}

impl RoundSetup {
    async fn set() -> Self {
        let workspace = Workspace::new().await;
        let server = workspace.server("web-1").await;
        let (staff, member) = (workspace.staff("stella").await, workspace.user("mona").await);
        let group =
            workspace.admin.post("/api/iam/groups/", &json!({"name": "ops"})).await.expect(201);
        let user = member.get("/api/iam/users/-/").await.expect(200)["id"].clone();
        let membership = json!({"group": group["id"], "user": user});
        let membership =
            workspace.admin.post("/api/iam/memberships/", &membership).await.expect(201);
        let new =
            json!({"server": "web-1", "line": "uptime", "username": "boss", "on_offline": "queue"});
        let command = workspace.admin.post("/api/events/commands/", &new).await.expect(201);
        let registration = json!({"name": "hosts", "expires_at": null, "uses": null});
        let registration = workspace
            .admin
            .post("/api/servers/registration-tokens/", &registration)
            .await
            .expect(201);
        let token =
            workspace.admin.get("/api/auth/tokens/").await.expect(200)["results"][0].clone();
        let limited = workspace.limited(&json!({"commands": ["ls *"]})).await;
        let agent = workspace.anonymous.with_authorization(&credential(&server));
        let registrar = workspace.anonymous.with_token(registration["key"].as_str().unwrap());
        let ids = [
            ("/api/auth/tokens/", &token["id"]),
            ("/api/iam/users/", &user),
            ("/api/iam/groups/", &group["id"]),
            ("/api/iam/memberships/", &membership["id"]),
            ("/api/servers/registration-tokens/", &registration["id"]),
            ("/api/servers/servers/", &server["id"]),
            ("/api/events/commands/", &command["id"]),
        ]
        .map(|(path, id)| (path, id.as_str().map_or_else(|| id.to_string(), str::to_owned)));
        let credentials = vec![
            workspace.admin.clone(),
            workspace.session(),
            staff,
            member,
            limited,
            agent,
            registrar,
            workspace.anonymous.clone(),
        ];
        Self { operator: Api::operator(), workspace, credentials, ids: ids.to_vec() }
    }

    /// The client for an operation: usually one that may call it.
    fn caller(&self, operation: &Operation, dice: &mut Dice) -> Api {
        let [admin, .., agent, registrar, _] = &self.credentials[..] else {
            unreachable!("there are eight credentials")
        };
        if operation.path.starts_with("/operator/") {
            return if dice.once_in(4) { self.operator.anonymous() } else { self.operator.clone() };
        }
        let of_agents = [
            "/ack/",
            "/chunk/",
            "/fin/",
            "/reject/",
            "/events/events/",
            "/-/",
            "/ws/",
            "/metrics/",
            "/unregister/",
        ];
        let api = if dice.once_in(3) {
            dice.pick(&self.credentials)
        } else if operation.path.ends_with("/register/") {
            registrar
        } else if !operation.path.contains("/iam/")
            && of_agents.iter().any(|part| operation.path.contains(part))
        {
            agent
        } else {
            admin
        };
        // Wrong credentials are counted per address.
        api.from_address(&format!("198.51.{}.{}", dice.roll(256), dice.roll(256)))
    }

    fn path(&self, operation: &Operation, request_kind: RequestKind, dice: &mut Dice) -> String {
        let known = self
            .ids
            .iter()
            .find(|(path, _)| operation.path.starts_with(path))
            .map(|(_, id)| id.as_str());
        // The output stream of a waiting command does not end.
        let known = known.filter(|_| !operation.path.ends_with("/stream/"));
        let unknown = [
            "01936d3e-7a00-7000-8000-000000000000",
            "999999",
            "-",
            "0",
            "x",
            "%00",
            "%F0%9F%98%80",
            "a%2Fb",
        ];
        let id = if request_kind == RequestKind::Arbitrary || known.is_none() {
            *dice.pick(&unknown)
        } else {
            known.unwrap_or("x")
        };
        let username =
            if request_kind == RequestKind::Arbitrary { *dice.pick(&unknown) } else { "mona" };
        let path = operation.path.replace("{id}", id).replace("{username}", username);
        path.replace("{key}", dice.pick::<&str>(&unknown))
            .replace("{slug}", dice.pick::<&str>(&unknown))
    }

    /// Sends a random request. Returns a description if it failed.
    async fn request(&self, operation: &Operation, dice: &mut Dice) -> Option<String> {
        let request_kind =
            *dice.pick(&[RequestKind::Valid, RequestKind::NearMiss, RequestKind::Arbitrary]);
        let api = self.caller(operation, dice);
        let mut path = self.path(operation, request_kind, dice);
        let mut query = Vec::new();
        let mut headers = Vec::new();
        for parameter in &operation.parameters {
            let (name, place) =
                (parameter["name"].as_str().unwrap(), parameter["in"].as_str().unwrap());
            if place == "path" || !dice.once_in(3) {
                continue;
            }
            let chosen = value(&parameter["schema"], request_kind, 0, dice);
            let mut text = chosen.as_str().map_or_else(|| chosen.to_string(), str::to_owned);
            text.truncate(text.floor_char_boundary(10_000));
            match place {
                // Waiting would only cost time, because no result arrives.
                "query" if name == "wait" => query.push((name, "0".to_owned())),
                "query" => query.push((name, text)),
                "header" if name != "Prefer" && text.chars().all(|c| c.is_ascii_graphic()) => {
                    headers.push((name, text))
                }
                _ => {}
            }
        }
        if !query.is_empty() {
            path = format!("{path}?{}", encoded(&query));
        }
        let mut request = api.request(&operation.method, &path);
        for (name, text) in &headers {
            request = request.header(*name, text);
        }
        let body = operation.body.map(|schema| value(schema, request_kind, 0, dice));
        if let Some(body) = &body {
            request = request.json(body);
        }
        // The client panics if the response does not conform to the document.
        let sent = tokio::spawn(async move { api.send(request).await }).await;
        let problem = match sent {
            Ok(reply) if reply.status >= 500 && reply.json()["code"] != "SERVER_NOT_CONNECTED" => {
                reply.text
            }
            Ok(_) => return None,
            Err(error) => {
                let panic = error.into_panic();
                panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned())
            }
        };
        let body = body.map_or_else(String::new, |body| body.to_string());
        Some(format!(
            "{request_kind:?} {} {path:.300} {headers:.300?}\n{body:.600}\n{problem:.1500}",
            operation.method
        ))
    }
}

/// Plays a round, and returns the descriptions of failed requests.
async fn round(seed: u64, operations: &[Operation]) -> Vec<String> {
    let mut dice = Dice(seed);
    let setup = RoundSetup::set().await;
    let mut order: Vec<&Operation> = operations.iter().collect();
    for place in (1..order.len()).rev() {
        order.swap(place, dice.roll(place + 1));
    }
    let mut failed = Vec::new();
    for operation in order {
        failed.extend(setup.request(operation, &mut dice).await);
    }
    let slug = &setup.workspace.slug;
    setup.operator.delete(&format!("/operator/workspaces/{slug}/")).await.expect(204);
    failed
}

#[tokio::test]
async fn every_response_conforms_to_the_document() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let operations = operations();
    assert!(operations.len() > 70, "{} operations", operations.len());
    let until =
        Instant::now() + Duration::from_secs(number("FARHAND_PROPERTIES_SECONDS").unwrap_or(30));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seeds: Vec<u64> = match number("FARHAND_PROPERTIES_SEED") {
        Some(seed) => vec![seed],
        None => REGRESSIONS.into_iter().chain([now]).collect(),
    };
    let mut seeds = seeds.into_iter();
    let mut next = Dice(now);
    let mut rounds = 0;
    loop {
        let seed = match seeds.next() {
            Some(seed) => seed,
            None if Instant::now() < until && number("FARHAND_PROPERTIES_SEED").is_none() => {
                next.roll(1 << 53) as u64
            }
            None => break,
        };
        rounds += 1;
        let failed = round(seed, &operations).await;
        assert!(
            failed.is_empty(),
            "round {rounds}, FARHAND_PROPERTIES_SEED={seed}:\n\n{}",
            failed.join("\n\n")
        );
    }
    println!("{rounds} rounds of {} requests", operations.len());
}
