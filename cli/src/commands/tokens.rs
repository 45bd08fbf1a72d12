//! `farhand tokens`: the caller's API tokens.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::token_check::{self, Check};
use super::{DEFAULT_LIMIT, lookup, note_rest, report_deleted, typed};
use crate::client::{Client, segment};
use crate::connection::Options;
use crate::error::{Error, Result};
use crate::output::{Format, Table, json_text, note, print_list, write, yes};
use crate::time;
use crate::types::{ApiToken, NewToken};

const PATH: &str = "/api/auth/tokens/";

/// List, create, check and delete API tokens
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List your API tokens
    List {
        /// How many to show
        #[arg(short = 'n', long, default_value = DEFAULT_LIMIT)]
        limit: usize,
    },
    Create(Creation),
    Check(Check),
    /// Delete API tokens
    Delete {
        /// The names or ids of the tokens
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// Create an API token, and print its key
///
/// The key is written to the standard output, and is shown only once. Each limit restricts the
/// token. Without limits, the token can do what you can do.
#[derive(Args)]
struct Creation {
    /// The name of the token
    name: String,
    /// When the token expires: 12h, 90d, a time, or "never"
    #[arg(long, value_name = "TIME", default_value = "90d")]
    expires: String,
    /// Allow only lines that match this pattern, such as 'systemctl restart -- app-*'. May be
    /// repeated
    #[arg(long, value_name = "PATTERN")]
    allow: Vec<String>,
    /// Allow only programs without a shell whose words match, such as 'ls -l *' or 'ls ...'. May be
    /// repeated
    #[arg(long, value_name = "WORDS")]
    allow_argv: Vec<String>,
    /// Allow only this server, by its name or id. May be repeated
    #[arg(short, long, value_name = "SERVER")]
    server: Vec<String>,
    /// Allow only commands that run as this account. May be repeated
    #[arg(long = "as", value_name = "ACCOUNT")]
    accounts: Vec<String>,
    /// Allow only requests from this network, such as 192.0.2.0/24. May be repeated
    #[arg(long, value_name = "NETWORK")]
    network: Vec<String>,
    /// Allow only reads
    #[arg(long)]
    read_only: bool,
    /// Allow to read all commands that you can read, not only those that the limits allow
    #[arg(long)]
    read_all: bool,
}

pub fn execute(options: &Options, arguments: &Arguments) -> Result<u8> {
    let client = options.connect()?;
    match &arguments.action {
        Action::List { limit } => {
            let (items, count) = client.list(PATH, &[], *limit)?;
            print_list(&items, options.output, table)?;
            note_rest(items.len(), count);
        }
        Action::Create(creation) => create(&client, options.output, creation)?,
        Action::Check(check) => return token_check::execute(&client, options.output, PATH, check),
        Action::Delete { names } => {
            names.iter().try_for_each(|name| delete(&client, options.output, name))?;
        }
    }
    Ok(0)
}

fn create(client: &Client, format: Format, creation: &Creation) -> Result<()> {
    let servers = creation.server.iter().map(|server| lookup::server_id(client, server));
    let servers = servers.collect::<Result<Vec<_>>>()?;
    let expires_at = match creation.expires.as_str() {
        "never" => None,
        text => Some(time::parse_future(text, time::now())?),
    };
    let acl = creation.acl(&servers);
    let body = json!({"name": creation.name, "expires_at": expires_at, "acl": acl});
    let json = client.create(PATH, &body)?;
    if format != Format::Table {
        return write(&json_text(&json, format));
    }
    let token: NewToken = typed(&json)?;
    let Some(key) = token.key else {
        return Err(Error::local(format!(
            "The token {} was created, but the connection was lost before its key arrived. Delete it, and create another one.",
            token.id
        )));
    };
    let end = time::shown_or(token.expires_at.as_deref(), "never");
    note(&format!(
        "Created {} ({}). Expires: {end}. The key is shown only now:",
        token.name, token.id
    ));
    write(&format!("{key}\n"))
}

impl Creation {
    /// The access control list, or null if there are no limits.
    fn acl(&self, servers: &[String]) -> Value {
        let mut acl = Map::new();
        let mut limit = |name: &str, values: Value| {
            if values.as_array().is_some_and(|values| !values.is_empty()) {
                acl.insert(name.to_owned(), values);
            }
        };
        let words = |text: &String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        limit("commands", json!(self.allow));
        limit("argv", json!(self.allow_argv.iter().map(words).collect::<Vec<_>>()));
        limit("servers", json!(servers));
        limit("usernames", json!(self.accounts));
        limit("networks", json!(self.network));
        for (name, is_set) in [("read_only", self.read_only), ("read_all", self.read_all)] {
            if is_set {
                acl.insert(name.to_owned(), Value::Bool(true));
            }
        }
        if acl.is_empty() { Value::Null } else { Value::Object(acl) }
    }
}

fn delete(client: &Client, format: Format, name: &str) -> Result<()> {
    let id = lookup::id_by_name(client, PATH, "token", name)?;
    client.delete(&format!("{PATH}{}/", segment(&id)))?;
    report_deleted(format, "token", name, &id)
}

fn table(items: &[Value]) -> Result<Table> {
    let mut table = Table::new(&["ID", "NAME", "ENABLED", "EXPIRES", "LAST USED", "LIMITS"]);
    for item in items {
        let token: ApiToken = typed(item)?;
        let limits = match token.acl.as_ref().and_then(Value::as_object) {
            None => "none".to_owned(),
            Some(acl) => acl.keys().map(String::as_str).collect::<Vec<_>>().join(","),
        };
        table.row([
            token.id,
            token.name,
            yes(token.enabled),
            time::shown_or(token.expires_at.as_deref(), "never"),
            time::shown_or(token.last_used_at.as_deref(), "never"),
            limits,
        ]);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_become_an_access_control_list() {
        let mut creation = Creation {
            name: "ci".into(),
            expires: "90d".into(),
            allow: vec![],
            allow_argv: vec![],
            server: vec![],
            accounts: vec![],
            network: vec![],
            read_only: false,
            read_all: false,
        };
        assert_eq!(creation.acl(&[]), Value::Null);
        creation.allow = vec!["systemctl restart -- app-*".into()];
        creation.allow_argv = vec!["ls ...".into()];
        creation.read_all = true;
        let expected = json!({"commands": ["systemctl restart -- app-*"], "argv": [["ls", "..."]],
            "servers": ["1"], "read_all": true});
        assert_eq!(creation.acl(&["1".to_owned()]), expected);
    }
}
