//! API tokens: what a request for one must look like (spec.md, API token; contract 4).

use crate::error::Error;
use crate::fields::{Fields, REQUIRED};
use crate::time::Timestamp;

/// A request for a token, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewToken {
    /// What people call it.
    pub name: String,
    /// When it ends; `None` means never.
    pub expires_at: Option<Timestamp>,
}

impl NewToken {
    /// Reads a request for a token. `expires_at` must be there, null or in the future.
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read(mut fields: Fields, now: Timestamp) -> Result<Self, Error> {
        let name = fields.text("name", 1..=128);
        if !fields.has("expires_at") {
            fields.reject("expires_at", REQUIRED);
        }
        let expires_at = fields.optional_text("expires_at", 1..=64).and_then(|text| match Timestamp::parse(&text) {
            Ok(moment) if moment > now => Some(moment),
            Ok(_) => {
                fields.reject("expires_at", "Must be in the future.");
                None
            }
            Err(problem) => {
                fields.reject("expires_at", problem.to_string());
                None
            }
        });
        // A token that was asked to be limited and is not would be worse than none.
        if fields.value("acl").is_some() {
            fields.reject("acl", "Not supported yet.");
        }
        fields.finish()?;
        let name = name.ok_or_else(|| Error::internal("a field is missing and nothing was noted"))?;
        Ok(Self { name, expires_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(body: &Value) -> Result<NewToken, Error> {
        let now = Timestamp::parse("2026-11-21T00:00:00Z").unwrap();
        NewToken::read(Fields::from_json(body.to_string().as_bytes()).unwrap(), now)
    }

    #[test]
    fn null_means_never() {
        let token = read(&json!({"name": "ci", "expires_at": null})).unwrap();
        assert_eq!((token.name.as_str(), token.expires_at), ("ci", None));
        assert!(
            read(&json!({"name": "ci", "expires_at": "2026-11-21T00:00:01Z", "acl": null}))
                .unwrap()
                .expires_at
                .is_some()
        );
    }

    #[test]
    fn bad_fields() {
        let check = |body: Value, wrong: &[&str]| {
            let error = read(&body).expect_err(&body.to_string());
            assert_eq!(error.fields.keys().map(AsRef::as_ref).collect::<Vec<_>>(), wrong, "{body}");
        };
        check(json!({}), &["expires_at", "name"]);
        check(json!({"name": "ci"}), &["expires_at"]);
        check(json!({"name": "x".repeat(129), "expires_at": null}), &["name"]);
        for bad in [
            json!("2026-11-21T00:00:00Z"),
            json!("2030-01-01T00:00:00"),
            json!("soon"),
            json!(""),
            json!(1_900_000_000),
        ] {
            check(json!({"name": "ci", "expires_at": bad}), &["expires_at"]);
        }
        check(json!({"name": "ci", "expires_at": null, "acl": {"read_only": true}}), &["acl"]);
    }
}
