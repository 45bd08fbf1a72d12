//! The HTTP client of the API. Error statuses and lost connections become an [`Error`].

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::{Request, Response};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::address::Address;
use crate::error::{Error, Refusal, Result};
use crate::types::Page;

const USER_AGENT: &str = concat!("farhand-cli/", env!("CARGO_PKG_VERSION"));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the response, and for each read of its body. A login waits up to 20 s until the
/// service hashes its password (contract 4.6).
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for each read of a stream. An open stream sends a comment every 15 s (contract 7.9).
const STREAM_READ_TIMEOUT: Duration = Duration::from_secs(40);
/// Maximum size of a response body. The kept output of a command has up to 16 MiB (contract 7.9).
const MAX_BODY_BYTES: u64 = 64 * 1024 * 1024;
/// The pauses before each retry of a request that got no response.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(1)];
/// Maximum number of items on a page (contract 3.7).
const PAGE_SIZE: usize = 100;
/// Maximum number of targets of a batch on a page.
const TARGETS_PAGE_SIZE: usize = 1_000;

/// A client of one workspace, with or without a credential.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    address: Address,
    token: Option<String>,
}

/// A response with a success status, read to its end.
pub struct Reply {
    pub body: Vec<u8>,
    pub is_json: bool,
}

impl Reply {
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        parse(&self.body)
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| Error::unexpected_response(&error))
}

impl Client {
    pub fn new(address: Address, token: Option<String>) -> Result<Self> {
        if token.as_ref().is_some_and(|token| !is_token(token)) {
            return Err(Error::local(
                "The token has other characters than A-Z, a-z and 0-9. Check that all of it was copied.",
            ));
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect could take the token to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(USER_AGENT)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .timeout_per_read(Some(RESPONSE_TIMEOUT));
        if address.is_this_machine() {
            config = config.proxy(None);
        }
        if address.origin.starts_with("https:") {
            config =
                config.tls_config(TlsConfig::builder().root_certs(root_certificates()).build());
        }
        Ok(Self { agent: config.build().into(), address, token })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// A client of the same workspace with another credential.
    pub fn with_token(&self, token: &str) -> Result<Self> {
        Self::new(self.address.clone(), Some(token.to_owned()))
    }

    fn request(&self, method: &str, path: &str) -> ureq::http::request::Builder {
        let (origin, host) = self.address.target();
        let mut request = Request::builder().method(method).uri(format!("{origin}{path}"));
        if let Some(host) = host {
            request = request.header("Host", host);
        }
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("token=\"{token}\""));
        }
        request
    }

