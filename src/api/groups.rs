//! Groups and memberships (contract 5.4).

use farhand_domain::access::caller::Caller;
use farhand_domain::audit::event::add_ids;
use farhand_domain::error::Error;
use farhand_domain::people::group::{
    self, GroupChanges, GroupFilter, GroupPermissions, Membership, MembershipChange,
    MembershipFilter, NewMembership, Role,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::change::{Extent, changed_fields, find, retry};
use super::idempotency::{self, Creation, CreationOutcome, ResourceKind};
use super::{
    any_caller, list_page, location, location_from_json, require_staff, retrieve_one,
    staff_only_error,
};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform;
use crate::store::db::Failure;
use crate::store::groups::{self, GroupForChange, GroupForJoining, MembershipForChange};

/// `GET /api/iam/groups/`: the groups that the caller can see, oldest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    list_page(call, any_caller, |query, _| {
        GroupFilter::from_query(query).map(|filter| groups::list(&filter))
    })
    .await
}

/// `GET /api/iam/groups/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    retrieve_one(call, any_caller, call.path_number(Error::not_found), groups::by_id).await
}

/// Maps a duplicate name to a field error.
fn duplicate_name_error(failure: Failure) -> Error {
    match failure {
        Failure::NotUnique(column) if column == "groups.name" => {
            Error::field("name", "A group with this name already exists.")
        }
        other => other.into(),
    }
}

fn unknown_server_error() -> Error {
    Error::field("servers", "No such server.")
}

/// The path and the replay source of new groups.
const RESOURCE: ResourceKind =
    ResourceKind { collection: "/api/iam/groups/", source: groups::REPLAY, hidden: &[] };

/// `POST /api/iam/groups/`: staff create a group. The caller becomes its owner.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let body = idempotency::canonical_body(&fields);
    let credential = Credential::from_request(call)?;
    let input = fields.and_then(GroupChanges::read_new);
    let servers = input.as_ref().ok().and_then(|new| new.servers.clone()).unwrap_or_default();
    let (caller, unknown) = credential.find(groups::names_unknown_server(&servers)).await?;
    // The permission is checked before the input (contract 3.4).
    require_staff(&caller)?;
    let new = input?;
    let creation = Creation::from_request(call, &RESOURCE, body)?;
    if let Some((_, reply)) = creation.replay(&credential).await? {
        return Ok(reply);
    }
    if unknown == Some(true) {
        return Err(unknown_server_error());
    }
    let event = call.audit_event()?.with_object(None, new.name.as_deref());
    let mut details = json!({});
    add_ids(&mut details, "servers", new.servers.as_deref().unwrap_or_default());
    let transaction = groups::insert(
        &credential.scope,
        &new,
        platform::new_id(call.now)?,
        &event.details(details),
    )?;
    let name = new.name.as_deref().unwrap_or_default();
    match creation.write(&credential, name, transaction).await.map_err(duplicate_name_error)? {
        CreationOutcome::Created(_, group) => {
            let location = location_from_json(call, RESOURCE.collection, &group)?;
            Ok(Reply::created_text(group, location))
        }
        CreationOutcome::Refused(_) => Err(staff_only_error()),
        CreationOutcome::Replayed(reply) => Ok(reply),
    }
}

/// The details of the audit event of a group change: the changed fields, and the servers, because
/// they decide who can access a server.
fn audit_details(changes: &GroupChanges) -> Value {
    let mut details = changed_fields(&[
        ("name", changes.name.is_some()),
        ("display_name", changes.display_name.is_some()),
        ("description", changes.description.is_some()),
        ("servers", changes.servers.is_some()),
    ]);
    if let Some(servers) = &changes.servers {
        add_ids(&mut details, "servers", servers);
    }
    details
}

/// The details of the audit event of a membership. `role` is its new role.
fn membership_audit_details(membership: Membership, role: Role) -> Value {
    json!({"group": membership.group, "user": membership.user, "role": role.as_str()})
}

