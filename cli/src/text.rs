//! Text for a terminal. Other users choose names, lines and messages, so control characters in them
//! are escaped.

/// Whether the character can control a terminal or change the order of the shown text.
fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_kept(character) || !is_control(character) {
            shown.push(character);
        } else {
            shown.extend(character.escape_default());
        }
    }
    shown
}

/// The text on one line, with escapes in place of control characters.
pub fn visible(text: &str) -> String {
    escaped(text, |_| false)
}

/// Like [`visible`], but keeps line breaks and tabs.
pub fn visible_lines(text: &str) -> String {
    escaped(text, |character| matches!(character, '\n' | '\t'))
}

/// Escapes control characters in JSON text. The serializer has already escaped the characters below
/// U+0020.
pub fn visible_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if character != '\n' && is_control(character) {
            shown.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The text, cut to at most `length` characters. A cut text ends with `…`.
pub fn shortened(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        None => text.to_owned(),
        Some(_) => text.chars().take(length.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(visible("a\x1b[2Jb\nc\u{9b}d"), "a\\u{1b}[2Jb\\nc\\u{9b}d");
        assert_eq!(visible("ärger 日本 🦀"), "ärger 日本 🦀");
        assert_eq!(visible("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(visible_lines("a\n\tb\r\x07"), "a\n\tb\\r\\u{7}");
    }

    #[test]
    fn json_stays_json() {
        let json = serde_json::json!({"a": "\u{1b}[2J\u{9b}\u{202e}é"});
        let shown = visible_json(&json.to_string());
        assert_eq!(shown, r#"{"a":"\u001b[2J\u009b\u202eé"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), json);
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcd", 3), "ab…");
    }
}
