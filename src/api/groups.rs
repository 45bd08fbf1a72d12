//! Groups, and who is in them (contract 5).

use farhand_domain::audit::show_ids;
use farhand_domain::error::Error;
use farhand_domain::fields::Fields;
use farhand_domain::group::{
    self, GroupChanges, GroupFilter, Membership, MembershipChange, MembershipFilter, NewMembership, Role, Standing,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::idempotency::{self, Kept, Once, Written};
use super::{TRIES, anybody, changed, conflict, find, location, location_of, page_of, staff, staff_only};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform;
use crate::store::audit::{Numbered, after_change_by, after_insert_by};
use crate::store::db::Failure;
use crate::store::groups::{self, ForChange, ForJoining, MembershipForChange};
use farhand_domain::caller::Caller;

/// `GET /api/iam/groups/`: those that the caller sees, oldest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    page_of(call, anybody, |query, _| GroupFilter::of(query).map(groups::list)).await
}

/// `GET /api/iam/groups/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_number(Error::not_found)).await?;
    let (_, group) = credential.read(&groups::one(), vec![id.into()]).await?;
    group.map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// What a name that another group has is to the client.
fn taken(failure: Failure) -> Error {
    match failure {
        Failure::NotUnique(column) if column == "groups.name" => {
            Error::field("name", "A group with this name already exists.")
        }
        other => other.into(),
    }
}

fn no_such_server() -> Error {
    Error::field("servers", "No such server.")
}

/// What a replay of a new group shows.
const KEPT: Kept = Kept {
    collection: "/api/iam/groups/",
    object: groups::OBJECT,
    made: "groups g ON g.workspace_id = me.workspace_id AND g.name = ?7 AND g.added_at = ?3",
    hidden: &[],
};

/// `POST /api/iam/groups/`: makes a group, if the caller is staff, who owns it.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.fields_of_user().await?;
    let body = idempotency::body_of(&fields);
    let credential = Credential::of(call)?;
    let input = fields.and_then(GroupChanges::read_new);
    let servers = input.as_ref().ok().and_then(|new| new.servers.clone()).unwrap_or_default();
    let (caller, unknown) =
        credential.read(&groups::has_unknown_server("?5"), vec![json!(servers).to_string().into()]).await?;
    // The caller's right comes before the input (contract 3, order of refusals).
    staff(&caller)?;
    let new = input?;
    let once = Once::of(call, &KEPT, body)?;
    if let Some(once) = &once
        && let Some((_, reply)) = once.replay(&credential).await?
    {
        return Ok(reply);
    }
    if unknown.as_deref() == Some("true") {
        return Err(no_such_server());
    }
    let statements = groups::insert(&credential.scope, &new, platform::new_id(call.now)?);
    let event = call.event()?.on(None, new.name.as_deref());
    let mut details = json!({});
    show_ids(&mut details, "servers", new.servers.as_deref().unwrap_or_default());
    let event = after_insert_by(&credential.scope, Numbered::Group, &event.details(details))?;
    let name = new.name.as_deref().unwrap_or_default();
    let written = idempotency::write(&credential, once.as_ref(), name, statements, (1, event)).await;
    let bodies = match written.map_err(taken)? {
        Written::Done(_, bodies) => bodies,
        Written::Replayed(reply) => return Ok(reply),
    };
    let group = bodies.into_iter().next_back().flatten().ok_or_else(staff_only)?;
    let location = location_of(call, "/api/iam/groups/", &group)?;
    Ok(Reply::created_text(group, location))
}

/// What an audit event tells of a change: the fields, and the servers, as they decide who reaches what.
fn told(changes: &GroupChanges) -> Value {
    let mut told = changed(&[
        ("name", changes.name.is_some()),
        ("display_name", changes.display_name.is_some()),
        ("description", changes.description.is_some()),
        ("servers", changes.servers.is_some()),
    ]);
    if let Some(servers) = &changes.servers {
        show_ids(&mut told, "servers", servers);
    }
    told
}

/// What an audit event tells of a membership, with its role after it.
fn told_of(membership: Membership, role: Role) -> Value {
    json!({"group": membership.group, "user": membership.user, "role": role.as_str()})
}

/// `PUT /api/iam/groups/<id>/`: everything.
pub async fn replace(call: &mut Call) -> Result<Reply, Error> {
    change(call, GroupChanges::read_all, true).await
}

/// `PATCH /api/iam/groups/<id>/`: the given fields.
pub async fn update(call: &mut Call) -> Result<Reply, Error> {
    change(call, GroupChanges::read, false).await
}

