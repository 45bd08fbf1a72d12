//! Bodies of requests: forms, and bodies that the dialect replaces.

use farhand_domain::error::{Error, NON_FIELD};
use farhand_domain::http::fields::Fields;
use farhand_domain::secret::Secret;
use wasm_bindgen::JsValue;
use worker::{Headers, Method, Request, RequestInit};

/// A body that replaces the body of the request.
#[derive(Clone)]
pub struct ReplacedBody {
    /// The body, or the error of reading the original body.
    pub bytes: Result<Vec<u8>, Error>,
    /// The media type, in lower case.
    pub media_type: String,
}

/// What the dialect changes in a request, beside method, path and query (contract 21). By default
/// nothing.
#[derive(Default)]
pub struct Overrides {
    /// The Authorization header.
    pub authorization: Option<Secret>,
    /// The body.
    pub body: Option<ReplacedBody>,
    /// Whether tokens with an access control list are refused, even if the endpoint accepts them.
    pub refuses_limited_tokens: bool,
    /// For a change of an API token: the JSON of the access control list that the token must still
    /// have. Otherwise the change is a conflict.
    pub expected_acl: Option<String>,
}

/// Reads the fields of a `multipart/form-data` body with the parser of the runtime.
///
/// # Errors
/// The body is malformed.
pub async fn multipart(body: Vec<u8>, content_type: &str) -> Result<Fields, Error> {
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
        // An uploaded file is not text. Its field becomes an empty string.
        (pair.get(0).as_string().unwrap_or_default(), pair.get(1).as_string().unwrap_or_default())
    });
    Ok(Fields::from_form(pairs))
}
