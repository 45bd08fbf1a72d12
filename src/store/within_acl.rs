//! The access control list of an API token as an SQL condition on a row of `commands c`, for reads
//! (contract 4.13). It has the same rules as [`farhand_domain::access::acl::Acl::refusal`]. A property test
//! compares the two (`sql/tests/within_acl.rs`).
//!
//! The condition ignores the list's `servers`, which other conditions check, and `read_only`, which
//! the HTTP method decides.

use farhand_domain::access::acl::pattern::{
    AFTER_DOT, DOTS, OPTION, OPTION_STARTS, RESERVED, SEGMENT_ENDS,
};

/// SQL for a `GLOB` pattern that matches a text with a character which `*` in a line must not
/// match. The pattern is `*[`, three ranges, the other characters, `]*`. It has 34 bytes; D1 allows
/// 50. One call of `char` counts less towards D1's maximum depth of an expression than `||` does.
const NOT_PLAIN: &str = "char(42, 91, 1, 45, 31, 127, 45, 159, 8232, 45, 8233,
    59, 38, 124, 60, 62, 96, 36, 40, 41, 123, 125, 92, 35, 39, 34, 126, 93, 42)";

/// SQL for a `GLOB` pattern that matches a text with a blank that is not a control character, or
/// with a mark. It has 33 bytes.
const BLANK_OR_MARK: &str =
    "char(42, 91, 32, 160, 5760, 8192, 45, 8202, 8239, 8287, 12288, 64976, 64977, 93, 42)";

/// Characters for the steps of [`marked_line`] and [`kinded`]. The reserved characters are not in
/// the texts.
const WORD_START: char = '\u{fdd2}';
const SEGMENT_START: char = '\u{fdd3}';
const FREE: char = '\u{fdd4}';
const PATTERN_END: char = '\u{fdd5}';

/// SQL for a text as a literal.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// SQL for a text in which replacements were made, in this order.
fn replaced(sql: &str, replacements: &[(String, String)]) -> String {
    replacements.iter().fold(sql.to_owned(), |sql, (from, to)| {
        format!("replace({sql}, {}, {})", literal(from), literal(to))
    })
}

/// SQL for whether a text has a reserved character.
fn has_reserved(sql: &str) -> String {
    format!("{sql} GLOB '*[{}-{}]*'", RESERVED.start(), RESERVED.end())
}

/// SQL for a line, or a pattern of lines, with the marks of `farhand_domain::access::acl::pattern`. In a
/// pattern, `*` is no part of the text.
fn marked_line(sql: &str, is_pattern: bool) -> String {
    let is_text = |c: &&char| !(is_pattern && **c == '*');
    let words = (" ".to_owned(), format!(" {WORD_START}"));
    let options = OPTION_STARTS.iter().filter(is_text);
    let options = options.map(|c| (format!("{WORD_START}{c}"), format!("{OPTION}{c}")));
    let also_segments = (WORD_START.to_string(), SEGMENT_START.to_string());
    let segments = SEGMENT_ENDS.iter().map(|c| (c.to_string(), format!("{c}{SEGMENT_START}")));
    let dots = AFTER_DOT.iter().filter(is_text);
    let dots = dots.map(|c| (format!("{SEGMENT_START}.{c}"), format!("{DOTS}.{c}")));
    let unused = (SEGMENT_START.to_string(), String::new());
    let replacements: Vec<_> = [words]
        .into_iter()
        .chain(options)
        .chain([also_segments])
        .chain(segments)
        .chain(dots)
        .chain([unused])
        .collect();
    replaced(&format!("(' ' || {sql})"), &replacements)
}

/// SQL for a word of `argv`, or a pattern of words, with the marks of
/// `farhand_domain::access::acl::pattern`.
fn marked_word(sql: &str) -> String {
    let segments = SEGMENT_ENDS.iter().map(|c| (c.to_string(), format!("{c}{SEGMENT_START}")));
    let replacements: Vec<_> = segments
        .chain([
            (format!("{SEGMENT_START}.."), format!("{DOTS}..")),
            (SEGMENT_START.to_string(), String::new()),
        ])
        .collect();
    let marked = replaced(&format!("('{SEGMENT_START}' || {sql})"), &replacements);
    format!("iif(substr({sql}, 1, 1) = '-', '{OPTION}', '') || {marked}")
}

