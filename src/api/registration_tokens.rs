//! Registration tokens, for staff, and the servers that agents register with them (contract 6.4;
//! agent-protocol 1.2).

use farhand_domain::audit::show_ids;
use farhand_domain::error::Error;
use farhand_domain::fingerprint;
use farhand_domain::registration_token::{NewRegistrationToken, Registration};
use farhand_domain::secret::{Purpose, credential_hash};
use serde_json::{Value, json};

use super::idempotency::{self, Kept, Once, Written};
use super::{location, one_of, page_of, servers as api_servers, staff, staff_only};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform;
use crate::store::registration_tokens::{self, NewServer};
use crate::store::servers;

/// `GET /api/servers/registration-tokens/`: the workspace's, newest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    page_of(call, staff, |_, _| Ok(registration_tokens::list())).await
}

/// `GET /api/servers/registration-tokens/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    one_of(call, staff, call.path_id(Error::not_found), registration_tokens::one).await
}

/// What a replay of a creation shows.
const KEPT: Kept = Kept {
    collection: "/api/servers/registration-tokens/",
    source: registration_tokens::REPLAY,
    hidden: &["key"],
};

/// `POST /api/servers/registration-tokens/`: the one answer that has the key.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let now = call.now;
    let fields = call.user_fields().await?;
    let body = idempotency::body_of(&fields);
    let credential = Credential::from_request(call)?;
    let input = fields.and_then(|fields| NewRegistrationToken::read(fields, now));
    let groups = input.as_ref().map_or(&[][..], |new| &new.groups);
    let (caller, problem) = credential.read(servers::problem_of_groups(groups)).await?;
    // The caller's right comes before the input (contract 3.4).
    staff(&caller)?;
    let new = input?;
    let once = Once::of(call, &KEPT, body)?;
    if let Some((_, reply)) = once.replay(&credential).await? {
        return Ok(reply);
    }
    if let Some(error) = api_servers::bad_groups(problem.as_deref()) {
        return Err(error);
    }
    let key = platform::new_secret()?;
    let key_hash = credential_hash(Purpose::RegistrationToken, &key);
    let id = platform::new_id(now)?;
    let event = call.audit_event()?.on(Some(id.to_string()), Some(&new.name));
    let mut details = json!({
        "expires_at": new.expires_at,
        "uses": new.uses,
        "name_pattern": new.name_pattern,
        "networks": new.networks,
        "approval": new.approval,
    });
    show_ids(&mut details, "groups", &new.groups);
    let batch = registration_tokens::insert(
        &credential.scope,
        id,
        &new,
        &key_hash,
        &event.details(details),
    )?;
    match once.write(&credential, &id.to_string(), batch).await? {
        Written::Created(_, token) => {
            let mut token: Value = serde_json::from_str(&token)?;
            token["key"] = json!(key.expose());
            Reply::created(&token, location(call, KEPT.collection, id))
        }
        Written::Refused(_) => Err(staff_only()),
        Written::Replayed(reply) => Ok(reply),
    }
}

/// `DELETE /api/servers/registration-tokens/<id>/`.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let event = call.audit_event()?.on(Some(id.to_string()), None);
    let (caller, deleted) =
        credential.write(registration_tokens::delete(&credential.scope, id, &event)?).await?;
    staff(&caller)?;
    deleted.map(|_| Reply::no_content()).ok_or_else(Error::not_found)
}

/// `POST /api/servers/servers/register/`: an agent makes a server of its host. Exactly 201
/// (agent-protocol 1.2).
///
/// The server has no owner and is in the token's groups. A name that is taken gets a number.
pub async fn register(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let key = call.user_token()?;
    if !key.is_token() {
        return Err(Error::invalid_token());
    }
    let token = credential_hash(Purpose::RegistrationToken, &key);
    let workspace = call.workspace()?.to_owned();
    let registration = match fields.and_then(Registration::read) {
        Ok(registration) => registration,
        Err(error) => {
            let remote_ip = call.remote_ip();
            registration_tokens::refusal(
                &call.env,
                &workspace,
                &token,
                (None, &remote_ip),
                call.now,
            )
            .await?;
            return Err(error);
        }
    };
    let (id, (key, key_hash)) = (platform::new_id(call.now)?, api_servers::new_key()?);
    let event = call.audit_event()?.on(Some(id.to_string()), None);
    let (fingerprint, remote_ip) = (fingerprint::of_key(&key), call.remote_ip());
    let new = NewServer {
        id,
        key_hash: &key_hash,
        fingerprint: &fingerprint,
        registration: &registration,
        remote_ip: &remote_ip,
        event: &event,
    };
    let registered =
        registration_tokens::register(&call.env, &workspace, &token, new, call.now).await?;
    let Some(registered) = registered else {
        let asked = (Some(registration.name.as_str()), remote_ip.as_str());
        registration_tokens::refusal(&call.env, &workspace, &token, asked, call.now).await?;
        return Err(Error::field(
            "name",
            "Servers of this name have all the numbers that there are.",
        ));
    };
    call.audited_chains.borrow_mut().push(registered.workspace_id);
    api_servers::adopt(call, registered.workspace_id, id).await?;
    let made = json!({"id": id, "key": key.expose(), "name": registered.name});
    Reply::created(&made, location(call, api_servers::SERVERS, id))
}
