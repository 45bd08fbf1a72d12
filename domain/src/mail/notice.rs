//! Notices: mails about acts with which an intruder could take an account (contract 4.16).

use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use crate::hash::sha256;
use crate::mail::message::MailMessage;
use crate::time::Timestamp;

/// The mails of a kind are counted for this long, from the first one on.
pub const WINDOW_SECONDS: i64 = 24 * 3_600;
/// Seconds after which a notice that could not be sent is dropped.
pub const MAX_AGE_SECONDS: i64 = 24 * 3_600;
/// Maximum number of mails of a kind to one address, in a window.
const MAX_OF_ADDRESS: i64 = 5;
/// Maximum number of mails of a kind about what a user does to the own account, in a window.
const MAX_OF_OWN_ACTS: i64 = 20;
/// Maximum number of mails of a kind about what a user does to other accounts, in a window.
const MAX_OF_ACTOR: i64 = 1_000;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// A superuser set the password of an account without the current one.
    PasswordSet,
    /// The e-mail address of an account was changed.
    EmailChanged,
    /// An account became an active superuser.
    NewSuperuser,
    /// A request with an API token created an account.
    UserCreated,
    /// An account got an API token without an access control list.
    UnlimitedToken,
    /// A client logged in from a network that the account did not use recently.
    NewNetwork,
}

/// An act, and the people who get a mail about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Notice {
    /// What happened.
    pub kind: NoticeKind,
    /// The workspace's id.
    pub workspace_id: i64,
    /// The workspace's slug.
    pub workspace: String,
    /// The username of the account.
    pub account: String,
    /// The username of the caller.
    pub actor: String,
    /// The client's address.
    pub remote_ip: String,
    /// When it happened.
    pub at: Timestamp,
    /// The addresses that get a mail.
    pub recipients: Vec<String>,
}

/// A counter of mails, and its limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MailLimit {
    /// The key of the counter. It contains no address.
    pub key: String,
    /// Maximum number of mails in a window.
    pub max: i64,
}

impl Notice {
    /// The recipients, each of them once. Addresses that differ only in their case are equal.
    pub fn distinct_recipients(&self) -> Vec<&str> {
        let mut distinct: Vec<&str> = Vec::new();
        for recipient in &self.recipients {
            if !distinct.iter().any(|known| known.eq_ignore_ascii_case(recipient)) {
                distinct.push(recipient);
            }
        }
        distinct
    }

    /// The limits of a mail to an address: the limit of the address, and that of the caller. The
    /// kinds are counted separately, and so are the callers and what they do to themselves: many
    /// harmless acts hide no other act.
    pub fn limits(&self, recipient: &str) -> [MailLimit; 2] {
        let of_address = match self.kind {
            NoticeKind::NewNetwork => 1,
            _ => MAX_OF_ADDRESS,
        };
        let address = json!([self.kind, self.workspace_id, recipient.to_lowercase()]);
        let is_own = self.actor == self.account;
        let of_actor = if is_own { MAX_OF_OWN_ACTS } else { MAX_OF_ACTOR };
        let actor = json!([self.kind, self.workspace_id, self.actor, is_own]);
        [(address, of_address), (actor, of_actor)]
            .map(|(key, max)| MailLimit { key: sha256(&key.to_string()), max })
    }

