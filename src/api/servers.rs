//! Servers (contract 6).

use farhand_domain::access::caller::Caller;
use farhand_domain::access::registration_token;
use farhand_domain::audit::event::add_ids;
use farhand_domain::error::Error;
use farhand_domain::fleet::fingerprint;
use farhand_domain::fleet::installer;
use farhand_domain::fleet::labels::Labels;
use farhand_domain::fleet::server::{self, OLD_KEY_VALIDITY, ServerChanges, ServerList};
use farhand_domain::http::page::{MAX_SIZE_OF_SERVERS, boolean_parameter};
use farhand_domain::people::group::MAX_SERVERS;
use farhand_domain::secret::{Purpose, Secret, credential_hash};
use serde_json::{Value, json};
use uuid::Uuid;

use super::change::{Extent, changed_fields, conflict_error, find, retry};
use super::idempotency::{self, Creation, CreationOutcome, ResourceKind};
use super::{agent, any_caller, list_page_up_to, location, require_staff, retrieve_one};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::{
    self, DeleteServer, LinkRequest, Refusal, Rename, ReplaceKey, ReplacedKey, ServerLocation,
};
use crate::platform;
use crate::platform::log;
use crate::store::db::Failure;
use crate::store::deleted_servers;
use crate::store::servers::{self, ServerForApproval, ServerForChange, ServerForLimitedChange};

/// The path of the collection of servers.
pub const SERVERS: &str = "/api/servers/servers/";

/// `GET /api/servers/` and `/api/servers/servers/`: the servers that the caller can access. Staff can
/// list the deleted servers (contract 6.6).
pub async fn list(call: &Call) -> Result<Reply, Error> {
    let is_deleted = boolean_parameter(&call.query(), "deleted") == Ok(Some(true));
    let permit = if is_deleted { require_staff } else { any_caller };
    list_page_up_to(call, MAX_SIZE_OF_SERVERS, permit, |query, _| {
        ServerList::from_query(query).map(|list| {
            if list.is_deleted { deleted_servers::list(&list) } else { servers::list(&list) }
        })
    })
    .await
    .map(|(reply, _)| reply)
}

/// `GET /api/servers/servers/<id>/`: a server that the caller can access. An agent can read its own
/// server, also with the id `-`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    if call.is_agent() {
        return agent::own_server(call).await;
    }
    retrieve_one(call, any_caller, call.path_id(Error::not_found), servers::by_id).await
}

/// Generates a key for an agent. Returns the key and its hash.
pub fn new_key() -> Result<(Secret, String), Error> {
    let key = platform::new_secret()?;
    let hash = credential_hash(Purpose::AgentKey, &key);
    Ok((key, hash))
}

/// Adds the agent's key and the install commands to a server (contract 6.3). The service address in
/// the commands comes from the configuration. If it came from the Host header, a caller could make
/// an agent connect to another service.
fn with_key(call: &Call, mut server: Value, id: Uuid, key: &Secret) -> Result<Value, Error> {
    let service = call.config.base_url_of(call.workspace()?);
    server["install"] = json!(installer::install_command(&service, id, key));
    server["install_alpamon"] = json!(server::alpamon_install_commands(&service, id, key));
    server["key"] = json!(key.expose());
    Ok(server)
}

/// Maps a duplicate name to a field error.
fn duplicate_name_error(failure: Failure) -> Error {
    match failure {
        Failure::NotUnique(_) => Error::field("name", "A server with this name already exists."),
        other => other.into(),
    }
}

/// Maps the result of [`servers::check_groups`] to a field error.
pub fn group_error(problem: Option<&str>) -> Option<Error> {
    match problem {
        Some("unknown") => Some(Error::field("groups", "No such group.")),
        Some("full") => {
            Some(Error::field("groups", format!("A group has no more than {MAX_SERVERS} servers.")))
        }
        _ => None,
    }
}

/// The path and the replay source of new servers.
const RESOURCE: ResourceKind = ResourceKind {
    collection: SERVERS,
    source: servers::REPLAY,
    hidden: &["key", "install", "install_alpamon"],
};