/// Changes a group.
///
/// 1. Looks caller and group up; who may not edit it is refused before the input is looked at.
/// 2. Its servers are for staff (contract 5). To name the same again is no change; left out of a `PUT`, they are none for
///    staff, and stay for its owners.
/// 3. Writes, if the caller still may; else all is done once more.
async fn change(
    call: &mut Call,
    read_changes: impl FnOnce(Fields) -> Result<GroupChanges, Error>,
    is_whole: bool,
) -> Result<Reply, Error> {
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_number(Error::not_found)).await?;
    let input = fields.and_then(read_changes);
    let servers = input.as_ref().ok().and_then(|changes| changes.servers.clone()).unwrap_or_default();
    for _ in 0..TRIES {
        let parameters = vec![id.into(), json!(servers).to_string().into()];
        let (caller, found) = find::<ForChange>(&credential, &groups::for_change(), parameters).await?;
        let standing = Standing { is_staff: caller.is_staff_or_superuser(), role: found.role };
        if !standing.owns() {
            return Err(Error::permission_denied(group::OWNS));
        }
        let mut changes = input.clone()?;
        if is_whole && standing.is_staff {
            changes.servers.get_or_insert_default();
        }
        changes.servers = changes.servers.filter(|servers| *servers != found.servers);
        if changes.servers.is_some() && !standing.is_staff {
            return Err(Error::permission_denied("Only staff may set a group's servers."));
        }
        if found.has_unknown_server {
            return Err(no_such_server());
        }
        let event = call.event()?.on(Some(id.to_string()), Some(&found.name));
        let event = after_change_by(&credential.scope, &event.details(told(&changes)))?;
        let statements = groups::update(&credential.scope, id, &changes);
        let (_, bodies) = credential.write_audited(statements, 1, event).await.map_err(taken)?;
        let done = bodies.first().is_some_and(Option::is_some);
        if let (true, Some(group)) = (done, bodies.into_iter().next_back().flatten()) {
            return Ok(Reply::ok_text(group));
        }
    }
    Err(conflict("group"))
}

/// `DELETE /api/iam/groups/<id>/`: its memberships go with it, its servers stay.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_number(Error::not_found)).await?;
    for _ in 0..TRIES {
        let parameters = vec![id.into(), "[]".into()];
        let (caller, found) = find::<ForChange>(&credential, &groups::for_change(), parameters).await?;
        if !(Standing { is_staff: caller.is_staff_or_superuser(), role: found.role }).owns() {
            return Err(Error::permission_denied(group::OWNS));
        }
        let event = call.event()?.on(Some(id.to_string()), Some(&found.name));
        let event = after_change_by(&credential.scope, &event)?;
        let (_, bodies) = credential.write_audited(vec![groups::delete(&credential.scope, id)], 1, event).await?;
        if bodies.into_iter().flatten().next().is_some() {
            return Ok(Reply::no_content());
        }
    }
    Err(conflict("group"))
}

// Memberships.

/// `GET /api/iam/memberships/`: those of groups that the caller sees, oldest first.
pub async fn list_memberships(call: &Call) -> Result<Reply, Error> {
    page_of(call, anybody, |query, _| MembershipFilter::of(query).map(groups::list_memberships)).await
}

