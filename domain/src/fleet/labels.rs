//! Labels of servers: keys with values that selectors match (contract 12.1).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::fields::{Fields, NULL};

/// Maximum number of labels of a server.
pub const MAX_LABELS: usize = 20;
/// Maximum length of a key and of a value, in characters.
pub const MAX_TEXT: usize = 63;
/// Maximum number of error messages about one field, so that responses are short.
const MAX_MESSAGES: usize = 10;
/// Maximum number of characters of an invalid key that an error message repeats.
const MAX_SHOWN: usize = 64;

/// The message for a key that [`is_key`] refuses.
pub const BAD_KEY: &str = "Not a valid key. Use 1 to 63 of a-z, 0-9, hyphens, underscores, dots and slashes, with a letter or digit at both ends.";
/// The message for a value that [`is_value`] refuses.
pub const BAD_VALUE: &str = "Not a valid value. Use a text of at most 63 letters A-Z and a-z, digits, dots, underscores and hyphens.";

/// The labels of a server, by key. The limits are not checked when they are read from D1.
///
/// ```
/// use farhand_domain::http::fields::Fields;
/// use farhand_domain::fleet::labels::read;
/// let mut fields = Fields::from_json(br#"{"labels": {"env": "prod", "team/db": ""}}"#).unwrap();
/// let labels = read(&mut fields).unwrap();
/// assert_eq!(labels.get("env"), Some("prod"));
/// assert_eq!(labels.get("team/db"), Some(""));
/// assert_eq!(labels.get("team"), None);
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// The value of a key, if the server has the label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether the server has no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The JSON object that D1 stores, with the keys in order.
    pub fn json(&self) -> String {
        json!(self).to_string()
    }
}

impl FromIterator<(String, String)> for Labels {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(labels: T) -> Self {
        Self(labels.into_iter().collect())
    }
}

/// Whether a label can have this key: `[a-z0-9]([-a-z0-9_./]{0,61}[a-z0-9])?`.
pub fn is_key(text: &str) -> bool {
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    text.len() <= MAX_TEXT
        && bytes.first().is_some_and(|byte| is_end(*byte))
        && bytes.last().is_some_and(|byte| is_end(*byte))
        && bytes.iter().all(|byte| is_end(*byte) || matches!(byte, b'-' | b'_' | b'.' | b'/'))
}

/// Whether a label can have this value: 0 to 63 characters of `[A-Za-z0-9._-]`.
pub fn is_value(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    text.len() <= MAX_TEXT && text.bytes().all(is_allowed)
}

/// Reads the field `labels`: an object of strings. The field may be missing, but not null. Errors
/// are recorded in `fields`, each with the key of its label.
pub fn read(fields: &mut Fields) -> Option<Labels> {
    let object = match fields.any("labels")? {
        Value::Object(object) => object,
        value => {
            let message = if value.is_null() { NULL } else { "Not a valid object." };
            fields.reject("labels", message);
            return None;
        }
    };
    let mut problems = Vec::new();
    if object.len() > MAX_LABELS {
        problems.push(format!("Ensure there are no more than {MAX_LABELS} labels."));
    }
    let mut labels = BTreeMap::new();
    for (key, value) in object {
        let shown: String = key.chars().take(MAX_SHOWN).collect();
        if !is_key(key) {
            problems.push(format!("{shown:?}: {BAD_KEY}"));
        }
        match value.as_str().filter(|value| is_value(value)) {
            Some(value) => {
                labels.insert(key.clone(), value.to_owned());
            }
            None => problems.push(format!("{shown:?}: {BAD_VALUE}")),
        }
    }
    if problems.is_empty() {
        return Some(Labels(labels));
    }
    problems.into_iter().take(MAX_MESSAGES).for_each(|problem| fields.reject("labels", problem));
    None
}

