//! Scripts and their versions (contract 14.10).

use farhand_domain::command::script::{NewScript, ScriptChanges, ScriptFilter, ScriptRef};
use farhand_domain::error::{Error, NON_FIELD};
use farhand_domain::hash::sha256;
use farhand_domain::http::page::Page;
use farhand_domain::limits::quota::DAY_SECONDS;
use farhand_domain::link::call::Refusal;
use serde_json::json;

use super::change::{Extent, find, retry};
use super::idempotency::{self, Creation, CreationOutcome, ResourceKind};
use super::{
    any_caller, envelope, list_page, location, require_staff, retrieve_one, staff_only_error,
};
use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::http::response::Reply;
use crate::platform;
use crate::store::db::Failure;
use crate::store::scripts::{self, MAX_VERSIONS, ScriptForChange};

/// The `Retry-After` if the workspace has too many scripts (contract 11.4), in seconds.
const QUOTA_RETRY_AFTER: u64 = 60;

/// The path and the replay source of new scripts.
const RESOURCE: ResourceKind =
    ResourceKind { collection: "/api/events/scripts/", source: scripts::REPLAY, hidden: &[] };

/// `GET /api/events/scripts/`: the scripts of the workspace, newest first, without their bodies.
pub async fn list(call: &Call) -> Result<Reply, Error> {
    list_page(call, any_caller, |query, _| {
        ScriptFilter::from_query(query).map(|filter| scripts::list(&filter))
    })
    .await
}

/// `GET /api/events/scripts/<id>/`.
pub async fn retrieve(call: &Call) -> Result<Reply, Error> {
    retrieve_one(call, any_caller, call.path_id(Error::not_found), scripts::by_id).await
}

/// `GET /api/events/scripts/<id>/versions/`: the versions, newest first, without their bodies.
pub async fn list_versions(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let query = call.query();
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let page = credential.require_input(Page::from_query(&query)).await?;
    let list = credential.cached_list();
    let list = list.unwrap_or_else(|| credential.cache_list(scripts::versions(id), page));
    let (_, items, count) = credential.list(&list).await?;
    // Every script has a version.
    if count == 0 {
        return Err(Error::not_found());
    }
    envelope(call, &query, page, items, count)
}

/// `GET /api/events/scripts/<id>/versions/<version>/`.
pub async fn retrieve_version(call: &Call) -> Result<Reply, Error> {
    let script = call.path_id(Error::not_found).and_then(|id| {
        let version = call.path_integer("version").ok_or_else(Error::not_found)?;
        Ok(ScriptRef { id, version })
    });
    retrieve_one(call, any_caller, script, scripts::version).await
}

/// Maps a duplicate name to a field error.
fn duplicate_name_error(failure: Failure) -> Error {
    match failure {
        Failure::NotUnique(column) if column == "scripts.name" => {
            Error::field("name", "A script with this name already exists.")
        }
        other => other.into(),
    }
}

/// The error if the caller may not store `bytes` more bytes (contract 11.4).
async fn too_many_bytes(
    call: &Call,
    credential: &Credential<'_>,
    bytes: u64,
) -> Result<Error, Error> {
    let query = scripts::find_retry_after(bytes, call.config.quotas);
    let (_, retry_after) = credential.find(query).await?;
    Ok(Refusal::TooManyBytes { retry_after: retry_after.unwrap_or(DAY_SECONDS) }.into())
}

/// `POST /api/events/scripts/`: staff create a script.
pub async fn create(call: &mut Call) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let body = idempotency::canonical_body(&fields);
    let credential = Credential::from_request(call)?;
    // The permission is checked before the input (contract 3.4).
    require_staff(&credential.check().await?)?;
    let new = fields.and_then(NewScript::read)?;
    let creation = Creation::from_request(call, &RESOURCE, body)?;
    if let Some((_, reply)) = creation.replay(&credential).await? {
        return Ok(reply);
    }
    let id = platform::new_id(call.now)?;
    let event = call.audit_event()?.with_object(Some(id.to_string()), Some(&new.name));
    let event = event.details(json!({
        "interpreter": new.interpreter,
        "sha256": sha256(&new.body),
        "params": new.params.iter().map(|parameter| &parameter.name).collect::<Vec<_>>(),
    }));
    let quotas = call.config.quotas;
    let transaction = scripts::insert(&credential.scope, id, &new, quotas, &event)?;
    match creation
        .write(&credential, &id.to_string(), transaction)
        .await
        .map_err(duplicate_name_error)?
    {
        CreationOutcome::Created(_, script) => {
            Ok(Reply::created_text(script, location(call, RESOURCE.collection, id)))
        }
        CreationOutcome::Refused(caller) if caller.is_staff_or_superuser() => {
            if credential.find(scripts::has_too_many(quotas)).await?.1 != Some(true) {
                return Err(too_many_bytes(call, &credential, scripts::bytes_of(&new)).await?);
            }
            let max_scripts = quotas.scripts_of_workspace;
            let detail = format!("The workspace has {max_scripts} scripts. Delete one first.");
            Err(Error::quota_exceeded(detail, QUOTA_RETRY_AFTER))
        }
        CreationOutcome::Refused(_) => Err(staff_only_error()),
        CreationOutcome::Replayed(reply) => Ok(reply),
    }
}

/// `PUT` and `PATCH /api/events/scripts/<id>/`: staff write a new version. A request that changes
/// nothing creates no version.
pub async fn change(call: &mut Call, extent: Extent) -> Result<Reply, Error> {
    let fields = call.user_fields().await?;
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let input =
        fields.and_then(|fields| extent.read(fields, ScriptChanges::read_all, ScriptChanges::read));
    let attempt = async || {
        let (caller, found) =
            find::<ScriptForChange>(&credential, scripts::for_change(id, call.config.quotas))
                .await?;
        require_staff(&caller)?;
        let changes = input.clone()?;
        let changed = found.changed_by(&changes);
        if changed.is_empty() {
            return retrieve(call).await.map(Some);
        }
        if found.version >= MAX_VERSIONS {
            let message =
                format!("A script has at most {MAX_VERSIONS} versions. Create another script.");
            return Err(Error::field(NON_FIELD, message));
        }
        let quotas = call.config.quotas;
        let bytes = found.bytes_after(&changes);
        if i64::try_from(bytes).is_ok_and(|bytes| bytes > found.bytes_left) {
            return Err(too_many_bytes(call, &credential, bytes).await?);
        }
        let sha256 = changes.body.as_deref().map_or_else(|| found.sha256.clone(), sha256);
        let event = call.audit_event()?.with_object(Some(id.to_string()), Some(&found.name));
        let event = event
            .details(json!({"fields": changed, "version": found.version + 1, "sha256": sha256}));
        let transaction = scripts::update(&credential.scope, id, &found, &changes, quotas, &event)?;
        let (_, script) = credential.write(transaction).await.map_err(duplicate_name_error)?;
        Ok(script.map(Reply::ok_text))
    };
    retry("script", attempt).await
}

/// `DELETE /api/events/scripts/<id>/`: staff hide a script. Its versions and the commands that ran
/// them stay.
pub async fn delete(call: &Call) -> Result<Reply, Error> {
    let credential = Credential::from_request(call)?;
    let id = credential.require_input(call.path_id(Error::not_found)).await?;
    let event = call.audit_event()?.with_object(Some(id.to_string()), None);
    let (caller, hidden) = credential.write(scripts::hide(&credential.scope, id, &event)?).await?;
    require_staff(&caller)?;
    hidden.map(|_| Reply::no_content()).ok_or_else(Error::not_found)
}
