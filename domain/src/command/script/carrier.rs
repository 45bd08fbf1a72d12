//! The line that carries a script to an agent without the feature `script` (agent-protocol 7.1).

use base64ct::{Base64, Encoding};

use crate::agent::wire::Script;
use crate::shell_words;

/// Maximum length of a body that a line can carry, in bytes. Linux limits an argument of a program
/// to 128 KiB, and base64 makes the body a third longer.
pub const MAX_CARRIED_BODY: usize = 90 * 1024;

/// A line that writes the body to a private file, runs it and deletes the file. A shell reads no
/// character of the body: it is base64.
///
/// The last command is `exit`, so that no shell replaces itself with the interpreter and forgets
/// the trap. A body of more than [`MAX_CARRIED_BODY`] does not fit.
pub fn carrier_line(script: &Script) -> String {
    let interpreter: Vec<String> =
        script.interpreter.split_ascii_whitespace().map(str::to_owned).collect();
    format!(
        "farhand_script=$(mktemp) || exit 126; trap 'rm -f \"$farhand_script\"' EXIT; trap 'exit 143' HUP INT TERM; \
         printf %s '{}' | base64 -d >\"$farhand_script\" || exit 126; {} \"$farhand_script\"; exit $?",
        Base64::encode_string(script.body.as_bytes()),
        shell_words::quoted(&interpreter)
    )
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output, Stdio};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::hash::sha256;

    fn script(interpreter: &str, body: &str) -> Script {
        Script { interpreter: interpreter.into(), body: body.into(), sha256: sha256(body) }
    }

    /// Runs a line as Alpamon does, with an empty folder for temporary files. Asserts that the
    /// folder is empty afterwards.
    fn run(script: &Script) -> Output {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("carrier-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let output = Command::new("/bin/sh")
            .args(["-c", &carrier_line(script)])
            .env("TMPDIR", &folder)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "a file is left");
        std::fs::remove_dir(&folder).unwrap();
        output
    }

    #[test]
    fn no_shell_reads_the_body() {
        for body in [
            "'; touch /tmp/owned; '",
            "\"$(id)\" `id` ${HOME} \\ \\' \\n",
            "EOF\nEOF\n'EOF'\n",
            "a\r\nb\t\u{1}\u{7f}\u{2028}é名\n",
            "-n -e %s %d \\0101",
            "#!/bin/false\n",
            "\n\n",
            "no line break at the end",
        ] {
            let output = run(&script("/bin/cat", body));
            assert_eq!(String::from_utf8(output.stdout).unwrap(), body);
            assert!(output.status.success());
        }
    }

    #[test]
    fn the_interpreter_gets_a_private_file_and_its_exit_code_counts() {
        let output =
            run(&script("/bin/sh -e", "stat -c %a \"$0\"; echo err >&2; (exit 7); echo no"));
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"600\n"[..]));
        assert_eq!(output.stderr, b"err\n");
        assert_eq!(run(&script("/no/such/program", "x")).status.code(), Some(127));
        // Whatever the interpreter is, it is a word and no operator.
        let output = run(&script("/bin/echo a;id >x $(id)", "x"));
        assert!(String::from_utf8(output.stdout).unwrap().starts_with("a;id >x $(id) /"));
    }

    #[test]
    fn the_longest_body_fits_into_an_argument() {
        let body = "x".repeat(MAX_CARRIED_BODY);
        let output = run(&script("/usr/bin/wc -c", &body));
        assert!(output.stdout.starts_with(b"92160 "), "{output:?}");
    }
}
