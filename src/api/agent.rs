//! What agents call (agent-protocol). Every call goes to the object of the agent's server, which
//! knows the hash of its key: so no call costs a read of D1.

use std::collections::BTreeMap;

use farhand_domain::error::{Code, Error, Kind};
use farhand_domain::features::Features;
use farhand_domain::id;
use farhand_domain::secret::{Purpose, credential_hash};
use farhand_domain::wire::{FEATURES_HEADER, Fin, HostFacts, heartbeat_load};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use worker::Response;

use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::{self, AgentCall, Ask, Identity, Report};
use crate::platform;

/// Reads the agent's id and key.
fn read_identity(call: &Call) -> Result<Identity, Error> {
    let credential = call.agent_credential()?;
    // A key that we did not make is refused without asking the server's object.
    if !credential.key.is_token() {
        return Err(Error::invalid_token());
    }
    Ok(Identity {
        workspace: call.workspace()?.to_owned(),
        server: credential.server,
        key_hash: credential_hash(Purpose::AgentKey, &credential.key),
        remote_ip: call.remote_ip(),
        features: call
            .header(FEATURES_HEADER)
            .as_deref()
            .map_or_else(Features::default, Features::parse),
    })
}

/// Reads the agent's id and key before its body. A large body is taken from an agent only whose key
/// is right.
async fn identity(call: &mut Call) -> Result<Identity, Error> {
    let identity = match read_identity(call) {
        Ok(identity) if call.has_large_body() => {
            tell(call, identity.clone(), Report::Seen).await.map(|_| identity)
        }
        other => other,
    };
    if identity.is_err() {
        call.discard().await;
    }
    identity
}

/// Tells the agent's object something.
async fn tell(call: &Call, identity: Identity, report: Report) -> Result<Value, Error> {
    let server = identity.server;
    let request_id = call.id.clone();
    let answer =
        calls::ask(&call.env, server, &Ask::Agent(AgentCall { identity, report, request_id }))
            .await?;
    // The key was right, and its object knows whose it is: so there is that workspace, and D1 need
    // not be asked.
    call.is_workspace_known.set(true);
    Ok(answer)
}

/// Passes a report on to the agent's object. A report that could not be read is refused after the
/// key was checked.
async fn report(
    call: &Call,
    identity: Identity,
    report: Result<Report, Error>,
) -> Result<Value, Error> {
    match report {
        Ok(report) => tell(call, identity, report).await,
        Err(error) => {
            tell(call, identity, Report::Seen).await?;
            Err(error)
        }
    }
}

/// `GET /api/servers/servers/-/`: the first call of an agent.
pub async fn own_server(call: &Call) -> Result<Reply, Error> {
    let identity = read_identity(call)?;
    // An agent may ask for no other server than its own.
    let own =
        call.parameter("id") == "-" || id::parse(call.parameter("id")) == Some(identity.server);
    let answer =
        report(call, identity, if own { Ok(Report::Whoami) } else { Err(Error::not_found()) })
            .await?;
    Reply::ok(&answer)
}

/// The id of the command that a report is of.
fn command(call: &Call) -> Result<uuid::Uuid, Error> {
    call.path_id(Error::not_found)
}

/// Passes on a report that is answered with 204. A wrong key is refused before a malformed body.
async fn relay(
    call: &mut Call,
    read: impl AsyncFnOnce(&mut Call) -> Result<Report, Error>,
) -> Result<Reply, Error> {
    let identity = identity(call).await?;
    let read = read(call).await;
    report(call, identity, read).await?;
    Ok(Reply::no_content())
}

/// `POST /api/events/commands/<id>/ack/`.
pub async fn ack(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        call.discard_report().await?;
        Ok(Report::Ack { command: command(call)? })
    })
    .await
}

/// `POST /api/events/commands/<id>/chunk/`.
pub async fn chunk(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        Ok(Report::Chunk { chunk: call.read_report().await?, command: command(call)? })
    })
    .await
}

/// `POST /api/events/commands/<id>/fin/`.
pub async fn fin(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        Ok(Report::Fin { fin: call.read_report().await?, command: command(call)? })
    })
    .await
}

/// Why an agent does not run a command.
#[derive(Deserialize)]
struct Rejection {
    reason: String,
}

/// `POST /api/events/commands/<id>/reject/`: newer versions of Alpamon send it in place of an ack
/// and a fin.
pub async fn reject(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        // Whatever it says, it does not run it.
        let rejection =
            call.read_report_with(|body| Ok(serde_json::from_str::<Rejection>(body).ok())).await?;
        let reason =
            rejection.map_or_else(String::new, |rejection| format!(": {}", rejection.reason));
        let reason = Some(format!("The agent refused it{reason}"));
        let fin = Fin { result: Some(String::new()), reason, ..Fin::default() };
        Ok(Report::Fin { command: command(call)?, fin })
    })
    .await
}

/// `PUT /api/servers/servers/-/commit/` and `PATCH /api/servers/servers/-/sync/`.
pub async fn facts(call: &mut Call, is_commit: bool) -> Result<Reply, Error> {
    let identity = identity(call).await?;
    let facts = call.read_report_with(HostFacts::read).await;
    report(call, identity, facts.map(|facts| Report::Facts { facts, is_commit })).await?;
    Reply::ok(&json!({}))
}

/// The categories of host facts that an agent could send.
#[derive(Deserialize)]
struct Offer {
    hashes: BTreeMap<String, IgnoredAny>,
}

