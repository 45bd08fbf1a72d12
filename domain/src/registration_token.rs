//! Registration tokens, with which agents make servers of their own hosts (contract 6; agent-protocol 1).

use crate::api_token;
use crate::error::Error;
use crate::fields::Fields;
use crate::server;
use crate::time::Timestamp;

/// The most registrations that a token may allow.
const MAX_USES: i64 = 1_000_000;
/// The longest name of a platform, in characters.
const MAX_PLATFORM: usize = 64;

/// A request for a token, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRegistrationToken {
    /// What people call it.
    pub name: String,
    /// The groups that its servers come into.
    pub groups: Vec<i64>,
    /// When it ends; `None` means never.
    pub expires_at: Option<Timestamp>,
    /// How many servers can be registered with it; `None` means any number.
    pub uses: Option<i64>,
}

impl NewRegistrationToken {
    /// Reads a request.
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read(mut fields: Fields, now: Timestamp) -> Result<Self, Error> {
        let name = fields.text("name", 1..=128);
        let groups = fields.optional_groups().unwrap_or_default();
        let expires_at = api_token::expires_at(&mut fields, now).flatten();
        let uses = fields.optional_integer("uses", 1..=MAX_USES);
        let name = fields.finish_with(name)?;
        Ok(Self { name, groups, expires_at, uses })
    }
}

/// A request of an agent's for a server, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The name that it would like: its host's.
    pub name: String,
    /// The family of its host's system.
    pub platform: Option<String>,
}

impl Registration {
    /// Reads a request. A host's name means the same in upper case; here names have none.
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        let platform = fields.optional_text("platform", 0..=MAX_PLATFORM).filter(|platform| !platform.is_empty());
        fields.lower_case("name");
        let name = server::read_name(&mut fields);
        let name = fields.finish_with(name)?;
        Ok(Self { name, platform })
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
    fn tokens() {
        let now = Timestamp::parse("2026-11-21T00:00:00Z").unwrap();
        let read = |body: Value| NewRegistrationToken::read(fields(&body), now);
        let least = NewRegistrationToken { name: "web".into(), groups: vec![], expires_at: None, uses: None };
        assert_eq!(read(json!({"name": "web"})).unwrap(), least);
        let all = json!({"name": "web", "groups": [2, 1], "expires_at": "2026-11-21T00:00:01Z", "uses": 3});
        let token = read(all).unwrap();
        assert_eq!((token.groups, token.uses, token.expires_at.is_some()), (vec![1, 2], Some(3), true));
        assert_eq!(wrong(read(json!({}))), ["name"]);
        let bad = json!({"name": "", "groups": [[]], "expires_at": "2026-11-21T00:00:00Z", "uses": 0});
        assert_eq!(wrong(read(bad)), ["expires_at", "groups", "name", "uses"]);
        for uses in [json!(-1), json!(1.5), json!("1"), json!(1_000_001)] {
            assert_eq!(wrong(read(json!({"name": "web", "uses": uses}))), ["uses"]);
        }
    }

    #[test]
    fn registrations() {
        let read = |body: Value| Registration::read(fields(&body));
        let full = read(json!({"name": "Web-1.Example", "platform": "debian", "tags": {"a": 1}})).unwrap();
        assert_eq!(full, Registration { name: "web-1.example".into(), platform: Some("debian".into()) });
        assert_eq!(read(json!({"name": "web"})).unwrap().platform, None);
        for bad in [json!({}), json!({"name": "a b"}), json!({"name": ""}), json!({"name": 7}), json!({"name": "Ä"})] {
            assert_eq!(wrong(read(bad)), ["name"]);
        }
        assert_eq!(wrong(read(json!({"name": "web", "platform": 7}))), ["platform"]);
    }
}
