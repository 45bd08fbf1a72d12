//! Query parameters of lists: pages, ordering and common filters (contract 3.7).

use uuid::Uuid;

use crate::error::{Error, ErrorKind, FieldErrors};
use crate::id;

/// The default of `page_size`.
pub const DEFAULT_SIZE: u64 = 15;
/// Maximum number of items on a page. A larger `page_size` is reduced to this.
pub const MAX_SIZE: u64 = 100;
/// [`MAX_SIZE`] of lists of servers and of a batch's targets.
pub const MAX_SIZE_OF_SERVERS: u64 = 1_000;

/// The decoded query parameters of a request, in the order of the request.
pub type Query = Vec<(String, String)>;

/// The last value of a query parameter.
pub fn last_value<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    query.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// Reads a parameter that is true (`true`, `1`) or false (`false`, `0`), in upper or lower case.
///
/// # Errors
/// A field error for another text.
pub fn boolean_parameter(
    query: &[(String, String)],
    name: &'static str,
) -> Result<Option<bool>, Error> {
    match last_value(query, name).map(str::to_ascii_lowercase).as_deref() {
        None => Ok(None),
        Some("true" | "1") => Ok(Some(true)),
        Some("false" | "0") => Ok(Some(false)),
        Some(_) => Err(Error::field(name, "Enter true or false.")),
    }
}

/// Reads a parameter that is the id of a user or a group. A number that cannot be an id (below 0,
/// or 2^53 and above) becomes 0, which matches no row.
///
/// # Errors
/// A field error if the text is not a whole number.
pub fn id_parameter(query: &[(String, String)], name: &'static str) -> Result<Option<i64>, Error> {
    let read = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(Error::field(name, "Enter a whole number."));
        }
        Ok(text.parse().ok().filter(|id| (0..1 << 53).contains(id)).unwrap_or(0))
    };
    last_value(query, name).map(read).transpose()
}

/// Reads a parameter that is a UUID.
///
/// # Errors
/// A field error for another text.
pub fn uuid_parameter(
    query: &[(String, String)],
    name: &'static str,
) -> Result<Option<Uuid>, Error> {
    let read = |text| id::parse(text).ok_or_else(|| Error::field(name, "Enter a valid UUID."));
    last_value(query, name).map(read).transpose()
}

/// Reads `search`: its words, in lower case.
///
/// # Errors
/// A field error if the text has a null character.
pub fn search_words(query: &[(String, String)]) -> Result<Vec<String>, Error> {
    let text = last_value(query, "search").unwrap_or("");
    if text.contains('\0') {
        return Err(Error::field("search", "Null characters are not allowed."));
    }
    Ok(text.split_whitespace().map(str::to_lowercase).collect())
}

/// Reads `ordering`. Returns the fields, each with whether it is descending, without repeated
/// fields. Returns `None` if the parameter is absent.
///
/// # Errors
/// A field error if `all` has no field with a given name.
pub fn ordering<T: Copy + PartialEq>(
    query: &[(String, String)],
    all: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<Option<Vec<(T, bool)>>, Error> {
    let Some(text) = last_value(query, "ordering") else { return Ok(None) };
    let mut order: Vec<(T, bool)> = Vec::new();
    for part in text.split(',') {
        let (descending, name) = part.strip_prefix('-').map_or((false, part), |name| (true, name));
        let field = all.iter().copied().find(|field| name_of(*field) == name).ok_or_else(|| {
            let names: Vec<&str> = all.iter().copied().map(&name_of).collect();
            let names = names.join(", ");
            Error::field(
                "ordering",
                format!("Use any of {names}, separated by commas; a leading - sorts descending."),
            )
        })?;
        // A repeated field changes nothing, because the list is already ordered by it.
        if !order.iter().any(|(earlier, _)| *earlier == field) {
            order.push((field, descending));
        }
    }
    Ok(Some(order))
}

/// The requested page of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// The number of the page, from 1.
    pub number: u64,
    /// The number of items on a page, at least 1.
    pub size: u64,
}

/// Reads a positive whole number in decimal digits. A number that is too large becomes `u64::MAX`.
fn positive(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| text.parse().unwrap_or(u64::MAX))?;
    (number > 0).then_some(number)
}

