//! Users: the fields of their requests (contract 5.1), and who may change whom (contract 5.2).

use serde::Deserialize;

use crate::error::{Error, NON_FIELD};
use crate::http::fields::Fields;
use crate::http::page::{boolean_parameter, last_value};
use crate::mail::message::is_address;
use crate::people::group;
use crate::people::password;
use crate::secret::Secret;

/// Maximum length of an e-mail address, in characters.
const MAX_EMAIL: usize = 254;

/// Usernames that are refused: accounts of the operating system. By default, users run commands as
/// the account with their own username.
const RESERVED: [&str; 15] = [
    "root", "daemon", "bin", "sys", "sync", "www-data", "mail", "nobody", "nogroup", "syslog",
    "backup", "news", "games", "lp", "man",
];

/// The fields of a user object that `PUT` and `PATCH` accept and ignore.
pub const READ_ONLY: &[&str] = &["id", "date_joined", "last_login"];

/// Maximum length of a first or last name, in characters.
const MAX_NAME: usize = 150;

/// The error message for a change of a user that the caller may not make.
pub const MAY_CHANGE_USER_RULE: &str = "Only staff may change ordinary users, and only superusers may change staff and superusers. \
    Users may change their own names and email address.";
/// The error message for a change of a rank that the caller may not make.
pub const MAY_CHANGE_RANK_RULE: &str = "Only superusers may set is_staff and is_superuser.";

/// The rank of a user (contract 5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank {
    /// Whether the user manages servers and ordinary users.
    pub is_staff: bool,
    /// Whether the user manages everything.
    pub is_superuser: bool,
}

impl Rank {
    /// Whether the rank is above the rank of ordinary users.
    pub fn is_staff_or_superuser(self) -> bool {
        self.is_staff || self.is_superuser
    }

    /// Whether users of this rank may change and delete users of another rank (contract 5.2). Staff
    /// manage ordinary users, superusers manage all.
    pub fn manages(self, other: Self) -> bool {
        self.is_superuser || (self.is_staff && !other.is_staff_or_superuser())
    }
}

/// A user in D1.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Account {
    /// The user's id.
    pub id: i64,
    /// The username.
    pub username: String,
    /// The e-mail address.
    pub email: String,
    /// The first name.
    pub first_name: String,
    /// The last name.
    pub last_name: String,
    /// Whether the user's credentials are accepted.
    pub is_active: bool,
    /// See [`Rank`].
    pub is_staff: bool,
    /// See [`Rank`].
    pub is_superuser: bool,
}

impl Account {
    /// The user's rank.
    pub fn rank(&self) -> Rank {
        Rank { is_staff: self.is_staff, is_superuser: self.is_superuser }
    }

    /// The texts that the user's password must not resemble.
    pub fn personal(&self) -> password::PersonalTexts<'_> {
        password::PersonalTexts { username: &self.username, email: &self.email }
    }
}

/// A valid request for a user: the required fields.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// The username, which is also a valid UNIX account name.
    pub username: String,
    /// The e-mail address.
    pub email: String,
    /// The password in plain form, which is not hashed yet.
    pub password: String,
}

/// A valid request to change a user. `None`: the field does not change.
#[derive(Clone, Default, Debug)]
pub struct UserChanges {
    /// The new username.
    pub username: Option<String>,
    /// The new e-mail address.
    pub email: Option<String>,
    /// The new first name.
    pub first_name: Option<String>,
    /// The new last name.
    pub last_name: Option<String>,
    /// Whether the user becomes active or inactive.
    pub is_active: Option<bool>,
    /// Whether the user becomes staff, or loses that rank.
    pub is_staff: Option<bool>,
    /// Whether the user becomes a superuser, or loses that rank.
    pub is_superuser: Option<bool>,
    /// The caller's current password. It is required to change the caller's own e-mail address.
    pub password: Option<Secret>,
    /// Whether the request has an e-mail address, even if it equals the current address.
    pub sends_email: bool,
    /// Whether the user remains the owner of their servers if the change lowers their rank.
    pub keep_servers: bool,
}

