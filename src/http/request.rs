//! A request as the handlers see it.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt::Display;
use std::net::IpAddr;
use std::rc::Rc;

use farhand_domain::address;
use farhand_domain::audit::{Event, Object, Source};
use farhand_domain::authorization::{self, AgentCredential};
use farhand_domain::caller::Caller;
use farhand_domain::endpoints::Route;
use farhand_domain::error::{Code, Error, Kind, NON_FIELD};
use farhand_domain::fields::Fields;
use farhand_domain::host::{self, Host};
use farhand_domain::id;
use farhand_domain::page::Query;
use farhand_domain::secret::Secret;
use farhand_domain::time::Timestamp;
use futures_util::StreamExt;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::Value;
use uuid::Uuid;
use wasm_bindgen::JsValue;
use worker::{Context, Env, Headers, Method, Request, RequestInit, web_sys};

use crate::http::head::{Head, is_request_id, split_url};
use crate::platform::{self, Config, PeerSource};

/// The largest body of a request, in bytes (contract 3.3).
const MAX_BODY: usize = 1024 * 1024;
/// The largest body of an agent's report, in bytes (contract 3.3).
const MAX_REPORT: usize = 16 * 1024 * 1024;
/// The header in which `scripts/serve.mjs` names the peer of a connection: a key and an address.
const PEER_HEADER: &str = "Farhand-Peer";
/// How much of a body that is too large is taken in before the answer, in bytes.
const MAX_DISCARDED: usize = 64 * 1024 * 1024;

/// What was denial_details, where a handler knows more of it than the path tells.
pub struct DenialDetails {
    /// What it was to be done to.
    pub object: Option<Object>,
    /// What else is worth knowing.
    pub details: Value,
}

/// A request, with everything that its handler needs.
pub struct Call {
    /// The bindings.
    pub env: Env,
    /// What outlives the response.
    pub context: Context,
    /// The configuration.
    pub config: Rc<Config>,
    /// When the request came in.
    pub now: Timestamp,
    /// The request's id: the caller's own, or a new one.
    pub id: String,
    /// The method, in upper case as sent.
    pub method: String,
    /// The path, percent-encoded as sent.
    pub path: String,
    /// The query, as sent, without the question mark.
    pub raw_query: String,
    /// Scheme and host as the client used them, at a trusted proxy if there is one:
    /// `https://acme.eu1.example.com`.
    pub origin: String,
    /// What the Host header names.
    pub host: Host,
    /// The values of the path's parameters.
    pub parameters: Vec<(String, String)>,
    /// Whether it is known that the workspace exists.
    pub workspace_proven: Cell<bool>,
    /// The row of the path, once it is known.
    pub route: Option<&'static Route>,
    /// Who calls, once that is known.
    pub caller: RefCell<Option<Caller>>,
    /// What is denial_details, for the audit log.
    pub denial_details: Cell<Option<DenialDetails>>,
    /// The chains that the request wrote audit events for.
    pub audited_chains: RefCell<Vec<i64>>,
    /// The peer's address, once it was asked for.
    peer: OnceCell<Option<IpAddr>>,
    head: Head,
    /// As the runtime has it: the crate's own form of it asks for more than is needed, `cf` among
    /// it, of each request.
    request: web_sys::Request,
}

impl Call {
    /// Takes a request in.
    pub fn new(request: web_sys::Request, env: Env, context: Context) -> Self {
        let config = Config::of(&env);
        let now = platform::now();
        let head = Head::read(&request);
        let (origin, path, raw_query) = split_url(&head.url);
        let host = head.header(&request, "Host").unwrap_or_default();
        let own_id = head.header(&request, "X-Request-Id").filter(|id| is_request_id(id));
        let id = own_id
            .or_else(|| platform::new_id(now).ok().map(|id| id.to_string()))
            .unwrap_or_default();
        let call = Self {
            now,
            id,
            method: head.method.clone(),
            path: path.to_owned(),
            raw_query: raw_query.to_owned(),
            origin: origin.to_owned(),
            host: Host::of(&host, config.names()),
            parameters: Vec::new(),
            workspace_proven: Cell::new(false),
            route: None,
            caller: RefCell::default(),
            denial_details: Cell::default(),
            audited_chains: RefCell::default(),
            peer: OnceCell::new(),
            env,
            context,
            config,
            head,
            request,
        };
        match call.origin.strip_prefix("http://").filter(|_| call.is_forwarded_https()) {
            Some(host) => Self { origin: format!("https://{host}"), ..call },
            None => call,
        }
    }

