//! Reading a request's body field by field, so that all that is wrong with it is told at once.

use std::borrow::Cow;
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

/// The message for what is no whole number.
const NOT_AN_INTEGER: &str = "A valid integer is required.";
/// The most groups that a server, or a registration token, is in.
const MAX_GROUPS: usize = 5_000;

/// A whole number as the id of a user or a group. One that JSON numbers are not exact for is nobody's, as 0 is.
pub fn as_id(value: &Value) -> Option<i64> {
    let is_whole = value.is_i64() || value.is_u64();
    is_whole.then(|| value.as_i64().filter(|id| (0..1 << 53).contains(id)).unwrap_or(0))
}

/// The fields of a body, and what was found wrong with them so far.
#[derive(Debug, Default)]
pub struct Fields {
    values: Map<String, Value>,
    errors: FieldErrors,
}

impl Fields {
    /// Reads a JSON object. An empty body is an empty object, so that what is missing is told by field.
    ///
    /// # Errors
    /// Malformed JSON, or JSON that is not an object, under `non_field_errors` (contract 3).
    pub fn from_json(body: &[u8]) -> Result<Self, Error> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(values)) => Ok(Self { values, errors: FieldErrors::new() }),
            Ok(_) => Err(Error::field(NON_FIELD, "Invalid data. Expected a JSON object.")),
            Err(error) => Err(Error::field(NON_FIELD, format!("JSON parse error: {error}"))),
        }
    }

    /// Takes the fields of a form; of a field that is there twice, the last.
    pub fn from_form(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let values = pairs.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        Self { values, errors: FieldErrors::new() }
    }

    /// All of it as JSON, the same however the request formatted and ordered it. It may hold secrets.
    pub fn canonical(&self) -> Secret {
        Secret::new(json!(self.values).to_string())
    }

    /// Notes a message for a field.
    pub fn reject(&mut self, name: &'static str, message: impl Into<Cow<'static, str>>) {
        self.errors.entry(name.into()).or_default().push(message.into());
    }

    /// The field's value, where it is there and not null.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// The field's value, where it is there, null included.
    pub fn any(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Makes a field's text lower case, as far as it is ASCII.
    pub fn lower_case(&mut self, name: &str) {
        if let Some(Value::String(text)) = self.values.get_mut(name) {
            text.make_ascii_lowercase();
        }
    }

    /// Tells whether the field is there, null included.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// A text that must be there and not blank, of so many characters.
    pub fn text(&mut self, name: &'static str, lengths: RangeInclusive<usize>) -> Option<String> {
        match self.values.get(name) {
            None => self.reject(name, REQUIRED),
            Some(Value::Null) => self.reject(name, NULL),
            Some(_) => return self.optional_text(name, lengths),
        }
        None
    }

    /// A text that may be missing or null; if it is there, it has so many characters, and a blank one is refused
    /// unless none at all are allowed too.
    pub fn optional_text(&mut self, name: &'static str, lengths: RangeInclusive<usize>) -> Option<String> {
        let (fewest, most) = lengths.into_inner();
        let text = match self.values.get(name)? {
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
    pub fn optional_integer(&mut self, name: &'static str, range: RangeInclusive<i64>) -> Option<i64> {
        let value = self.value(name)?;
        let Some(number) = value.as_i64() else {
            self.reject(name, NOT_AN_INTEGER);
            return None;
        };
        if range.contains(&number) {
            return Some(number);
        }
        self.reject(name, format!("Ensure this value is from {} to {}.", range.start(), range.end()));
        None
    }

    /// The id of a user or a group, which must be there. Ids that JSON numbers cannot tell apart are nobody's, as 0 is.
    pub fn id(&mut self, name: &'static str) -> Option<i64> {
        match self.values.get(name) {
            None => self.reject(name, REQUIRED),
            Some(Value::Null) => self.reject(name, NULL),
            Some(value) => match as_id(value) {
                Some(id) => return Some(id),
                None => self.reject(name, NOT_AN_INTEGER),
            },
        }
        None
    }

    /// A list that may be missing, but not null, of so many items at most. `message` tells what they must be.
    pub fn optional_list<T>(
        &mut self,
        name: &'static str,
        most: usize,
        message: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Option<Vec<T>> {
        match self.values.get(name)? {
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
        let mut groups = self.optional_list("groups", MAX_GROUPS, "Enter the ids of groups.", as_id)?;
        groups.sort_unstable();
        groups.dedup();
        Some(groups)
    }

    /// A boolean that may be missing, but not null.
    pub fn optional_boolean(&mut self, name: &'static str) -> Option<bool> {
        match self.values.get(name)? {
            Value::Bool(value) => return Some(*value),
            Value::Null => self.reject(name, NULL),
            _ => self.reject(name, "Must be true or false."),
        }
        None
    }

    /// The fields of an object in this object. A missing one has no fields.
    pub fn object(&mut self, name: &'static str) -> Self {
        match self.values.get(name) {
            Some(Value::Object(values)) => return Self { values: values.clone(), errors: FieldErrors::new() },
            Some(_) => self.reject(name, "Not a valid object."),
            None => self.reject(name, REQUIRED),
        }
        Self::default()
    }

    /// Takes over what was found wrong in an object read with [`Fields::object`], unless the object itself was wrong.
    pub fn absorb(&mut self, name: &'static str, inner: Self) {
        if !self.errors.contains_key(name) {
            self.errors.extend(inner.errors);
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// All that was found wrong.
    pub fn finish(self) -> Result<(), Error> {
        if self.errors.is_empty() { Ok(()) } else { Err(Error::fields(self.errors)) }
    }

    /// Ends the reading with what was read, which is there if nothing was found wrong.
    ///
    /// # Errors
    /// All that was found wrong.
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
        assert_eq!((text.as_deref(), message.as_deref()), (expected.ok(), expected.err()), "{json}");
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
    fn ids_and_lists_of_them() {
        let mut fields = read(r#"{"a":5,"b":5.5,"c":"5","d":-1,"e":null,"f":18446744073709551615,"groups":[3,1,3]}"#);
        assert_eq!((fields.id("a"), fields.id("d"), fields.id("f")), (Some(5), Some(0), Some(0)));
        assert_eq!(fields.optional_groups(), Some(vec![1, 3]));
        for bad in ["b", "c", "e", "g"] {
            assert_eq!(fields.id(bad), None, "{bad}");
        }
        let error = fields.finish().unwrap_err();
        assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["b", "c", "e", "g"]);
        assert_eq!(read("{}").optional_groups(), None);
        let many = format!(r#"{{"groups":[{}1]}}"#, "1,".repeat(5_000));
        for bad in [r#"{"groups":null}"#, r#"{"groups":1}"#, r#"{"groups":["1"]}"#, r#"{"groups":[1.5]}"#, &many] {
            let mut fields = read(bad);
            assert_eq!(fields.optional_groups(), None, "{bad}");
            assert!(fields.finish().unwrap_err().fields.contains_key("groups"), "{bad}");
        }
    }

    #[test]
    fn booleans() {
        let mut fields = read(r#"{"a":true,"b":false,"c":null,"d":"true","e":1}"#);
        assert_eq!((fields.optional_boolean("a"), fields.optional_boolean("b")), (Some(true), Some(false)));
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
}
