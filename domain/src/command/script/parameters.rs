//! The parameters of a script: their declaration, and the values of a request (contract 14.11).
//!
//! A value reaches the script as the environment variable `PARAM_<NAME>`. It is never a part of the
//! script's text or of a line.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::command::inputs::{Environment, MAX_ENVIRONMENT};
use crate::error::{Error, FieldErrors};
use crate::http::fields::{Fields, NULL, REQUIRED, as_integer};

/// What precedes a parameter's name in the name of its environment variable.
pub const PREFIX: &str = "PARAM_";
/// Maximum number of parameters of a script.
const MAX_PARAMETERS: usize = 50;
/// Maximum length of a parameter's name, in characters.
const MAX_NAME: usize = 64;
/// Maximum number of choices of a parameter.
const MAX_CHOICES: usize = 100;
/// Maximum length of a choice, in characters.
const MAX_CHOICE: usize = 256;
/// Maximum length of the JSON of all parameters, in bytes.
const MAX_BYTES: usize = 64 * 1024;
/// Maximum number of values without a parameter that a response lists.
const MAX_UNKNOWN: usize = 10;

/// The type of a parameter's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterType {
    /// Any text without a null character.
    String,
    /// A whole number of 64 bits.
    Integer,
    /// `true` or `false`.
    Boolean,
    /// One of the texts in `choices`.
    Choice,
}

impl ParameterType {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "string" => Self::String,
            "integer" => Self::Integer,
            "boolean" => Self::Boolean,
            "choice" => Self::Choice,
            _ => return None,
        })
    }
}

/// A parameter of a script. The API shows the same JSON that D1 stores.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parameter {
    /// The name: `[A-Z][A-Z0-9_]{0,63}`.
    pub name: String,
    /// The type of its values.
    #[serde(rename = "type")]
    pub kind: ParameterType,
    /// The texts that a value of the type `choice` can have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choices: Option<Vec<String>>,
    /// The value if a request gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// Whether a request without a value is refused, if there is no default.
    pub required: bool,
}

fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

impl Parameter {
    /// The text of a value, as the script gets it.
    fn text_of(&self, value: &Value) -> Result<String, Cow<'static, str>> {
        match (self.kind, value) {
            (ParameterType::String, Value::String(text)) if text.contains('\0') => {
                Err("Null characters are not allowed.".into())
            }
            (ParameterType::String, Value::String(text)) => Ok(text.clone()),
            (ParameterType::String, _) => Err("Not a valid string.".into()),
            (ParameterType::Integer, value) => as_integer(value)
                .map(|number| number.to_string())
                .ok_or("A valid integer is required.".into()),
            (ParameterType::Boolean, Value::Bool(value)) => Ok(value.to_string()),
            (ParameterType::Boolean, _) => Err("Must be true or false.".into()),
            (ParameterType::Choice, Value::String(text))
                if self.choices.iter().flatten().any(|choice| choice == text) =>
            {
                Ok(text.clone())
            }
            (ParameterType::Choice, _) => {
                let choices = self.choices.as_deref().unwrap_or_default().join(", ");
                Err(format!("Choose one of these: {choices}.").into())
            }
        }
    }

    /// Reads one item of `params`.
    fn read(fields: &mut Fields) -> Option<Self> {
        let name = fields.text("name", 1..=MAX_NAME);
        if name.as_ref().is_some_and(|name| !is_name(name)) {
            fields.reject(
                "name",
                "Use upper-case letters, digits and underscores, and begin with a letter.",
            );
        }
        let kind = fields.text("type", 1..=MAX_NAME).and_then(|text| {
            let kind = ParameterType::parse(&text);
            if kind.is_none() {
                fields.reject("type", "Choose string, integer, boolean or choice.");
            }
            kind
        });
        let choices = Self::read_choices(fields, kind);
        let required = fields.optional_boolean("required").unwrap_or(false);
        let default = fields.value("default").cloned();
        let parameter = Self { name: name?, kind: kind?, choices, default, required };
        if let Some(Err(problem)) = parameter.default.as_ref().map(|value| parameter.text_of(value))
        {
            fields.reject("default", problem);
        }
        Some(parameter)
    }

    fn read_choices(fields: &mut Fields, kind: Option<ParameterType>) -> Option<Vec<String>> {
        let is_choice = kind == Some(ParameterType::Choice);
        if fields.value("choices").is_none() {
            if is_choice {
                fields.reject("choices", REQUIRED);
            }
            return None;
        }
        let choice = |value: &Value| {
            let text = value.as_str()?;
            let is_short = (1..=MAX_CHOICE).contains(&text.chars().count());
            (is_short && !text.contains('\0')).then(|| text.to_owned())
        };
        let message = "Ensure each choice is a string of 1 to 256 characters.";
        let choices = fields.optional_list("choices", MAX_CHOICES, message, choice)?;
        if !is_choice {
            fields.reject("choices", "Only the type choice has choices.");
        } else if choices.is_empty() {
            fields.reject("choices", "Give at least one choice.");
        }
        Some(choices)
    }
}

