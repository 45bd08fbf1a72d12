//! Lists in the dialect: page numbers instead of URLs.

use serde_json::{Map, Value, json};

use crate::http::page::{MAX_SIZE, MAX_SIZE_OF_SERVERS, Page};

/// The envelope of a list. `page` is the requested page.
fn envelope(page: Page, count: u64, results: Value) -> Value {
    let last = count.div_ceil(page.size).max(1);
    let (previous, next) =
        (page.number.checked_sub(1).filter(|number| *number > 0), page.number + 1);
    json!({
        "count": count,
        "current": page.number,
        "next": (next <= last).then_some(next),
        "previous": previous,
        "last": last,
        "results": results,
    })
}

/// The requested page of a native list. Lists of servers have larger pages.
pub fn requested_page(query: &[(String, String)], is_of_servers: bool) -> Page {
    let max_size = if is_of_servers { MAX_SIZE_OF_SERVERS } else { MAX_SIZE };
    // The native endpoint has refused invalid parameters.
    Page::from_query_up_to(query, max_size).unwrap_or(Page::FIRST)
}

/// Converts the members of a native list. Returns `None` if the response is not a list.
pub fn convert(list: &mut Map<String, Value>, page: Page) -> Option<Value> {
    let count = list.get("count")?.as_u64()?;
    Some(envelope(page, count, list.remove("results")?))
}

/// A page of a list that is complete in memory.
pub fn paginate(items: Vec<Value>, page: Page) -> Value {
    let count = items.len() as u64;
    let offset = usize::try_from(page.offset()).unwrap_or(usize::MAX);
    let size = usize::try_from(page.size).unwrap_or(usize::MAX);
    let results: Vec<Value> = items.into_iter().skip(offset).take(size).collect();
    envelope(page, count, json!(results))
}

/// Limits a page of chunks to the numbers up to `last_seq`. The native endpoint has no such
/// parameter.
pub fn limit_chunks(list: &mut Value, last_seq: u64) {
    let Some(chunks) = list["results"].as_array_mut() else { return };
    let before = chunks.len();
    chunks.retain(|chunk| chunk["seq"].as_u64().is_none_or(|seq| seq <= last_seq));
    if chunks.len() < before {
        list["next"] = Value::Null;
        list["last"] = list["current"].clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u64, size: u64) -> Page {
        Page { number, size }
    }

    #[test]
    fn a_list_has_page_numbers() {
        let native = |count: u64| {
            let list = json!({"count": count, "next": "http://x/?page=2", "previous": null, "results": [1]});
            list.as_object().unwrap().clone()
        };
        let convert = |count, number| convert(&mut native(count), page(number, 2)).unwrap();
        let of = |current: u64, next: Value, previous: Value, last: u64, count: u64| {
            json!({"count": count, "current": current, "next": next, "previous": previous,
                "last": last, "results": [1]})
        };
        assert_eq!(convert(5, 1), of(1, json!(2), json!(null), 3, 5));
        assert_eq!(convert(5, 2), of(2, json!(3), json!(1), 3, 5));
        assert_eq!(convert(5, 3), of(3, json!(null), json!(2), 3, 5));
        assert_eq!(convert(0, 1), of(1, json!(null), json!(null), 1, 0));
        assert_eq!(super::convert(&mut Map::new(), page(1, 2)), None);
    }

    #[test]
    fn known_items_are_paginated() {
        let items = || vec![json!(1), json!(2), json!(3)];
        assert_eq!(paginate(items(), page(2, 2))["results"], json!([3]));
        assert_eq!(paginate(items(), page(1, 2))["next"], 2);
        assert_eq!(paginate(items(), page(9, 2))["results"], json!([]));
    }

    #[test]
    fn servers_have_larger_pages() {
        let query = [("page_size".to_owned(), "500".to_owned())];
        assert_eq!(requested_page(&query, true).size, 500);
        assert_eq!(requested_page(&query, false).size, 100);
    }

    #[test]
    fn chunks_end_at_the_last_number() {
        let list = || {
            json!({"count": 9, "current": 1, "next": 2, "previous": null, "last": 3,
                "results": [{"seq": 0}, {"seq": 1}, {"seq": 2}]})
        };
        let mut cut = list();
        limit_chunks(&mut cut, 1);
        assert_eq!(cut["results"], json!([{"seq": 0}, {"seq": 1}]));
        assert_eq!((&cut["next"], &cut["last"]), (&json!(null), &json!(1)));
        let mut whole = list();
        limit_chunks(&mut whole, 2);
        assert_eq!(whole, list());
    }
}