/// `GET /api/iam/memberships/<id>/`.
pub async fn retrieve_membership(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let (_, membership) = credential.read(&groups::membership(), vec![id.into()]).await?;
    membership.map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// What a replay of a new membership shows.
const MEMBERSHIP_KEPT: Kept = Kept {
    collection: "/api/iam/memberships/",
    object: groups::MEMBERSHIP,
    made: "memberships m ON m.id = ?7 AND m.workspace_id = me.workspace_id",
    hidden: &[],
};

/// `POST /api/iam/memberships/`: brings a user into a group.
pub async fn create_membership(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let asked = fields.as_ref().ok().and_then(group::peek);
    let once = Once::of(call, &MEMBERSHIP_KEPT, idempotency::body_of(&fields));
    let input = fields.and_then(NewMembership::read);
    for _ in 0..TRIES {
        // What the caller has a right to comes before what else is wrong (contract 3, order of refusals).
        let (group, role) = asked.unwrap_or((0, Role::Member));
        let parameters = vec![group.into(), input.as_ref().map_or(0, |new| new.user).into()];
        let (caller, found) = find::<ForJoining>(&credential, &groups::for_joining(), parameters).await?;
        let standing = Standing { is_staff: caller.is_staff_or_superuser(), role: found.role };
        let is_seen = found.has_group && standing.sees();
        if is_seen && !standing.grants(role) {
            return Err(Error::permission_denied(group::GRANTS));
        }
        let new = input.clone()?;
        let once = once.as_ref().map_err(Clone::clone)?.as_ref();
        if let Some(once) = once
            && let Some((_, reply)) = once.replay(&credential).await?
        {
            return Ok(reply);
        }
        if !is_seen {
            return Err(Error::field("group", "No such group."));
        }
        if !found.has_user {
            return Err(Error::field("user", "No such user."));
        }
        let id = platform::new_id(call.now)?;
        let event = call.event()?.on(Some(id.to_string()), None);
        let event = event.details(json!({"group": new.group, "user": new.user, "role": new.role.as_str()}));
        let (insert, event) =
            (groups::insert_membership(&credential.scope, id, new), after_change_by(&credential.scope, &event)?);
        let written = idempotency::write(&credential, once, &id.to_string(), vec![insert], (1, event)).await;
        let bodies = match written.map_err(joined)? {
            Written::Done(_, bodies) => bodies,
            Written::Replayed(reply) => return Ok(reply),
        };
        if let Some(membership) = bodies.into_iter().flatten().next() {
            return Ok(Reply::created_text(membership, location(call, "/api/iam/memberships/", id)));
        }
    }
    Err(conflict("group"))
}

/// What a second membership of a user in a group is to the client.
fn joined(failure: Failure) -> Error {
    match failure {
        Failure::NotUnique(column) if column == "memberships.group_id" => {
            Error::field("user", "This user is in the group already.")
        }
        other => other.into(),
    }
}

/// `PUT /api/iam/memberships/<id>/`.
pub async fn replace_membership(call: &mut Call) -> Result<Reply, Error> {
    change_membership(call, MembershipChange::read_all).await
}

/// `PATCH /api/iam/memberships/<id>/`.
pub async fn update_membership(call: &mut Call) -> Result<Reply, Error> {
    change_membership(call, MembershipChange::read).await
}

/// A membership as somebody who wants to change it sees it, with who that is and what they are in its group.
async fn find_membership(
    credential: &Credential<'_>,
    id: Uuid,
) -> Result<(Caller, Standing, MembershipForChange), Error> {
    let sql = groups::membership_for_change();
    let (caller, found) = find::<MembershipForChange>(credential, &sql, vec![id.into()]).await?;
    let standing = Standing { is_staff: caller.is_staff_or_superuser(), role: found.role };
    Ok((caller, standing, found))
}

/// What an audit event says about a membership that got another role.
fn told_of_change(membership: Membership, role: Role) -> Value {
    let mut told = told_of(membership, role);
    told["old"] = json!({"role": membership.role.as_str()});
    told
}

/// Gives a membership another role. Who may not is refused before the input is looked at.
async fn change_membership(
    call: &mut Call,
    read: impl FnOnce(Fields) -> Result<MembershipChange, Error>,
) -> Result<Reply, Error> {
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let input = fields.and_then(read);
    for _ in 0..TRIES {
        let (_, standing, found) = find_membership(&credential, id).await?;
        let membership = found.membership;
        group::may_change(standing, membership, membership.role, found.has_other_owner)?;
        let role = input.clone()?.of(membership)?;
        group::may_change(standing, membership, role, found.has_other_owner)?;
        let update = groups::update_membership(&credential.scope, membership, role);
        let event = call.event()?.on(Some(id.to_string()), None);
        let event = after_change_by(&credential.scope, &event.details(told_of_change(membership, role)))?;
        let (_, bodies) = credential.write_audited(vec![update], 1, event).await?;
        if let Some(membership) = bodies.into_iter().flatten().next() {
            return Ok(Reply::ok_text(membership));
        }
    }
    Err(conflict("membership"))
}

/// `DELETE /api/iam/memberships/<id>/`: takes a user out of a group; everyone may leave.
pub async fn delete_membership(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    for _ in 0..TRIES {
        let (caller, standing, found) = find_membership(&credential, id).await?;
        group::may_end(standing, caller.user_id, found.membership, found.has_other_owner)?;
        let event = call.event()?.on(Some(id.to_string()), None);
        let event = event.details(told_of(found.membership, found.membership.role));
        let (delete, event) = (
            groups::delete_membership(&credential.scope, found.membership),
            after_change_by(&credential.scope, &event)?,
        );
        let (_, bodies) = credential.write_audited(vec![delete], 1, event).await?;
        if bodies.into_iter().flatten().next().is_some() {
            return Ok(Reply::no_content());
        }
    }
    Err(conflict("membership"))
}
