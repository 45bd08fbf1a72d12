//! Groups of users and servers, and who may do what in one (contract 5.4).

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, NON_FIELD};
use crate::fields::Fields;
use crate::page::{Query, id_parameter, parameter, words};
use crate::server;

/// The longest display name, in characters.
const MAX_DISPLAY_NAME: usize = 150;
/// The longest description, in characters.
const MAX_DESCRIPTION: usize = 1_000;
/// The fields of a group object that `PUT` and `PATCH` accept and ignore.
const READ_ONLY: &[&str] = &["id", "num_members", "added_at", "updated_at"];
/// The most servers of a group.
pub const MAX_SERVERS: usize = 5_000;

/// What a user is in a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reaches the group's servers.
    Member,
    /// The same as any account there, and adds and removes members.
    Manager,
    /// The same, grants every role, and edits and deletes the group.
    Owner,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Member, Self::Manager, Self::Owner];

    /// The name in requests, answers and D1.
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

/// The rule of [`Standing::owns`].
pub const OWNS: &str = "Only staff and the group's owners may change or delete it.";
/// The rule of [`Standing::grants`].
pub const GRANTS: &str = "Only staff and the group's owners may add and remove managers and owners; its managers only plain members.";

/// What a caller is to a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Staff or a superuser: they do all that an owner does, and set what a group's servers are.
    pub is_staff: bool,
    /// What they are in it.
    pub role: Option<Role>,
}

impl Standing {
    /// Whether the caller sees the group.
    pub fn sees(self) -> bool {
        self.is_staff || self.role.is_some()
    }

    /// Whether the caller edits and deletes the group.
    pub fn owns(self) -> bool {
        self.is_staff || self.role == Some(Role::Owner)
    }

    /// Whether the caller makes somebody a member of that role, or takes a role like that away.
    pub fn grants(self, role: Role) -> bool {
        self.owns() || (role == Role::Member && self.role == Some(Role::Manager))
    }
}

/// The refusal to leave a group without an owner (contract 5.4).
pub fn only_owner() -> Error {
    Error::field(
        NON_FIELD,
        "The only owner of a group cannot be removed. Make somebody else an owner first.",
    )
}

/// A request for a group or for changes of one, checked. What is `None` stays as it is.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GroupChanges {
    /// Its name.
    pub name: Option<String>,
    /// What people call it.
    pub display_name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// Its servers, each once, sorted.
    pub servers: Option<Vec<Uuid>>,
}

/// The ids in a list of UUIDs, each once, sorted. One that is no UUID is noted in `fields`.
fn read_servers(fields: &mut Fields) -> Option<Vec<Uuid>> {
    let read = |value: &serde_json::Value| crate::id::parse(value.as_str()?);
    let mut servers =
        fields.optional_list("servers", MAX_SERVERS, "Enter the UUIDs of servers.", read)?;
    servers.sort_unstable();
    servers.dedup();
    Some(servers)
}

impl GroupChanges {
    /// Reads the given fields (PATCH).
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        let changes = Self {
            name: fields.has("name").then(|| server::read_name(&mut fields)).flatten(),
            display_name: fields.given_text("display_name", MAX_DISPLAY_NAME),
            description: fields.given_text("description", MAX_DESCRIPTION),
            servers: read_servers(&mut fields),
        };
        fields.finish()?;
        Ok(changes)
    }

    /// Reads a new group (POST).
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read_new(fields: Fields) -> Result<Self, Error> {
        Self::read_common(fields)
    }

    /// Reads all fields (PUT). The handler decides what omitted servers mean: that depends on the
    /// caller's permission.
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read_all(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        Self::read_common(fields)
    }

    /// Reads what a `POST` and a `PUT` have in common. The name is required, and an omitted text is
    /// empty.
    fn read_common(mut fields: Fields) -> Result<Self, Error> {
        let name = server::read_name(&mut fields);
        let display_name = fields.given_text("display_name", MAX_DISPLAY_NAME).unwrap_or_default();
        let description = fields.given_text("description", MAX_DESCRIPTION).unwrap_or_default();
        let servers = read_servers(&mut fields);
        fields.finish()?;
        Ok(Self { name, display_name: Some(display_name), description: Some(description), servers })
    }
}

/// Which groups a list shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupFilter {
    /// With this name.
    pub name: Option<String>,
    /// With each of these words, in lower case, somewhere in its texts.
    pub words: Vec<String>,
}

