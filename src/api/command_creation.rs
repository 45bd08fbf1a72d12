//! Creation of commands (contract 7.2 to 7.4).

use farhand_domain::access::acl::Acl;
use farhand_domain::access::caller::Caller;
use farhand_domain::access::rights::{CommandPermissions, default_account, run_as_rule};
use farhand_domain::audit::event::AuditObject;
use farhand_domain::command::audit::denial_details;
use farhand_domain::command::end::Denial;
use farhand_domain::command::object::{self, OrderedCommand};
use farhand_domain::command::request::{Command, CommandSpec, IDEMPOTENCY_KEY_TTL, NewCommand};
use farhand_domain::command::script::{ScriptVersion, unknown_script};
use farhand_domain::error::{Code, Error, ErrorKind};
use farhand_domain::fleet::labels::Labels;
use farhand_domain::secret::{Guessable, SecretKey};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::commands::{find, find_endable};
use super::wait::{MAX_WAIT_SECONDS, needs_recheck, preferred_wait};
use super::{idempotency, location};
use crate::auth::credential::Credential;
use crate::http::request::{Call, DenialDetails};
use crate::http::response::Reply;
use crate::objects::server_link::calls::{
    self, Create, Created, IdempotencyKey, LinkRequest, ReadLiveFields, Refusal,
};
use crate::platform;
use crate::platform::log;
use crate::store::commands;

/// The server of a new command, if the caller can access it.
#[derive(Deserialize)]
pub struct TargetServer {
    pub id: Uuid,
    pub name: String,
    /// Whether the caller may name any account there (contract 5.6).
    pub any_account: bool,
    /// Whether the server waits for approval (contract 6.5).
    pub is_pending: bool,
    /// The account for commands without `username`, if the server has a default.
    pub default_username: Option<String>,
    pub labels: Labels,
}

impl TargetServer {
    /// The account for a command without `username`: the server's `default_username` if the caller
    /// may name that account, otherwise the caller's own username (contract 7.2).
    pub fn username_for(&self, caller: &Caller) -> String {
        let server_default = self.default_username.as_deref();
        default_account(server_default, self.any_account, &caller.username).to_owned()
    }

    /// What the caller may run on this server, limited by the access control list of the caller's
    /// token.
    pub fn rights(&self, caller: &Caller) -> CommandPermissions {
        CommandPermissions {
            username: caller.username.clone(),
            is_staff: caller.is_staff_or_superuser(),
            any_account: self.any_account,
            labels: self.labels.clone(),
            acl: caller.acl.clone(),
        }
    }
}

/// An earlier command of the caller with the same Idempotency-Key.
#[derive(Deserialize)]
struct EarlierCommand {
    id: Uuid,
    server: Uuid,
    /// The keyed hash of the request's body.
    body: String,
}

/// The JSON of [`commands::for_creation`].
#[derive(Deserialize)]
struct CreationLookup {
    target: Option<TargetServer>,
    /// The script that the request names, if it exists.
    script: Option<ScriptVersion>,
    earlier: Option<EarlierCommand>,
}

/// The maximum number of lookups of an Idempotency-Key by one request. A further lookup is needed
/// if another request uses the key after the first lookup.
const MAX_KEY_LOOKUPS: u32 = 3;

