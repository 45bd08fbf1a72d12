//! Every call into a server's object, typed, in one place. The platform carries it as JSON over `fetch`.

use farhand_domain::command::Command;
use farhand_domain::error::{Code, Error, Kind};
use farhand_domain::wire::{Chunk, Fin, HostFacts};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;
use worker::{Env, Headers, Method, Request, RequestInit, Response};

use crate::objects;
use crate::platform::{self, internal};
use crate::request::Call;

/// The header in which [`connect`] tells the object who connects.
pub const IDENTITY_HEADER: &str = "X-Farhand-Agent";

/// What a server's object can be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Take a command, record it and hand it to the agent. Answers with its live fields.
    Create(Create),
    /// Tell the live fields of a command.
    Live(Live),
    /// Take an agent's report. Answers with what the agent is to be told.
    Agent(AgentCall),
    /// Forget everything and cut the agent off: the server is gone.
    Sever,
}

/// A command to be run now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Create {
    /// The workspace.
    pub workspace_id: i64,
    /// The command.
    pub command: Command,
    /// Seconds that it may run.
    pub timeout: i64,
}

/// A question for a command's live fields.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Live {
    /// The command.
    pub id: Uuid,
    /// Seconds to wait for its end.
    pub wait: Option<u32>,
}

/// Who an agent says that it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The workspace that its request belongs to.
    pub workspace: String,
    /// The server.
    pub server: Uuid,
    /// The hash of its key.
    pub key_hash: String,
    /// Its address.
    pub remote_ip: String,
}

/// A report of an agent's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentCall {
    /// Who it says that it is.
    pub identity: Identity,
    /// What it says.
    pub report: Report,
}

/// What an agent can report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    /// Asks for its own server.
    Whoami,
    /// It is there.
    Seen,
    /// It took a command.
    Ack {
        /// The command.
        command: Uuid,
    },
    /// A piece of output.
    Chunk {
        /// The command.
        command: Uuid,
        /// The piece.
        chunk: Chunk,
    },
    /// A command ended.
    Fin {
        /// The command.
        command: Uuid,
        /// How.
        fin: Fin,
    },
    /// What it and its host are.
    Facts {
        /// As far as they are of use.
        facts: HostFacts,
    },
}

/// What the object answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Done; with what there is to tell.
    Done(Value),
    /// The agent's id or key is wrong.
    InvalidAgent,
    /// No such command here.
    NotFound,
    /// No agent is connected, and nothing was stored.
    NotConnected,
    /// It could not be done. A command that was not handed over yet is withdrawn.
    Failed(String),
}

/// Asks the object of a server.
///
/// # Errors
/// What the object refuses, as the client is to see it.
pub async fn ask<T: DeserializeOwned>(env: &Env, server: Uuid, ask: &Ask) -> Result<T, Error> {
    let answer: Answer = objects::ask(env, platform::SERVER_LINK, &server.to_string(), ask).await?;
    match answer {
        Answer::Done(value) => serde_json::from_value(value).map_err(internal),
        Answer::InvalidAgent => Err(Error::invalid_token()),
        Answer::NotFound => Err(Error::not_found()),
        Answer::NotConnected => {
            Err(Error::new(Kind::NotConnected, "The server is not connected.").code(Code::ServerNotConnected))
        }
        Answer::Failed(cause) => Err(Error::internal(cause)),
    }
}

/// Hands an agent's WebSocket to the object of its server.
///
/// # Errors
/// The object could not be reached. A refusal is a response without a WebSocket.
pub async fn connect(call: &Call, identity: &Identity, path: &str) -> Result<Response, Error> {
    let headers = Headers::new();
    headers.set("Upgrade", "websocket").map_err(internal)?;
    let text = serde_json::to_string(identity).map_err(internal)?;
    headers.set(IDENTITY_HEADER, &text).map_err(internal)?;
    let mut init = RequestInit::new();
    init.with_method(Method::Get).with_headers(headers);
    let request = Request::new_with_init(&format!("{}{path}", objects::ORIGIN), &init).map_err(internal)?;
    let stub = objects::stub(&call.env, platform::SERVER_LINK, &identity.server.to_string())?;
    stub.fetch_with_request(request).await.map_err(internal)
}
