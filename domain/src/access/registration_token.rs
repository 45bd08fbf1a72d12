//! Registration tokens: with one, an agent registers its host as a server (contract 6.4;
//! agent-protocol 1.2).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;

use crate::access::acl;
use crate::access::api_token;
use crate::error::Error;
use crate::fleet::labels::{self, Labels};
use crate::fleet::server;
use crate::http::address::canonical;
use crate::http::fields::Fields;
use crate::time::Timestamp;

/// Maximum value of `uses`. Null means any number.
const MAX_USES: i64 = 100_000;
/// The default of `uses`.
const DEFAULT_USES: i64 = 10;
/// The default of `expires_at` is this long after the creation.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum length of `name_pattern`, in characters. Server names have the same limit.
const MAX_PATTERN: usize = 64;
/// Maximum number of wildcards in a pattern.
const MAX_WILDCARDS: usize = 8;
/// Maximum number of networks of a token.
const MAX_NETWORKS: usize = 100;
/// Seconds for which a pending server cannot get the name of a server that was deleted or renamed.
pub const NAME_RESERVATION: i64 = 30 * 24 * 60 * 60;
/// Seconds after which a pending server that is not approved is deleted.
pub const APPROVAL_TIMEOUT: i64 = 24 * 60 * 60;
/// Maximum length of `platform`, in characters.
const MAX_PLATFORM: usize = 64;

/// A valid request to create a registration token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRegistrationToken {
    /// The name, for people.
    pub name: String,
    /// The ids of the groups that its servers are added to.
    pub groups: Vec<i64>,
    /// When it expires; `None`: never.
    pub expires_at: Option<Timestamp>,
    /// Whether `expires_at` was not sent, so that it has its default.
    pub has_default_expiry: bool,
    /// How many servers can be registered with it; `None`: any number.
    pub uses: Option<i64>,
    /// The pattern that a requested server name must match. `*` stands for any characters.
    pub name_pattern: Option<String>,
    /// The networks from which agents may register, without host bits.
    pub networks: Option<Vec<IpNet>>,
    /// Whether staff must approve each server.
    pub approval: bool,
    /// The labels that each server gets.
    pub labels: Labels,
    /// The keys of labels that an agent may set at its registration. `labels` has none of these
    /// keys.
    pub label_keys: BTreeSet<String>,
}

/// Reads `name_pattern`: the characters of names, and `*`.
fn read_pattern(fields: &mut Fields) -> Option<String> {
    let pattern = fields.optional_text("name_pattern", 1..=MAX_PATTERN)?;
    let allowed = |b: u8| {
        b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.' | b'*')
    };
    if !pattern.bytes().all(allowed) {
        let message = "Use lower-case letters, digits, hyphens, underscores and dots, and * for any characters.";
        fields.reject("name_pattern", message);
    } else if pattern.bytes().filter(|b| *b == b'*').count() > MAX_WILDCARDS {
        fields.reject(
            "name_pattern",
            format!("Ensure there are no more than {MAX_WILDCARDS} stars."),
        );
    } else {
        return Some(pattern);
    }
    None
}

/// Reads `networks`: a list of CIDRs.
fn read_networks(fields: &mut Fields) -> Option<Vec<IpNet>> {
    fields.value("networks")?;
    let read = |value: &Value| {
        value.as_str().and_then(acl::network).map(|network| canonical(network).trunc())
    };
    fields.optional_list(
        "networks",
        MAX_NETWORKS,
        "Enter networks such as 10.0.0.0/8 or 2001:db8::/32.",
        read,
    )
}

/// All networks that contain an address, in the stored form of networks in D1. Returns an empty
/// list if the text is not an address.
pub fn networks_of(address: &str) -> Vec<String> {
    let Ok(address) = address.parse::<IpAddr>() else { return Vec::new() };
    let address = address.to_canonical();
    let longest = if address.is_ipv4() { 32 } else { 128 };
    (0..=longest)
        .filter_map(|length| Some(IpNet::new(address, length).ok()?.trunc().to_string()))
        .collect()
}

/// Reads a fingerprint that a person typed: in upper or lower case, with or without the hyphen.
///
/// # Errors
/// All invalid fields together.
pub fn read_fingerprint(mut fields: Fields) -> Result<String, Error> {
    let text = fields
        .text("fingerprint", 1..=32)
        .map(|text| text.trim().replace('-', "").to_ascii_uppercase());
    let text = text.filter(|text| {
        let is_valid =
            text.len() == 8 && text.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7'));
        if !is_valid {
            fields.reject(
                "fingerprint",
                "Enter the fingerprint that the agent shows, such as ABCD-2345.",
            );
        }
        is_valid
    });
    let text = fields.finish_with(text)?;
    Ok(format!("{}-{}", &text[..4], &text[4..]))
}

