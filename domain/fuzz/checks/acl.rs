//! Compares the patterns of an access control list with a naive matcher. The first line of the
//! input is the pattern, the rest is a command line.

use farhand_domain::acl::Acl;
use serde_json::json;

/// Maximum length of an input for the naive matcher, in characters.
const MAX_LENGTH: usize = 200;

pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (pattern, line) = text.split_once('\n').unwrap_or((&text, ""));
    let Ok(acl) = Acl::read(&json!({"commands": [pattern]})) else { return };
    let stored = serde_json::to_string(&acl).expect("a list is JSON");
    assert_eq!(serde_json::from_str::<Acl>(&stored).expect("what is stored can be read"), acl);
    assert!(
        pattern.contains('*') || acl.allows_line(line) == (pattern == line),
        "a pattern without a star matches only itself"
    );
    let (pattern, line): (Vec<char>, Vec<char>) = (pattern.chars().collect(), line.chars().collect());
    if pattern.len() > MAX_LENGTH || line.len() > MAX_LENGTH {
        return;
    }
    let without_argument = pattern.strip_suffix(&[' ', '*']).is_some_and(|pattern| fits(pattern, &line));
    let expected = fits(&pattern, &line) || without_argument;
    assert_eq!(acl.allows_line(&line.iter().collect::<String>()), expected, "{pattern:?} {line:?}");
}

/// Whether a pattern matches a line, by the grammar (contract 4.12). `reached[n]`: the symbols so
/// far match the first `n` characters of the line.
fn fits(pattern: &[char], line: &[char]) -> bool {
    let mut reached = vec![false; line.len() + 1];
    reached[0] = true;
    for symbol in pattern {
        let before = reached.clone();
        for end in 0..=line.len() {
            reached[end] = match symbol {
                '*' => before[end] || (end > 0 && reached[end - 1] && is_plain(line[end - 1])),
                literal => end > 0 && before[end - 1] && line[end - 1] == *literal,
            };
        }
    }
    reached[line.len()]
}

fn is_plain(c: char) -> bool {
    !c.is_control() && !";&|<>`$()\\{}#'\"~\u{2028}\u{2029}".contains(c)
}