    /// Whether a trusted proxy says that the client's connection is encrypted.
    fn is_forwarded_https(&self) -> bool {
        let Some(scheme) = self.header("X-Forwarded-Proto") else { return false };
        address::is_forwarded_https(self.peer(), Some(&scheme), &self.config.trusted_proxies)
    }

    /// Whether the client's connection is encrypted.
    pub fn is_https(&self) -> bool {
        self.origin.starts_with("https://")
    }

    /// Refuses plain http, except on the caller's own machine and if the deployment allows it
    /// (contract 11.2).
    ///
    /// # Errors
    /// 403. Not a redirect: what the request carries was readable already, and clients would go on
    ///      like that unnoticed.
    pub fn require_https(&self) -> Result<(), Error> {
        let is_answered = self.is_https()
            || self.config.allow_http
            || host::is_local(&self.header("Host").unwrap_or_default());
        if is_answered {
            return Ok(());
        }
        let detail = "Use https. If a proxy in front of the service takes https, add it to TRUSTED_PROXIES; \
                      ALLOW_HTTP=1 allows plain http.";
        Err(Error::new(Kind::Forbidden, detail).code(Code::HttpsRequired))
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<String> {
        self.head.header(&self.request, name)
    }

    /// The slug of the request's workspace.
    ///
    /// # Errors
    /// 404 where the Host header names none.
    pub fn workspace(&self) -> Result<&str, Error> {
        self.host.workspace().ok_or_else(Error::no_workspace)
    }

    /// The query's parameters, decoded.
    pub fn query(&self) -> Query {
        form_urlencoded::parse(self.raw_query.as_bytes()).into_owned().collect()
    }

    /// A path parameter.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The path's `{id}`.
    ///
    /// # Errors
    /// A malformed id in a path is a 404 (contract 3.6), with `missing` saying of what.
    pub fn path_id(&self, missing: fn() -> Error) -> Result<Uuid, Error> {
        id::parse(self.parameter("id")).ok_or_else(missing)
    }

    /// The path's `{id}`, where it is a number.
    ///
    /// # Errors
    /// As [`Call::path_id`].
    pub fn path_number(&self, missing: fn() -> Error) -> Result<i64, Error> {
        let id = self.parameter("id");
        // As the id is shown: no sign, no leading zero, and no larger than JSON numbers are exact.
        let number = id
            .parse::<i64>()
            .ok()
            .filter(|number| (1..1 << 53).contains(number) && number.to_string() == id);
        number.ok_or_else(missing)
    }

    /// The address at the other end of the connection, if the deployment says how to know it
    /// (contract 11.2).
    fn peer(&self) -> Option<IpAddr> {
        *self.peer.get_or_init(|| match &self.config.peer {
            PeerSource::Local(key) => {
                let header = self.header(PEER_HEADER)?;
                let (sent, peer) = header.split_once(' ')?;
                key.equals(&Secret::new(sent)).then(|| address::parse(peer)).flatten()
            }
            PeerSource::Cloudflare => address::parse(&self.header("CF-Connecting-IP")?),
            PeerSource::Unknown => None,
        })
    }

    /// The client's address as text; empty if it is unknown.
    pub fn remote_ip(&self) -> String {
        let forwarded_for = self.header("X-Forwarded-For");
        let client =
            address::client(self.peer(), forwarded_for.as_deref(), &self.config.trusted_proxies);
        client.map(|address| address.to_string()).unwrap_or_default()
    }

    /// Where the request came from, for the audit log.
    pub fn source(&self) -> Source {
        Source {
            remote_ip: Some(self.remote_ip()).filter(|ip| !ip.is_empty()),
            request_id: Some(self.id.clone()),
        }
    }

    /// The audit log's action of the request's endpoint, where it has one for it.
    pub fn action(&self) -> Option<&'static str> {
        self.route?.endpoint(&self.method)?.audit_action()
    }

    /// Whether the request's endpoint takes API tokens with an access control list.
    pub fn takes_limited_tokens(&self) -> bool {
        let endpoint = self.route.and_then(|route| route.endpoint(&self.method));
        endpoint.is_some_and(|endpoint| endpoint.takes_limited_tokens())
    }

