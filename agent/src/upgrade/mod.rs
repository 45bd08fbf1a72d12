//! Upgrades the agent's own program: downloads a release from the service, verifies and tries it,
//! and replaces the program (contract 17.4).

pub mod program_file;
pub mod release;

use std::time::Duration;

use semver::Version;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::connection::client::Client;
use crate::host::facts;
use crate::host::program::Program;
use crate::upgrade::program_file::ProgramFile;
use crate::upgrade::release::{Release, ReleaseKey};

/// The time limit for the download of the program.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(300);
/// The time limit for the other requests.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The result of an upgrade that did not fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Upgraded {
    /// The agent already has this version.
    Already(Version),
    /// The program's file has this version now. The agent must restart.
    Replaced(Version),
}

/// Upgrades the program of one agent.
pub struct Upgrader {
    client: Client,
    program: Program,
    id: Uuid,
    /// Locked while an upgrade is in progress.
    running: Mutex<()>,
}

impl Upgrader {
    /// Creates the upgrader of the agent of the server `id`.
    pub fn new(client: Client, program: Program, id: Uuid) -> Self {
        Self { client, program, id, running: Mutex::default() }
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Replaces the program with the wanted version, or with the version of the service if `wanted`
    /// is `None`. Until the last step, a rename, the program is unchanged.
    ///
    /// # Errors
    /// The reason, as a part of a sentence. The program is unchanged.
    pub async fn upgrade(&self, wanted: Option<&str>) -> Result<Upgraded, String> {
        let Ok(_running) = self.running.try_lock() else {
            return Err("another upgrade is in progress".to_owned());
        };
        let key = ReleaseKey::built_in()?;
        let release = self.find(wanted).await?;
        let own = Version::parse(facts::VERSION).map_err(|error| error.to_string())?;
        if release.version == own {
            return Ok(Upgraded::Already(own));
        }
        if release.version < own {
            return Err(format!("{} is older than {own}", release.version));
        }
        let signature = self.download(&release.signature_path(), RESPONSE_TIMEOUT).await?;
        let program = self.download(&release.path(), DOWNLOAD_TIMEOUT).await?;
        release.verify(&key, &program, &String::from_utf8_lossy(&signature))?;
        let file = ProgramFile::new(&self.program, self.id).map_err(|error| error.to_string())?;
        let replaced = async {
            let write = |error| format!("the new program cannot be written: {error}");
            file.write_new(&program).map_err(write)?;
            file.check_new(self.program.arguments())
                .await
                .map_err(|why| format!("{} cannot connect: {why}", release.version))?;
            file.replace().map_err(|error| format!("the program cannot be replaced: {error}"))
        };
        let result = replaced.await;
        if result.is_err() {
            file.discard_new();
        }
        result.map(|()| Upgraded::Replaced(release.version))
    }

    /// The release with the wanted version, or with the version of the service.
    async fn find(&self, wanted: Option<&str>) -> Result<Release, String> {
        if let Some(wanted) = wanted {
            return Release::parse(wanted)
                .ok_or_else(|| "the version must have the form 1.2.3".to_owned());
        }
        let (status, health) = self.client.get("/healthz").await.map_err(|why| why.0)?;
        health["version"]
            .as_str()
            .filter(|_| status == 200)
            .and_then(Release::parse)
            .ok_or_else(|| "the service does not say its version".to_owned())
    }

    async fn download(&self, path: &str, timeout: Duration) -> Result<Vec<u8>, String> {
        match self.client.download(path, timeout).await {
            Ok((200, file)) => Ok(file.into()),
            Ok((404, _)) => Err(format!("the service has no {path}")),
            Ok((status, _)) => Err(format!("{path}: status {status}")),
            Err(why) => Err(format!("{path}: {}", why.0)),
        }
    }
}