    /// The mail to one recipient. `is_last`: no further mail of this kind goes to the recipient in
    /// the window.
    pub fn mail(&self, id: Uuid, recipient: &str, is_last: bool) -> MailMessage {
        let Self { account, actor, workspace, remote_ip, .. } = self;
        let when = self.at.to_rfc_5322();
        let (subject, act) = match self.kind {
            NoticeKind::PasswordSet => {
                ("A Farhand password was set", format!("{actor} set the password of {account}"))
            }
            NoticeKind::EmailChanged => (
                "A Farhand e-mail address was changed",
                format!("{actor} changed the e-mail address of {account}"),
            ),
            NoticeKind::NewSuperuser => (
                "A new Farhand superuser",
                format!("{account} became a superuser by a request of {actor}"),
            ),
            NoticeKind::UserCreated => (
                "A new Farhand user",
                format!("an API token of {actor} created the user {account}"),
            ),
            NoticeKind::UnlimitedToken => (
                "A Farhand API token without limits",
                format!("{account} got an API token without an access control list"),
            ),
            NoticeKind::NewNetwork => (
                "A Farhand login from a new network",
                format!("a client at {remote_ip} logged in as {account}"),
            ),
        };
        let rest = match (is_last, self.kind) {
            (false, _) => "",
            (true, NoticeKind::NewNetwork) => " No further mail of this kind follows for 24 hours.",
            (true, _) => {
                " This is the last mail of this kind for 24 hours; the audit log has all events."
            }
        };
        MailMessage {
            id,
            date: self.at,
            to: recipient.to_owned(),
            subject: subject.to_owned(),
            text: format!("In the workspace {workspace}, {act} ({when}).{rest}\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [NoticeKind; 6] = [
        NoticeKind::PasswordSet,
        NoticeKind::EmailChanged,
        NoticeKind::NewSuperuser,
        NoticeKind::UserCreated,
        NoticeKind::UnlimitedToken,
        NoticeKind::NewNetwork,
    ];

    fn notice(kind: NoticeKind) -> Notice {
        Notice {
            kind,
            workspace_id: 7,
            workspace: "acme".into(),
            account: "alice".into(),
            actor: "boss".into(),
            remote_ip: "192.0.2.1".into(),
            at: Timestamp::parse("2026-11-21T01:23:45Z").unwrap(),
            recipients: vec![
                "a@example.com".into(),
                "b@example.com".into(),
                "A@example.com".into(),
            ],
        }
    }

    #[test]
    fn a_mail_has_one_line_that_names_the_account_and_the_workspace() {
        for kind in KINDS {
            for is_last in [false, true] {
                let mail = notice(kind).mail(Uuid::nil(), "a@example.com", is_last);
                assert_eq!((mail.check(), mail.to.as_str()), (Ok(()), "a@example.com"));
                assert_eq!(mail.text.matches('\n').count(), 1, "{}", mail.text);
                for part in ["acme", "alice", "21 Nov 2026"] {
                    assert!(mail.text.contains(part), "{}", mail.text);
                }
                assert_eq!(mail.text.contains("24 hours"), is_last, "{}", mail.text);
                // Only the mail to the account's owner has the client's address.
                let has_address = mail.text.contains("192.0.2.1");
                assert_eq!(has_address, kind == NoticeKind::NewNetwork, "{}", mail.text);
            }
        }
    }

    #[test]
    fn each_recipient_gets_one_mail() {
        let notice = notice(NoticeKind::PasswordSet);
        assert_eq!(notice.distinct_recipients(), ["a@example.com", "b@example.com"]);
    }

    #[test]
    fn kinds_addresses_and_workspaces_are_counted_separately() {
        let limits = |kind, address| notice(kind).limits(address);
        let one = limits(NoticeKind::PasswordSet, "a@example.com");
        assert_eq!(one, limits(NoticeKind::PasswordSet, "A@example.com"));
        assert_eq!(one.clone().map(|limit| limit.max), [5, 1_000]);
        assert!(one.iter().all(|limit| !limit.key.contains("example")));
        let other = limits(NoticeKind::PasswordSet, "b@example.com");
        assert!(one[0] != other[0] && one[1] == other[1]);
        let kind = limits(NoticeKind::EmailChanged, "a@example.com");
        assert!(one[0] != kind[0] && one[1] != kind[1]);
        let own = Notice { account: "boss".to_owned(), ..notice(NoticeKind::PasswordSet) };
        let own = own.limits("a@example.com");
        assert!(own[0] == one[0] && own[1].key != one[1].key && own[1].max == 20);
        let workspace = Notice { workspace_id: 8, ..notice(NoticeKind::PasswordSet) };
        assert_ne!(one[0], workspace.limits("a@example.com")[0]);
        assert_eq!(limits(NoticeKind::NewNetwork, "a@example.com")[0].max, 1);
    }
}
