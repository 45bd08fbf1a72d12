//! Mail: to Cloudflare through its binding, or to the SMTP server of the configuration.

pub mod smtp;

use std::pin::pin;
use std::time::Duration;

use farhand_domain::mail::is_address;
pub use farhand_domain::mail::{Failure, Message};
use farhand_domain::smtp::Mail;
use futures_util::future::{Either, select};
use js_sys::Reflect;
use worker::{Delay, Env, SendEmailBuilder};

use crate::platform;

/// How long a try may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the binding answers where another try would be of no use. The others are limits, faults,
/// and a sender that is not set up yet.
const PERMANENT: [&str; 5] = [
    "E_VALIDATION_ERROR",
    "E_FIELD_MISSING",
    "E_CONTENT_TOO_LARGE",
    "E_RECIPIENT_NOT_ALLOWED",
    "E_RECIPIENT_SUPPRESSED",
];

/// Sends a mail. This takes half a minute at most; it is for a Durable Object's alarm, not for a
/// request.
///
/// # Errors
/// It was not sent, or that is not known: then the next try may send it once more.
pub async fn send(env: &Env, message: &Message) -> Result<(), Failure> {
    message.check()?;
    let from = platform::mail_from(env);
    if !is_address(&from) {
        return Err(Failure::Temporary("MAIL_FROM is not an e-mail address".to_owned()));
    }
    let mut too_late = Delay::from(PATIENCE);
    match platform::smtp_server(env)
        .map_err(|error| Failure::Temporary(error.detail.into_owned()))?
    {
        Some(server) => {
            let mime = message.mime(&from);
            smtp::deliver(server, Mail { from, to: message.to.clone(), mime }, &mut too_late).await
        }
        None => in_time(&mut too_late, through_binding(env, &from, message)).await,
    }
}

/// The outcome of some work, unless it comes too late.
pub async fn in_time<T>(
    too_late: &mut Delay,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match select(pin!(work), too_late).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => {
            Err(Failure::Temporary(format!("not done within {} s", PATIENCE.as_secs())))
        }
    }
}

/// Cloudflare makes the date and the Message-ID itself, and takes no others.
async fn through_binding(env: &Env, from: &str, message: &Message) -> Result<(), Failure> {
    let binding =
        env.send_email(platform::EMAIL).map_err(|error| Failure::Temporary(error.to_string()))?;
    let mail =
        SendEmailBuilder::builder(from, &message.to, &message.subject).text(&message.text).build();
    let sent = binding.send_with_builder(&mail).await;
    sent.map(drop).map_err(|error| {
        let code = Reflect::get(&error, &"code".into())
            .ok()
            .and_then(|code| code.as_string())
            .unwrap_or_default();
        // Without a code it is the platform that failed, before anybody looked at the mail.
        let why = if code.is_empty() { String::from(error.message()) } else { code.clone() };
        let text = format!("the binding: {why}");
        if PERMANENT.contains(&code.as_str()) {
            Failure::Permanent(text)
        } else {
            Failure::Temporary(text)
        }
    })
}
