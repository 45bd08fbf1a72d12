//! The client's address, and whether its connection is encrypted (contract 11.2). Forwarding
//! headers are used only if the peer is a proxy that the deployment names in `TRUSTED_PROXIES`.

use std::net::{IpAddr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};

/// Converts a network of IPv4-mapped IPv6 addresses to its IPv4 network. Other networks do not
/// change.
pub(crate) fn canonical(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    mapped
        .and_then(|(address, length)| Ipv4Net::new(address, length).ok())
        .map_or(network, IpNet::V4)
}

/// The proxies whose forwarding headers are used: the var `TRUSTED_PROXIES`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Reads addresses and networks, separated by commas or blanks. An empty text trusts no proxy.
    ///
    /// # Errors
    /// The first entry that is neither an address nor a network.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text.split([',', ' ', '\t', '\n']).filter(|entry| !entry.is_empty());
        let network = |entry: &str| {
            let of_address = || entry.parse::<IpAddr>().map(IpNet::from);
            entry
                .parse::<IpNet>()
                .or_else(|_| of_address())
                .map(canonical)
                .map_err(|_| entry.to_owned())
        };
        entries.map(network).collect::<Result<_, _>>().map(Self)
    }

    /// Whether this is the address of a trusted proxy.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address.to_canonical()))
    }
}

/// Reads an address from a forwarding header: IPv4 or IPv6, with or without a port. IPv6 may be in
/// brackets. An IPv4 address in IPv6 form is returned as IPv4.
pub fn parse(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let in_brackets = || {
        text.strip_prefix('[')?
            .strip_suffix(']')?
            .parse::<std::net::Ipv6Addr>()
            .ok()
            .map(IpAddr::V6)
    };
    let with_port = || text.parse::<SocketAddr>().ok().map(|socket| socket.ip());
    let address = text.parse().ok().or_else(in_brackets).or_else(with_port)?;
    Some(address.to_canonical())
}

/// Returns the client's address, or `None` if it is unknown. Usually the peer's address is the
/// client's address. But if the peer is a trusted proxy, the client's address is the rightmost
/// entry of `X-Forwarded-For` that is not a trusted proxy.
///
/// Each proxy appends the address that called it. So the client can forge entries further left.
pub fn client(
    peer: Option<IpAddr>,
    forwarded_for: Option<&str>,
    trusted: &TrustedProxies,
) -> Option<IpAddr> {
    let peer = peer?.to_canonical();
    let forwarded_for =
        forwarded_for.filter(|list| !list.trim().is_empty() && trusted.contains(peer));
    let Some(forwarded_for) = forwarded_for else { return Some(peer) };
    let mut leftmost = peer;
    for entry in forwarded_for.rsplit(',') {
        let address = parse(entry)?;
        if !trusted.contains(address) {
            return Some(address);
        }
        leftmost = address;
    }
    Some(leftmost)
}

