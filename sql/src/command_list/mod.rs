//! The list of commands: SQL for its pages and its count (contract 7.10).
//!
//! The statements begin with the table `me`, which has one row for a live credential and none
//! otherwise. So the caller is resolved inside the statement. It has one way for callers with full
//! access and one for the others; the way that does not apply reads no rows. Every value of a
//! request is a parameter.
//!
//! What a list may cost is in `docs/contributing/cost.md`.
//!
//! | file | job |
//! |---|---|
//! | `access` | the servers that a caller can access |
//! | `filters` | conditions on a command |
//! | `order` | the list's order, and the index that a list reads |
//! | `search` | words |
//! | `page` | the items of a page |
//! | `count` | the number of all items |
//! | `narrow` | the list of an API token that reads only commands its access control list allows |

mod access;
mod count;
mod filters;
mod narrow;
mod order;
mod page;
mod search;

use farhand_domain::command_list::CommandList;

pub use access::{HAS_FULL_ACCESS, REACHED};
pub use narrow::{NARROW_WINDOW, Within, narrow_sql};

use crate::statement::Parameters;

/// The SQL of a page. Its parameters are its own and `:now`, `:page_size` and `:page_offset`.
#[derive(Debug)]
pub struct ListSql {
    /// Common tables that follow `me`. One is `total`, with the number of all items.
    pub tables: String,
    /// The statement for a page's items: each as JSON in the column `body`.
    pub items: String,
    /// Cheaper tables and items, for callers with full access only. For others `total` is null.
    pub full_access: Option<(String, String)>,
    /// Its own parameters.
    pub parameters: Parameters,
}

/// The callers that a statement is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Callers {
    All,
    FullAccess,
}

/// What the statements of a list have in common.
struct Parts<'a> {
    list: &'a CommandList,
    offset: u64,
    /// A row of `commands c` as JSON.
    object: &'a str,
    /// The condition of all filters on a row of `commands c`, words included.
    filters: String,
    /// The same without the words that the search index compares, for a row of `found`.
    filters_of_found: String,
    /// Whether there is a table `found`, with the commands that the search index finds.
    has_found: bool,
    /// How many filters the client sent; all words together count as one.
    filter_count: usize,
    parameters: Parameters,
}

impl<'a> Parts<'a> {
    /// `by_index`: words are looked up in the search index, as far as it helps; otherwise each
    /// command is compared with them.
    fn new(list: &'a CommandList, offset: u64, object: &'a str, by_index: bool) -> Self {
        let mut parameters = Parameters::default();
        let mut conditions = filters::conditions(list, &mut parameters);
        let has_found = by_index && search::has_query(&list.words);
        let filter_count = conditions.len() + usize::from(!list.words.is_empty());
        conditions.push("true".to_owned());
        conditions
            .extend(search::condition(&list.words, has_found, &mut parameters).map(str::to_owned));
        let filters_of_found = conditions.join(" AND ");
        let is_found = if has_found { " AND c.seq IN (SELECT seq FROM found)" } else { "" };
        let filters = format!("{filters_of_found}{is_found}");
        Self {
            list,
            offset,
            object,
            filters,
            filters_of_found,
            has_found,
            filter_count,
            parameters,
        }
    }

    /// The common tables for some callers.
    fn tables(&self, callers: Callers) -> String {
        let (mut tables, total) = (String::new(), self.total(callers));
        if callers == Callers::All {
            tables += &format!(", {REACHED}");
        }
        if self.has_found {
            tables += &format!(", {}", search::found(&self.list.words));
        }
        format!("{tables}, total AS (SELECT {total} AS total FROM me)")
    }
}

/// SQL for a page of a list with an offset. `object` is SQL for a row of `commands c` as JSON.
pub fn sql(list: &CommandList, offset: u64, object: &str) -> ListSql {
    let parts = Parts::new(list, offset, object, true);
    let of = |callers| (parts.tables(callers), parts.items(callers));
    let ((tables, items), full_access) = (of(Callers::All), Some(of(Callers::FullAccess)));
    ListSql { tables, items, full_access, parameters: parts.parameters }
}
