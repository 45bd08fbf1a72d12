//! Patterns in access control lists (contract 4.12).
//!
//! A pattern and a text are compared with marks in both: one before each word that may be an
//! option, and one before each path segment that begins with `..`. So a literal part of a pattern
//! matches an option or `..` only if the pattern spells it, and the rules of a star say which
//! characters and marks it matches.
//!
//! `src/store/within_acl.rs` has the same rules in SQL. A test compares the two.

use std::fmt;
use std::ops::RangeInclusive;

/// As the last word of an entry of `argv`, it allows any further arguments.
pub const ANY_FURTHER_WORDS: &str = "...";

/// Noncharacters of Unicode, for marks. A `*` matches none, and a line that has one matches only
/// patterns without `*`.
pub const RESERVED: RangeInclusive<char> = '\u{fdd0}'..='\u{fdd5}';
/// The mark before a word that may be an option.
pub const OPTION: char = '\u{fdd0}';
/// The mark before a path segment that begins with `..`.
pub const DOTS: char = '\u{fdd1}';

/// The characters, apart from blanks, after which a path segment of a line or a word begins.
pub const SEGMENT_ENDS: [char; 4] = ['/', '=', ':', ','];
/// The characters with which an option of a line begins. A shell may replace `?`, `*` and `[` with
/// the name of a file that begins with `-`.
pub const OPTION_STARTS: [char; 4] = ['-', '?', '*', '['];
/// The characters that, after a `.`, make `..` in a line. A shell may replace `?`, `*` and `[`, and
/// removes quotes and backslashes.
pub const AFTER_DOT: [char; 7] = ['.', '?', '*', '[', '\'', '"', '\\'];

/// Whether a shell reads only words and blanks in the text.
#[cfg(test)]
pub(crate) fn is_plain(text: &str) -> bool {
    text.chars().all(is_plain_char)
}

/// See [`StarRule::Special`].
fn is_plain_char(c: char) -> bool {
    !(c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}')
        || matches!(c, ';' | '&' | '|' | '<' | '>' | '`' | '$' | '(' | ')' | '\\' | '{' | '}')
        || matches!(c, '#' | '\'' | '"' | '~'))
}

/// The characters that a shell removes from a word.
const QUOTES: [char; 3] = ['\'', '"', '\\'];

/// Whether a star after this text continues a quoted text. Then the marks of a line do not show
/// what a shell reads: `'.'*` would match `'.'.`, and `''*` would match `''-x`.
fn continues_quotes(before: &str) -> bool {
    before.strip_suffix('.').unwrap_or(before).ends_with(QUOTES)
}

/// Returns an error for a `*` that can match more than its pattern suggests: between quotes, after
/// a quote or a backslash, or before `#`.
pub(crate) fn star_problem(pattern: &str) -> Option<&'static str> {
    let mut quote = None;
    let mut characters = pattern.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        match (quote, c) {
            (Some(_), '*') => {
                return Some(
                    "A * may not stand between quotes: they do not limit what it matches.",
                );
            }
            (None | Some('"'), '\\') => {
                let escaped = characters.next();
                if escaped.is_some_and(|(_, escaped)| escaped == '*') {
                    return Some(
                        "A * may not follow a backslash: it would still match other text.",
                    );
                }
            }
            (None, '\'' | '"') => quote = Some(c),
            (None, '*') if continues_quotes(&pattern[..at]) => {
                return Some(
                    "A * may not follow a quote or a backslash: put the * or the quotes into a word of its own.",
                );
            }
            (None, '*') if characters.peek().is_some_and(|(_, next)| *next == '#') => {
                return Some(
                    "A * may not stand before #: it could turn the rest of the line into a comment.",
                );
            }
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
    }
    None
}

pub(crate) fn stars(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'*').count()
}

/// What a pattern is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    /// A line, which a shell reads.
    Line,
    /// A word of `argv`, which no shell reads.
    Word,
}

