//! Patterns in access control lists (contract 4.12).

/// As the last word of an entry of `argv`, it allows any further arguments.
pub const ANY_FURTHER_WORDS: &str = "...";

/// Whether `*` in a pattern matches the text: a shell reads only words and blanks in it.
///
/// Operators start another command. `#` starts a comment, quotes join words and `~` names another
/// folder, so they change the meaning of the rest of the line. Shells do not break a line at U+2028
/// or U+2029, but log viewers do.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.contains(|c: char| {
        c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}')
            || matches!(c, ';' | '&' | '|' | '<' | '>' | '`' | '$' | '(' | ')' | '\\' | '{' | '}')
            || matches!(c, '#' | '\'' | '"' | '~')
    })
}

/// Returns an error for a `*` that can match more than its pattern suggests: between quotes, after
/// a backslash or before `#`.
pub(crate) fn star_problem(pattern: &str) -> Option<&'static str> {
    let mut quote = None;
    let mut characters = pattern.chars().peekable();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(_), '*') => {
                return Some(
                    "A * may not stand between quotes: they do not limit what it matches.",
                );
            }
            (None | Some('"'), '\\') => {
                let escaped = characters.next();
                if escaped == Some('*') {
                    return Some(
                        "A * may not follow a backslash: it would still match other text.",
                    );
                }
            }
            (None, '\'' | '"') => quote = Some(c),
            (None, '*') if characters.peek() == Some(&'#') => {
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

/// Whether a pattern matches a whole line.
///
/// The literal parts are searched from left to right. Each part is used at its first position,
/// without backtracking, so the time is linear in the lengths of both texts.
///
/// The first position is always right, although a star matches only plain text:
/// - If a part is all plain, the first position is as good as a later position, because the star
///   after it can match the text in between.
/// - If a part has a character that is not plain, no star can skip that character. So the part can
///   match at only one position.
pub(crate) fn fits(pattern: &str, line: &str) -> bool {
    fits_with(pattern, line, is_plain)
}

/// Whether a pattern matches a whole text. Each `*` matches any text that `star_matches` accepts.
fn fits_with(pattern: &str, line: &str, star_matches: fn(&str) -> bool) -> bool {
    let mut parts = pattern.split('*');
    let (Some(head), Some(tail)) = (parts.next(), parts.next_back()) else {
        return pattern == line;
    };
    let Some(mut rest) = line.strip_prefix(head) else { return false };
    for part in parts {
        match rest.find(part) {
            Some(start) if star_matches(&rest[..start]) => rest = &rest[start + part.len()..],
            _ => return false,
        }
    }
    rest.strip_suffix(tail).is_some_and(star_matches)
}

/// Whether an entry of `argv` matches the words of a command, word by word. After a last
/// [`ANY_FURTHER_WORDS`] any further words match. No shell reads the words, so `*` matches any
/// text.
pub fn matches_words(pattern: &[String], words: &[String]) -> bool {
    let (pattern, is_open) = match pattern.split_last() {
        Some((last, before)) if last == ANY_FURTHER_WORDS => (before, true),
        _ => (pattern, false),
    };
    let is_as_long =
        if is_open { words.len() >= pattern.len() } else { words.len() == pattern.len() };
    is_as_long
        && pattern.iter().zip(words).all(|(pattern, word)| fits_with(pattern, word, |_| true))
}
