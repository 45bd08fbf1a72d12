//! What a user account must look like (contract 5.1).

use serde::Deserialize;

use crate::error::{Error, NON_FIELD};
use crate::fields::Fields;
use crate::group;
use crate::mail::is_address;
use crate::page::{boolean_parameter, parameter};
use crate::password;
use crate::secret::Secret;

/// The longest e-mail address, in characters.
const LONGEST_EMAIL: usize = 254;

/// Accounts of the system's own: nobody may be called so, as a member runs commands under their own
/// name.
const RESERVED: [&str; 15] = [
    "root", "daemon", "bin", "sys", "sync", "www-data", "mail", "nobody", "nogroup", "syslog",
    "backup", "news", "games", "lp", "man",
];

/// The fields of a user object that `PUT` and `PATCH` accept and ignore.
pub const READ_ONLY: &[&str] = &["id", "date_joined", "last_login"];

/// The longest first or last name, in characters.
const LONGEST_NAME: usize = 150;

/// The rule for changes of a user.
pub const MANAGES: &str = "Only staff may change ordinary users, and only superusers may change staff and superusers. \
    Users may change their own names and email address.";
/// The rule for who makes staff and superusers.
pub const RANKS: &str = "Only superusers may set is_staff and is_superuser.";

/// What a user may do beyond what everyone may (contract 5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank {
    /// Staff manage servers and ordinary users.
    pub is_staff: bool,
    /// Superusers manage everything.
    pub is_superuser: bool,
}

impl Rank {
    /// Tells whether users of this rank manage anybody.
    pub fn is_staff_or_superuser(self) -> bool {
        self.is_staff || self.is_superuser
    }

    /// Tells whether users of this rank may edit and delete users of another (contract 5.2): staff
    /// ordinary ones, superusers all.
    pub fn manages(self, other: Self) -> bool {
        self.is_superuser || (self.is_staff && !other.is_staff_or_superuser())
    }
}

/// A user, as they stand.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Account {
    /// The id.
    pub id: i64,
    /// The name.
    pub username: String,
    /// The e-mail address.
    pub email: String,
    /// The first name.
    pub first_name: String,
    /// The last name.
    pub last_name: String,
    /// Whether the user may do anything at all.
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

    /// What a password of the user's must not resemble.
    pub fn personal(&self) -> password::Personal<'_> {
        password::Personal { username: &self.username, email: &self.email }
    }
}

/// A new account, checked.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// A UNIX account name.
    pub username: String,
    /// An e-mail address.
    pub email: String,
    /// The password in plain form, to be hashed.
    pub password: String,
}

/// A request for changes of a user, checked. What is `None` stays as it is.
#[derive(Clone, Default, Debug)]
pub struct Changes {
    /// Another name.
    pub username: Option<String>,
    /// Another e-mail address.
    pub email: Option<String>,
    /// Another first name.
    pub first_name: Option<String>,
    /// Another last name.
    pub last_name: Option<String>,
    /// Activate or deactivate.
    pub is_active: Option<bool>,
    /// Make or unmake staff.
    pub is_staff: Option<bool>,
    /// Make or unmake a superuser.
    pub is_superuser: Option<bool>,
    /// The caller's current password, with which they change their own e-mail address.
    pub password: Option<Secret>,
    /// Whether the request names an e-mail address, be it the same.
    pub names_email: bool,
    /// The user stays the owner of their servers if the change lowers their rank.
    pub keep_servers: bool,
}

/// Tells whether `text` is a username, `^[a-z][a-z0-9_-]{0,31}$`: a UNIX account name.
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
    fields.text("email", 1..=LONGEST_EMAIL).filter(|email| {
        // One that no mail can be sent to would never get a link.
        let good = is_address(email);
        if !good {
            fields.reject("email", "Enter a valid email address.");
        }
        good
    })
}

/// An address as it is counted: two spellings of one mailbox are one. `None`: it is no address.
pub fn normalized_email(text: &str) -> Option<String> {
    let text = text.trim();
    (text.len() <= LONGEST_EMAIL && is_address(text)).then(|| text.to_ascii_lowercase())
}