/// A rule that limits what a star matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StarRule {
    /// Only characters that a shell reads as parts of words, or as blanks.
    ///
    /// Operators start another command. `#` starts a comment, quotes join words and `~` names
    /// another folder, so they change the meaning of the rest of the line. Shells do not break a
    /// line at U+2028 or U+2029, but log viewers do.
    Special,
    /// No blanks.
    Blank,
    /// Not the `..` at the beginning of a path segment.
    Dots,
    /// No word that may be an option.
    Option,
}

impl StarRule {
    const ALL: [Self; 4] = [Self::Special, Self::Blank, Self::Dots, Self::Option];

    fn forbids(self, c: char) -> bool {
        match self {
            Self::Special => !is_plain_char(c),
            Self::Blank => c.is_whitespace(),
            Self::Dots => c == DOTS,
            Self::Option => c == OPTION,
        }
    }
}

impl fmt::Display for StarRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Special => "a * matches no shell operator, quote, #, ~ or control character",
            Self::Blank => "a * that touches another character matches no blank",
            Self::Dots => "a * that touches another character matches no .. of a path",
            Self::Option => "a * matches no word that may be an option, and ** does",
        })
    }
}

/// A run of `*` in a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Star {
    /// `*` between blanks: words of a line.
    Words,
    /// `**` between blanks: words of a line, also options.
    AnyWords,
    /// Any other run in a line: a part of one word.
    PartOfWord,
    /// A `*` in a word of `argv`.
    PartOfArgument,
}

impl Star {
    fn rules(self) -> &'static [StarRule] {
        match self {
            Self::Words => &[StarRule::Special, StarRule::Option],
            Self::AnyWords => &[StarRule::Special],
            Self::PartOfWord => &StarRule::ALL,
            Self::PartOfArgument => &[StarRule::Dots, StarRule::Option],
        }
    }

    /// Whether the star matches a text with marks, if only the rules in `enforced` apply.
    fn matches(self, text: &str, enforced: &[StarRule]) -> bool {
        let rules = || self.rules().iter().filter(|rule| enforced.contains(rule));
        !text.chars().any(|c| rules().any(|rule| rule.forbids(c)))
    }
}

/// Puts the marks of the rules in `enforced` into a text. A line gets a blank at its beginning, so
/// that its first word is like the others. In a pattern, `*` is no part of the text.
fn marked(text: &str, kind: Text, is_pattern: bool, enforced: &[StarRule]) -> String {
    let is_line = kind == Text::Line;
    let is_one_of = |c: char, list: &[char]| {
        list.contains(&c) && (is_line || matches!(c, '-' | '.')) && !(is_pattern && c == '*')
    };
    let mut marked = String::with_capacity(text.len() + 8);
    if is_line {
        marked.push(' ');
    }
    let mut before = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        let starts_word = before.is_none_or(|before| is_line && before == ' ');
        let starts_segment = starts_word || before.is_some_and(|c| SEGMENT_ENDS.contains(&c));
        if starts_word && is_one_of(c, &OPTION_STARTS) && enforced.contains(&StarRule::Option) {
            marked.push(OPTION);
        }
        let next = characters.peek();
        let leads_up = c == '.' && next.is_some_and(|next| is_one_of(*next, &AFTER_DOT));
        if starts_segment && leads_up && enforced.contains(&StarRule::Dots) {
            marked.push(DOTS);
        }
        marked.push(c);
        before = Some(c);
    }
    marked
}

/// Splits a marked pattern into the literal text before its first star, and its stars, each with
/// the literal text after it.
fn split(pattern: &str, kind: Text) -> (&str, Vec<(Star, &str)>) {
    let (head, mut rest) = pattern.split_at(pattern.find('*').unwrap_or(pattern.len()));
    let (mut before, mut stars) = (head, Vec::new());
    while !rest.is_empty() {
        let after = rest.trim_start_matches('*');
        let length = rest.len() - after.len();
        let (literal, next) = after.split_at(after.find('*').unwrap_or(after.len()));
        let is_free = before.ends_with(' ') && (after.is_empty() || after.starts_with(' '));
        let star = match (kind, is_free, length) {
            (Text::Word, ..) => Star::PartOfArgument,
            (Text::Line, true, 1) => Star::Words,
            (Text::Line, true, 2) => Star::AnyWords,
            (Text::Line, ..) => Star::PartOfWord,
        };
        stars.push((star, literal));
        (before, rest) = (literal, next);
    }
    (head, stars)
}

