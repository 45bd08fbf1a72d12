//! The request of a client, as handlers use it.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt::Display;
use std::net::IpAddr;
use std::rc::Rc;

use farhand_domain::access::caller::Caller;
use farhand_domain::audit::event::{AuditEvent, AuditObject, Source};
use farhand_domain::error::{Code, Error, ErrorKind, NON_FIELD};
use farhand_domain::http::address;
use farhand_domain::http::authorization::{self, AgentCredential};
use farhand_domain::http::endpoints::Route;
use farhand_domain::http::fields::Fields;
use farhand_domain::http::host::{self, Host};
use farhand_domain::http::page::Query;
use farhand_domain::id;
use farhand_domain::secret::Secret;
use farhand_domain::time::Timestamp;
use futures_util::StreamExt;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::Value;
use uuid::Uuid;
use worker::{Context, Env, Request, web_sys};

use crate::http::body::{Overrides, ReplacedBody, multipart};
use crate::http::head::{Head, database_of, is_request_id, split_url};
use crate::platform::{self, Config, PeerSource};
use crate::store::database::Database;

/// The maximum size of a request's body (contract 3.3).
const MAX_BODY_BYTES: usize = 1024 * 1024;
/// The maximum size of the body of an agent's report (contract 3.3).
const MAX_REPORT_BYTES: usize = 16 * 1024 * 1024;
/// The header in which `scripts/serve.mjs` passes a key and the address of the peer (contract
/// 11.2).
const PEER_HEADER: &str = "Farhand-Peer";
/// The maximum number of bytes of an oversized body that are read before the 413 is sent.
const MAX_DISCARDED_BYTES: usize = 64 * 1024 * 1024;

/// Details for the audit event of a refusal, if the handler has more details than the path.
pub struct DenialDetails {
    pub object: Option<AuditObject>,
    pub details: Value,
}

/// A request, with everything that its handler needs.
pub struct Call {
    pub env: Env,
    /// See [`database_of`].
    pub database: Database,
    /// Runs work after the response.
    pub context: Context,
    pub config: Rc<Config>,
    /// When the request arrived.
    pub now: Timestamp,
    /// The `X-Request-Id` of the request if it is well-formed, otherwise a new id (contract 3.8).
    pub id: String,
    /// The method, as sent.
    pub method: String,
    /// The path, percent-encoded as sent.
    pub path: String,
    /// The query string, as sent, without the question mark.
    pub raw_query: String,
    /// Scheme and host that the client used, for example `https://acme.eu1.example.com`. The scheme
    /// is also `https` if a trusted proxy says so.
    pub origin: String,
    /// The workspace or service name in the Host header.
    pub host: Host,
    /// The names and values of the path parameters.
    pub parameters: Vec<(String, String)>,
    /// Whether the workspace is known to exist.
    pub is_workspace_known: Cell<bool>,
    /// The route of the path; `None` until it is found.
    pub route: Option<&'static Route>,
    /// The caller; `None` until the credential is checked.
    pub caller: RefCell<Option<Caller>>,
    /// Details for the audit event if the request is refused.
    pub denial_details: Cell<Option<DenialDetails>>,
    /// The audit chains that the request wrote events to: workspace ids, and
    /// [`CELL`](farhand_domain::audit::event::CELL).
    pub audited_chains: RefCell<Vec<i64>>,
    pub overrides: Overrides,
    /// The result of [`Call::peer`].
    peer: OnceCell<Option<IpAddr>>,
    head: Head,
    /// The runtime's request. A `worker::Request` would read more than needed from every request,
    /// for example `cf`.
    request: web_sys::Request,
}

