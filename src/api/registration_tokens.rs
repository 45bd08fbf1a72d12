//! Registration tokens (contract 6.4), and the registration of servers with them (agent-protocol
//! 1.2).

use farhand_domain::access::api_token;
use farhand_domain::access::registration_token::{NewRegistrationToken, Registration};
use farhand_domain::audit::event::add_ids;
use farhand_domain::error::{self, Error};
use farhand_domain::fleet::fingerprint;
use farhand_domain::fleet::installer;
use farhand_domain::secret::{Purpose, credential_hash};
use serde_json::{Value, json};

use super::idempotency::{self, Creation, CreationOutcome, ResourceKind};
use super::{
    list_page, location, require_staff, retrieve_one, servers as api_servers, staff_only_error,
};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform;
use crate::store::registration_tokens::{self, RegisteringServer};
use crate::store::servers;

/// `GET /api/servers/registration-tokens/`: the tokens of the workspace, newest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    list_page(call, require_staff, |_, _| Ok(registration_tokens::list())).await
}

/// `GET /api/servers/registration-tokens/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    retrieve_one(call, require_staff, call.path_id(Error::not_found), registration_tokens::by_id)
        .await
}

/// The path and the replay source of new registration tokens.
const RESOURCE: ResourceKind = ResourceKind {
    collection: "/api/servers/registration-tokens/",
    source: registration_tokens::REPLAY,
    hidden: &["key", "install"],
};

/// `POST /api/servers/registration-tokens/`. Only this response contains the key and the install
/// command. The address in the command comes from the configuration, never from the Host header.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let now = call.now;
    let fields = call.user_fields().await?;
    let body = idempotency::canonical_body(&fields);
    let credential = Credential::from_request(call)?;
    let input = fields.and_then(|fields| NewRegistrationToken::read(fields, now));
    let groups = input.as_ref().map_or(&[][..], |new| &new.groups);
    let (caller, problem) = credential.read(servers::check_groups(groups)).await?;
    // The permission is checked before the input (contract 3.4).
    require_staff(&caller)?;
    let mut new = input?;
    let creation = Creation::from_request(call, &RESOURCE, body)?;
    if let Some((_, reply)) = creation.replay(&credential).await? {
        return Ok(reply);
    }
    let limited = caller.token_expires_at().map_or(Ok(()), |limit| new.limit_expiry(limit));
    let groups = api_servers::group_error(problem.as_deref()).map_or(Ok(()), Err);
    error::combine(groups, limited)?;
    let key = platform::new_secret()?;
    let key_hash = credential_hash(Purpose::RegistrationToken, &key);
    let id = platform::new_id(now)?;
    let event = call.audit_event()?.with_object(Some(id.to_string()), Some(&new.name));
    let mut details = json!({
        "expires_at": new.expires_at,
        "uses": new.uses,
        "name_pattern": new.name_pattern,
        "networks": new.networks,
        "approval": new.approval,
        "labels": new.labels,
        "label_keys": new.label_keys,
    });
    add_ids(&mut details, "groups", &new.groups);
    let transaction = registration_tokens::insert(
        &credential.scope,
        id,
        &new,
        &key_hash,
        &event.details(details),
    )?;
    match creation.write(&credential, &id.to_string(), transaction).await? {
        CreationOutcome::Created(_, token) => {
            let mut token: Value = serde_json::from_str(&token)?;
            let service = call.config.base_url_of(call.workspace()?);
            token["install"] = json!(installer::registration_command(&service, &key));
            token["key"] = json!(key.expose());
            Reply::created(&token, location(call, RESOURCE.collection, id))
        }
        CreationOutcome::Refused(caller) => {
            require_staff(&caller)?;
            // Another request shortened the caller's own token after the first check.
            let limit = caller.token_expires_at().ok_or_else(staff_only_error)?;
            Err(api_token::outlives("expires_at", limit))
        }
        CreationOutcome::Replayed(reply) => Ok(reply),
    }
}

/// `DELETE /api/servers/registration-tokens/<id>/`.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let event = call.audit_event()?.with_object(Some(id.to_string()), None);
    let (caller, deleted) =
        credential.write(registration_tokens::delete(&credential.scope, id, &event)?).await?;
    require_staff(&caller)?;
    deleted.map(|_| Reply::no_content()).ok_or_else(Error::not_found)
}

/// `POST /api/servers/servers/register/`: an agent registers its host as a server (agent-protocol
/// 1.2).
///
/// The server has no owner, and joins the groups of the token. If the name is in use, a number is
/// appended.
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
        // The token is checked before the input (contract 3.4).
        Err(error) => {
            let remote_ip = call.remote_ip();
            registration_tokens::check_registration(
                &call.database,
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
    let event = call.audit_event()?.with_object(Some(id.to_string()), None);
    let (fingerprint, remote_ip) = (fingerprint::from_key(&key), call.remote_ip());
    let new = RegisteringServer {
        id,
        key_hash: &key_hash,
        fingerprint: &fingerprint,
        registration: &registration,
        remote_ip: &remote_ip,
        event: &event,
    };
    let registered =
        registration_tokens::register(&call.database, &workspace, &token, new, call.now).await?;
    let Some(registered) = registered else {
        let requested = (Some(&registration), remote_ip.as_str());
        registration_tokens::check_registration(
            &call.database,
            &workspace,
            &token,
            requested,
            call.now,
        )
        .await?;
        return Err(Error::field(
            "name",
            "All numbers that can be appended to this name are in use.",
        ));
    };
    call.audited_chains.borrow_mut().push(registered.workspace_id);
    api_servers::init_object(call, registered.workspace_id, id).await?;
    let answer = json!({"id": id, "key": key.expose(), "name": registered.name});
    Reply::created(&answer, location(call, api_servers::SERVERS, id))
}
