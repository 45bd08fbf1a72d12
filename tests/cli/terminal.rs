//! A terminal for tests: what a person sees and types.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use farhand_tests::PATIENCE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// The pause between two looks at the terminal's settings.
const PAUSE: Duration = Duration::from_millis(10);

/// A program in a terminal. Tests read its output until an expected text appears.
pub struct Terminal {
    child: Child,
    shown: String,
}

impl Terminal {
    pub fn start(mut command: Command) -> Self {
        Self { child: command.stderr(Stdio::inherit()).spawn().unwrap(), shown: String::new() }
    }

    /// Waits until the terminal has shown a text.
    pub async fn wait_for(&mut self, text: &str) {
        let stdout = self.child.stdout.as_mut().unwrap();
        let read = async {
            while !self.shown.contains(text) {
                let mut bytes = [0; 1024];
                let length = stdout.read(&mut bytes).await.unwrap();
                assert!(length > 0, "{text:?} did not come: {}", self.shown);
                self.shown.push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect(text);
    }

    /// Waits until the terminal does not show what is typed. A program shows its prompt a moment
    /// before that.
    pub async fn wait_for_no_echo(&self) {
        let script = self.child.id().unwrap();
        let is_hidden = async {
            loop {
                if let Some(terminal) = terminal_of_child(script) {
                    let stty =
                        Command::new("stty").arg("-F").arg(terminal).arg("-a").output().await;
                    if String::from_utf8_lossy(&stty.unwrap().stdout).contains("-echo ") {
                        return;
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::time::timeout(PATIENCE, is_hidden).await.expect("a terminal without echo");
    }

    /// Types a text.
    pub async fn type_text(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).await.unwrap();
    }

    /// Waits until the program ends. Returns its exit code and everything that it showed.
    pub async fn end(mut self) -> (i32, String) {
        let mut rest = String::new();
        let read = self.child.stdout.as_mut().unwrap().read_to_string(&mut rest);
        tokio::time::timeout(PATIENCE, read).await.expect("the end").unwrap();
        let code = self.child.wait().await.unwrap().code().unwrap();
        (code, self.shown + &rest)
    }
}

/// The terminal in which the child of `script` runs. `None`: the child has not started yet.
fn terminal_of_child(script: u32) -> Option<PathBuf> {
    let children =
        std::fs::read_to_string(format!("/proc/{script}/task/{script}/children")).ok()?;
    let child = children.split_whitespace().next()?;
    std::fs::read_link(format!("/proc/{child}/fd/0")).ok()
}