/// SQL for a marked pattern of lines in which each run of `*` is one `*` and its kind: `w` for
/// words, `a` for any words, and `p` for a part of one word.
fn kinded(sql: &str) -> String {
    let free = |stars: &str, kind: &str| (format!(" {stars} "), format!(" {FREE}{kind} "));
    let replacement = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    // Two runs can share a blank, so each kind needs two steps. `MAX_STARS` is 8, so three steps
    // halve each other run to one `*`.
    let replacements = [
        free("**", "a"),
        free("**", "a"),
        free("*", "w"),
        free("*", "w"),
        replacement("**", "*"),
        replacement("**", "*"),
        replacement("**", "*"),
        replacement("*", "*p"),
        (FREE.to_string(), "*".to_owned()),
        (format!(" {PATTERN_END}"), String::new()),
    ];
    replaced(&format!("({sql} || ' {PATTERN_END}')"), &replacements)
}

/// SQL for `GLOB` patterns that match the result of [`kinded`] with a part of a word after a quote
/// or a backslash, and after a `.` after one. Such a pattern matches nothing.
const AFTER_QUOTE: &str = r#"'*[\''"][*]p*'"#;
const AFTER_QUOTED_DOT: &str = r#"'*[\''"].[*]p*'"#;

/// What a pattern is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    /// A line. After each `*` of the pattern is its kind ([`kinded`]).
    Line,
    /// A word of `argv`.
    Word,
}

/// SQL for the number of patterns that match their texts, as `n`. `seed` is a query that returns
/// pairs. For each pattern whose part before its first `*` equals the beginning of the text, it
/// returns the rest of the pattern and the rest of the text.
///
/// As in Rust, each literal part of a pattern is matched at its first occurrence.
fn count_matches(seed: &str, kind: Text) -> String {
    let allows = |gap: &str| {
        match kind {
        Text::Line => format!(
            "{gap} NOT GLOB {NOT_PLAIN} AND {gap} NOT GLOB
             CASE substr(step.pattern, 1, 1) WHEN 'w' THEN '*{OPTION}*' WHEN 'a' THEN char(1) ELSE {BLANK_OR_MARK} END"
        ),
        Text::Word => format!("{gap} NOT GLOB '*[{OPTION}{DOTS}]*'"),
    }
    };
    // The position in `step.pattern` after the kind.
    let begin = if kind == Text::Line { 2 } else { 1 };
    let part = format!("substr(step.pattern, {begin}, instr(step.pattern, '*') - {begin})");
    let tail = format!("substr(step.pattern, {begin})");
    let before_part = allows(&format!("substr(step.rest, 1, instr(step.rest, {part}) - 1)"));
    let before_end = allows(&format!("substr(step.rest, 1, length(step.rest) - length({tail}))"));
    format!(
        "WITH RECURSIVE step (pattern, rest) AS (
            {seed}
            UNION ALL
            SELECT substr(step.pattern, instr(step.pattern, '*') + 1),
                substr(step.rest, instr(step.rest, {part}) + length({part}))
            FROM step
            WHERE instr(step.pattern, '*') > 0 AND instr(step.rest, {part}) > 0 AND {before_part}
        )
        SELECT count(*) AS n FROM step
        WHERE instr(step.pattern, '*') = 0 AND length(step.rest) >= length({tail})
            AND substr(step.rest, length(step.rest) - length({tail}) + 1) = {tail} AND {before_end}"
    )
}

/// The maximum cost of comparing commands with an access control list, in the unit of [`COST`]. One
/// unit takes about 0.1 µs. After comparisons of this cost, older commands are not compared.
pub const MAX_COST: u32 = 1_500_000;