    /// An event of this request's for the audit log, without an actor yet. If the endpoint has no
    /// action of its own, it is the access to it.
    ///
    /// # Errors
    /// There are no random bytes for its id.
    pub fn event(&self) -> Result<Event, Error> {
        let action = self.action().unwrap_or("endpoint.access");
        Ok(Event::new(platform::new_id(self.now)?, self.now, self.source(), action))
    }

    fn authorization(&self) -> Option<String> {
        self.header("Authorization")
    }

    /// The user's token of the Authorization header.
    ///
    /// # Errors
    /// See [`authorization::user`].
    pub fn user_token(&self) -> Result<Secret, Error> {
        authorization::user(self.authorization().as_deref())
    }

    /// The agent's id and key of the Authorization header.
    ///
    /// # Errors
    /// See [`authorization::agent`].
    pub fn agent_credential(&self) -> Result<AgentCredential, Error> {
        authorization::agent(self.authorization().as_deref())
    }

    /// Tells whether the caller says that it is an agent.
    pub fn is_agent(&self) -> bool {
        authorization::is_agent(self.authorization().as_deref())
    }

    /// The operator's token of the Authorization header.
    ///
    /// # Errors
    /// See [`authorization::operator`].
    pub fn operator_token(&self) -> Result<Secret, Error> {
        authorization::operator(self.authorization().as_deref())
    }

    /// The media type of the body, without its parameters, in lower case.
    fn media_type(&self) -> String {
        let value = self.header("Content-Type").unwrap_or_default();
        value.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
    }

