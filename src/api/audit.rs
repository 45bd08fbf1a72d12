//! The audit log (contract 18, `docs/audit.md`). Staff read the log of their workspace. The
//! operator reads the log of the cell.

use farhand_domain::audit::event::{CELL, EventFilter, read_first_link};
use farhand_domain::error::Error;
use farhand_domain::http::page::Page;

use super::{envelope, list_page, operator, require_staff};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::audit_sealer;
use crate::store::audit;

/// `GET /api/audit/events/`: the events of the workspace, newest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    list_page(call, require_staff, |query, _| EventFilter::from_query(query).map(audit::list)).await
}

/// `POST /api/audit/verify/`: verifies the audit chain of the workspace, beginning with the entry
/// `first_link`.
pub async fn verify(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let caller = Credential::from_request(call)?.check().await?;
    // The permission is checked before the input (contract 3.4).
    require_staff(&caller)?;
    let first = fields.and_then(read_first_link)?;
    Reply::ok(&audit_sealer::verify(&call.env, caller.workspace_id, first).await?)
}

/// `GET /operator/audit/events/`: the events of the cell, newest first.
pub async fn list_of_cell(call: &Call) -> Result<Reply, Error> {
    operator::authorize(call).await?;
    let query = call.query();
    let (page, filter) =
        farhand_domain::error::combine(Page::from_query(&query), EventFilter::from_query(&query))?;
    let (items, count) = audit::list_of_cell(&call.database, CELL, filter, page).await?;
    envelope(call, &query, page, items, count)
}

/// `POST /operator/audit/verify/`: verifies the audit chain of the cell, beginning with the entry
/// `first_link`.
pub async fn verify_cell(call: &mut Call) -> Result<Reply, Error> {
    if let Err(error) = operator::authorize(call).await {
        call.discard().await;
        return Err(error);
    }
    let first = call.fields().await.and_then(read_first_link)?;
    Reply::ok(&audit_sealer::verify(&call.env, CELL, first).await?)
}
