//! Groups of users and servers: the fields of their requests, and the permissions of roles
//! (contract 5.4).

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, NON_FIELD};
use crate::fleet::server;
use crate::http::fields::Fields;
use crate::http::page::{Query, id_parameter, last_value, search_words};

/// Maximum length of a display name, in characters.
const MAX_DISPLAY_NAME: usize = 150;
/// Maximum length of a description, in characters.
const MAX_DESCRIPTION: usize = 1_000;
/// The fields of a group object that `PUT` and `PATCH` accept and ignore.
const READ_ONLY: &[&str] = &["id", "num_members", "added_at", "updated_at"];
/// Maximum number of servers in a group.
pub const MAX_SERVERS: usize = 5_000;

/// The role of a user in a group. Each role has all permissions of the roles before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Can access the group's servers.
    Member,
    /// Runs commands as any account on the servers, and adds and removes members.
    Manager,
    /// Grants every role, and changes and deletes the group.
    Owner,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Member, Self::Manager, Self::Owner];

    /// The name in requests, responses and D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Manager => "manager",
            Self::Owner => "owner",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// The error message if [`GroupPermissions::can_change`] is false.
pub const MAY_CHANGE_RULE: &str = "Only staff and the group's owners may change or delete it.";
/// The error message if [`GroupPermissions::can_grant`] is false.
pub const MAY_GRANT_RULE: &str = "Only staff and the group's owners may add and remove managers and owners; its managers only plain members.";

/// The permissions of a caller in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupPermissions {
    /// Whether the caller is staff or a superuser. They have the permissions of an owner, and may
    /// also set the group's servers.
    pub is_staff: bool,
    /// The caller's role in the group; `None`: not a member.
    pub role: Option<Role>,
}

impl GroupPermissions {
    /// Whether the caller sees the group.
    pub fn can_see(self) -> bool {
        self.is_staff || self.role.is_some()
    }

    /// Whether the caller may change and delete the group.
    pub fn can_change(self) -> bool {
        self.is_staff || self.role == Some(Role::Owner)
    }

    /// Whether the caller may add and remove members with this role.
    pub fn can_grant(self, role: Role) -> bool {
        self.can_change() || (role == Role::Member && self.role == Some(Role::Manager))
    }
}

/// The error for a change that would leave a group without an owner (contract 5.4).
pub fn only_owner() -> Error {
    Error::field(
        NON_FIELD,
        "The only owner of a group cannot be removed. Make another member an owner first.",
    )
}

/// A valid request to create or change a group. `None`: the field does not change.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GroupChanges {
    /// The unique name.
    pub name: Option<String>,
    /// The name for people.
    pub display_name: Option<String>,
    /// The purpose, for people.
    pub description: Option<String>,
    /// The ids of its servers, sorted, without duplicates.
    pub servers: Option<Vec<Uuid>>,
}

/// Reads `servers`: a list of UUIDs. Returns them sorted, without duplicates.
fn read_servers(fields: &mut Fields) -> Option<Vec<Uuid>> {
    let read = |value: &serde_json::Value| crate::id::parse(value.as_str()?);
    let mut servers =
        fields.optional_list("servers", MAX_SERVERS, "Enter the UUIDs of servers.", read)?;
    servers.sort_unstable();
    servers.dedup();
    Some(servers)
}

impl GroupChanges {
    /// Reads a `PATCH`. All fields are optional.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        let changes = Self {
            name: fields.has("name").then(|| server::read_name(&mut fields)).flatten(),
            display_name: fields.non_null_text("display_name", MAX_DISPLAY_NAME),
            description: fields.non_null_text("description", MAX_DESCRIPTION),
            servers: read_servers(&mut fields),
        };
        fields.finish()?;
        Ok(changes)
    }

    /// Reads a `POST`.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read_new(fields: Fields) -> Result<Self, Error> {
        Self::read_common(fields)
    }

    /// Reads a `PUT`. The meaning of omitted servers depends on the caller's permission, so the
    /// handler decides.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read_all(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        Self::read_common(fields)
    }

    /// Reads the fields that a `POST` and a `PUT` share. The name is required, and an omitted text
    /// becomes empty.
    fn read_common(mut fields: Fields) -> Result<Self, Error> {
        let name = server::read_name(&mut fields);
        let display_name =
            fields.non_null_text("display_name", MAX_DISPLAY_NAME).unwrap_or_default();
        let description = fields.non_null_text("description", MAX_DESCRIPTION).unwrap_or_default();
        let servers = read_servers(&mut fields);
        fields.finish()?;
        Ok(Self { name, display_name: Some(display_name), description: Some(description), servers })
    }
}

