//! An API client, and workspaces that are created for one test each.

use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Body, Client, Method, Request, RequestBuilder, Url, redirect};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::openapi::Exchange;
use crate::{instance_setting, secrets};

/// The password of every user that the tests create.
pub const PASSWORD: &str = "correct horse battery";

/// A client for one `Host` and one `Authorization` header, or none.
#[derive(Clone)]
pub struct Api {
    client: Client,
    /// The URL at which the service listens.
    pub url: String,
    pub host: String,
    pub authorization: Option<String>,
    /// The caller's address, sent as `X-Forwarded-For`. Instances that tests start trust this
    /// machine as a proxy.
    pub address: Option<String>,
    /// The `User-Agent`, if the client speaks a dialect (`alpacon.rs`). The OpenAPI document does
    /// not describe its exchanges.
    pub user_agent: Option<&'static str>,
}

/// A response, read to its end.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
}

impl Reply {
    /// The body, parsed as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{error}: {} {:?}", self.status, self.text))
    }

    /// The value of a header, or an empty string.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// Asserts the status, and returns the body.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }

    /// Asserts an error of the form `{"code": ..., "detail": ...}`. If `code` is `None`, the code
    /// must be the default of the status.
    #[track_caller]
    pub fn expect_detail(&self, status: u16, code: Option<&str>) {
        let body = self.expect(status);
        assert!(body["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{body}");
        assert_eq!(body["code"].as_str(), code.or_else(|| code_of(status)), "{body}");
    }

    /// Asserts an error with exactly these fields besides `code` and `detail`, each with messages.
    #[track_caller]
    pub fn expect_fields(&self, status: u16, fields: &[&str]) -> Value {
        let body = self.expect(status);
        let keys =
            body.as_object().unwrap().keys().filter(|key| *key != "code" && *key != "detail");
        assert_eq!(keys.collect::<Vec<_>>(), fields, "{body}");
        for field in fields {
            let messages = body[field].as_array().unwrap();
            assert!(!messages.is_empty() && messages.iter().all(Value::is_string), "{body}");
        }
        body
    }
}

/// The default error code of a status.
pub fn code_of(status: u16) -> Option<&'static str> {
    Some(match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        405 => "METHOD_NOT_ALLOWED",
        409 => "CONFLICT",
        413 => "BODY_TOO_LARGE",
        415 => "UNSUPPORTED_MEDIA_TYPE",
        429 => "THROTTLED",
        500 => "INTERNAL",
        _ => return None,
    })
}

/// A copy of a sent request, kept to compare the exchange with the OpenAPI document.
pub struct SentRequest {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Vec<u8>>,
}

impl SentRequest {
    /// Copies a request. The body is unknown if it is a stream.
    pub fn new(request: &Request) -> Self {
        let body = request.body().map_or(Some(&[][..]), Body::as_bytes);
        Self {
            method: request.method().clone(),
            url: request.url().clone(),
            headers: request.headers().clone(),
            body: body.map(<[u8]>::to_vec),
        }
    }

    /// A GET request for a path with headers.
    pub fn get(path: &str, headers: &HeaderMap) -> Self {
        let url = Url::parse(&format!("http://x{path}")).unwrap();
        Self { method: Method::GET, url, headers: headers.clone(), body: Some(Vec::new()) }
    }

    /// Asserts that the exchange conforms to the OpenAPI document. `body` is `None` if it was not
    /// read to its end.
    #[track_caller]
    pub fn check(&self, status: u16, headers: &HeaderMap, body: Option<&str>) {
        let exchange = Exchange {
            method: self.method.as_str(),
            path: self.url.path(),
            query: self.url.query_pairs().into_owned().collect(),
            request_headers: &self.headers,
            request_body: self.body.as_deref(),
            status,
            headers,
            body,
        };
        exchange.check();
    }
}

