//! Writes tables, JSON and JSON lines to stdout, and messages to stderr.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use serde_json::Value;

use crate::error::Result;
use crate::text::{visible, visible_json};

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Format {
    /// Tables for people.
    Table,
    /// One JSON document with all fields of the API.
    Json,
    /// One JSON object on each line.
    Ndjson,
}

/// Writes to the standard output, and flushes it.
pub fn write(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Writes a message for the user to stderr. Ignores errors, because they cannot be reported.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "farhand: {}", visible(text));
}

/// Whether escape sequences for colours may be written to a stream (<https://no-color.org>).
pub fn has_colours(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal()
        && !is_set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// JSON with a line break at its end: on one line for `Ndjson`, or else indented.
pub fn json_text(value: &Value, format: Format) -> String {
    // `{:#}` indents the JSON.
    let text = if format == Format::Ndjson { value.to_string() } else { format!("{value:#}") };
    visible_json(&text) + "\n"
}

/// A table with a line of titles and aligned columns. Lines have no spaces at their end.
pub struct Table {
    titles: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(titles: &'static [&'static str]) -> Self {
        Self { titles, rows: Vec::new() }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.titles.len());
        self.rows.push(cells.iter().map(|cell| visible(cell)).collect());
    }

    pub fn text(&self) -> String {
        let titles = self.titles.iter().map(|title| (*title).to_owned()).collect::<Vec<_>>();
        let lines: Vec<&Vec<String>> = std::iter::once(&titles).chain(&self.rows).collect();
        let width = |column: usize| {
            lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..titles.len()).map(width).collect();
        let mut text = String::new();
        for cells in lines {
            let padded = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
            text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// The text of one resource: a line with a title and a value for each field.
pub fn fields_text<const N: usize>(fields: [(&str, String); N]) -> String {
    let width = fields.iter().map(|(title, _)| title.len()).max().unwrap_or(0);
    let line = |(title, value): &(&str, String)| {
        format!("{}\n", format!("{title:width$}  {}", visible(value)).trim_end())
    };
    fields.iter().map(line).collect()
}

/// Prints a list: as the table that `table` returns, or as the JSON of the API.
pub fn print_list(
    items: &[Value],
    format: Format,
    table: impl FnOnce(&[Value]) -> Result<Table>,
) -> Result<()> {
    match format {
        Format::Table => write(&table(items)?.text()),
        Format::Json => write(&json_text(&Value::from(items), format)),
        Format::Ndjson => items.iter().try_for_each(|item| write(&json_text(item, format))),
    }
}

/// `yes` or `no`.
pub fn yes(value: bool) -> String {
    (if value { "yes" } else { "no" }).to_owned()
}

/// The text, or `-`.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_names_cannot_move_the_cursor() {
        let mut table = Table::new(&["NAME", "IP"]);
        table.row(["web-1".into(), "192.0.2.1".into()]);
        table.row(["a\x1b[1A".into(), String::new()]);
        assert_eq!(table.text(), "NAME        IP\nweb-1       192.0.2.1\na\\u{1b}[1A\n");
    }

    #[test]
    fn json_is_one_document_or_one_line_each() {
        let value = serde_json::json!({"a": ["x\u{9b}"]});
        assert_eq!(json_text(&value, Format::Ndjson), "{\"a\":[\"x\\u009b\"]}\n");
        let text = json_text(&value, Format::Json);
        assert_eq!(text, "{\n  \"a\": [\n    \"x\\u009b\"\n  ]\n}\n");
    }
}