impl GroupFilter {
    /// Reads `name` and `search`.
    ///
    /// # Errors
    /// On a `search` with a null character.
    pub fn of(query: &Query) -> Result<Self, Error> {
        Ok(Self { name: parameter(query, "name").map(ToOwned::to_owned), words: words(query)? })
    }
}

/// A request for a membership, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewMembership {
    /// The group.
    pub group: i64,
    /// Who comes into it.
    pub user: i64,
    /// As what.
    pub role: Role,
}

/// A role that may be missing, but not null.
fn read_role(fields: &mut Fields) -> Option<Role> {
    let value = fields.any("role")?.clone();
    let role = value.as_str().and_then(Role::parse);
    if role.is_none() {
        fields.reject("role", "Choose member, manager or owner.");
    }
    role
}

/// The group that a request for a membership is about, and the role, as far as it says so: whether
/// the caller has a right to that at all is told before what else is wrong with it.
pub fn peek(fields: &Fields) -> Option<(i64, Role)> {
    let group = fields.value("group").and_then(crate::fields::as_id)?;
    let role =
        fields.value("role").and_then(|role| Role::parse(role.as_str()?)).unwrap_or(Role::Member);
    Some((group, role))
}

/// The fields of a membership object that `PUT` and `PATCH` accept and ignore.
const MEMBERSHIP_READ_ONLY: &[&str] = &["id"];

impl NewMembership {
    /// Reads a request (POST).
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        let (group, user) = (fields.id("group"), fields.id("user"));
        let role = read_role(&mut fields).unwrap_or(Role::Member);
        let (group, user) = fields.finish_with(group.zip(user))?;
        Ok(Self { group, user, role })
    }
}

/// A request for another role, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MembershipChange {
    /// The group, where it is named: it must be the same.
    pub group: Option<i64>,
    /// The user, where they are named: they must be the same.
    pub user: Option<i64>,
    /// The new role; `None` stays as it is.
    pub role: Option<Role>,
}

impl MembershipChange {
    /// Reads the given fields (PATCH).
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(MEMBERSHIP_READ_ONLY);
        let group = fields.has("group").then(|| fields.id("group")).flatten();
        let user = fields.has("user").then(|| fields.id("user")).flatten();
        let role = read_role(&mut fields);
        fields.finish()?;
        Ok(Self { group, user, role })
    }

    /// Reads all fields (PUT): group and user must be there, and a role that is left out is
    /// `member`.
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read_all(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(MEMBERSHIP_READ_ONLY);
        let NewMembership { group, user, role } = NewMembership::read(fields)?;
        Ok(Self { group: Some(group), user: Some(user), role: Some(role) })
    }

    /// The role to be, of a membership.
    ///
    /// # Errors
    /// On the group or the user that is another one.
    pub fn of(self, membership: Membership) -> Result<Role, Error> {
        let mut fields = Fields::default();
        for (name, wanted, is) in
            [("group", self.group, membership.group), ("user", self.user, membership.user)]
        {
            if wanted.is_some_and(|wanted| wanted != is) {
                fields.reject(name, "This cannot be changed. Make another membership.");
            }
        }
        fields.finish()?;
        Ok(self.role.unwrap_or(membership.role))
    }
}

/// A membership, as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct Membership {
    /// Its id.
    pub id: Uuid,
    /// The group.
    pub group: i64,
    /// Who is in it.
    pub user: i64,
    /// As what.
    pub role: Role,
}

/// Decides whether a caller may give a membership another role.
///
/// # Errors
/// No right to it; the only owner.
pub fn may_change(
    standing: Standing,
    membership: Membership,
    role: Role,
    has_other_owner: bool,
) -> Result<(), Error> {
    if !standing.owns() {
        return Err(Error::permission_denied(
            "Only staff and the group's owners may change a role.",
        ));
    }
    let ends_owner = membership.role == Role::Owner && role != Role::Owner;
    if ends_owner && !has_other_owner { Err(only_owner()) } else { Ok(()) }
}

/// Decides whether a caller may end a membership. Everyone may leave.
///
/// # Errors
/// No right to it; the only owner.
pub fn may_end(
    standing: Standing,
    caller: i64,
    membership: Membership,
    has_other_owner: bool,
) -> Result<(), Error> {
    if !(standing.grants(membership.role) || membership.user == caller) {
        return Err(Error::permission_denied(GRANTS));
    }
    if membership.role == Role::Owner && !has_other_owner { Err(only_owner()) } else { Ok(()) }
}