/// `POST /api/servers/servers/-/sync-check/`: asks for `info` and `os`, as far as the agent offers
/// them.
pub async fn sync_check(call: &mut Call) -> Result<Reply, Error> {
    let identity = identity(call).await?;
    let offer = call.read_report_with(|body| Ok(serde_json::from_str::<Offer>(body).ok())).await;
    let (seen, offer) = match offer {
        Ok(offer) => (Ok(Report::Seen), offer),
        Err(error) => (Err(error), None),
    };
    report(call, identity, seen).await?;
    let is_offered =
        |category: &&str| offer.as_ref().is_some_and(|offer| offer.hashes.contains_key(*category));
    let required: Vec<_> = ["info", "os"].into_iter().filter(is_offered).collect();
    Reply::ok(&json!({"sync_required": required}))
}

/// An event that an agent tells of (agent-protocol 2.1).
#[derive(Deserialize)]
struct Event {
    record: String,
}

/// `POST /api/events/events/`: of use is that the agent's process began.
pub async fn event(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        // One of another form is taken like all that is of no use.
        let event =
            call.read_report_with(|body| Ok(serde_json::from_str::<Event>(body).ok())).await?;
        let has_started = event.is_some_and(|event| event.record == "started");
        Ok(if has_started { Report::Started } else { Report::Seen })
    })
    .await
}

/// `POST`, `PUT` and `PATCH` of `/api/proc/<category>/…`: what an agent that is commissioned tells
/// of its host. Of use are `info` and `os`; whatever else it is, it is taken.
pub async fn proc_report(call: &mut Call) -> Result<Reply, Error> {
    let category = call.parameter("rest").split('/').next().unwrap_or("").to_owned();
    if !matches!(category.as_str(), "info" | "os") {
        return seen(call).await;
    }
    relay(call, async |call: &mut Call| {
        let facts =
            call.read_report_with(|body| Ok(HostFacts::read_category(&category, body))).await?;
        Ok(facts.map_or(Report::Seen, |facts| Report::Facts { facts, is_commit: false }))
    })
    .await
}

/// `DELETE /api/servers/servers/<id>/unregister/`: the agent's own server goes.
pub async fn unregister(call: &mut Call) -> Result<Reply, Error> {
    let identity = identity(call).await?;
    let body = call.discard_report().await;
    let id = call.parameter("id");
    let is_own = id.is_empty() || id::parse(id) == Some(identity.server);
    let gone =
        body.and_then(|()| if is_own { Ok(Report::Unregister) } else { Err(Error::not_found()) });
    report(call, identity, gone).await?;
    Ok(Reply::no_content())
}

/// What is for users only, on a path that agents have something on.
pub async fn denied(call: &Call) -> Result<Reply, Error> {
    tell(call, read_identity(call)?, Report::Seen).await?;
    Err(Error::permission_denied("Only users may do this; an agent may not."))
}

/// `PATCH /api/servers/servers/-/status/`: the heartbeat. The project's own agent sends the host's
/// load in it.
pub async fn heartbeat(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        let body = call.read_raw_report().await?;
        Ok(Report::Heartbeat { load: str::from_utf8(&body).ok().and_then(heartbeat_load) })
    })
    .await
}

/// Reports that the service has no use for: all that is kept is when the agent was seen.
pub async fn seen(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| call.discard_report().await.map(|()| Report::Seen)).await
}

/// `GET /api/metrics/config/`: makes the agent send a heartbeat regularly.
pub async fn metrics_config(call: &Call) -> Result<Reply, Error> {
    tell(call, read_identity(call)?, Report::Seen).await?;
    Reply::ok(&json!([{"type": "status", "interval": platform::heartbeat_seconds(&call.env)}]))
}

/// `GET /api/proc/<category>/…sync/`: older agents want something to compare with, and crash on a
/// 404.
pub async fn proc_sync(call: &Call) -> Result<Reply, Error> {
    tell(call, read_identity(call)?, Report::Seen).await?;
    let rest = call.parameter("rest");
    if !rest.ends_with("sync/") {
        return Err(Error::not_found());
    }
    let category = rest.split('/').next().unwrap_or("");
    Reply::ok(&if matches!(category, "info" | "os" | "time") { json!({}) } else { json!([]) })
}

/// A question that the service has no answer to.
pub async fn unknown(call: &Call) -> Result<Reply, Error> {
    tell(call, read_identity(call)?, Report::Seen).await?;
    Err(Error::not_found())
}

/// `GET /ws/servers/backhaul/` and `/ws/servers/control/`: the object takes the WebSocket.
pub async fn web_socket(call: &Call, path: &str) -> Result<Reply, Error> {
    let identity = read_identity(call)?;
    if !call.header("Upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        // The key is checked first, as everywhere.
        tell(call, identity, Report::Seen).await?;
        return Err(Error::field(farhand_domain::error::NON_FIELD, "Connect with a WebSocket."));
    }
    let response: Response = calls::connect(call, &identity, path).await?;
    let is_conflict = response.status_code() == 503;
    match response.websocket() {
        Some(socket) => {
            call.is_workspace_known.set(true);
            Ok(Reply::web_socket(socket))
        }
        None if is_conflict => Err(Error::new(
            Kind::NotConnected,
            "Another agent with the same id and key is connected. Give each host a server of its own.",
        )
        .code(Code::IdentityConflict)),
        None => Err(Error::invalid_token()),
    }
}
