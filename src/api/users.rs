//! Users (contract 5).

use farhand_domain::error::Error;

use crate::caller::Credential;
use crate::request::Call;
use crate::response::Reply;
use crate::store::users;

/// `GET /api/iam/users/-/`: the caller.
pub async fn current(call: &Call) -> Result<Reply, Error> {
    let object = users::OBJECT;
    let sql = format!("(SELECT {object} FROM users u WHERE u.id = me.user_id AND u.workspace_id = me.workspace_id)");
    let (_, user) = Credential::of(call)?.read(&sql, vec![]).await?;
    user.map(Reply::ok_text).ok_or_else(Error::not_found)
}
