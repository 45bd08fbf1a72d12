//! Responses: turns values and errors into status, headers and body. Only this file picks a
//! status.

use std::collections::BTreeMap;
use std::pin::Pin;

use farhand_domain::error::{Error, ErrorKind};
use futures_util::{Stream, TryStreamExt};
use serde::Serialize;
use serde_json::{Value, json};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use worker::{Headers, Response, ResponseBuilder, WebSocket, web_sys};

use crate::platform::log;
use crate::store::db::Items;

/// The Content-Security-Policy of pages for browsers: a page loads only its own files and calls
/// only its own origin. Icons and the images of style sheets are `data:` URLs.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The policy of the console: like [`PAGE_POLICY`], and scripts cannot turn text into HTML or code.
const CONSOLE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

#[wasm_bindgen(module = "/src/http/http.js")]
extern "C" {
    #[wasm_bindgen(catch)]
    fn respond(
        status: u16,
        headers: &str,
        text: Option<&str>,
        items: &JsValue,
    ) -> Result<web_sys::Response, JsValue>;

    #[wasm_bindgen(catch, js_name = respondWithAsset)]
    fn respond_with_asset(
        asset: &web_sys::Response,
        headers: &str,
    ) -> Result<web_sys::Response, JsValue>;
}

/// A response, before it becomes a response of the runtime.
pub struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Body,
}

/// The pieces of a streamed body.
type Pieces = Pin<Box<dyn Stream<Item = worker::Result<String>>>>;

enum Body {
    Empty,
    /// A JSON object that ends with the items of a list. `before` is the text before the items.
    List {
        before: String,
        items: Items,
    },
    Stream {
        media_type: &'static str,
        pieces: Pieces,
    },
    Text {
        media_type: &'static str,
        text: String,
    },
    WebSocket(WebSocket),
    /// A static asset: the body of the platform's response.
    Asset {
        media_type: &'static str,
        asset: web_sys::Response,
    },
}

impl Reply {
    fn new(status: u16, body: Body) -> Self {
        Self { status, headers: Vec::new(), body }
    }

    fn json_text(status: u16, text: String) -> Self {
        Self::new(status, Body::Text { media_type: "application/json", text })
    }

    fn json(status: u16, value: &impl Serialize) -> Result<Self, Error> {
        Ok(Self::json_text(status, serde_json::to_string(value)?))
    }

    /// 200 with a value as JSON.
    pub fn ok(value: &impl Serialize) -> Result<Self, Error> {
        Self::json(200, value)
    }

    /// 200 with JSON text.
    pub fn ok_text(json: String) -> Self {
        Self::json_text(200, json)
    }

    /// 200 with a JSON object whose last member is the items of a list. `before` is the text of the
    /// object before the items.
    pub fn list(before: String, items: Items) -> Self {
        Self::new(200, Body::List { before, items })
    }

    /// 200 with text of any media type.
    pub fn file(media_type: &'static str, text: &str) -> Self {
        Self::new(200, Body::Text { media_type, text: text.to_owned() })
    }

    /// 201 with the new resource as JSON, and its URL.
    pub fn created(value: &impl Serialize, location: String) -> Result<Self, Error> {
        Ok(Self::json(201, value)?.header("Location", location))
    }

    /// 202 with a value as JSON.
    pub fn accepted(value: &impl Serialize) -> Result<Self, Error> {
        Self::json(202, value)
    }

    /// 202 with JSON text.
    pub fn accepted_text(json: String) -> Self {
        Self::json_text(202, json)
    }

    /// 201 with the new resource as JSON text, and its URL.
    pub fn created_text(json: String, location: String) -> Self {
        Self::json_text(201, json).header("Location", location)
    }

    /// 204 without a body.
    pub fn no_content() -> Self {
        Self::new(204, Body::Empty)
    }

    /// 302 to `location`.
    pub fn redirect(location: String) -> Self {
        Self::new(302, Body::Empty).header("Location", location)
    }

    /// 308 to `location`.
    pub fn permanent_redirect(location: String) -> Self {
        Self::new(308, Body::Empty).header("Location", location)
    }

    /// 101, which switches the connection to a WebSocket.
    pub fn web_socket(socket: WebSocket) -> Self {
        Self::new(101, Body::WebSocket(socket))
    }

    /// 200 with a stream of Server-Sent Events.
    pub fn event_stream(events: impl Stream<Item = worker::Result<String>> + 'static) -> Self {
        Self::stream("text/event-stream", events)
    }

    /// 200 with a streamed text.
    pub fn stream(
        media_type: &'static str,
        pieces: impl Stream<Item = worker::Result<String>> + 'static,
    ) -> Self {
        Self::new(200, Body::Stream { media_type, pieces: Box::pin(pieces) })
    }

