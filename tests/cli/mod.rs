//! The command line `farhand` against the service and the project's agent.

mod batch;
mod interrupts;
mod lists;
mod login;
mod run;
mod schedules;
mod scripts;
mod terminal;

use std::process::{Output, Stdio};

use farhand_tests::agents::own_account;
use farhand_tests::{Api, PATIENCE, RealAgent, Workspace, secrets, setting};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// The superuser of the tests' workspaces.
const USER: &str = "boss";

/// Calls `farhand` with its own folder of profiles.
struct Farhand {
    /// The URL of the workspace.
    url: String,
    config: TempDir,
    token: Option<String>,
}

/// The result of a call of `farhand`.
#[derive(Debug)]
struct Called {
    code: i32,
    out: String,
    err: String,
}

impl Called {
    fn from(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().expect("no signal ends farhand");
        Self { code, out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Asserts a success, and returns the output.
    #[track_caller]
    fn success(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// Asserts a success, and returns the output as JSON.
    #[track_caller]
    fn json(self) -> Value {
        serde_json::from_str(&self.success()).unwrap()
    }

    /// Asserts a failure of farhand itself: exit code 125, one line on stderr, nothing on stdout.
    #[track_caller]
    fn failure(self, message: &str) {
        assert_eq!((self.code, self.out.as_str()), (125, ""), "{self:?}");
        assert!(self.err.contains(message), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
    }
}

/// The token of a client.
fn token_of(api: &Api) -> String {
    let header = api.authorization.as_ref().unwrap();
    header.trim_start_matches("token=").trim_matches('"').to_owned()
}

impl Farhand {
    /// A caller without a credential.
    fn new(workspace: &Workspace) -> Self {
        let port = workspace.anonymous.url.rsplit(':').next().unwrap();
        let url = format!("http://{}:{port}", workspace.anonymous.host);
        Self { url, config: tempfile::tempdir().unwrap(), token: None }
    }

    /// A caller with the superuser's API token in the environment.
    fn admin(workspace: &Workspace) -> Self {
        Self { token: Some(token_of(&workspace.admin)), ..Self::new(workspace) }
    }

    /// A program with the environment for farhand: farhand itself, or a program that starts it.
    fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_remove("FARHAND_URL")
            .env_remove("FARHAND_TOKEN")
            .env("XDG_CONFIG_HOME", self.config.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(token) = &self.token {
            command.env("FARHAND_URL", &self.url).env("FARHAND_TOKEN", token);
        }
        command
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(&setting("FARHAND_CLI"));
        command.args(arguments);
        command
    }

    /// A call in its own terminal. Text that the test writes to the standard input is typed there.
    fn in_terminal(&self, arguments: &str) -> Command {
        let mut command = self.program("script");
        // Without `exec`, some shells wait for farhand, and Ctrl-C ends them, too.
        let line = format!("exec {} {arguments}", setting("FARHAND_CLI"));
        command
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .stdin(Stdio::piped());
        command
    }

    async fn call(&self, arguments: &[&str]) -> Called {
        self.call_with(arguments, "").await
    }

    /// Calls farhand with a standard input.
    async fn call_with(&self, arguments: &[&str], input: &str) -> Called {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        // farhand may have ended without reading its input.
        child.stdin.take().unwrap().write_all(input.as_bytes()).await.ok();
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
        Called::from(&output.expect("farhand ends").unwrap())
    }

    /// The path and the content of the profile file.
    fn profiles(&self) -> (std::path::PathBuf, Value) {
        let path = self.config.path().join("farhand/profiles.json");
        let profiles = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        secrets::record_in(&profiles);
        (path, profiles)
    }
}

/// A workspace with a server and its agent.
async fn start(name: &str) -> (Workspace, RealAgent) {
    let workspace = Workspace::new().await;
    let agent = add_server(&workspace, name).await;
    (workspace, agent)
}

async fn add_server(workspace: &Workspace, name: &str) -> RealAgent {
    let body = json!({"name": name, "default_username": own_account()});
    let server = workspace.admin.post("/api/servers/", &body).await.expect(201);
    RealAgent::start(workspace, &server).await
}
