//! CORS: only web pages of the origin in the var `WEB_CLIENT_URL` may call the API (contract 3.2).

/// The origin of a URL: scheme, host and port, as a browser sends it in the Origin header.
pub fn origin(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next().filter(|host| !host.is_empty())?;
    Some(&url[..scheme.len() + "://".len() + host.len()])
}

/// Whether a page may call the API. `sent` is the Origin header of its request.
pub fn allows(web_client_url: &str, sent: &str) -> bool {
    origin(web_client_url).is_some_and(|origin| origin.eq_ignore_ascii_case(sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_origin_of_the_web_client_is_allowed() {
        let web = "https://console.example.com:8443/app/";
        assert_eq!(origin(web), Some("https://console.example.com:8443"));
        assert!(allows(web, "https://console.example.com:8443"));
        for other in [
            "https://console.example.com",
            "http://console.example.com:8443",
            "null",
            "",
            "https://console.example.com:8443.evil.example",
        ] {
            assert!(!allows(web, other), "{other}");
        }
        assert!(!allows("", ""));
    }
}
