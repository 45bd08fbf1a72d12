//! Scripts: stored programs that commands run by id (contract 14.10).
//!
//! A script has versions. A version never changes, and a command names one ([`ScriptRef`]).

pub mod carrier;
mod freeze;
pub mod parameters;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::agent::wire;
use crate::command::inputs::Environment;
use crate::error::Error;
use crate::http::fields::{BLANK, Fields, NULL, REQUIRED};
use crate::http::page::{self, last_value, search_words};
use crate::id;
use parameters::{Parameter, read_parameters, variables};

/// Maximum length of a script's name, in characters.
const MAX_NAME: usize = 64;
/// Maximum length of a description, in characters.
const MAX_DESCRIPTION: usize = 1_000;
/// Maximum length of an interpreter, in characters.
const MAX_INTERPRETER: usize = 256;
/// Maximum length of a body, in bytes.
pub const MAX_BODY: usize = 256 * 1024;
/// The interpreter of a script whose request names none.
pub const DEFAULT_INTERPRETER: &str = "/bin/sh";
/// The number of the first version.
pub const FIRST_VERSION: i64 = 1;
/// Maximum number of a version: JSON and SQLite hold it exactly.
const MAX_VERSION: i64 = i32::MAX as i64;
/// The fields of a script object that `PUT` and `PATCH` accept and ignore.
const READ_ONLY: &[&str] =
    &["id", "version", "body_bytes", "sha256", "owner", "added_at", "updated_at"];

/// A version of a script. Its text is `<id>@<version>`, in JSON and in D1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ScriptRef {
    /// The script's id.
    pub id: Uuid,
    /// The number of the version.
    pub version: i64,
}

impl fmt::Display for ScriptRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.id, self.version)
    }
}

/// An entry of the list `scripts` in an access control list: all versions of a script, or one. Its
/// text is `<id>` or `<id>@<version>`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllowedScript {
    /// The script's id.
    pub id: Uuid,
    /// The number of the version; `None`: every version.
    pub version: Option<i64>,
}

impl AllowedScript {
    /// Whether the entry allows a version.
    pub fn allows(self, script: ScriptRef) -> bool {
        self.id == script.id && self.version.is_none_or(|version| version == script.version)
    }
}

impl fmt::Display for AllowedScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            Some(version) => write!(f, "{}", ScriptRef { id: self.id, version }),
            None => write!(f, "{}", self.id),
        }
    }
}

/// The text is neither the id of a script nor a reference to one version of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAScript;

impl fmt::Display for NotAScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Not a valid script: give an id, or an id, @ and a version.")
    }
}

impl FromStr for AllowedScript {
    type Err = NotAScript;

    fn from_str(text: &str) -> Result<Self, NotAScript> {
        let (id, version) = match text.split_once('@') {
            Some((id, version)) => (id, Some(read_version(version).ok_or(NotAScript)?)),
            None => (text, None),
        };
        Ok(Self { id: id::parse(id).ok_or(NotAScript)?, version })
    }
}

/// Reads the number of a version from its only text: digits without a leading zero.
fn read_version(text: &str) -> Option<i64> {
    let is_canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    let number = is_canonical.then(|| text.parse().ok()).flatten();
    number.filter(|number| (FIRST_VERSION..=MAX_VERSION).contains(number))
}

impl FromStr for ScriptRef {
    type Err = NotAScript;

    fn from_str(text: &str) -> Result<Self, NotAScript> {
        let AllowedScript { id, version } = text.parse()?;
        Ok(Self { id, version: version.ok_or(NotAScript)? })
    }
}

/// Implements serde for types that are texts in JSON.
macro_rules! as_text {
    ($($type:ident),+) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<'_, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}

as_text!(ScriptRef, AllowedScript);

/// What a request runs, if it runs a script. The script may not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScriptCall {
    /// The script's id.
    pub script: Uuid,
    /// The number of the version; `None`: the latest.
    pub version: Option<i64>,
    /// The values of its parameters by name, not checked yet.
    pub params: Map<String, Value>,
    /// The SHA-256 of the body, once the version is frozen.
    pub sha256: Option<String>,
}

impl From<ScriptRef> for ScriptCall {
    fn from(script: ScriptRef) -> Self {
        let version = Some(script.version);
        Self { script: script.id, version, params: Map::new(), sha256: None }
    }
}

