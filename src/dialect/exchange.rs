//! One request of a client, and the native requests that serve it. Each of them has the credential,
//! the address and the id of the client's request. So the native checks, throttles and audit events
//! apply to it.

use farhand_domain::dialect::Client;
use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::http::fields::Fields;
use farhand_domain::http::page::Query;
use serde_json::Value;

use crate::api::dispatch;
use crate::http::body::ReplacedBody;
use crate::http::request::Call;
use crate::http::response::Reply;

/// The maximum number of pages that are read of one native list.
const MAX_PAGES: u32 = 50;

/// A request of a client.
pub struct Exchange {
    /// The current native request.
    pub call: Call,
    pub client: Client,
    /// The query of the client's request.
    pub query: Query,
    raw_query: String,
    parameters: Vec<(String, String)>,
    /// The last reply, without its body.
    last: Reply,
}

/// Whether a refusal shows that the credential is valid.
pub fn is_for_valid_credential(refusal: &Reply) -> bool {
    let code = refusal.json_value().map(|body| body["code"].clone()).unwrap_or_default();
    code == "PERMISSION_DENIED" || code == "API_TOKEN_ACL_NOT_ALLOWED"
}

impl Exchange {
    pub fn new(call: Call, client: Client, parameters: Vec<(String, String)>) -> Self {
        let (query, raw_query) = (call.query(), call.raw_query.clone());
        Self { call, client, query, raw_query, parameters, last: Reply::no_content() }
    }

    /// The value of a parameter of the client's path.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The query of the client's request, with more parameters. A later parameter replaces an
    /// earlier one.
    pub fn query_with(&self, more: &str) -> String {
        if self.raw_query.is_empty() {
            more.to_owned()
        } else {
            format!("{}&{more}", self.raw_query)
        }
    }

    /// Runs the current native request.
    async fn run(&mut self) -> Result<Reply, Reply> {
        let call = &mut self.call;
        call.parameters.clear();
        call.route = None;
        call.caller.replace(None);
        let reply = dispatch::answer(call, dispatch::native).await;
        self.last = Reply::no_content().with_general_headers_of(&reply);
        if (200..300).contains(&reply.status()) { Ok(reply) } else { Err(reply) }
    }

    /// Sends the client's request as it is.
    ///
    /// # Errors
    /// The reply, if its status is not 2xx.
    pub async fn forward(&mut self) -> Result<Reply, Reply> {
        self.run().await
    }

    /// Sends a native request. Returns the reply and its JSON.
    ///
    /// # Errors
    /// The reply, if its status is not 2xx.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        query: &str,
        body: Option<&Value>,
    ) -> Result<(Reply, Value), Reply> {
        self.call.method = method.to_owned();
        self.call.path = path.to_owned();
        self.call.raw_query = query.to_owned();
        self.call.overrides.body = Some(ReplacedBody {
            bytes: Ok(body.map(|body| body.to_string().into_bytes()).unwrap_or_default()),
            media_type: "application/json".to_owned(),
        });
        let reply = self.run().await?;
        let json = reply.json_value().unwrap_or_default();
        Ok((reply, json))
    }

    /// Reads a native resource or a page of a native list.
    ///
    /// # Errors
    /// See [`Exchange::send`].
    pub async fn get(&mut self, path: &str, query: &str) -> Result<(Reply, Value), Reply> {
        self.send("GET", path, query, None).await
    }

    /// Reads all items of a native list, up to [`MAX_PAGES`] pages. `query` has no page.
    ///
    /// # Errors
    /// See [`Exchange::send`].
    pub async fn get_all(&mut self, path: &str, query: &str) -> Result<Vec<Value>, Reply> {
        let mut items = Vec::new();
        for page in 1..=MAX_PAGES {
            let query = format!("{query}&page={page}&page_size=100");
            let (_, mut list) = self.get(path, query.trim_start_matches('&')).await?;
            if let Value::Array(results) = list["results"].take() {
                items.extend(results);
            }
            if list["next"].is_null() {
                break;
            }
        }
        Ok(items)
    }

    /// The fields of the client's body. A field that is not read is refused, as in native requests.
    ///
    /// # Errors
    /// The body is too large, has another media type, or is not a JSON object.
    pub async fn fields(&mut self) -> Result<Fields, Error> {
        self.call.fields().await
    }

    /// Unwraps input. If it is invalid, the credential is checked first, at an endpoint that
    /// refuses tokens with an access control list.
    ///
    /// # Errors
    /// The refusal of the credential, or of the input.
    pub async fn require_input<T>(&mut self, input: Result<T, Error>) -> Result<T, Reply> {
        match input {
            Ok(input) => Ok(input),
            Err(error) => {
                self.get("/api/auth/tokens/", "page_size=1").await?;
                Err(self.refusal(&error))
            }
        }
    }

    /// The dialect's own reply.
    pub fn reply(&self, status: u16, value: &Value) -> Reply {
        let empty = Reply::no_content().with_general_headers_of(&self.last);
        empty.with_json(status, value)
    }

    /// The dialect's own refusal.
    pub fn refusal(&self, error: &Error) -> Reply {
        Reply::from_error(error, &self.call.id).with_general_headers_of(&self.last)
    }

    /// The dialect's own 404.
    pub fn missing(&self, detail: &'static str) -> Reply {
        self.refusal(&Error::new(ErrorKind::NotFound, detail))
    }
}
