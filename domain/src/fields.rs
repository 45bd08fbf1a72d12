//! Reads a request body field by field, and reports every error in one answer.
//!
//! [`Fields`] records each name it is asked for. [`Fields::finish`] rejects every other field of
//! the body, so a misspelled limit is never dropped silently (contract 11.1).

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use crate::error::{Error, FieldErrors, NON_FIELD};
use crate::secret::Secret;

/// The message for a field that must be there and is not.
pub const REQUIRED: &str = "This field is required.";
/// The message for a text without a character that can be seen.
pub const BLANK: &str = "This field may not be blank.";
/// The message for a null where there must be a value.
const NULL: &str = "This field may not be null.";

/// The message for a field the endpoint does not know.
pub const UNKNOWN: &str = "Unknown field.";

/// The message for what is no whole number.
const NOT_AN_INTEGER: &str = "A valid integer is required.";
/// The most groups that a server, or a registration token, is in.
const MAX_GROUPS: usize = 5_000;
/// The most unknown fields one answer lists.
const MAX_UNKNOWN: usize = 16;
/// The longest unknown field name an answer repeats, in characters.
const MAX_UNKNOWN_NAME: usize = 64;
/// Numbers of this size and larger are not exact in JSON.
const INEXACT: f64 = (1_u64 << 53) as f64;
/// Keys of an error body that hold something other than messages.
const RESERVED: [&str; 4] = ["code", "detail", "request_id", NON_FIELD];

/// A whole number, also one written as `2509.0`, which is an integer to JSON Schema.
pub fn as_integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number =
            value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < INEXACT)?;
        Some(number as i64)
    })
}

/// The id of a user or a group. A whole number outside the range of ids becomes 0, which is no id.
pub fn as_id(value: &Value) -> Option<i64> {
    let is_whole = value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0);
    is_whole.then(|| as_integer(value).filter(|id| (0..1 << 53).contains(id)).unwrap_or(0))
}

/// The fields of a body, and the errors found so far.
#[derive(Debug, Default)]
pub struct Fields {
    values: Map<String, Value>,
    errors: FieldErrors,
    /// The names that were asked for.
    known: RefCell<BTreeSet<&'static str>>,
}

