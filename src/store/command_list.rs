//! Lists of commands. Their SQL is built and tested in the crate `farhand-sql`.

use farhand_domain::command_list::CommandList;
use farhand_domain::error::Error;
pub use farhand_sql::command_list::{HAS_FULL_ACCESS as REACHES_ALL, REACHED};
use farhand_sql::command_list::{ListSql, Within, narrow_sql, sql};
use farhand_sql::statement::Statement;

use super::commands::list_object;
use super::db::{Parameter, Selection};
use super::within_acl::{COST, COST_OF_ROW, MOST_COST, line_patterns, within, word_lists};
use crate::platform::internal;

/// Between the parts of a list's text.
const PART: &str = "\n-- part\n";
/// The parameters that come before those of a list (see [`Selection`]), in their order.
const FIRST: [&str; 6] = ["workspace", "hash", "now", "dead_until", "limit", "offset"];

/// What a page of a list with an offset is read with.
///
/// # Errors
/// A mistake in the SQL.
pub fn list(list: &CommandList, offset: u64) -> Result<Selection, Error> {
    let object = list_object().replace("?3", ":now");
    let within = Within {
        patterns: &line_patterns("(SELECT me.acl FROM me)"),
        lists: &word_lists("(SELECT me.acl FROM me)"),
        cost: COST,
        cost_of_row: COST_OF_ROW,
        most_cost: MOST_COST,
        is_within: &within("me.acl", "patterns", "lists"),
    };
    let narrow = selection(narrow_sql(list, offset, &object, &within))?;
    Ok(Selection { narrow: Some(Box::new(narrow)), ..selection(sql(list, offset, &object))? })
}

/// Numbers the parameters of a list, from `?7` on.
fn selection(list: ListSql) -> Result<Selection, Error> {
    let ListSql { tables, items, full_access, parameters } = list;
    let has_full_access = full_access.is_some();
    let (full_tables, full_items) = full_access.unwrap_or_default();
    let first: String = FIRST.iter().map(|name| format!(":{name} ")).collect();
    let text = [first, tables, items, full_tables, full_items].join(PART);
    let statement = FIRST.into_iter().fold(Statement::new(text), |statement, name| statement.bind(name, 0));
    let built = statement.bind_all(parameters).build().map_err(internal)?;
    let mut parts = built.sql.split(PART).skip(1).map(str::to_owned);
    let mut part = || parts.next().unwrap_or_default();
    let (tables, items) = (part(), part());
    let of_all = has_full_access.then(|| (part(), part()));
    let parameters = built.parameters.into_iter().skip(FIRST.len()).map(Parameter::from).collect();
    Ok(Selection { tables, items, of_all, parameters, narrow: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_its_own_parameters_from_the_seventh_on() {
        let query = [("search".to_owned(), "uptime é".to_owned()), ("exit_code".to_owned(), "1".to_owned())];
        let list = list(&CommandList::of(&query).unwrap(), 0).unwrap();
        let (tables, items) = list.of_all.unwrap();
        for text in [&list.tables, &list.items, &tables, &items] {
            assert!(!text.contains(':') || !text.contains(":now"), "{text}");
        }
        assert!(items.contains("LIMIT ?5 + 0 OFFSET ?6") && items.contains("?3"), "{items}");
        assert!(tables.contains("?7") && tables.contains("?8") && !tables.contains("?9"), "{tables}");
        assert_eq!(list.parameters.len(), 2);
    }
}
