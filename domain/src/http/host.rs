//! The workspace of a request, by its Host header (contract 1.1).

use std::net::IpAddr;

use crate::workspace;

/// The host names of this region cell: the vars `REGION`, `SERVICE_DOMAIN` and `DEFAULT_WORKSPACE`.
#[derive(Clone, Copy, Debug)]
pub struct CellNames<'a> {
    /// The name of this region cell.
    pub region: &'a str,
    /// The domain of the service, without a port.
    pub service_domain: &'a str,
    /// The slug of the workspace that is served at the bare domain, if one is set.
    pub default_workspace: Option<&'a str>,
}

/// The meaning of a Host header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Host {
    /// The host name of a workspace with this slug. The workspace may not exist.
    Workspace(String),
    /// The bare service domain, `localhost` or an IP address. It serves the operator API and the
    /// default workspace, if one is set.
    Bare(Option<String>),
    /// Not a host name of this cell: another region, or a name with more or fewer labels.
    Elsewhere,
}

impl Host {
    /// Reads a Host header. Case and port are ignored.
    pub fn parse(header: &str, names: CellNames<'_>) -> Self {
        let host = without_port(header).to_ascii_lowercase();
        let service_domain = names.service_domain.to_ascii_lowercase();
        let literal = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(&host);
        if host == service_domain || host == "localhost" || literal.parse::<IpAddr>().is_ok() {
            return Self::Bare(
                names.default_workspace.filter(|slug| !slug.is_empty()).map(str::to_owned),
            );
        }
        let workspace = host
            .strip_suffix(&service_domain)
            .and_then(|rest| rest.strip_suffix('.'))
            .and_then(|rest| rest.split_once('.'))
            .filter(|(_, region)| region.eq_ignore_ascii_case(names.region))
            .map(|(slug, _)| slug)
            .filter(|slug| workspace::is_slug(slug));
        workspace.map_or(Self::Elsewhere, |slug| Self::Workspace(slug.to_owned()))
    }

    /// The slug of the workspace that this host serves.
    pub fn workspace(&self) -> Option<&str> {
        match self {
            Self::Workspace(slug) => Some(slug),
            Self::Bare(default) => default.as_deref(),
            Self::Elsewhere => None,
        }
    }
}

/// Whether a Host header names the caller's own machine: `localhost`, a subdomain of it, or a
/// loopback address. Requests to it never leave that machine.
pub fn is_local(header: &str) -> bool {
    let host = without_port(header).to_ascii_lowercase();
    let literal = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(&host);
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    host == "localhost" || host.ends_with(".localhost") || literal.parse().is_ok_and(is_loopback)
}

/// A Host header without its port. An IPv6 address keeps its brackets.
fn without_port(header: &str) -> &str {
    match header.rsplit_once(':') {
        Some((host, port))
            if port.bytes().all(|b| b.is_ascii_digit())
                && (!host.contains(':') || host.ends_with(']')) =>
        {
            host
        }
        _ => header,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: CellNames<'_> = CellNames {
        region: "eu1",
        service_domain: "farhand.example",
        default_workspace: Some("demo"),
    };

    #[track_caller]
    fn check(header: &str, expected: Host) {
        assert_eq!(Host::parse(header, NAMES), expected, "{header}");
    }

    #[test]
    fn a_slug_below_the_region_names_a_workspace() {
        check("acme.eu1.farhand.example", Host::Workspace("acme".into()));
        check("ACME.EU1.Farhand.Example:8443", Host::Workspace("acme".into()));
    }

    #[test]
    fn bare_names_serve_the_default_workspace() {
        for bare in [
            "farhand.example",
            "FARHAND.example:80",
            "localhost:8787",
            "127.0.0.1:8787",
            "127.0.0.1",
            "[::1]:8787",
            "[::1]",
        ] {
            check(bare, Host::Bare(Some("demo".into())));
        }
        let none = CellNames { default_workspace: Some(""), ..NAMES };
        assert_eq!(Host::parse("localhost", none), Host::Bare(None));
    }

    #[test]
    fn local_names_are_localhost_and_loopback() {
        for local in [
            "localhost",
            "LOCALHOST:8787",
            "demo.local.localhost:8787",
            "127.0.0.1",
            "127.9.9.9:80",
            "[::1]:8787",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "",
            "farhand.example",
            "localhost.example",
            "notlocalhost",
            "10.0.0.1",
            "0.0.0.0",
            "[::]",
            "[2001:db8::1]",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }

    #[test]
    fn other_names_are_elsewhere() {
        for other in [
            "",
            "acme.us1.farhand.example",
            "acme.farhand.example",
            "eu1.farhand.example",
            ".eu1.farhand.example",
            "a.b.eu1.farhand.example",
            "acme.eu1.farhand.example.evil.example",
            "acme.eu1.evilfarhand.example",
            "1acme.eu1.farhand.example",
            "acme.eu1.farhand.example.",
            "acme.eu1.farhand.example:80:80",
        ] {
            check(other, Host::Elsewhere);
        }
    }
}
