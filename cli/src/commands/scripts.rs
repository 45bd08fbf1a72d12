//! `farhand scripts`: stored scripts.

use std::fs;
use std::io::{self, IsTerminal, Read};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::{DEFAULT_LIMIT, api, lookup, note_rest, report_deleted, typed};
use crate::client::{Client, segment};
use crate::connection::Options;
use crate::error::{Error, Result};
use crate::output::{Format, Table, json_text, note, or_dash, print_list, write};
use crate::text::visible_lines;
use crate::time;
use crate::types::Script;

const PATH: &str = "/api/events/scripts/";

/// List, show and change scripts. `farhand run --script` runs them
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List scripts
    List {
        /// Only scripts with these words in the name or the description
        #[arg(long, value_name = "WORDS")]
        search: Option<String>,
        /// How many to show
        #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
        limit: usize,
    },
    /// Print the text of a script
    Show {
        /// The name or the id of the script
        name: String,
        /// The version. The default is the latest
        #[arg(long, value_name = "N")]
        version: Option<u32>,
    },
    /// Create a script from a file
    Create {
        /// The name of the script
        name: String,
        /// The file with the text, or - for the standard input
        #[arg(long, value_name = "FILE")]
        file: String,
        #[command(flatten)]
        options: Details,
    },
    /// Change a script. Each change creates a version
    Update {
        /// The name or the id of the script
        name: String,
        /// The file with the new text, or - for the standard input
        #[arg(long, value_name = "FILE")]
        file: Option<String>,
        /// The new name
        #[arg(long, value_name = "NAME")]
        rename: Option<String>,
        #[command(flatten)]
        options: Details,
    },
    /// Delete scripts. The history of their commands is kept
    Delete {
        /// The names or ids of the scripts
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Args)]
struct Details {
    /// What the script is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// The program that runs the text. The default is the first line of the file if it begins with
    /// #!, or else /bin/sh. An update keeps the program if neither names one
    #[arg(long, value_name = "PROGRAM")]
    interpreter: Option<String>,
    /// The parameters: JSON such as '[{"name": "KEEP", "type": "integer"}]', @FILE, or - for the
    /// standard input
    #[arg(long, value_name = "JSON")]
    params: Option<String>,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<()> {
    let client = options.connect()?;
    let format = options.output;
    match &arguments.action {
        Action::List { search, limit } => {
            let filters: Vec<_> =
                search.clone().map(|words| ("search", words)).into_iter().collect();
            let (items, count) = client.list(PATH, &filters, *limit)?;
            print_list(&items, format, table)?;
            note_rest(items.len(), count);
            Ok(())
        }
        Action::Show { name, version } => show(&client, format, name, *version),
        Action::Create { name, file, options } => {
            let mut fields = options.fields(Some(file))?;
            fields.insert("name".into(), json!(name));
            report(&client.create(PATH, &Value::Object(fields))?, format, "Created")
        }
        Action::Update { name, file, rename, options } => {
            let mut fields = options.fields(file.as_deref())?;
            fields.extend(rename.as_ref().map(|name| ("name".to_owned(), json!(name))));
            if fields.is_empty() {
                return Err(Error::local("Name a change, such as `--file FILE`."));
            }
            let path = path(&client, name)?;
            report(&client.patch(&path, &Value::Object(fields))?, format, "Updated")
        }
        Action::Delete { names } => names.iter().try_for_each(|name| {
            let id = lookup::script_id(&client, name)?;
            client.delete(&format!("{PATH}{}/", segment(&id)))?;
            report_deleted(format, "script", name, &id)
        }),
    }
}

fn path(client: &Client, name: &str) -> Result<String> {
    Ok(format!("{PATH}{}/", segment(&lookup::script_id(client, name)?)))
}

fn show(client: &Client, format: Format, name: &str, version: Option<u32>) -> Result<()> {
    let mut path = path(client, name)?;
    if let Some(version) = version {
        path.push_str(&format!("versions/{version}/"));
    }
    let json: Value = client.get_json(&path)?;
    if format != Format::Table {
        return write(&json_text(&json, format));
    }
    let Some(body) = json["body"].as_str() else {
        return Err(Error::local(
            "Only staff, the author, and users with a schedule of the script can read its text.",
        ));
    };
    if io::stdout().is_terminal() { write(&visible_lines(body)) } else { write(body) }
}

impl Details {
    fn fields(&self, file: Option<&str>) -> Result<Map<String, Value>> {
        let mut fields = Map::new();
        let body = file.map(read_text).transpose()?;
        let interpreter = self.interpreter.as_deref().or(body.as_deref().and_then(first_line));
        fields.extend(interpreter.map(|program| ("interpreter".to_owned(), json!(program))));
        fields.extend(body.map(|body| ("body".to_owned(), json!(body))));
        fields.extend(self.description.as_ref().map(|text| ("description".into(), json!(text))));
        if let Some(params) = &self.params {
            let params: Value =
                serde_json::from_slice(&api::read_body(params)?).map_err(|error| {
                    Error::local(format!("The parameters are not valid JSON ({error})."))
                })?;
            fields.insert("params".into(), params);
        }
        Ok(fields)
    }
}

/// The program in the first line of a script, if that line begins with `#!`.
fn first_line(body: &str) -> Option<&str> {
    let program = body.lines().next()?.strip_prefix("#!")?.trim();
    (!program.is_empty()).then_some(program)
}

fn read_text(file: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let read = match file {
        "-" => io::stdin().lock().read_to_end(&mut bytes).map(drop),
        file => fs::read(file).map(|read| bytes = read),
    };
    read.map_err(|error| Error::local(format!("Cannot read {file}: {error}.")))?;
    String::from_utf8(bytes).map_err(|_| Error::local(format!("{file} is not UTF-8.")))
}

/// Prints a created or changed script.
fn report(json: &Value, format: Format, verb: &str) -> Result<()> {
    if format != Format::Table {
        return write(&json_text(json, format));
    }
    let script: Script = typed(json)?;
    note(&format!("{verb} {}, version {}.", script.name, script.version));
    write(&format!("{}\n", script.id))
}

fn table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&[
        "ID",
        "NAME",
        "VERSION",
        "BYTES",
        "INTERPRETER",
        "PARAMETERS",
        "OWNER",
        "UPDATED",
        "DESCRIPTION",
    ]);
    for item in items {
        let script: Script = typed(item)?;
        let params = script.params.iter().map(|parameter| {
            let mark = if parameter.required { "" } else { "?" };
            format!("{}{mark}:{}", parameter.name, parameter.r#type)
        });
        let params = params.collect::<Vec<_>>().join(",");
        table.row([
            script.id,
            script.name,
            script.version.to_string(),
            script.body_bytes.to_string(),
            script.interpreter,
            or_dash((!params.is_empty()).then_some(params)),
            or_dash(script.owner.map(|user| user.username)),
            time::shown(&script.updated_at),
            script.description,
        ]);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_names_the_interpreter() {
        assert_eq!(first_line("#!/usr/bin/env python3\nprint()\n"), Some("/usr/bin/env python3"));
        assert_eq!(first_line("#! /bin/sh -e\r\n"), Some("/bin/sh -e"));
        for body in ["echo\n#!/bin/sh\n", "#!\n", "# !/bin/sh", ""] {
            assert_eq!(first_line(body), None, "{body:?}");
        }
    }
}
