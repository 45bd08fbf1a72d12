//! Compares requests and responses with the OpenAPI document, `docs/openapi.yaml`. Every response
//! that a test receives is compared.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex};

use farhand_domain::http::console;
use jsonschema::{Registry, Validator};
use matchit::Router;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

pub static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap())
        .unwrap_or_else(|error| panic!("{path}: {error}"))
});

/// The members of the document that hold paths. `x-catch-alls` has the paths that OpenAPI cannot
/// express.
const PATH_MEMBERS: [&str; 2] = ["paths", "x-catch-alls"];
/// The URI under which schemas refer to the document.
const DOCUMENT_URI: &str = "urn:farhand";
/// Headers that the connection and the clock add. The document does not describe them.
const TRANSPORT_HEADERS: [&str; 8] = [
    "connection",
    "content-length",
    "content-type",
    "date",
    "sec-websocket-accept",
    "sec-websocket-extensions",
    "transfer-encoding",
    "upgrade",
];
/// The local runtime itself responds under this path.
const RUNTIME_PATHS: &str = "/cdn-cgi/";
/// Every response over https has this header (`info` in the document).
const HTTPS_HEADER: &str = "strict-transport-security";
/// Responses to a request from another origin have these headers (`info` in the document).
const CORS_HEADERS: [&str; 3] =
    ["Vary", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers"];

static REGISTRY: LazyLock<Registry<'static>> = LazyLock::new(|| {
    Registry::new().add(DOCUMENT_URI, DOCUMENT.clone()).unwrap().prepare().unwrap()
});

/// Maps a path to the JSON pointer of its path item.
static ROUTER: LazyLock<Router<String>> = LazyLock::new(|| {
    let mut router = Router::new();
    for part in PATH_MEMBERS {
        for path in DOCUMENT[part].as_object().unwrap().keys() {
            router.insert(path.clone(), format!("/{part}/{}", escaped(path))).unwrap();
        }
    }
    router
});

/// A request and its response.
pub struct Exchange<'a> {
    pub method: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// The query parameters, decoded.
    pub query: Vec<(String, String)>,
    pub request_headers: &'a HeaderMap,
    /// `None` if the body is unknown, because it was streamed.
    pub request_body: Option<&'a [u8]>,
    pub status: u16,
    /// The response headers.
    pub headers: &'a HeaderMap,
    /// The response body, or `None` if it was not read to its end.
    pub body: Option<&'a str>,
}

/// A name, escaped as a token of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Follows references. Returns the final pointer and its value.
fn resolved(pointer: String) -> (String, &'static Value) {
    let value =
        DOCUMENT.pointer(&pointer).unwrap_or_else(|| panic!("the document has no {pointer}"));
    match value["$ref"].as_str() {
        Some(reference) => resolved(reference.strip_prefix('#').unwrap().to_owned()),
        None => (pointer, value),
    }
}

/// Like [`resolved`], but `None` if the pointer leads nowhere.
fn resolved_if_present(pointer: String) -> Option<(String, &'static Value)> {
    DOCUMENT.pointer(&pointer).is_some().then(|| resolved(pointer))
}

/// The members of an object, or nothing if the value is not an object.
fn members(value: &'static Value) -> impl Iterator<Item = (&'static String, &'static Value)> {
    value.as_object().into_iter().flatten()
}