/// Whether `text` is a username: `^[a-z][a-z0-9_-]{0,31}$`, the form of UNIX accounts.
fn is_username(text: &str) -> bool {
    text.len() <= 32
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
}

fn read_username(fields: &mut Fields) -> Option<String> {
    fields.text("username", 1..=32).filter(|name| {
        let problem = if RESERVED.contains(&name.as_str()) {
            Some("This name is reserved.")
        } else {
            (!is_username(name)).then_some(
                "Enter a lower-case letter followed by up to 31 lower-case letters, digits, hyphens and underscores.",
            )
        };
        problem.inspect(|message| fields.reject("username", *message)).is_none()
    })
}

fn read_email(fields: &mut Fields) -> Option<String> {
    fields.text("email", 1..=MAX_EMAIL).filter(|email| {
        // A user without a valid address could never get a link for a new password.
        let is_valid = is_address(email);
        if !is_valid {
            fields.reject("email", "Enter a valid email address.");
        }
        is_valid
    })
}

/// The normal form of an e-mail address, for counting: in lower case and without spaces around it.
/// Returns `None` if the text is not an address.
pub fn normalized_email(text: &str) -> Option<String> {
    let text = text.trim();
    (text.len() <= MAX_EMAIL && is_address(text)).then(|| text.to_ascii_lowercase())
}

fn read_name(fields: &mut Fields, field: &'static str) -> Option<String> {
    fields.optional_text(field, 0..=MAX_NAME).filter(|name| {
        let is_valid = !name.contains(char::is_control);
        if !is_valid {
            fields.reject(field, "Control characters are not allowed.");
        }
        is_valid
    })
}

/// Reads a new password, which may be any text. [`password::violations`] checks the rules for
/// passwords, which need the user.
pub fn read_password(fields: &mut Fields, name: &'static str) -> Option<String> {
    fields.text(name, 1..=usize::MAX)
}

/// Reads `username`, `email` and `password` of a new user. Records errors in `fields`.
pub fn read_account(fields: &mut Fields) -> Option<NewUser> {
    let username = read_username(fields);
    let email = read_email(fields);
    let password = read_password(fields, "password");
    if let Some(password) = &password {
        let personal = password::PersonalTexts {
            username: username.as_deref().unwrap_or(""),
            email: email.as_deref().unwrap_or(""),
        };
        for message in password::violations(password, personal) {
            fields.reject("password", message);
        }
    }
    Some(NewUser { username: username?, email: email?, password: password? })
}

/// Reads a request to create a user: the required fields, and the optional fields as changes of an
/// ordinary new user.
///
/// # Errors
/// All invalid fields together.
pub fn read_new_user(mut fields: Fields) -> Result<(NewUser, UserChanges), Error> {
    let new = read_account(&mut fields);
    let rest = UserChanges::read_rest(&mut fields);
    Ok((fields.finish_with(new)?, rest))
}

impl UserChanges {
    /// Reads the fields other than username, address and password.
    fn read_rest(fields: &mut Fields) -> Self {
        Self {
            first_name: read_name(fields, "first_name"),
            last_name: read_name(fields, "last_name"),
            is_active: fields.optional_boolean("is_active"),
            is_staff: fields.optional_boolean("is_staff"),
            is_superuser: fields.optional_boolean("is_superuser"),
            ..Self::default()
        }
    }

