//! The statements of lists that an isolate keeps: to make their text takes longer than all else
//! that the Worker does for a list.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use farhand_domain::error::Error;
use farhand_domain::page::Page;

use crate::http::request::Call;
use crate::store::db::PageStatement;
use crate::store::list::{List, Select};
use crate::store::scope::Scope;

/// How many lists are kept.
const MAX_LISTS: usize = 100;
/// The longest query whose list is kept, in bytes.
const MAX_QUERY: usize = 100;

/// What the statements of a list depend on: the workspace, the path of the route, and the query.
/// The values of a request, such as its credential, are parameters.
#[derive(PartialEq, Eq, Hash)]
struct Key(String, &'static str, String);

impl Key {
    fn new(scope: &Scope<'_>, call: &Call) -> Self {
        Self(
            scope.workspace.to_owned(),
            call.route.map_or("", |route| route.path),
            call.raw_query.clone(),
        )
    }
}

thread_local! {
    static LISTS: RefCell<HashMap<Key, Rc<KeptList>>> = RefCell::default();
}

/// The statement for some callers, whose text is made when it first runs.
pub struct Kept {
    select: Select,
    page: Page,
    statement: OnceCell<PageStatement>,
}

impl Kept {
    fn new(select: Select, page: Page) -> Self {
        Self { select, page, statement: OnceCell::new() }
    }

    /// The statement. The values of `scope` are replaced when it runs.
    pub fn statement(&self, scope: &Scope<'_>) -> Result<&PageStatement, Error> {
        if let Some(statement) = self.statement.get() {
            return Ok(statement);
        }
        let statement = PageStatement::new(scope.list(&self.select, self.page))?;
        Ok(self.statement.get_or_init(|| statement))
    }
}

/// A page of a list, as [`List`] describes it.
pub struct KeptList {
    /// The page.
    pub page: Page,
    /// For all callers.
    pub select: Kept,
    /// For callers with full access.
    pub full_access: Option<Kept>,
    /// For an API token that reads only what its access control list allows.
    pub narrow: Option<Kept>,
}

impl KeptList {
    /// The list of a request's path and query, if it is kept.
    pub fn find(scope: &Scope<'_>, call: &Call) -> Option<Rc<Self>> {
        LISTS.with_borrow(|lists| lists.get(&Key::new(scope, call)).cloned())
    }

    /// Keeps a list, which must depend on nothing but the path and the query.
    pub fn keep(scope: &Scope<'_>, call: &Call, list: List, page: Page) -> Rc<Self> {
        let kept = |select| Kept::new(select, page);
        let List { select, full_access, narrow } = list;
        let (select, full_access, narrow) = (kept(select), full_access.map(kept), narrow.map(kept));
        let list = Rc::new(Self { page, select, full_access, narrow });
        if call.raw_query.len() <= MAX_QUERY {
            LISTS.with_borrow_mut(|lists| {
                if lists.len() >= MAX_LISTS {
                    lists.clear();
                }
                lists.insert(Key::new(scope, call), list.clone());
            });
        }
        list
    }
}
