//! Compares the networks of an access control list with arithmetic on 128 bits. The first line of
//! the input is the network, the second an address.

use std::net::IpAddr;

use farhand_domain::access::acl::Acl;
use serde_json::json;

pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (network, address) = text.split_once('\n').unwrap_or((&text, ""));
    let acl = Acl::read(&json!({"networks": [network]}));
    let expected = read(network);
    assert_eq!(acl.is_ok(), expected.is_some(), "{network:?}");
    let (Ok(acl), Some((bits, length))) = (acl, expected) else { return };
    let stored = serde_json::to_string(&acl).expect("a list is JSON");
    assert_eq!(serde_json::from_str::<Acl>(&stored).expect("what is stored can be read"), acl);
    let is_inside = address.parse().is_ok_and(|address: IpAddr| {
        let (address, is_ipv4) = (as_bits(address), is_mapped(as_bits(address)));
        // An IPv6 network that is larger than the range of all IPv4 addresses contains no IPv4
        // address.
        let is_comparable = !is_ipv4 || length >= 96;
        is_comparable && (length == 0 || address >> (128 - length) == bits >> (128 - length))
    });
    assert_eq!(acl.allows_address(address), is_inside, "{network:?} {address:?}");
}

/// The bits of an address. An IPv4 address is mapped to IPv6.
fn as_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn is_mapped(bits: u128) -> bool {
    bits >> 32 == 0xffff
}

/// Reads a network: its bits and its prefix length, both for IPv6.
fn read(network: &str) -> Option<(u128, u32)> {
    let (address, length) = network.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = length.trim_start_matches('0');
    let length: u32 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let length =
        if address.is_ipv4() { (length <= 32).then(|| length + 96) } else { (length <= 128).then_some(length) }?;
    Some((as_bits(address), length))
}