    /// Reads a `PATCH`. All fields are optional.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        let username = fields.has("username").then(|| read_username(&mut fields)).flatten();
        let email = fields.has("email").then(|| read_email(&mut fields)).flatten();
        let password = fields.optional_text("password", 1..=usize::MAX).map(Secret::new);
        let sends_email = fields.has("email");
        let keep_servers = fields.optional_boolean("keep_servers").unwrap_or(false);
        let rest = Self::read_rest(&mut fields);
        fields.finish()?;
        Ok(Self { username, email, password, sends_email, keep_servers, ..rest })
    }

    /// Reads a `PUT`. Username and address are required. A field that is not sent gets the value of
    /// an ordinary new user.
    ///
    /// # Errors
    /// All invalid fields together.
    pub fn read_all(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        let (username, email) = (read_username(&mut fields), read_email(&mut fields));
        let password = fields.optional_text("password", 1..=usize::MAX).map(Secret::new);
        let keep_servers = fields.optional_boolean("keep_servers").unwrap_or(false);
        let rest = Self::read_rest(&mut fields);
        fields.finish()?;
        Ok(Self {
            username,
            email,
            first_name: Some(rest.first_name.unwrap_or_default()),
            last_name: Some(rest.last_name.unwrap_or_default()),
            is_active: Some(rest.is_active.unwrap_or(true)),
            is_staff: Some(rest.is_staff.unwrap_or(false)),
            is_superuser: Some(rest.is_superuser.unwrap_or(false)),
            password,
            sends_email: true,
            keep_servers,
        })
    }

    /// Drops the fields that equal the account's fields, because they need no permission.
    pub fn without_unchanged(self, account: &Account) -> Self {
        fn other<T: PartialEq>(wanted: Option<T>, present: &T) -> Option<T> {
            wanted.filter(|wanted| wanted != present)
        }
        Self {
            username: other(self.username, &account.username),
            email: other(self.email, &account.email),
            first_name: other(self.first_name, &account.first_name),
            last_name: other(self.last_name, &account.last_name),
            is_active: other(self.is_active, &account.is_active),
            is_staff: other(self.is_staff, &account.is_staff),
            is_superuser: other(self.is_superuser, &account.is_superuser),
            password: self.password,
            sends_email: self.sends_email,
            keep_servers: self.keep_servers,
        }
    }

    /// Whether the changes take the rank of staff or superuser from the account.
    pub fn lowers_rank(&self, account: &Account) -> bool {
        (account.is_staff && self.is_staff == Some(false))
            || (account.is_superuser && self.is_superuser == Some(false))
    }

    /// Whether the changes make the account an active superuser.
    pub fn adds_superuser(&self, account: &Account) -> bool {
        let is_active = self.is_active.unwrap_or(account.is_active);
        let is_superuser = self.is_superuser.unwrap_or(account.is_superuser);
        (is_active && is_superuser) && !(account.is_active && account.is_superuser)
    }

    /// Whether the changes remove the account as the owner of its servers.
    pub fn releases_servers(&self, account: &Account) -> bool {
        self.lowers_rank(account) && !self.keep_servers
    }

    /// Whether the changes set a rank.
    pub fn change_rank(&self) -> bool {
        self.is_staff.is_some() || self.is_superuser.is_some()
    }

    /// Whether the changes demote or deactivate an active superuser.
    fn remove_active_superuser(&self, account: &Account) -> bool {
        is_active_superuser(account)
            && (self.is_active == Some(false) || self.is_superuser == Some(false))
    }
}

fn is_active_superuser(account: &Account) -> bool {
    account.is_active && account.is_superuser
}

fn last_superuser() -> Error {
    Error::field(NON_FIELD, "The last active superuser cannot be demoted, deactivated or deleted.")
}

/// Whether the caller must prove their password for a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// No password is needed.
    None,
    /// The password in the request must be the caller's current password.
    Password,
}

