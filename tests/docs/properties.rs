//! Requests made by chance from the OpenAPI document: of each operation ones that are as the
//! document has them, ones that miss it by a little, and wild ones. Whatever is sent, the answer is
//! one that the document describes, which the client checks for every answer, and what is taken is
//! what the document allows.
//!
//! A round is a workspace with some people, a server and a command, and one request of each
//! operation in a chance order, by a chance credential. It comes out of its seed.
//! `FARHAND_PROPERTIES_SECONDS` says how long new rounds begin (30), and `FARHAND_PROPERTIES_SEED`
//! plays one again. Left out are the catch-alls for reports of agents that the service has no use
//! for (`x-catch-alls`), which tests/api/bad_input.rs has.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farhand_tests::agents::credential;
use farhand_tests::client::{encoded, unique};
use farhand_tests::openapi::DOCUMENT;
use farhand_tests::{Api, Dice, Workspace};
use serde_json::{Map, Value, json};

/// Seeds that once found something.
const REGRESSIONS: [u64; 0] = [];
/// How deep objects are made that the document has no end for.
const DEEPEST: usize = 6;

/// Follows a reference.
fn resolved(value: &Value) -> &Value {
    match value["$ref"].as_str() {
        Some(reference) => {
            resolved(DOCUMENT.pointer(&reference[1..]).expect("the document has what it refers to"))
        }
        None => value,
    }
}

/// A method of a path, with its parameters and the schema of its body.
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

/// A value that no schema is meant for.
fn wild(dice: &mut Dice) -> Value {
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

/// How a request is made.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Aim {
    /// As the document has it.
    Good,
    /// At the bounds and by one beyond them, with members that are missing or that nobody knows.
    Near,
    /// With values of any kind.
    Wild,
}

/// A number of things between bounds; of a near miss, one at a bound or by one beyond it.
fn between(least: i64, most: i64, aim: Aim, dice: &mut Dice) -> i64 {
    if aim == Aim::Good {
        let range = usize::try_from(most.saturating_sub(least).clamp(0, 40)).unwrap();
        return least + dice.roll(range + 1) as i64;
    }
    *dice.pick(&[least.saturating_sub(1), least, most, most.saturating_add(1)])
}

fn text(schema: &Value, aim: Aim, dice: &mut Dice) -> String {
    let examples =
        schema["examples"].as_array().filter(|examples| !examples.is_empty() && aim == Aim::Good);
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
    let length = usize::try_from(between(least, most, aim, dice).clamp(0, 20_000)).unwrap();
    let word = unique("p");
    word.chars().chain("abcdefgh".chars().cycle()).take(length).collect()
}

/// A value for a schema.
fn value(schema: &Value, aim: Aim, depth: usize, dice: &mut Dice) -> Value {
    let schema = resolved(schema);
    if depth > DEEPEST {
        return Value::Null;
    }
    if aim == Aim::Wild && dice.once_in(3) {
        return wild(dice);
    }
    for choice in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[choice].as_array() {
            return value(dice.pick(choices), aim, depth + 1, dice);
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
            json!(between(least, schema["maximum"].as_i64().unwrap_or(least + 100), aim, dice))
        }
        "string" => json!(text(schema, aim, dice)),
        "array" => {
            let most = if aim == Aim::Good {
                3
            } else {
                schema["maxItems"].as_i64().unwrap_or(3).min(6_000)
            };
            let count = between(schema["minItems"].as_i64().unwrap_or(0), most, aim, dice).max(0);
            let item = value(&schema["items"], aim, depth + 1, dice);
            (0..count).map(|_| item.clone()).collect()
        }
        _ => object(schema, aim, depth, dice),
    }
}

