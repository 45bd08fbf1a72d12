//! Creation of commands (contract 7.2 to 7.4).

use farhand_domain::audit::{Object, show_ids, shown_line};
use farhand_domain::caller::Caller;
use farhand_domain::command::{Command, KEY_LASTS, NewCommand, Origin, Requester};
use farhand_domain::command_end::Denial;
use farhand_domain::command_object::{self, Shown};
use farhand_domain::error::{Code, Error, Kind};
use farhand_domain::output::sha256;
use farhand_domain::rights::Rights;
use farhand_domain::secret::{Guessable, SecretKey};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::commands::{find, find_endable};
use super::wait::{MAX_WAIT, has_waited, preferred_wait};
use super::{idempotency, location};
use crate::auth::credential::Credential;
use crate::http::request::{Call, DenialDetails};
use crate::http::response::Reply;
use crate::objects::server_link::calls::{self, Ask, Create, Created, Key, Live, Refusal};
use crate::platform;
use crate::platform::log;
use crate::store::commands;

/// A server that a new command names, as far as the caller may use it.
#[derive(Deserialize)]
pub struct Target {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Whether the caller may name any remote account there.
    pub any_account: bool,
    /// Whether it waits for approval.
    pub is_pending: bool,
    /// The remote account of commands that name none.
    pub default_username: Option<String>,
}

impl Target {
    /// The remote account of a command that names none: the server's, if the caller may name that
    /// one, else the caller's own.
    pub fn username_for(&self, caller: &Caller) -> String {
        let may_name = |name: &&String| self.any_account || **name == caller.username;
        self.default_username.as_ref().filter(may_name).unwrap_or(&caller.username).clone()
    }

    /// What the caller may run there, with their own access control list.
    pub fn rights(&self, caller: &Caller) -> Rights {
        Rights {
            username: caller.username.clone(),
            is_staff: caller.is_staff_or_superuser(),
            any_account: self.any_account,
            acl: caller.acl.clone(),
        }
    }
}

/// A command that was made with the same Idempotency-Key.
#[derive(Deserialize)]
struct Used {
    id: Uuid,
    server: Uuid,
    body: String,
}

/// What is looked up for a new command.
#[derive(Deserialize)]
struct Found {
    target: Option<Target>,
    used: Option<Used>,
}

/// How often a request looks for the command that took its Idempotency-Key.
const LOOKS_FOR_KEY: u32 = 3;