impl Api {
    /// A client for a URL and a `Host` header.
    pub fn new(url: &str, host: &str) -> Self {
        // A kept connection belongs to the async runtime of the test that opened it, so the client
        // keeps no connections.
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .pool_max_idle_per_host(0);
        let client = client.build().expect("building a client without TLS cannot fail");
        Self {
            client,
            url: url.to_owned(),
            host: host.to_owned(),
            authorization: None,
            address: None,
            user_agent: None,
        }
    }

    /// A client of the shared instance with a `Host` header.
    pub fn at(host: &str) -> Self {
        Self::new(&instance_setting("FARHAND_URL"), host)
    }

    /// A client of the shared instance's operator API.
    pub fn operator() -> Self {
        Self::at("127.0.0.1")
            .with_authorization(&format!("Bearer {}", instance_setting("FARHAND_OPERATOR_TOKEN")))
    }

    /// A copy with an `Authorization` header.
    pub fn with_authorization(&self, authorization: &str) -> Self {
        Self { authorization: Some(authorization.to_owned()), ..self.clone() }
    }

    /// A copy with a user's token.
    pub fn with_token(&self, token: &str) -> Self {
        self.with_authorization(&format!("token=\"{token}\""))
    }

    /// A copy without an `Authorization` header.
    pub fn anonymous(&self) -> Self {
        Self { authorization: None, ..self.clone() }
    }

    /// A copy that calls from another address.
    pub fn from_address(&self, address: &str) -> Self {
        Self { address: Some(address.to_owned()), ..self.clone() }
    }

    /// A copy with a `User-Agent` that selects a dialect. `None`: the native API.
    pub fn with_user_agent(&self, user_agent: Option<&'static str>) -> Self {
        Self { user_agent, ..self.clone() }
    }

    /// A copy with another `Host` header.
    pub fn with_host(&self, host: &str) -> Self {
        Self { host: host.to_owned(), ..self.clone() }
    }

    /// A copy that calls another URL.
    pub fn with_url(&self, url: &str) -> Self {
        Self { url: url.to_owned(), ..self.clone() }
    }

    /// A request builder with the client's headers.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request =
            self.client.request(method, format!("{}{path}", self.url)).header("Host", &self.host);
        if let Some(authorization) = &self.authorization {
            let value = HeaderValue::from_bytes(authorization.as_bytes()).unwrap();
            request = request.header("Authorization", value);
        }
        if let Some(address) = &self.address {
            request = request.header("X-Forwarded-For", address);
        }
        if let Some(user_agent) = self.user_agent {
            request = request.header("User-Agent", user_agent);
        }
        request
    }

    /// Sends a request, and asserts that the exchange conforms to the OpenAPI document.
    pub async fn send(&self, request: RequestBuilder) -> Reply {
        let (client, request) = request.build_split();
        let request = request.unwrap();
        let sent = SentRequest::new(&request);
        let response = client.execute(request).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let reply = Reply { status, headers, text: response.text().await.unwrap() };
        if self.user_agent.is_none() {
            sent.check(status, &reply.headers, Some(&reply.text));
        }
        secrets::record_in(serde_json::from_str(&reply.text).as_ref().unwrap_or(&Value::Null));
        reply
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(self.request("GET", path)).await
    }

    /// Sends a request without a body.
    pub async fn call(&self, method: &str, path: &str) -> Reply {
        self.send(self.request(method, path)).await
    }

    /// Sends JSON with POST.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send_json("POST", path, body).await
    }

    /// Sends JSON with PATCH.
    pub async fn patch(&self, path: &str, body: &Value) -> Reply {
        self.send_json("PATCH", path, body).await
    }

    /// Sends JSON with PUT.
    pub async fn put(&self, path: &str, body: &Value) -> Reply {
        self.send_json("PUT", path, body).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.call("DELETE", path).await
    }

    pub async fn log_in(&self, username: &str, password: &str) -> Reply {
        self.post("/api/auth/login/", &json!({"username": username, "password": password})).await
    }

    /// Logs in, and returns a copy with the new login token.
    pub async fn logged_in(&self, username: &str, password: &str) -> Self {
        let login = self.anonymous().log_in(username, password).await.expect(200);
        self.with_token(login["token"].as_str().unwrap())
    }

    /// Sends JSON with any method.
    pub async fn send_json(&self, method: &str, path: &str, body: &Value) -> Reply {
        secrets::record_in(body);
        self.send(self.request(method, path).json(body)).await
    }
}

