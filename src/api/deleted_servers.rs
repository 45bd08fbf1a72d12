//! Deleted servers, until their purge (contract 6.6).

use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::fleet::server;
use serde_json::{Value, json};

use super::change::{find, retry};
use super::require_staff;
use super::servers::server_identity;
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::server_link::calls::{self, LinkRequest, Refusal, UndeleteServer};
use crate::store::deleted_servers::{self, DeletedServer};
use crate::store::servers;

/// `POST /api/servers/servers/<id>/undelete/`: staff restore a deleted server.
pub async fn undelete(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.optional_fields().await;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let input = fields.and_then(server::read_undeletion);
    let new_name = input.as_ref().ok().and_then(Option::as_deref);
    let attempt = async || {
        let (caller, found) =
            find::<DeletedServer>(&credential, deleted_servers::for_undeletion(id, new_name))
                .await?;
        require_staff(&caller)?;
        let name = input.clone()?.unwrap_or_else(|| found.name.clone());
        if found.is_name_taken {
            return Err(name_taken(&name));
        }
        let mut details = json!({});
        if name != found.name {
            details = json!({"name": name, "old": {"name": found.name}});
        }
        let event = caller
            .attribute(call.audit_event()?)
            .with_object(Some(id.to_string()), Some(&name))
            .details(details);
        let of = server_identity(call, found.workspace_id, id)?;
        let undelete = UndeleteServer { of, by: caller.user_id, name, event };
        let message = LinkRequest::UndeleteServer(undelete);
        match calls::call_or_refusal::<Value>(&call.env, id, &message).await? {
            Ok(_) => Ok(Some(())),
            // The next attempt finds the reason.
            Err(Refusal::NotPermitted | Refusal::NoServer) => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    };
    retry("server", attempt).await?;
    let (_, server) = credential.read(servers::by_id(id)).await?;
    server.map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// The 409 for an undeletion whose name another server has.
fn name_taken(name: &str) -> Error {
    let detail = format!("A server with the name {name} exists. Send another name.");
    Error::new(ErrorKind::Conflict, detail)
}