fn read_name(fields: &mut Fields, field: &'static str) -> Option<String> {
    fields.optional_text(field, 0..=LONGEST_NAME).filter(|name| {
        let good = !name.contains(char::is_control);
        if !good {
            fields.reject(field, "Control characters are not allowed.");
        }
        good
    })
}

/// Reads a new password, of which only a text is asked here: its rules need to know whose it is.
pub fn read_password(fields: &mut Fields, name: &'static str) -> Option<String> {
    fields.text(name, 1..=usize::MAX)
}

/// Reads and checks `username`, `email` and `password`; what is wrong is noted in `fields`.
pub fn read_new(fields: &mut Fields) -> Option<NewUser> {
    let username = read_username(fields);
    let email = read_email(fields);
    let password = read_password(fields, "password");
    if let Some(password) = &password {
        let personal = password::Personal {
            username: username.as_deref().unwrap_or(""),
            email: email.as_deref().unwrap_or(""),
        };
        for message in password::violations(password, personal) {
            fields.reject("password", message);
        }
    }
    Some(NewUser { username: username?, email: email?, password: password? })
}

/// Reads a request for a user: the account, and what it is beside that, as changes of a plain one.
///
/// # Errors
/// All bad fields together.
pub fn read_creation(mut fields: Fields) -> Result<(NewUser, Changes), Error> {
    let new = read_new(&mut fields);
    let rest = Changes::read_rest(&mut fields);
    Ok((fields.finish_with(new)?, rest))
}

impl Changes {
    /// Reads what is neither name nor address nor password.
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

    /// Reads the given fields (PATCH).
    ///
    /// # Errors
    /// All bad fields together.
    pub fn read(mut fields: Fields) -> Result<Self, Error> {
        fields.ignore(READ_ONLY);
        let username = fields.has("username").then(|| read_username(&mut fields)).flatten();
        let email = fields.has("email").then(|| read_email(&mut fields)).flatten();
        let password = fields.optional_text("password", 1..=usize::MAX).map(Secret::new);
        let names_email = fields.has("email");
        let keep_servers = fields.optional_boolean("keep_servers").unwrap_or(false);
        let rest = Self::read_rest(&mut fields);
        fields.finish()?;
        Ok(Self { username, email, password, names_email, keep_servers, ..rest })
    }

    /// Reads all fields (PUT): what is left out is as in a plain new user.
    ///
    /// # Errors
    /// All bad fields together; name and address must be there.
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
            names_email: true,
            keep_servers,
        })
    }

    /// The same without what a user is already: nobody needs a right to change nothing.
    pub fn of(self, account: &Account) -> Self {
        fn other<T: PartialEq>(wanted: Option<T>, is: &T) -> Option<T> {
            wanted.filter(|wanted| wanted != is)
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
            names_email: self.names_email,
            keep_servers: self.keep_servers,
        }
    }

    /// Tells whether they take staff or superuser rank from an account.
    pub fn lower_rank(&self, account: &Account) -> bool {
        (account.is_staff && self.is_staff == Some(false))
            || (account.is_superuser && self.is_superuser == Some(false))
    }

    /// Tells whether the account's servers lose their owner with them.
    pub fn release_servers(&self, account: &Account) -> bool {
        self.lower_rank(account) && !self.keep_servers
    }

    /// Tells whether they change somebody's rank.
    pub fn change_rank(&self) -> bool {
        self.is_staff.is_some() || self.is_superuser.is_some()
    }

    /// Tells whether an active superuser would be none any more.
    fn end_superuser(&self, account: &Account) -> bool {
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

/// Whether the caller must have proved their password.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// No.
    None,
    /// Yes: their current one must be right.
    Password,
}

