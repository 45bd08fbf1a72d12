//! Servers (contract 6).

use farhand_domain::audit::show_ids;
use farhand_domain::caller::Caller;
use farhand_domain::error::Error;
use farhand_domain::fingerprint;
use farhand_domain::group::MAX_SERVERS;
use farhand_domain::registration_token;
use farhand_domain::secret::{Purpose, Secret, credential_hash};
use farhand_domain::server::{self, ServerChanges, ServerList};
use serde_json::{Value, json};
use uuid::Uuid;

use super::change::{Extent, changed_fields, conflict, find, retry};
use super::idempotency::{self, Kept, Once, Written};
use super::{agent, anybody, location, one_of, page_of, staff};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::{self, Ask, OfServer, Refusal, Remove, Rename, Rotate};
use crate::platform;
use crate::platform::log;
use crate::store::db::Failure;
use crate::store::servers::{self, ForApproval, ForChange};

/// Where servers are.
pub const SERVERS: &str = "/api/servers/servers/";

/// `GET /api/servers/` and `/api/servers/servers/`: those that the caller reaches.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    page_of(call, anybody, |query, _| ServerList::of(query).map(|list| servers::list(&list))).await
}

/// `GET /api/servers/servers/<id>/`: a server that the caller reaches; for an agent, with `-`, its
/// own.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    if call.is_agent() {
        return agent::own_server(call).await;
    }
    one_of(call, anybody, call.path_id(Error::not_found), servers::one).await
}

/// A new key for an agent, with its hash.
pub fn new_key() -> Result<(Secret, String), Error> {
    let key = platform::new_secret()?;
    let hash = credential_hash(Purpose::AgentKey, &key);
    Ok((key, hash))
}

/// A server with its agent's key and how to start one: the one answer that shows them. The agent's
/// address of the service comes from configuration: the caller's Host header must not decide whom
/// the agent obeys.
fn with_key(call: &Call, mut server: Value, id: Uuid, key: &Secret) -> Result<Value, Error> {
    let service = call.config.base_url_of(call.workspace()?);
    server["install"] = json!(server::install_commands(&service, id, key));
    server["install_alpamon"] = json!(server::install_commands_of_alpamon(&service, id, key));
    server["key"] = json!(key.expose());
    Ok(server)
}

/// What a name that another server has is to the client.
fn taken(failure: Failure) -> Error {
    match failure {
        Failure::NotUnique(_) => Error::field("name", "A server with this name already exists."),
        other => other.into(),
    }
}

/// What is wrong with the groups that are asked for, by what the store says of them.
pub fn bad_groups(problem: Option<&str>) -> Option<Error> {
    match problem {
        Some("unknown") => Some(Error::field("groups", "No such group.")),
        Some("full") => {
            Some(Error::field("groups", format!("A group has no more than {MAX_SERVERS} servers.")))
        }
        _ => None,
    }
}

/// What a replay of a creation shows.
const KEPT: Kept = Kept {
    collection: SERVERS,
    source: servers::REPLAY,
    hidden: &["key", "install", "install_alpamon"],
};

/// `POST /api/servers/`: makes a server, if the caller is staff; the one answer that has the
/// agent's key.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let body = idempotency::body_of(&fields);
    let credential = Credential::from_request(call)?;
    let once = Once::of(call, &KEPT, body);
    let (new, once) =
        match fields.and_then(ServerChanges::read_new).and_then(|new| Ok((new, once?))) {
            Ok(read) => read,
            // The caller's right comes before the input (contract 3.4).
            Err(error) => return Err(staff(&credential.check().await?).err().unwrap_or(error)),
        };
    if let Some((caller, reply)) = once.replay(&credential).await? {
        staff(&caller)?;
        return Ok(reply);
    }
    let (name, groups) = (new.name.unwrap_or_default(), new.groups.unwrap_or_default());
    let default_username = new.default_username.flatten();
    let (id, (key, key_hash)) = (platform::new_id(call.now)?, new_key()?);
    let new = servers::New {
        id,
        name: &name,
        key_hash: &key_hash,
        groups: &groups,
        default_username: default_username.as_deref(),
    };
    let event = call.audit_event()?.on(Some(id.to_string()), Some(&name));
    let mut details = json!({});
    show_ids(&mut details, "groups", &groups);
    let batch = servers::insert(&credential.scope, &new, &event.details(details))?;
    match once.write(&credential, &id.to_string(), batch).await.map_err(taken)? {
        Written::Created(caller, server) => {
            adopt(call, caller.workspace_id, id).await?;
            let server = serde_json::from_str(&server)?;
            Reply::created(&with_key(call, server, id, &key)?, location(call, SERVERS, id))
        }
        Written::Refused(caller) => {
            staff(&caller)?;
            let (_, problem) = credential.read(servers::problem_of_groups(&groups)).await?;
            Err(bad_groups(problem.as_deref()).unwrap_or_else(|| conflict("group")))
        }
        Written::Replayed(reply) => Ok(reply),
    }
}