    /// Adds a header. A later value replaces an earlier value.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The response to an error (contract 3.9). The cause of an internal error is logged with the
    /// id of the request, and is not in the response.
    pub fn from_error(error: &Error, request_id: &str) -> Self {
        let status = match error.kind {
            ErrorKind::Invalid => 400,
            ErrorKind::Unauthenticated => 401,
            ErrorKind::Forbidden => 403,
            ErrorKind::NotFound => 404,
            ErrorKind::MethodNotAllowed => 405,
            ErrorKind::TooLarge => 413,
            ErrorKind::UnsupportedMediaType => 415,
            ErrorKind::Conflict => 409,
            ErrorKind::Unprocessable => 422,
            ErrorKind::Throttled => 429,
            ErrorKind::NotConnected | ErrorKind::NotSetUp | ErrorKind::CellFull => 503,
            ErrorKind::Internal => 500,
        };
        let mut body: BTreeMap<&str, Value> =
            error.fields.iter().map(|(name, messages)| (name.as_ref(), json!(messages))).collect();
        let code = error.code.unwrap_or(error.kind.code()).as_str();
        // A 400 with field arrays and no code of its own has its code only in the header.
        if error.fields.is_empty() || error.code.is_some() {
            body.insert("code", json!(code));
            body.insert("detail", json!(error.detail));
        }
        if error.kind == ErrorKind::Internal {
            log::error("internal_error", json!({"request_id": request_id}), &error.detail);
            body.insert("detail", json!("Internal server error."));
        }
        if matches!(status, 500 | 503) {
            body.insert("request_id", json!(request_id));
        }
        let body = if error.is_silent { Value::Null } else { json!(body) };
        let mut reply = Self::json_text(status, body.to_string());
        if status == 400 && !error.is_silent {
            reply = reply.header("X-Error-Code", code);
        }
        match error.retry_after {
            Some(seconds) => reply.header("Retry-After", seconds.to_string()),
            None => reply,
        }
    }

    /// Adds the headers of a file that belongs to a page for browsers. The URL of a page may
    /// contain a key, so the page sends no `Referer` (contract 4.10).
    pub fn for_page(self) -> Self {
        self.header("Content-Security-Policy", PAGE_POLICY)
            .header("Referrer-Policy", "no-referrer")
            .header("X-Frame-Options", "DENY")
    }

    /// Like [`for_page`](Self::for_page), for the console.
    pub fn for_console(self) -> Self {
        self.for_page().header("Content-Security-Policy", CONSOLE_POLICY)
    }

    /// 200 with the body of a static asset.
    pub fn asset(media_type: &'static str, asset: web_sys::Response) -> Self {
        Self::new(200, Body::Asset { media_type, asset })
    }

    pub fn status(&self) -> u16 {
        self.status
    }

    /// The JSON of the body. `None`: the body is empty, or is not JSON.
    pub fn json_value(&self) -> Option<Value> {
        match &self.body {
            Body::Text { media_type: "application/json", text } => serde_json::from_str(text).ok(),
            Body::List { before, items } => {
                let items = items.as_ref().as_string().unwrap_or_default();
                serde_json::from_str(&format!("{before}{items}}}")).ok()
            }
            _ => None,
        }
    }

    /// The text of the body, if it has one.
    pub fn text(&self) -> Option<&str> {
        match &self.body {
            Body::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The same response with another status and JSON body.
    #[must_use]
    pub fn with_json(self, status: u16, value: &Value) -> Self {
        let body = Body::Text { media_type: "application/json", text: value.to_string() };
        Self { status, body, ..self }
    }

    /// Adds the headers of `other` that do not depend on its content: those about the connection
    /// and about cross-origin requests.
    #[must_use]
    pub fn with_general_headers_of(mut self, other: &Self) -> Self {
        let is_general = |name: &str| {
            name.starts_with("Access-Control-")
                || ["Vary", "Strict-Transport-Security"].contains(&name)
        };
        let headers = other.headers.iter().filter(|(name, _)| is_general(name));
        self.headers.extend(headers.cloned());
        self
    }

    /// Creates the response of the runtime. `without_body` is true for HEAD.
    pub fn into_response(
        self,
        request_id: &str,
        without_body: bool,
    ) -> worker::Result<web_sys::Response> {
        let Self { status, headers: own, body } = self;
        let media_type = match &body {
            Body::List { .. } => Some("application/json"),
            Body::Asset { media_type, .. }
            | Body::Text { media_type, .. }
            | Body::Stream { media_type, .. } => Some(*media_type),
            Body::Empty | Body::WebSocket(_) => None,
        };
        let mut headers = BTreeMap::from([
            ("X-Request-Id", request_id),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]);
        headers.extend(media_type.map(|media_type| ("Content-Type", media_type)));
        headers.extend(own.iter().map(|(name, value)| (*name, value.as_str())));
        let builder = || -> worker::Result<ResponseBuilder> {
            let own = Headers::new();
            headers.iter().try_for_each(|(name, value)| own.set(name, value))?;
            Ok(Response::builder().with_status(status).with_headers(own))
        };
        let respond = |text, items: &JsValue| {
            Ok(respond(status, &serde_json::to_string(&headers)?, text, items)?)
        };
        match body {
            Body::WebSocket(socket) => Ok(builder()?.with_websocket(socket).empty().into()),
            _ if without_body => respond(None, &JsValue::UNDEFINED),
            Body::Empty => respond(None, &JsValue::UNDEFINED),
            Body::Asset { asset, .. } => {
                Ok(respond_with_asset(&asset, &serde_json::to_string(&headers)?)?)
            }
            Body::Text { text, .. } => respond(Some(&text), &JsValue::UNDEFINED),
            Body::List { before, items } => respond(Some(&before), items.as_ref()),
            Body::Stream { pieces, .. } => {
                Ok(builder()?.from_stream(pieces.map_ok(String::into_bytes))?.into())
            }
        }
    }
}
