//! Pages of lists (contract 3.7).

use crate::error::{Error, FieldErrors, Kind};

/// Items on a page where the caller does not say.
pub const DEFAULT_SIZE: u64 = 15;
/// Items on a page at most; more is cut to this.
pub const MAX_SIZE: u64 = 100;

/// A request's query parameters, decoded, in their order.
pub type Query = Vec<(String, String)>;

/// The last value of a query parameter.
pub fn parameter<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    query.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// A query parameter that is true or false: `true` or `1`, `false` or `0`, the words in any case.
///
/// # Errors
/// Another text, on the parameter.
pub fn boolean_parameter(
    query: &[(String, String)],
    name: &'static str,
) -> Result<Option<bool>, Error> {
    match parameter(query, name).map(str::to_ascii_lowercase).as_deref() {
        None => Ok(None),
        Some("true" | "1") => Ok(Some(true)),
        Some("false" | "0") => Ok(Some(false)),
        Some(_) => Err(Error::field(name, "Enter true or false.")),
    }
}

/// A query parameter that is the id of a user or a group. One that JSON numbers are not exact for
/// is nobody's, as 0 is.
///
/// # Errors
/// What is no whole number, on the parameter.
pub fn id_parameter(query: &[(String, String)], name: &'static str) -> Result<Option<i64>, Error> {
    let read = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(Error::field(name, "Enter a whole number."));
        }
        Ok(text.parse().ok().filter(|id| (0..1 << 53).contains(id)).unwrap_or(0))
    };
    parameter(query, name).map(read).transpose()
}

/// The words of `search`, in lower case.
///
/// # Errors
/// A null character, on the parameter.
pub fn words(query: &[(String, String)]) -> Result<Vec<String>, Error> {
    let text = parameter(query, "search").unwrap_or("");
    if text.contains('\0') {
        return Err(Error::field("search", "Null characters are not allowed."));
    }
    Ok(text.split_whitespace().map(str::to_lowercase).collect())
}

/// The fields of `ordering`, each once, and whether each is descending; `None` where it is not
/// given.
///
/// # Errors
/// A name that is none of `names`, on the parameter.
pub fn ordering<T: Copy + PartialEq>(
    query: &[(String, String)],
    all: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<Option<Vec<(T, bool)>>, Error> {
    let Some(text) = parameter(query, "ordering") else { return Ok(None) };
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
        // The first one has ordered by it already.
        if !order.iter().any(|(known, _)| *known == field) {
            order.push((field, descending));
        }
    }
    Ok(Some(order))
}

/// Which page is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// From 1.
    pub number: u64,
    /// From 1 to [`MAX_SIZE`].
    pub size: u64,
}

/// A positive whole number in decimal digits. One that is too large to count with is as large as
/// can be.
fn positive(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| text.parse().unwrap_or(u64::MAX))?;
    (number > 0).then_some(number)
}

impl Page {
    /// The one where the caller does not say.
    pub const FIRST: Self = Self { number: 1, size: DEFAULT_SIZE };

    /// Reads `page` and `page_size`.
    ///
    /// # Errors
    /// On each of the two that is 0, negative or not a number.
    pub fn of(query: &[(String, String)]) -> Result<Self, Error> {
        let mut errors = FieldErrors::new();
        let mut read = |name: &'static str, default| match parameter(query, name) {
            None => default,
            Some(text) => positive(text).unwrap_or_else(|| {
                errors.insert(name.into(), vec!["Enter a whole number of at least 1.".into()]);
                default
            }),
        };
        let page =
            Self { number: read("page", 1), size: read("page_size", DEFAULT_SIZE).min(MAX_SIZE) };
        if errors.is_empty() { Ok(page) } else { Err(Error::fields(errors)) }
    }

    /// How many items come before this page; at most 2^53, which every store can count to.
    pub fn offset(self) -> u64 {
        (self.number - 1).saturating_mul(self.size).min(1 << 53)
    }

    /// The numbers of the page before and of the page after, in a list of `count` items.
    ///
    /// # Errors
    /// A page past the end is 404; an empty first page is not.
    pub fn neighbours(self, count: u64) -> Result<(Option<u64>, Option<u64>), Error> {
        if self.number > 1 && self.offset() >= count {
            return Err(Error::new(Kind::NotFound, "Invalid page."));
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
    fn defaults_and_bounds() {
        assert_eq!(Page::of(&[]).unwrap(), Page { number: 1, size: 15 });
        assert_eq!(
            Page::of(&query(&[("page", "3"), ("page_size", "1000")])).unwrap(),
            Page { number: 3, size: 100 }
        );
        assert_eq!(Page::of(&query(&[("page", "1"), ("page", "2")])).unwrap().number, 2);
        for bad in ["0", "-1", "", "1.5", "+1", "x", "１", " 1"] {
            let error = Page::of(&query(&[("page", bad), ("page_size", bad)])).unwrap_err();
            assert_eq!(error.fields.keys().collect::<Vec<_>>(), ["page", "page_size"], "{bad}");
        }
    }

    #[test]
    fn booleans() {
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
    fn neighbours() {
        let page = |number| Page { number, size: 10 };
        assert_eq!(page(1).neighbours(0).unwrap(), (None, None));
        assert_eq!(page(1).neighbours(10).unwrap(), (None, None));
        assert_eq!(page(1).neighbours(11).unwrap(), (None, Some(2)));
        assert_eq!(page(2).neighbours(11).unwrap(), (Some(1), None));
        assert_eq!(page(2).neighbours(10).unwrap_err().kind, Kind::NotFound);
        assert_eq!(page(u64::MAX).neighbours(10).unwrap_err().kind, Kind::NotFound);
    }
}