/// The caller's position in a group, which decides what the caller may do there.
fn standing(caller: &Caller, role: Option<Role>) -> GroupPermissions {
    GroupPermissions { is_staff: caller.is_staff_or_superuser(), role }
}

/// `PUT` and `PATCH /api/iam/groups/<id>/`.
///
/// 1. Finds the caller and the group. The permission is checked before the input.
/// 2. Only staff may change `servers` (contract 5.4). Sending the current servers is no change. A
///    `PUT` without `servers` removes all servers if the caller is staff, and keeps them otherwise.
/// 3. Writes, if the caller still has the permission.
pub async fn change(call: &mut Call, extent: Extent) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_number(Error::not_found)).await?;
    let input =
        fields.and_then(|fields| extent.read(fields, GroupChanges::read_all, GroupChanges::read));
    let servers =
        input.as_ref().ok().and_then(|changes| changes.servers.clone()).unwrap_or_default();
    let attempt = async || {
        let (caller, found) =
            find::<GroupForChange>(&credential, groups::for_change(id, &servers)).await?;
        let standing = standing(&caller, found.role);
        if !standing.can_change() {
            return Err(Error::permission_denied(group::MAY_CHANGE_RULE));
        }
        let mut changes = input.clone()?;
        if extent == Extent::Whole && standing.is_staff {
            changes.servers.get_or_insert_default();
        }
        changes.servers = changes.servers.filter(|servers| *servers != found.servers);
        if changes.servers.is_some() && !standing.is_staff {
            return Err(Error::permission_denied("Only staff may set a group's servers."));
        }
        if found.has_unknown_server {
            return Err(unknown_server_error());
        }
        let event = call
            .audit_event()?
            .with_object(Some(id.to_string()), Some(&found.name))
            .details(audit_details(&changes));
        let transaction = groups::update(&credential.scope, id, &changes, &event)?;
        let (_, group) = credential.write(transaction).await.map_err(duplicate_name_error)?;
        Ok(group.map(Reply::ok_text))
    };
    retry("group", attempt).await
}

/// `DELETE /api/iam/groups/<id>/`: deletes the group and its memberships, but not its servers.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_number(Error::not_found)).await?;
    let attempt = async || {
        let (caller, found) =
            find::<GroupForChange>(&credential, groups::for_change(id, &[])).await?;
        if !standing(&caller, found.role).can_change() {
            return Err(Error::permission_denied(group::MAY_CHANGE_RULE));
        }
        let event = call.audit_event()?.with_object(Some(id.to_string()), Some(&found.name));
        let (_, deleted) = credential.write(groups::delete(&credential.scope, id, &event)?).await?;
        Ok(deleted.map(|_| Reply::no_content()))
    };
    retry("group", attempt).await
}

// Memberships.

/// `GET /api/iam/memberships/`: the memberships of groups that the caller can see, oldest first.
pub async fn list_memberships(call: &Call) -> Result<Reply, Error> {
    list_page(call, any_caller, |query, _| {
        MembershipFilter::from_query(query).map(groups::list_memberships)
    })
    .await
}

/// `GET /api/iam/memberships/<id>/`.
pub async fn retrieve_membership(call: &Call) -> Result<Reply, Error> {
    retrieve_one(call, any_caller, call.path_id(Error::not_found), groups::membership).await
}

/// The path and the replay source of new memberships.
const MEMBERSHIP_RESOURCE: ResourceKind = ResourceKind {
    collection: "/api/iam/memberships/",
    source: groups::MEMBERSHIP_REPLAY,
    hidden: &[],
};

