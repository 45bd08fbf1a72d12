//! The Durable Object that sends the mails for password resets, and notices (contract 4.16). It
//! sends a mail after the response to the client, and retries after a temporary failure. The region
//! cell has one mailer.
//!
//! For resets, the object stores only the ids of the requests and the times of the next tries. It
//! looks up the address and builds the link when it sends the mail. Requests for unknown addresses
//! are stored in the same way and dropped when they are due. So the duration of a response does not
//! reveal which addresses are registered.
//!
//! For notices, it stores the mails until they are sent, and counts them.

use farhand_domain::error::Error;
use farhand_domain::mail::notice::{MAX_AGE_SECONDS, MailLimit, Notice, WINDOW_SECONDS};
use farhand_domain::time::Timestamp;
use farhand_sql::object::mailer as tables;
use farhand_sql::statement::Statement;
use futures_util::future;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;
use worker::{DurableObject, Env, Request, Response, SqlStorage, State, durable_object};

use crate::mail::{self, MailFailure, MailMessage};
use crate::objects::{self, alarm::Alarm, sqlite};
use crate::platform::log;
use crate::platform::{self, Config, internal};
use crate::store::database::Database;
use crate::store::reset_requests::{self, Recipient};

/// The name of the object.
const NAME: &str = "mailer";
/// The maximum number of mails that are sent concurrently. The platform allows six connections.
const MAX_CONCURRENT: i64 = 5;
/// Seconds before the first retry. Each further retry has a delay four times as long.
const MIN_RETRY_SECONDS: i64 = 5;
/// The maximum delay before a retry, in seconds.
const MAX_RETRY_SECONDS: i64 = 3_600;
/// After this many seconds without an outcome, a mail is tried again, because the object was
/// terminated during the try. No transport takes that long.
const TRY_SECONDS: i64 = 120;

/// A request message. The names of the fields tell the messages apart.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum MailerRequest {
    /// Send the mail for a request for a password reset.
    SendReset { request: Uuid },
    /// Send the mails of a notice.
    Notify { notice: Box<Notice> },
}

#[derive(Deserialize)]
struct QueuedMail {
    request: Uuid,
    /// The number of earlier tries.
    tries: i64,
}

/// Queues the mail for a request for a password reset.
///
/// # Errors
/// The object did not respond. The mail may never be sent.
pub async fn send_reset(env: &Env, request: Uuid) -> Result<(), Error> {
    objects::call(env, platform::MAILER, NAME, &MailerRequest::SendReset { request }).await
}

/// Queues the mails of a notice, up to their limits.
///
/// # Errors
/// The object did not respond. The mails may never be sent.
pub async fn notify(env: &Env, notice: Notice) -> Result<(), Error> {
    let message = MailerRequest::Notify { notice: Box::new(notice) };
    objects::call(env, platform::MAILER, NAME, &message).await
}

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
        objects::respond(&mut request, async |message: MailerRequest| {
            self.create_tables()?;
            match message {
                MailerRequest::SendReset { request } => self.queue(request).map_err(internal)?,
                MailerRequest::Notify { notice } => self.queue_notice(&notice)?,
            }
            self.set_alarm().await.map_err(internal)
        })
        .await
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.alarm.went_off();
        // An earlier version, which had fewer tables, may have queued the mails.
        self.create_tables()?;
        self.send_due().await?;
        Response::empty()
    }
}

impl Mailer {
    fn sql(&self) -> SqlStorage {
        self.state.storage().sql()
    }

    /// Runs a statement that returns no rows.
    fn exec(&self, statement: Statement) -> worker::Result<()> {
        sqlite::exec(&self.sql(), statement).map(drop)
    }

    fn create_tables(&self) -> worker::Result<()> {
        sqlite::exec_all(&self.sql(), tables::schema())
    }

    fn queue(&self, request: Uuid) -> worker::Result<()> {
        self.exec(tables::queue(request, platform::now()))
    }

    /// Queues a mail for each recipient that has not reached a limit.
    fn queue_notice(&self, notice: &Notice) -> Result<(), Error> {
        let now = platform::now();
        self.exec(tables::delete_ended_counts(now))?;
        for recipient in notice.distinct_recipients() {
            let limits = notice.limits(recipient);
            let counts =
                limits.iter().map(|limit| self.count(limit)).collect::<Result<Vec<_>, _>>()?;
            if limits.iter().zip(&counts).any(|(limit, count)| *count >= limit.max) {
                continue;
            }
            let ends_at = now.plus_seconds(WINDOW_SECONDS);
            for MailLimit { key, .. } in &limits {
                self.exec(tables::count_notice(key, ends_at))?;
            }
            let id = platform::new_id(now)?;
            let is_last = counts
                .first()
                .zip(limits.first())
                .is_some_and(|(count, limit)| count + 1 == limit.max);
            let mail = serde_json::to_string(&notice.mail(id, recipient, is_last))?;
            self.exec(tables::insert_notice(id, mail))?;
            self.queue(id)?;
        }
        Ok(())
    }

    /// The number of mails that a counter has in its window.
    fn count(&self, limit: &MailLimit) -> worker::Result<i64> {
        #[derive(Deserialize)]
        struct CountRow {
            count: i64,
        }
        let rows: Vec<CountRow> = sqlite::rows(&self.sql(), tables::notice_count(&limit.key))?;
        Ok(rows.first().map_or(0, |row| row.count))
    }

