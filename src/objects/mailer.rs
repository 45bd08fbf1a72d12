//! The Durable Object that sends mails after the response, and goes on trying where that fails.
//!
//! It stores which requests are to be answered by mail and when, and nothing of the mails
//! themselves: address and link are looked up, or made, when the mail is sent. A request of an
//! address that is nobody's is stored alike, and dropped then: so that the work before the response
//! does not tell who is registered. There is one object for the region cell.

use farhand_domain::error::Error;
use farhand_domain::time::Timestamp;
use futures_util::future;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;
use worker::{DurableObject, Env, Request, Response, SqlStorage, State, durable_object};

use crate::mail::{self, Failure, Message};
use crate::objects::{self, alarm::Alarm};
use crate::platform::log;
use crate::platform::{self, Config, internal};
use crate::store::reset_requests::{self, Recipient};

/// The name of the one object.
const NAME: &str = "mailer";
/// How many mails are sent side by side: the platform gives six connections.
const AT_ONCE: i64 = 5;
/// Seconds to the second try; each later one waits four times as long as the one before.
const FIRST_RETRY: i64 = 5;
/// Seconds between two tries at most.
const LONGEST_RETRY: i64 = 3_600;
/// How long a try may take, in seconds, before another may begin: longer than any transport waits.
const TRY_LASTS: i64 = 120;

const SCHEMA: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS mails (
        request TEXT PRIMARY KEY, tries INTEGER NOT NULL, due_at TEXT NOT NULL) WITHOUT ROWID",
    // Serves: what is due.
    "CREATE INDEX IF NOT EXISTS mails_due ON mails (due_at)",
];

/// A mail to be sent: for which request for a password reset.
#[derive(Serialize, Deserialize)]
struct Ask {
    request: Uuid,
}

#[derive(Deserialize)]
struct Due {
    request: Uuid,
    tries: i64,
}

#[derive(Deserialize)]
struct Next {
    due_at: Option<Timestamp>,
}

/// Has the mail for a request for a password reset sent, soon.
///
/// # Errors
/// The object could not be reached, and nothing will be sent.
pub async fn send_reset(env: &Env, request: Uuid) -> Result<(), Error> {
    objects::call(env, platform::MAILER, NAME, &Ask { request }).await
}

/// The object.
#[durable_object]
pub struct Mailer {
    state: State,
    env: Env,
    alarm: Alarm,
}

impl DurableObject for Mailer {
    fn new(state: State, env: Env) -> Self {
        Self { state, env, alarm: Alarm::default() }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        objects::respond(&mut request, async |ask: Ask| self.take(&ask).await.map_err(internal))
            .await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.alarm.went_off();
        self.send_due().await?;
        Response::empty()
    }
}

impl Mailer {
    fn sql(&self) -> SqlStorage {
        self.state.storage().sql()
    }

    async fn take(&self, ask: &Ask) -> worker::Result<()> {
        for statement in SCHEMA {
            self.sql().exec(statement, None)?;
        }
        let now = platform::now().to_string();
        let sql = "INSERT OR IGNORE INTO mails (request, tries, due_at) VALUES (?, 0, ?)";
        self.sql().exec(sql, vec![ask.request.to_string().into(), now.into()])?;
        self.set_alarm().await
    }

    /// Sends what is due, and sets the alarm for what is not.
    async fn send_due(&self) -> worker::Result<()> {
        let now = platform::now();
        let sql = "SELECT request, tries FROM mails WHERE due_at <= ? ORDER BY due_at LIMIT ? + 0";
        let due = self
            .sql()
            .exec(sql, vec![now.to_string().into(), AT_ONCE.into()])?
            .to_array::<Due>()?;
        for mail in &due {
            // Noted before the try: one that is cut off is made again, but not at once.
            self.postpone(mail, now.plus_seconds(TRY_LASTS))?;
        }
        self.set_alarm().await?;
        future::try_join_all(due.iter().map(|mail| self.try_to_send(mail))).await?;
        self.set_alarm().await
    }

