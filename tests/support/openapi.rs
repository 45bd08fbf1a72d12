//! The OpenAPI document, `docs/openapi.yaml`, and what differs from it: every answer that a test
//! gets is checked here.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::{Registry, Validator};
use matchit::Router;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

/// The document.
pub static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap())
        .unwrap_or_else(|error| panic!("{path}: {error}"))
});

/// Where paths are in the document: the second are those that OpenAPI has no form for.
const PATHS: [&str; 2] = ["paths", "x-catch-alls"];
/// The name of the document for schemas that refer to it.
const NAME: &str = "urn:farhand";
/// What the connection and the clock add to an answer.
const UNDESCRIBED: [&str; 8] = [
    "connection",
    "content-length",
    "content-type",
    "date",
    "sec-websocket-accept",
    "sec-websocket-extensions",
    "transfer-encoding",
    "upgrade",
];
/// Where the local runtime itself answers, not the service.
const OF_THE_RUNTIME: &str = "/cdn-cgi/";
/// What every answer over https has (`info` in the document).
const OF_HTTPS: &str = "strict-transport-security";
/// What the answer to another origin has (`info` in the document).
const OF_ORIGINS: [&str; 3] =
    ["Vary", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers"];

static REGISTRY: LazyLock<Registry<'static>> =
    LazyLock::new(|| Registry::new().add(NAME, DOCUMENT.clone()).unwrap().prepare().unwrap());

/// The JSON pointers of path items by path.
static ROUTER: LazyLock<Router<String>> = LazyLock::new(|| {
    let mut router = Router::new();
    for part in PATHS {
        for path in DOCUMENT[part].as_object().unwrap().keys() {
            router.insert(path.clone(), format!("/{part}/{}", escaped(path))).unwrap();
        }
    }
    router
});

/// A request and its answer.
pub struct Exchange<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// The query's parameters, decoded.
    pub query: Vec<(String, String)>,
    /// The request's headers.
    pub request_headers: &'a HeaderMap,
    /// The request's body; `None` where it is not known.
    pub request_body: Option<&'a [u8]>,
    /// The status.
    pub status: u16,
    /// The answer's headers.
    pub headers: &'a HeaderMap,
    /// The answer's body; `None` where it was not read to its end.
    pub body: Option<&'a str>,
}

/// A name as a part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Follows a pointer, and where it leads to a reference, that. Returns where it is.
fn resolved(pointer: String) -> (String, &'static Value) {
    let value =
        DOCUMENT.pointer(&pointer).unwrap_or_else(|| panic!("the document has no {pointer}"));
    match value["$ref"].as_str() {
        Some(reference) => resolved(reference.strip_prefix('#').unwrap().to_owned()),
        None => (pointer, value),
    }
}

/// The same where there may be nothing.
fn found(pointer: String) -> Option<(String, &'static Value)> {
    DOCUMENT.pointer(&pointer).is_some().then(|| resolved(pointer))
}

/// The members of an object, which may be missing.
fn members(value: &'static Value) -> impl Iterator<Item = (&'static String, &'static Value)> {
    value.as_object().into_iter().flatten()
}

