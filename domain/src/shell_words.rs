//! Converts the words of `argv` to a line: for people, and for agents that run only lines.

/// Whether a shell reads the word unchanged, without quotes.
fn is_bare(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_@%+:,./-".contains(&b))
}

/// The words as a line that `/bin/sh` splits into exactly these words.
///
/// ```
/// # use farhand_domain::shell_words::quoted;
/// assert_eq!(quoted(&["echo".into(), "it's".into(), String::new()]), r"echo 'it'\''s' ''");
/// ```
pub fn quoted(words: &[String]) -> String {
    let quoted = words.iter().map(|word| match is_bare(word) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Whether the words can be joined with blanks, so that an agent that splits the line at blanks
/// gets exactly these words.
///
/// Alpamon splits the line itself. But it treats the words `&&`, `||` and `;` as operators, and
/// some versions give a line with `|` or `>` to a shell. So words may have only letters, digits and
/// harmless punctuation.
pub fn fit_a_line(words: &[String]) -> bool {
    words.iter().all(|word| is_bare(&word.replace('=', "")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_shell_reads_the_same_words() {
        for some in [
            words(&["a", "b-c", "--x=y", "/usr/bin/env", "a@b:c,d%e+f.g_h"]),
            words(&["", " ", "a b", "\t", "a\nb", "'", "''", "a'b'c", "\"", "\\", "\\'", "'\\''"]),
            words(&[
                "$(id)", "`id`", "$HOME", "${x}", ";", "&&", "|", ">x", "<x", "#", "~", "*", "?",
                "[a]", "{a,b}", "!",
            ]),
            words(&["é", "名", "\u{a0}", "\u{2028}", "\u{1b}[2J", "\u{7f}", "="]),
        ] {
            let line = format!("printf '%s\\0' {}", quoted(&some));
            let output = Command::new("/bin/sh").arg("-c").arg(&line).output().unwrap();
            let read: Vec<_> = String::from_utf8(output.stdout)
                .unwrap()
                .split_terminator('\0')
                .map(String::from)
                .collect();
            assert_eq!(read, some, "{line}");
        }
        assert_eq!(quoted(&words(&["FOO=bar", "x"])), "'FOO=bar' x");
    }

    #[test]
    fn words_with_special_characters_do_not_fit_a_line() {
        assert!(fit_a_line(&words(&["ls", "--color=no", "/srv/a-b_c,1"])));
        for bad in [
            "",
            " ",
            "a b",
            "a\tb",
            "a\nb",
            "\u{a0}",
            "a\u{2003}b",
            "\u{85}",
            "=",
            "&&",
            "||",
            ";",
            "a;",
            "a|b",
            ">x",
            "$(id)",
            "`id`",
            "'",
            "\"",
            "\\",
            "*",
            "~",
            "{a,b}",
            "#",
        ] {
            assert!(!fit_a_line(&words(&["echo", bad])), "{bad:?}");
        }
    }
}