impl Call {
    /// Reads the head of a request, but not its body.
    pub fn new(request: web_sys::Request, env: Env, context: Context) -> Self {
        let config = Config::from_env(&env);
        let now = platform::now();
        let head = Head::read(&request);
        let (origin, path, raw_query) = split_url(&head.url);
        let host = Host::parse(&head.header(&request, "Host").unwrap_or_default(), config.names());
        let own_id = head.header(&request, "X-Request-Id").filter(|id| is_request_id(id));
        let id = own_id
            .or_else(|| platform::new_id(now).ok().map(|id| id.to_string()))
            .unwrap_or_default();
        let call = Self {
            database: database_of(&env, &host, path),
            now,
            id,
            method: head.method.clone(),
            path: path.to_owned(),
            raw_query: raw_query.to_owned(),
            origin: origin.to_owned(),
            host,
            parameters: Vec::new(),
            is_workspace_known: Cell::new(false),
            route: None,
            caller: RefCell::default(),
            denial_details: Cell::default(),
            audited_chains: RefCell::default(),
            overrides: Overrides::default(),
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

    /// Whether a trusted proxy says that the connection of the client is encrypted.
    fn is_forwarded_https(&self) -> bool {
        let Some(scheme) = self.header("X-Forwarded-Proto") else { return false };
        address::is_forwarded_https(self.peer(), Some(&scheme), &self.config.trusted_proxies)
    }

    /// Whether the connection of the client is encrypted.
    pub fn is_https(&self) -> bool {
        self.origin.starts_with("https://")
    }

    /// Refuses plain http, except on local hosts and if `ALLOW_HTTP` is set (contract 11.2).
    ///
    /// # Errors
    /// 403 `HTTPS_REQUIRED`. A redirect would hide the mistake: the client has already sent the
    /// credential in plain text, and would do so again with the next request.
    pub fn require_https(&self) -> Result<(), Error> {
        let is_answered = self.is_https()
            || self.config.allow_http
            || host::is_local(&self.header("Host").unwrap_or_default());
        if is_answered {
            return Ok(());
        }
        let detail = "Use https. If a proxy in front of the service takes https, add it to TRUSTED_PROXIES; \
                      ALLOW_HTTP=1 allows plain http.";
        Err(Error::new(ErrorKind::Forbidden, detail).with_code(Code::HttpsRequired))
    }

    pub fn header(&self, name: &str) -> Option<String> {
        self.head.header(&self.request, name)
    }

    /// The slug of the workspace that the Host header selects. The workspace may not exist.
    ///
    /// # Errors
    /// 404 if the Host header selects no workspace.
    pub fn workspace(&self) -> Result<&str, Error> {
        self.host.workspace().ok_or_else(Error::no_workspace)
    }

    /// The query parameters, decoded.
    pub fn query(&self) -> Query {
        form_urlencoded::parse(self.raw_query.as_bytes()).into_owned().collect()
    }

    /// The value of a path parameter; empty if the path has no such parameter.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The path parameter `id` as a UUID.
    ///
    /// # Errors
    /// `missing`, the 404 of the resource, if the id is malformed (contract 3.6).
    pub fn path_id(&self, missing: fn() -> Error) -> Result<Uuid, Error> {
        id::parse(self.parameter("id")).ok_or_else(missing)
    }

    /// The path parameter `id` as a number.
    ///
    /// # Errors
    /// See [`Call::path_id`].
    pub fn path_number(&self, missing: fn() -> Error) -> Result<i64, Error> {
        self.path_integer("id").ok_or_else(missing)
    }

    /// A path parameter as a number from 1 on.
    pub fn path_integer(&self, name: &str) -> Option<i64> {
        let text = self.parameter(name);
        // The form of numbers in responses: no sign, no leading zero, exact as a JSON number.
        let number = text.parse::<i64>().ok();
        number.filter(|number| (1..1 << 53).contains(number) && number.to_string() == text)
    }

    /// The address at the other end of the connection. Returns `None` if no source for it is
    /// configured (contract 11.2).
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

    /// The address of the client as text; empty if it is unknown.
    pub fn remote_ip(&self) -> String {
        let forwarded_for = self.header("X-Forwarded-For");
        let client =
            address::client(self.peer(), forwarded_for.as_deref(), &self.config.trusted_proxies);
        client.map(|address| address.to_string()).unwrap_or_default()
    }

    /// The source of the request in audit events.
    pub fn source(&self) -> Source {
        Source {
            remote_ip: Some(self.remote_ip()).filter(|ip| !ip.is_empty()),
            request_id: Some(self.id.clone()),
        }
    }

    /// The audit action of the endpoint, if it has one.
    pub fn audit_action(&self) -> Option<&'static str> {
        self.route?.endpoint(&self.method)?.audit_action()
    }

    /// Whether the endpoint accepts API tokens with an access control list (contract 4.12).
    pub fn accepts_limited_tokens(&self) -> bool {
        let endpoint = self.route.and_then(|route| route.endpoint(&self.method));
        !self.overrides.refuses_limited_tokens
            && endpoint.is_some_and(|endpoint| endpoint.accepts_limited_tokens())
    }

    /// A new audit event of this request, without an actor. If the endpoint has no audit action,
    /// the action is `endpoint.access`.
    ///
    /// # Errors
    /// The platform has no random bytes for the id of the event.
    pub fn audit_event(&self) -> Result<AuditEvent, Error> {
        let action = self.audit_action().unwrap_or("endpoint.access");
        Ok(AuditEvent::new(platform::new_id(self.now)?, self.now, self.source(), action))
    }

    fn authorization(&self) -> Option<String> {
        match &self.overrides.authorization {
            Some(header) => Some(header.expose().to_owned()),
            None => self.header("Authorization"),
        }
    }

    /// The user's token in the Authorization header.
    ///
    /// # Errors
    /// See [`authorization::parse_user`].
    pub fn user_token(&self) -> Result<Secret, Error> {
        authorization::parse_user(self.authorization().as_deref())
    }

    /// The agent's id and key in the Authorization header.
    ///
    /// # Errors
    /// See [`authorization::parse_agent`].
    pub fn agent_credential(&self) -> Result<AgentCredential, Error> {
        authorization::parse_agent(self.authorization().as_deref())
    }

    /// Whether the Authorization header has the form that agents use.
    pub fn is_agent(&self) -> bool {
        authorization::is_agent(self.authorization().as_deref())
    }

    /// The operator's token in the Authorization header.
    ///
    /// # Errors
    /// See [`authorization::parse_operator`].
    pub fn operator_token(&self) -> Result<Secret, Error> {
        authorization::parse_operator(self.authorization().as_deref())
    }

    /// The media type of the body, without its parameters, in lower case.
    fn media_type(&self) -> String {
        if let Some(body) = &self.overrides.body {
            return body.media_type.clone();
        }
        let value = self.header("Content-Type").unwrap_or_default();
        value.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
    }

    /// Reads the body, up to `limit` bytes.
    ///
    /// A larger body is an error, but is still read, up to [`MAX_DISCARDED_BYTES`]. Otherwise a
    /// client that is still sending may never see the response.
    async fn body(&mut self, limit: usize) -> Result<Vec<u8>, Error> {
        let too_large = || {
            let detail = format!("The request body is larger than {limit} bytes.");
            Error::new(ErrorKind::TooLarge, detail)
        };
        if let Some(body) = &self.overrides.body {
            let bytes = body.bytes.clone()?;
            return if bytes.len() > limit { Err(too_large()) } else { Ok(bytes) };
        }
        let unreadable = |_| Error::field(NON_FIELD, "The request body could not be read.");
        // A short body is read in one call. A stream needs several turns of the event loop for each
        // piece.
        match self.content_length() {
            Some(0) => return Ok(Vec::new()),
            Some(length) if length <= limit => {
                return self.worker_request().bytes().await.map_err(unreadable);
            }
            _ => {}
        }
        // A request without a body has no stream.
        let Ok(mut stream) = self.worker_request().stream() else { return Ok(Vec::new()) };
        let (mut body, mut length) = (Vec::new(), 0);
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(unreadable)?;
            length += piece.len();
            if length <= limit {
                body.extend(piece);
            } else if length > MAX_DISCARDED_BYTES {
                break;
            }
        }
        if length > limit { Err(too_large()) } else { Ok(body) }
    }

