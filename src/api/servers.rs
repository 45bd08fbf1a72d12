//! Servers (contract 6).

use farhand_domain::error::Error;
use farhand_domain::secret::Purpose;
use farhand_domain::server;
use serde_json::{Value, json};

use super::{Listing, agent, list_of, without};
use crate::caller::Credential;
use crate::platform::{self, internal};
use crate::request::Call;
use crate::response::Reply;
use crate::store::db::Failure;
use crate::store::servers::{self, OBJECT, REACHABLE};

/// `GET /api/servers/` and `/api/servers/servers/`: those that the caller reaches, newest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    let listing = Listing { object: OBJECT, from: "servers s", condition: REACHABLE, order: "s.id DESC" };
    list_of(call, listing, |query| without(query, &["name", "is_connected", "search", "ordering"])).await
}

/// `GET /api/servers/servers/<id>/`: a server that the caller reaches; for an agent, with `-`, its own.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    if call.is_agent() {
        return agent::own_server(call).await;
    }
    let credential = Credential::of(call)?;
    let id = credential.checked(call.path_id(Error::not_found)).await?;
    let sql = format!("(SELECT {OBJECT} FROM servers s WHERE s.id = ?5 AND {REACHABLE})");
    let (_, server) = credential.read(&sql, vec![id.into()]).await?;
    server.map(Reply::ok_text).ok_or_else(Error::not_found)
}

/// `POST /api/servers/`: makes a server, if the caller is staff; the one answer that has the agent's key.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.fields_of_user().await?;
    let credential = Credential::of(call)?;
    let input = fields.and_then(|mut fields| {
        let name = server::read_name(&mut fields);
        if fields.value("groups").is_some_and(|groups| *groups != json!([])) {
            fields.reject("groups", "Not supported yet.");
        }
        fields.finish_with(name)
    });
    let name = match input {
        Ok(name) => name,
        // The caller's right comes before the input (contract 3, order of refusals).
        Err(error) => {
            let caller = credential.check().await?;
            return Err(if caller.is_staff_or_superuser() { error } else { Error::permission_denied() });
        }
    };
    let (id, key) = (platform::new_id(call.now)?, platform::new_secret()?);
    let key_hash = platform::pepper(&call.env)?.hash(Purpose::AgentKey, &key);
    let new = servers::New { id, name: &name, key_hash: &key_hash };
    let statements = vec![servers::insert(&credential, &new), servers::select(&credential, id)];
    let (_, bodies) = credential.write(statements).await.map_err(|failure| match failure {
        Failure::NotUnique(_) => Error::field("name", "A server with this name already exists."),
        other => other.into(),
    })?;
    let body = bodies.into_iter().flatten().next_back().ok_or_else(Error::permission_denied)?;
    let mut server: Value = serde_json::from_str(&body).map_err(internal)?;
    server["install"] = json!(server::install_commands(&call.origin, id, &key));
    server["key"] = json!(key.expose());
    Reply::created(&server)
}