/// The filters of a list of groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupFilter {
    /// The exact name.
    pub name: Option<String>,
    /// Words in lower case. The texts of the group must contain all words.
    pub words: Vec<String>,
}

impl GroupFilter {
    /// Reads `name` and `search`.
    ///
    /// # Errors
    /// A field error if `search` has a null character.
    pub fn from_query(query: &Query) -> Result<Self, Error> {
        Ok(Self {
            name: last_value(query, "name").map(ToOwned::to_owned),
            words: search_words(query)?,
        })
    }
}

/// A valid request to add a member to a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewMembership {
    /// The group's id.
    pub group: i64,
    /// The new member's user id.
    pub user: i64,
    /// The new member's role.
    pub role: Role,
}

/// Reads `role`, which may be missing, but not null.
fn read_role(fields: &mut Fields) -> Option<Role> {
    let value = fields.any("role")?.clone();
    let role = value.as_str().and_then(Role::parse);
    if role.is_none() {
        fields.reject("role", "Choose member, manager or owner.");
    }
    role
}

/// The group and the role in a request to add a member, before the request is validated. The
/// permission is checked before errors in the fields are reported.
pub fn requested_group_and_role(fields: &Fields) -> Option<(i64, Role)> {
    let group = fields.value("group").and_then(crate::http::fields::as_id)?;
    let role =
        fields.value("role").and_then(|role| Role::parse(role.as_str()?)).unwrap_or(Role::Member);
    Some((group, role))
}

/// The fields of a membership object that `PUT` and `PATCH` accept and ignore.
const MEMBERSHIP_READ_ONLY: &[&str] = &["id"];

impl NewMembership {
    /// Reads a `POST`.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        let (group, user) = (fields.id("group"), fields.id("user"));
        let role = read_role(&mut fields).unwrap_or(Role::Member);
        let (group, user) = fields.finish_with(group.zip(user))?;
        Ok(Self { group, user, role })
    }
}

/// A valid request to change the role of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MembershipChange {
    /// The group's id. If it is sent, it must equal the membership's group.
    pub group: Option<i64>,
    /// The user's id. If it is sent, it must equal the membership's user.
    pub user: Option<i64>,
    /// The new role; `None`: the role does not change.
    pub role: Option<Role>,
}

impl MembershipChange {
    /// Reads a `PATCH`. All fields are optional.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(MEMBERSHIP_READ_ONLY);
        let group = fields.has("group").then(|| fields.id("group")).flatten();
        let user = fields.has("user").then(|| fields.id("user")).flatten();
        let role = read_role(&mut fields);
        fields.finish()?;
        Ok(Self { group, user, role })
    }

    /// Reads a `PUT`. Group and user are required, and an omitted role becomes `member`.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read_all(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(MEMBERSHIP_READ_ONLY);
        let NewMembership { group, user, role } = NewMembership::read(fields)?;
        Ok(Self { group: Some(group), user: Some(user), role: Some(role) })
    }

    /// The role of the membership after the change.
    ///
    /// # Errors
    /// A field error if the group or the user differs from the membership's.
    pub fn role_for(self, membership: Membership) -> Result<Role, Error> {
        let mut fields = Fields::default();
        for (name, wanted, present) in
            [("group", self.group, membership.group), ("user", self.user, membership.user)]
        {
            if wanted.is_some_and(|wanted| wanted != present) {
                fields.reject(name, "This cannot be changed. Create another membership.");
            }
        }
        fields.finish()?;
        Ok(self.role.unwrap_or(membership.role))
    }
}

/// A membership in D1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct Membership {
    /// The membership's id.
    pub id: Uuid,
    /// The group's id.
    pub group: i64,
    /// The member's user id.
    pub user: i64,
    /// The member's role.
    pub role: Role,
}