fn object(schema: &Value, aim: Aim, depth: usize, dice: &mut Dice) -> Value {
    let mut members = Map::new();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        if let Value::Object(more) = value(part, aim, depth + 1, dice) {
            members.extend(more);
        }
    }
    let is_required = |name: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name))
    };
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let is_there =
            if is_required(name) { aim == Aim::Good || !dice.once_in(6) } else { dice.once_in(3) };
        if is_there {
            members.insert(name.clone(), value(member, aim, depth + 1, dice));
        }
    }
    if aim != Aim::Good && dice.once_in(3) {
        members.insert("other".to_owned(), wild(dice));
    }
    Value::Object(members)
}

/// A workspace with what requests can name, and the credentials that they come with.
struct Stage {
    workspace: Workspace,
    operator: Api,
    credentials: Vec<Api>,
    /// Ids by the beginning of the paths that take them.
    ids: Vec<(&'static str, String)>,
}

impl Stage {
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
        let agent = workspace.anonymous.with(&credential(&server));
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

    /// The client that an operation is called with: mostly one that may call it.
    fn caller(&self, operation: &Operation, dice: &mut Dice) -> Api {
        let [admin, .., agent, registrar, _] = &self.credentials[..] else {
            unreachable!("there are eight")
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
        // Guesses are counted by the address.
        api.from_address(&format!("198.51.{}.{}", dice.roll(256), dice.roll(256)))
    }

    fn path(&self, operation: &Operation, aim: Aim, dice: &mut Dice) -> String {
        let known = self
            .ids
            .iter()
            .find(|(path, _)| operation.path.starts_with(path))
            .map(|(_, id)| id.as_str());
        // The output of a command that waits does not end.
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
        let id = if aim == Aim::Wild || known.is_none() {
            *dice.pick(&unknown)
        } else {
            known.unwrap_or("x")
        };
        let username = if aim == Aim::Wild { *dice.pick(&unknown) } else { "mona" };
        let path = operation.path.replace("{id}", id).replace("{username}", username);
        path.replace("{key}", dice.pick::<&str>(&unknown))
            .replace("{slug}", dice.pick::<&str>(&unknown))
    }

    /// Makes a request by a seed; returns what failed.
    async fn request(&self, operation: &Operation, dice: &mut Dice) -> Option<String> {
        let aim = *dice.pick(&[Aim::Good, Aim::Near, Aim::Wild]);
        let api = self.caller(operation, dice);
        let mut path = self.path(operation, aim, dice);
        let mut query = Vec::new();
        let mut headers = Vec::new();
        for parameter in &operation.parameters {
            let (name, place) =
                (parameter["name"].as_str().unwrap(), parameter["in"].as_str().unwrap());
            if place == "path" || !dice.once_in(3) {
                continue;
            }
            let chosen = value(&parameter["schema"], aim, 0, dice);
            let mut text = chosen.as_str().map_or_else(|| chosen.to_string(), str::to_owned);
            text.truncate(text.floor_char_boundary(10_000));
            match place {
                // Nothing comes for whoever waits here.
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
        let body = operation.body.map(|schema| value(schema, aim, 0, dice));
        if let Some(body) = &body {
            request = request.json(body);
        }
        // The client panics where an answer is not as the document has it.
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
            "{aim:?} {} {path:.300} {headers:.300?}\n{body:.600}\n{problem:.1500}",
            operation.method
        ))
    }
}

/// Plays a round; returns what failed in it.
async fn round(seed: u64, operations: &[Operation]) -> Vec<String> {
    let mut dice = Dice(seed);
    let stage = Stage::set().await;
    let mut order: Vec<&Operation> = operations.iter().collect();
    for place in (1..order.len()).rev() {
        order.swap(place, dice.roll(place + 1));
    }
    let mut failed = Vec::new();
    for operation in order {
        failed.extend(stage.request(operation, &mut dice).await);
    }
    let slug = &stage.workspace.slug;
    stage.operator.delete(&format!("/operator/workspaces/{slug}/?now=true")).await.expect(204);
    failed
}

#[tokio::test]
async fn whatever_is_sent_the_answer_is_one_that_the_document_describes() {
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
