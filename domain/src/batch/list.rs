//! The query of a list of batches, and of the targets of a batch (contract 13.6 and 13.7).

use uuid::Uuid;

use crate::error::{Error, FieldErrors};
use crate::http::page::{id_parameter, last_value, uuid_parameter};

/// The states of a batch (contract 13.5).
pub const BATCH_STATES: [&str; 5] = ["scheduled", "running", "stopping", "finished", "cancelled"];

/// The states of a target (contract 13.7).
pub const TARGET_STATES: [&str; 10] = [
    "pending",
    "queued",
    "sent",
    "running",
    "success",
    "failed",
    "cancelled",
    "expired",
    "stuck",
    "skipped",
];

/// Reads `state`: a comma-separated list of states.
///
/// # Errors
/// A field error for an unknown state.
pub fn read_states(
    query: &[(String, String)],
    all: &'static [&'static str],
) -> Result<Option<Vec<&'static str>>, Error> {
    let read = |name| all.iter().copied().find(|known| *known == name);
    let Some(text) = last_value(query, "state") else { return Ok(None) };
    let states = text.split(',').map(read).collect::<Option<Vec<_>>>();
    let message = || format!("Use any of {}, separated by commas.", all.join(", "));
    states.map(Some).ok_or_else(|| Error::field("state", message()))
}

/// The filters of a list of batches. A filter that is `None` is not applied.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BatchList {
    /// The batch has one of these states.
    pub states: Option<Vec<&'static str>>,
    /// The requester's id; 0 matches no user.
    pub requested_by: Option<i64>,
    /// The id of the schedule that created the batch.
    pub schedule: Option<Uuid>,
    /// The batch's name.
    pub name: Option<String>,
}

impl BatchList {
    /// Reads the filters.
    ///
    /// # Errors
    /// All invalid parameters together.
    pub fn from_query(query: &[(String, String)]) -> Result<Self, Error> {
        fn take<T: Default>(read: Result<T, Error>, errors: &mut FieldErrors) -> T {
            read.map_err(|error| errors.extend(error.fields)).unwrap_or_default()
        }
        let mut errors = FieldErrors::new();
        let list = Self {
            states: take(read_states(query, &BATCH_STATES), &mut errors),
            requested_by: take(id_parameter(query, "requested_by"), &mut errors),
            schedule: take(uuid_parameter(query, "schedule"), &mut errors),
            name: last_value(query, "name").map(str::to_owned),
        };
        if errors.is_empty() { Ok(list) } else { Err(Error::fields(errors)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id;

    const ID: &str = "01936d3e-7a00-7000-8000-000000000000";

    fn read(pairs: &[(&str, &str)]) -> Result<BatchList, Vec<String>> {
        let query: Vec<_> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        BatchList::from_query(&query)
            .map_err(|error| error.fields.keys().map(ToString::to_string).collect())
    }

    #[test]
    fn filters_are_optional() {
        assert_eq!(read(&[("other", "x")]), Ok(BatchList::default()));
        let list = read(&[
            ("state", "running,finished"),
            ("requested_by", "7"),
            ("schedule", ID),
            ("name", "a b"),
        ]);
        let expected = BatchList {
            states: Some(vec!["running", "finished"]),
            requested_by: Some(7),
            schedule: id::parse(ID),
            name: Some("a b".into()),
        };
        assert_eq!(list, Ok(expected));
    }

    #[test]
    fn malformed_filters_are_reported_together() {
        let wrong = read(&[("state", "queued"), ("requested_by", "boss"), ("schedule", "x")]);
        assert_eq!(wrong, Err(vec!["requested_by".into(), "schedule".into(), "state".into()]));
        assert_eq!(read(&[("state", "")]), Err(vec!["state".into()]));
        let query = vec![("state".to_owned(), "queued,skipped".to_owned())];
        assert_eq!(read_states(&query, &TARGET_STATES), Ok(Some(vec!["queued", "skipped"])));
    }
}
