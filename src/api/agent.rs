//! The endpoints for agents (`docs/spec/agent-protocol.md`). Each call goes to the object of the
//! agent's server. The object has the hash of the agent's key, so the Worker reads nothing from D1.

use std::collections::BTreeMap;

use farhand_domain::agent::features::Features;
use farhand_domain::agent::wire::{FEATURES_HEADER, Fin, HostFacts, heartbeat_load};
use farhand_domain::error::{Code, Error, ErrorKind};
use farhand_domain::id;
use farhand_domain::secret::{Purpose, credential_hash};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use worker::Response;

use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::{self, AgentReport, ClaimedIdentity, LinkRequest, Report};
use crate::platform;

/// Reads the id and the key that the agent claims. The object of its server checks them.
///
/// # Errors
/// The Authorization header is missing or malformed (agent-protocol 1.1).
fn read_identity(call: &Call) -> Result<ClaimedIdentity, Error> {
    let credential = call.agent_credential()?;
    // The service never generates such a key, so the object is not called.
    if !credential.key.is_token() {
        return Err(Error::invalid_token());
    }
    Ok(ClaimedIdentity {
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

/// Reads the id and the key of an agent whose request has a body. If the body is large, or of
/// unknown length, the object checks the key before the body is read. If the agent is refused, the
/// body is discarded.
async fn identify(call: &mut Call) -> Result<ClaimedIdentity, Error> {
    let identity = match read_identity(call) {
        Ok(identity) if call.has_large_body() => {
            forward_report(call, identity.clone(), Report::Alive).await.map(|_| identity)
        }
        other => other,
    };
    if identity.is_err() {
        call.discard().await;
    }
    identity
}

/// Forwards a report to the object of the agent's server. Returns the object's response.
async fn forward_report(
    call: &Call,
    identity: ClaimedIdentity,
    report: Report,
) -> Result<Value, Error> {
    let server = identity.server;
    let request_id = call.id.clone();
    let answer = calls::call(
        &call.env,
        server,
        &LinkRequest::HandleReport(AgentReport { identity, report, request_id }),
    )
    .await?;
    // The object accepted the key, so the workspace exists. No lookup in D1 is needed.
    call.is_workspace_known.set(true);
    Ok(answer)
}

/// Forwards a report. If the report could not be parsed, the object checks the key first: a wrong
/// key is refused before malformed input (contract 3.4).
async fn forward_or_refuse(
    call: &Call,
    identity: ClaimedIdentity,
    report: Result<Report, Error>,
) -> Result<Value, Error> {
    match report {
        Ok(report) => forward_report(call, identity, report).await,
        Err(error) => {
            forward_report(call, identity, Report::Alive).await?;
            Err(error)
        }
    }
}

/// `GET /api/servers/servers/-/`: the first call of an agent (agent-protocol 2.1).
pub async fn own_server(call: &Call) -> Result<Reply, Error> {
    let identity = read_identity(call)?;
    // For an agent, servers other than its own do not exist.
    let is_own =
        call.parameter("id") == "-" || id::parse(call.parameter("id")) == Some(identity.server);
    let report = if is_own { Ok(Report::Whoami) } else { Err(Error::not_found()) };
    let answer = forward_or_refuse(call, identity, report).await?;
    Reply::ok(&answer)
}

/// The id of the command in the path of a report.
fn command_id(call: &Call) -> Result<uuid::Uuid, Error> {
    call.path_id(Error::not_found)
}

/// Reads a report, forwards it, and responds with 204.
async fn relay(
    call: &mut Call,
    read: impl AsyncFnOnce(&mut Call) -> Result<Report, Error>,
) -> Result<Reply, Error> {
    let identity = identify(call).await?;
    let report = read(call).await;
    forward_or_refuse(call, identity, report).await?;
    Ok(Reply::no_content())
}

/// `POST /api/events/commands/<id>/ack/` (agent-protocol 4.1). The body is ignored.
pub async fn ack(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        call.discard_report().await?;
        Ok(Report::Ack { command: command_id(call)? })
    })
    .await
}

/// `POST /api/events/commands/<id>/chunk/` (agent-protocol 4.1).
pub async fn chunk(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        Ok(Report::Chunk { chunk: call.read_report().await?, command: command_id(call)? })
    })
    .await
}

/// `POST /api/events/commands/<id>/fin/` (agent-protocol 4.2).
pub async fn fin(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        Ok(Report::Fin { fin: call.read_report().await?, command: command_id(call)? })
    })
    .await
}

/// The body of a reject report.
#[derive(Deserialize)]
struct Rejection {
    reason: String,
}

/// `POST /api/events/commands/<id>/reject/`: the agent refuses to run the command (agent-protocol
/// 4.1). The report is handled as a fin with a reason.
pub async fn reject(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        // A malformed body is accepted, because the agent does not run the command in any case.
        let rejection =
            call.read_report_with(|body| Ok(serde_json::from_str::<Rejection>(body).ok())).await?;
        let reason =
            rejection.map_or_else(String::new, |rejection| format!(": {}", rejection.reason));
        let reason = Some(format!("The agent refused it{reason}"));
        let fin = Fin { result: Some(String::new()), reason, ..Fin::default() };
        Ok(Report::Fin { command: command_id(call)?, fin })
    })
    .await
}

/// `PUT /api/servers/servers/-/commit/` and `PATCH /api/servers/servers/-/sync/` (agent-protocol
/// 2.2).
pub async fn host_facts(call: &mut Call, is_commit: bool) -> Result<Reply, Error> {
    let identity = identify(call).await?;
    let facts = call.read_report_with(HostFacts::read).await;
    let report = facts.map(|facts| Report::Facts { facts: Box::new(facts), is_commit });
    forward_or_refuse(call, identity, report).await?;
    Reply::ok(&json!({}))
}

