//! `register` and `unregister`: how a server comes to be in a workspace, and leaves it
//! (agent-protocol 1.2 and 1.3).
//!
//! The token is read from a file or the environment: as an argument everybody on the host could see
//! it. Neither it nor the key is ever shown.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farhand_domain::secret::Secret;
use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::config::{self, Service, Settings};
use crate::connection::client::Client;
use crate::host::facts::Facts;
use crate::journal::file::JournalFile;

/// How long the service has for an answer. Longer than for a report, as the outcome of a
/// registration without an answer is not known.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// How much of the service's words is shown, in characters.
const MAX_WORDS: usize = 300;

/// The arguments of `register`.
pub struct Registration {
    /// The service.
    pub service: Service,
    /// The registration token.
    pub token: Secret,
    /// The server's name; without one the host's.
    pub name: Option<String>,
    /// Where the agent's file goes.
    pub config: PathBuf,
    /// Whether a file that is there is replaced.
    pub force: bool,
}

/// Registers this host as a server and writes the agent's file. Returns a report in lines.
///
/// # Errors
/// The reason, in one line.
pub async fn register(registration: Registration) -> Result<String, String> {
    let Registration { service, token, name, config, force } = registration;
    let Some(name) = name.or_else(|| nix::unistd::gethostname().ok()?.into_string().ok()) else {
        return Err("this host has no name: use --name".to_owned());
    };
    // All that can go wrong here goes wrong before there is a server.
    let draft = Draft::begin(&config, force)?;
    let client = Client::of_token(&service, &token)?;
    client.connect().await.map_err(|error| format!("{service} is not reached: {error}"))?;
    let os = Facts::read().os;
    let body = json!({"name": name, "platform": os.platform_like.or(os.platform), "tags": {}});
    let path = "/api/servers/servers/register/";
    let asked = client.ask(Method::POST, path, Bytes::from(body.to_string()), ANSWERS_WITHIN).await;
    let unclear = "whether the server was registered is not known: look for it in the workspace";
    let (status, answer) = asked.map_err(|why| format!("{service}: {}; {unclear}", why.0))?;
    if status != 201 {
        return Err(format!("not registered: {}", refusal(status, &answer)));
    }
    let made = Registered::read(&answer)
        .ok_or_else(|| format!("{service}: the answer is not a server's; {unclear}"))?;
    if let Err(why) = draft.finish(&made.file(&service)) {
        let undone = match undo(&service, &made).await {
            Ok(()) => "the server is unregistered again".to_owned(),
            Err(undone) => {
                format!("server {} ({}) stays in the workspace: {undone}", made.name, made.id)
            }
        };
        return Err(format!("{why}; {undone}"));
    }
    let (name, id, shown) = (&made.name, made.id, config.display());
    Ok(format!(
        "registered as {name}, with the id {id}\nthe agent's file is {shown}\nto run it as a service: farhand-agent install --config {shown}"
    ))
}

/// What the service made.
struct Registered {
    id: Uuid,
    key: Secret,
    name: String,
}

impl Registered {
    fn read(answer: &Value) -> Option<Self> {
        let text = |name: &str| answer[name].as_str().map(str::to_owned);
        let key = Secret::new(text("key")?);
        config::check_credential("", &key).ok()?;
        Some(Self {
            id: farhand_domain::id::parse(&text("id")?)?,
            key,
            name: plain(&text("name")?),
        })
    }

    /// The agent's file.
    fn file(&self, service: &Service) -> String {
        // Of the three a URL alone can have what TOML takes for something else.
        let url = service.to_string().replace('\\', "\\\\").replace('"', "\\\"");
        // The registration was allowed over it, and the agent would refuse to start otherwise.
        let plain_http = if service.is_open() { "allow_plain_http = true\n" } else { "" };
        format!(
            "url = \"{url}\"\nid = \"{}\"\nkey = \"{}\"\n{plain_http}",
            self.id,
            self.key.expose()
        )
    }
}