impl ScriptCall {
    /// Reads `script`, `script_version` and `params`. `None`: the request names no script, or a
    /// field was rejected.
    pub(crate) fn read(fields: &mut Fields) -> Option<Self> {
        if fields.value("script").is_none() {
            for name in ["script_version", "params"] {
                if fields.value(name).is_some() {
                    fields.reject(name, "Give this with script only.");
                }
            }
            return None;
        }
        let version = fields.optional_integer("script_version", FIRST_VERSION..=MAX_VERSION);
        let params = match fields.value("params").cloned() {
            None => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) => {
                fields.reject("params", "Not a valid object.");
                Map::new()
            }
        };
        let text = fields.optional_text("script", 1..=64)?;
        let script = id::parse(&text);
        if script.is_none() {
            fields.reject("script", "Not a valid UUID.");
        }
        Some(Self { script: script?, version, params, sha256: None })
    }
}

/// The error for a script or a version that a request names and that does not exist.
pub fn unknown_script() -> Error {
    Error::field("script", "No such script, or no such version of it.")
}

/// A version of a script, as D1 has it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct ScriptVersion {
    /// The script's id.
    pub id: Uuid,
    /// The number of the version.
    pub version: i64,
    /// The script's name in this version.
    pub name: String,
    /// The program that reads the body, and its arguments, separated by blanks.
    pub interpreter: String,
    /// The text of the script.
    pub body: String,
    /// The SHA-256 of the body, in lower-case hexadecimal.
    pub sha256: String,
    /// The parameters that a request can set.
    pub params: Vec<Parameter>,
}

impl ScriptVersion {
    /// The id and the number of the version.
    pub fn reference(&self) -> ScriptRef {
        ScriptRef { id: self.id, version: self.version }
    }

    /// The `line` of a command that runs it.
    pub fn line(&self) -> String {
        format!("script:{}@{}", self.name, self.version)
    }

    /// The environment variables that pass the parameters to the script.
    ///
    /// # Errors
    /// All invalid values, under `params`. Each message begins with the parameter's name.
    pub fn variables(&self, params: &Map<String, Value>) -> Result<Environment, Error> {
        variables(&self.params, params)
    }

    /// The form that an agent gets.
    pub fn payload(self) -> wire::Script {
        wire::Script { interpreter: self.interpreter, body: self.body, sha256: self.sha256 }
    }
}

/// A valid request to create a script, or to replace one.
#[derive(Clone, PartialEq, Debug)]
pub struct NewScript {
    /// The name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The program that reads the body, and its arguments, separated by blanks.
    pub interpreter: String,
    /// The text of the script.
    pub body: String,
    /// The parameters that a request can set.
    pub params: Vec<Parameter>,
}

/// A valid change of a script. `None`: the field keeps its value.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct ScriptChanges {
    /// The name.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// The program that reads the body, and its arguments, separated by blanks.
    pub interpreter: Option<String>,
    /// The text of the script.
    pub body: Option<String>,
    /// The parameters that a request can set.
    pub params: Option<Vec<Parameter>>,
}

/// Whether a name can be shown in one line.
fn is_one_line(text: &str) -> bool {
    !text.contains(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'))
}

/// Reads `name`.
fn read_name(fields: &mut Fields) -> Option<String> {
    let name = fields.text("name", 1..=MAX_NAME)?;
    if is_one_line(&name) && name.trim() == name {
        return Some(name);
    }
    fields.reject(
        "name",
        "A name may not have line breaks, other control characters, or blanks at its ends.",
    );
    None
}

/// Whether a text names a program, as a path or by its name in `PATH`, and arguments.
fn is_interpreter(text: &str) -> bool {
    let is_word = |word: &str| {
        word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte))
    };
    let is_program = |word: &str| {
        word.starts_with('/')
            || (word.starts_with(|c: char| c.is_ascii_alphanumeric()) && !word.contains(['/', '=']))
    };
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    words.next().is_some_and(|word| is_program(word) && is_word(word)) && words.all(is_word)
}

/// Reads `interpreter`, which may be missing, but not null.
fn read_interpreter(fields: &mut Fields) -> Option<String> {
    if fields.any("interpreter").is_some_and(Value::is_null) {
        fields.reject("interpreter", NULL);
    }
    let interpreter = fields.optional_text("interpreter", 1..=MAX_INTERPRETER)?;
    if is_interpreter(&interpreter) {
        return Some(interpreter);
    }
    fields.reject(
        "interpreter",
        "Give an absolute path or the name of a program, and arguments of letters, digits and _@%+=:,./-, separated by blanks.",
    );
    None
}

