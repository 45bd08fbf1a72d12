//! Compares the patterns of an access control list with a matcher that tries everything. The first
//! line of the input is the pattern, the rest is a command line.

use farhand_domain::access::acl::Acl;
use serde_json::json;

/// Maximum length of an input for the naive matcher, in characters.
const MAX_LENGTH: usize = 200;

pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (pattern, line) = text.split_once('\n').unwrap_or((&text, ""));
    let Ok(acl) = Acl::read(&json!({"commands": [pattern]})) else { return };
    let stored = serde_json::to_string(&acl).expect("a list is JSON");
    assert_eq!(serde_json::from_str::<Acl>(&stored).expect("what is stored can be read"), acl);
    let is_allowed = acl.allows_line(line);
    if !pattern.contains('*') {
        assert!(is_allowed == (pattern == line), "a pattern without a star matches only itself");
        return;
    }
    let (pattern, line): (Vec<char>, Vec<char>) = (pattern.chars().collect(), line.chars().collect());
    if pattern.len() > MAX_LENGTH || line.len() > MAX_LENGTH {
        return;
    }
    let symbols = symbols(&pattern);
    // A free star at the end also matches no argument.
    let is_open = matches!(symbols.last(), Some(Symbol::Words | Symbol::AnyWords));
    let expected =
        fits(&symbols, &line) || is_open && fits(&symbols, &[line.clone(), vec![' ']].concat());
    assert!(!is_allowed || expected, "{pattern:?} allows {line:?}");
    // If the stars differ, a star that is as short as possible can miss a match.
    let stars: Vec<_> = symbols.iter().filter(|symbol| !matches!(symbol, Symbol::Literal(..))).collect();
    if stars.windows(2).all(|pair| pair[0] == pair[1]) {
        assert!(is_allowed || !expected, "{pattern:?} refuses {line:?}");
    }
}

/// A part of a pattern (contract 4.12).
#[derive(Clone, Copy, PartialEq)]
enum Symbol {
    /// A character, and what begins at it.
    Literal(char, Begins),
    Words,
    AnyWords,
    PartOfWord,
}

/// What begins at a character.
#[derive(Clone, Copy, PartialEq)]
enum Begins {
    Nothing,
    Option,
    Dots,
}

/// What begins at a character of a text. In a pattern, `*` is no part of the text.
fn begins(text: &[char], at: usize, is_pattern: bool) -> Begins {
    let before = if at == 0 { ' ' } else { text[at - 1] };
    let is_star = |c: char| is_pattern && c == '*';
    let next = text.get(at + 1).copied().filter(|c| !is_star(*c));
    if before == ' ' && "-?*[".contains(text[at]) && !is_star(text[at]) {
        Begins::Option
    } else if " /=:,".contains(before) && text[at] == '.' && next.is_some_and(|c| ".?*[\\'\"".contains(c)) {
        Begins::Dots
    } else {
        Begins::Nothing
    }
}

fn symbols(pattern: &[char]) -> Vec<Symbol> {
    let mut symbols = Vec::new();
    let mut at = 0;
    while at < pattern.len() {
        let stars = pattern[at..].iter().take_while(|c| **c == '*').count();
        let is_blank = |c: Option<&char>| c.is_none_or(|c| *c == ' ');
        let is_free = is_blank(pattern[..at].last()) && is_blank(pattern.get(at + stars));
        symbols.push(match (stars, is_free) {
            (0, _) => Symbol::Literal(pattern[at], begins(pattern, at, true)),
            (1, true) => Symbol::Words,
            (2, true) => Symbol::AnyWords,
            _ => Symbol::PartOfWord,
        });
        at += stars.max(1);
    }
    symbols
}

/// Whether a pattern matches a line. `reached[n]`: the symbols so far match the first `n`
/// characters of the line.
fn fits(symbols: &[Symbol], line: &[char]) -> bool {
    let mut reached = vec![false; line.len() + 1];
    reached[0] = true;
    for symbol in symbols {
        let before = reached.clone();
        for end in 0..=line.len() {
            let last = end.checked_sub(1).map(|at| (line[at], begins(line, at, false)));
            reached[end] = match (symbol, last) {
                (Symbol::Literal(c, begins), last) => {
                    last == Some((*c, *begins)) && before[end - 1] && !is_reserved(*c)
                }
                (_, None) => before[0],
                (star, Some((c, begins))) => before[end] || reached[end - 1] && may_match(*star, c, begins),
            };
        }
    }
    reached[line.len()]
}

/// Whether a star may match a character.
fn may_match(star: Symbol, c: char, begins: Begins) -> bool {
    let is_plain = !c.is_control()
        && !";&|<>`$()\\{}#'\"~\u{2028}\u{2029}".contains(c)
        && !is_reserved(c);
    is_plain
        && match star {
            Symbol::AnyWords => true,
            Symbol::Words => begins != Begins::Option,
            _ => begins == Begins::Nothing && !c.is_whitespace(),
        }
}

/// Noncharacters, which no pattern with a star matches.
fn is_reserved(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdd5}').contains(&c)
}
