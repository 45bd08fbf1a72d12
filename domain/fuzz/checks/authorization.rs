//! The Authorization header: reading a header and writing its value again gives the same header.

use farhand_domain::http::authorization::{parse_agent, is_agent, parse_operator, parse_user};
use farhand_domain::error::ErrorKind;

pub fn check(data: &[u8]) {
    let header = String::from_utf8_lossy(data);
    let (user, agent, operator) = (parse_user(Some(&header)), parse_agent(Some(&header)), parse_operator(Some(&header)));
    let read = [user.is_ok(), agent.is_ok(), operator.is_ok()];
    assert!(read.iter().filter(|is_ok| **is_ok).count() <= 1, "one form at most: {header:?}");
    assert!(header.len() <= 512 || read == [false; 3], "{} bytes", header.len());
    for error in [user.as_ref().err(), operator.as_ref().err()].into_iter().flatten() {
        assert_eq!(error.kind, ErrorKind::Forbidden);
    }
    if let Err(error) = &agent {
        // Agents' paths do not exist for users.
        assert_eq!(error.kind, if user.is_ok() { ErrorKind::NotFound } else { ErrorKind::Forbidden });
    }
    if let Ok(token) = user {
        assert_eq!(format!("token=\"{}\"", token.expose()), header);
        assert!(!token.expose().contains(|c: char| c == '"' || c.is_control()));
        assert_eq!(format!("{token:?}"), "Secret(…)");
    }
    if let Ok(credential) = agent {
        assert!(is_agent(Some(&header)));
        let written = format!("id=\"{}\", key=\"{}\"", credential.server, credential.key.expose());
        assert_eq!(written.get(..42).map(str::to_lowercase), header.get(..42).map(str::to_lowercase));
        assert_eq!(written.get(42..), header.get(42..));
    }
    if let Ok(token) = operator {
        assert_eq!(format!("Bearer {}", token.expose()), header);
    }
}