impl NewRegistrationToken {
    /// Reads a `POST`.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields, now: Timestamp) -> Result<Self, Error> {
        let name = fields.text("name", 1..=128);
        let groups = fields.optional_groups().unwrap_or_default();
        let expires_at = api_token::expires_at(&mut fields, now);
        let uses = match fields.any("uses") {
            None => Some(DEFAULT_USES),
            Some(_) => fields.optional_integer("uses", 1..=MAX_USES),
        };
        let name_pattern = read_pattern(&mut fields);
        let networks = read_networks(&mut fields);
        let approval = fields.optional_boolean("approval").unwrap_or(false);
        let labels = labels::read(&mut fields);
        let label_keys = labels::read_keys(&mut fields, labels.as_ref()).unwrap_or_default();
        let labels = labels.unwrap_or_default();
        let name = fields.finish_with(name)?;
        Ok(Self {
            name,
            groups,
            expires_at: expires_at.unwrap_or(Some(now.plus(DEFAULT_LIFETIME))),
            has_default_expiry: expires_at.is_none(),
            uses,
            name_pattern,
            networks,
            approval,
            labels,
            label_keys,
        })
    }

    /// Limits the expiry to `limit`, at which the caller's own API token expires. Only the default
    /// expiry is shortened.
    ///
    /// # Errors
    /// The token was requested with a later expiry, or with none.
    pub fn limit_expiry(&mut self, limit: Timestamp) -> Result<(), Error> {
        let outlives = self.expires_at.is_none_or(|end| end > limit);
        if outlives && !self.has_default_expiry {
            return Err(api_token::outlives("expires_at", limit));
        }
        if outlives {
            self.expires_at = Some(limit);
        }
        Ok(())
    }
}

/// A valid request of an agent to register its host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The requested name of the server: the host's name.
    pub name: String,
    /// The family of the host's operating system.
    pub platform: Option<String>,
    /// The labels that the agent asks for.
    pub labels: Labels,
}