/// A server, for an object that may not know yet whose it is.
fn of_server(call: &Call, workspace_id: i64, server: Uuid) -> Result<OfServer, Error> {
    Ok(OfServer { workspace: call.workspace()?.to_owned(), workspace_id, server })
}

/// Tells a new server's object who the server is. Where that fails, it learns it from D1 at its
/// agent's first call.
///
/// # Errors
/// The request has no workspace.
pub async fn adopt(call: &Call, workspace_id: i64, server: Uuid) -> Result<(), Error> {
    let of = of_server(call, workspace_id, server)?;
    if let Err(error) = calls::ask::<Value>(&call.env, server, &Ask::Adopt(of)).await {
        log::trouble("object_not_told", json!({"server": server}), &error.detail);
    }
    Ok(())
}

/// Who changes servers (contract 5.7).
const EDITS: &str = "Only staff and the server's owner may change or delete it.";

/// What a server is to somebody who wants to change it, for whom it is there at all.
///
/// # Errors
/// No such server; no right to change it.
async fn for_change(
    credential: &Credential<'_>,
    id: Uuid,
    groups: &[i64],
    owner: Option<i64>,
) -> Result<(Caller, ForChange), Error> {
    let (caller, found) =
        find::<ForChange>(credential, servers::for_change(id, groups, owner)).await?;
    if found.is_editable { Ok((caller, found)) } else { Err(Error::permission_denied(EDITS)) }
}

/// `PUT` and `PATCH /api/servers/servers/<id>/`: its name, its groups and its owner.
///
/// 1. Finds caller and server. A caller who may not change it is refused before the input is looked
///    at.
/// 2. Only staff change its groups (contract 5.7). To name the same groups is no change. A `PUT`
///    without groups removes them if the caller is staff, and keeps them otherwise.
/// 3. Only superusers change its owner. To name the same owner is no change. A `PUT` without an
///    owner keeps it.
/// 4. Writes, if the caller still may.
pub async fn change(call: &mut Call, extent: Extent) -> Result<Reply, Error> {
    if call.is_agent() {
        return agent::denied(call).await;
    }
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let input =
        fields.and_then(|fields| extent.read(fields, ServerChanges::read_all, ServerChanges::read));
    let groups = input.as_ref().ok().and_then(|changes| changes.groups.clone()).unwrap_or_default();
    let owner = input.as_ref().ok().and_then(|changes| changes.owner).flatten();
    let attempt = async || {
        let (caller, found) = for_change(&credential, id, &groups, owner).await?;
        let mut changes = input.clone()?;
        let is_staff = caller.is_staff_or_superuser();
        if extent == Extent::Whole && is_staff {
            changes.groups.get_or_insert_default();
        }
        changes.groups = changes.groups.filter(|groups| json!(groups) != found.server["groups"]);
        if changes.groups.is_some() && !is_staff {
            return Err(Error::permission_denied("Only staff may set a server's groups."));
        }
        let owner_before = found.server["owner"]["id"].as_i64();
        changes.owner = changes.owner.filter(|owner| *owner != owner_before);
        if changes.owner.is_some() && !caller.is_superuser {
            return Err(Error::permission_denied("Only superusers may set a server's owner."));
        }
        if let Some(error) = bad_groups(found.group_problem.as_deref()) {
            return Err(error);
        }
        if changes.owner.flatten().is_some() && !found.has_new_owner {
            return Err(Error::field("owner", "No such user."));
        }
        let event = call.audit_event()?.on(Some(id.to_string()), found.server["name"].as_str());
        let event = event.details(details(&changes, owner_before));
        let batch = servers::update(&credential.scope, id, &changes, &event)?;
        let (_, server) = credential.write(batch).await.map_err(taken)?;
        if let (Some(_), Some(name)) = (&server, changes.name) {
            rename(call, id, name);
        }
        Ok(server.map(Reply::ok_text))
    };
    retry("server", attempt).await
}

