//! Reads a request body field by field, and reports all errors in one response.
//!
//! [`Fields`] records the name of each field that is read. [`Fields::finish`] rejects all other
//! fields of the body, so a misspelled field name is never ignored (contract 11.1).

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use crate::error::{Error, FieldErrors, NON_FIELD};
use crate::secret::Secret;

/// The message for a required field that is missing.
pub const REQUIRED: &str = "This field is required.";
/// The message for a text that is empty or has only whitespace.
pub const BLANK: &str = "This field may not be blank.";
/// The message for a null in a field that needs a value.
pub const NULL: &str = "This field may not be null.";

/// The message for a field that the endpoint does not read.
pub const UNKNOWN: &str = "Unknown field.";

/// The message for a value that is not a whole number.
const NOT_AN_INTEGER: &str = "A valid integer is required.";
/// Maximum number of groups of a server or a registration token.
const MAX_GROUPS: usize = 5_000;
/// Maximum number of unknown fields that a response lists.
const MAX_UNKNOWN: usize = 16;
/// Maximum length of the name of an unknown field in a response, in characters. A longer name is
/// cut.
const MAX_UNKNOWN_NAME: usize = 64;
/// From this number upwards, JSON does not hold all whole numbers exactly.
const FIRST_INEXACT_INTEGER: f64 = (1_u64 << 53) as f64;
/// Keys of an error body that hold something other than messages.
const RESERVED: [&str; 4] = ["code", "detail", "request_id", NON_FIELD];

/// Reads a whole number. As in JSON Schema, `2509.0` is a whole number.
pub fn as_integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value
            .as_f64()
            .filter(|number| number.fract() == 0.0 && number.abs() < FIRST_INEXACT_INTEGER)?;
        Some(number as i64)
    })
}

/// Reads the id of a user or a group. A whole number that cannot be an id becomes 0, which matches
/// no row.
pub fn as_id(value: &Value) -> Option<i64> {
    let is_whole = value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0);
    is_whole.then(|| as_integer(value).filter(|id| (0..1 << 53).contains(id)).unwrap_or(0))
}

/// The fields of a body, and the errors found so far.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    values: Map<String, Value>,
    errors: FieldErrors,
    /// The names of the fields that were read.
    read_names: RefCell<BTreeSet<&'static str>>,
}

impl Fields {
    /// Reads a JSON object. An empty body counts as an empty object, so that its missing fields are
    /// reported by name.
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

    /// Takes the fields of a form. If a field is repeated, the last value counts.
    pub fn from_form(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let values = pairs.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        Self { values, ..Self::default() }
    }

    /// Adds the fields of `base` that were not sent.
    #[must_use]
    pub fn over(mut self, base: Map<String, Value>) -> Self {
        for (name, value) in base {
            self.values.entry(name).or_insert(value);
        }
        self
    }

    /// Returns a field, and records its name as read.
    fn get(&self, name: &'static str) -> Option<&Value> {
        self.read_names.borrow_mut().insert(name);
        self.values.get(name)
    }