/// Whether a pattern matches a whole text, if only the rules in `enforced` apply. A free star at
/// the end of a line's pattern also matches no argument, so the line is compared with a further
/// blank.
///
/// The literal parts are searched from left to right. Each part is used at its first position,
/// without backtracking: a star is as short as possible, and the time is linear in the lengths of
/// both texts.
///
/// If all stars have the same rules, the first position is always right:
/// - If all characters of a part are allowed for a star, the first position is as good as a later
///   position, because the star after it can match the text in between.
/// - If a part has another character, no star can skip that character. So the part can match at
///   only one position.
fn fits(pattern: &str, text: &str, kind: Text, enforced: &[StarRule]) -> bool {
    if !pattern.contains('*') {
        return pattern == text;
    }
    if pattern.contains(|c| RESERVED.contains(&c)) || text.contains(|c| RESERVED.contains(&c)) {
        return false;
    }
    let pattern = marked(pattern, kind, true, enforced);
    let mut text = marked(text, kind, false, enforced);
    let (head, mut stars) = split(&pattern, kind);
    let Some((last, tail)) = stars.pop() else { return false };
    if tail.is_empty() && matches!(last, Star::Words | Star::AnyWords) {
        text.push(' ');
    }
    let Some(mut rest) = text.strip_prefix(head) else { return false };
    let mut before = head;
    for (star, literal) in stars {
        if star == Star::PartOfWord && continues_quotes(before) {
            return false;
        }
        before = literal;
        match rest.find(literal) {
            Some(start) if star.matches(&rest[..start], enforced) => {
                rest = &rest[start + literal.len()..];
            }
            _ => return false,
        }
    }
    !(last == Star::PartOfWord && continues_quotes(before))
        && rest.strip_suffix(tail).is_some_and(|gap| last.matches(gap, enforced))
}

/// Whether a pattern matches a line.
pub(crate) fn fits_line(pattern: &str, line: &str) -> bool {
    fits(pattern, line, Text::Line, &StarRule::ALL)
}

/// Whether an entry of `argv` matches the words of a command, word by word. After a last
/// [`ANY_FURTHER_WORDS`] any further words match. A word `*` matches any word that is no option,
/// and `**` any word.
pub fn matches_words(pattern: &[String], words: &[String]) -> bool {
    fits_words(pattern, words, &StarRule::ALL)
}

fn fits_words(pattern: &[String], words: &[String], enforced: &[StarRule]) -> bool {
    let (pattern, is_open) = match pattern.split_last() {
        Some((last, before)) if last == ANY_FURTHER_WORDS => (before, true),
        _ => (pattern, false),
    };
    let is_as_long =
        if is_open { words.len() >= pattern.len() } else { words.len() == pattern.len() };
    is_as_long
        && pattern.iter().zip(words).all(|(pattern, word)| match pattern.as_str() {
            "*" => !(word.starts_with('-') && enforced.contains(&StarRule::Option)),
            "**" => true,
            pattern => fits(pattern, word, Text::Word, enforced),
        })
}

/// The rules that keep a pattern from matching: without them it would match. `None`: it would not,
/// whatever the rules.
fn broken_rules(fits: impl Fn(&[StarRule]) -> bool) -> Option<Vec<StarRule>> {
    let (mut enforced, mut broken) = (Vec::new(), Vec::new());
    if !fits(&enforced) {
        return None;
    }
    for rule in StarRule::ALL {
        enforced.push(rule);
        if !fits(&enforced) {
            enforced.pop();
            broken.push(rule);
        }
    }
    Some(broken)
}