/// `POST /api/servers/`: staff create a server. Only this response contains the agent's key.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let body = idempotency::canonical_body(&fields);
    let credential = Credential::from_request(call)?;
    let creation = Creation::from_request(call, &RESOURCE, body);
    let (new, creation) = match fields
        .and_then(ServerChanges::read_new)
        .and_then(|new| Ok((new, creation?)))
    {
        Ok(read) => read,
        // The permission is checked before the input (contract 3.4).
        Err(error) => return Err(require_staff(&credential.check().await?).err().unwrap_or(error)),
    };
    if let Some((caller, reply)) = creation.replay(&credential).await? {
        require_staff(&caller)?;
        return Ok(reply);
    }
    let (name, groups) = (new.name.unwrap_or_default(), new.groups.unwrap_or_default());
    let default_username = new.default_username.flatten();
    let labels = new.labels.unwrap_or_default();
    let (id, (key, key_hash)) = (platform::new_id(call.now)?, new_key()?);
    let new = servers::NewServer {
        id,
        name: &name,
        key_hash: &key_hash,
        groups: &groups,
        default_username: default_username.as_deref(),
        labels: &labels,
    };
    let event = call.audit_event()?.with_object(Some(id.to_string()), Some(&name));
    let mut details = json!({});
    add_ids(&mut details, "groups", &groups);
    if !labels.is_empty() {
        details["labels"] = json!(labels);
    }
    let transaction = servers::insert(&credential.scope, &new, &event.details(details))?;
    match creation
        .write(&credential, &id.to_string(), transaction)
        .await
        .map_err(duplicate_name_error)?
    {
        CreationOutcome::Created(caller, server) => {
            init_object(call, caller.workspace_id, id).await?;
            let server = serde_json::from_str(&server)?;
            Reply::created(&with_key(call, server, id, &key)?, location(call, SERVERS, id))
        }
        CreationOutcome::Refused(caller) => {
            require_staff(&caller)?;
            let (_, problem) = credential.read(servers::check_groups(&groups)).await?;
            Err(group_error(problem.as_deref()).unwrap_or_else(|| conflict_error("group")))
        }
        CreationOutcome::Replayed(reply) => Ok(reply),
    }
}

/// The identity of a server, for calls to an object that may not have it yet.
///
/// # Errors
/// The Host header selects no workspace.
pub fn server_identity(
    call: &Call,
    workspace_id: i64,
    server: Uuid,
) -> Result<ServerLocation, Error> {
    Ok(ServerLocation { workspace: call.workspace()?.to_owned(), workspace_id, server })
}

/// Sends the identity of a new server to its object. If that fails, the object reads it from D1 at
/// the first call of the agent.
///
/// # Errors
/// The Host header selects no workspace.
pub async fn init_object(call: &Call, workspace_id: i64, server: Uuid) -> Result<(), Error> {
    let of = server_identity(call, workspace_id, server)?;
    if let Err(error) =
        calls::call::<Value>(&call.env, server, &LinkRequest::InitIdentity(of)).await
    {
        log::error("object_not_called", json!({"server": server}), &error.detail);
    }
    Ok(())
}

/// The message for callers that may not change a server (contract 5.7).
const EDITORS_ONLY: &str = "Only staff and the server's owner may change or delete it.";

/// Finds the caller and a server whose key the caller may rotate, or which the caller may delete.
/// The limit of such changes is for [`within_limit`] to check.
///
/// # Errors
/// 404 if the caller cannot access the server, 403 if the caller may not change it.
async fn find_for_limited_change(
    call: &Call,
    credential: &Credential<'_>,
    id: Uuid,
) -> Result<(Caller, ServerForLimitedChange), Error> {
    let query = servers::for_limited_change(id, &call.config.quotas, call.now);
    let (caller, found) = find::<ServerForLimitedChange>(credential, query).await?;
    if found.is_editable {
        Ok((caller, found))
    } else {
        Err(Error::permission_denied(EDITORS_ONLY))
    }
}

/// Checks the limit of rotated keys and deleted servers (contract 11.4).
///
/// # Errors
/// 429 with the time that is left.
fn within_limit(call: &Call, found: &ServerForLimitedChange) -> Result<(), Error> {
    found.limiting_change.map_or(Ok(()), |oldest| Err(server::changes_exceeded(oldest, call.now)))
}

/// The error for a change that the object refused: the permission or the limit changed since it was
/// checked.
async fn refused_change(
    call: &Call,
    credential: &Credential<'_>,
    id: Uuid,
    refusal: Refusal,
) -> Error {
    match (refusal, find_for_limited_change(call, credential, id).await) {
        (Refusal::NoServer, _) => Error::not_found(),
        (Refusal::NotPermitted, Err(error)) => error,
        (refusal, Ok((_, found))) => {
            within_limit(call, &found).err().unwrap_or_else(|| refusal.into())
        }
        (refusal, Err(_)) => refusal.into(),
    }
}

