//! `npm run dev` and a bare `npx wrangler dev`, in a copy of the checkout, because both use its
//! state folder and its `.dev.vars`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use farhand_tests::instance::free_port;
use farhand_tests::processes::Process;
use farhand_tests::{Api, Workspace, eventually_within};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::process::Command;

use super::checkout;
use super::set_up::assert_not_set_up;

/// Time limit for wrangler to start. It needs several seconds on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(600);
/// Time limit for wrangler to notice a change, and to exit.
const PATIENCE_WITH_WRANGLER: Duration = Duration::from_secs(60);

/// A running wrangler, or a script that runs it.
struct Wrangler {
    process: Process,
    url: String,
    log: PathBuf,
}

impl Wrangler {
    /// Starts a program in a checkout, and waits until the Worker responds.
    async fn start(folder: &Path, program: &str, args: &[&str]) -> Self {
        let port = free_port().to_string();
        let log = folder.join(format!("{port}.log"));
        let file = std::fs::File::create(&log).unwrap();
        let mut command = Command::new(program);
        command
            .args(args)
            .args(["--inspector-port", "0"])
            .env("PORT", &port)
            .env("REGION", "eu9")
            .env("WRANGLER_SEND_METRICS", "false")
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        if program == "npx" {
            command.args(["--port", &port]);
        }
        let process = Process::spawn(&mut command);
        let started = Self { process, url: format!("http://127.0.0.1:{port}"), log };
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        eventually_within(START_TIMEOUT, "wrangler to serve the Worker", || async {
            let response = client.get(format!("{}/healthz", started.url)).send().await.ok()?;
            response.status().is_success().then_some(())
        })
        .await;
        started
    }

    /// Waits until the program has printed a text.
    async fn wait_for(&self, text: &str) {
        eventually_within(START_TIMEOUT, text, || async {
            std::fs::read_to_string(&self.log).unwrap().contains(text).then_some(())
        })
        .await;
    }

    fn api(&self) -> Api {
        Api::new(&self.url, "127.0.0.1")
    }

    async fn stop(mut self) {
        self.process.signal(Signal::SIGTERM);
        self.process.wait_for_exit(PATIENCE_WITH_WRANGLER).await;
    }
}

/// Logs in as the demo's superuser. Returns a client with the session's token.
async fn log_in(api: &Api, facts: &Value) -> Api {
    let body = json!({"username": facts["username"], "password": facts["password"]});
    let session = api.post("/api/auth/login/", &body).await.expect(200);
    api.with_token(session["token"].as_str().unwrap())
}

#[tokio::test]
async fn npm_run_dev_and_bare_wrangler_serve_the_same_state() {
    let checkout = checkout(&["node_modules"]);
    let folder = checkout.path();
    // The lines of a user's own .dev.vars stay.
    let dev_vars = folder.join(".dev.vars");
    std::fs::write(&dev_vars, "# mine\nSMTP_PASSWORD=of-the-user\nBASE_URL=old\n").unwrap();
    let dev = Wrangler::start(folder, "npm", &["run", "dev", "--silent", "--"]).await;
    dev.wait_for("Ctrl-C ends everything.").await;

    let facts: Value =
        serde_json::from_slice(&std::fs::read(folder.join(".wrangler/state/demo.json")).unwrap())
            .unwrap();
    assert_eq!(facts["url"], dev.url);
    let admin = log_in(&dev.api(), &facts).await;
    let groups = json!({"name": "made-in-dev", "display_name": "Made in dev"});
    let group = admin.post("/api/iam/groups/", &groups).await.expect(201);

    let lines = std::fs::read_to_string(&dev_vars).unwrap();
    let value = |name: &str| {
        let values: Vec<&str> = lines
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('\''))
            .collect();
        assert_eq!(values.len(), 1, "{name}");
        values[0].to_owned()
    };
    assert_eq!(std::fs::metadata(&dev_vars).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(lines.starts_with("# mine\nSMTP_PASSWORD=of-the-user\n"), "{}", lines.len());
    assert!(value("SECRET_KEY").len() >= 32);
    assert!(value("BASE_URL").starts_with("http://{workspace}.eu9.localhost:"));
    // The Worker has the operator token of the file, and the var of the environment.
    let operator = dev.api().with_authorization(&format!("Bearer {}", value("OPERATOR_TOKEN")));
    let workspaces = operator.get("/operator/workspaces/").await.expect(200);
    assert_eq!(workspaces["results"][0]["region"], "eu9");

    // wrangler runs the build command after a change.
    let page = folder.join("web/docs/index.html");
    let changed = format!("{}<!-- changed by a test -->", std::fs::read_to_string(&page).unwrap());
    std::fs::write(&page, changed).unwrap();
    eventually_within(PATIENCE_WITH_WRANGLER, "the changed page", || async {
        let page = dev.api().get("/api/docs/").await;
        page.text.contains("changed by a test").then_some(())
    })
    .await;
    dev.stop().await;

    let bare = Wrangler::start(folder, "npx", &["wrangler", "dev"]).await;
    let admin = log_in(&bare.api(), &facts).await;
    let groups = admin.get("/api/iam/groups/").await.expect(200);
    assert_eq!(groups["results"][0]["id"], group["id"]);
    bare.stop().await;
}

#[tokio::test]
async fn bare_wrangler_without_a_state_is_not_set_up() {
    let checkout = checkout(&["node_modules"]);
    let bare = Wrangler::start(checkout.path(), "npx", &["wrangler", "dev"]).await;
    let operator = bare.api().with_authorization("Bearer of-nobody-because-there-is-no-token");
    let workspace = Workspace::new().await.admin.with_url(&bare.url);
    assert_not_set_up(&operator, &workspace, "SECRET_KEY").await;
    assert_not_set_up(&operator, &workspace, "npm run dev").await;
    bare.stop().await;

    let secret = "SECRET_KEY='of-this-test-and-of-nothing-else'\n";
    std::fs::write(checkout.path().join(".dev.vars"), secret).unwrap();
    let bare = Wrangler::start(checkout.path(), "npx", &["wrangler", "dev"]).await;
    let (operator, workspace) = (operator.with_url(&bare.url), workspace.with_url(&bare.url));
    assert_not_set_up(&operator, &workspace, "tables").await;
    assert_not_set_up(&operator, &workspace, "npm run dev").await;
    bare.stop().await;
}