/// Decides whether a caller may make changes to an account (contract 5.2). `caller`: the caller's
/// id and rank. `has_other_superuser`: whether the workspace has another active superuser.
///
/// # Errors
/// The caller lacks the permission, a password is missing or not needed, or the account is the last
/// active superuser.
pub fn may_change(
    caller: (i64, Rank),
    account: &Account,
    changes: &UserChanges,
    has_other_superuser: bool,
) -> Result<Proof, Error> {
    let (caller_id, rank) = caller;
    let is_self = caller_id == account.id;
    let is_managed = rank.manages(account.rank());
    let needs_manager =
        changes.username.is_some() || changes.is_active.is_some() || changes.change_rank();
    let is_allowed = is_managed || (is_self && !needs_manager);
    if changes.change_rank() && !rank.is_superuser {
        return Err(Error::permission_denied(MAY_CHANGE_RANK_RULE));
    }
    if !is_allowed {
        return Err(Error::permission_denied(MAY_CHANGE_USER_RULE));
    }
    if changes.remove_active_superuser(account) && !has_other_superuser {
        return Err(last_superuser());
    }
    let changes_own_email = is_self && changes.email.is_some();
    match &changes.password {
        Some(_) if changes_own_email => Ok(Proof::Password),
        // A client may repeat a request whose response was lost.
        Some(_) if is_self && changes.sends_email => Ok(Proof::None),
        Some(_) => Err(Error::field(
            "password",
            "This is asked for with a new email address of your own only.",
        )),
        None if changes_own_email => Err(Error::field(
            "password",
            "Enter your current password to change your email address.",
        )),
        None => Ok(Proof::None),
    }
}

/// Decides whether a caller of this rank may delete an account (contract 5.2).
/// `has_other_superuser`: see [`may_change`]. `is_only_owner`: whether a group has no other owner.
///
/// # Errors
/// The caller lacks the permission, or the account is the last active superuser or the only owner
/// of a group.
pub fn may_delete(
    rank: Rank,
    account: &Account,
    has_other_superuser: bool,
    is_only_owner: bool,
) -> Result<(), Error> {
    if !rank.manages(account.rank()) {
        return Err(Error::permission_denied(
            "Only staff may delete ordinary users, and only superusers may delete staff and superusers.",
        ));
    }
    if is_active_superuser(account) && !has_other_superuser {
        return Err(last_superuser());
    }
    if is_only_owner { Err(group::only_owner()) } else { Ok(()) }
}

/// The filters of a list of users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserFilter {
    /// The exact username.
    pub username: Option<String>,
    /// Whether the user is active.
    pub is_active: Option<bool>,
    /// Words in lower case. Each word must be in the username, the address, the first name or the
    /// last name.
    pub words: Vec<String>,
}

