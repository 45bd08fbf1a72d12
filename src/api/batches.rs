//! Batches: list and read (contract 13.5 and 13.6).

use farhand_domain::batch_list::BatchList;
use farhand_domain::error::Error;

use super::{any_caller, list_page, retrieve_one};
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::store::batch_reads;

/// `GET /api/events/batches/`: the batches that the caller can read, newest first.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    list_page(call, any_caller, |query, _| {
        BatchList::from_query(query).map(|list| batch_reads::list(&list))
    })
    .await
}

/// `GET /api/events/batches/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    retrieve_one(call, any_caller, call.path_id(Error::not_found), batch_reads::by_id).await
}