impl Fields {
    /// Reads a JSON object. An empty body is an empty object, so that what is missing is told by
    /// field.
    ///
    /// # Errors
    /// Malformed JSON, or JSON that is not an object, under `non_field_errors` (contract 3.3).
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(values)) => Ok(Self { values, ..Self::default() }),
            Ok(_) => Err(Error::field(NON_FIELD, "Invalid data. Expected a JSON object.")),
            Err(error) => Err(Error::field(NON_FIELD, format!("JSON parse error: {error}"))),
        }
    }

    /// Takes the fields of a form; of a field that is there twice, the last.
    pub fn from_form(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let values = pairs.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        Self { values, ..Self::default() }
    }

    /// Looks a field up, and records its name as known.
    fn get(&self, name: &'static str) -> Option<&Value> {
        self.known.borrow_mut().insert(name);
        self.values.get(name)
    }

    /// Accepts fields without reading them: a resource's own read-only fields in `PUT` and `PATCH`.
    pub fn ignore(&mut self, names: &[&'static str]) {
        self.known.get_mut().extend(names);
    }

    /// All of it as JSON, the same however the request formatted and ordered it. It may hold
    /// secrets.
    pub fn canonical(&self) -> Secret {
        Secret::new(json!(self.values).to_string())
    }

    /// Notes a message for a field.
    pub fn reject(&mut self, name: &'static str, message: impl Into<Cow<'static, str>>) {
        self.errors.entry(name.into()).or_default().push(message.into());
    }

    /// The field's value, if it was sent and is not null.
    pub fn value(&self, name: &'static str) -> Option<&Value> {
        self.get(name).filter(|value| !value.is_null())
    }

    /// The field's value, if it was sent, null included.
    pub fn any(&self, name: &'static str) -> Option<&Value> {
        self.get(name)
    }

    /// Makes a field's text lower case, as far as it is ASCII.
    pub fn lower_case(&mut self, name: &'static str) {
        if let Some(Value::String(text)) = self.values.get_mut(name) {
            text.make_ascii_lowercase();
        }
    }

    /// Whether the field was sent, null included.
    pub fn has(&self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    /// A text that must be there and not blank, of so many characters.
    pub fn text(&mut self, name: &'static str, lengths: RangeInclusive<usize>) -> Option<String> {
        match self.get(name) {
            None => self.reject(name, REQUIRED),
            Some(Value::Null) => self.reject(name, NULL),
            Some(_) => return self.optional_text(name, lengths),
        }
        None
    }

    /// A text that may be missing or null; if it is there, it has so many characters, and a blank
    /// one is refused unless none at all are allowed too.
    pub fn optional_text(
        &mut self,
        name: &'static str,
        lengths: RangeInclusive<usize>,
    ) -> Option<String> {
        let (fewest, most) = lengths.into_inner();
        let text = match self.get(name)? {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            _ => {
                self.reject(name, "Not a valid string.");
                return None;
            }
        };
        let length = text.chars().count();
        if fewest > 0 && text.trim().is_empty() {
            self.reject(name, BLANK);
        } else if text.contains('\0') {
            self.reject(name, "Null characters are not allowed.");
        } else if length < fewest {
            self.reject(name, format!("Ensure this field has at least {fewest} characters."));
        } else if length > most {
            self.reject(name, format!("Ensure this field has no more than {most} characters."));
        } else {
            return Some(text);
        }
        None
    }

    /// A text that may be missing, but not null, of so many characters at most.
    pub fn given_text(&mut self, name: &'static str, most: usize) -> Option<String> {
        if self.any(name).is_some_and(Value::is_null) {
            self.reject(name, NULL);
        }
        self.optional_text(name, 0..=most)
    }

    /// A whole number in a range that may be missing or null.
    pub fn optional_integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
    ) -> Option<i64> {
        let value = self.value(name)?;
        let Some(number) = as_integer(value) else {
            self.reject(name, NOT_AN_INTEGER);
            return None;
        };
        if range.contains(&number) {
            return Some(number);
        }
        self.reject(
            name,
            format!("Ensure this value is from {} to {}.", range.start(), range.end()),
        );
        None
    }

    /// The id of a user or a group, which must be there. Ids that JSON numbers cannot tell apart
    /// are nobody's, as 0 is.
    pub fn id(&mut self, name: &'static str) -> Option<i64> {
        match self.get(name) {
            None => self.reject(name, REQUIRED),
            Some(Value::Null) => self.reject(name, NULL),
            Some(value) => match as_id(value) {
                Some(id) => return Some(id),
                None => self.reject(name, NOT_AN_INTEGER),
            },
        }
        None
    }

    /// A list that may be missing, but not null, of so many items at most. `message` tells what
    /// they must be.
    pub fn optional_list<T>(
        &mut self,
        name: &'static str,
        most: usize,
        message: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Option<Vec<T>> {
        match self.get(name)? {
            Value::Array(items) if items.len() > most => {
                self.reject(name, format!("Ensure there are no more than {most} items."));
            }
            Value::Array(items) => match items.iter().map(read).collect() {
                Some(list) => return Some(list),
                None => self.reject(name, message),
            },
            Value::Null => self.reject(name, NULL),
            _ => self.reject(name, "Not a valid list."),
        }
        None
    }

    /// A list of ids of groups that may be missing, but not null: each once, sorted.
    pub fn optional_groups(&mut self) -> Option<Vec<i64>> {
        let mut groups =
            self.optional_list("groups", MAX_GROUPS, "Enter the ids of groups.", as_id)?;
        groups.sort_unstable();
        groups.dedup();
        Some(groups)
    }

    /// A boolean that may be missing, but not null.
    pub fn optional_boolean(&mut self, name: &'static str) -> Option<bool> {
        match self.get(name)? {
            Value::Bool(value) => return Some(*value),
            Value::Null => self.reject(name, NULL),
            _ => self.reject(name, "Must be true or false."),
        }
        None
    }

    /// The fields of an object in this object. A missing one has no fields.
    pub fn object(&mut self, name: &'static str) -> Self {
        match self.get(name) {
            Some(Value::Object(values)) => {
                return Self { values: values.clone(), ..Self::default() };
            }
            Some(_) => self.reject(name, "Not a valid object."),
            None => self.reject(name, REQUIRED),
        }
        Self::default()
    }

    /// Takes over the errors of an object read with [`Fields::object`], unless the object itself
    /// was wrong.
    pub fn absorb(&mut self, name: &'static str, mut inner: Self) {
        inner.reject_unknown();
        if !self.errors.contains_key(name) {
            for (field, messages) in inner.errors {
                self.errors.entry(field).or_default().extend(messages);
            }
        }
    }

    /// A field was sent that was never asked for.
    pub fn has_unknown(&self) -> bool {
        let known = self.known.borrow();
        self.values.keys().any(|name| !known.contains(name.as_str()))
    }

    /// Notes an error for each field that was sent and never asked for.
    fn reject_unknown(&mut self) {
        let known = self.known.get_mut();
        let unknown =
            self.values.keys().filter(|name| !known.contains(name.as_str())).take(MAX_UNKNOWN);
        for name in unknown {
            let name: String = name.chars().take(MAX_UNKNOWN_NAME).collect();
            let (field, message) = if RESERVED.contains(&name.as_str()) {
                (NON_FIELD.into(), format!("{name}: {UNKNOWN}").into())
            } else {
                (name.into(), UNKNOWN.into())
            };
            let messages = self.errors.entry(field).or_default();
            // An object in this one may have a field of that name, which is unknown there.
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
    }

    /// Ends the reading, and rejects the fields that were never asked for.
    ///
    /// # Errors
    /// Every error that was noted.
    pub fn finish(mut self) -> Result<(), Error> {
        self.reject_unknown();
        self.finish_lenient()
    }

    /// Ends the reading of a body whose sender may add fields of its own: an agent, or a reset
    /// request (contract 11.1).
    ///
    /// # Errors
    /// Every error that was noted.
    pub fn finish_lenient(self) -> Result<(), Error> {
        if self.errors.is_empty() { Ok(()) } else { Err(Error::fields(self.errors)) }
    }

    /// Ends the reading as [`Fields::finish`] does, with the value that was read.
    ///
    /// # Errors
    /// Every error that was noted.
    pub fn finish_with<T>(self, value: Option<T>) -> Result<T, Error> {
        self.finish()?;
        value.ok_or_else(|| Error::internal("a field is missing and nothing was noted"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Fields {
        Fields::from_json(json.as_bytes()).unwrap()
    }

    #[track_caller]
    fn text_is(json: &str, expected: Result<&str, &str>) {
        let mut fields = read(json);
        let text = fields.text("name", 1..=5);
        let message = fields.errors.get("name").map(|messages| messages.join(" "));
        assert_eq!(
            (text.as_deref(), message.as_deref()),
            (expected.ok(), expected.err()),
            "{json}"
        );
    }

    #[test]
    fn texts() {
        text_is(r#"{"name":"abc"}"#, Ok("abc"));
        text_is(r#"{"name":"ärger"}"#, Ok("ärger"));
        text_is("{}", Err(REQUIRED));
        text_is("", Err(REQUIRED));
        text_is(r#"{"name":null}"#, Err("This field may not be null."));
        text_is(r#"{"name":"  "}"#, Err(BLANK));
        text_is(r#"{"name":7}"#, Err("Not a valid string."));
        text_is(r#"{"name":"a\u0000b"}"#, Err("Null characters are not allowed."));
        text_is(r#"{"name":"abcdef"}"#, Err("Ensure this field has no more than 5 characters."));
    }

    #[test]
    fn bodies_that_are_no_object() {
        for bad in ["[]", "7", "null", "\"a\"", "{", "{\"a\":}", "\u{feff}{}", &"[".repeat(500)] {
            let error = Fields::from_json(bad.as_bytes()).unwrap_err();
            assert!(error.fields.contains_key(NON_FIELD), "{bad}");
        }
        assert!(Fields::from_json(b"{\"a\":\"\xff\"}").is_err());
    }

    #[test]
    fn integers() {
        let mut fields = read(r#"{"a":5,"b":5.5,"c":"5","d":11,"e":null}"#);
        assert_eq!(fields.optional_integer("a", 1..=10), Some(5));
        for bad in ["b", "c", "d", "e", "f"] {
            assert_eq!(fields.optional_integer(bad, 1..=10), None, "{bad}");
        }
        let error = fields.finish().unwrap_err();
        assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["b", "c", "d"]);
    }

    #[test]
    fn an_integer_may_have_a_fraction_of_zero() {
        let mut fields =
            read(r#"{"a":2509.0,"b":1e3,"c":2509.5,"d":1e300,"user":7.0,"groups":[1.0]}"#);
        assert_eq!(fields.optional_integer("a", 1..=9_999), Some(2_509));
        assert_eq!(fields.optional_integer("b", 1..=9_999), Some(1_000));
        assert_eq!((fields.id("user"), fields.optional_groups()), (Some(7), Some(vec![1])));
        for bad in ["c", "d"] {
            assert_eq!(fields.optional_integer(bad, 1..=9_999), None, "{bad}");
        }
        assert_eq!(fields.finish().unwrap_err().fields.keys().collect::<Vec<_>>(), ["c", "d"]);
    }

    fn unknown(fields: Fields) -> Vec<String> {
        let errors = fields.finish().map_or_else(|error| error.fields, |()| FieldErrors::new());
        errors.iter().map(|(name, messages)| format!("{name}: {}", messages.join(" "))).collect()
    }

    #[test]
    fn fields_that_were_never_asked_for_are_unknown() {
        let mut fields = read(r#"{"name":"ab","ACL":{},"id":7,"enabled":null}"#);
        fields.text("name", 1..=5);
        fields.ignore(&["id", "added_at"]);
        assert_eq!(unknown(fields), ["ACL: Unknown field.", "enabled: Unknown field."]);
        let fields = read(r#"{"a":1,"b":2,"c":3}"#);
        assert!(fields.has("a") && fields.value("b").is_some() && fields.any("c").is_some());
        assert_eq!(unknown(fields), [""; 0]);
    }

    #[test]
    fn unknown_fields_of_an_inner_object_are_rejected_too() {
        let mut fields = read(r#"{"slug":"a","admin":{"username":"b","zzz":1}}"#);
        fields.text("slug", 1..=5);
        let mut admin = fields.object("admin");
        admin.text("username", 1..=5);
        fields.absorb("admin", admin);
        assert_eq!(unknown(fields), ["zzz: Unknown field."]);
    }

    #[test]
    fn names_of_unknown_fields_are_bounded() {
        let many: Map<String, Value> =
            (0..100).map(|n| (format!("{n}{}", "ä".repeat(1_000)), json!(n))).collect();
        let told = unknown(read(&json!(many).to_string()));
        assert_eq!(told.len(), MAX_UNKNOWN);
        assert!(
            told.iter()
                .all(|text| text.chars().count() == MAX_UNKNOWN_NAME + ": Unknown field.".len())
        );
    }

    #[test]
    fn an_unknown_field_takes_no_key_of_the_error_body() {
        let fields = read(r#"{"code":1,"detail":2,"request_id":3,"non_field_errors":4}"#);
        let told = unknown(fields).concat();
        assert!(
            told.starts_with("non_field_errors: code: Unknown field. detail: Unknown field."),
            "{told}"
        );
    }

    #[test]
    fn ids_and_lists_of_them() {
        let mut fields = read(
            r#"{"a":5,"b":5.5,"c":"5","d":-1,"e":null,"f":18446744073709551615,"groups":[3,1,3]}"#,
        );
        assert_eq!((fields.id("a"), fields.id("d"), fields.id("f")), (Some(5), Some(0), Some(0)));
        assert_eq!(fields.optional_groups(), Some(vec![1, 3]));
        for bad in ["b", "c", "e", "g"] {
            assert_eq!(fields.id(bad), None, "{bad}");
        }
        let error = fields.finish().unwrap_err();
        assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["b", "c", "e", "g"]);
        assert_eq!(read("{}").optional_groups(), None);
        let many = format!(r#"{{"groups":[{}1]}}"#, "1,".repeat(5_000));
        for bad in [
            r#"{"groups":null}"#,
            r#"{"groups":1}"#,
            r#"{"groups":["1"]}"#,
            r#"{"groups":[1.5]}"#,
            &many,
        ] {
            let mut fields = read(bad);
            assert_eq!(fields.optional_groups(), None, "{bad}");
            assert!(fields.finish().unwrap_err().fields.contains_key("groups"), "{bad}");
        }
    }

    #[test]
    fn booleans() {
        let mut fields = read(r#"{"a":true,"b":false,"c":null,"d":"true","e":1}"#);
        assert_eq!(
            (fields.optional_boolean("a"), fields.optional_boolean("b")),
            (Some(true), Some(false))
        );
        for none in ["c", "d", "e", "f"] {
            assert_eq!(fields.optional_boolean(none), None, "{none}");
        }
        let error = fields.finish().unwrap_err();
        assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["c", "d", "e"]);
    }

    #[test]
    fn all_errors_together() {
        let mut fields = read(r#"{"admin":{"username":""}}"#);
        fields.text("slug", 1..=5);
        let mut admin = fields.object("admin");
        admin.text("username", 1..=5);
        admin.text("email", 1..=5);
        fields.absorb("admin", admin);
        let error = fields.finish().unwrap_err();
        assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["email", "slug", "username"]);
    }

    #[test]
    fn a_name_that_is_unknown_at_two_depths_is_refused_once() {
        let mut fields = read(r#"{"other":1,"admin":{"other":2}}"#);
        let admin = fields.object("admin");
        fields.absorb("admin", admin);
        assert_eq!(fields.finish().unwrap_err().fields["other"], [UNKNOWN]);
    }
}