/// Takes a registration back.
async fn undo(service: &Service, made: &Registered) -> Result<(), String> {
    match ask_to_unregister(&Client::of_server(service, made.id, &made.key)?).await? {
        (204, _) => Ok(()),
        (status, answer) => Err(refusal(status, &answer)),
    }
}

async fn ask_to_unregister(client: &Client) -> Result<(u16, Value), String> {
    let path = "/api/servers/servers/-/unregister/";
    let asked = client.ask(Method::DELETE, path, Bytes::new(), ANSWERS_WITHIN).await;
    asked.map_err(|why| format!("{} is not reached: {}", client.service(), why.0))
}

/// Takes the server out of its workspace, and removes the agent's file and its state. Returns a
/// report in lines. With `force` also if the service does not know the server any more.
///
/// # Errors
/// The reason, in one line.
pub async fn unregister(settings: &Settings, config: &Path, force: bool) -> Result<String, String> {
    let client = Client::new(settings)?;
    let (id, shown) = (settings.id, config.display());
    let told = match ask_to_unregister(&client).await? {
        (204, _) => format!("server {id} is unregistered"),
        (403, _) if force => {
            format!("the service does not know server {id} and its key, as if it was deleted")
        }
        (403, _) => {
            return Err(format!(
                "the service does not know server {id} and its key, as if it was deleted: with --force, {shown} is removed all the same"
            ));
        }
        (status, answer) => return Err(format!("not unregistered: {}", refusal(status, &answer))),
    };
    fs::remove_file(config)
        .map_err(|error| format!("{told}; {shown} could not be removed: {error}"))?;
    let runs = |folder: &PathBuf| matches!(JournalFile::inspect(folder), Ok(Some(seen)) if seen.agent.is_some());
    let still = if settings.state_dirs.iter().any(runs) {
        "\nits agent still runs here: stop it"
    } else {
        ""
    };
    for folder in &settings.state_dirs {
        let describe = |error| {
            format!("{told}, and {shown} is removed; {} could not be: {error}", folder.display())
        };
        JournalFile::remove(folder).map_err(describe)?;
    }
    // The folder beside the file, if no other server's state is in it.
    let _ = fs::remove_dir(config.with_extension("state"));
    Ok(format!("{told}\n{shown} and the agent's state are removed{still}"))
}

/// What the service says to a refused call, in one line.
fn refusal(status: u16, answer: &Value) -> String {
    let mut words = Vec::new();
    for (name, value) in answer.as_object().into_iter().flatten() {
        match value {
            Value::String(text) if name == "detail" => words.push(text.clone()),
            Value::Array(messages) => {
                let messages: Vec<_> = messages.iter().filter_map(Value::as_str).collect();
                words.push(format!("{name}: {}", messages.join(" ")));
            }
            _ => {}
        }
    }
    let hint =
        if (300..400).contains(&status) { " (is that the workspace's address?)" } else { "" };
    let words =
        if words.is_empty() { String::new() } else { format!(": {}", plain(&words.join("; "))) };
    format!("status {status}{hint}{words}")
}