/// Reads `body`.
fn read_body(fields: &mut Fields) -> Option<String> {
    let problem: Cow<'static, str> = match fields.any("body") {
        None => REQUIRED.into(),
        Some(Value::Null) => NULL.into(),
        Some(Value::String(body)) if body.trim().is_empty() => BLANK.into(),
        Some(Value::String(body)) if body.contains('\0') => {
            "Null characters are not allowed.".into()
        }
        Some(Value::String(body)) if body.len() > MAX_BODY => {
            format!("Ensure this field has no more than {MAX_BODY} bytes.").into()
        }
        Some(Value::String(body)) => return Some(body.clone()),
        Some(_) => "Not a valid string.".into(),
    };
    fields.reject("body", problem);
    None
}

impl NewScript {
    /// Reads a `POST`.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        let (name, body) = (read_name(&mut fields), read_body(&mut fields));
        let description = fields.non_null_text("description", MAX_DESCRIPTION).unwrap_or_default();
        let interpreter =
            read_interpreter(&mut fields).unwrap_or_else(|| DEFAULT_INTERPRETER.into());
        let params = read_parameters(&mut fields).unwrap_or_default();
        let (name, body) = fields.finish_with(name.zip(body))?;
        Ok(Self { name, description, interpreter, body, params })
    }
}

impl From<NewScript> for ScriptChanges {
    fn from(whole: NewScript) -> Self {
        Self {
            name: Some(whole.name),
            description: Some(whole.description),
            interpreter: Some(whole.interpreter),
            body: Some(whole.body),
            params: Some(whole.params),
        }
    }
}

impl ScriptChanges {
    /// Reads a `PUT`: a field that is not sent gets the value of a new script.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read_all(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        NewScript::read(fields).map(Self::from)
    }

    /// Reads a `PATCH`. All fields are optional.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        let changes = Self {
            name: fields.has("name").then(|| read_name(&mut fields)).flatten(),
            description: fields.non_null_text("description", MAX_DESCRIPTION),
            interpreter: read_interpreter(&mut fields),
            body: fields.has("body").then(|| read_body(&mut fields)).flatten(),
            params: read_parameters(&mut fields),
        };
        fields.finish()?;
        Ok(changes)
    }
}

/// The filters of a list of scripts.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ScriptFilter {
    /// The exact name.
    pub name: Option<String>,
    /// Words that name and description must have, in lower case.
    pub words: Vec<String>,
}