impl Registration {
    /// Reads a request. The name is put in lower case, because host names have no case.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        let platform = fields
            .optional_text("platform", 0..=MAX_PLATFORM)
            .filter(|platform| !platform.is_empty());
        fields.lower_case("name");
        let name = server::read_name(&mut fields);
        let labels = labels::read(&mut fields).unwrap_or_default();
        // Agents also send other facts about their hosts, which are not used here.
        fields.finish_lenient()?;
        let name =
            name.ok_or_else(|| Error::internal("a name is missing and no error was noted"))?;
        Ok(Self { name, platform, labels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fields(body: &Value) -> Fields {
        Fields::from_json(body.to_string().as_bytes()).unwrap()
    }

    #[track_caller]
    fn wrong<T: std::fmt::Debug>(result: Result<T, Error>) -> Vec<String> {
        result.unwrap_err().fields.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn a_token_has_defaults_and_bounds() {
        let now = Timestamp::parse("2026-11-21T00:00:00Z").unwrap();
        let read = |body: Value| NewRegistrationToken::read(fields(&body), now);
        let default = NewRegistrationToken {
            name: "web".into(),
            groups: vec![],
            expires_at: Some(now.plus_seconds(24 * 3600)),
            has_default_expiry: true,
            uses: Some(10),
            name_pattern: None,
            networks: None,
            approval: false,
            labels: Labels::default(),
            label_keys: BTreeSet::new(),
        };
        assert_eq!(read(json!({"name": "web"})).unwrap(), default);
        let endless = NewRegistrationToken {
            expires_at: None,
            has_default_expiry: false,
            uses: None,
            ..default
        };
        assert_eq!(
            read(json!({"name": "web", "expires_at": null, "uses": null})).unwrap(),
            endless
        );
        let all = json!({"name": "web", "groups": [2, 1], "expires_at": "2026-11-21T00:00:01Z", "uses": 3});
        let token = read(all).unwrap();
        assert_eq!(
            (token.groups, token.uses, token.expires_at.is_some()),
            (vec![1, 2], Some(3), true)
        );
        assert_eq!(wrong(read(json!({}))), ["name"]);
        assert_eq!(wrong(read(json!({"name": "web", "allowed_groups": [1]}))), ["allowed_groups"]);
        let bad =
            json!({"name": "", "groups": [[]], "expires_at": "2026-11-21T00:00:00Z", "uses": 0});
        assert_eq!(wrong(read(bad)), ["expires_at", "groups", "name", "uses"]);
        let labelled = json!({"name": "web", "labels": {"env": "prod"}, "label_keys": ["b", "a"]});
        let token = read(labelled).unwrap();
        assert_eq!(json!([token.labels, token.label_keys]), json!([{"env": "prod"}, ["a", "b"]]));
        let clash = json!({"name": "web", "labels": {"env": "prod"}, "label_keys": ["env"]});
        assert_eq!(wrong(read(clash)), ["label_keys"]);
        for uses in [json!(-1), json!(1.5), json!("1"), json!(100_001)] {
            assert_eq!(wrong(read(json!({"name": "web", "uses": uses}))), ["uses"]);
        }
    }

    #[test]
    fn a_token_does_not_outlive_the_token_that_creates_it() {
        let now = Timestamp::parse("2026-11-21T00:00:00Z").unwrap();
        let (limit, later) = (now.plus_seconds(3_600), now.plus_seconds(3_601));
        let limited = |mut body: Value, limit| {
            body["name"] = json!("web");
            let mut new = NewRegistrationToken::read(fields(&body), now)?;
            new.limit_expiry(limit).map(|()| new.expires_at)
        };
        for body in [json!({"expires_at": null}), json!({"expires_at": later})] {
            assert_eq!(wrong(limited(body, limit)), ["expires_at"]);
        }
        let sent = json!({"expires_at": limit});
        assert_eq!(limited(sent, limit).unwrap(), Some(limit));
        // The default is shortened, and never extended.
        assert_eq!(limited(json!({}), limit).unwrap(), Some(limit));
        let default = Some(now.plus(DEFAULT_LIFETIME));
        assert_eq!(limited(json!({}), now.plus_seconds(30 * 24 * 3_600)).unwrap(), default);
    }

    #[test]
    fn a_token_limits_names_and_networks() {
        let now = Timestamp::parse("2026-11-21T00:00:00Z").unwrap();
        let read = |mut body: Value| {
            body["name"] = json!("web");
            NewRegistrationToken::read(fields(&body), now)
        };
        for good in ["web-*", "*", "*.example.com", "web-1", "a*b*c"] {
            assert_eq!(
                read(json!({"name_pattern": good})).unwrap().name_pattern.as_deref(),
                Some(good)
            );
        }
        for bad in [
            json!(""),
            json!("Web-*"),
            json!("web-?"),
            json!("[a]"),
            json!("a b"),
            json!(7),
            json!("*********"),
        ] {
            assert_eq!(wrong(read(json!({"name_pattern": bad}))), ["name_pattern"]);
        }
        let all = json!({"networks": ["10.1.2.3/8", "2001:db8::1/32", "::ffff:192.0.2.0/120"], "approval": true});
        let token = read(all).unwrap();
        let shown: Vec<String> = token.networks.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(
            (shown.join(" "), token.approval),
            ("10.0.0.0/8 2001:db8::/32 192.0.2.0/24".into(), true)
        );
        assert_eq!(read(json!({"networks": null, "name_pattern": null})).unwrap().networks, None);
        for bad in [
            json!("10.0.0.0/8"),
            json!(["10.0.0.0"]),
            json!(["10.0.0.0/33"]),
            json!([1]),
            json!({}),
        ] {
            assert_eq!(wrong(read(json!({"networks": bad}))), ["networks"]);
        }
        assert_eq!(wrong(read(json!({"approval": "yes"}))), ["approval"]);
    }

    #[test]
    fn an_address_is_in_all_networks_around_it() {
        for (address, inside, outside) in [
            (
                "10.1.2.3",
                &["0.0.0.0/0", "10.0.0.0/8", "10.1.2.3/32"][..],
                &["10.1.2.0/32", "::/0"][..],
            ),
            ("::ffff:10.1.2.3", &["10.0.0.0/8"], &["::/0"]),
            ("2001:db8::1", &["::/0", "2001:db8::/32", "2001:db8::1/128"], &["2001:db9::/32"]),
        ] {
            let networks = networks_of(address);
            assert!(
                inside.iter().all(|network| networks.iter().any(|of| of == network)),
                "{networks:?}"
            );
            assert!(
                outside.iter().all(|network| networks.iter().all(|of| of != network)),
                "{networks:?}"
            );
        }
        assert!(networks_of("").is_empty() && networks_of("unknown").is_empty());
    }

    #[test]
    fn a_fingerprint_is_read_in_any_case() {
        let read = |body: Value| read_fingerprint(fields(&body));
        for good in ["ABCD-2345", "abcd2345", " abcd-2345 "] {
            assert_eq!(read(json!({"fingerprint": good})).unwrap(), "ABCD-2345");
        }
        for bad in [
            json!({}),
            json!({"fingerprint": "ABCD-234"}),
            json!({"fingerprint": "ABCD-2340"}),
            json!({"fingerprint": 7}),
        ] {
            assert_eq!(wrong(read(bad)), ["fingerprint"]);
        }
    }

    #[test]
    fn a_registration_has_a_name_and_a_platform() {
        let read = |body: Value| Registration::read(fields(&body));
        let full =
            read(json!({"name": "Web-1.Example", "platform": "debian", "tags": {"a": 1}})).unwrap();
        assert_eq!(
            full,
            Registration {
                name: "web-1.example".into(),
                platform: Some("debian".into()),
                labels: Labels::default()
            }
        );
        let labelled = read(json!({"name": "web", "labels": {"env": "prod"}})).unwrap().labels;
        assert_eq!(json!(labelled), json!({"env": "prod"}));
        assert_eq!(wrong(read(json!({"name": "web", "labels": {"Env": "prod"}}))), ["labels"]);
        assert_eq!(read(json!({"name": "web"})).unwrap().platform, None);
        for bad in [
            json!({}),
            json!({"name": "a b"}),
            json!({"name": ""}),
            json!({"name": 7}),
            json!({"name": "Ä"}),
        ] {
            assert_eq!(wrong(read(bad)), ["name"]);
        }
        assert_eq!(wrong(read(json!({"name": "web", "platform": 7}))), ["platform"]);
    }
}