/// `POST /api/iam/memberships/`: adds a user to a group.
pub async fn create_membership(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let requested = fields.as_ref().ok().and_then(group::requested_group_and_role);
    let creation =
        Creation::from_request(call, &MEMBERSHIP_RESOURCE, idempotency::canonical_body(&fields));
    let input = fields.and_then(NewMembership::read);
    let attempt = async || {
        // The permission is checked before the input (contract 3.4). If the group cannot be read
        // from the input, group 0 is used, which does not exist.
        let (group, role) = requested.unwrap_or((0, Role::Member));
        let user = input.as_ref().map_or(0, |new| new.user);
        let (caller, found) =
            find::<GroupForJoining>(&credential, groups::for_joining(group, user)).await?;
        let standing = standing(&caller, found.role);
        let is_seen = found.has_group && standing.can_see();
        if is_seen && !standing.can_grant(role) {
            return Err(Error::permission_denied(group::MAY_GRANT_RULE));
        }
        let new = input.clone()?;
        let creation = creation.as_ref().map_err(Clone::clone)?;
        if let Some((_, reply)) = creation.replay(&credential).await? {
            return Ok(Some(reply));
        }
        if !is_seen {
            return Err(Error::field("group", "No such group."));
        }
        if !found.has_user {
            return Err(Error::field("user", "No such user."));
        }
        let id = platform::new_id(call.now)?;
        let event = call.audit_event()?.with_object(Some(id.to_string()), None);
        let event =
            event.details(json!({"group": new.group, "user": new.user, "role": new.role.as_str()}));
        let transaction = groups::insert_membership(&credential.scope, id, new, &event)?;
        let outcome = creation.write(&credential, &id.to_string(), transaction).await;
        Ok(match outcome.map_err(duplicate_membership_error)? {
            CreationOutcome::Created(_, membership) => Some(Reply::created_text(
                membership,
                location(call, MEMBERSHIP_RESOURCE.collection, id),
            )),
            CreationOutcome::Refused(_) => None,
            CreationOutcome::Replayed(reply) => Some(reply),
        })
    };
    retry("group", attempt).await
}

/// Maps the error for a second membership of the same user in a group to a field error.
fn duplicate_membership_error(failure: Failure) -> Error {
    match failure {
        Failure::NotUnique(column) if column == "memberships.group_id" => {
            Error::field("user", "This user is in the group already.")
        }
        other => other.into(),
    }
}

/// Finds the caller, the caller's position in the group, and the membership.
async fn find_membership(
    credential: &Credential<'_>,
    id: Uuid,
) -> Result<(Caller, GroupPermissions, MembershipForChange), Error> {
    let (caller, found) =
        find::<MembershipForChange>(credential, groups::membership_for_change(id)).await?;
    let standing = standing(&caller, found.role);
    Ok((caller, standing, found))
}

/// `PUT` and `PATCH /api/iam/memberships/<id>/`: changes the role. The permission is checked before
/// the input.
pub async fn change_membership(call: &mut Call, extent: Extent) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let input = fields
        .and_then(|fields| extent.read(fields, MembershipChange::read_all, MembershipChange::read));
    let attempt = async || {
        let (_, standing, found) = find_membership(&credential, id).await?;
        let membership = found.membership;
        group::may_change(standing, membership, membership.role, found.has_other_owner)?;
        let role = input.clone()?.role_for(membership)?;
        group::may_change(standing, membership, role, found.has_other_owner)?;
        let mut details = membership_audit_details(membership, role);
        details["old"] = json!({"role": membership.role.as_str()});
        let event = call.audit_event()?.with_object(Some(id.to_string()), None).details(details);
        let transaction = groups::update_membership(&credential.scope, membership, role, &event)?;
        let (_, membership) = credential.write(transaction).await?;
        Ok(membership.map(Reply::ok_text))
    };
    retry("membership", attempt).await
}

/// `DELETE /api/iam/memberships/<id>/`: removes a user from a group. Every member may leave.
pub async fn delete_membership(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let attempt = async || {
        let (caller, standing, found) = find_membership(&credential, id).await?;
        let membership = found.membership;
        group::may_remove(standing, caller.user_id, membership, found.has_other_owner)?;
        let event = call.audit_event()?.with_object(Some(id.to_string()), None);
        let event = event.details(membership_audit_details(membership, membership.role));
        let transaction = groups::delete_membership(&credential.scope, membership, &event)?;
        let (_, deleted) = credential.write(transaction).await?;
        Ok(deleted.map(|_| Reply::no_content()))
    };
    retry("membership", attempt).await
}