/// Describes the rules that keep the first possible entry of a list from matching, for people:
/// `commands[0] does not: a * …`.
fn explain<T>(key: &str, entries: &[T], fits: impl Fn(&T, &[StarRule]) -> bool) -> Option<String> {
    let broken = |(index, entry)| {
        broken_rules(|enforced| fits(entry, enforced)).map(|broken| (index, broken))
    };
    let (index, broken) = entries.iter().enumerate().find_map(broken)?;
    let broken: Vec<_> = broken.iter().map(StarRule::to_string).collect();
    Some(format!("{key}[{index}] does not: {}", broken.join("; ")))
}

/// Why no pattern of `commands` matches a line. `None` if other literal text is the reason.
pub fn explain_line(patterns: &[String], line: &str) -> Option<String> {
    explain("commands", patterns, |pattern, enforced| fits(pattern, line, Text::Line, enforced))
}

/// Why no entry of `argv` matches words. `None` if other literal text is the reason.
pub fn explain_words(entries: &[Vec<String>], words: &[String]) -> Option<String> {
    explain("argv", entries, |entry, enforced| fits_words(entry, words, enforced))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pattern: &str, line: &str) -> Option<String> {
        explain_line(&["id".to_owned(), pattern.to_owned()], line)
    }

    #[test]
    fn the_reason_names_the_rules_of_a_star() {
        for (pattern, text, rules) in [
            ("ls *", "ls; id", &[][..]),
            ("ls *", "ls a; id", &[StarRule::Special]),
            ("ls *", "ls -l", &[StarRule::Option]),
            ("ls *", "ls *.rs", &[StarRule::Option]),
            ("ls *", "ls -l $x", &[StarRule::Special, StarRule::Option]),
            ("ls **", "ls -l $x", &[StarRule::Special]),
            ("cat /log/*", "cat /log/x /etc/y", &[StarRule::Blank]),
            ("cat /log/*", "cat /log/../x", &[StarRule::Dots]),
            ("cat /log/.*", "cat /log/..", &[StarRule::Dots]),
            ("cat /log/*", "cat /log/x /log/../y", &[StarRule::Blank, StarRule::Dots]),
            ("run *.service", "run -Hx.service", &[StarRule::Option]),
        ] {
            let expected = (!rules.is_empty()).then(|| {
                let rules: Vec<_> = rules.iter().map(StarRule::to_string).collect();
                format!("commands[1] does not: {}", rules.join("; "))
            });
            assert_eq!(line(pattern, text), expected, "{pattern} {text}");
        }
        let words =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let entries = [words(&["cat", "/log/*"]), words(&["restart", "*", "..."])];
        for (argv, expected) in [
            (words(&["id"]), None),
            (words(&["cat", "/log/../x"]), Some(("argv[0] does not: ", StarRule::Dots))),
            (words(&["restart", "-x", "y"]), Some(("argv[1] does not: ", StarRule::Option))),
        ] {
            let expected = expected.map(|(begin, rule)| format!("{begin}{rule}"));
            assert_eq!(explain_words(&entries, &argv), expected, "{argv:?}");
        }
    }

    #[test]
    fn marks_show_options_and_dots() {
        let mark = |text: &str, kind, is_pattern| {
            let marked = marked(text, kind, is_pattern, &StarRule::ALL);
            marked.replace(OPTION, "O").replace(DOTS, "D")
        };
        for (text, of_line, of_word) in [
            ("-x -y", " O-x O-y", "O-x -y"),
            ("a ?b [c] d-?", " a O?b O[c] d-?", "a ?b [c] d-?"),
            ("../a/..", " D../a/D..", "D../a/D.."),
            ("a=..:..,.. b..", " a=D..:D..,D.. b..", "a=D..:D..,D.. b.."),
            (".?/.[/.'/.a .", " D.?/D.[/D.'/.a .", ".?/.[/.'/.a ."),
        ] {
            for is_pattern in [false, true] {
                assert_eq!(mark(text, Text::Line, is_pattern), of_line);
                assert_eq!(mark(text, Text::Word, is_pattern), of_word);
            }
        }
        assert_eq!(mark("* .*", Text::Line, false), " O* D.*");
        assert_eq!(mark("* .*", Text::Line, true), " * .*");
    }
}
