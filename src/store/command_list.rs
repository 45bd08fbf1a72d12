//! Lists of commands. The crate `farhand-sql` builds and tests their SQL.

use farhand_domain::command::list::CommandList;
use farhand_sql::command_list::{AclSql, ListSql, narrow_sql, sql};

use super::commands::list_object;
use super::list::{List, Select};
use super::within_acl::{COST, COST_OF_ROW, MAX_COST, line_patterns, within, word_lists};

/// Pages up to this size are read as one text, which D1 limits to 2 MB. In the worst case, lines of
/// 16,384 and results of 4,096 characters take six bytes per character in JSON (`\u0001`). Then a
/// page of this size has 1.9 MB.
const MAX_IN_ONE_TEXT: u64 = 15;

/// A list of the commands that the caller can read, for a page with this offset.
pub fn list(list: &CommandList, offset: u64) -> List {
    let object = list_object();
    let within = AclSql {
        patterns: &line_patterns("(SELECT me.acl FROM me)"),
        lists: &word_lists("(SELECT me.acl FROM me)"),
        cost: COST,
        cost_of_row: COST_OF_ROW,
        max_cost: MAX_COST,
        is_within: &within("me.acl", "patterns", "lists"),
    };
    let ListSql { tables, items, full_access, parameters } = sql(list, offset, &object);
    let max_in_one_text = MAX_IN_ONE_TEXT;
    let select =
        |(tables, items)| Select { tables, items, max_in_one_text, parameters: parameters.clone() };
    let narrow = narrow_sql(list, offset, &object, &within);
    List {
        select: select((tables, items)),
        full_access: full_access.map(select),
        narrow: Some(Select {
            tables: narrow.tables,
            items: narrow.items,
            max_in_one_text,
            parameters: narrow.parameters,
        }),
    }
}