    /// Accepts fields without reading them: the read-only fields of a resource in `PUT` and
    /// `PATCH`.
    pub fn ignore(&mut self, names: &[&'static str]) {
        self.read_names.get_mut().extend(names);
    }

    /// The body as JSON with sorted keys and no whitespace. It may have secrets.
    pub fn canonical(&self) -> Secret {
        Secret::new(json!(self.values).to_string())
    }

    /// Records an error message for a field.
    pub fn reject(&mut self, name: &'static str, message: impl Into<Cow<'static, str>>) {
        self.errors.entry(name.into()).or_default().push(message.into());
    }

    /// The field's value; `None` if it is missing or null.
    pub fn value(&self, name: &'static str) -> Option<&Value> {
        self.get(name).filter(|value| !value.is_null())
    }

    /// The field's value, which may be null. Returns `None` if the field is missing.
    pub fn any(&self, name: &'static str) -> Option<&Value> {
        self.get(name)
    }

    /// Converts the ASCII letters of a field's text to lower case.
    pub fn lower_case(&mut self, name: &'static str) {
        if let Some(Value::String(text)) = self.values.get_mut(name) {
            text.make_ascii_lowercase();
        }
    }

    /// Whether the field was sent, even as null.
    pub fn has(&self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    /// Reads a required text that is not blank. `lengths` is in characters.
    pub fn text(&mut self, name: &'static str, lengths: RangeInclusive<usize>) -> Option<String> {
        match self.get(name) {
            None => self.reject(name, REQUIRED),
            Some(Value::Null) => self.reject(name, NULL),
            Some(_) => return self.optional_text(name, lengths),
        }
        None
    }

    /// Reads a text that may be missing or null. `lengths` is in characters. A blank text is
    /// rejected, unless `lengths` starts at 0.
    pub fn optional_text(
        &mut self,
        name: &'static str,
        lengths: RangeInclusive<usize>,
    ) -> Option<String> {
        let (min, max) = lengths.into_inner();
        let text = match self.get(name)? {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            _ => {
                self.reject(name, "Not a valid string.");
                return None;
            }
        };
        let length = text.chars().count();
        if min > 0 && text.trim().is_empty() {
            self.reject(name, BLANK);
        } else if text.contains('\0') {
            self.reject(name, "Null characters are not allowed.");
        } else if length < min {
            self.reject(name, format!("Ensure this field has at least {min} characters."));
        } else if length > max {
            self.reject(name, format!("Ensure this field has no more than {max} characters."));
        } else {
            return Some(text);
        }
        None
    }

    /// Reads a text of at most `max` characters that may be missing or blank, but not null.
    pub fn non_null_text(&mut self, name: &'static str, max: usize) -> Option<String> {
        if self.any(name).is_some_and(Value::is_null) {
            self.reject(name, NULL);
        }
        self.optional_text(name, 0..=max)
    }

    /// Reads a whole number in a range. It may be missing or null.
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

    /// Reads the required id of a user or a group, as [`as_id`] does.
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

    /// Reads a list of at most `max` items. It may be missing, but not null. `message`: the error
    /// if `read` returns `None` for an item.
    pub fn optional_list<T>(
        &mut self,
        name: &'static str,
        max: usize,
        message: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Option<Vec<T>> {
        match self.get(name)? {
            Value::Array(items) if items.len() > max => {
                self.reject(name, format!("Ensure there are no more than {max} items."));
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

    /// Reads `groups`: a list of ids that may be missing, but not null. Returns each id once,
    /// sorted.
    pub fn optional_groups(&mut self) -> Option<Vec<i64>> {
        let mut groups =
            self.optional_list("groups", MAX_GROUPS, "Enter the ids of groups.", as_id)?;
        groups.sort_unstable();
        groups.dedup();
        Some(groups)
    }

    /// Reads a boolean that may be missing, but not null.
    pub fn optional_boolean(&mut self, name: &'static str) -> Option<bool> {
        match self.get(name)? {
            Value::Bool(value) => return Some(*value),
            Value::Null => self.reject(name, NULL),
            _ => self.reject(name, "Must be true or false."),
        }
        None
    }

    /// The fields of a nested object. If the field is missing or not an object, records an error
    /// and returns no fields.
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

    /// Adds the errors of a nested object from [`Fields::object`], unless the object itself was
    /// rejected.
    pub fn absorb(&mut self, name: &'static str, mut inner: Self) {
        inner.reject_unknown();
        if !self.errors.contains_key(name) {
            for (field, messages) in inner.errors {
                self.errors.entry(field).or_default().extend(messages);
            }
        }
    }

    /// The items of a list of at most `max` objects. The list may be missing. Read each item, then
    /// call [`Fields::absorb_item`].
    pub fn items(&mut self, name: &'static str, max: usize) -> Option<Vec<Self>> {
        let object = |value: &Value| {
            let values = value.as_object()?.clone();
            Some(Self { values, ..Self::default() })
        };
        self.value(name)?;
        self.optional_list(name, max, "Ensure all items are objects.", object)
    }

    /// Adds the errors of an item from [`Fields::items`] under the name of the list. Each message
    /// begins with the place of its field. Unknown fields are reported under their own names
    /// (contract 11.1).
    pub fn absorb_item(&mut self, name: &'static str, index: usize, mut item: Self) {
        for (field, messages) in std::mem::take(&mut item.errors) {
            for message in messages {
                self.reject(name, format!("{name}[{index}].{field}: {message}"));
            }
        }
        item.reject_unknown();
        for (field, messages) in item.errors {
            let known = self.errors.entry(field).or_default();
            for message in messages {
                // Another item may have an unknown field with the same name.
                if !known.contains(&message) {
                    known.push(message);
                }
            }
        }
    }

    /// Whether the body has a field that was not read.
    pub fn has_unknown(&self) -> bool {
        let read_names = self.read_names.borrow();
        self.values.keys().any(|name| !read_names.contains(name.as_str()))
    }

    /// Whether an error was recorded.
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Records an error for each field of the body that was not read.
    fn reject_unknown(&mut self) {
        let read_names = self.read_names.get_mut();
        let unknown =
            self.values.keys().filter(|name| !read_names.contains(name.as_str())).take(MAX_UNKNOWN);
        for name in unknown {
            let name: String = name.chars().take(MAX_UNKNOWN_NAME).collect();
            let (field, message) = if RESERVED.contains(&name.as_str()) {
                (NON_FIELD.into(), format!("{name}: {UNKNOWN}").into())
            } else {
                (name.into(), UNKNOWN.into())
            };
            let messages = self.errors.entry(field).or_default();
            // A nested object may have an unknown field with the same name.
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
    }

    /// Ends the reading, and rejects the fields that were not read.
    ///
    /// # Errors
    /// All recorded errors.
    pub fn finish(mut self) -> Result<(), Error> {
        self.reject_unknown();
        self.finish_lenient()
    }

    /// Ends the reading of a body that may have more fields: from an agent, or a reset request
    /// (contract 11.1).
    ///
    /// # Errors
    /// All recorded errors.
    pub fn finish_lenient(self) -> Result<(), Error> {
        if self.errors.is_empty() { Ok(()) } else { Err(Error::fields(self.errors)) }
    }

    /// Ends the reading like [`Fields::finish`], and returns the value that was read.
    ///
    /// # Errors
    /// All recorded errors.
    pub fn finish_with<T>(self, value: Option<T>) -> Result<T, Error> {
        self.finish()?;
        value.ok_or_else(|| Error::internal("a field is missing and no error was noted"))
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
    fn text_is_required_and_bounded() {
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
    fn a_body_that_is_not_an_object_is_refused() {
        for bad in ["[]", "7", "null", "\"a\"", "{", "{\"a\":}", "\u{feff}{}", &"[".repeat(500)] {
            let error = Fields::from_json(bad.as_bytes()).unwrap_err();
            assert!(error.fields.contains_key(NON_FIELD), "{bad}");
        }
        assert!(Fields::from_json(b"{\"a\":\"\xff\"}").is_err());
    }

    #[test]
    fn integers_are_whole_numbers_in_a_range() {
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
    fn fields_that_were_not_read_are_unknown() {
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
    fn unknown_fields_are_listed_up_to_a_limit() {
        let many: Map<String, Value> =
            (0..100).map(|n| (format!("{n}{}", "ä".repeat(1_000)), json!(n))).collect();
        let errors = unknown(read(&json!(many).to_string()));
        assert_eq!(errors.len(), MAX_UNKNOWN);
        assert!(
            errors
                .iter()
                .all(|text| text.chars().count() == MAX_UNKNOWN_NAME + ": Unknown field.".len())
        );
    }

    #[test]
    fn an_unknown_field_does_not_replace_code_or_detail() {
        let fields = read(r#"{"code":1,"detail":2,"request_id":3,"non_field_errors":4}"#);
        let errors = unknown(fields).concat();
        assert!(
            errors.starts_with("non_field_errors: code: Unknown field. detail: Unknown field."),
            "{errors}"
        );
    }

    #[test]
    fn ids_are_positive_exact_integers() {
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
    fn booleans_may_be_missing_but_not_null() {
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
    fn all_errors_are_reported_together() {
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
    fn a_name_unknown_at_two_depths_is_reported_once() {
        let mut fields = read(r#"{"other":1,"admin":{"other":2}}"#);
        let admin = fields.object("admin");
        fields.absorb("admin", admin);
        assert_eq!(fields.finish().unwrap_err().fields["other"], [UNKNOWN]);
    }
}