/// Which memberships a list shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MembershipFilter {
    /// Of this group.
    pub group: Option<i64>,
    /// Of this user.
    pub user: Option<i64>,
    /// As that.
    pub role: Option<Role>,
}

impl MembershipFilter {
    /// Reads `group`, `user` and `role`.
    ///
    /// # Errors
    /// On each that is malformed.
    pub fn of(query: &Query) -> Result<Self, Error> {
        let role = parameter(query, "role").map(|text| {
            Role::parse(text)
                .ok_or_else(|| Error::field("role", "Choose member, manager or owner."))
        });
        let ids = crate::error::both(id_parameter(query, "group"), id_parameter(query, "user"));
        let ((group, user), role) = crate::error::both(ids, role.transpose())?;
        Ok(Self { group, user, role })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
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
    fn servers_are_a_set() {
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
    fn a_replacement_has_defaults_and_an_update_has_none() {
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
    fn roles_and_their_rights() {
        let standing = |is_staff, role| Standing { is_staff, role };
        let (staff, owner) = (standing(true, None), standing(false, Some(Role::Owner)));
        let (manager, member) =
            (standing(false, Some(Role::Manager)), standing(false, Some(Role::Member)));
        let nobody = standing(false, None);
        for (who, sees, owns, grants) in [
            (staff, true, true, [true, true, true]),
            (owner, true, true, [true, true, true]),
            (manager, true, false, [true, false, false]),
            (member, true, false, [false, false, false]),
            (nobody, false, false, [false, false, false]),
        ] {
            assert_eq!(
                (who.sees(), who.owns(), Role::ALL.map(|role| who.grants(role))),
                (sees, owns, grants),
                "{who:?}"
            );
        }
    }

    #[test]
    fn a_group_keeps_an_owner() {
        let of = |role| Membership { id: Uuid::nil(), group: 1, user: 7, role };
        let owner = Standing { is_staff: false, role: Some(Role::Owner) };
        let manager = Standing { is_staff: false, role: Some(Role::Manager) };
        let member = Standing { is_staff: false, role: Some(Role::Member) };
        assert!(may_change(owner, of(Role::Owner), Role::Member, true).is_ok());
        assert!(may_change(owner, of(Role::Owner), Role::Owner, false).is_ok());
        refused(may_change(owner, of(Role::Owner), Role::Manager, false), &["non_field_errors"]);
        assert_eq!(
            may_change(manager, of(Role::Member), Role::Member, true).unwrap_err().kind,
            Kind::Forbidden
        );
        refused(may_end(owner, 7, of(Role::Owner), false), &["non_field_errors"]);
        assert!(may_end(owner, 8, of(Role::Owner), true).is_ok());
        assert!(may_end(manager, 8, of(Role::Member), false).is_ok());
        for role in [Role::Manager, Role::Owner] {
            assert_eq!(may_end(manager, 8, of(role), true).unwrap_err().kind, Kind::Forbidden);
        }
        assert!(may_end(member, 7, of(Role::Member), false).is_ok(), "everyone may leave");
        assert_eq!(may_end(member, 8, of(Role::Member), true).unwrap_err().kind, Kind::Forbidden);
    }

    #[test]
    fn memberships() {
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
        let change = |body: Value| MembershipChange::read(fields(&body)).unwrap().of(is);
        assert_eq!(change(json!({})).unwrap(), Role::Manager);
        assert_eq!(change(json!({"group": 3, "user": 7, "role": "owner"})).unwrap(), Role::Owner);
        refused(change(json!({"group": 4, "user": 8})), &["group", "user"]);
        let all = MembershipChange::read_all(fields(&json!({"group": 3, "user": 7}))).unwrap();
        assert_eq!(all.of(is).unwrap(), Role::Member);
    }

    #[test]
    fn filters() {
        let of = |pairs: &[(&str, &str)]| {
            let query: Query =
                pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            MembershipFilter::of(&query)
        };
        let filter = of(&[("group", "3"), ("role", "owner")]).unwrap();
        assert_eq!((filter.group, filter.user, filter.role), (Some(3), None, Some(Role::Owner)));
        refused(of(&[("group", "x"), ("user", ""), ("role", "x")]), &["group", "role", "user"]);
    }
}
