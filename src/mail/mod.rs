//! Outgoing mail: through Cloudflare's e-mail binding, or an SMTP server if one is configured.

pub mod smtp;

use std::pin::pin;
use std::time::Duration;

use farhand_domain::mail::message::is_address;
pub use farhand_domain::mail::message::{MailFailure, MailMessage};
use farhand_domain::mail::smtp::MailWithEnvelope;
use futures_util::future::{Either, select};
use js_sys::Reflect;
use worker::{Delay, Env, SendEmailBuilder};

use crate::platform;

/// The timeout of one attempt to send a mail.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Error codes of the binding after which another attempt cannot succeed. All other codes stand for
/// limits, faults, and senders that are not set up yet.
const PERMANENT_CODES: [&str; 5] = [
    "E_VALIDATION_ERROR",
    "E_FIELD_MISSING",
    "E_CONTENT_TOO_LARGE",
    "E_RECIPIENT_NOT_ALLOWED",
    "E_RECIPIENT_SUPPRESSED",
];

/// Sends a mail, within [`SEND_TIMEOUT`]. Only the alarm of a Durable Object calls this, because a
/// request cannot wait that long.
///
/// # Errors
/// The mail was not sent, or its outcome is unknown. In the second case a retry may deliver the
/// mail twice.
pub async fn send(env: &Env, message: &MailMessage) -> Result<(), MailFailure> {
    message.check()?;
    let from = platform::mail_from(env);
    if !is_address(&from) {
        return Err(MailFailure::Temporary("MAIL_FROM is not an e-mail address".to_owned()));
    }
    let mut timeout = Delay::from(SEND_TIMEOUT);
    match platform::smtp_server(env)
        .map_err(|error| MailFailure::Temporary(error.detail.into_owned()))?
    {
        Some(server) => {
            let mime = message.mime(&from);
            smtp::deliver(
                server,
                MailWithEnvelope { from, to: message.to.clone(), mime },
                &mut timeout,
            )
            .await
        }
        None => before_timeout(&mut timeout, send_through_binding(env, &from, message)).await,
    }
}

/// Returns the result of `work`, or a temporary failure if the timeout ends first.
pub async fn before_timeout<T>(
    timeout: &mut Delay,
    work: impl Future<Output = Result<T, MailFailure>>,
) -> Result<T, MailFailure> {
    match select(pin!(work), timeout).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => {
            Err(MailFailure::Temporary(format!("not done within {} s", SEND_TIMEOUT.as_secs())))
        }
    }
}

/// Sends a mail through the binding. Cloudflare sets the headers `Date` and `Message-ID`.
async fn send_through_binding(
    env: &Env,
    from: &str,
    message: &MailMessage,
) -> Result<(), MailFailure> {
    let binding = env
        .send_email(platform::EMAIL)
        .map_err(|error| MailFailure::Temporary(error.to_string()))?;
    let mail =
        SendEmailBuilder::builder(from, &message.to, &message.subject).text(&message.text).build();
    let sent = binding.send_with_builder(&mail).await;
    sent.map(drop).map_err(|error| {
        let code = Reflect::get(&error, &"code".into())
            .ok()
            .and_then(|code| code.as_string())
            .unwrap_or_default();
        // An error without a code means that the platform failed before it checked the mail.
        let reason = if code.is_empty() { String::from(error.message()) } else { code.clone() };
        let text = format!("the binding: {reason}");
        if PERMANENT_CODES.contains(&code.as_str()) {
            MailFailure::Permanent(text)
        } else {
            MailFailure::Temporary(text)
        }
    })
}
