//! The access control list of an API token as an SQL condition on a row of `commands c`, for reads
//! (contract 4.13). It has the same rules as [`farhand_domain::acl::Acl::refusal`]. A property test
//! compares the two.
//!
//! The condition ignores the list's `servers`, which other conditions check, and `read_only`, which
//! the HTTP method decides.

/// SQL for a `GLOB` pattern that matches a text with a character which `*` in a line must not
/// match. The pattern is `*[`, three ranges, the other characters, `]*`. It has 34 bytes; D1 allows
/// 50. One call of `char` counts less towards D1's maximum depth of an expression than `||` does.
const NOT_PLAIN: &str = "char(42, 91, 1, 45, 31, 127, 45, 159, 8232, 45, 8233,
    59, 38, 124, 60, 62, 96, 36, 40, 41, 123, 125, 92, 35, 39, 34, 126, 93, 42)";

/// SQL for the number of patterns that match their texts, as `n`. `seed` is a query that returns
/// pairs. For each pattern whose part before its first `*` equals the beginning of the text, it
/// returns the rest of the pattern and the rest of the text. If `is_plain`, `*` matches only plain
/// text.
///
/// As in Rust, each literal part of a pattern is matched at its first occurrence.
fn count_matches(seed: &str, is_plain: bool) -> String {
    let only_plain = |gap: &str| {
        if is_plain { format!("AND {gap} NOT GLOB {NOT_PLAIN}") } else { String::new() }
    };
    let part = "substr(step.pattern, 1, instr(step.pattern, '*') - 1)";
    let before_part = only_plain(&format!("substr(step.rest, 1, instr(step.rest, {part}) - 1)"));
    let before_end = only_plain("substr(step.rest, 1, length(step.rest) - length(step.pattern))");
    format!(
        "WITH RECURSIVE step (pattern, rest) AS (
            {seed}
            UNION ALL
            SELECT substr(step.pattern, instr(step.pattern, '*') + 1),
                substr(step.rest, instr(step.rest, {part}) + length({part}))
            FROM step
            WHERE instr(step.pattern, '*') > 0 AND instr(step.rest, {part}) > 0 {before_part}
        )
        SELECT count(*) AS n FROM step
        WHERE instr(step.pattern, '*') = 0 AND length(step.rest) >= length(step.pattern)
            AND substr(step.rest, length(step.rest) - length(step.pattern) + 1) = step.pattern {before_end}"
    )
}

/// The maximum cost of comparing commands with an access control list, in the unit of [`COST`]. One
/// unit takes about 0.1 µs. After comparisons of this cost, older commands are not compared.
pub const MAX_COST: u32 = 1_500_000;

/// SQL that selects the patterns of lines in an access control list. `acl` is SQL for the list as
/// JSON. The columns are:
///
/// - `pattern`.
/// - `star`: the position of its first `*`. `stars`: the number of `*`.
/// - `end`: a blank if the pattern ends with ` *`, otherwise empty. Such a pattern also matches a
///   line without any argument, so the line is compared with this text appended.
pub fn line_patterns(acl: &str) -> String {
    format!(
        "SELECT value AS pattern, instr(value, '*') AS star, length(value) - length(replace(value, '*', '')) AS stars,
            iif(substr(value, -2) = ' *', ' ', '') AS end
         FROM json_each({acl}, '$.commands')"
    )
}

/// SQL that selects the words of a row of [`word_lists`] that contain a `*`. It does not select the
/// word `*`, which matches every word.
const STARRED: &str =
    "FROM json_each(l.words) w WHERE w.key < l.length AND w.value <> '*' AND instr(w.value, '*')";

/// SQL that selects the lists of words (`argv`) in an access control list. `acl` is SQL for the
/// list as JSON. The columns are:
///
/// - `words`: the list of words as JSON.
/// - `length`: the number of words, without a last `...`. `is_open`: whether there is a last `...`.
/// - `starred`: the number of words selected by [`STARRED`]. `stars`: the number of `*` in them.
pub fn word_lists(acl: &str) -> String {
    format!(
        "SELECT l.*, (SELECT count(*) {STARRED}) AS starred,
            (SELECT coalesce(sum(length(w.value) - length(replace(w.value, '*', ''))), 0) {STARRED}) AS stars
         FROM (SELECT value AS words, json_array_length(value) - (value ->> '$[#-1]' = '...') AS length,
            value ->> '$[#-1]' = '...' AS is_open FROM json_each({acl}, '$.argv')) l"
    )
}

