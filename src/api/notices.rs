//! Mails about acts with which an intruder could take an account (contract 4.16).

use farhand_domain::access::caller::{Caller, CredentialKind};
use farhand_domain::mail::notice::{Notice, NoticeKind};
use serde_json::json;

use crate::http::request::Call;
use crate::objects::mailer;
use crate::platform::log;
use crate::store::users;

/// Who gets the mail beside the named addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience {
    /// Nobody else.
    Named,
    /// All active superusers of the workspace.
    Superusers,
}

impl Audience {
    /// The audience of an act that needs no password: an API token that was stolen can do it, so
    /// all superusers get a mail.
    pub fn of_act(caller: &Caller) -> Self {
        match caller.kind {
            CredentialKind::ApiToken => Self::Superusers,
            CredentialKind::Session => Self::Named,
        }
    }
}

/// A notice of an act of the caller on an account.
pub fn notice_of(
    call: &Call,
    caller: &Caller,
    kind: NoticeKind,
    account: &str,
    recipients: &[&str],
) -> Notice {
    Notice {
        kind,
        workspace_id: caller.workspace_id,
        workspace: call.workspace().unwrap_or_default().to_owned(),
        account: account.to_owned(),
        actor: caller.username.clone(),
        remote_ip: call.remote_ip(),
        at: call.now,
        recipients: recipients.iter().map(|address| (*address).to_owned()).collect(),
    }
}

/// After the response: queues the mails. A failure is only logged, because the act has happened.
pub fn notify_later(call: &Call, mut notice: Notice, audience: Audience) {
    let (env, database) = (call.env.clone(), call.database.clone());
    let request_id = call.id.clone();
    call.context.wait_until(async move {
        let lost =
            |cause: &str| log::error("notice_lost", json!({"request_id": request_id}), &cause);
        if audience == Audience::Superusers {
            match users::addresses_of_superusers(&database, notice.workspace_id).await {
                Ok(addresses) => notice.recipients.extend(addresses),
                Err(error) => lost(&error.detail),
            }
        }
        if let Err(error) = mailer::notify(&env, notice).await {
            lost(&error.detail);
        }
    });
}