/// Decides whether a caller may change the role of a member.
///
/// # Errors
/// The caller lacks the permission, or the group would have no owner.
pub fn may_change(
    standing: GroupPermissions,
    membership: Membership,
    role: Role,
    has_other_owner: bool,
) -> Result<(), Error> {
    if !standing.can_change() {
        return Err(Error::permission_denied(
            "Only staff and the group's owners may change a role.",
        ));
    }
    let ends_owner = membership.role == Role::Owner && role != Role::Owner;
    if ends_owner && !has_other_owner { Err(only_owner()) } else { Ok(()) }
}

/// Decides whether a caller may remove a member. Every member may leave.
///
/// # Errors
/// The caller lacks the permission, or the group would have no owner.
pub fn may_remove(
    standing: GroupPermissions,
    caller: i64,
    membership: Membership,
    has_other_owner: bool,
) -> Result<(), Error> {
    if !(standing.can_grant(membership.role) || membership.user == caller) {
        return Err(Error::permission_denied(MAY_GRANT_RULE));
    }
    if membership.role == Role::Owner && !has_other_owner { Err(only_owner()) } else { Ok(()) }
}

/// The filters of a list of memberships.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MembershipFilter {
    /// The group's id.
    pub group: Option<i64>,
    /// The user's id.
    pub user: Option<i64>,
    /// The member's role.
    pub role: Option<Role>,
}

impl MembershipFilter {
    /// Reads `group`, `user` and `role`.
    ///
    /// # Errors
    /// A field error for each parameter that is malformed.
    pub fn from_query(query: &Query) -> Result<Self, Error> {
        let role = last_value(query, "role").map(|text| {
            Role::parse(text)
                .ok_or_else(|| Error::field("role", "Choose member, manager or owner."))
        });
        let ids = crate::error::combine(id_parameter(query, "group"), id_parameter(query, "user"));
        let ((group, user), role) = crate::error::combine(ids, role.transpose())?;
        Ok(Self { group, user, role })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use serde_json::{Value, json};

    fn fields(body: &Value) -> Fields {
        Fields::from_json(body.to_string().as_bytes()).unwrap()
    }

    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: Result<T, Error>, wrong: &[&str]) {
        let error = result.unwrap_err();
        assert_eq!(error.fields.keys().map(AsRef::as_ref).collect::<Vec<_>>(), wrong);
    }

    const ONE: &str = "01936d3e-7a00-7000-8000-000000000001";
    const TWO: &str = "01936d3e-7a00-7000-8000-000000000002";

    #[test]
    fn servers_of_a_group_are_a_set() {
        let read = |servers: Value| GroupChanges::read(fields(&json!({"servers": servers})));
        let servers = read(json!([TWO, ONE, TWO])).unwrap().servers.unwrap();
        assert_eq!(servers.iter().map(ToString::to_string).collect::<Vec<_>>(), [ONE, TWO]);
        for bad in
            [json!(null), json!("x"), json!([1]), json!(["x"]), json!({}), json!(vec![ONE; 5_001])]
        {
            refused(read(bad), &["servers"]);
        }
    }

    #[test]
    fn a_put_has_defaults_and_a_patch_has_none() {
        let all = GroupChanges::read_all(fields(&json!({"name": "ops"}))).unwrap();
        let expected = GroupChanges {
            name: Some("ops".into()),
            display_name: Some(String::new()),
            description: Some(String::new()),
            servers: None,
        };
        assert_eq!(all, expected);
        assert_eq!(GroupChanges::read(fields(&json!({}))).unwrap(), GroupChanges::default());
        refused(
            GroupChanges::read_all(fields(&json!({"description": 7}))),
            &["description", "name"],
        );
        refused(
            GroupChanges::read(fields(&json!({"name": null, "description": null}))),
            &["description", "name"],
        );
        refused(GroupChanges::read(fields(&json!({"name": "A b"}))), &["name"]);
    }

