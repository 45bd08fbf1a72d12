//! What a user account must look like (contract 5).

use email_address::{EmailAddress, Options};

use crate::fields::Fields;
use crate::password;

/// The longest e-mail address, in characters.
const LONGEST_EMAIL: usize = 254;

/// Accounts of the system's own: nobody may be called so, as a member runs commands under their own name.
const RESERVED: [&str; 15] = [
    "root", "daemon", "bin", "sys", "sync", "www-data", "mail", "nobody", "nogroup", "syslog", "backup", "news",
    "games", "lp", "man",
];

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

/// Tells whether `text` is a username, `^[a-z][a-z0-9_-]{0,31}$`: a UNIX account name.
fn is_username(text: &str) -> bool {
    text.len() <= 32
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
}

/// Reads and checks `username`, `email` and `password`; what is wrong is noted in `fields`.
pub fn read_new(fields: &mut Fields) -> Option<NewUser> {
    let username = fields.text("username", 1..=32).filter(|name| {
        let problem = if RESERVED.contains(&name.as_str()) {
            Some("This name is reserved.")
        } else {
            (!is_username(name)).then_some(
                "Enter a lower-case letter followed by up to 31 lower-case letters, digits, hyphens and underscores.",
            )
        };
        problem.inspect(|message| fields.reject("username", *message)).is_none()
    });
    let email = fields.text("email", 1..=LONGEST_EMAIL).filter(|email| {
        let options = Options::default().without_display_text().without_domain_literal();
        let good = EmailAddress::parse_with_options(email, options).is_ok();
        if !good {
            fields.reject("email", "Enter a valid email address.");
        }
        good
    });
    // The length is password::violations' to judge, with the other rules; only a text is asked for here.
    let password = fields.text("password", 1..=usize::MAX);
    if let Some(password) = &password {
        let personal =
            password::Personal { username: username.as_deref().unwrap_or(""), email: email.as_deref().unwrap_or("") };
        for message in password::violations(password, personal) {
            fields.reject("password", message);
        }
    }
    Some(NewUser { username: username?, email: email?, password: password? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(username: &str, email: &str, wrong: &[&str]) {
        let body = serde_json::json!({"username": username, "email": email, "password": "correct horse battery"});
        let mut fields = Fields::from_json(body.to_string().as_bytes()).unwrap();
        read_new(&mut fields);
        let found: Vec<String> =
            fields.finish().err().map(|e| e.fields.keys().map(ToString::to_string).collect()).unwrap_or_default();
        assert_eq!(found, wrong, "{username} {email}");
    }

    #[test]
    fn usernames_are_unix_account_names() {
        let longest = "a".repeat(32);
        for good in ["a", "admin", "web-1", "x_y", &longest] {
            check(good, "a@example.com", &[]);
        }
        let too_long = "a".repeat(33);
        for bad in ["", "1a", "A", "a b", "-a", "_a", "ä", "a.b", "root", "nobody", "www-data", &too_long] {
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
}