/// The details of a change's audit event: the changed fields, their new values, and the owner
/// before.
fn details(changes: &ServerChanges, owner_before: Option<i64>) -> Value {
    let mut details = changed_fields(&[
        ("name", changes.name.is_some()),
        ("groups", changes.groups.is_some()),
        ("owner", changes.owner.is_some()),
        ("default_username", changes.default_username.is_some()),
    ]);
    if let Some(default_username) = &changes.default_username {
        details["default_username"] = json!(default_username);
    }
    if let Some(owner) = changes.owner {
        details["owner"] = json!(owner);
        details["old"] = json!({"owner": owner_before});
    }
    if let Some(name) = &changes.name {
        details["name"] = json!(name);
    }
    if let Some(groups) = &changes.groups {
        show_ids(&mut details, "groups", groups);
    }
    details
}

/// After the response: tells the object of a server its new name, which its agent is told when it
/// asks.
fn rename(call: &Call, id: Uuid, name: String) {
    let (env, rename) = (call.env.clone(), Rename { name, at: call.now });
    call.context.wait_until(async move {
        if let Err(error) = calls::ask::<Value>(&env, id, &Ask::Rename(rename)).await {
            log::trouble("object_not_told", json!({"server": id}), &error.detail);
        }
    });
}

/// `DELETE /api/servers/servers/<id>/`: its agent is cut off, what waits is taken back, what went
/// out stays readable.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    if call.is_agent() {
        return agent::denied(call).await;
    }
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let (caller, found) = for_change(&credential, id, &[], None).await?;
    let of = of_server(call, found.workspace_id, id)?;
    let event =
        caller.sign(call.audit_event()?).on(Some(id.to_string()), found.server["name"].as_str());
    let remove = Remove { of, by: Some(caller.user_id), only_pending: false, event };
    calls::ask::<Value>(&call.env, id, &Ask::Remove(remove)).await?;
    Ok(Reply::no_content())
}

/// `POST /api/servers/servers/<id>/approve/`: lets a pending server run commands, if staff know the
/// fingerprint of its agent's key. To approve it again with the same fingerprint changes nothing.
pub async fn approve(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let (caller, found) = find::<ForApproval>(&credential, servers::for_approval(id)).await?;
    staff(&caller)?;
    let fingerprint = fields.and_then(registration_token::read_fingerprint)?;
    let wrong =
        || Error::field("fingerprint", "This is not the fingerprint of the server's agent.");
    let Some(right) = found.fingerprint else {
        return Err(Error::field(
            "fingerprint",
            "The server was not registered with a token that asks for approval.",
        ));
    };
    if fingerprint != right {
        return Err(wrong());
    }
    if !found.is_pending {
        return retrieve(call).await;
    }
    let event = call.audit_event()?.on(Some(id.to_string()), Some(&found.name));
    let event = event.details(json!({"fingerprint": fingerprint}));
    let (_, server) =
        credential.write(servers::approve(&credential.scope, id, &fingerprint, &event)?).await?;
    // Without a reply, another request approved the server first, or its key was rotated.
    server.map(Reply::ok_text).ok_or_else(|| conflict("server"))
}

/// `POST /api/servers/servers/<id>/rotate-key/`: another key for its agent, told this once. The old
/// one is dead when this answers.
pub async fn rotate_key(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let (caller, mut found) = for_change(&credential, id, &[], None).await?;
    input?;
    let of = of_server(call, found.workspace_id, id)?;
    let (key, key_hash) = new_key()?;
    let event =
        caller.sign(call.audit_event()?).on(Some(id.to_string()), found.server["name"].as_str());
    let fingerprint = fingerprint::of_key(&key);
    let rotate = Rotate {
        of,
        by: caller.user_id,
        key_hash,
        fingerprint: fingerprint.clone(),
        at: call.now,
        event,
    };
    let rotated = calls::try_ask::<Value>(&call.env, id, &Ask::Rotate(rotate)).await?;
    rotated.map_err(|refusal| match refusal {
        Refusal::NoServer => Error::not_found(),
        refusal => refusal.into(),
    })?;
    found.server["updated_at"] = json!(call.now);
    if found.server["fingerprint"].is_string() {
        found.server["fingerprint"] = json!(fingerprint);
    }
    Reply::ok(&with_key(call, found.server, id, &key)?)
}
