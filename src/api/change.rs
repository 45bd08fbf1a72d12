//! How a handler changes an existing resource. One attempt has four steps:
//!
//! 1. **Find** the caller and the resource in one round trip ([`find`]).
//! 2. **Decide**: check the permission first, then the input (contract 3.4).
//! 3. **Write** the change and its audit event in one transaction. A store function returns the
//!    [`crate::store::transaction::Transaction`], and [`Credential::write`] runs it. The statements check the
//!    conditions of step 2 again.
//! 4. **Reply** with the result of the transaction. If there is no result, the conditions failed, because
//!    another request changed something after step 1. Nothing was written, and [`retry`] makes
//!    another attempt.

use farhand_domain::access::caller::Caller;
use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::http::fields::Fields;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::auth::credential::Credential;
use crate::store::scope::Query;

/// The maximum number of attempts to make a change. After them, the response is a conflict.
const MAX_ATTEMPTS: usize = 8;

/// Whether a request replaces a resource or changes parts of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// `PUT`: omitted fields get their defaults.
    Whole,
    /// `PATCH`: omitted fields keep their values.
    Partial,
}

impl Extent {
    /// Reads the fields with the reader for this extent.
    ///
    /// # Errors
    /// The reader failed.
    pub fn read<T>(
        self,
        fields: Fields,
        whole: impl FnOnce(Fields) -> Result<T, Error>,
        partial: impl FnOnce(Fields) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self {
            Self::Whole => whole(fields),
            Self::Partial => partial(fields),
        }
    }
}

/// Repeats an attempt until it returns a value. `None` means that another request interfered.
/// `what` names the resource in the error message.
///
/// # Errors
/// An attempt failed. 409 `CONFLICT` after [`MAX_ATTEMPTS`].
pub async fn retry<T>(
    what: &str,
    attempt: impl AsyncFn() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    for _ in 0..MAX_ATTEMPTS {
        if let Some(done) = attempt().await? {
            return Ok(done);
        }
    }
    Err(conflict_error(what))
}

/// The 409 for a change that other requests prevented.
pub fn conflict_error(what: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("The {what} was changed by others at the same time. Try again."),
    )
}

/// Reads the caller and the resource that the decision needs.
///
/// # Errors
/// The credential is not valid; 404 if the query finds nothing.
pub async fn find<T: DeserializeOwned>(
    credential: &Credential<'_>,
    query: Query,
) -> Result<(Caller, T), Error> {
    let (caller, found) = credential.find(query).await?;
    Ok((caller, found.ok_or_else(Error::not_found)?))
}

/// The details of an audit event: the names of the changed fields.
pub fn changed_fields(fields: &[(&str, bool)]) -> Value {
    let changed: Vec<_> =
        fields.iter().filter(|(_, is_changed)| *is_changed).map(|(name, _)| name).collect();
    json!({"fields": changed})
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::cell::Cell;

    #[test]
    fn attempts_end_with_a_result_an_error_or_a_conflict() {
        let made = Cell::new(0);
        let last = |end_at: usize, end: fn(usize) -> Result<Option<usize>, Error>| {
            made.set(0);
            let attempt = async || {
                made.set(made.get() + 1);
                if made.get() == end_at { end(end_at) } else { Ok(None) }
            };
            retry("group", attempt).now_or_never().unwrap().map_err(|error| error.kind)
        };
        assert_eq!((last(1, |at| Ok(Some(at))), made.get()), (Ok(1), 1));
        assert_eq!(
            (last(MAX_ATTEMPTS, |at| Ok(Some(at))), made.get()),
            (Ok(MAX_ATTEMPTS), MAX_ATTEMPTS)
        );
        assert_eq!(
            (last(2, |_| Err(Error::not_found())), made.get()),
            (Err(ErrorKind::NotFound), 2)
        );
        assert_eq!(
            (last(MAX_ATTEMPTS + 1, |at| Ok(Some(at))), made.get()),
            (Err(ErrorKind::Conflict), MAX_ATTEMPTS)
        );
    }
}