    /// Reads the body, of which `limit` bytes are kept at most.
    ///
    /// What comes beyond that is taken in as well, up to [`MAX_DISCARDED`]: a client that is still
    /// sending when the answer comes may never see it.
    async fn body(&mut self, limit: usize) -> Result<Vec<u8>, Error> {
        let unreadable = |_| Error::field(NON_FIELD, "The request body could not be read.");
        // What is known to be short is read at once: each piece of a stream takes several turns.
        match self.content_length() {
            Some(0) => return Ok(Vec::new()),
            Some(length) if length <= limit => {
                return self.taken().bytes().await.map_err(unreadable);
            }
            _ => {}
        }
        // No stream: no body.
        let Ok(mut stream) = self.taken().stream() else { return Ok(Vec::new()) };
        let (mut body, mut length) = (Vec::new(), 0);
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(unreadable)?;
            length += piece.len();
            if length <= limit {
                body.extend(piece);
            } else if length > MAX_DISCARDED {
                break;
            }
        }
        if length > limit {
            return Err(Error::new(
                Kind::TooLarge,
                format!("The request body is larger than {limit} bytes."),
            ));
        }
        Ok(body)
    }

    /// The request in the form in which its body is read.
    fn taken(&self) -> Request {
        Clone::clone(&self.request).into()
    }

    async fn json_body(&mut self, limit: usize) -> Result<Vec<u8>, Error> {
        let body = self.body(limit).await?;
        if !body.is_empty() && self.media_type() != "application/json" {
            return Err(Error::new(
                Kind::UnsupportedMediaType,
                "Send the body as application/json.",
            ));
        }
        Ok(body)
    }

    /// The fields of a JSON body.
    ///
    /// # Errors
    /// Too large, another media type, or not a JSON object (contract 3.3).
    pub async fn fields(&mut self) -> Result<Fields, Error> {
        let body = self.json_body(MAX_BODY).await?;
        Fields::from_json(&body)
    }

    /// The fields of a user's JSON body, for whoever sends a token of the right form at all; the
    /// body of another one is not parsed.
    ///
    /// # Errors
    /// The outer ones are of the Authorization header, the inner ones those of [`Call::fields`].
    pub async fn fields_of_user(&mut self) -> Result<Result<Fields, Error>, Error> {
        if let Err(error) = self.user_token() {
            self.discard().await;
            return Err(error);
        }
        Ok(self.fields().await)
    }

    /// Reads the body of a request that has no fields: empty, `null` or `{}`. The credential is
    /// checked before the result is used (contract 3.4).
    ///
    /// # Errors
    /// Too large, another media type, or an unknown field (contract 11.1).
    pub async fn no_fields(&mut self) -> Result<(), Error> {
        let body = self.json_body(MAX_BODY).await?;
        if body.trim_ascii() == b"null" { Ok(()) } else { Fields::from_json(&body)?.finish() }
    }

    /// Takes the body in and drops it, so that a client that is still sending sees the refusal.
    pub async fn discard(&mut self) {
        // That it is too large or cut off does not matter any more.
        self.body(0).await.ok();
    }

    /// Tells whether the body is, or may be, so large that only a known caller's is read: HTTP/2
    /// need not tell a length.
    pub fn has_large_body(&self) -> bool {
        self.content_length().is_none_or(|length| length > MAX_BODY)
    }

    /// How long the body is, where that is told. A length beside a transfer encoding tells nothing.
    fn content_length(&self) -> Option<usize> {
        let length =
            self.header("Content-Length").filter(|_| self.header("Transfer-Encoding").is_none());
        length.and_then(|length| length.parse().ok())
    }

    /// The JSON body of an agent's report.
    ///
    /// # Errors
    /// Too large, another media type, or not of the form.
    pub async fn report<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        self.report_with(|body| {
            // Of a list serde would take the items for the members' values.
            let is_object = body.trim_ascii_start().starts_with('{');
            if is_object {
                serde_json::from_str(body)
            } else {
                Err(serde_json::Error::custom("expected an object"))
            }
        })
        .await
    }

    /// The JSON body of an agent's report, read in a way of its own.
    ///
    /// # Errors
    /// Too large, another media type, or not of the form.
    pub async fn report_with<T>(
        &mut self,
        read: impl FnOnce(&str) -> serde_json::Result<T>,
    ) -> Result<T, Error> {
        let body = self.json_body(MAX_REPORT).await?;
        let malformed =
            |error: &dyn Display| Error::field(NON_FIELD, format!("JSON parse error: {error}"));
        let body = std::str::from_utf8(&body).map_err(|error| malformed(&error))?;
        read(body).map_err(|error| malformed(&error))
    }

    /// Reads a body as it is.
    ///
    /// # Errors
    /// Too large.
    pub async fn take_report(&mut self) -> Result<Vec<u8>, Error> {
        self.body(MAX_REPORT).await
    }

    /// Takes in a body that nobody will look at.
    ///
    /// # Errors
    /// Too large.
    pub async fn discard_report(&mut self) -> Result<(), Error> {
        self.body(MAX_REPORT).await.map(drop)
    }

    /// The fields of a login: JSON or either kind of form (contract 4.4).
    ///
    /// # Errors
    /// Too large, another media type, or malformed.
    pub async fn login_fields(&mut self) -> Result<Fields, Error> {
        match self.media_type().as_str() {
            "application/x-www-form-urlencoded" => {
                let body = self.body(MAX_BODY).await?;
                Ok(Fields::from_form(form_urlencoded::parse(&body).into_owned()))
            }
            "multipart/form-data" => {
                let body = self.body(MAX_BODY).await?;
                let content_type = self.header("Content-Type").unwrap_or_default();
                multipart(body, &content_type).await
            }
            _ => self.fields().await.map_err(|error| match error.kind {
                Kind::UnsupportedMediaType => {
                    Error::new(error.kind, "Send the body as application/json, or as a form.")
                }
                _ => error,
            }),
        }
    }
}

/// The fields of a login sent as `multipart/form-data`, read by the runtime's own parser.
async fn multipart(body: Vec<u8>, content_type: &str) -> Result<Fields, Error> {
    let malformed = |_| Error::field(NON_FIELD, "Multipart form parse error.");
    let headers = Headers::new();
    headers.set("Content-Type", content_type)?;
    let mut init = RequestInit::new();
    init.with_method(Method::Post)
        .with_headers(headers)
        .with_body(Some(js_sys::Uint8Array::from(body.as_slice()).into()));
    let mut inner = Request::new_with_init("http://form.invalid/", &init)?;
    let form = inner.form_data().await.map_err(malformed)?;
    let entries = js_sys::Array::from(&JsValue::from(form));
    let pairs = entries.iter().map(|pair| {
        let pair = js_sys::Array::from(&pair);
        // A file is no text, so as a field it is blank.
        (pair.get(0).as_string().unwrap_or_default(), pair.get(1).as_string().unwrap_or_default())
    });
    Ok(Fields::from_form(pairs))
}
