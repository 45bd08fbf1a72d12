//! The search for words: the search index `command_texts`, and comparisons for words that the index
//! cannot decide.

use farhand_domain::command::list::{
    INDEXED_CHARACTERS, MAX_INDEXED_WORDS, SearchWord, max_characters_read,
};
use serde_json::json;

use crate::numbering::is_of;
use crate::statement::{Parameters, Value};

/// If a search finds fewer commands than this, they are sorted. Otherwise the list is read in its
/// order, and each command is looked up among the found commands. That is cheaper if many commands
/// match, because the page is soon full.
const RARE_LIMIT: u32 = 10_000;

/// SQL for the condition that a search finds few commands.
pub const IS_RARE: &str = "(SELECT is_rare FROM rarity)";

/// Whether the search index can find at least one of the words.
pub fn has_query(words: &[SearchWord]) -> bool {
    words.iter().take(MAX_INDEXED_WORDS).any(|word| word.query().is_some())
}

/// SQL for the condition that a row of `commands c` has all words. Returns `None` if the list has
/// no words, or if `found` has exactly the commands with all words.
pub fn condition(
    words: &[SearchWord],
    has_found: bool,
    parameters: &mut Parameters,
) -> Option<&'static str> {
    if words.is_empty() {
        return None;
    }
    let encoded = words.iter().enumerate().map(|(at, word)| {
        json!({
            "query": word.query().filter(|_| at < MAX_INDEXED_WORDS),
            "name": word.name(),
            "line": word.in_line(),
            "glob": word.glob().filter(|_| !word.is_ascii()),
        })
    });
    parameters.add("words", Value::list(encoded));
    (!has_found || !is_exact(words)).then_some(HAS_WORDS)
}

/// Whether `found` has exactly the commands with all words.
pub fn is_exact(words: &[SearchWord]) -> bool {
    words.len() <= MAX_INDEXED_WORDS && words.iter().all(SearchWord::is_exact)
}

/// SQL for the condition that a row of `commands c` has each word in its line, in its server's name
/// or in its requester's name. A deleted server has the name that the command stores.
const HAS_WORDS: &str = "NOT EXISTS (SELECT 1 FROM json_each(:words) w
    WHERE NOT iif(w.value ->> 'glob' IS NULL, instr(lower(c.line), w.value ->> 'line') > 0, c.line GLOB (w.value ->> 'glob'))
    AND NOT EXISTS (SELECT 1 FROM command_servers n
        LEFT JOIN servers s ON s.id = n.server_id AND s.workspace_id = n.workspace_id
        WHERE n.workspace_id = c.workspace_id AND n.server_id = c.server_id AND n.name = c.server_name
        AND instr(lower(coalesce(s.name, n.name)), w.value ->> 'name') > 0)
    AND NOT EXISTS (SELECT 1 FROM users u WHERE u.id = c.requested_by AND u.workspace_id = c.workspace_id
        AND instr(lower(u.username), w.value ->> 'name') > 0))";

/// SQL for a full-text query that matches any number of a set. The search index stores each number
/// as three characters (see `command_texts` in the schema). `number` is SQL for the number of a row
/// in a group. For an empty group, the query matches nothing.
fn match_any(base: u32, number: &str) -> String {
    let phrase = |number: &str| {
        format!(
            "format('\"%s\"', char({base} + ({number} >> 28 & 16383), {base} + ({number} >> 14 & 16383),
                {base} + ({number} & 16383)))"
        )
    };
    format!("coalesce(group_concat({}, ' OR '), {})", phrase(number), phrase("0"))
}

/// Common table expressions of a search.
///
/// - `search_query`: the full-text query. A word may be in the line, in the server's name or in the
///   requester's name. The query first looks up the numbers of matching names.
/// - `indexed`: the commands that the search index finds.
/// - `newest_long`: the newest commands with lines that are longer than the indexed part. Their
///   number is limited, so that the time of a search is bounded.
/// - `matching_long`: the commands of `newest_long` that have all words.
/// - `found`: `indexed` and `matching_long`.
/// - `rarity`: whether `found` is small.
pub fn found(words: &[SearchWord]) -> String {
    let (servers, requesters) = (match_any(0xF4000, "named.number"), match_any(0xF8000, "u.id"));
    let (characters, is_of) =
        (max_characters_read(words), is_of("t.rowid", "(SELECT workspace_id FROM me)"));
    format!(
        "search_query AS MATERIALIZED (SELECT group_concat(format('(%s OR server:(%s) OR requester:(%s))', w.value ->> 'query',
                (SELECT {servers} FROM (
                    SELECT n.number FROM servers s INDEXED BY servers_by_name
                    CROSS JOIN command_servers n ON n.workspace_id = s.workspace_id AND n.server_id = s.id
                    WHERE s.workspace_id = me.workspace_id AND instr(lower(s.name), w.value ->> 'name') > 0
                    UNION ALL
                    SELECT n.number FROM command_servers n INDEXED BY command_servers_by_server
                    WHERE n.workspace_id = me.workspace_id AND instr(lower(n.name), w.value ->> 'name') > 0
                    AND NOT EXISTS (SELECT 1 FROM servers s
                        WHERE s.id = n.server_id AND s.workspace_id = n.workspace_id)) named),
                (SELECT {requesters} FROM users u
                 WHERE u.workspace_id = me.workspace_id AND instr(lower(u.username), w.value ->> 'name') > 0)),
                ' AND ') AS query
            FROM me CROSS JOIN json_each(:words) w WHERE w.value ->> 'query' IS NOT NULL),
         indexed AS MATERIALIZED (SELECT t.rowid AS seq FROM command_texts t
            WHERE t.command_texts MATCH coalesce((SELECT query FROM search_query), 'wide:\"none\"')
            AND {is_of}),
         newest_long AS MATERIALIZED (SELECT seq FROM (
            SELECT c.seq, sum(length(c.line)) OVER (ORDER BY c.seq DESC ROWS UNBOUNDED PRECEDING) AS characters
            FROM commands c INDEXED BY commands_long
            WHERE c.workspace_id = (SELECT workspace_id FROM me) AND length(c.line) > {INDEXED_CHARACTERS}
            ORDER BY c.seq DESC LIMIT {}) WHERE characters <= {characters}),
         matching_long AS MATERIALIZED (SELECT c.seq FROM newest_long n CROSS JOIN commands c ON c.seq = n.seq
            WHERE {HAS_WORDS} AND c.seq NOT IN (SELECT seq FROM indexed)),
         found AS (SELECT seq FROM indexed UNION ALL SELECT seq FROM matching_long),
         rarity AS MATERIALIZED (
            SELECT count(*) < {RARE_LIMIT} AS is_rare FROM (SELECT 1 FROM found LIMIT {RARE_LIMIT}))",
        characters / INDEXED_CHARACTERS,
    )
}
