//! The queries of lists: pages, filters, words and orderings.

use std::fmt::Debug;

use farhand_domain::access::api_token::TokenFilter;
use farhand_domain::command::list::CommandList;
use farhand_domain::error::{Error, ErrorKind};
use farhand_domain::people::group::{GroupFilter, MembershipFilter};
use farhand_domain::http::page::{self, Page, Query};
use farhand_domain::fleet::server::ServerList;
use farhand_domain::people::user::UserFilter;

/// Maximum length of a pattern in D1, in bytes.
const MAX_PATTERN: usize = 50;

pub fn check(data: &[u8]) {
    let query: Query = form_urlencoded::parse(data).into_owned().collect();
    let written: String = form_urlencoded::Serializer::new(String::new()).extend_pairs(&query).finish();
    let again: Query = form_urlencoded::parse(written.as_bytes()).into_owned().collect();
    assert_eq!(again, query, "a query that is written again is unchanged");

    if let Some(page) = reads(&query, |query| Page::from_query(query)) {
        assert!(page.number >= 1 && (1..=page::MAX_SIZE).contains(&page.size) && page.offset() <= 1 << 53);
        for count in [0, 1, page.size, page.offset(), (page.offset() + 1).min(1 << 53), 1 << 53] {
            let neighbours = page.neighbours(count);
            assert_eq!(neighbours.is_err(), page.number > 1 && page.offset() >= count);
            if let Ok((before, after)) = neighbours {
                assert_eq!(before, (page.number > 1).then(|| page.number - 1));
                assert_eq!(after.is_some(), page.offset() + page.size < count);
            }
        }
    }
    if let Some(list) = reads(&query, |query| CommandList::from_query(query)) {
        assert!(!list.order.is_empty() && list.order.len() <= 5);
        for word in &list.words {
            assert!(word.glob().is_none_or(|pattern| pattern.len() <= MAX_PATTERN && pattern.len() > 2));
            if let Some(index_query) = word.query() {
                // A quote in a phrase is doubled, and the word is only inside phrases.
                let single = index_query.replace("\"\"", "");
                let parts: Vec<&str> = single.split('"').collect();
                let is_ours = |part: &&str| ["line:", "line:(", "wide:", " OR ", ") OR wide:", ""].contains(part);
                assert!(parts.len() % 2 == 1 && parts.iter().step_by(2).all(is_ours), "{index_query}");
            }
            assert_eq!(word.in_line(), word.in_line().to_ascii_lowercase());
        }
    }
    reads(&query, ServerList::from_query);
    reads(&query, |query| UserFilter::from_query(query));
    reads(&query, GroupFilter::from_query);
    reads(&query, MembershipFilter::from_query);
    reads(&query, |query| TokenFilter::from_query(query));
}

/// Reads a query. Of repeated parameters only the last one counts. An error must have messages by
/// parameter.
fn reads<T: Debug>(query: &Query, read: impl Fn(&Query) -> Result<T, Error>) -> Option<T> {
    let mut last: Query = Vec::new();
    for pair in query {
        last.retain(|(name, _)| name != &pair.0);
        last.push(pair.clone());
    }
    let result = read(query);
    assert_eq!(format!("{:?}", read(&last)), format!("{result:?}"), "the last one counts");
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(!error.fields.is_empty());
            for (name, messages) in &error.fields {
                assert!(page::last_value(query, name).is_some(), "{name} is not in the query");
                assert!(!messages.is_empty());
            }
            None
        }
    }
}
