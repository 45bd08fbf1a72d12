//! Releases of the agent: an instance whose offered agents a test chooses, and signs with a
//! throw-away key.

use std::path::PathBuf;
use std::process::Command;

use data_encoding::{BASE64, HEXLOWER};
use ring::digest::{SHA256, digest};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;
use tempfile::TempDir;

use crate::client::{Api, PASSWORD, Workspace};
use crate::instance::{Instance, free_port, state_folder};

/// The architecture in the names of the agent's files.
pub const ARCH: &str = std::env::consts::ARCH;
/// The version of the service and of the built agent.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The throw-away private key. `scripts/test.mjs` has the public key.
const SEED: [u8; 32] = [7; 32];
/// The workspace of the instance.
const WORKSPACE: &str = "hosts";

/// The text that is signed for a program, and its signature (contract 17.3).
pub fn sign(version: &str, arch: &str, program: &[u8]) -> String {
    let text = format!("farhand-agent {version} {arch} {}\n", sha256(program));
    let pair = Ed25519KeyPair::from_seed_unchecked(&SEED).unwrap();
    BASE64.encode(pair.sign(text.as_bytes()).as_ref()) + "\n"
}

/// The throw-away public key.
pub fn public_key() -> String {
    let pair = Ed25519KeyPair::from_seed_unchecked(&SEED).unwrap();
    BASE64.encode(pair.public_key().as_ref())
}

/// The SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, bytes).as_ref())
}

/// An instance with its own copy of the built Worker and its static assets.
pub struct Releases {
    pub instance: Instance,
    pub workspace: Workspace,
    project: TempDir,
    _state: TempDir,
}

impl Releases {
    /// Starts an instance that offers the built agent. Its address for hosts has no name, so every
    /// program can resolve it.
    pub async fn start(variables: &[(&str, &str)]) -> Self {
        let project = tempfile::tempdir().unwrap();
        let copied = Command::new("cp")
            .arg("-a")
            .args(["build", "wrangler.toml"].map(|name| format!("{ROOT}/{name}")))
            .arg(project.path())
            .status();
        assert!(copied.unwrap().success());
        let (port, state) = (free_port(), state_folder());
        let base_url = format!("http://127.0.0.1:{port}");
        let own = [
            ("PROJECT", project.path().to_str().unwrap()),
            ("BASE_URL", base_url.as_str()),
            ("DEFAULT_WORKSPACE", WORKSPACE),
        ];
        let instance =
            Instance::restart_at(port, state.path(), &[&own[..], variables].concat()).await;
        let created = Workspace::create_with(&instance.operator(), WORKSPACE).await;
        let anonymous = Api::new(&instance.url, "127.0.0.1");
        let login = json!({"username": "boss", "password": PASSWORD});
        let login = anonymous.post("/api/auth/login/", &login).await.expect(200);
        let workspace = Workspace {
            admin: anonymous.with_token(login["token"].as_str().unwrap()),
            anonymous,
            ..created
        };
        Self { instance, workspace, project, _state: state }
    }

    /// The path of a file of an agent.
    pub fn file(&self, version: &str, ending: &str) -> PathBuf {
        let folder = self.project.path().join("build/assets/agent").join(version);
        folder.join(format!("farhand-agent-{ARCH}{ending}"))
    }

    /// Offers a program as a version, with a valid checksum and signature.
    pub fn offer(&self, version: &str, program: &[u8]) {
        let file = self.file(version, "");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, program).unwrap();
        let checksum = format!("{}  farhand-agent-{ARCH}\n", sha256(program));
        std::fs::write(self.file(version, ".sha256"), checksum).unwrap();
        std::fs::write(self.file(version, ".sig"), sign(version, ARCH, program)).unwrap();
    }
}
