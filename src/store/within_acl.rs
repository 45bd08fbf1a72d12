//! The access control list of an API token as an SQL condition on a row of `commands c`: the same
//! rule as [`farhand_domain::acl::Acl::refusal`], for reading (contract 4.13). A property test
//! compares the two.
//!
//! The condition ignores `servers` and `read_only`, which other conditions and the method decide.

/// A `GLOB` pattern for a text with a character that `*` in a line never stands for: `*[`, three
/// ranges, the others, `]*`. D1 allows patterns of 50 bytes; it has 34. (One call of `char` takes
/// less of the depth that D1 grants an expression than `||`.)
const NOT_PLAIN: &str = "char(42, 91, 1, 45, 31, 127, 45, 159, 8232, 45, 8233,
    59, 38, 124, 60, 62, 96, 36, 40, 41, 123, 125, 92, 35, 39, 34, 126, 93, 42)";

/// SQL for how many of some patterns fit their texts, as `n`. `seed` is SQL for what is left of
/// each pattern and of its text behind the first `*`, if what is before that is alike. `is_plain`:
/// `*` stands for plain text only.
///
/// As in Rust, each literal part is taken at its first place.
fn fitting(seed: &str, is_plain: bool) -> String {
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

/// What a list of commands may cost to compare with an access control list, as [`COST`] estimates
/// it; some 0.1 µs each. When the commands looked at have cost as much, no older one is looked at.
pub const MOST_COST: u32 = 1_500_000;

/// SQL for the patterns of lines in a list, as rows `pattern`; `star`, where its first `*` is; and
/// `stars`, how many there are. A trailing ` *` also matches no argument at all: such a pattern
/// fits a line if it fits the line with a blank at its end, so `end` is a blank there.
pub fn line_patterns(acl: &str) -> String {
    format!(
        "SELECT value AS pattern, instr(value, '*') AS star, length(value) - length(replace(value, '*', '')) AS stars,
            iif(substr(value, -2) = ' *', ' ', '') AS end
         FROM json_each({acl}, '$.commands')"
    )
}

/// The words of a row of [`word_lists`] that have a `*` and are not all `*`, which fits any.
const STARRED: &str =
    "FROM json_each(l.words) w WHERE w.key < l.length AND w.value <> '*' AND instr(w.value, '*')";

/// SQL for the lists of words in a list, as rows `words`; `length`, how many of them are compared:
/// without a last `...`; `is_open`, whether there is one; `starred`, how many have a `*` among
/// others; and `stars`, how many these have.
pub fn word_lists(acl: &str) -> String {
    format!(
        "SELECT l.*, (SELECT count(*) {STARRED}) AS starred,
            (SELECT coalesce(sum(length(w.value) - length(replace(w.value, '*', ''))), 0) {STARRED}) AS stars
         FROM (SELECT value AS words, json_array_length(value) - (value ->> '$[#-1]' = '...') AS length,
            value ->> '$[#-1]' = '...' AS is_open FROM json_each({acl}, '$.argv')) l"
    )
}

/// SQL for what the comparison of one command costs at most, from the tables `patterns` and
/// `lists`: for each, and for each 1,000 characters that it has, as it was measured
/// (`docs/contributing/performance.md`).
pub const COST: &str = "SELECT
    (SELECT coalesce(sum(5 + 16 * stars), 0) FROM patterns) AS line,
    (SELECT coalesce(sum(iif(star, 1000, 10)), 0) FROM patterns) AS line_characters,
    (SELECT coalesce(sum(10 + 10 * length + 30 * stars), 0) FROM lists) AS words,
    (SELECT coalesce(sum(length + 150 * starred), 0) FROM lists) AS words_characters";

/// SQL for the cost of a row of `commands c`; `cost` is the row of [`COST`].
pub const COST_OF_ROW: &str =
    "iif(c.argv IS NULL, cost.line + length(c.line) * cost.line_characters / 1000,
    cost.words + length(c.argv) * cost.words_characters / 1000)";

/// SQL for whether a list allows a row of `commands c`. `acl` is SQL for the list as JSON, or null
/// for none; `patterns` and `lists` are SQL for tables with the rows of [`line_patterns`] and of
/// [`word_lists`].
///
/// D1 bounds the depth of an expression. A subquery in a FROM does not add to it, so conditions of
/// subqueries stand there. `LIMIT -1` keeps SQLite from putting the expression for a text in each
/// place where the text stands.
pub fn within(acl: &str, patterns: &str, lists: &str) -> String {
    let lines = fitting(
        &format!(
            "SELECT iif(star, substr(pattern, star + 1), ''), iif(star, substr(text, star), '')
            FROM (SELECT pattern, star, c.line || end AS text FROM {patterns} LIMIT -1)
            WHERE iif(star, substr(text, 1, star - 1) = substr(pattern, 1, star - 1), text = pattern)"
        ),
        true,
    );
    // A word that is all `*` fits any.
    let compared =
        "SELECT w.value AS pattern, instr(w.value, '*') AS star, c.argv ->> w.key AS text
        FROM json_each(l.words) w WHERE w.key < l.length AND w.value <> '*' LIMIT -1";
    let words = fitting(
        &format!(
            "SELECT substr(w.value, instr(w.value, '*') + 1), substr(c.argv ->> w.key, instr(w.value, '*')) {STARRED}"
        ),
        false,
    );
    format!(
        "EXISTS (SELECT 1 FROM (SELECT 1 WHERE {acl} IS NULL
            OR ({acl} ->> '$.usernames' IS NULL OR c.shell = 'system' AND c.groupname = ''
                AND c.username IN (SELECT u.value FROM json_each({acl}, '$.usernames') u))
            AND ({acl} ->> '$.commands' IS NULL AND {acl} ->> '$.argv' IS NULL
                OR c.shell = 'system' AND c.groupname = '' AND c.has_inputs = 0
                AND (c.argv IS NULL AND 0 < (SELECT n FROM ({lines}))
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
    fn the_pattern_names_what_a_star_never_stands_for() {
        let (_, codes) = NOT_PLAIN.split_once('(').unwrap();
        let codes =
            codes.trim_end_matches(')').split(',').map(|code| code.trim().parse::<u32>().unwrap());
        let pattern: String = codes.filter_map(char::from_u32).collect();
        assert_eq!(pattern, "*[\u{1}-\u{1f}\u{7f}-\u{9f}\u{2028}-\u{2029};&|<>`$(){}\\#'\"~]*");
        assert!(pattern.len() <= 50, "{}", pattern.len());
        assert!(fitting("", true).contains("GLOB") && !fitting("", false).contains("GLOB"));
    }
}