/// SQL for the maximum cost of comparing one command, from the tables `patterns` and `lists`: a
/// constant, and a cost per 1,000 characters of the command. The numbers were measured
/// (`docs/contributing/performance.md`).
pub const COST: &str = "SELECT
    (SELECT coalesce(sum(5 + 16 * stars), 0) FROM patterns) AS line,
    (SELECT coalesce(sum(iif(star, 1000, 10)), 0) FROM patterns) AS line_characters,
    (SELECT coalesce(sum(10 + 10 * length + 30 * stars), 0) FROM lists) AS words,
    (SELECT coalesce(sum(length + 150 * starred), 0) FROM lists) AS words_characters";

/// SQL for the cost of comparing a row of `commands c`. `cost` is the row of [`COST`].
pub const COST_OF_ROW: &str =
    "iif(c.argv IS NULL, cost.line + length(c.line) * cost.line_characters / 1000,
    cost.words + length(c.argv) * cost.words_characters / 1000)";

/// The length of an id. In `commands.script`, the script's id comes before its version.
const ID_CHARS: usize = 36;

/// SQL for whether an access control list allows a row of `commands c`. `acl` is SQL for the list
/// as JSON, or null if there is none. `patterns` and `lists` are SQL for tables with the rows of
/// [`line_patterns`] and [`word_lists`].
///
/// D1 limits the depth of an expression. A subquery in FROM does not count towards it, so many
/// conditions are in such subqueries. `LIMIT -1` prevents SQLite from copying the expression for a
/// text to each use of the text.
pub fn within(acl: &str, patterns: &str, lists: &str) -> String {
    let lines = count_matches(
        &format!(
            "SELECT iif(star, substr(pattern, star + 1), ''), iif(star, substr(text, star), '')
            FROM (SELECT pattern, star, c.line || end AS text FROM {patterns} LIMIT -1)
            WHERE iif(star, substr(text, 1, star - 1) = substr(pattern, 1, star - 1), text = pattern)"
        ),
        true,
    );
    // A word that is just `*` matches every word, so it is not compared.
    let compared =
        "SELECT w.value AS pattern, instr(w.value, '*') AS star, c.argv ->> w.key AS text
        FROM json_each(l.words) w WHERE w.key < l.length AND w.value <> '*' LIMIT -1";
    let words = count_matches(
        &format!(
            "SELECT substr(w.value, instr(w.value, '*') + 1), substr(c.argv ->> w.key, instr(w.value, '*')) {STARRED}"
        ),
        false,
    );
    format!(
        "EXISTS (SELECT 1 FROM (SELECT 1 WHERE {acl} IS NULL
            OR ({acl} ->> '$.usernames' IS NULL OR c.shell = 'system' AND c.groupname = ''
                AND c.username IN (SELECT u.value FROM json_each({acl}, '$.usernames') u))
            AND (coalesce({acl} ->> '$.commands', {acl} ->> '$.argv', {acl} ->> '$.scripts') IS NULL
                OR c.shell = 'system' AND c.groupname = '' AND c.has_inputs = 0
                AND (EXISTS (SELECT 1 FROM json_each({acl}, '$.scripts') s WHERE s.value IN (c.script, substr(c.script, 1, {ID_CHARS})))
                    OR c.script IS NULL AND c.argv IS NULL AND 0 < (SELECT n FROM ({lines}))
                    OR c.argv IS NOT NULL AND EXISTS (SELECT 1 FROM (SELECT 1 FROM {lists} l
                        WHERE json_array_length(c.argv) >= l.length
                        AND (l.is_open OR json_array_length(c.argv) = l.length)
                        AND NOT EXISTS (SELECT 1 FROM ({compared})
                            WHERE iif(star, substr(text, 1, star - 1) <> substr(pattern, 1, star - 1), pattern <> text))
                        AND l.starred = (SELECT n FROM ({words}))))))))"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_has_the_characters_that_a_star_must_not_match() {
        let (_, codes) = NOT_PLAIN.split_once('(').unwrap();
        let codes =
            codes.trim_end_matches(')').split(',').map(|code| code.trim().parse::<u32>().unwrap());
        let pattern: String = codes.filter_map(char::from_u32).collect();
        assert_eq!(pattern, "*[\u{1}-\u{1f}\u{7f}-\u{9f}\u{2028}-\u{2029};&|<>`$(){}\\#'\"~]*");
        assert!(pattern.len() <= 50, "{}", pattern.len());
        assert!(
            count_matches("", true).contains("GLOB") && !count_matches("", false).contains("GLOB")
        );
    }
}