impl ScriptFilter {
    /// Reads `name` and `search`.
    ///
    /// # Errors
    /// A field error if `search` is malformed.
    pub fn from_query(query: &page::Query) -> Result<Self, Error> {
        Ok(Self { name: last_value(query, "name").map(str::to_owned), words: search_words(query)? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const ID: &str = "01936d3e-7a00-7000-8000-000000000000";

    fn fields(body: &Value) -> Fields {
        Fields::from_json(body.to_string().as_bytes()).unwrap()
    }

    /// Asserts that the errors are about exactly these fields.
    #[track_caller]
    fn refused<T: fmt::Debug>(result: Result<T, Error>, names: &[&str]) {
        let error = result.unwrap_err();
        assert_eq!(error.fields.keys().map(AsRef::as_ref).collect::<Vec<_>>(), names);
    }

    #[test]
    fn a_new_script_needs_a_name_and_a_body() {
        let new = NewScript::read(fields(&json!({"name": "Restart web", "body": "id"}))).unwrap();
        assert_eq!((new.name.as_str(), new.interpreter.as_str()), ("Restart web", "/bin/sh"));
        assert_eq!((new.description.as_str(), new.params.len()), ("", 0));
        refused(NewScript::read(fields(&json!({}))), &["body", "name"]);
        let with = |name: &str, value: Value| {
            let mut body = json!({"name": "a", "body": "b"});
            body[name] = value;
            NewScript::read(fields(&body))
        };
        for bad in ["", " ", "a\nb", " a", "a\u{2028}", "a\0", &"x".repeat(65)] {
            refused(with("name", json!(bad)), &["name"]);
        }
        for bad in [json!(""), json!("\n"), json!("a\0"), json!(7), Value::Null] {
            refused(with("body", bad), &["body"]);
        }
        assert!(with("body", json!("é".repeat(MAX_BODY / 2))).is_ok());
        refused(with("body", json!("é".repeat(MAX_BODY / 2) + "x")), &["body"]);
        refused(with("description", json!("x".repeat(1_001))), &["description"]);
        refused(with("zzz", json!(1)), &["zzz"]);
        refused(with("version", json!(1)), &["version"]);
    }

    #[test]
    fn an_interpreter_is_a_program_with_plain_arguments() {
        let with = |text: &str| {
            NewScript::read(fields(&json!({"name": "a", "body": "b", "interpreter": text})))
        };
        for good in ["sh", "/bin/bash -eu", "/usr/bin/env python3 -X utf8", "perl5.36", "/opt/a+b"]
        {
            assert!(with(good).is_ok(), "{good}");
        }
        for bad in
            ["", " ", "a/b", "./x", "-c", "A=b sh", "sh -c 'id'", "sh;id", "a\nb", "sh $(id)"]
        {
            refused(with(bad), &["interpreter"]);
        }
    }

    #[test]
    fn a_change_ignores_the_read_only_fields() {
        let whole = json!({"id": ID, "version": 3, "body_bytes": 1, "sha256": "x", "owner": null, "added_at": "", "updated_at": "",
            "name": "a", "body": "b"});
        let all = ScriptChanges::read_all(fields(&whole)).unwrap();
        assert_eq!((all.description.as_deref(), all.params), (Some(""), Some(vec![])));
        let some = ScriptChanges::read(fields(&json!({"id": ID, "description": "x"}))).unwrap();
        assert_eq!(some, ScriptChanges { description: Some("x".into()), ..Default::default() });
        refused(ScriptChanges::read_all(fields(&json!({"body": "b"}))), &["name"]);
        for name in ["name", "description", "interpreter", "body", "params"] {
            refused(ScriptChanges::read(fields(&json!({name: null}))), &[name]);
        }
    }

    #[test]
    fn a_call_names_a_script_by_its_id() {
        let read = |body: Value| {
            let mut fields = fields(&body);
            let call = ScriptCall::read(&mut fields);
            fields.finish().map(|()| call)
        };
        let call = read(json!({"script": ID, "script_version": 2, "params": {"A": 1}}));
        let call = call.unwrap().unwrap();
        assert_eq!((call.script.to_string().as_str(), call.version), (ID, Some(2)));
        assert_eq!(read(json!({"script": null, "params": null})), Ok(None));
        refused(read(json!({"script": "restart"})), &["script"]);
        refused(read(json!({"script": 7, "params": {}, "script_version": 1})), &["script"]);
        refused(read(json!({"script": ID, "script_version": 0})), &["script_version"]);
        refused(read(json!({"script": ID, "params": []})), &["params"]);
        refused(read(json!({"params": {}, "script_version": 1})), &["params", "script_version"]);
    }

    #[test]
    fn a_reference_is_a_text() {
        let one: ScriptRef = format!("{ID}@12").parse().unwrap();
        assert_eq!(json!(one), json!(format!("{ID}@12")));
        let upper: AllowedScript = ID.to_uppercase().parse().unwrap();
        assert_eq!(json!(upper), json!(ID));
        assert!(upper.allows(one));
        let version = |text: &str| format!("{ID}@{text}").parse::<AllowedScript>();
        assert!(version("12").unwrap().allows(one) && !version("1").unwrap().allows(one));
        for bad in ["", "0", "01", "+1", "-1", "1.0", "1@1", "2147483648", "99999999999999999999"] {
            assert_eq!(version(bad), Err(NotAScript), "{bad}");
        }
        assert_eq!("x@1".parse::<ScriptRef>(), Err(NotAScript));
        assert_eq!(ID.parse::<ScriptRef>(), Err(NotAScript));
        assert!(serde_json::from_value::<ScriptRef>(json!(7)).is_err());
    }

    proptest! {
        #[test]
        fn a_reference_survives_its_text(id in any::<u128>(), version in 1..=MAX_VERSION) {
            let id = Uuid::from_u128(id);
            let one = ScriptRef { id, version };
            prop_assert_eq!(one.to_string().parse::<ScriptRef>(), Ok(one));
            let entry = AllowedScript { id, version: None };
            prop_assert_eq!(entry.to_string().parse::<AllowedScript>(), Ok(entry));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
            if let Ok(entry) = text.parse::<AllowedScript>() {
                prop_assert_eq!(entry.to_string(), text.to_lowercase());
            }
        }
    }
}