/// Reads `params`: the declaration of the parameters. It may be missing, but not null.
pub(crate) fn read_parameters(fields: &mut Fields) -> Option<Vec<Parameter>> {
    if fields.any("params").is_some_and(Value::is_null) {
        fields.reject("params", NULL);
    }
    let items = fields.items("params", MAX_PARAMETERS)?;
    let mut all: Vec<Parameter> = Vec::with_capacity(items.len());
    for (index, mut item) in items.into_iter().enumerate() {
        let parameter = Parameter::read(&mut item);
        if parameter.as_ref().is_some_and(|new| all.iter().any(|old| old.name == new.name)) {
            item.reject("name", "Another parameter has this name.");
        }
        fields.absorb_item("params", index, item);
        all.extend(parameter);
    }
    if json!(all).to_string().len() > MAX_BYTES {
        fields.reject("params", format!("Ensure their JSON has no more than {MAX_BYTES} bytes."));
    }
    Some(all)
}

/// The environment variables for the values of a request.
///
/// # Errors
/// See [`super::ScriptVersion::variables`].
pub(super) fn variables(
    declared: &[Parameter],
    values: &Map<String, Value>,
) -> Result<Environment, Error> {
    let mut problems: Vec<Cow<'static, str>> = Vec::new();
    let is_declared = |name: &&String| declared.iter().any(|parameter| parameter.name == **name);
    let unknown = values.keys().filter(|name| !is_declared(name)).take(MAX_UNKNOWN);
    problems.extend(
        unknown.map(|name| format!("{name:.64}: The script has no such parameter.").into()),
    );
    let mut environment = Environment::new();
    for parameter in declared {
        let name = &parameter.name;
        let sent = values.get(name).filter(|value| !value.is_null());
        match sent.or(parameter.default.as_ref()).map(|value| parameter.text_of(value)) {
            Some(Ok(text)) => {
                environment.insert(format!("{PREFIX}{name}"), text);
            }
            Some(Err(problem)) => problems.push(format!("{name}: {problem}").into()),
            None if parameter.required => problems.push(format!("{name}: {REQUIRED}").into()),
            None => {}
        }
    }
    if environment.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
        > MAX_ENVIRONMENT
    {
        problems.push(
            format!("Ensure names and values have no more than {MAX_ENVIRONMENT} bytes together.")
                .into(),
        );
    }
    if problems.is_empty() {
        Ok(environment)
    } else {
        Err(Error::fields(FieldErrors::from([("params".into(), problems)])))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn read(params: Value) -> Result<Vec<Parameter>, Error> {
        let body = json!({"params": params}).to_string();
        let mut fields = Fields::from_json(body.as_bytes()).unwrap();
        let all = read_parameters(&mut fields);
        fields.finish_with(all)
    }

    /// Asserts that each of these texts is in the messages for `params`.
    #[track_caller]
    fn refused(params: Value, texts: &[&str]) {
        let error = read(params.clone()).expect_err(&params.to_string());
        let messages = error.fields["params"].join("\n");
        texts.iter().for_each(|text| assert!(messages.contains(text), "{params}: {messages}"));
    }

    #[test]
    fn the_stored_json_equals_the_sent_json() {
        let sent = json!([
            {"name": "TEXT", "type": "string", "default": "", "required": false},
            {"name": "N_1", "type": "integer", "default": -7, "required": true},
            {"name": "FORCE", "type": "boolean", "required": true},
            {"name": "X", "type": "choice", "choices": ["a", "b c"], "default": "b c", "required": false},
        ]);
        let all = read(sent.clone()).unwrap();
        assert_eq!(json!(all), sent);
        assert_eq!(serde_json::from_value::<Vec<Parameter>>(sent).unwrap(), all);
        let short =
            read(json!([{"name": "A", "type": "string", "choices": null, "default": null}]));
        assert_eq!(
            json!(short.unwrap()),
            json!([{"name": "A", "type": "string", "required": false}])
        );
        assert_eq!(read(json!([])), Ok(vec![]));
    }

    #[test]
    fn malformed_declarations_are_refused_with_their_place() {
        for bad in ["", "a", "1A", "_A", "A-B", "A B", "PÄ", "A\n", &"A".repeat(65)] {
            refused(json!([{"name": bad, "type": "string"}]), &["params[0].name: "]);
        }
        assert!(read(json!([{"name": "A".repeat(64), "type": "string"}])).is_ok());
        refused(json!([{"name": "A", "type": "float"}]), &["params[0].type: Choose string"]);
        refused(
            json!([{"name": "A", "type": "string"}, {}]),
            &["params[1].name: ", "params[1].type: "],
        );
        refused(json!([{"name": "A", "type": "choice"}]), &["params[0].choices: "]);
        refused(json!([{"name": "A", "type": "choice", "choices": []}]), &["params[0].choices: "]);
        refused(json!([{"name": "A", "type": "choice", "choices": [1]}]), &["params[0].choices: "]);
        refused(
            json!([{"name": "A", "type": "string", "choices": ["a"]}]),
            &["params[0].choices: "],
        );
        refused(
            json!([{"name": "A", "type": "integer", "default": "1"}]),
            &["params[0].default: "],
        );
        refused(
            json!([{"name": "A", "type": "choice", "choices": ["a"], "default": "b"}]),
            &["params[0].default: Choose one of these: a."],
        );
        refused(
            json!([{"name": "A", "type": "string", "required": "no"}]),
            &["params[0].required: "],
        );
        let twice = json!([{"name": "A", "type": "string"}, {"name": "A", "type": "integer"}]);
        refused(twice, &["params[1].name: Another parameter has this name."]);
        refused(json!(vec![json!({"name": "A", "type": "string"}); 51]), &["no more than 50"]);
        for bad in [json!({}), json!("x"), json!([1]), Value::Null] {
            refused(bad, &[]);
        }
        let choices: Vec<String> = (0..100).map(|n| format!("{n:0200}")).collect();
        let many: Vec<Value> = (0..4)
            .map(|n| json!({"name": format!("A{n}"), "type": "choice", "choices": choices}))
            .collect();
        refused(json!(many), &["no more than 65536 bytes"]);
    }

    #[test]
    fn unknown_fields_of_a_declaration_are_refused_by_name() {
        let item = json!({"name": "A", "type": "string", "requierd": true});
        let error = read(json!([item, item])).unwrap_err();
        assert_eq!(error.fields["requierd"], ["Unknown field."]);
        let error = read(json!([{"type": "string", "zzz": 1}])).unwrap_err();
        assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["params", "zzz"]);
    }

    fn declared() -> Vec<Parameter> {
        read(json!([
            {"name": "TEXT", "type": "string"},
            {"name": "DEPTH", "type": "integer", "required": true},
            {"name": "FORCE", "type": "boolean", "default": false},
            {"name": "COLOUR", "type": "choice", "choices": ["red", "blue"], "default": "red", "required": true},
        ]))
        .unwrap()
    }

    fn values(values: Value) -> Result<Environment, Error> {
        variables(&declared(), values.as_object().unwrap())
    }

    #[test]
    fn values_become_variables() {
        let all = values(json!({"TEXT": "a\n'b'", "DEPTH": 3.0, "FORCE": true, "COLOUR": "blue"}));
        let expected = [
            ("PARAM_COLOUR", "blue"),
            ("PARAM_DEPTH", "3"),
            ("PARAM_FORCE", "true"),
            ("PARAM_TEXT", "a\n'b'"),
        ];
        let pairs = |env: Environment| env.into_iter().collect::<Vec<_>>();
        let expected: Vec<_> =
            expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(pairs(all.unwrap()), expected);
        // Null counts as no value, and a parameter without a value has no variable.
        let few = values(json!({"DEPTH": i64::MIN, "FORCE": null})).unwrap();
        assert_eq!(few.keys().collect::<Vec<_>>(), ["PARAM_COLOUR", "PARAM_DEPTH", "PARAM_FORCE"]);
        assert_eq!(few["PARAM_DEPTH"], i64::MIN.to_string());
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        let messages = |sent: Value| values(sent).unwrap_err().fields["params"].join("\n");
        assert_eq!(messages(json!({})), "DEPTH: This field is required.");
        assert_eq!(
            messages(json!({"depth": 1, "DEPTH": null})),
            "depth: The script has no such parameter.\nDEPTH: This field is required."
        );
        let wrong = messages(json!({"TEXT": 1, "DEPTH": "1", "FORCE": "true", "COLOUR": "green"}));
        assert_eq!(wrong.lines().count(), 4, "{wrong}");
        assert!(wrong.contains("COLOUR: Choose one of these: red, blue."));
        assert!(messages(json!({"TEXT": "a\0", "DEPTH": 1.5})).contains("TEXT: Null"));
        let long = "x".repeat(MAX_ENVIRONMENT);
        assert!(messages(json!({"TEXT": long, "DEPTH": 1})).contains("32768 bytes"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A shell that a script starts sees exactly the value, whatever it contains.
        #[test]
        fn a_value_is_data(value in "\\PC{0,40}|[\\x01-\\x7f]{0,40}") {
            let set = values(json!({"TEXT": value, "DEPTH": 1})).unwrap();
            let output = Command::new("/bin/sh")
                .args(["-c", "printf %s \"$PARAM_TEXT\""])
                .envs(&set)
                .output()
                .unwrap();
            prop_assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
        }

        /// A declaration that was accepted accepts its own default, and never another type.
        #[test]
        fn an_accepted_value_has_the_declared_type(number in any::<i64>(), text in "[a-z ]{1,9}") {
            for (value, fits) in [
                (json!(number), "integer"), (json!(text), "string"), (json!(true), "boolean"),
                (json!([]), ""), (json!({}), ""), (json!(0.5), ""),
            ] {
                for kind in ["string", "integer", "boolean"] {
                    let result = read(json!([{"name": "A", "type": kind, "default": value}]));
                    prop_assert_eq!(result.is_ok(), kind == fits, "{} {}", kind, value);
                }
            }
        }
    }
}
