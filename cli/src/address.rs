//! The URL of a workspace.

use std::net::IpAddr;

use ureq::http::Uri;

use crate::error::{Error, Result};

/// The origin of a workspace, such as `https://acme.eu1.example.com`.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    /// Without a slash at the end.
    pub origin: String,
    host: String,
    /// The port with its colon, or "" for the default port.
    port: String,
}

impl Address {
    /// Parses a URL. Plain http would show the token to the network. Unless `allows_http` is true,
    /// plain http is allowed only for this machine.
    pub fn parse(text: &str, allows_http: bool) -> Result<Self> {
        let wrong = |why: &str| {
            Err(Error::local(format!(
                "The URL {text:?} {why}. Example: https://acme.eu1.example.com"
            )))
        };
        let Ok(uri) = text.parse::<Uri>() else { return wrong("is malformed") };
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return wrong("has no scheme or host");
        };
        if authority.as_str().contains('@') {
            return wrong("contains a password");
        }
        if uri.path() != "/" || uri.query().is_some() {
            return wrong("has a path");
        }
        let host = authority.host().to_owned();
        let port = authority.port().map(|port| format!(":{port}")).unwrap_or_default();
        let address = Self { origin: format!("{scheme}://{host}{port}"), host, port };
        match scheme {
            "https" => Ok(address),
            "http" if allows_http || address.is_this_machine() => Ok(address),
            "http" => wrong(
                "is plain http, which shows the token to the network. Use https, or `--insecure-http`",
            ),
            _ => wrong("has another scheme than https"),
        }
    }

    /// RFC 6761 reserves `localhost` and all names below it for this machine. Not every resolver
    /// resolves such names.
    fn is_localhost_name(&self) -> bool {
        let host = self.host.to_ascii_lowercase();
        host == "localhost" || host.ends_with(".localhost")
    }

    pub fn is_this_machine(&self) -> bool {
        let ip = self.host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        self.is_localhost_name() || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// The origin to send requests to, and the `Host` header if it must differ from that origin.
    pub fn target(&self) -> (String, Option<String>) {
        if self.is_localhost_name() && self.origin.starts_with("http:") {
            let host = format!("{}{}", self.host, self.port);
            (format!("http://127.0.0.1{}", self.port), Some(host))
        } else {
            (self.origin.clone(), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Address::parse(text, false).unwrap_err().to_string()
    }

    #[test]
    fn https_is_for_any_host_and_http_for_this_machine() {
        for url in ["https://acme.example.com", "https://acme.example.com/", "http://[::1]:8787"] {
            let address = Address::parse(url, false).unwrap();
            assert_eq!(address.origin, url.trim_end_matches('/'));
            assert_eq!(address.target(), (address.origin.clone(), None));
        }
        assert!(error("http://acme.example.com").contains("--insecure-http"));
        assert!(error("http://localhost.example.com").contains("plain http"));
        assert!(error("http://128.0.0.1").contains("plain http"));
        assert!(Address::parse("http://acme.example.com", true).is_ok());
    }

    #[test]
    fn names_below_localhost_are_this_machine() {
        let address = Address::parse("http://acme.local.localhost:8787", false).unwrap();
        let host = Some("acme.local.localhost:8787".to_owned());
        assert_eq!(address.target(), ("http://127.0.0.1:8787".to_owned(), host));
    }

    #[test]
    fn other_urls_are_refused() {
        assert!(error("acme").contains("no scheme"));
        assert!(error("ftp://acme").contains("scheme"));
        assert!(error("https://acme/api/").contains("path"));
        assert!(error("https://me:pass@acme").contains("password"));
        assert!(error("https://a b").contains("malformed"));
    }
}
