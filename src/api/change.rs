//! How a handler changes something that exists. One attempt has four steps:
//!
//! 1. **Find** caller and resource in one round trip ([`find`]).
//! 2. **Decide** on what was found: permission first, then the input (contract 3.4).
//! 3. **Write** with the audit event in one transaction: a store function returns the
//!    [`crate::store::batch::Batch`], and [`Credential::write`] runs it. Its statements repeat the
//!    decision as conditions.
//! 4. **Reply** with what the batch returned. No reply means that another request changed something
//!    in between, so that the conditions failed and nothing was written. Then [`retry`] starts
//!    over.

use farhand_domain::caller::Caller;
use farhand_domain::error::{Error, Kind};
use farhand_domain::fields::Fields;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::auth::credential::Credential;
use crate::store::scope::Query;

/// How many attempts a change gets.
const TRIES: usize = 8;

/// How much of a resource a request gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// `PUT`: everything; fields that are left out get their defaults.
    Whole,
    /// `PATCH`: the given fields.
    Partial,
}

impl Extent {
    /// Reads the fields in the way that fits.
    ///
    /// # Errors
    /// Those of the reader.
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

/// Makes attempts until one returns something.
///
/// # Errors
/// That of an attempt; a conflict if none returned anything. `what` is the resource in its message.
pub async fn retry<T>(
    what: &str,
    attempt: impl AsyncFn() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    for _ in 0..TRIES {
        if let Some(done) = attempt().await? {
            return Ok(done);
        }
    }
    Err(conflict(what))
}

/// The refusal of a change that other requests prevented.
pub fn conflict(what: &str) -> Error {
    Error::new(
        Kind::Conflict,
        format!("The {what} was changed by others at the same time. Try again."),
    )
}

/// Reads the caller, and what is decided on.
///
/// # Errors
/// The credential is not alive; 404 if the query finds nothing.
pub async fn find<T: DeserializeOwned>(
    credential: &Credential<'_>,
    query: Query,
) -> Result<(Caller, T), Error> {
    let (caller, found) = credential.find(query).await?;
    Ok((caller, found.ok_or_else(Error::not_found)?))
}

/// The details of a change's audit event: the names of the changed fields.
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
        assert_eq!((last(TRIES, |at| Ok(Some(at))), made.get()), (Ok(TRIES), TRIES));
        assert_eq!((last(2, |_| Err(Error::not_found())), made.get()), (Err(Kind::NotFound), 2));
        assert_eq!((last(TRIES + 1, |at| Ok(Some(at))), made.get()), (Err(Kind::Conflict), TRIES));
    }
}
