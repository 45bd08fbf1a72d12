//! Servers (contract 6).

use farhand_domain::audit::show_ids;
use farhand_domain::error::Error;
use farhand_domain::fields::Fields;
use farhand_domain::group::MAX_SERVERS;
use farhand_domain::secret::{Purpose, Secret};
use farhand_domain::server::{self, ServerChanges, ServerList};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{TRIES, agent, anybody, changed, conflict, find, page_of, staff};
use crate::caller::{Caller, Credential};
use crate::link_calls::{self, Ask, OfServer, Refusal, Remove, Rename, Rotate};
use crate::log;
use crate::platform::{self, internal};
use crate::request::Call;
use crate::response::Reply;
use crate::store::audit::after_change_by;
use crate::store::db::Failure;
use crate::store::servers::{self, ForChange, OBJECT, REACHABLE};

/// `GET /api/servers/` and `/api/servers/servers/`: those that the caller reaches.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    page_of(call, anybody, |query, _| ServerList::of(query).map(|list| servers::list(&list))).await
}

/// `GET /api/servers/servers/<id>/`: a server that the caller reaches; for an agent, with `-`, its own.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    if call.is_agent() {
        return agent::own_server(call).await;
    }
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let sql = format!("(SELECT {OBJECT} FROM servers s WHERE s.id = ?5 AND {REACHABLE})");
    let (_, server) = credential.read(&sql, vec![id.into()]).await?;
    server.map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// A new key for an agent, with its hash.
pub fn new_key(call: &Call) -> Result<(Secret, String), Error> {
    let key = platform::new_secret()?;
    let hash = platform::pepper(&call.env)?.hash(Purpose::AgentKey, &key);
    Ok((key, hash))
}

/// A server with its agent's key and how to start one: the one answer that shows them.
fn with_key(call: &Call, mut server: Value, id: Uuid, key: &Secret) -> Value {
    server["install"] = json!(server::install_commands(&call.origin, id, key));
    server["key"] = json!(key.expose());
    server
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
        Some("full") => Some(Error::field("groups", format!("A group has no more than {MAX_SERVERS} servers."))),
        _ => None,
    }
}

/// `POST /api/servers/`: makes a server, if the caller is staff; the one answer that has the agent's key.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let new = match fields.and_then(ServerChanges::read_all) {
        Ok(new) => new,
        // The caller's right comes before the input (contract 3, order of refusals).
        Err(error) => return Err(staff(&credential.check().await?).err().unwrap_or(error)),
    };
    let (name, groups) = (new.name.unwrap_or_default(), new.groups.unwrap_or_default());
    let (id, (key, key_hash)) = (platform::new_id(call.now)?, new_key(call)?);
    let new = servers::New { id, name: &name, key_hash: &key_hash, groups: &groups };
    let event = call.event("server.create")?.on(Some(id.to_string()), Some(&name));
    let mut details = json!({});
    show_ids(&mut details, "groups", &groups);
    let event = event.details(details);
    let (statements, event) = (servers::insert(&credential, &new), after_change_by(&credential, &event)?);
    let (caller, bodies) = credential.write_audited(statements, 1, event).await.map_err(taken)?;
    let Some(body) = bodies.into_iter().next_back().flatten() else {
        staff(&caller)?;
        let (_, problem) =
            credential.read(&servers::group_problem("?5"), vec![json!(groups).to_string().into()]).await?;
        return Err(bad_groups(problem.as_deref()).unwrap_or_else(|| conflict("group")));
    };
    adopt(call, caller.workspace_id, id).await?;
    let server = serde_json::from_str(&body).map_err(internal)?;
    Reply::created(&with_key(call, server, id, &key))
}

/// A server, for an object that may not know yet whose it is.
fn of_server(call: &Call, workspace_id: i64, server: Uuid) -> Result<OfServer, Error> {
    Ok(OfServer { workspace: call.workspace()?.to_owned(), workspace_id, server })
}

/// Tells a new server's object who the server is. Where that fails, it learns it from D1 at its agent's first call.
///
/// # Errors
/// The request has no workspace.
pub async fn adopt(call: &Call, workspace_id: i64, server: Uuid) -> Result<(), Error> {
    let of = of_server(call, workspace_id, server)?;
    if let Err(error) = link_calls::ask::<Value>(&call.env, server, &Ask::Adopt(of)).await {
        log::trouble("object_not_told", json!({"server": server}), &error.detail);
    }
    Ok(())
}

/// `PUT /api/servers/servers/<id>/`: its name and its groups.
pub async fn replace(call: &mut Call) -> Result<Reply, Error> {
    change(call, ServerChanges::read_all, true).await
}

/// `PATCH /api/servers/servers/<id>/`: the given fields.
pub async fn update(call: &mut Call) -> Result<Reply, Error> {
    change(call, ServerChanges::read, false).await
}

