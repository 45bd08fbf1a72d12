//! A real SMTP server, `smtp-server.mjs`, that misbehaves on request.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};

use crate::PATIENCE;
use crate::mail::Mail;
use crate::processes::Process;

/// The user name for servers that require authentication.
pub const USERNAME: &str = "farhand-mailer";
/// The password. Its characters are special in shells or in files of variables; all of them must
/// arrive unchanged.
pub const PASSWORD: &str = r#"open $HOME ${sesame} \n "post" #master"#;

/// A running SMTP server. Dropping it ends the process.
pub struct SmtpServer {
    /// The port on 127.0.0.1.
    pub port: u16,
    /// The server's self-signed certificate, for `localhost`. A client must be configured to trust
    /// it.
    pub certificate: PathBuf,
    events: Lines<BufReader<ChildStdout>>,
    _process: Process,
    _folder: TempDir,
}

impl SmtpServer {
    /// Starts a server with options of the script, and waits until it listens.
    pub async fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) =
            (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&certificate, cert.pem()).unwrap();
        std::fs::write(&key, signing_key.serialize_pem()).unwrap();
        let mut command = Command::new("node");
        command
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/support/smtp-server.mjs"))
            .arg("--certificate")
            .arg(&certificate)
            .arg("--key")
            .arg(&key)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let events = BufReader::new(process.child().stdout.take().unwrap()).lines();
        let mut server = Self { port: 0, certificate, events, _process: process, _folder: folder };
        let listening = server.next("listening").await;
        server.port = listening["port"].as_u64().unwrap().try_into().unwrap();
        server
    }

    /// Starts a server that requires authentication.
    pub async fn with_account(options: &[&str]) -> Self {
        Self::start(&[&["--user", USERNAME, "--password", PASSWORD], options].concat()).await
    }

    /// Waits for the next event of a kind, and skips the events before it.
    pub async fn next(&mut self, event: &str) -> Value {
        self.next_within(PATIENCE, event).await.pop().unwrap()
    }

    /// Waits for the next event of a kind. Returns the skipped events, and the event itself as the
    /// last.
    pub async fn next_within(&mut self, patience: Duration, event: &str) -> Vec<Value> {
        let mut passed: Vec<Value> = Vec::new();
        let read = async {
            loop {
                let line = self.events.next_line().await.unwrap().expect("the SMTP server ended");
                passed.push(serde_json::from_str(&line).unwrap());
                if passed.last().is_some_and(|last| last["event"] == event) {
                    return;
                }
            }
        };
        let is_done = tokio::time::timeout(patience, read).await.is_ok();
        assert!(
            is_done,
            "waited {patience:?} for {event} of the SMTP server; events so far: {passed:?}"
        );
        passed
    }
}

/// The mail in a `mail` event.
pub fn mail_of(event: &Value) -> Mail {
    Mail::parse(event["mime"].as_str().unwrap())
}