    #[test]
    fn each_role_has_its_permissions() {
        let standing = |is_staff, role| GroupPermissions { is_staff, role };
        let (staff, owner) = (standing(true, None), standing(false, Some(Role::Owner)));
        let (manager, member) =
            (standing(false, Some(Role::Manager)), standing(false, Some(Role::Member)));
        let stranger = standing(false, None);
        for (who, sees, owns, grants) in [
            (staff, true, true, [true, true, true]),
            (owner, true, true, [true, true, true]),
            (manager, true, false, [true, false, false]),
            (member, true, false, [false, false, false]),
            (stranger, false, false, [false, false, false]),
        ] {
            assert_eq!(
                (who.can_see(), who.can_change(), Role::ALL.map(|role| who.can_grant(role))),
                (sees, owns, grants),
                "{who:?}"
            );
        }
    }

    #[test]
    fn a_group_keeps_an_owner() {
        let of = |role| Membership { id: Uuid::nil(), group: 1, user: 7, role };
        let owner = GroupPermissions { is_staff: false, role: Some(Role::Owner) };
        let manager = GroupPermissions { is_staff: false, role: Some(Role::Manager) };
        let member = GroupPermissions { is_staff: false, role: Some(Role::Member) };
        assert!(may_change(owner, of(Role::Owner), Role::Member, true).is_ok());
        assert!(may_change(owner, of(Role::Owner), Role::Owner, false).is_ok());
        refused(may_change(owner, of(Role::Owner), Role::Manager, false), &["non_field_errors"]);
        assert_eq!(
            may_change(manager, of(Role::Member), Role::Member, true).unwrap_err().kind,
            ErrorKind::Forbidden
        );
        refused(may_remove(owner, 7, of(Role::Owner), false), &["non_field_errors"]);
        assert!(may_remove(owner, 8, of(Role::Owner), true).is_ok());
        assert!(may_remove(manager, 8, of(Role::Member), false).is_ok());
        for role in [Role::Manager, Role::Owner] {
            assert_eq!(
                may_remove(manager, 8, of(role), true).unwrap_err().kind,
                ErrorKind::Forbidden
            );
        }
        assert!(may_remove(member, 7, of(Role::Member), false).is_ok(), "everyone may leave");
        assert_eq!(
            may_remove(member, 8, of(Role::Member), true).unwrap_err().kind,
            ErrorKind::Forbidden
        );
    }

    #[test]
    fn a_membership_keeps_its_group_and_user() {
        let new = NewMembership::read(fields(&json!({"group": 3, "user": 7}))).unwrap();
        assert_eq!(new, NewMembership { group: 3, user: 7, role: Role::Member });
        for bad in
            [json!({}), json!({"group": null, "user": "7"}), json!({"group": 1.5, "user": []})]
        {
            refused(NewMembership::read(fields(&bad)), &["group", "user"]);
        }
        refused(
            NewMembership::read(fields(&json!({"group": 3, "user": 7, "role": "boss"}))),
            &["role"],
        );
        refused(
            NewMembership::read(fields(&json!({"group": 3, "user": 7, "role": null}))),
            &["role"],
        );
        let is = Membership { id: Uuid::nil(), group: 3, user: 7, role: Role::Manager };
        let change = |body: Value| MembershipChange::read(fields(&body)).unwrap().role_for(is);
        assert_eq!(change(json!({})).unwrap(), Role::Manager);
        assert_eq!(change(json!({"group": 3, "user": 7, "role": "owner"})).unwrap(), Role::Owner);
        refused(change(json!({"group": 4, "user": 8})), &["group", "user"]);
        let all = MembershipChange::read_all(fields(&json!({"group": 3, "user": 7}))).unwrap();
        assert_eq!(all.role_for(is).unwrap(), Role::Member);
    }

    #[test]
    fn memberships_are_filtered_by_group_user_and_role() {
        let of = |pairs: &[(&str, &str)]| {
            let query: Query =
                pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            MembershipFilter::from_query(&query)
        };
        let filter = of(&[("group", "3"), ("role", "owner")]).unwrap();
        assert_eq!((filter.group, filter.user, filter.role), (Some(3), None, Some(Role::Owner)));
        refused(of(&[("group", "x"), ("user", ""), ("role", "x")]), &["group", "role", "user"]);
    }
}