/// How a value differs from the schema at a pointer.
pub fn differences(pointer: &str, value: &Value) -> Vec<String> {
    static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> =
        LazyLock::new(Mutex::default);
    // Built without holding the lock: a panic would poison it for all other tests.
    let known = VALIDATORS.lock().unwrap().get(pointer).cloned();
    let validator = known.unwrap_or_else(|| {
        // `{`, `}` and `*` of paths are not allowed in a URI.
        let fragment: String = pointer.chars().map(percent_encoded).collect();
        let schema = json!({"$ref": format!("{DOCUMENT_URI}#{fragment}")});
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

/// Converts the text of a parameter or a header to the type in its schema.
fn typed(schema: &Value, text: &str) -> Value {
    let schema =
        schema["$ref"].as_str().map_or(schema, |reference| resolved(reference[1..].to_owned()).1);
    match schema["type"].as_str() {
        Some("integer") => {
            let digits = text.strip_prefix('-').unwrap_or(text);
            let is_documented =
                !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            // The service accepts integers that do not fit into 64 bits, so this falls back to a
            // float.
            let number = || {
                text.parse::<i64>()
                    .map(Value::from)
                    .or_else(|_| text.parse::<f64>().map(Value::from))
            };
            if is_documented { number().unwrap_or_else(|_| text.into()) } else { text.into() }
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
    /// The pointer to the operation in the document. If there is none for the path or the method,
    /// returns the statuses of common responses that are allowed instead.
    fn operation(&self) -> Result<String, [u16; 3]> {
        let method = if self.method == "HEAD" { "GET" } else { self.method };
        // A few paths have no slash at the end. Agents may always leave it out.
        let is_file = ROUTER.at(self.path).is_ok_and(|item| item.value.starts_with("/paths/"));
        let is_documented = self.path.ends_with('/') || is_file;
        let is_agent = header(self.request_headers, "authorization")
            .is_some_and(|value| value.starts_with("id="));
        let is_page = console::is_page(self.path);
        let path = match (is_page, is_documented) {
            // All pages of the console are one file.
            (true, _) => "/".to_owned(),
            (false, true) => self.path.to_owned(),
            (false, false) => format!("{}/", self.path),
        };
        let is_known = is_page || is_documented || is_agent;
        let Some(item) = ROUTER.at(&path).ok().filter(|_| is_known) else {
            return Err([308, 404, 500]);
        };
        let pointer = format!("{}/{}", item.value, method.to_ascii_lowercase());
        match method {
            "OPTIONS" => Err([204, 404, 500]),
            _ if DOCUMENT.pointer(&pointer).is_some() => Ok(pointer),
            _ => Err([405, 404, 500]),
        }
    }

    /// The code in the response body, if it is one that any path can return.
    fn common_code(&self) -> Option<String> {
        let body: Value = serde_json::from_str(self.body?).ok()?;
        let code = body["code"].as_str()?;
        DOCUMENT["x-common-responses"].get(code).map(|_| code.to_owned())
    }

    /// How the exchange differs from the document. Empty if it conforms.
    pub fn differences(&self) -> Vec<String> {
        if self.path.starts_with(RUNTIME_PATHS) {
            return vec![];
        }
        if let Some(code) = self.common_code() {
            return self.response(resolved(format!("/x-common-responses/{code}")));
        }
        let operation = match self.operation() {
            Ok(operation) => operation,
            Err(common) if common.contains(&self.status) => {
                return self.response(resolved(format!("/x-common-responses/{}", self.status)));
            }
            Err(common) => {
                return vec![format!("the status {} is not one of {common:?}", self.status)];
            }
        };
        let mut problems =
            match resolved_if_present(format!("{operation}/responses/{}", self.status)) {
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
        if header(self.headers, HTTPS_HEADER).is_some() {
            described.insert(
                HTTPS_HEADER.to_owned(),
                resolved("/components/headers/Strict-Transport-Security".to_owned()),
            );
        }
        if self.request_headers.contains_key("origin") {
            let cors_headers = CORS_HEADERS.map(|name| {
                (name.to_ascii_lowercase(), resolved(format!("/components/headers/{name}")))
            });
            described.extend(cors_headers);
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
        let more = more.filter(|name| !TRANSPORT_HEADERS.contains(&name.as_str()));
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
            Err(error) => vec![format!("the body is not JSON: {error}")],
        }
    }

    /// How an accepted request differs from what the document allows.
    fn request(&self, operation: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let item = operation.rsplit_once('/').unwrap().0;
        for list in [item, operation].map(|of| format!("{of}/parameters")) {
            let count = DOCUMENT.pointer(&list).and_then(Value::as_array).map_or(0, Vec::len);
            for (at, parameter) in (0..count).map(|index| resolved(format!("{list}/{index}"))) {
                let name = parameter["name"].as_str().unwrap();
                let given = match parameter["in"].as_str() {
                    // If a parameter is repeated, the last value counts.
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
        let Some((at, wanted)) = resolved_if_present(format!("{operation}/requestBody")) else {
            return problems;
        };
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
            // Parsing multipart is left to the service.
            "multipart/form-data" => return problems,
            _ => serde_json::from_slice(body).unwrap_or(Value::Null),
        };
        let wrong = differences(&format!("{at}/content/{}/schema", escaped(media_type)), &value);
        problems.extend(wrong.into_iter().map(|wrong| format!("the request's body{wrong}")));
        problems
    }

    /// Asserts that the exchange conforms to the document.
    ///
    /// # Panics
    /// With a list of the differences.
    #[track_caller]
    pub fn check(&self) {
        let problems = self.differences();
        let (method, path, status) = (self.method, self.path, self.status);
        let body = self.body.unwrap_or("");
        assert!(
            problems.is_empty(),
            "{method} {path}: the {status} response differs from docs/openapi.yaml:\n{}\n{body:.2000}",
            problems.join("\n")
        );
    }
}

/// Asserts that the data of a stream's event conforms to the document.
///
/// # Panics
/// With a list of the differences.
#[track_caller]
pub fn check_event(resource: &str, kind: &str, data: &Value) {
    let content = format!(
        "/paths/~1api~1events~1{resource}~1{{id}}~1stream~1/get/responses/200/content/text~1event-stream"
    );
    let problems = differences(&format!("{content}/x-events/{kind}"), data);
    assert!(
        problems.is_empty(),
        "an event {kind} differs from docs/openapi.yaml: {problems:?}\n{data}"
    );
}