impl UserFilter {
    /// Reads `username`, `is_active` and `search`.
    ///
    /// # Errors
    /// A field error if `is_active` is not a boolean.
    pub fn from_query(query: &[(String, String)]) -> Result<Self, Error> {
        let search = last_value(query, "search").unwrap_or("");
        Ok(Self {
            username: last_value(query, "username").map(ToOwned::to_owned),
            is_active: boolean_parameter(query, "is_active")?,
            words: search.split_whitespace().map(str::to_lowercase).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(username: &str, email: &str, wrong: &[&str]) {
        let body = serde_json::json!({"username": username, "email": email, "password": "correct horse battery"});
        let mut fields = Fields::from_json(body.to_string().as_bytes()).unwrap();
        read_account(&mut fields);
        let found: Vec<String> = fields
            .finish()
            .err()
            .map(|e| e.fields.keys().map(ToString::to_string).collect())
            .unwrap_or_default();
        assert_eq!(found, wrong, "{username} {email}");
    }

    #[test]
    fn usernames_are_unix_account_names() {
        let longest = "a".repeat(32);
        for good in ["a", "admin", "web-1", "x_y", &longest] {
            check(good, "a@example.com", &[]);
        }
        let too_long = "a".repeat(33);
        for bad in
            ["", "1a", "A", "a b", "-a", "_a", "ä", "a.b", "root", "nobody", "www-data", &too_long]
        {
            check(bad, "a@example.com", &["username"]);
        }
    }

    #[test]
    fn email_addresses_can_receive_mail() {
        for good in ["a@example.com", "first.last+tag@sub.example.org"] {
            check("admin", good, &[]);
        }
        let too_long = format!("{}@example.com", "a".repeat(250));
        for bad in [
            "",
            "a",
            "@example.com",
            "a@",
            "a b@example.com",
            "A <a@example.com>",
            "a@example.com\r\nBcc: b@example.com",
            &too_long,
        ] {
            check("admin", bad, &["email"]);
        }
    }

    const ORDINARY: Rank = Rank { is_staff: false, is_superuser: false };
    const STAFF: Rank = Rank { is_staff: true, is_superuser: false };
    const SUPERUSER: Rank = Rank { is_staff: false, is_superuser: true };

    fn account(id: i64, rank: Rank) -> Account {
        Account {
            id,
            username: format!("user{id}"),
            email: format!("user{id}@example.com"),
            first_name: String::new(),
            last_name: String::new(),
            is_active: true,
            is_staff: rank.is_staff,
            is_superuser: rank.is_superuser,
        }
    }

    #[test]
    fn staff_manage_ordinary_users_superusers_all() {
        for (rank, manages) in
            [(ORDINARY, [false; 3]), (STAFF, [true, false, false]), (SUPERUSER, [true; 3])]
        {
            assert_eq!(
                [ORDINARY, STAFF, SUPERUSER].map(|other| rank.manages(other)),
                manages,
                "{rank:?}"
            );
        }
        assert!(!STAFF.manages(Rank { is_staff: true, is_superuser: true }));
    }

    fn read_changes(body: serde_json::Value) -> Result<UserChanges, Error> {
        UserChanges::read(Fields::from_json(body.to_string().as_bytes()).unwrap())
    }

    /// Asserts whether an ordinary user, staff and a superuser may change another user's account of
    /// the rank `target`.
    #[track_caller]
    fn allowed(body: serde_json::Value, target: Rank, expected: [bool; 3]) {
        let target = account(1, target);
        let changes = read_changes(body).unwrap().without_unchanged(&target);
        let found = [ORDINARY, STAFF, SUPERUSER]
            .map(|rank| may_change((2, rank), &target, &changes, true).is_ok());
        assert_eq!(found, expected, "{changes:?}");
    }

    #[test]
    fn the_rank_decides_who_may_change_whom() {
        use serde_json::json;
        for body in [
            json!({"username": "other"}),
            json!({"email": "other@example.com"}),
            json!({"first_name": "Other"}),
            json!({"is_active": false}),
            json!({}),
        ] {
            allowed(body.clone(), ORDINARY, [false, true, true]);
            allowed(body.clone(), STAFF, [false, false, true]);
            allowed(body, SUPERUSER, [false, false, true]);
        }
        for body in [json!({"is_staff": true}), json!({"is_superuser": true})] {
            allowed(body, ORDINARY, [false, false, true]);
        }
        // A field that keeps its value needs no permission.
        allowed(json!({"is_staff": false, "first_name": "x"}), ORDINARY, [false, true, true]);
        // A change never sets another user's password.
        allowed(json!({"password": "correct horse battery"}), ORDINARY, [false; 3]);
    }

    #[test]
    fn a_change_that_makes_an_active_superuser_is_found() {
        let inactive = Account { is_active: false, ..account(1, SUPERUSER) };
        for (account, body, adds) in [
            (account(1, STAFF), serde_json::json!({"is_superuser": true}), true),
            (
                account(1, STAFF),
                serde_json::json!({"is_superuser": true, "is_active": false}),
                false,
            ),
            (account(1, SUPERUSER), serde_json::json!({"is_superuser": true}), false),
            (account(1, SUPERUSER), serde_json::json!({"first_name": "A"}), false),
            (account(1, STAFF), serde_json::json!({"is_active": true}), false),
            (inactive.clone(), serde_json::json!({"is_active": true}), true),
            (inactive, serde_json::json!({"first_name": "A"}), false),
        ] {
            let changes = read_changes(body.clone()).unwrap().without_unchanged(&account);
            assert_eq!(changes.adds_superuser(&account), adds, "{body}");
        }
    }

    #[test]
    fn users_may_change_their_own_names_and_address() {
        use serde_json::json;
        let me = account(1, ORDINARY);
        let own = |rank, body| {
            may_change((1, rank), &me, &read_changes(body).unwrap().without_unchanged(&me), true)
        };
        assert_eq!(own(ORDINARY, json!({"first_name": "Ä", "last_name": "B"})), Ok(Proof::None));
        for rank in [ORDINARY, STAFF, SUPERUSER] {
            assert_eq!(
                own(rank, json!({"email": "n@example.com", "password": "x"})),
                Ok(Proof::Password)
            );
            assert_eq!(
                own(rank, json!({"email": "user1@example.com", "password": "x"})),
                Ok(Proof::None)
            );
            assert!(own(rank, json!({"email": "n@example.com"})).is_err());
        }
        assert_eq!(own(ORDINARY, json!({"username": "user1", "is_active": true})), Ok(Proof::None));
        for body in
            [json!({"username": "new"}), json!({"is_active": false}), json!({"is_staff": true})]
        {
            assert_eq!(own(ORDINARY, body).unwrap_err().kind, crate::error::ErrorKind::Forbidden);
        }
        for body in [json!({"email": "n@example.com"}), json!({"first_name": "x", "password": "x"})]
        {
            assert!(own(ORDINARY, body).unwrap_err().fields.contains_key("password"));
        }
    }

    #[test]
    fn the_last_superuser_cannot_be_removed() {
        use serde_json::json;
        let boss = account(1, SUPERUSER);
        for body in [json!({"is_active": false}), json!({"is_superuser": false})] {
            let changes = read_changes(body).unwrap();
            let refusal = may_change((1, SUPERUSER), &boss, &changes, false).unwrap_err();
            assert!(refusal.fields.contains_key(NON_FIELD));
            assert!(may_change((1, SUPERUSER), &boss, &changes, true).is_ok());
            let inactive = Account { is_active: false, ..boss.clone() };
            assert!(may_change((2, SUPERUSER), &inactive, &changes, false).is_ok());
        }
        assert!(
            may_delete(SUPERUSER, &boss, false, false).unwrap_err().fields.contains_key(NON_FIELD)
        );
        assert!(may_delete(SUPERUSER, &boss, true, false).is_ok());
        assert!(may_delete(STAFF, &boss, true, false).is_err());
        assert!(may_delete(STAFF, &account(2, ORDINARY), false, false).is_ok());
        let only_owner = may_delete(STAFF, &account(2, ORDINARY), false, true).unwrap_err();
        assert!(only_owner.fields.contains_key(NON_FIELD));
        assert!(may_delete(ORDINARY, &account(2, ORDINARY), false, false).is_err());
    }

    #[test]
    fn a_replacement_has_the_defaults_of_a_new_user() {
        use serde_json::json;
        let read = |body: serde_json::Value| {
            UserChanges::read_all(Fields::from_json(body.to_string().as_bytes()).unwrap())
        };
        let all = read(json!({"username": "a", "email": "a@example.com"})).unwrap();
        assert_eq!(
            (all.first_name.as_deref(), all.is_active, all.is_staff),
            (Some(""), Some(true), Some(false))
        );
        let error = read(json!({})).unwrap_err();
        assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["email", "username"]);
    }

    #[test]
    fn invalid_changes_are_refused() {
        use serde_json::json;
        for (body, wrong) in [
            (json!({"username": null}), "username"),
            (json!({"username": "root"}), "username"),
            (json!({"email": "x"}), "email"),
            (json!({"email": null}), "email"),
            (json!({"first_name": "x".repeat(151)}), "first_name"),
            (json!({"last_name": 7}), "last_name"),
            (json!({"last_name": "a\nb"}), "last_name"),
            (json!({"email": "é@example.com"}), "email"),
            (json!({"is_active": "yes"}), "is_active"),
            (json!({"is_staff": 1}), "is_staff"),
        ] {
            assert_eq!(read_changes(body).unwrap_err().fields.keys().collect::<Vec<_>>(), [wrong]);
        }
    }

    #[test]
    fn addresses_are_counted_in_lower_case() {
        assert_eq!(normalized_email(" Boss@Example.COM ").as_deref(), Some("boss@example.com"));
        for bad in ["", "x", "a b@example.com", "a@example.com\r\nBcc: x@example.com"] {
            assert_eq!(normalized_email(bad), None, "{bad}");
        }
    }
}