/// The categories of host facts that an agent offers to send.
#[derive(Deserialize)]
struct SyncOffer {
    hashes: BTreeMap<String, IgnoredAny>,
}

/// `POST /api/servers/servers/-/sync-check/` (agent-protocol 2.2): of the offered categories,
/// requests `info` and `os`.
pub async fn sync_check(call: &mut Call) -> Result<Reply, Error> {
    let identity = identify(call).await?;
    let offer =
        call.read_report_with(|body| Ok(serde_json::from_str::<SyncOffer>(body).ok())).await;
    let (seen, offer) = match offer {
        Ok(offer) => (Ok(Report::Alive), offer),
        Err(error) => (Err(error), None),
    };
    forward_or_refuse(call, identity, seen).await?;
    let is_offered =
        |category: &&str| offer.as_ref().is_some_and(|offer| offer.hashes.contains_key(*category));
    let required: Vec<_> = ["info", "os"].into_iter().filter(is_offered).collect();
    Reply::ok(&json!({"sync_required": required}))
}

/// An event of an agent (agent-protocol 2.1).
#[derive(Deserialize)]
struct AgentEvent {
    record: String,
}

/// `POST /api/events/events/`: only the event `started` has an effect.
pub async fn agent_event(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        // A malformed body is accepted as an event without effect.
        let event =
            call.read_report_with(|body| Ok(serde_json::from_str::<AgentEvent>(body).ok())).await?;
        let has_started = event.is_some_and(|event| event.record == "started");
        Ok(if has_started { Report::Started } else { Report::Alive })
    })
    .await
}

/// `POST`, `PUT` and `PATCH` of `/api/proc/<category>/…` (agent-protocol 2.2). The categories
/// `info` and `os` are host facts. All other categories are accepted without effect.
pub async fn proc_report(call: &mut Call) -> Result<Reply, Error> {
    let category = call.parameter("rest").split('/').next().unwrap_or("").to_owned();
    if !matches!(category.as_str(), "info" | "os") {
        return ignored_report(call).await;
    }
    relay(call, async |call: &mut Call| {
        let facts =
            call.read_report_with(|body| Ok(HostFacts::read_category(&category, body))).await?;
        Ok(facts.map_or(Report::Alive, |facts| Report::Facts {
            facts: Box::new(facts),
            is_commit: false,
        }))
    })
    .await
}

/// `DELETE /api/servers/servers/<id>/unregister/`: an agent deletes its own server (agent-protocol
/// 1.3).
pub async fn unregister(call: &mut Call) -> Result<Reply, Error> {
    let identity = identify(call).await?;
    let body = call.discard_report().await;
    let id = call.parameter("id");
    let is_own = id.is_empty() || id::parse(id) == Some(identity.server);
    let unregister =
        body.and_then(|()| if is_own { Ok(Report::Unregister) } else { Err(Error::not_found()) });
    forward_or_refuse(call, identity, unregister).await?;
    Ok(Reply::no_content())
}

/// Refuses an agent on an endpoint that is only for users, if agents use the same path.
pub async fn refuse_agent(call: &Call) -> Result<Reply, Error> {
    forward_report(call, read_identity(call)?, Report::Alive).await?;
    Err(Error::permission_denied("Only users may do this; an agent may not."))
}

/// `PATCH /api/servers/servers/-/status/`: the heartbeat (agent-protocol 2.3). If the body is
/// malformed, the heartbeat has no load.
pub async fn heartbeat(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| {
        let body = call.read_raw_report().await?;
        Ok(Report::Heartbeat { load: str::from_utf8(&body).ok().and_then(heartbeat_load) })
    })
    .await
}

/// A report that the service does not use (agent-protocol 4.4). It only updates `last_seen_at`.
pub async fn ignored_report(call: &mut Call) -> Result<Reply, Error> {
    relay(call, async |call: &mut Call| call.discard_report().await.map(|()| Report::Alive)).await
}

/// `GET /api/metrics/config/`: sets the interval of heartbeats (agent-protocol 2.1).
pub async fn metrics_config(call: &Call) -> Result<Reply, Error> {
    forward_report(call, read_identity(call)?, Report::Alive).await?;
    Reply::ok(&json!([{"type": "status", "interval": platform::heartbeat_seconds(&call.env)}]))
}

/// `GET /api/proc/<category>/…sync/`: an empty response, because older agents crash on a 404
/// (agent-protocol 4.4).
pub async fn proc_sync(call: &Call) -> Result<Reply, Error> {
    forward_report(call, read_identity(call)?, Report::Alive).await?;
    let rest = call.parameter("rest");
    if !rest.ends_with("sync/") {
        return Err(Error::not_found());
    }
    let category = rest.split('/').next().unwrap_or("");
    Reply::ok(&if matches!(category, "info" | "os" | "time") { json!({}) } else { json!([]) })
}

/// An agent's GET of a path that the service does not use (agent-protocol 4.4).
pub async fn unknown_get(call: &Call) -> Result<Reply, Error> {
    forward_report(call, read_identity(call)?, Report::Alive).await?;
    Err(Error::not_found())
}

/// `GET /ws/servers/backhaul/` and `/ws/servers/control/` (agent-protocol 2.1): the
/// object accepts the WebSocket.
pub async fn web_socket(call: &Call, path: &str) -> Result<Reply, Error> {
    let identity = read_identity(call)?;
    if !call.header("Upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        // The key is checked first (contract 3.4).
        forward_report(call, identity, Report::Alive).await?;
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
            ErrorKind::NotConnected,
            "Another agent with the same id and key is connected. Give each host a server of its own.",
        )
        .with_code(Code::IdentityConflict)),
        None => Err(Error::invalid_token()),
    }
}
