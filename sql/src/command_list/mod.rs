//! The list of commands: SQL for its pages and for the number of all items (contract 7.10).
//!
//! A statement begins with the table `me`, which has one row if the credential is valid and no row
//! otherwise. So only the statement itself knows the caller. Therefore it has a branch for callers
//! with full access and a branch for other callers. The branch that does not apply to the caller
//! reads no rows. All values of a request are parameters.
//!
//! `docs/contributing/cost.md` says what a list may cost.
//!
//! | file | job |
//! |---|---|
//! | `access` | the servers that a caller can access |
//! | `filters` | the filters, as conditions on a command |
//! | `order` | the order, and the index that a list reads |
//! | `search` | the search for words |
//! | `page` | the items of a page |
//! | `count` | the number of all items |
//! | `narrow` | the list for an API token that can read only what its access control list allows |

mod access;
mod count;
mod filters;
mod narrow;
mod order;
mod page;
mod search;

use farhand_domain::command::list::CommandList;

pub use access::{ACCESSIBLE_SERVERS, HAS_FULL_ACCESS};
pub use narrow::{AclSql, MAX_COMPARED, narrow_sql};

use crate::statement::Parameters;

/// The SQL of a page. It uses `parameters`, and also `:now`, `:page_size` and `:page_offset`.
#[derive(Debug)]
pub struct ListSql {
    /// Common table expressions that follow `me`. One of them is `total`, with the number of all
    /// items.
    pub tables: String,
    /// The query for the page's items: one row per item, as JSON in the column `body`.
    pub items: String,
    /// Cheaper `tables` and `items` for callers with full access. For other callers, their `total`
    /// is null.
    pub full_access: Option<(String, String)>,
    pub parameters: Parameters,
}

/// The callers for whom a statement returns items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Callers {
    All,
    /// Only callers with full access.
    FullAccess,
}

/// The parts that the two statements of a list share.
struct Parts<'a> {
    list: &'a CommandList,
    offset: u64,
    /// SQL for a row of `commands c` as JSON.
    object: &'a str,
    /// SQL for all filters on a row of `commands c`, including the words.
    filters: String,
    /// SQL for the remaining filters on a command that the search index has found. It omits words
    /// that the index has already compared.
    filters_of_found: String,
    /// Whether the statement has a table `found`, with the commands that the search index finds.
    has_found: bool,
    /// The number of filters that the client sent. All words together count as one.
    filter_count: usize,
    parameters: Parameters,
}

impl<'a> Parts<'a> {
    /// If `by_index`, looks up the words in the search index, as far as the index can find them.
    /// Otherwise the statement compares each command with all words.
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

    /// The common table expressions for `callers`.
    fn tables(&self, callers: Callers) -> String {
        let (mut tables, total) = (String::new(), self.total(callers));
        if callers == Callers::All {
            tables += &format!(", {ACCESSIBLE_SERVERS}");
        }
        if self.has_found {
            tables += &format!(", {}", search::found(&self.list.words));
        }
        format!("{tables}, total AS (SELECT {total} AS total FROM me)")
    }
}

/// SQL for a page of a list. `object` is SQL for a row of `commands c` as JSON.
pub fn sql(list: &CommandList, offset: u64, object: &str) -> ListSql {
    let parts = Parts::new(list, offset, object, true);
    let statement = |callers| (parts.tables(callers), parts.items(callers));
    let (tables, items) = statement(Callers::All);
    let full_access = Some(statement(Callers::FullAccess));
    ListSql { tables, items, full_access, parameters: parts.parameters }
}
