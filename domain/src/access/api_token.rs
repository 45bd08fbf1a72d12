//! API tokens: the fields of requests that create, replace, change and list them (contract 4.8).

use crate::access::acl::Acl;
use crate::error::Error;
use crate::http::fields::{Fields, REQUIRED};
use crate::http::page::{boolean_parameter, last_value};
use crate::time::Timestamp;

/// A valid request to create a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewToken {
    /// The name, for people.
    pub name: String,
    /// Whether the token can be used.
    pub enabled: bool,
    /// When it expires; `None`: never.
    pub expires_at: Option<Timestamp>,
    /// The access control list; `None`: the token is not limited.
    pub acl: Option<Acl>,
}

/// A valid `PUT` of a token. A field that is not sent gets the value of a new token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenReplacement {
    /// The name, for people.
    pub name: String,
    /// Whether the token can be used.
    pub enabled: bool,
    /// When it expires; `None`: never.
    pub expires_at: Option<Timestamp>,
    /// The access control list; `None`: the token is not limited.
    pub acl: Option<Acl>,
}

/// A valid `PATCH` of a token. `None`: the field does not change.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TokenChanges {
    /// The name, for people.
    pub name: Option<String>,
    /// Whether the token can be used.
    pub enabled: Option<bool>,
    /// When it expires; `Some(None)`: never.
    pub expires_at: Option<Option<Timestamp>>,
    /// The access control list; `Some(None)`: the token is not limited.
    pub acl: Option<Option<Acl>>,
}

/// The filters of a list of the caller's tokens.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TokenFilter {
    /// The exact name.
    pub name: Option<String>,
    /// Whether the token is enabled.
    pub enabled: Option<bool>,
}

/// The fields of a token object that `PUT` and `PATCH` accept and ignore.
const READ_ONLY: &[&str] = &["id", "key", "added_at", "updated_at", "last_used_at"];

/// Reads `expires_at`: a time in the future, or null. Returns `None` if the field was not sent, and
/// `Some(None)` if it is null or was rejected.
pub fn expires_at(fields: &mut Fields, now: Timestamp) -> Option<Option<Timestamp>> {
    if !fields.has("expires_at") {
        return None;
    }
    let time =
        fields.optional_text("expires_at", 1..=64).and_then(|text| match Timestamp::parse(&text) {
            Ok(time) if time > now => Some(time),
            Ok(_) => {
                fields.reject("expires_at", "Must be in the future.");
                None
            }
            Err(problem) => {
                fields.reject("expires_at", problem.to_string());
                None
            }
        });
    Some(time)
}

/// Reads `acl`. Returns `None` if the field was not sent.
fn acl(fields: &mut Fields) -> Option<Option<Acl>> {
    if !fields.has("acl") {
        return None;
    }
    let acl = fields.value("acl").map(Acl::read).transpose().unwrap_or_else(|problems| {
        problems.into_iter().for_each(|problem| fields.reject("acl", problem));
        None
    });
    Some(acl)
}

impl NewToken {
    /// Reads a `POST`. `expires_at` is required.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields, now: Timestamp) -> Result<Self, Error> {
        let name = fields.text("name", 1..=128);
        let enabled = fields.optional_boolean("enabled").unwrap_or(true);
        let expires_at = expires_at(&mut fields, now).unwrap_or_else(|| {
            fields.reject("expires_at", REQUIRED);
            None
        });
        let acl = acl(&mut fields).flatten();
        let name = fields.finish_with(name)?;
        Ok(Self { name, enabled, expires_at, acl })
    }
}

impl From<TokenReplacement> for TokenChanges {
    fn from(whole: TokenReplacement) -> Self {
        Self {
            name: Some(whole.name),
            enabled: Some(whole.enabled),
            expires_at: Some(whole.expires_at),
            acl: Some(whole.acl),
        }
    }
}

impl TokenReplacement {
    /// Reads a `PUT`: the fields of a `POST`.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields, now: Timestamp) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        let NewToken { name, enabled, expires_at, acl } = NewToken::read(fields, now)?;
        Ok(Self { name, enabled, expires_at, acl })
    }
}