/// Finds the caller and a server that the caller may change.
///
/// # Errors
/// 404 if the caller cannot access the server, 403 if the caller may not change it.
async fn find_editable(
    credential: &Credential<'_>,
    id: Uuid,
    groups: &[i64],
    owner: Option<i64>,
) -> Result<(Caller, ServerForChange), Error> {
    let (caller, found) =
        find::<ServerForChange>(credential, servers::for_change(id, groups, owner)).await?;
    if found.is_editable {
        Ok((caller, found))
    } else {
        Err(Error::permission_denied(EDITORS_ONLY))
    }
}

/// `PUT` and `PATCH /api/servers/servers/<id>/`.
///
/// 1. Finds the caller and the server. The permission is checked before the input.
/// 2. Only staff may change `groups` (contract 5.7). Sending the current groups is no change. A
///    `PUT` without `groups` removes all groups if the caller is staff, and keeps them otherwise.
/// 3. Only superusers may change `owner`. Sending the current owner is no change. A `PUT` without
///    `owner` keeps the owner.
/// 4. Writes, if the caller still has the permission.
pub async fn change(call: &mut Call, extent: Extent) -> Result<Reply, Error> {
    if call.is_agent() {
        return agent::refuse_agent(call).await;
    }
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let input =
        fields.and_then(|fields| extent.read(fields, ServerChanges::read_all, ServerChanges::read));
    let groups = input.as_ref().ok().and_then(|changes| changes.groups.clone()).unwrap_or_default();
    let owner = input.as_ref().ok().and_then(|changes| changes.owner).flatten();
    let attempt = async || {
        let (caller, found) = find_editable(&credential, id, &groups, owner).await?;
        let mut changes = input.clone()?;
        let is_staff = caller.is_staff_or_superuser();
        if extent == Extent::Whole && is_staff {
            changes.groups.get_or_insert_default();
            changes.labels.get_or_insert_default();
        }
        changes.groups = changes.groups.filter(|groups| json!(groups) != found.server["groups"]);
        if changes.groups.is_some() && !is_staff {
            return Err(Error::permission_denied("Only staff may set a server's groups."));
        }
        let labels_before: Labels = serde_json::from_value(found.server["labels"].clone())?;
        changes.labels = changes.labels.filter(|labels| *labels != labels_before);
        if changes.labels.is_some() && !is_staff {
            return Err(Error::permission_denied("Only staff may set a server's labels."));
        }
        let owner_before = found.server["owner"]["id"].as_i64();
        changes.owner = changes.owner.filter(|owner| *owner != owner_before);
        if changes.owner.is_some() && !caller.is_superuser {
            return Err(Error::permission_denied("Only superusers may set a server's owner."));
        }
        if let Some(error) = group_error(found.group_problem.as_deref()) {
            return Err(error);
        }
        if changes.owner.flatten().is_some() && !found.has_new_owner {
            return Err(Error::field("owner", "No such user."));
        }
        let event =
            call.audit_event()?.with_object(Some(id.to_string()), found.server["name"].as_str());
        let event = event.details(audit_details(&changes, owner_before, &labels_before));
        let transaction = servers::update(&credential.scope, id, &changes, &labels_before, &event)?;
        let (_, server) = credential.write(transaction).await.map_err(duplicate_name_error)?;
        if let (Some(_), Some(name)) = (&server, changes.name) {
            send_new_name(call, id, name);
        }
        Ok(server.map(Reply::ok_text))
    };
    retry("server", attempt).await
}

/// The details of the audit event of a server change: the changed fields, their new values, and the
/// former owner.
fn audit_details(
    changes: &ServerChanges,
    owner_before: Option<i64>,
    labels_before: &Labels,
) -> Value {
    let mut details = changed_fields(&[
        ("name", changes.name.is_some()),
        ("groups", changes.groups.is_some()),
        ("labels", changes.labels.is_some()),
        ("owner", changes.owner.is_some()),
        ("default_username", changes.default_username.is_some()),
    ]);
    if let Some(default_username) = &changes.default_username {
        details["default_username"] = json!(default_username);
    }
    if let Some(owner) = changes.owner {
        details["owner"] = json!(owner);
        details["old"]["owner"] = json!(owner_before);
    }
    if let Some(labels) = &changes.labels {
        details["labels"] = json!(labels);
        details["old"]["labels"] = json!(labels_before);
    }
    if let Some(name) = &changes.name {
        details["name"] = json!(name);
    }
    if let Some(groups) = &changes.groups {
        add_ids(&mut details, "groups", groups);
    }
    details
}

