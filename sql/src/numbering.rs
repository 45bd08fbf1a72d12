//! The keys of `commands`, `audit_events` and `audit_seals`.
//!
//! A key is 2^40 times the workspace's id, plus a number that grows with each row of the workspace.
//! So the rows of a workspace are adjacent, in the order of their insertion. 64 bits have room for
//! 8,388,607 workspaces.
//!
//! From workspace 8,192 on, a key is larger than 2^53, so a JavaScript number rounds it. Therefore a
//! key stays inside a statement: parameters and results have its [`number`]. A key that must leave
//! does so as text, `CAST(key AS TEXT)`, and comes back with `CAST(:key AS INTEGER)`.

/// SQL for the bits of a key that are the number.
const NUMBER: &str = "0xFFFFFFFFFF";

/// SQL for the number in a key.
pub fn number(key: &str) -> String {
    format!("({key} & {NUMBER})")
}

/// SQL for the key of a workspace and a number.
pub fn key(workspace: &str, number: &str) -> String {
    format!("({workspace} << 40 | {number})")
}

/// SQL for the highest possible key of a workspace. The lowest possible key is [`key`] with the
/// number 0.
pub fn last(workspace: &str) -> String {
    key(workspace, NUMBER)
}

/// SQL for the condition that a key belongs to the workspace. Do not combine it with another bound
/// of the key. SQLite uses only one lower and one upper bound for its search, and may choose the
/// wider bounds.
pub fn is_of(key: &str, workspace: &str) -> String {
    format!("{key} BETWEEN ({workspace} << 40) AND {}", last(workspace))
}

/// SQL for the highest key of the workspace in a table, or the key with the number 0 if there is
/// none.
pub fn highest(table: &str, column: &str, workspace: &str) -> String {
    let is_of = is_of(&format!("h.{column}"), workspace);
    format!("coalesce((SELECT max(h.{column}) FROM {table} h WHERE {is_of}), {workspace} << 40)")
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    /// The last workspace whose keys a double holds, the next one, a million, and the last possible.
    const WORKSPACES: [i64; 5] = [1, 8_191, 8_192, 1_000_000, (1 << 23) - 1];

    #[test]
    fn keys_are_exact_for_all_workspaces() {
        let database = Connection::open_in_memory().unwrap();
        database.execute_batch("CREATE TABLE t (seq INTEGER PRIMARY KEY)").unwrap();
        let numbers = [1, 2, 3, (1_i64 << 40) - 1];
        let insert = format!("INSERT INTO t (seq) VALUES ({})", key(":workspace", ":number"));
        for workspace in WORKSPACES {
            for number in numbers {
                // D1 binds doubles.
                database.execute(&insert, [workspace as f64, number as f64]).unwrap();
            }
        }
        let read = |sql: &str, workspace: i64| -> String {
            database.query_row(sql, [workspace as f64], |row| row.get(0)).unwrap()
        };
        let of_workspace = is_of("t.seq", ":workspace");
        for workspace in WORKSPACES {
            let sql = format!(
                "SELECT group_concat({}) FROM (SELECT seq FROM t WHERE {of_workspace} ORDER BY seq) t",
                number("t.seq")
            );
            assert_eq!(read(&sql, workspace), "1,2,3,1099511627775", "{workspace}");
            let highest = highest("t", "seq", ":workspace");
            let sql = format!("SELECT CAST({} AS TEXT)", number(&highest));
            assert_eq!(read(&sql, workspace), "1099511627775");
            let sql = format!("SELECT CAST({highest} = {} AS TEXT)", last(":workspace"));
            assert_eq!(read(&sql, workspace), "1");
            // A key as text is the same key.
            let (two, sql) =
                (key(":workspace", "2"), "SELECT CAST(seq AS TEXT) FROM t WHERE seq =");
            let text = read(&format!("{sql} {two}"), workspace);
            assert_eq!(text, ((workspace << 40) + 2).to_string());
            let same = format!("{sql} CAST('{text}' AS INTEGER) AND ?1");
            assert_eq!(read(&same, workspace), text);
        }
    }
}