/// `POST /api/events/commands/`.
///
/// 1. Reads the fields; what is wrong with them is told after the credential's own refusal.
/// 2. Looks up the caller, the server and an earlier command with the same Idempotency-Key in one
///    round trip.
/// 3. Checks the run-as rule (contract 5.6), and the API token's access control list (contract
///    4.12).
/// 4. Asks the server's object, which records the command in D1 and hands it to the agent when it
///    is due, or refuses. Of the requests with one Idempotency-Key one makes the command, and the
///    others get its answer.
/// 5. With `Prefer: wait=N`, the answer comes when the command is handled, or after N seconds.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let wait = preferred_wait(&call.header("Prefer").unwrap_or_default());
    let input = fields.and_then(|fields| {
        let body = fields.canonical();
        Ok((
            NewCommand::read(fields, call.now, call.config.schedule_max_days)?,
            idempotency::key_of(call)?,
            body,
        ))
    });
    let (new, key, body) = credential.require_input(input).await?;
    let secret_key = platform::secret_key(&call.env)?;
    let hashes = key.map(|key| {
        let key_hash = secret_key.hash(Guessable::IdempotencyKey, key.expose());
        (key_hash, secret_key.hash(Guessable::Body, body.expose()))
    });

    for _ in 0..LOOKS_FOR_KEY {
        let key_hash = hashes.as_ref().map(|(key_hash, _)| key_hash);
        let since = call.now.plus_seconds(-KEY_LASTS);
        let (caller, found) =
            credential.find(commands::for_creation(&new.server, key_hash, since)).await?;
        let Found { target, used } = found.ok_or_else(|| Error::internal("D1 gave no row"))?;
        let key = hashes
            .clone()
            .map(|(hash, body)| Key { hash: format!("{}/{hash}", caller.user_id), body });
        let create = match target {
            Some(target) => Some(authorize(call, &new, &caller, target, key.clone(), wait)?),
            // What a token's list does not name is refused alike, whether or not there is such a
            // server.
            None if caller.acl.as_ref().is_some_and(|acl| acl.servers.is_some()) => {
                return Err(Error::acl_not_allowed());
            }
            None => None,
        };
        let replayed = match (used, key) {
            (Some(used), Some(key)) => {
                replay(call, &credential, used, key, create.is_some()).await?
            }
            _ => None,
        };
        let mut taken = match replayed {
            Some(created) => Ok(created),
            None => take(call, create.ok_or(Refusal::NoServer)?).await?,
        };
        match (recheck(call, &credential, &taken, wait).await, &mut taken) {
            // The command was accepted, and an error would make the client send it again. Its
            // output is left out, as the credential may have been revoked.
            (Err(error), Ok(created)) if error.kind == Kind::Internal => {
                log::trouble(
                    "not_rechecked",
                    json!({"command": created.command.get("id")}),
                    &error.detail,
                );
                created.command.insert("result".into(), Value::Null);
            }
            (rechecked, _) => rechecked?,
        }
        match taken {
            Ok(created) => {
                let reply = created_reply(call, &created)?;
                return Ok(match wait {
                    Some(seconds) => reply.header("Preference-Applied", format!("wait={seconds}")),
                    None => reply,
                });
            }
            Err(Refusal::KeyTaken) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Err(Refusal::KeyTaken.into())
}

/// The first answer to an Idempotency-Key that was used, for those whom the command itself is still
/// for; `None` where nothing came of its request.
async fn replay(
    call: &Call,
    credential: &Credential<'_>,
    used: Used,
    key: Key,
    reaches_server: bool,
) -> Result<Option<Created>, Error> {
    let is_same = used.body == key.body;
    let shown = if reaches_server {
        None
    } else {
        let shown = still_shown(credential, used.id).await?;
        Some(shown.filter(|_| is_same).ok_or(Refusal::NoServer)?)
    };
    if !is_same {
        return Err(Refusal::KeyReused.into());
    }
    match calls::try_ask::<Created>(&call.env, used.server, &Ask::Replay(key)).await? {
        Ok(created) => return Ok(Some(created)),
        Err(Refusal::NotFound | Refusal::KeyTaken) => {}
        Err(refusal) => return Err(refusal.into()),
    }
    // Its server is gone, and has taken the answer along.
    let command = shown.map(|body| serde_json::from_str(&body)).transpose()?;
    Ok(command.map(|command| Created { command, replayed: true }))
}

/// The command object of a command that the caller can still read, though not its server by the
/// name that a request has, and that the API token's list allows.
async fn still_shown(credential: &Credential<'_>, id: Uuid) -> Result<Option<String>, Error> {
    match find_endable(credential, id).await {
        Err(error) if error.kind == Kind::NotFound => Ok(None),
        found => found.map(|(_, body)| Some(body)),
    }
}

fn created_reply(call: &Call, created: &Created) -> Result<Reply, Error> {
    let reply = Reply::created(
        &Shown(&created.command),
        location(call, "/api/events/commands/", created.id()?),
    )?;
    Ok(if created.replayed { reply.header("Idempotent-Replayed", "true") } else { reply })
}

/// Checks again that the caller can read the command, if the answer waited. A replayed answer waits
/// for the first request.
async fn recheck(
    call: &Call,
    credential: &Credential<'_>,
    taken: &Result<Created, Refusal>,
    wait: Option<u32>,
) -> Result<(), Error> {
    let of_twin = taken.as_ref().is_ok_and(|created| created.replayed).then_some(MAX_WAIT);
    if !has_waited(call, of_twin.or(wait)) {
        return Ok(());
    }
    let credential = credential.after_wait();
    match taken {
        Ok(created) => find(&credential, created.id()?).await.map(drop),
        Err(_) => credential.check().await.map(drop),
    }
}

/// Has the server's object take a command.
async fn take(call: &Call, create: Create) -> Result<Result<Created, Refusal>, Error> {
    let (command, server) = (create.command.clone(), create.command.server);
    let taken = calls::try_ask(&call.env, server, &Ask::Create(Box::new(create))).await;
    let Err(error) = taken else { return taken };
    // Where it runs, an error would make the client send it again.
    let live = Ask::Live(Live { id: command.id, wait: None });
    let Ok(live) = calls::ask::<Map<String, Value>>(&call.env, server, &live).await else {
        return Err(error);
    };
    log::trouble("answer_cut_off", json!({"command": command.id}), &error.detail);
    Ok(Ok(Created { command: command_object::object(&command, live), replayed: false }))
}

/// The command that a request asks for, if the caller may run it on that server (contract 5.6 and
/// 4.12).
fn authorize(
    call: &Call,
    new: &NewCommand,
    caller: &Caller,
    target: Target,
    key: Option<Key>,
    wait: Option<u32>,
) -> Result<Create, Error> {
    let requester = Requester {
        id: caller.user_id,
        username: caller.username.clone(),
        email: caller.email.clone(),
    };
    let rights = target.rights(caller);
    let command = Command {
        id: platform::new_id(call.now)?,
        shell: new.shell,
        line: new.line.clone(),
        argv: new.argv.clone(),
        username: new.username.clone().unwrap_or_else(|| target.username_for(caller)),
        groupname: new.groupname.clone(),
        server: target.id,
        server_name: target.name,
        requested_by: Some(requester),
    };
    let origin = Origin {
        api_token: (caller.kind == farhand_domain::caller::Kind::ApiToken)
            .then_some(caller.credential_id),
        session: (caller.kind == farhand_domain::caller::Kind::Session)
            .then_some(caller.credential_id),
        remote_ip: call.remote_ip(),
        has_inputs: new.inputs.is_some(),
    };
    let event = caller.sign(call.audit_event()?).on(Some(command.id.to_string()), None);
    let event = event.details(told(&command, new, &platform::secret_key(&call.env)?)?);
    rights.allow(&command, &origin).map_err(|denial| {
        let object = Object::new("command", None, None);
        call.denial_details
            .set(Some(DenialDetails { object: Some(object), details: event.details.clone() }));
        match denial {
            Denial::Acl => {
                let limit =
                    rights.acl.as_ref().and_then(|acl| acl.refusal(&command, origin.has_inputs));
                limit.map_or_else(Error::acl_not_allowed, Error::acl_refusal)
            }
            denial => Error::permission_denied(rule_of(denial)),
        }
    })?;
    if target.is_pending {
        let detail = "The server waits for approval: staff compare its fingerprint and approve it.";
        return Err(Error::new(Kind::Conflict, detail).code(Code::ServerPending));
    }
    Ok(Create {
        workspace_id: caller.workspace_id,
        command,
        origin,
        inputs: new.inputs.clone(),
        timeout: new.timeout,
        scheduled_at: new.scheduled_at,
        expires_at: new.expires_at,
        on_offline: new.on_offline,
        wait,
        key,
        event,
    })
}

/// Who may do what a command was denied for (contract 5.6).
fn rule_of(denial: Denial) -> &'static str {
    match denial {
        Denial::Internal => "Only staff and superusers may use the shell internal.",
        _ => {
            "Only staff, the server's owner and managers and owners of its groups may name another account or a group."
        }
    }
}

/// What an audit event says about a command. Of its environment it has the names, and a keyed hash
/// of the values; of its standard input the length and a hash.
fn told(command: &Command, new: &NewCommand, key: &SecretKey) -> Result<Value, Error> {
    let mut told = json!({
        "server": {"id": command.server, "name": command.server_name},
        "shell": command.shell.as_str(),
        "line": shown_line(&command.line),
        "line_sha256": sha256(&command.line),
        "line_length": command.line.chars().count(),
        "username": command.username,
        "groupname": command.groupname,
        "scheduled_at": new.scheduled_at,
        "timeout": new.timeout,
    });
    let Some(inputs) = &new.inputs else { return Ok(told) };
    if let Some(stdin) = &inputs.stdin {
        (told["stdin_bytes"], told["stdin_sha256"]) = (json!(stdin.len()), json!(sha256(stdin)));
    }
    if let Some(cwd) = &inputs.cwd {
        told["cwd"] = json!(cwd);
    }
    if let Some(env) = &inputs.env {
        show_ids(&mut told, "env", &env.keys().collect::<Vec<_>>());
        let text = serde_json::to_string(env)?;
        told["env_hmac"] = json!(key.hash(Guessable::Environment, &text));
    }
    Ok(told)
}