/// Reads the field `label_keys` of a registration token: the keys that an agent may set, sorted,
/// without duplicates. `labels` are the labels that the token always applies. An agent cannot set
/// their keys. Both fields together have at most [`MAX_LABELS`] keys.
pub fn read_keys(fields: &mut Fields, labels: Option<&Labels>) -> Option<BTreeSet<String>> {
    let read = |value: &Value| value.as_str().filter(|key| is_key(key)).map(str::to_owned);
    let keys = fields.optional_list("label_keys", MAX_LABELS, BAD_KEY, read)?;
    let keys: BTreeSet<String> = keys.into_iter().collect();
    let fixed = |key: &&str| keys.contains(*key);
    if let Some(key) = labels.and_then(|labels| labels.keys().find(fixed)) {
        let message = format!("{key:?}: The token's labels set this key, so no agent can.");
        fields.reject("label_keys", message);
        return None;
    }
    let labels = labels.map_or(0, |labels| labels.0.len());
    if keys.len() + labels > MAX_LABELS {
        let message =
            format!("Ensure labels and label_keys together have no more than {MAX_LABELS} keys.");
        fields.reject("label_keys", message);
        return None;
    }
    Some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_body(body: &Value) -> Result<Labels, Vec<String>> {
        let mut fields = Fields::from_json(body.to_string().as_bytes()).unwrap();
        let labels = read(&mut fields);
        match fields.finish() {
            Ok(()) => Ok(labels.unwrap_or_default()),
            Err(error) => {
                assert_eq!(labels, None);
                assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["labels"]);
                Err(error.fields["labels"].iter().map(ToString::to_string).collect())
            }
        }
    }

    #[test]
    fn keys_and_values() {
        let longest = "a".repeat(63);
        for good in ["a", "0", "ab", "a-b", "a_b.c/d", "app.kubernetes.io/name", "a--b", &longest] {
            assert!(is_key(good), "{good}");
            assert!(read_body(&json!({"labels": {good: "x"}})).is_ok(), "{good}");
        }
        let long = "a".repeat(64);
        let bad = ["", "A", "-a", "a-", "/a", "a/", ".", "a b", "ä", "a=b", "a\n", "a\0", &long];
        for bad in bad {
            assert!(!is_key(bad), "{bad}");
            let messages = read_body(&json!({"labels": {bad: "x"}})).unwrap_err();
            assert_eq!(messages, [format!("{bad:?}: {BAD_KEY}")]);
        }
        let longest = "Z".repeat(63);
        for good in ["", "x", "A.b_c-9", "-", ".", &longest] {
            assert!(is_value(good), "{good}");
            let labels = read_body(&json!({"labels": {"env": good}})).unwrap();
            assert_eq!(labels.get("env"), Some(good));
        }
        let long = "Z".repeat(64);
        for bad in [json!("a b"), json!("a/b"), json!("ä"), json!("a,b"), json!(long), json!("a\n")]
            .into_iter()
            .chain([json!(1), json!(true), json!(null), json!(["a"]), json!({})])
        {
            let messages = read_body(&json!({"labels": {"env": bad}})).unwrap_err();
            assert_eq!(messages, [format!("\"env\": {BAD_VALUE}")]);
        }
    }

    #[test]
    fn the_field() {
        let many = |number| (0..number).map(|n| (format!("k{n}"), "v".into())).collect::<Labels>();
        assert_eq!(read_body(&json!({})), Ok(Labels::default()));
        assert_eq!(read_body(&json!({"labels": {}})), Ok(Labels::default()));
        assert_eq!(read_body(&json!({"labels": many(20)})), Ok(many(20)));
        assert_eq!(
            read_body(&json!({"labels": many(21)})).unwrap_err(),
            ["Ensure there are no more than 20 labels."]
        );
        assert_eq!(read_body(&json!({"labels": null})).unwrap_err(), [NULL]);
        for bad in [json!([]), json!("env=prod"), json!(7)] {
            assert_eq!(read_body(&json!({"labels": bad})).unwrap_err(), ["Not a valid object."]);
        }
        // Labels may have names of fields as keys.
        assert!(read_body(&json!({"labels": {"name": "x", "labels": "y"}})).is_ok());
        // All errors are reported together, up to the limit.
        assert_eq!(read_body(&json!({"labels": {"A": 1, "b": "c d"}})).unwrap_err().len(), 3);
        let bad: Labels =
            (0..500).map(|n| (format!("{n}{}", "Ä".repeat(500)), "v".into())).collect();
        let messages = read_body(&json!({"labels": bad})).unwrap_err();
        assert_eq!(messages.len(), MAX_MESSAGES);
        assert!(messages.concat().chars().count() < 3_000);
    }

    #[test]
    fn keys_that_agents_may_set() {
        let read_body = |labels: Value, keys: Value| {
            let body = json!({"labels": labels, "label_keys": keys}).to_string();
            let mut fields = Fields::from_json(body.as_bytes()).unwrap();
            let labels = read(&mut fields);
            let keys = read_keys(&mut fields, labels.as_ref());
            let keys = keys.map(|keys| keys.into_iter().collect::<Vec<_>>());
            match fields.finish() {
                Ok(()) => Ok(keys.unwrap_or_default()),
                Err(error) => Err(error.fields["label_keys"].concat()),
            }
        };
        assert_eq!(read_body(json!({}), json!([])), Ok(vec![]));
        let sorted = Ok(vec!["env".to_owned(), "role".to_owned()]);
        assert_eq!(read_body(json!({"team": "db"}), json!(["role", "env", "role"])), sorted);
        for bad in [json!(["Env"]), json!([1]), json!([""])] {
            assert_eq!(read_body(json!({}), bad), Err(BAD_KEY.to_owned()));
        }
        for bad in [json!("env"), json!(null), json!({})] {
            assert!(read_body(json!({}), bad).is_err());
        }
        let message = "\"env\": The token's labels set this key, so no agent can.";
        assert_eq!(read_body(json!({"env": "x"}), json!(["env"])), Err(message.to_owned()));
        // A server never gets more labels than it can have.
        let keys = |number| (0..number).map(|n| format!("k{n}")).collect::<Vec<_>>();
        assert!(read_body(json!({"env": "x"}), json!(keys(19))).is_ok());
        let message = "Ensure labels and label_keys together have no more than 20 keys.";
        assert_eq!(read_body(json!({"env": "x"}), json!(keys(20))), Err(message.to_owned()));
        assert!(
            read_body(json!({}), json!(keys(21))).unwrap_err().contains("no more than 20 items")
        );
    }
}