impl Page {
    /// The page of a query without parameters.
    pub const FIRST: Self = Self { number: 1, size: DEFAULT_SIZE };

    /// Reads `page` and `page_size`.
    ///
    /// # Errors
    /// A field error for each parameter that is not a whole number of at least 1.
    pub fn from_query(query: &[(String, String)]) -> Result<Self, Error> {
        Self::from_query_up_to(query, MAX_SIZE)
    }

    /// Like [`Page::from_query`], with another maximum of `page_size`.
    ///
    /// # Errors
    /// See [`Page::from_query`].
    pub fn from_query_up_to(query: &[(String, String)], max_size: u64) -> Result<Self, Error> {
        let mut errors = FieldErrors::new();
        let mut read = |name: &'static str, default| match last_value(query, name) {
            None => default,
            Some(text) => positive(text).unwrap_or_else(|| {
                errors.insert(name.into(), vec!["Enter a whole number of at least 1.".into()]);
                default
            }),
        };
        let page =
            Self { number: read("page", 1), size: read("page_size", DEFAULT_SIZE).min(max_size) };
        if errors.is_empty() { Ok(page) } else { Err(Error::fields(errors)) }
    }

    /// The number of items before this page, at most 2^53: D1 holds numbers exactly up to there.
    pub fn offset(self) -> u64 {
        (self.number - 1).saturating_mul(self.size).min(1 << 53)
    }

    /// The numbers of the previous and the next page, in a list of `count` items.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the page is past the end. The first page may be empty.
    pub fn neighbours(self, count: u64) -> Result<(Option<u64>, Option<u64>), Error> {
        if self.number > 1 && self.offset() >= count {
            return Err(Error::new(ErrorKind::NotFound, "Invalid page."));
        }
        let next = (self.offset() + self.size < count).then_some(self.number + 1);
        Ok(((self.number > 1).then(|| self.number - 1), next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Query {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn page_numbers_have_defaults_and_bounds() {
        assert_eq!(Page::from_query(&[]).unwrap(), Page { number: 1, size: 15 });
        assert_eq!(
            Page::from_query(&query(&[("page", "3"), ("page_size", "1000")])).unwrap(),
            Page { number: 3, size: 100 }
        );
        let large = Page::from_query_up_to(&query(&[("page_size", "1001")]), MAX_SIZE_OF_SERVERS);
        assert_eq!(large.unwrap().size, 1_000);
        assert_eq!(Page::from_query(&query(&[("page", "1"), ("page", "2")])).unwrap().number, 2);
        for bad in ["0", "-1", "", "1.5", "+1", "x", "１", " 1"] {
            let error = Page::from_query(&query(&[("page", bad), ("page_size", bad)])).unwrap_err();
            assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["page", "page_size"], "{bad}");
        }
    }

    #[test]
    fn booleans_are_words_or_digits() {
        let check = |text, expected| {
            let query = query(&[("enabled", "true"), ("enabled", text), ("other", "x")]);
            assert_eq!(boolean_parameter(&query, "enabled").ok().flatten(), expected, "{text}");
        };
        for (text, value) in [
            ("true", true),
            ("True", true),
            ("1", true),
            ("false", false),
            ("FALSE", false),
            ("0", false),
        ] {
            check(text, Some(value));
        }
        for bad in ["", "yes", "t", "2", "01", "null", " true"] {
            check(bad, None);
            let error = boolean_parameter(&query(&[("enabled", bad)]), "enabled").unwrap_err();
            assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["enabled"], "{bad}");
        }
        assert_eq!(boolean_parameter(&query(&[("enable", "x")]), "enabled"), Ok(None));
    }

    #[test]
    fn neighbours_are_pages_inside_the_list() {
        let page = |number| Page { number, size: 10 };
        assert_eq!(page(1).neighbours(0).unwrap(), (None, None));
        assert_eq!(page(1).neighbours(10).unwrap(), (None, None));
        assert_eq!(page(1).neighbours(11).unwrap(), (None, Some(2)));
        assert_eq!(page(2).neighbours(11).unwrap(), (Some(1), None));
        assert_eq!(page(2).neighbours(10).unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(page(u64::MAX).neighbours(10).unwrap_err().kind, ErrorKind::NotFound);
    }
}