/// A text from outside as it may be shown: in one line, and not too long.
fn plain(text: &str) -> String {
    text.chars().take(MAX_WORDS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A file of the agent's that is being written: beside the place where it will be, so that it is
/// there whole or not at all. Dropped without [`finish`](Self::finish), nothing is left of it.
struct Draft<'a> {
    path: &'a Path,
    beside: PathBuf,
    file: File,
    force: bool,
}

impl<'a> Draft<'a> {
    /// Makes sure that the file can be written, and may be.
    fn begin(path: &'a Path, force: bool) -> Result<Self, String> {
        if !force && is_there(path) {
            return Err(format!(
                "{}: a file is there already, and is replaced with --force only",
                path.display()
            ));
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let describe = |error: io::Error| format!("{}: {error}", folder.display());
        // The folder is no secret, and an agent of another account must be able to enter it.
        DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(describe)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = folder.join(format!(".{name}.{:016x}", fastrand::u64(..)));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)
            .map_err(describe)?;
        let draft = Self { path, beside, file, force };
        if path.is_dir() {
            return Err(format!("{}: that is a folder", path.display()));
        }
        Ok(draft)
    }

    /// Writes the file and puts it into its place.
    fn finish(mut self, content: &str) -> Result<(), String> {
        let mut write = || {
            self.file.write_all(content.as_bytes())?;
            self.file.sync_all()?;
            if self.force {
                fs::rename(&self.beside, self.path)
            } else {
                put(&self.beside, self.path)
            }
        };
        write().map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // After a rename there is nothing left to remove.
        let _ = fs::remove_file(&self.beside);
    }
}

/// Gives a file a second name, unless something has that name already.
fn put(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        // Some file systems know no second names.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists && !is_there(to) => {
            fs::rename(from, to)
        }
        done => done,
    }
}

/// Whether there is anything at a path, a link to nowhere included.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_file_is_written_whole_and_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/agent.toml");
        Draft::begin(&path, false).unwrap().finish("one").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o755);
        assert!(Draft::begin(&path, false).err().unwrap().contains("a file is there already"));
        Draft::begin(&path, true).unwrap().finish("two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(names(path.parent().unwrap()), ["agent.toml"]);
    }

    #[test]
    fn what_came_meanwhile_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.toml");
        let draft = Draft::begin(&path, false).unwrap();
        fs::write(&path, "another").unwrap();
        assert!(draft.finish("one").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
        assert_eq!(names(directory.path()), ["agent.toml"]);
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Draft::begin(directory.path(), true).err().unwrap().ends_with("that is a folder"));
        assert!(Draft::begin(Path::new("/dev/null/agent.toml"), false).is_err());
        std::os::unix::fs::symlink("/no/such/file", directory.path().join("link")).unwrap();
        assert!(
            Draft::begin(&directory.path().join("link"), false)
                .err()
                .unwrap()
                .contains("a file is there already")
        );
        assert_eq!(names(directory.path()), ["link"]);
    }

    #[test]
    fn refusals_are_one_line() {
        let said = |status, answer: Value| refusal(status, &answer);
        assert_eq!(
            said(403, json!({"detail": "Invalid\ntoken.", "code": "INVALID_TOKEN"})),
            "status 403: Invalid token."
        );
        assert_eq!(
            said(400, json!({"name": ["Too long.", "Bad."], "x": ["No."]})),
            "status 400: name: Too long. Bad.; x: No."
        );
        assert_eq!(said(502, Value::Null), "status 502");
        assert_eq!(said(301, Value::Null), "status 301 (is that the workspace's address?)");
        assert!(said(400, json!({"detail": "x".repeat(100_000)})).len() < 400);
    }

    #[test]
    fn an_answer_that_is_not_a_servers_is_none() {
        let id = "01936d3e-7a00-7000-8000-000000000000";
        let made = Registered::read(&json!({"id": id, "key": "sesame", "name": "web-1"})).unwrap();
        let service = Service::parse("https://a.example/base/").unwrap();
        let file = format!("url = \"https://a.example/base\"\nid = \"{id}\"\nkey = \"sesame\"\n");
        assert_eq!(made.file(&service), file);
        let plain = Service::parse("http://a.example").unwrap();
        let file = format!(
            "url = \"http://a.example\"\nid = \"{id}\"\nkey = \"sesame\"\nallow_plain_http = true\n"
        );
        assert_eq!(made.file(&plain), file);
        for bad in [
            json!(null),
            json!({"id": id, "name": "a"}),
            json!({"id": "x", "key": "k", "name": "a"}),
            json!({"id": id, "key": "k\"\n", "name": "a"}),
            json!({"id": id, "key": "", "name": "a"}),
        ] {
            assert!(Registered::read(&bad).is_none(), "{bad}");
        }
    }
}