    fn postpone(&self, mail: &Due, due_at: Timestamp) -> worker::Result<()> {
        let sql = "UPDATE mails SET tries = ?, due_at = ? WHERE request = ?";
        let values = vec![
            (mail.tries + 1).into(),
            due_at.to_string().into(),
            mail.request.to_string().into(),
        ];
        self.sql().exec(sql, values).map(drop)
    }

    fn forget(&self, request: Uuid) -> worker::Result<()> {
        self.sql()
            .exec("DELETE FROM mails WHERE request = ?", vec![request.to_string().into()])
            .map(drop)
    }

    async fn set_alarm(&self) -> worker::Result<()> {
        let next =
            self.sql().exec("SELECT min(due_at) AS due_at FROM mails", None)?.to_array::<Next>()?;
        let Some(due_at) = next.into_iter().next().and_then(|next| next.due_at) else {
            return Ok(());
        };
        self.alarm.set(&self.state.storage(), due_at).await
    }

    /// Makes one try. A mail that nobody is to get any more is dropped; what fails for now is tried
    /// again, as long as the link is good.
    async fn try_to_send(&self, mail: &Due) -> worker::Result<()> {
        let log = |event: &'static str, cause: &str| {
            log::trouble(event, json!({"request": mail.request, "try": mail.tries + 1}), &cause);
        };
        match self.send(mail.request).await {
            Ok(()) => self.forget(mail.request),
            Err(Failure::Permanent(cause)) => {
                log("mail_refused", &cause);
                self.forget(mail.request)
            }
            Err(Failure::Temporary(cause)) => {
                log("mail_not_sent_yet", &cause);
                self.postpone(mail, platform::now().plus_seconds(retry_after(mail.tries)))
            }
        }
    }

    async fn send(&self, request: Uuid) -> Result<(), Failure> {
        let temporary = |error: Error| Failure::Temporary(error.detail.into_owned());
        let now = platform::now();
        let recipient =
            reset_requests::recipient(&self.env, request, now).await.map_err(temporary)?;
        let Some(recipient) = recipient else { return Ok(()) };
        let key = platform::secret_key(&self.env).map_err(temporary)?.reset_key(request);
        let base_url = Config::of(&self.env).base_url_of(&recipient.workspace);
        let link = format!("{base_url}/api/auth/reset-password/confirm/{}/", key.expose());
        mail::send(&self.env, &reset_message(request, recipient, &link)).await
    }
}

/// Seconds to the next try after so many that failed before the last.
fn retry_after(tries: i64) -> i64 {
    let exponent = u32::try_from(tries).unwrap_or(0).min(10);
    (FIRST_RETRY << (2 * exponent)).min(LONGEST_RETRY)
}

/// The mail for a request: the very same at each try, so that one that comes twice can be told.
fn reset_message(id: Uuid, recipient: Recipient, link: &str) -> Message {
    let Recipient { workspace, workspace_name, username, email, requested_at, expires_at } =
        recipient;
    let until = expires_at.to_rfc_5322();
    let text = format!(
        "Somebody asked for a new password for the account {username} in the workspace {workspace_name} ({workspace}).\n\
         If it was you, choose one here:\n\n{link}\n\n\
         The link works once, and until {until}. It signs out every session of the account.\n\
         If it was not you, you need not do anything: your password stays as it is.\n"
    );
    Message {
        id,
        date: requested_at,
        to: email,
        subject: "Reset your Farhand password".to_owned(),
        text,
    }
}

#[cfg(test)]
mod tests {
    use super::retry_after;

    #[test]
    fn tries_grow_rarer() {
        assert_eq!([0, 1, 2, 3, 4, 5, 100].map(retry_after), [5, 20, 80, 320, 1280, 3600, 3600]);
    }
}