    /// The request as a `worker::Request`, which can read the body.
    fn worker_request(&self) -> Request {
        Clone::clone(&self.request).into()
    }

    /// Reads the body, and checks that it is empty or JSON.
    async fn json_body(&mut self, limit: usize) -> Result<Vec<u8>, Error> {
        let body = self.body(limit).await?;
        if !body.is_empty() && self.media_type() != "application/json" {
            return Err(Error::new(
                ErrorKind::UnsupportedMediaType,
                "Send the body as application/json.",
            ));
        }
        Ok(body)
    }

    /// The fields of a JSON body (contract 3.3).
    ///
    /// # Errors
    /// The body is too large, has another media type, or is not a JSON object.
    pub async fn fields(&mut self) -> Result<Fields, Error> {
        let body = self.json_body(MAX_BODY_BYTES).await?;
        Fields::from_json(&body)
    }

    /// The fields of the JSON body of a user's request. If the Authorization header is malformed,
    /// the body is discarded, because the credential is refused before the input (contract 3.4).
    ///
    /// # Errors
    /// The outer error is about the Authorization header. The inner error comes from
    /// [`Call::fields`].
    pub async fn user_fields(&mut self) -> Result<Result<Fields, Error>, Error> {
        if let Err(error) = self.user_token() {
            self.discard().await;
            return Err(error);
        }
        Ok(self.fields().await)
    }

