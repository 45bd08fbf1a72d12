//! A real SMTP server, `smtp-server.mjs`, that does what a test tells it to.

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

/// The account of the servers that ask for one.
pub const USERNAME: &str = "farhand-mailer";
/// Its password: whatever a shell or a file of variables would take for more than a character must
/// get through.
pub const PASSWORD: &str = r#"open $HOME ${sesame} \n "post" #master"#;

/// The server; it ends with this.
pub struct SmtpServer {
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    /// Its certificate, for `localhost`. A client that does not trust just this one trusts none of
    /// it.
    pub certificate: PathBuf,
    events: Lines<BufReader<ChildStdout>>,
    _process: Process,
    _folder: TempDir,
}

impl SmtpServer {
    /// Starts one with some of the script's options, and waits until it listens.
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

    /// The same, and clients have to authenticate.
    pub async fn with_account(options: &[&str]) -> Self {
        Self::start(&[&["--user", USERNAME, "--password", PASSWORD], options].concat()).await
    }

    /// The next event of a kind; those before it are passed over.
    pub async fn next(&mut self, event: &str) -> Value {
        self.next_within(PATIENCE, event).await.pop().unwrap()
    }

    /// The next event of a kind, of what takes its time, after all those before it.
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
        assert!(is_done, "waited {patience:?} for the SMTP server's {event}; it said {passed:?}");
        passed
    }
}

/// The mail of a `mail` event.
pub fn mail_of(event: &Value) -> Mail {
    Mail::parse(event["mime"].as_str().unwrap())
}