/// Decides whether a caller may make changes to an account (contract 5.2). `has_other` tells
/// whether the workspace has another active superuser.
///
/// # Errors
/// No right to it; a password where none belongs or a missing one; the last superuser.
pub fn may_change(
    caller: (i64, Rank),
    account: &Account,
    changes: &Changes,
    has_other: bool,
) -> Result<Proof, Error> {
    let (caller_id, rank) = caller;
    let is_self = caller_id == account.id;
    let is_managed = rank.manages(account.rank());
    let others = changes.username.is_some() || changes.is_active.is_some() || changes.change_rank();
    let is_allowed = is_managed || (is_self && !others);
    if changes.change_rank() && !rank.is_superuser {
        return Err(Error::permission_denied(RANKS));
    }
    if !is_allowed {
        return Err(Error::permission_denied(MANAGES));
    }
    if changes.end_superuser(account) && !has_other {
        return Err(last_superuser());
    }
    let changes_own_email = is_self && changes.email.is_some();
    match &changes.password {
        Some(_) if changes_own_email => Ok(Proof::Password),
        // The same request once more, after an answer that got lost.
        Some(_) if is_self && changes.names_email => Ok(Proof::None),
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

/// Decides whether a caller may delete an account (contract 5.2). `has_other` is as for
/// [`may_change`]; `is_only_owner` tells whether a group has no other owner.
///
/// # Errors
/// No right to it; the last superuser; the only owner of a group.
pub fn may_delete(
    rank: Rank,
    account: &Account,
    has_other: bool,
    is_only_owner: bool,
) -> Result<(), Error> {
    if !rank.manages(account.rank()) {
        return Err(Error::permission_denied(
            "Only staff may delete ordinary users, and only superusers may delete staff and superusers.",
        ));
    }
    if is_active_superuser(account) && !has_other {
        return Err(last_superuser());
    }
    if is_only_owner { Err(group::only_owner()) } else { Ok(()) }
}

/// Which users a list shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// With this name.
    pub username: Option<String>,
    /// Active or not.
    pub is_active: Option<bool>,
    /// With each of these words, in lower case, somewhere in name, address, first or last name.
    pub words: Vec<String>,
}

impl Filter {
    /// Reads `username`, `is_active` and `search`.
    ///
    /// # Errors
    /// On `is_active` that is no boolean.
    pub fn of(query: &[(String, String)]) -> Result<Self, Error> {
        let search = parameter(query, "search").unwrap_or("");
        Ok(Self {
            username: parameter(query, "username").map(ToOwned::to_owned),
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
        read_new(&mut fields);
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
    fn email_addresses() {
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
    fn ranks() {
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

    fn read_changes(body: serde_json::Value) -> Result<Changes, Error> {
        Changes::read(Fields::from_json(body.to_string().as_bytes()).unwrap())
    }

    /// Asserts who of an ordinary user, staff and a superuser may make a change to an account of a
    /// rank that is not theirs.
    #[track_caller]
    fn allowed(body: serde_json::Value, target: Rank, expected: [bool; 3]) {
        let target = account(1, target);
        let changes = read_changes(body).unwrap().of(&target);
        let found = [ORDINARY, STAFF, SUPERUSER]
            .map(|rank| may_change((2, rank), &target, &changes, true).is_ok());
        assert_eq!(found, expected, "{changes:?}");
    }

    #[test]
    fn who_may_change_whom() {
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
        // What is so already needs no right of its own.
        allowed(json!({"is_staff": false, "first_name": "x"}), ORDINARY, [false, true, true]);
        // Nobody sets another one's password here.
        allowed(json!({"password": "correct horse battery"}), ORDINARY, [false; 3]);
    }

    #[test]
    fn what_users_may_change_of_their_own() {
        use serde_json::json;
        let me = account(1, ORDINARY);
        let own =
            |rank, body| may_change((1, rank), &me, &read_changes(body).unwrap().of(&me), true);
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
            assert_eq!(own(ORDINARY, body).unwrap_err().kind, crate::error::Kind::Forbidden);
        }
        for body in [json!({"email": "n@example.com"}), json!({"first_name": "x", "password": "x"})]
        {
            assert!(own(ORDINARY, body).unwrap_err().fields.contains_key("password"));
        }
    }

    #[test]
    fn the_last_superuser_stays_one() {
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
    fn a_replacement_falls_back_to_a_plain_user() {
        use serde_json::json;
        let read = |body: serde_json::Value| {
            Changes::read_all(Fields::from_json(body.to_string().as_bytes()).unwrap())
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
    fn bad_changes() {
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
    fn addresses_are_counted_alike() {
        assert_eq!(normalized_email(" Boss@Example.COM ").as_deref(), Some("boss@example.com"));
        for bad in ["", "x", "a b@example.com", "a@example.com\r\nBcc: x@example.com"] {
            assert_eq!(normalized_email(bad), None, "{bad}");
        }
    }
}