impl TokenChanges {
    /// Reads a `PATCH`. All fields are optional.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields, now: Timestamp) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        let changes = Self {
            name: fields.has("name").then(|| fields.text("name", 1..=128)).flatten(),
            enabled: fields.optional_boolean("enabled"),
            expires_at: expires_at(&mut fields, now),
            acl: acl(&mut fields),
        };
        fields.finish()?;
        Ok(changes)
    }
}

/// The error for a change that lets a token outlive the caller's own API token, which expires at
/// `limit`.
pub fn outlives(field: &'static str, limit: Timestamp) -> Error {
    Error::field(
        field,
        format!(
            "A token that expires cannot create, extend or enable one that outlives it ({limit})."
        ),
    )
}

impl TokenChanges {
    /// The field that lets a token outlive the caller's own API token, which expires at `limit`.
    /// Call this only if the changes do that.
    pub fn field_that_outlives(&self, limit: Timestamp) -> &'static str {
        let is_later = |end: Option<Timestamp>| end.is_none_or(|end| end > limit);
        if self.expires_at.is_some_and(is_later) { "expires_at" } else { "enabled" }
    }
}

impl TokenFilter {
    /// Reads `name` and `enabled`.
    ///
    /// # Errors
    /// A field error if `enabled` is neither true nor false.
    pub fn from_query(query: &[(String, String)]) -> Result<Self, Error> {
        let enabled = boolean_parameter(query, "enabled")?;
        Ok(Self { name: last_value(query, "name").map(str::to_owned), enabled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const FUTURE: &str = "2026-11-21T00:00:01Z";

    fn now() -> Timestamp {
        Timestamp::parse("2026-11-21T00:00:00Z").unwrap()
    }

    fn fields(body: &Value) -> Fields {
        Fields::from_json(body.to_string().as_bytes()).unwrap()
    }

    fn read(body: &Value) -> Result<NewToken, Error> {
        NewToken::read(fields(body), now())
    }

    fn replacement(body: &Value) -> Result<TokenReplacement, Error> {
        TokenReplacement::read(fields(body), now())
    }

    fn changes(body: &Value) -> Result<TokenChanges, Error> {
        TokenChanges::read(fields(body), now())
    }

    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: Result<T, Error>, wrong: &[&str]) {
        let error = result.unwrap_err();
        assert_eq!(error.fields.keys().map(AsRef::as_ref).collect::<Vec<_>>(), wrong);
    }

    fn reader() -> Option<Acl> {
        Some(Acl { read_only: Some(true), ..Acl::default() })
    }

    #[test]
    fn a_null_expiry_means_never() {
        let token = read(&json!({"name": "ci", "expires_at": null})).unwrap();
        assert_eq!(
            token,
            NewToken { name: "ci".into(), enabled: true, expires_at: None, acl: None }
        );
        let token = read(&json!({"name": "ci", "expires_at": FUTURE, "acl": null})).unwrap();
        assert_eq!((token.expires_at, token.acl), (Timestamp::parse(FUTURE).ok(), None));
    }

    #[test]
    fn a_new_token_has_its_list_and_is_enabled() {
        let body =
            json!({"name": "ci", "expires_at": null, "acl": {"read_only": true}, "enabled": true});
        assert_eq!(read(&body).unwrap().acl, reader());
        for (sent, enabled) in [(json!({}), true), (json!({"enabled": false}), false)] {
            let mut body = json!({"name": "ci", "expires_at": null});
            body.as_object_mut().unwrap().extend(sent.as_object().unwrap().clone());
            assert_eq!(read(&body).unwrap().enabled, enabled, "{body}");
        }
        assert_eq!(
            read(&json!({"name": "ci", "expires_at": null, "acl": {}})).unwrap().acl,
            Some(Acl::default())
        );
    }

    #[test]
    fn invalid_fields_are_refused() {
        refused(read(&json!({})), &["expires_at", "name"]);
        refused(read(&json!({"name": "ci"})), &["expires_at"]);
        refused(read(&json!({"name": "x".repeat(129), "expires_at": null})), &["name"]);
        for bad in [
            json!("2026-11-21T00:00:00Z"),
            json!("2030-01-01T00:00:00"),
            json!("soon"),
            json!(""),
            json!(1_900_000_000),
        ] {
            refused(read(&json!({"name": "ci", "expires_at": bad})), &["expires_at"]);
            refused(replacement(&json!({"name": "ci", "expires_at": bad})), &["expires_at"]);
            refused(changes(&json!({"expires_at": bad})), &["expires_at"]);
        }
        for bad in
            [json!([]), json!("read_only"), json!({"readonly": true}), json!({"commands": "ls"})]
        {
            refused(read(&json!({"name": "ci", "expires_at": null, "acl": bad})), &["acl"]);
            refused(replacement(&json!({"name": "ci", "expires_at": null, "acl": bad})), &["acl"]);
            refused(changes(&json!({"acl": bad})), &["acl"]);
        }
        for bad in [json!(null), json!("true"), json!(1)] {
            refused(
                replacement(&json!({"name": "ci", "expires_at": null, "enabled": bad})),
                &["enabled"],
            );
            refused(changes(&json!({"enabled": bad})), &["enabled"]);
            refused(read(&json!({"name": "ci", "expires_at": null, "enabled": bad})), &["enabled"]);
        }
        refused(changes(&json!({"name": null})), &["name"]);
        refused(changes(&json!({"name": " "})), &["name"]);
    }

    #[test]
    fn a_misspelled_limit_is_refused() {
        for name in ["ACL", "scopes", "expires", "id", "key"] {
            refused(
                read(&json!({"name": "ci", "expires_at": null, name: {"read_only": true}})),
                &[name],
            );
        }
        refused(
            replacement(&json!({"name": "ci", "expires_at": null, "scopes": ["read"]})),
            &["scopes"],
        );
        refused(changes(&json!({"ACL": null, "key": "x"})), &["ACL"]);
    }

    #[test]
    fn all_errors_are_reported_together() {
        let bad = json!({"acl": {"commands": [""], "servers": 1}, "enabled": null, "expires_at": "", "name": ""});
        let all = &["acl", "enabled", "expires_at", "name"];
        refused(replacement(&bad), all);
        refused(changes(&bad), all);
        refused(replacement(&json!({"enabled": 0})), &["enabled", "expires_at", "name"]);
        let error = changes(&bad).unwrap_err();
        assert_eq!(error.fields["acl"].len(), 2);
    }

    #[test]
    fn a_replacement_has_the_defaults_of_a_new_token() {
        let token = replacement(&json!({"name": "ci", "expires_at": null})).unwrap();
        assert_eq!(
            token,
            TokenReplacement { name: "ci".into(), enabled: true, expires_at: None, acl: None }
        );
        let body = json!({"name": "ci", "enabled": false, "expires_at": FUTURE, "acl": {"read_only": true}});
        let token = replacement(&body).unwrap();
        assert_eq!(
            (token.enabled, token.expires_at, token.acl),
            (false, Timestamp::parse(FUTURE).ok(), reader())
        );
        refused(replacement(&json!({})), &["expires_at", "name"]);
    }

    #[test]
    fn a_change_keeps_the_fields_that_are_not_sent() {
        assert_eq!(changes(&json!({"id": 7})).unwrap(), TokenChanges::default());
        let nulls = changes(&json!({"expires_at": null, "acl": null})).unwrap();
        assert_eq!(
            nulls,
            TokenChanges { expires_at: Some(None), acl: Some(None), ..TokenChanges::default() }
        );
        let body = json!({"name": "cd", "enabled": false, "expires_at": FUTURE, "acl": {"read_only": true}});
        let all = changes(&body).unwrap();
        assert_eq!((all.name.as_deref(), all.enabled), (Some("cd"), Some(false)));
        assert_eq!(
            (all.expires_at, all.acl),
            (Some(Timestamp::parse(FUTURE).ok()), Some(reader()))
        );
    }

    #[test]
    fn a_list_is_filtered_by_name_and_enabled() {
        let of = |pairs: &[(&str, &str)]| {
            TokenFilter::from_query(
                &pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(&[("page", "2")]).unwrap(), TokenFilter::default());
        let both = of(&[("name", "ci"), ("enabled", "False")]).unwrap();
        assert_eq!(both, TokenFilter { name: Some("ci".into()), enabled: Some(false) });
        refused(of(&[("enabled", "")]), &["enabled"]);
    }
}