/// What of a value is not as the schema at a pointer says.
pub fn differences(pointer: &str, value: &Value) -> Vec<String> {
    static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> =
        LazyLock::new(Mutex::default);
    // Made without the lock: a panic there would fail all other tests as well.
    let known = VALIDATORS.lock().unwrap().get(pointer).cloned();
    let validator = known.unwrap_or_else(|| {
        // `{`, `}` and `*` of paths are no characters of a URI.
        let fragment: String = pointer.chars().map(percent_encoded).collect();
        let schema = json!({"$ref": format!("{NAME}#{fragment}")});
        let options = jsonschema::options().with_registry(&REGISTRY).should_validate_formats(true);
        let made =
            Arc::new(options.build(&schema).unwrap_or_else(|error| panic!("{pointer}: {error}")));
        VALIDATORS.lock().unwrap().insert(pointer.to_owned(), made.clone());
        made
    });
    validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

fn percent_encoded(letter: char) -> String {
    match letter {
        '{' | '}' | '*' | '"' | ' ' => format!("%{:02X}", u32::from(letter)),
        letter => letter.to_string(),
    }
}

/// The text of a parameter or a header as the value that its schema is for.
fn typed(schema: &Value, text: &str) -> Value {
    let schema =
        schema["$ref"].as_str().map_or(schema, |reference| resolved(reference[1..].to_owned()).1);
    match schema["type"].as_str() {
        Some("integer") => {
            let digits = text.strip_prefix('-').unwrap_or(text);
            let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            // The service takes those that no integer here holds, too.
            let number = || {
                text.parse::<i64>()
                    .map(Value::from)
                    .or_else(|_| text.parse::<f64>().map(Value::from))
            };
            if is_whole { number().unwrap_or_else(|_| text.into()) } else { text.into() }
        }
        Some("boolean") => match text.to_ascii_lowercase().as_str() {
            "true" | "1" => true.into(),
            "false" | "0" => false.into(),
            _ => text.into(),
        },
        _ => text.into(),
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

impl Exchange<'_> {
    /// Where the document has the method of the path, or the statuses of the common responses one
    /// of which this is.
    fn operation(&self) -> Result<String, [u16; 3]> {
        let method = if self.method == "HEAD" { "GET" } else { self.method };
        // Some paths are without the slash at the end on purpose. An agent is answered without it
        // everywhere.
        let is_whole = self.path.ends_with('/') || DOCUMENT["paths"].get(self.path).is_some();
        let is_agent = header(self.request_headers, "authorization")
            .is_some_and(|value| value.starts_with("id="));
        let path = if is_whole { self.path.to_owned() } else { format!("{}/", self.path) };
        let Some(item) = ROUTER.at(&path).ok().filter(|_| is_whole || is_agent) else {
            return Err([308, 404, 500]);
        };
        let pointer = format!("{}/{}", item.value, method.to_ascii_lowercase());
        match method {
            "OPTIONS" => Err([204, 404, 500]),
            _ if DOCUMENT.pointer(&pointer).is_some() => Ok(pointer),
            _ => Err([405, 404, 500]),
        }
    }

    /// The code of the answer, if any path can be answered with that.
    fn code_of_any_path(&self) -> Option<String> {
        let body: Value = serde_json::from_str(self.body?).ok()?;
        let code = body["code"].as_str()?;
        DOCUMENT["x-common-responses"].get(code).map(|_| code.to_owned())
    }

    /// What differs from the document; nothing, where the answer is one that it describes.
    pub fn differences(&self) -> Vec<String> {
        if self.path.starts_with(OF_THE_RUNTIME) {
            return vec![];
        }
        if let Some(code) = self.code_of_any_path() {
            return self.response(resolved(format!("/x-common-responses/{code}")));
        }
        let operation = match self.operation() {
            Ok(operation) => operation,
            Err(common) if common.contains(&self.status) => {
                return self.response(resolved(format!("/x-common-responses/{}", self.status)));
            }
            Err(common) => {
                return vec![format!("the status {} is none of {common:?}", self.status)];
            }
        };
        let mut problems = match found(format!("{operation}/responses/{}", self.status)) {
            Some(response) => self.response(response),
            None => vec![format!("the status {} is not described", self.status)],
        };
        if (200..300).contains(&self.status) {
            problems.extend(self.request(&operation));
        }
        problems
    }

    fn response(&self, (pointer, response): (String, &'static Value)) -> Vec<String> {
        let mut problems = Vec::new();
        let mut described: BTreeMap<String, (String, &Value)> = members(&response["headers"])
            .map(|(name, _)| {
                (name.to_ascii_lowercase(), resolved(format!("{pointer}/headers/{name}")))
            })
            .collect();
        if header(self.headers, OF_HTTPS).is_some() {
            described.insert(
                OF_HTTPS.to_owned(),
                resolved("/components/headers/Strict-Transport-Security".to_owned()),
            );
        }
        if self.request_headers.contains_key("origin") {
            let of_origins = OF_ORIGINS.map(|name| {
                (name.to_ascii_lowercase(), resolved(format!("/components/headers/{name}")))
            });
            described.extend(of_origins);
        }
        for (name, (at, wanted)) in &described {
            match header(self.headers, name) {
                Some(value) => problems.extend(
                    differences(&format!("{at}/schema"), &typed(&wanted["schema"], value))
                        .into_iter()
                        .map(|problem| format!("the header {name}{problem}")),
                ),
                None if wanted["required"] == true => {
                    problems.push(format!("the header {name} is missing"))
                }
                None => {}
            }
        }
        let more = self.headers.keys().filter(|name| !described.contains_key(name.as_str()));
        let more = more.filter(|name| !UNDESCRIBED.contains(&name.as_str()));
        problems.extend(more.map(|name| format!("the header {name} is not described")));
        problems.extend(self.content(&pointer, &response["content"]));
        problems
    }

    fn content(&self, pointer: &str, content: &'static Value) -> Vec<String> {
        let media_type = header(self.headers, "content-type").unwrap_or("");
        if content.is_null() {
            let is_empty = media_type.is_empty() && self.body.is_none_or(str::is_empty);
            return if is_empty {
                vec![]
            } else {
                vec![format!("a body is not described: {media_type}")]
            };
        }
        if content.get(media_type).is_none() {
            return vec![format!("the media type {media_type:?} is not described")];
        }
        let body = match self.body {
            Some("") if self.method == "HEAD" => return vec![],
            Some(_) if self.method == "HEAD" => return vec!["HEAD has no body".to_owned()],
            Some(body) if media_type == "application/json" => body,
            _ => return vec![],
        };
        match serde_json::from_str(body) {
            Ok(value) => {
                differences(&format!("{pointer}/content/{}/schema", escaped(media_type)), &value)
            }
            Err(error) => vec![format!("the body is no JSON: {error}")],
        }
    }

    /// What of a request that was taken is not one that the document allows.
    fn request(&self, operation: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let item = operation.rsplit_once('/').unwrap().0;
        for list in [item, operation].map(|of| format!("{of}/parameters")) {
            let count = DOCUMENT.pointer(&list).and_then(Value::as_array).map_or(0, Vec::len);
            for (at, parameter) in (0..count).map(|index| resolved(format!("{list}/{index}"))) {
                let name = parameter["name"].as_str().unwrap();
                let given = match parameter["in"].as_str() {
                    // The last one counts.
                    Some("query") => self
                        .query
                        .iter()
                        .rev()
                        .find(|(key, _)| key == name)
                        .map(|(_, text)| text.as_str()),
                    Some("header") => header(self.request_headers, name),
                    _ => None,
                };
                let schema = &parameter["schema"];
                let wrong =
                    given.map(|text| differences(&format!("{at}/schema"), &typed(schema, text)));
                problems.extend(
                    wrong.into_iter().flatten().map(|wrong| format!("the request's {name}{wrong}")),
                );
            }
        }
        let Some((at, wanted)) = found(format!("{operation}/requestBody")) else { return problems };
        let Some(body) = self.request_body.filter(|_| wanted["x-lenient"] != true) else {
            return problems;
        };
        let media_type =
            header(self.request_headers, "content-type").unwrap_or("").to_ascii_lowercase();
        let media_type = media_type.split(';').next().unwrap_or("").trim();
        let value = match media_type {
            _ if body.is_empty() && wanted["required"] != true => return problems,
            "application/x-www-form-urlencoded" => {
                let form = format!("http://x/?{}", String::from_utf8_lossy(body));
                let pairs = reqwest::Url::parse(&form)
                    .unwrap()
                    .query_pairs()
                    .into_owned()
                    .collect::<HashMap<_, _>>();
                json!(pairs)
            }
            // Only the service can read it.
            "multipart/form-data" => return problems,
            _ => serde_json::from_slice(body).unwrap_or(Value::Null),
        };
        let wrong = differences(&format!("{at}/content/{}/schema", escaped(media_type)), &value);
        problems.extend(wrong.into_iter().map(|wrong| format!("the request's body{wrong}")));
        problems
    }

    /// Asserts that the answer is one that the document describes.
    ///
    /// # Panics
    /// With what differs.
    #[track_caller]
    pub fn check(&self) {
        let problems = self.differences();
        let (method, path, status) = (self.method, self.path, self.status);
        let body = self.body.unwrap_or("");
        assert!(
            problems.is_empty(),
            "{method} {path}: the {status} is not as docs/openapi.yaml has it:\n{}\n{body:.2000}",
            problems.join("\n")
        );
    }
}

/// Asserts that the data of a stream's event is as the document has it.
///
/// # Panics
/// With what differs.
#[track_caller]
pub fn check_event(kind: &str, data: &Value) {
    let content = "/paths/~1api~1events~1commands~1{id}~1stream~1/get/responses/200/content/text~1event-stream";
    let problems = differences(&format!("{content}/x-events/{kind}"), data);
    assert!(
        problems.is_empty(),
        "an event {kind} is not as docs/openapi.yaml has it: {problems:?}\n{data}"
    );
}