/// After the response: sends the new name to the server's object, which reports it to the agent.
fn send_new_name(call: &Call, id: Uuid, name: String) {
    let (env, rename) = (call.env.clone(), Rename { name, at: call.now });
    call.context.wait_until(async move {
        if let Err(error) = calls::call::<Value>(&env, id, &LinkRequest::Rename(rename)).await {
            log::error("object_not_called", json!({"server": id}), &error.detail);
        }
    });
}

/// `DELETE /api/servers/servers/<id>/` (contract 6.6): disconnects the agent and cancels waiting
/// commands. Delivered commands remain readable.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    if call.is_agent() {
        return agent::refuse_agent(call).await;
    }
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let (caller, found) = find_for_limited_change(call, &credential, id).await?;
    within_limit(call, &found)?;
    let of = server_identity(call, found.workspace_id, id)?;
    let event = caller
        .attribute(call.audit_event()?)
        .with_object(Some(id.to_string()), found.server["name"].as_str());
    let remove = DeleteServer { of, by: Some(caller.user_id), only_pending: false, event };
    let message = LinkRequest::DeleteServer(remove);
    match calls::call_or_refusal::<Value>(&call.env, id, &message).await? {
        Ok(_) => Ok(Reply::no_content()),
        Err(refusal) => Err(refused_change(call, &credential, id, refusal).await),
    }
}

/// `POST /api/servers/servers/<id>/approve/` (contract 6.5): staff approve a pending server by the
/// fingerprint of its agent's key. If the server is already approved and the fingerprint matches,
/// nothing changes.
pub async fn approve(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let (caller, found) = find::<ServerForApproval>(&credential, servers::for_approval(id)).await?;
    require_staff(&caller)?;
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
    let event = call.audit_event()?.with_object(Some(id.to_string()), Some(&found.name));
    let event = event.details(json!({"fingerprint": fingerprint}));
    let (_, server) =
        credential.write(servers::approve(&credential.scope, id, &fingerprint, &event)?).await?;
    // No reply means that another request approved the server first, or replaced its key.
    server.map(Reply::ok_text).ok_or_else(|| conflict_error("server"))
}

/// `POST /api/servers/servers/<id>/rotate-key/` (contract 6.3): replaces the agent's key. The old key
/// is valid until an agent connects with the new key, at most for a day. With `now`, it is refused
/// from the response on.
pub async fn rotate_key(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.optional_fields().await;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let (caller, mut found) = find_for_limited_change(call, &credential, id).await?;
    let now = fields.and_then(server::read_rotation)?;
    if now && !caller.is_superuser {
        return Err(Error::permission_denied("Only superusers may end the old key now."));
    }
    within_limit(call, &found)?;
    let of = server_identity(call, found.workspace_id, id)?;
    let (key, key_hash) = new_key()?;
    let event = caller
        .attribute(call.audit_event()?)
        .with_object(Some(id.to_string()), found.server["name"].as_str())
        .details(json!({"now": now}));
    let fingerprint = fingerprint::from_key(&key);
    let rotate = ReplaceKey {
        of,
        by: caller.user_id,
        key_hash,
        fingerprint: fingerprint.clone(),
        old_key_valid_until: (!now).then(|| call.now.plus(OLD_KEY_VALIDITY)),
        at: call.now,
        event,
    };
    let message = LinkRequest::ReplaceKey(rotate);
    let replaced = match calls::call_or_refusal::<ReplacedKey>(&call.env, id, &message).await? {
        Ok(replaced) => replaced,
        Err(refusal) => return Err(refused_change(call, &credential, id, refusal).await),
    };
    found.server["updated_at"] = json!(call.now);
    found.server["old_key_valid_until"] = json!(replaced.old_key_valid_until);
    if found.server["fingerprint"].is_string() {
        found.server["fingerprint"] = json!(fingerprint);
    }
    Reply::ok(&with_key(call, found.server, id, &key)?)
}