/// SQL that selects the patterns of lines in an access control list. `acl` is SQL for the list as
/// JSON. The columns are:
///
/// - `pattern`: with `*`, the pattern with its marks and the kinds of its stars.
/// - `star`: the position of its first `*`. `stars`: the number of `*`.
/// - `end`: a blank if the pattern ends with words of any kind, otherwise empty. Such a pattern also
///   matches a line without any argument, so the line is compared with this text appended.
pub fn line_patterns(acl: &str) -> String {
    let (pattern, has_reserved) = (kinded(&marked_line("value", true)), has_reserved("value"));
    format!(
        "SELECT pattern, instr(pattern, '*') AS star, length(pattern) - length(replace(pattern, '*', '')) AS stars,
            iif(substr(pattern, -3) IN (' *w', ' *a'), ' ', '') AS end
         FROM (SELECT iif(instr(value, '*'), {pattern}, value) AS pattern FROM json_each({acl}, '$.commands')
            WHERE NOT (instr(value, '*') AND {has_reserved}) LIMIT -1)
         WHERE NOT (pattern GLOB {AFTER_QUOTE} OR pattern GLOB {AFTER_QUOTED_DOT})"
    )
}

/// SQL that selects the words of a row of [`word_lists`] that contain a `*`. It does not select the
/// words `*` and `**`, which match whole words.
const STARRED: &str = "FROM json_each(l.words) w WHERE w.key < l.length AND w.value NOT IN ('*', '**') AND instr(w.value, '*')";

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
    (SELECT 40 + coalesce(sum(5 + 20 * stars), 0) FROM patterns) AS line,
    (SELECT 300 + coalesce(sum(iif(star, 1000, 10)), 0) FROM patterns) AS line_characters,
    (SELECT coalesce(sum(10 + 10 * length + 25 * starred + 30 * stars), 0) FROM lists) AS words,
    (SELECT coalesce(sum(length + 200 * starred), 0) FROM lists) AS words_characters";

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
    let (line, has_reserved_line) = (marked_line("c.line", false), has_reserved("c.line"));
    let lines = count_matches(
        &format!(
            "SELECT iif(star, substr(pattern, star + 1), ''), iif(star, substr(text, star), '')
            FROM (SELECT pattern, star, line || end AS text FROM (
                    SELECT iif({has_reserved_line}, NULL, {line}) AS line LIMIT -1) CROSS JOIN {patterns} LIMIT -1)
            WHERE iif(star, substr(text, 1, star - 1) = substr(pattern, 1, star - 1), c.line = pattern)"
        ),
        Text::Line,
    );
    // Only words with a `*` and other characters are marked. `**` matches every word, so it is not
    // compared.
    let (pattern, text) = (marked_word("value"), marked_word("text"));
    let compared = format!(
        "SELECT iif(starred, {pattern}, value) AS pattern, iif(starred, {text}, text) AS text,
            iif(starred, instr({pattern}, '*'), 0) AS star,
            starred AND ({} OR {}) AS is_refused
        FROM (SELECT w.value, w.value <> '*' AND instr(w.value, '*') AS starred, c.argv ->> w.key AS text
            FROM json_each(l.words) w WHERE w.key < l.length AND w.value <> '**' LIMIT -1) LIMIT -1",
        has_reserved("value"),
        has_reserved("text"),
    );
    let words = count_matches(
        &format!(
            "SELECT substr(pattern, instr(pattern, '*') + 1), substr(text, instr(pattern, '*'))
            FROM (SELECT {} AS pattern, {} AS text {STARRED} LIMIT -1)",
            marked_word("w.value"),
            marked_word("(c.argv ->> w.key)"),
        ),
        Text::Word,
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
                            WHERE is_refused OR CASE WHEN pattern = '*' THEN substr(text, 1, 1) = '-'
                                WHEN star THEN substr(text, 1, star - 1) <> substr(pattern, 1, star - 1) ELSE pattern <> text END)
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
        let (_, codes) = BLANK_OR_MARK.split_once('(').unwrap();
        let codes =
            codes.trim_end_matches(')').split(',').map(|code| code.trim().parse::<u32>().unwrap());
        let pattern: String = codes.filter_map(char::from_u32).collect();
        assert_eq!(
            pattern,
            format!("*[ \u{a0}\u{1680}\u{2000}-\u{200a}\u{202f}\u{205f}\u{3000}{OPTION}{DOTS}]*")
        );
        assert!(pattern.len() <= 50, "{}", pattern.len());
    }
}