    /// Sends a request once. `key` is its `Idempotency-Key`. An error status becomes an error.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        key: Option<&str>,
    ) -> Result<Reply> {
        let mut request = self.request(method, path);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        let invalid = |error: ureq::http::Error| Error::local(format!("Invalid request: {error}."));
        let response = match body {
            Some(body) => {
                let request = request.header("Content-Type", "application/json");
                self.agent.run(request.body(body).map_err(invalid)?)
            }
            None => self.agent.run(request.body(()).map_err(invalid)?),
        };
        let response = response.map_err(|error| self.connection_error(&error))?;
        let is_json = response.body().mime_type() == Some("application/json");
        let body = self.read(response)?;
        Ok(Reply { body, is_json })
    }

    /// Sends a request, and retries it if it got no response. Use this only for a GET, or for a
    /// POST with an `Idempotency-Key`: repeating them has no further effect.
    fn send_safely(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        key: Option<&str>,
    ) -> Result<Reply> {
        let mut pauses = RETRY_PAUSES.iter();
        loop {
            let result = self.send(method, path, body, key);
            match (&result, pauses.next()) {
                (Err(Error::Connection(_)), Some(pause)) => std::thread::sleep(*pause),
                _ => return result,
            }
        }
    }

    /// Reads a response to its end. An error status becomes an error.
    fn read(&self, mut response: Response<Body>) -> Result<Vec<u8>> {
        if !response.status().is_success() {
            return Err(self.refusal(response));
        }
        let body = response.body_mut().with_config().limit(MAX_BODY_BYTES).read_to_vec();
        body.map_err(|error| self.connection_error(&error))
    }

    /// Converts a response with an error status to an error.
    fn refusal(&self, mut response: Response<Body>) -> Error {
        let body = match response.body_mut().read_to_vec() {
            Ok(body) => body,
            Err(error) => return self.connection_error(&error),
        };
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.map(str::to_owned)
        };
        Error::Refused(Refusal::parse(
            response.status().as_u16(),
            header("X-Error-Code"),
            header("Retry-After"),
            header("X-Request-Id"),
            &body,
        ))
    }

    pub fn get(&self, path: &str) -> Result<Reply> {
        self.send_safely("GET", path, None, None)
    }

    pub fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.get(path)?.json()
    }

    /// Sends a POST that creates a resource. Its `Idempotency-Key` prevents that a retry creates a
    /// second resource.
    pub fn create(&self, path: &str, body: &Value) -> Result<Value> {
        let key = uuid::Uuid::new_v4().to_string();
        self.send_safely("POST", path, Some(body.to_string().as_bytes()), Some(&key))?.json()
    }

    /// Sends a POST without an `Idempotency-Key`, and without retries.
    pub fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        self.send("POST", path, Some(body.to_string().as_bytes()), None)
    }

    /// Changes fields of a resource.
    pub fn patch(&self, path: &str, body: &Value) -> Result<Value> {
        self.send("PATCH", path, Some(body.to_string().as_bytes()), None)?.json()
    }

    pub fn delete(&self, path: &str) -> Result<()> {
        self.send("DELETE", path, None, None).map(drop)
    }

    /// The first `limit` items of a list, and the total number of items.
    pub fn list(
        &self,
        path: &str,
        filters: &[(&str, String)],
        limit: usize,
    ) -> Result<(Vec<Value>, usize)> {
        self.list_in_pages(path, filters, limit, PAGE_SIZE)
    }

    /// All targets of a batch, in the order in which they start.
    pub fn targets(&self, batch: &str, filters: &[(&str, String)]) -> Result<Vec<Value>> {
        let path = format!("/api/events/batches/{}/targets/", segment(batch));
        Ok(self.list_in_pages(&path, filters, usize::MAX, TARGETS_PAGE_SIZE)?.0)
    }

    fn list_in_pages(
        &self,
        path: &str,
        filters: &[(&str, String)],
        limit: usize,
        max_size: usize,
    ) -> Result<(Vec<Value>, usize)> {
        let size = limit.clamp(1, max_size);
        let mut items = Vec::new();
        let mut page = 1;
        loop {
            let paging = [("page", page.to_string()), ("page_size", size.to_string())];
            let query = query(filters.iter().chain(&paging));
            let found: Page = self.get_json(&format!("{path}?{query}"))?;
            items.extend(found.results);
            if found.next.is_none() || items.len() >= limit {
                items.truncate(limit);
                return Ok((items, usize::try_from(found.count).unwrap_or(usize::MAX)));
            }
            page += 1;
        }
    }

    /// Opens the event stream of a command or a batch. If `after` is set, the stream starts after
    /// the event with that id.
    pub fn stream(&self, path: &str, after: Option<&str>) -> Result<ureq::BodyReader<'static>> {
        let mut request = self.request("GET", path).header("Accept", "text/event-stream");
        if let Some(after) = after {
            request = request.header("Last-Event-ID", after);
        }
        let request =
            request.body(()).map_err(|error| Error::local(format!("Invalid request: {error}.")))?;
        let request =
            self.agent.configure_request(request).timeout_per_read(Some(STREAM_READ_TIMEOUT));
        let response =
            self.agent.run(request.build()).map_err(|error| self.connection_error(&error))?;
        if !response.status().is_success() {
            return Err(self.refusal(response));
        }
        Ok(response.into_body().into_with_config().limit(u64::MAX).reader())
    }

    fn connection_error(&self, error: &ureq::Error) -> Error {
        let origin = &self.address.origin;
        Error::Connection(match error {
            ureq::Error::HostNotFound => {
                format!("The host of {origin} does not exist. Check the URL.")
            }
            ureq::Error::Timeout(_) => {
                format!("{origin} did not answer in time. Check the network, and try again.")
            }
            ureq::Error::Io(error) => {
                format!(
                    "Cannot reach {origin}: {error}. Check the URL, and whether the service runs."
                )
            }
            other => format!("Cannot talk to {origin}: {other}."),
        })
    }
}

/// Tokens have 128 letters and digits (contract 4.2). The service checks the length.
pub fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The root certificates of this machine, or Mozilla's if this machine has none.
fn root_certificates() -> RootCerts {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        return RootCerts::WebPki;
    }
    let certificates = found.iter().map(|der| Certificate::from_der(der).to_owned());
    RootCerts::from(certificates)
}

/// An encoded query string.
pub fn query<'a>(pairs: impl IntoIterator<Item = &'a (&'a str, String)>) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs.into_iter().map(|(name, value)| (*name, value.as_str())))
        .finish()
}

/// Encodes a name or an id as one segment of a path.
pub fn segment(text: &str) -> String {
    // A space is `+` in a query and `%20` in a path.
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_type_stays_one_segment() {
        assert_eq!(segment("../tokens?x=1"), "..%2Ftokens%3Fx%3D1");
        assert_eq!(segment("a b+c"), "a%20b%2Bc");
        assert_eq!(query(&[("search", "a&b".to_owned())]), "search=a%26b");
    }

    #[test]
    fn tokens_hold_letters_and_digits_only() {
        assert!(is_token("aZ09"));
        for wrong in ["", "a\"", "a\r\nX: y", "ä"] {
            assert!(!is_token(wrong), "{wrong:?}");
        }
    }
}