/// `POST /api/events/commands/` (contract 7.2).
///
/// 1. Reads the fields. Input errors are reported after the credential check (contract 3.4).
/// 2. Looks up the caller, the server, and an earlier command with the same Idempotency-Key, in one
///    round trip.
/// 3. Checks the run-as rule (contract 5.6) and the access control list of the API token (contract
///    4.12).
/// 4. Sends the command to the server's object. The object inserts it into D1 and delivers it when
///    it is due, or refuses it. Of concurrent requests with the same Idempotency-Key, one creates
///    the command, and the other requests get the same response (contract 3.11).
/// 5. With `Prefer: wait=N`, responds when the command has ended, or after N seconds
///    (contract 7.6).
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let wait = preferred_wait(&call.header("Prefer").unwrap_or_default());
    let input = fields.and_then(|fields| {
        let body = fields.canonical();
        Ok((
            NewCommand::read(fields, call.now, call.config.schedule_max_days)?,
            idempotency::read_key(call)?,
            body,
        ))
    });
    let (new, key, body) = credential.require_input(input).await?;
    let secret_key = platform::secret_key(&call.env)?;
    let hashes = key.map(|key| {
        let key_hash = secret_key.hash(Guessable::IdempotencyKey, key.expose());
        (key_hash, secret_key.hash(Guessable::Body, body.expose()))
    });

    for _ in 0..MAX_KEY_LOOKUPS {
        let key_hash = hashes.as_ref().map(|(key_hash, _)| key_hash);
        let since = call.now.plus_seconds(-IDEMPOTENCY_KEY_TTL);
        let (caller, found) = credential
            .find(commands::for_creation(&new.server, new.spec.script.as_ref(), key_hash, since))
            .await?;
        let CreationLookup { target, script, earlier } =
            found.ok_or_else(|| Error::internal("D1 returned no row"))?;
        let key = hashes.clone().map(|(hash, body)| IdempotencyKey {
            hash: format!("{}/{hash}", caller.user_id),
            body,
        });
        let create = match target {
            // As with servers: if the access control list limits scripts, an unknown script gets
            // the same refusal as a script that is not in the list.
            Some(_) if new.spec.script.is_some() && script.is_none() => {
                if caller.acl.as_ref().is_some_and(Acl::limits_scripts) {
                    return Err(Error::acl_not_allowed());
                }
                Err(unknown_script())
            }
            Some(target) => {
                Ok(authorize(call, &new, &caller, (target, script), key.clone(), wait)?)
            }
            // If the access control list names servers, an unknown server gets the same refusal as
            // a server that is not in the list. So the response does not reveal which servers
            // exist.
            None if caller.acl.as_ref().is_some_and(Acl::limits_servers) => {
                return Err(Error::acl_not_allowed());
            }
            None => Err(Refusal::NoServer.into()),
        };
        let replayed = match (earlier, key) {
            (Some(earlier), Some(key)) => {
                replay(call, &credential, earlier, key, create.is_ok()).await?
            }
            _ => None,
        };
        let mut submitted = match replayed {
            Some(created) => Ok(created),
            None => submit(call, create?).await?,
        };
        match (recheck_permission(call, &credential, &submitted, wait).await, &mut submitted) {
            // The command was accepted. After an error, the client would send it again. The output
            // is left out, because the credential may have been revoked during the wait.
            (Err(error), Ok(created)) if error.kind == ErrorKind::Internal => {
                log::error(
                    "not_rechecked",
                    json!({"command": created.command.get("id")}),
                    &error.detail,
                );
                created.command.insert("result".into(), Value::Null);
            }
            (rechecked, _) => rechecked?,
        }
        match submitted {
            Ok(created) => {
                let reply = created_reply(call, &created)?;
                return Ok(match wait {
                    Some(seconds) => reply.header("Preference-Applied", format!("wait={seconds}")),
                    None => reply,
                });
            }
            Err(Refusal::KeyInUse) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Err(Refusal::KeyInUse.into())
}

/// The stored response to an earlier request with the same Idempotency-Key. Returns `None` if the
/// earlier request created nothing. Then this request may create the command.
///
/// If the server or the script that this request names does not exist for the caller
/// (`can_create` is false), the caller must be able to read the earlier command.
async fn replay(
    call: &Call,
    credential: &Credential<'_>,
    earlier: EarlierCommand,
    key: IdempotencyKey,
    can_create: bool,
) -> Result<Option<Created>, Error> {
    let is_same = earlier.body == key.body;
    let readable = if can_create {
        None
    } else {
        let readable = readable_body(credential, earlier.id).await?;
        let Some(body) = readable.filter(|_| is_same) else { return Ok(None) };
        Some(body)
    };
    if !is_same {
        return Err(Refusal::KeyReused.into());
    }
    match calls::call_or_refusal::<Created>(&call.env, earlier.server, &LinkRequest::Replay(key))
        .await?
    {
        Ok(created) => return Ok(Some(created)),
        Err(Refusal::NotFound | Refusal::KeyInUse) => {}
        Err(refusal) => return Err(refusal.into()),
    }
    // The server of the earlier command was deleted, and its object no longer has the response.
    let command = readable.map(|body| serde_json::from_str(&body)).transpose()?;
    Ok(command.map(|command| Created { command, replayed: true }))
}

/// The JSON of an earlier command, if the caller can still read it, and if the access control list
/// of the API token allows it.
async fn readable_body(credential: &Credential<'_>, id: Uuid) -> Result<Option<String>, Error> {
    match find_endable(credential, id).await {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        found => found.map(|(_, body)| Some(body)),
    }
}

/// 201 with the command, new or replayed.
fn created_reply(call: &Call, created: &Created) -> Result<Reply, Error> {
    let reply = Reply::created(
        &OrderedCommand(&created.command),
        location(call, "/api/events/commands/", created.id()?),
    )?;
    Ok(if created.replayed { reply.header("Idempotent-Replayed", "true") } else { reply })
}

/// If the response waited, checks the credential again, and whether it can read the command
/// (contract 7.6). A replay may have waited for the first request, even without `Prefer: wait`.
async fn recheck_permission(
    call: &Call,
    credential: &Credential<'_>,
    submitted: &Result<Created, Refusal>,
    wait: Option<u32>,
) -> Result<(), Error> {
    let replay_wait =
        submitted.as_ref().is_ok_and(|created| created.replayed).then_some(MAX_WAIT_SECONDS);
    if !needs_recheck(call, replay_wait.or(wait)) {
        return Ok(());
    }
    let credential = credential.after_wait();
    match submitted {
        Ok(created) => find(&credential, created.id()?).await.map(drop),
        Err(_) => credential.check().await.map(drop),
    }
}

/// Sends a new command to the server's object. The inner error is the object's refusal.
async fn submit(call: &Call, create: Create) -> Result<Result<Created, Refusal>, Error> {
    let (command, server) = (create.command.clone(), create.command.server);
    let submitted =
        calls::call_or_refusal(&call.env, server, &LinkRequest::Create(Box::new(create))).await;
    let Err(error) = submitted else { return submitted };
    // The call failed, but the object may have accepted the command. Then an error would make the
    // client send it again.
    let live = LinkRequest::ReadLiveFields(ReadLiveFields { id: command.id, wait: None });
    let Ok(live) = calls::call::<Map<String, Value>>(&call.env, server, &live).await else {
        return Err(error);
    };
    log::error("answer_cut_off", json!({"command": command.id}), &error.detail);
    Ok(Ok(Created { command: object::command_json(&command, live), replayed: false }))
}

/// Builds the new command, if the caller may run it on the server (contract 5.6 and 4.12). If the
/// command is refused, stores details for the audit event in `call`.
fn authorize(
    call: &Call,
    new: &NewCommand,
    caller: &Caller,
    (target, script): (TargetServer, Option<ScriptVersion>),
    key: Option<IdempotencyKey>,
    wait: Option<u32>,
) -> Result<Create, Error> {
    let rights = target.rights(caller);
    let (spec, valid) = new.spec.frozen(script.as_ref());
    let command = Command {
        id: platform::new_id(call.now)?,
        shell: spec.shell,
        line: spec.line.clone(),
        argv: spec.argv.clone(),
        script: spec.script_ref(),
        username: spec.username.clone().unwrap_or_else(|| target.username_for(caller)),
        groupname: spec.groupname.clone(),
        server: target.id,
        server_name: target.name,
        requested_by: Some(caller.requester()),
        batch: None,
    };
    let origin = caller.origin(call.remote_ip(), spec.has_inputs());
    let event =
        caller.attribute(call.audit_event()?).with_object(Some(command.id.to_string()), None);
    let key_of_hashes = platform::secret_key(&call.env)?;
    let event = event.details(audit_details(&command, &spec, new, &key_of_hashes)?);
    rights.allow(&command, &origin).map_err(|denial| {
        let object = AuditObject::new("command", None, None);
        let details = denial_details(event.details.clone(), &key_of_hashes);
        call.denial_details.set(Some(DenialDetails { object: Some(object), details }));
        match denial {
            Denial::Acl => {
                let limit = rights.refusal(&command, origin.has_inputs);
                limit.map_or_else(Error::acl_not_allowed, Error::acl_refusal)
            }
            denial => Error::permission_denied(run_as_rule(denial)),
        }
    })?;
    // The permission is checked before the input (contract 3.4).
    valid?;
    if target.is_pending {
        let detail = "The server waits for approval: staff compare its fingerprint and approve it.";
        return Err(Error::new(ErrorKind::Conflict, detail).with_code(Code::ServerPending));
    }
    Ok(Create {
        workspace_id: caller.workspace_id,
        command,
        origin,
        inputs: spec.inputs,
        script: script.map(ScriptVersion::payload),
        timeout: spec.timeout,
        scheduled_at: new.scheduled_at,
        expires_at: new.expires_at,
        on_offline: new.on_offline,
        wait,
        key,
        event,
    })
}

/// The details of the audit event of a command.
fn audit_details(
    command: &Command,
    spec: &CommandSpec,
    new: &NewCommand,
    key: &SecretKey,
) -> Result<Value, Error> {
    let mut details = spec.audit_details(key)?;
    details["server"] = json!({"id": command.server, "name": command.server_name});
    details["username"] = json!(command.username);
    details["scheduled_at"] = json!(new.scheduled_at);
    Ok(details)
}