/// Whether a trusted proxy says that the client's connection is encrypted. In a chain of proxies,
/// all of them must say so.
pub fn is_forwarded_https(
    peer: Option<IpAddr>,
    forwarded_proto: Option<&str>,
    trusted: &TrustedProxies,
) -> bool {
    let is_https =
        |list: &str| list.split(',').all(|scheme| scheme.trim().eq_ignore_ascii_case("https"));
    peer.is_some_and(|peer| trusted.contains(peer)) && forwarded_proto.is_some_and(is_https)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_read_in_all_usual_forms() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("  192.0.2.1\t", "192.0.2.1"),
            ("192.0.2.1:443", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("[::ffff:192.0.2.1]:443", "192.0.2.1"),
            ("2001:DB8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
        ] {
            assert_eq!(parse(text), Some(ip(expected)), "{text:?}");
        }
        let long = "1".repeat(5_000);
        for junk in [
            "",
            " ",
            "-",
            "unknown",
            "localhost",
            "010.1.0.1",
            "10.1.0.1/16",
            "10.1.0.1:",
            "10.1.0.1:99999",
            "10.1.0",
            "167837697",
            "0x0a010001",
            "[10.1.0.1]",
            "[2001:db8::1",
            "2001:db8::1]",
            "2001:db8::1%eth0",
            "_hidden",
            "\"192.0.2.1\"",
            "for=192.0.2.1",
            "192.0.2.1 192.0.2.2",
            &long,
        ] {
            assert_eq!(parse(junk), None, "{junk:?}");
        }
    }

    #[test]
    fn trusted_proxies_are_addresses_or_networks() {
        let trusted = TrustedProxies::parse(
            " 127.0.0.1, 10.0.0.0/8 ::1,2001:db8::/32,,::ffff:192.0.2.0/120 ",
        )
        .unwrap();
        for yes in
            ["127.0.0.1", "10.255.0.1", "::1", "2001:db8:ffff::1", "::ffff:10.0.0.1", "192.0.2.9"]
        {
            assert!(trusted.contains(ip(yes)), "{yes}");
        }
        for no in ["127.0.0.2", "11.0.0.1", "::2", "2001:db9::1", "192.0.3.1"] {
            assert!(!trusted.contains(ip(no)), "{no}");
        }
        assert_eq!(TrustedProxies::parse("  "), Ok(TrustedProxies::default()));
        assert!(!TrustedProxies::default().contains(ip("127.0.0.1")));
        assert_eq!(TrustedProxies::parse("10.0.0.0/8, localhost"), Err("localhost".to_owned()));
        assert_eq!(TrustedProxies::parse("10.0.0.0/33"), Err("10.0.0.0/33".to_owned()));
    }

    #[test]
    fn x_forwarded_for_counts_from_a_trusted_peer_only() {
        let trusted = TrustedProxies::parse("127.0.0.1, 10.0.0.0/8").unwrap();
        let none = TrustedProxies::default();
        let check = |peer: Option<&str>,
                     list: Option<&str>,
                     trusted: &TrustedProxies,
                     expected: Option<&str>| {
            let client = client(peer.map(ip), list, trusted);
            assert_eq!(client, expected.map(ip), "{peer:?} {list:?}");
        };
        let local = Some("127.0.0.1");
        // If the peer is unknown, the header is ignored.
        check(None, Some("192.0.2.1"), &trusted, None);
        check(None, None, &trusted, None);
        // The header of an untrusted peer is ignored.
        check(local, Some("192.0.2.1"), &none, local);
        check(Some("203.0.113.5"), Some("192.0.2.1"), &trusted, Some("203.0.113.5"));
        check(Some("::ffff:203.0.113.5"), None, &trusted, Some("203.0.113.5"));
        // If the header is missing or empty, a trusted peer is the client.
        check(local, None, &trusted, local);
        check(local, Some("  "), &trusted, local);
        // The rightmost entry that is not trusted counts. Entries further left are ignored.
        check(local, Some("192.0.2.1"), &trusted, Some("192.0.2.1"));
        check(local, Some("10.9.9.9, 192.0.2.1"), &trusted, Some("192.0.2.1"));
        check(local, Some("junk, 192.0.2.1:5,10.9.9.9 , 127.0.0.1"), &trusted, Some("192.0.2.1"));
        check(local, Some("192.0.2.1, ::ffff:10.1.1.1"), &trusted, Some("192.0.2.1"));
        // If all entries are trusted, the leftmost entry is the client.
        check(local, Some("10.1.1.1, 10.2.2.2"), &trusted, Some("10.1.1.1"));
        // An invalid entry to the right of the client's entry makes the address unknown.
        for junk in ["junk", "192.0.2.1,", "192.0.2.1, unknown, 10.1.1.1", ","] {
            check(local, Some(junk), &trusted, None);
        }
        let many = format!("192.0.2.1{}", ", 10.0.0.1".repeat(10_000));
        check(local, Some(&many), &trusted, Some("192.0.2.1"));
    }

    #[test]
    fn x_forwarded_proto_counts_from_a_trusted_peer_only() {
        let trusted = TrustedProxies::parse("127.0.0.1").unwrap();
        let local = Some(ip("127.0.0.1"));
        assert!(is_forwarded_https(local, Some("https"), &trusted));
        assert!(is_forwarded_https(local, Some("HTTPS, https"), &trusted));
        for scheme in
            [None, Some(""), Some("http"), Some("https,http"), Some("http, https"), Some("httpsx")]
        {
            assert!(!is_forwarded_https(local, scheme, &trusted), "{scheme:?}");
        }
        for peer in [None, Some(ip("127.0.0.2"))] {
            assert!(!is_forwarded_https(peer, Some("https"), &trusted), "{peer:?}");
        }
    }
}