/// A query string of encoded parameters.
pub fn encoded(query: &[(&str, String)]) -> String {
    Url::parse_with_params("http://x/", query).unwrap().query().unwrap_or("").to_owned()
}

/// A workspace that one test created, with its superuser.
pub struct Workspace {
    pub slug: String,
    /// A client without a credential.
    pub anonymous: Api,
    /// A client with an API token of the superuser.
    pub admin: Api,
    /// A login token of the superuser.
    pub login_token: String,
}

/// A name that no other test uses.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}-{}", &Uuid::new_v4().simple().to_string()[..12])
}

/// The request body that creates a workspace.
pub fn new_workspace(slug: &str) -> Value {
    json!({"slug": slug, "admin": {"username": "boss", "email": "boss@example.com", "password": PASSWORD}})
}

impl Workspace {
    /// Creates a workspace on the shared instance.
    pub async fn new() -> Self {
        Self::with_slug(&unique("t")).await
    }

    /// Creates a workspace with a slug on the shared instance.
    pub async fn with_slug(slug: &str) -> Self {
        Self::create_with(&Api::operator(), slug).await
    }

    /// Creates a workspace with a slug through the given operator API.
    pub async fn create_with(operator: &Api, slug: &str) -> Self {
        operator.post("/operator/workspaces/", &new_workspace(slug)).await.expect(201);
        let anonymous = operator.anonymous().with_host(&format!("{slug}.local.localhost"));
        let login = anonymous
            .post("/api/auth/login/", &json!({"username": "boss", "password": PASSWORD}))
            .await;
        let login_token = login.expect(200)["token"].as_str().unwrap().to_owned();
        let session = anonymous.with_token(&login_token);
        let token = session
            .post("/api/auth/tokens/", &json!({"name": "test", "expires_at": null}))
            .await
            .expect(201);
        let admin = anonymous.with_token(token["key"].as_str().unwrap());
        Self { slug: slug.to_owned(), anonymous, admin, login_token }
    }

    /// A client with the superuser's login token.
    pub fn session(&self) -> Api {
        self.anonymous.with_token(&self.login_token)
    }

    /// Creates a user with additional fields, and returns the user.
    pub async fn user_with(&self, username: &str, more: &Value) -> Value {
        let mut body = json!({"username": username, "email": format!("{username}@example.com"), "password": PASSWORD});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.admin.post("/api/iam/users/", &body).await.expect(201)
    }

    /// Creates an ordinary user, and returns a client with their login token.
    pub async fn user(&self, username: &str) -> Api {
        self.user_with(username, &json!({})).await;
        self.anonymous.logged_in(username, PASSWORD).await
    }

    /// Creates a staff user, and returns a client with their login token.
    pub async fn staff(&self, username: &str) -> Api {
        self.user_with(username, &json!({"is_staff": true})).await;
        self.anonymous.logged_in(username, PASSWORD).await
    }

    /// A client with a new API token of the superuser that has an access control list.
    pub async fn limited(&self, acl: &Value) -> Api {
        let body = json!({"name": "limited", "expires_at": null, "acl": acl});
        let token = self.session().post("/api/auth/tokens/", &body).await.expect(201);
        self.anonymous.with_token(token["key"].as_str().unwrap())
    }

    /// Creates a server. The result contains its key.
    pub async fn server(&self, name: &str) -> Value {
        self.admin.post("/api/servers/", &json!({"name": name})).await.expect(201)
    }
}