    /// Reads the body of a request without fields: empty, `null` or `{}` (contract 11.1). The
    /// handler checks the credential before it uses the result (contract 3.4).
    ///
    /// # Errors
    /// The body is too large, has another media type, or has a field.
    pub async fn no_fields(&mut self) -> Result<(), Error> {
        self.optional_fields().await?.finish()
    }

    /// The fields of a body that may be empty, `null` or `{}` (contract 11.1). The handler checks
    /// the credential before it uses the result (contract 3.4).
    ///
    /// # Errors
    /// The body is too large, has another media type, or is not a JSON object.
    pub async fn optional_fields(&mut self) -> Result<Fields, Error> {
        let body = self.json_body(MAX_BODY_BYTES).await?;
        let body: &[u8] = if body.trim_ascii() == b"null" { b"{}" } else { &body };
        Fields::from_json(body)
    }

    /// Reads the body, and keeps it in `overrides` for the handler.
    pub async fn keep_body(&mut self) -> &ReplacedBody {
        let media_type = self.media_type();
        let bytes = self.body(MAX_BODY_BYTES).await;
        self.overrides.body.insert(ReplacedBody { bytes, media_type })
    }

    /// Reads the body and drops it, so that a client that is still sending sees the response.
    pub async fn discard(&mut self) {
        // The response does not depend on the body, so errors of the body do not matter.
        self.body(0).await.ok();
    }

    /// Whether the body is larger than [`MAX_BODY_BYTES`], or of unknown length.
    pub fn has_large_body(&self) -> bool {
        self.content_length().is_none_or(|length| length > MAX_BODY_BYTES)
    }

    /// The length of the body, if the request declares it. `Content-Length` is ignored if the
    /// request also has `Transfer-Encoding`.
    fn content_length(&self) -> Option<usize> {
        let length =
            self.header("Content-Length").filter(|_| self.header("Transfer-Encoding").is_none());
        length.and_then(|length| length.parse().ok())
    }

    /// Reads the JSON body of an agent's report.
    ///
    /// # Errors
    /// The body is too large, has another media type, or is not JSON of the type `T`.
    pub async fn read_report<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        self.read_report_with(|body| {
            // serde would also accept a JSON array as the members of a struct.
            let is_object = body.trim_ascii_start().starts_with('{');
            if is_object {
                serde_json::from_str(body)
            } else {
                Err(serde_json::Error::custom("expected an object"))
            }
        })
        .await
    }

    /// Reads the JSON body of an agent's report with the parser `read`.
    ///
    /// # Errors
    /// The body is too large, has another media type, or `read` fails.
    pub async fn read_report_with<T>(
        &mut self,
        read: impl FnOnce(&str) -> serde_json::Result<T>,
    ) -> Result<T, Error> {
        let body = self.json_body(MAX_REPORT_BYTES).await?;
        let malformed =
            |error: &dyn Display| Error::field(NON_FIELD, format!("JSON parse error: {error}"));
        let body = std::str::from_utf8(&body).map_err(|error| malformed(&error))?;
        read(body).map_err(|error| malformed(&error))
    }

    /// Reads the body of an agent's report with any media type.
    ///
    /// # Errors
    /// The body is too large.
    pub async fn read_raw_report(&mut self) -> Result<Vec<u8>, Error> {
        self.body(MAX_REPORT_BYTES).await
    }

    /// Reads and drops the body of an agent's report.
    ///
    /// # Errors
    /// The body is too large.
    pub async fn discard_report(&mut self) -> Result<(), Error> {
        self.body(MAX_REPORT_BYTES).await.map(drop)
    }

    /// The fields of a login, from JSON or a form (contract 4.4).
    ///
    /// # Errors
    /// The body is too large, has another media type, or is malformed.
    pub async fn login_fields(&mut self) -> Result<Fields, Error> {
        match self.media_type().as_str() {
            "application/x-www-form-urlencoded" => {
                let body = self.body(MAX_BODY_BYTES).await?;
                Ok(Fields::from_form(form_urlencoded::parse(&body).into_owned()))
            }
            "multipart/form-data" => {
                let body = self.body(MAX_BODY_BYTES).await?;
                let content_type = self.header("Content-Type").unwrap_or_default();
                multipart(body, &content_type).await
            }
            _ => self.fields().await.map_err(|error| match error.kind {
                ErrorKind::UnsupportedMediaType => {
                    Error::new(error.kind, "Send the body as application/json, or as a form.")
                }
                _ => error,
            }),
        }
    }
}
