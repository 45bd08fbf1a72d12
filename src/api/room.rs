//! The cell's brake: refuses requests that add to a D1 database that is nearly full (contract
//! 11.7).

use farhand_domain::error::Error;
use farhand_domain::http::endpoints::{Access, Endpoint, Growth};
use farhand_domain::limits::fullness::Fullness;
use farhand_domain::people::user::Rank;

use crate::auth::credential::Credential;
use crate::http::request::Call;
use crate::platform::d1_size;

/// Whether the database is so full that the request needs [`require`].
pub fn is_scarce(call: &Call, endpoint: Endpoint) -> bool {
    let fullness = d1_size::fullness(&call.env).unwrap_or(Fullness::Ok);
    fullness > Fullness::Ok && endpoint.growth(&call.method) != Growth::Allowed
}

/// Refuses the request if the database has no room for it.
///
/// # Errors
/// The refusal of the credential, or 503 `CELL_FULL`.
pub async fn require(call: &mut Call, endpoint: Endpoint) -> Result<(), Error> {
    let rank = match endpoint.access() {
        // An agent changes only its own server.
        Access::UserOrAgent if call.is_agent() => return Ok(()),
        Access::User | Access::UserOrAgent => Credential::from_request(call)?.check().await?.rank(),
        _ => Rank { is_staff: false, is_superuser: false },
    };
    let fullness = d1_size::fullness(&call.env).unwrap_or(Fullness::Ok);
    let checked = fullness.require_room(endpoint.growth(&call.method), rank);
    if checked.is_err() {
        call.discard().await;
    }
    checked
}