/// What a server is to somebody who wants to change it, for whom it is there at all.
///
/// # Errors
/// No such server; no right to change it.
async fn for_change(credential: &Credential<'_>, id: Uuid, groups: &[i64]) -> Result<(Caller, ForChange), Error> {
    let parameters = vec![id.into(), json!(groups).to_string().into()];
    let (caller, found) = find::<ForChange>(credential, &servers::for_change(), parameters).await?;
    if found.is_editable { Ok((caller, found)) } else { Err(Error::permission_denied()) }
}

/// Changes a server.
///
/// 1. Looks caller and server up; who may not edit it is refused before the input is looked at.
/// 2. Its groups are for staff (contract 5). To name the same again is no change; left out of a `PUT`, they are none for staff,
///    and stay for its owner.
/// 3. Writes, if the caller still may; else all is done once more.
async fn change(
    call: &mut Call,
    read_changes: impl FnOnce(Fields) -> Result<ServerChanges, Error>,
    is_whole: bool,
) -> Result<Reply, Error> {
    if call.is_agent() {
        return agent::denied(call).await;
    }
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let input = fields.and_then(read_changes);
    let groups = input.as_ref().ok().and_then(|changes| changes.groups.clone()).unwrap_or_default();
    for _ in 0..TRIES {
        let (caller, found) = for_change(&credential, id, &groups).await?;
        let mut changes = input.clone()?;
        let is_staff = caller.is_staff_or_superuser();
        if is_whole && is_staff {
            changes.groups.get_or_insert_default();
        }
        changes.groups = changes.groups.filter(|groups| json!(groups) != found.server["groups"]);
        if changes.groups.is_some() && !is_staff {
            return Err(Error::permission_denied());
        }
        if let Some(error) = bad_groups(found.group_problem.as_deref()) {
            return Err(error);
        }
        let event = call.event("server.update")?.on(Some(id.to_string()), found.server["name"].as_str());
        let event = after_change_by(&credential, &event.details(told(&changes)))?;
        let statements = servers::update(&credential, id, &changes);
        let (_, bodies) = credential.write_audited(statements, 1, event).await.map_err(taken)?;
        let done = bodies.first().is_some_and(Option::is_some);
        if let (true, Some(server)) = (done, bodies.into_iter().next_back().flatten()) {
            if let Some(name) = changes.name {
                rename(call, id, name);
            }
            return Ok(Reply::ok_text(server));
        }
    }
    Err(conflict("server"))
}

/// What an audit event tells of a change: the fields, and what they are after it.
fn told(changes: &ServerChanges) -> Value {
    let mut told = changed(&[("name", changes.name.is_some()), ("groups", changes.groups.is_some())]);
    if let Some(name) = &changes.name {
        told["name"] = json!(name);
    }
    if let Some(groups) = &changes.groups {
        show_ids(&mut told, "groups", groups);
    }
    told
}

/// After the response: tells the object of a server its new name, which its agent is told when it asks.
fn rename(call: &Call, id: Uuid, name: String) {
    let (env, rename) = (call.env.clone(), Rename { name, at: call.now });
    call.context.wait_until(async move {
        if let Err(error) = link_calls::ask::<Value>(&env, id, &Ask::Rename(rename)).await {
            log::trouble("object_not_told", json!({"server": id}), &error.detail);
        }
    });
}

/// `DELETE /api/servers/servers/<id>/`: its agent is cut off, what waits is taken back, what went out stays readable.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    if call.is_agent() {
        return agent::denied(call).await;
    }
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let (caller, found) = for_change(&credential, id, &[]).await?;
    let of = of_server(call, found.workspace_id, id)?;
    let event = caller.sign(call.event("server.delete")?).on(Some(id.to_string()), found.server["name"].as_str());
    let remove = Remove { of, by: Some(caller.user_id), event };
    link_calls::ask::<Value>(&call.env, id, &Ask::Remove(remove)).await?;
    Ok(Reply::no_content())
}

/// `POST /api/servers/servers/<id>/rotate-key/`: another key for its agent, told this once. The old one is dead when this
/// answers.
pub async fn rotate_key(call: &mut Call) -> Result<Reply, Error> {
    call.discard().await;
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let (caller, mut found) = for_change(&credential, id, &[]).await?;
    let of = of_server(call, found.workspace_id, id)?;
    let (key, key_hash) = new_key(call)?;
    let event = caller.sign(call.event("server.rotate_key")?).on(Some(id.to_string()), found.server["name"].as_str());
    let rotate = Rotate { of, by: caller.user_id, key_hash, at: call.now, event };
    let rotated = link_calls::try_ask::<Value>(&call.env, id, &Ask::Rotate(rotate)).await?;
    rotated.map_err(|refusal| match refusal {
        Refusal::NoServer => Error::not_found(),
        refusal => refusal.into(),
    })?;
    found.server["updated_at"] = json!(call.now);
    Reply::ok(&with_key(call, found.server, id, &key))
}
