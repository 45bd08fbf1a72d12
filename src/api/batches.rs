//! Batches: list, read, targets, outputs, cancel and kill (contract 13.5 to 13.10).

use farhand_domain::batch::list::{BatchList, TARGET_STATES, read_states};
use farhand_domain::error::{Code, Error, ErrorKind};
use farhand_domain::http::page::{MAX_SIZE, MAX_SIZE_OF_SERVERS};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{any_caller, list_page, list_page_up_to, retrieve_one};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::objects::batch::calls;
use crate::platform::log;
use crate::store::batches::Stop;
use crate::store::list::List;
use crate::store::{batch_reads, batch_targets, batches};

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

/// The JSON of a batch that the caller can read.
///
/// # Errors
/// The credential is not valid; 404.
pub async fn find(credential: &Credential<'_>, id: Uuid) -> Result<String, Error> {
    let (_, batch) = credential.read(batch_reads::by_id(id)).await?;
    batch.ok_or_else(Error::not_found)
}

/// Responds with a page of a list of a batch. If the batch does not exist, the list is empty, so an
/// empty list needs another read.
async fn list_of_batch(
    call: &Call,
    max_size: u64,
    list: impl Fn(Uuid, &farhand_domain::http::page::Query) -> Result<List, Error>,
) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let page = list_page_up_to(call, max_size, any_caller, |query, _| list(id, query)).await;
    match page {
        Ok((reply, count)) if count > 0 => Ok(reply),
        page => {
            find(&credential, id).await?;
            page.map(|(reply, _)| reply)
        }
    }
}

/// `GET /api/events/batches/<id>/targets/`: the targets, in the order in which they start.
pub async fn targets(call: &Call) -> Result<Reply, Error> {
    list_of_batch(call, MAX_SIZE_OF_SERVERS, |id, query| {
        let states = read_states(query, &TARGET_STATES)?;
        Ok(batch_targets::list(id, states.as_ref()))
    })
    .await
}

/// `GET /api/events/batches/<id>/outputs/`: the targets that ended, grouped by equal output.
pub async fn outputs(call: &Call) -> Result<Reply, Error> {
    list_of_batch(call, MAX_SIZE, |id, _| Ok(batch_targets::outputs(id))).await
}

/// The JSON of [`batch_reads::for_action`].
#[derive(Deserialize)]
struct BatchForAction {
    is_within: bool,
    batch: Box<RawValue>,
}

/// The fields of a batch object that decide whether it can be stopped.
#[derive(Deserialize)]
struct BatchSummary {
    name: String,
    finished_at: Option<String>,
}

/// Stops a batch: first in D1, so that no further command starts, and then with a call to its
/// object. Returns the batch.
async fn stop(call: &Call, input: Result<(), Error>, how: Stop) -> Result<String, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let (caller, found) = credential.find::<BatchForAction>(batch_reads::for_action(id)).await?;
    let found = found.ok_or_else(Error::not_found)?;
    if !found.is_within {
        return Err(Error::acl_not_allowed());
    }
    input?;
    let ended = || {
        Error::new(ErrorKind::Conflict, "The batch has ended.").with_code(Code::BatchAlreadyEnded)
    };
    let summary: BatchSummary = serde_json::from_str(found.batch.get())?;
    if summary.finished_at.is_some() {
        return Err(ended());
    }
    let event = call.audit_event()?.with_object(Some(id.to_string()), Some(&summary.name));
    let (_, changed) = credential.write(batches::stop(&credential.scope, id, how, &event)?).await?;
    let called = match how {
        Stop::Cancel => calls::reload(&call.env, caller.workspace_id, id).await,
        Stop::Kill => calls::kill(&call.env, caller.workspace_id, id, &caller.username).await,
    };
    if let Err(error) = called {
        // D1 has the change. The object reads it at its next alarm.
        log::error("batch_not_called", json!({"batch": id}), &error.detail);
    }
    let batch = find(&credential, id).await?;
    let has_ended = serde_json::from_str::<BatchSummary>(&batch)?.finished_at.is_some();
    // The batch ended after it was read first, and before it could be changed.
    if changed.is_none() && has_ended { Err(ended()) } else { Ok(batch) }
}

/// `POST /api/events/batches/<id>/cancel/`.
pub async fn cancel(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    Ok(Reply::ok_text(stop(call, input, Stop::Cancel).await?))
}

/// `POST /api/events/batches/<id>/kill/`.
pub async fn kill(call: &mut Call) -> Result<Reply, Error> {
    let input = call.no_fields().await;
    Ok(Reply::accepted_text(stop(call, input, Stop::Kill).await?))
}