    /// The queued mail of a notice. Returns `None` for the id of a request for a password reset.
    fn notice_mail(&self, id: Uuid) -> Result<Option<MailMessage>, Error> {
        #[derive(Deserialize)]
        struct MailRow {
            mail: String,
        }
        let rows: Vec<MailRow> = sqlite::rows(&self.sql(), tables::notice(id))?;
        Ok(rows.first().map(|row| serde_json::from_str(&row.mail)).transpose()?)
    }

    /// Sends the mails that are due, and sets the alarm for the next one.
    async fn send_due(&self) -> worker::Result<()> {
        let now = platform::now();
        let due: Vec<QueuedMail> = sqlite::rows(&self.sql(), tables::due(now, MAX_CONCURRENT))?;
        for mail in &due {
            // Stored before the try. If the object is terminated, the mail is tried again, but not
            // immediately.
            self.postpone(mail, now.plus_seconds(TRY_SECONDS))?;
        }
        self.set_alarm().await?;
        future::try_join_all(due.iter().map(|mail| self.try_to_send(mail))).await?;
        self.set_alarm().await
    }

    /// Counts a try, and stores when the next try is due.
    fn postpone(&self, mail: &QueuedMail, due_at: Timestamp) -> worker::Result<()> {
        self.exec(tables::postpone(mail.request, mail.tries + 1, due_at))
    }

    fn remove(&self, request: Uuid) -> worker::Result<()> {
        self.exec(tables::delete_notice(request))?;
        self.exec(tables::remove(request))
    }

    async fn set_alarm(&self) -> worker::Result<()> {
        #[derive(Deserialize)]
        struct DueRow {
            due_at: Option<Timestamp>,
        }
        let rows: Vec<DueRow> = sqlite::rows(&self.sql(), tables::next_due())?;
        let Some(due_at) = rows.into_iter().next().and_then(|row| row.due_at) else {
            return Ok(());
        };
        self.alarm.set(&self.state.storage(), due_at).await
    }

    /// Tries to send a mail once. Removes the mail after a success or a permanent failure.
    /// Schedules the next try after a temporary failure.
    async fn try_to_send(&self, mail: &QueuedMail) -> worker::Result<()> {
        let log = |event: &'static str, cause: &str| {
            log::error(event, json!({"request": mail.request, "try": mail.tries + 1}), &cause);
        };
        match self.send(mail.request).await {
            Ok(()) => self.remove(mail.request),
            Err(MailFailure::Permanent(cause)) => {
                log("mail_refused", &cause);
                self.remove(mail.request)
            }
            Err(MailFailure::Temporary(cause)) => {
                log("mail_not_sent_yet", &cause);
                self.postpone(mail, platform::now().plus_seconds(retry_after(mail.tries)))
            }
        }
    }

    /// Sends the mail of a notice or for a request for a password reset. Succeeds without a mail if
    /// the request has no recipient: its address is unknown, or the request was used or has expired.
    async fn send(&self, request: Uuid) -> Result<(), MailFailure> {
        let temporary = |error: Error| MailFailure::Temporary(error.detail.into_owned());
        let now = platform::now();
        if let Some(mail) = self.notice_mail(request).map_err(temporary)? {
            let is_old = mail.date.plus_seconds(MAX_AGE_SECONDS) <= now;
            return mail::send(&self.env, &mail).await.map_err(|failure| match failure {
                MailFailure::Temporary(cause) if is_old => MailFailure::Permanent(cause),
                failure => failure,
            });
        }
        // The id of a request does not say its workspace.
        let cell = Database::cell(&self.env);
        let recipient = reset_requests::recipient(&cell, request, now).await.map_err(temporary)?;
        let Some(recipient) = recipient else { return Ok(()) };
        let key = platform::secret_key(&self.env).map_err(temporary)?.reset_key(request);
        let base_url = Config::from_env(&self.env).base_url_of(&recipient.workspace);
        let link = format!("{base_url}/api/auth/reset-password/confirm/{}/", key.expose());
        mail::send(&self.env, &reset_message(request, recipient, &link)).await
    }
}

/// The seconds until the next try. `tries` is the number of tries before the try that just failed.
fn retry_after(tries: i64) -> i64 {
    let exponent = u32::try_from(tries).unwrap_or(0).min(10);
    (MIN_RETRY_SECONDS << (2 * exponent)).min(MAX_RETRY_SECONDS)
}

/// The mail for a request. Every try sends the same mail with the same id, so that mail servers and
/// readers can recognise a duplicate.
fn reset_message(id: Uuid, recipient: Recipient, link: &str) -> MailMessage {
    let Recipient { workspace, workspace_name, username, email, requested_at, expires_at } =
        recipient;
    let until = expires_at.to_rfc_5322();
    let text = format!(
        "Somebody asked for a new password for the account {username} in the workspace {workspace_name} ({workspace}).\n\
         If it was you, choose one here:\n\n{link}\n\n\
         The link works once, and until {until}. It signs out every session of the account.\n\
         If it was not you, you need not do anything: your password stays as it is.\n"
    );
    MailMessage {
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
    fn the_delay_between_tries_grows_to_an_hour() {
        assert_eq!([0, 1, 2, 3, 4, 5, 100].map(retry_after), [5, 20, 80, 320, 1280, 3600, 3600]);
    }
}
