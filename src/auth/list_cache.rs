//! The cached SQL statements of lists, in the memory of an isolate. Building their text takes
//! longer than all other work of the Worker for a list (`docs/contributing/performance.md`).

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use farhand_domain::error::Error;
use farhand_domain::http::page::Page;

use crate::http::request::Call;
use crate::store::db::PageStatement;
use crate::store::list::{List, Select};
use crate::store::scope::Scope;

/// The maximum number of cached lists. A full cache is emptied.
const MAX_CACHED_LISTS: usize = 100;
/// The maximum length of a query string whose list is cached, in bytes.
const MAX_QUERY_BYTES: usize = 100;

/// What the statements of a list depend on: the slug of the workspace, the path of the route, and
/// the query string. All other inputs, such as the credential, are parameters of the statement.
#[derive(PartialEq, Eq, Hash)]
struct Key(String, &'static str, String);

impl Key {
    /// Returns `None` for a list that is not cached: its query string is long, or its path names a
    /// resource, so that another path of the route needs another list.
    fn new(scope: &Scope<'_>, call: &Call) -> Option<Self> {
        let path = call.route.map(|route| route.path).filter(|path| !path.contains('{'))?;
        let is_short = call.raw_query.len() <= MAX_QUERY_BYTES;
        is_short.then(|| Self(scope.workspace.to_owned(), path, call.raw_query.clone()))
    }
}

thread_local! {
    static CACHE: RefCell<HashMap<Key, Rc<CachedList>>> = RefCell::default();
}

/// A statement of a list. Its text is built when it first runs.
pub struct CachedStatement {
    select: Select,
    page: Page,
    statement: OnceCell<PageStatement>,
}

impl CachedStatement {
    fn new(select: Select, page: Page) -> Self {
        Self { select, page, statement: OnceCell::new() }
    }

    /// The statement. The values of `scope` are placeholders: each run binds the values of its
    /// request.
    pub fn statement(&self, scope: &Scope<'_>) -> Result<&PageStatement, Error> {
        if let Some(statement) = self.statement.get() {
            return Ok(statement);
        }
        let statement = PageStatement::new(scope.list(&self.select, self.page))?;
        Ok(self.statement.get_or_init(|| statement))
    }
}

/// The statements that read one page of a list. See [`List`] for the callers of each statement.
pub struct CachedList {
    pub page: Page,
    /// Correct for all callers, without the filter for limited API tokens.
    pub select: CachedStatement,
    /// A cheaper statement for callers with full access.
    pub full_access: Option<CachedStatement>,
    /// For an API token that reads only what its access control list allows.
    pub narrow: Option<CachedStatement>,
}

impl CachedList {
    /// The cached list of a request's path and query.
    pub fn find(scope: &Scope<'_>, call: &Call) -> Option<Rc<Self>> {
        let key = Key::new(scope, call)?;
        CACHE.with_borrow(|lists| lists.get(&key).cloned())
    }

    /// Caches a list, unless its path names a resource. The list must depend only on the path and
    /// the query.
    pub fn insert(scope: &Scope<'_>, call: &Call, list: List, page: Page) -> Rc<Self> {
        let cached = |select| CachedStatement::new(select, page);
        let List { select, full_access, narrow } = list;
        let (select, full_access, narrow) =
            (cached(select), full_access.map(cached), narrow.map(cached));
        let list = Rc::new(Self { page, select, full_access, narrow });
        if let Some(key) = Key::new(scope, call) {
            CACHE.with_borrow_mut(|lists| {
                if lists.len() >= MAX_CACHED_LISTS {
                    lists.clear();
                }
                lists.insert(key, list.clone());
            });
        }
        list
    }
}
