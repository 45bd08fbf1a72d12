//! `npm run setup`, with a program in place of wrangler that records its calls. The workspace is
//! created in the shared instance.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use farhand_tests::{Workspace, instance_setting};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::{ROOT, checkout};

/// Records each call, and the secrets that it reads. Creates and lists databases and namespaces.
const STUB: &str = r#"#!/bin/sh
cd "$(dirname "$0")/../../stub" && echo "$*" >> calls
case "$*" in
  "d1 list --json") cat d1 ;;
  "d1 create "*) echo "[{\"uuid\":\"5e0e4b5c-1111-4222-8333-444455556666\",\"name\":\"$3\"}]" > d1 ;;
  "kv namespace list") cat kv ;;
  "kv namespace create "*) echo "[{\"id\":\"0123456789abcdef0123456789abcdef\",\"title\":\"$4\"}]" > kv ;;
  "secret put "*) cat > "secret.$3" ;;
  whoami) cat whoami ;;
esac
"#;

/// A checkout whose wrangler is the stub.
struct Checkout(TempDir);

impl Checkout {
    fn new() -> Self {
        let folder = checkout(&[]);
        let modules = folder.path().join("node_modules");
        std::fs::create_dir_all(modules.join(".bin")).unwrap();
        let root = Path::new(ROOT).canonicalize().unwrap();
        for name in [".farhand-lock", "smol-toml"] {
            let original = root.join("node_modules").join(name);
            std::os::unix::fs::symlink(original, modules.join(name)).unwrap();
        }
        let stub = modules.join(".bin/wrangler");
        std::fs::write(&stub, STUB).unwrap();
        std::fs::set_permissions(&stub, std::fs::Permissions::from_mode(0o755)).unwrap();
        let state = folder.path().join("stub");
        std::fs::create_dir(&state).unwrap();
        for (file, content) in
            [("calls", ""), ("d1", "[]"), ("kv", "[]"), ("whoami", "You are logged in.")]
        {
            std::fs::write(state.join(file), content).unwrap();
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// The calls of wrangler since the last call of this function.
    fn take_calls(&self) -> Vec<String> {
        let calls = self.read("stub/calls").lines().map(str::to_owned).collect();
        std::fs::write(self.path("stub/calls"), "").unwrap();
        calls
    }

    /// Runs `npm run setup`. Returns whether it succeeded, and what it printed.
    async fn setup(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new("npm")
            .args(["run", "setup", "--silent", "--"])
            .args(args)
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }
}

#[tokio::test]
async fn setup_creates_a_deployment_and_can_be_repeated() {
    let workspace = Workspace::new().await;
    let checkout = Checkout::new();
    // The instance has an operator token already, so setup must use it.
    let token = instance_setting("FARHAND_OPERATOR_TOKEN");
    std::fs::create_dir(checkout.path(".wrangler")).unwrap();
    let secrets = json!({"OPERATOR_TOKEN": token}).to_string();
    std::fs::write(checkout.path(".wrangler/eu1.secrets.json"), secrets).unwrap();
    let slug = format!("set-up-{}", workspace.slug);
    let args = [
        "--env",
        "eu1",
        "--domain",
        "example.com",
        "--workspace",
        &slug,
        "--email",
        "admin@example.com",
        "--operator-url",
        &instance_setting("FARHAND_URL"),
    ];
    let before = checkout.read("wrangler.toml");

    let (ok, printed) = checkout.setup(&[&args[..], &["--dry-run"]].concat()).await;
    assert!(ok, "{printed}");
    assert_eq!(checkout.take_calls(), [""; 0]);
    assert_eq!(checkout.read("wrangler.toml"), before);
    for text in
        ["$ wrangler d1 create farhand-eu1", "[env.eu1.vars]", "$ npm run deploy -- --env eu1"]
    {
        assert!(printed.contains(text), "{text}: {printed}");
    }
    assert!(!printed.contains(&token));

    let (ok, printed) = checkout.setup(&args).await;
    assert!(ok, "{printed}");
    let calls = checkout.take_calls();
    let (deploy, others) = calls.split_last().unwrap();
    assert_eq!(
        others,
        [
            "whoami",
            "d1 list --json",
            "d1 create farhand-eu1",
            "d1 list --json",
            "kv namespace list",
            "kv namespace create LOGIN_TOKENS_EU1",
            "kv namespace list",
            "secret put SECRET_KEY --env eu1",
            "secret put OPERATOR_TOKEN --env eu1",
            "d1 migrations apply DB --remote --env eu1",
        ]
    );
    assert!(deploy.starts_with("deploy --var EDGE:cloudflare --var COMMIT:"), "{deploy}");
    assert!(deploy.ends_with("--env eu1"), "{deploy}");
    assert_eq!(checkout.read("stub/secret.OPERATOR_TOKEN"), token);
    let file = checkout.path(".wrangler/eu1.secrets.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let kept: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let secret_key = checkout.read("stub/secret.SECRET_KEY");
    assert_eq!(kept, json!({"SECRET_KEY": secret_key, "OPERATOR_TOKEN": token}));
    assert!(secret_key.len() >= 32 && !printed.contains(&secret_key) && !printed.contains(&token));

    // The superuser of the new workspace can log in with the printed password.
    let password = printed
        .lines()
        .find_map(|line| line.trim().strip_prefix("password"))
        .expect("setup prints the password")
        .trim();
    let created = workspace.anonymous.with_host(&format!("{slug}.local.localhost"));
    created.log_in("admin", password).await.expect(200);

    // The real wrangler accepts the environment.
    let output = Command::new(format!("{ROOT}node_modules/.bin/wrangler"))
        .args(["deploy", "--dry-run", "--env", "eu1", "--outdir", "dist"])
        .current_dir(checkout.0.path())
        .env("WRANGLER_SEND_METRICS", "false")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let deployed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{deployed}{}", String::from_utf8_lossy(&output.stderr));
    for text in ["env.DB (farhand-eu1)", "env.LOGIN_TOKENS", "env.SEALER", "env.REGION (\"eu1\")"] {
        assert!(deployed.contains(text), "{text}: {deployed}");
    }

    // A second run uses what the first one created.
    let after = checkout.read("wrangler.toml");
    let (ok, printed) = checkout.setup(&args).await;
    assert!(ok && printed.contains("as before"), "{printed}");
    let calls = checkout.take_calls();
    assert!(!calls.iter().any(|call| call.contains("create")), "{calls:?}");
    assert_eq!(checkout.read("wrangler.toml"), after);
    assert_eq!(checkout.read("stub/secret.SECRET_KEY"), secret_key);
}

#[tokio::test]
async fn setup_refuses_bad_arguments_before_it_calls_wrangler() {
    let checkout = Checkout::new();
    let good = [
        ("--env", "eu1"),
        ("--domain", "example.com"),
        ("--workspace", "acme"),
        ("--email", "admin@example.com"),
    ];
    for (name, value) in [
        ("--env", "EU 1"),
        ("--domain", "https://example.com"),
        ("--workspace", "no_slug"),
        ("--email", "nobody"),
        ("--unknown", "x"),
    ] {
        let others = good.iter().filter(|(other, _)| *other != name);
        let mut args: Vec<&str> = others.flat_map(|(name, value)| [*name, *value]).collect();
        if name != "--unknown" {
            let (ok, printed) = checkout.setup(&args).await;
            assert!(!ok && printed.contains(&format!("{name} is missing")), "{printed}");
        }
        args.extend([name, value]);
        let (ok, printed) = checkout.setup(&args).await;
        assert!(!ok && printed.contains(name) && printed.contains("usage:"), "{name}: {printed}");
    }
    assert_eq!(checkout.take_calls(), [""; 0]);

    std::fs::write(checkout.path("stub/whoami"), "You are not authenticated.").unwrap();
    let args: Vec<&str> = good.iter().flat_map(|(name, value)| [*name, *value]).collect();
    let (ok, printed) = checkout.setup(&args).await;
    assert!(!ok && printed.contains("npx wrangler login"), "{printed}");
    assert_eq!(checkout.take_calls(), ["whoami"]);
    assert!(!checkout.path(".wrangler").exists());
}
