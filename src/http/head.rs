//! The head of a request, read in one call to the runtime.

use serde::Deserialize;
use wasm_bindgen::prelude::wasm_bindgen;
use worker::web_sys;

#[wasm_bindgen(module = "/src/http/http.js")]
extern "C" {
    #[wasm_bindgen(js_name = readHead)]
    fn read_head(request: &web_sys::Request) -> String;
}

/// The method, the URL, and the headers that nearly every request needs.
#[derive(Default, Deserialize)]
pub struct Head {
    /// The method, in upper case as sent.
    pub method: String,
    /// The whole URL.
    pub url: String,
    /// Names and values. A missing header has no value.
    headers: Vec<(String, Option<String>)>,
}

impl Head {
    /// Reads the head of a request.
    pub fn read(request: &web_sys::Request) -> Self {
        serde_json::from_str(&read_head(request)).unwrap_or_default()
    }

    /// A header's value. The runtime is asked only for a header that is not part of the head.
    pub fn header(&self, request: &web_sys::Request, name: &str) -> Option<String> {
        match self.headers.iter().find(|(known, _)| known == name) {
            Some((_, value)) => value.clone(),
            None => request.headers().get(name).ok().flatten(),
        }
    }
}
