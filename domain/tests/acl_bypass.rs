//! Attempts to bypass the patterns of an access control list (contract 4.12). The tests also run
//! allowed lines in the host's shell: each must run exactly one program, with exactly the words of
//! the line.

// In a test, a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, id};

use farhand_domain::access::acl::Acl;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

fn with(pattern: &str) -> Acl {
    Acl::read(&json!({"commands": [pattern]}))
        .unwrap_or_else(|problems| panic!("{pattern}: {problems:?}"))
}

/// Patterns, each with lines that it allows and lines that it refuses.
const TABLE: &[(&str, &[&str], &[&str])] = &[
    (
        "ls *",
        &[
            "ls",
            "ls ",
            "ls  ",
            "ls /tmp a-b",
            "ls a=b",
            "ls a*.rs b? c[a-c] !x",
            "ls %y ^z @w +v ,u :t _r .q /p ../o ..",
            "ls é 名 😀",
            // For a shell, characters that look like operators are ordinary characters.
            "ls \u{ff1b}id",
            "ls \u{37e}id",
            "ls \u{ff06}\u{ff06}id",
            "ls \u{ff5c}sh",
            "ls \u{ff1e}x",
            "ls \u{ff04}HOME",
            "ls \u{2018}x\u{2019} \u{201c}y\u{201d}",
            "ls \u{ff03}x \u{ff5e}",
            // The same holds for other kinds of blanks and for invisible marks.
            "ls a\u{a0}b",
            "ls a\u{2003}b",
            "ls a\u{3000}b",
            "ls a\u{200b}b",
            "ls a\u{202e}b",
            "ls a\u{feff}b",
            "ls e\u{301}",
        ],
        &[
            // Options, and words that a shell may replace with an option.
            "ls -l",
            "ls -l /tmp",
            "ls /tmp -l",
            "ls  -l",
            "ls --",
            "ls -- -l",
            "ls -",
            "ls *.rs",
            "ls a *",
            "ls ?",
            "ls [a-c]",
            "ls [!x]",
            // Operators between commands.
            "ls; id",
            "ls ;id",
            "ls -l; id",
            "ls -l ;",
            "ls ;; id",
            "ls && id",
            "ls &&id",
            "ls & id",
            "ls &",
            "ls -l&id",
            "ls | sh",
            "ls |sh",
            "ls || id",
            "ls |& id",
            "ls -l|sh",
            // Redirections and here-documents.
            "ls > /etc/passwd",
            "ls >x",
            "ls >> x",
            "ls >| x",
            "ls >& x",
            "ls 2>&1",
            "ls 2> x",
            "ls &> x",
            "ls < /etc/shadow",
            "ls <> x",
            "ls <& 3",
            "ls << EOF",
            "ls <<EOF\nid\nEOF",
            "ls <<- EOF",
            "ls <<< id",
            // Process substitution, subshells and functions.
            "ls <(id)",
            "ls >(id)",
            "ls (id)",
            "ls ()",
            "ls () { id; }",
            "ls =(id)",
            // Substitution and expansion.
            "ls $(id)",
            "ls \"$(id)\"",
            "ls $((1))",
            "ls $[1]",
            "ls `id`",
            "ls \"`id`\"",
            "ls $HOME",
            "ls $$",
            "ls $1",
            "ls $@",
            "ls ${IFS}id",
            "ls ${x:=$(id)}",
            "ls $'\\x3b'",
            "ls $\"x\"",
            "ls {a,b}",
            "ls {1..9}",
            "ls a{b",
            "ls a}b",
            "ls ~",
            "ls ~root",
            "ls ~+",
            "ls a=~",
            "ls a~",
            // Quoting.
            "ls \\",
            "ls \\; id",
            "ls \\\nid",
            "ls a\\ b",
            "ls 'a b'",
            "ls \"a b\"",
            "ls ''",
            "ls \"\"",
            "ls '",
            "ls \"",
            "ls a'b'c",
            "ls ';' id",
            "ls '\nid\n'",
            // Comments.
            "ls # x",
            "ls #",
            "ls -l #x",
            "ls a#b",
            // Line ends and other control characters.
            "ls\nid",
            "ls \nid",
            "ls -l\n",
            "ls -l\n\n",
            "\nls",
            "ls\n",
            "ls -l\r\nid",
            "ls -l\rid",
            "ls -l\r",
            "ls\t-l",
            "ls \t-l",
            "ls -l\t",
            "ls -l\tid",
            "ls -l\u{b}id",
            "ls -l\u{c}id",
            "ls -l\0",
            "ls\0-l",
            "ls -l\0; id",
            "ls -l\u{1}",
            "ls -l\u{4}",
            "ls -l\u{7}",
            "ls -l\u{8}\u{8}id",
            "ls -l\u{1a}",
            "ls -l\u{1b}[2Jid",
            "ls -l\u{1c}id",
            "ls -l\u{1f}id",
            "ls -l\u{7f}id",
            "ls -l\u{80}id",
            "ls -l\u{85}id",
            "ls -l\u{9b}2Jid",
            "ls -l\u{9f}id",
            "ls -l\u{2028}id",
            "ls -l\u{2029}id",
            // Another program, or the same program by another path.
            "",
            " ",
            " ls",
            "\tls",
            "\u{a0}ls",
            "\u{feff}ls",
            "\u{202e}ls",
            "l",
            "LS",
            "Ls -l",
            "lsof",
            "ls-l",
            "ls/../id",
            "ls\u{a0}-l",
            "ls\u{2003}-l",
            "ls\u{3000}-l",
            "ls\u{200b}",
            "ls\u{301}",
            "ls\u{ad}",
            "\u{217c}s",
            "l\u{455}",
            "\u{ff4c}\u{ff53}",
            "l\u{200b}s",
            "'ls'",
            "\"ls\" -l",
            "l's'",
            "l\\s",
            "l\"\"s",
            "\\ls",
            "./ls",
            "../ls",
            "/bin/ls",
            "//bin/ls",
            "~/ls",
            "$0 ls",
            "sudo ls",
            "! ls",
            "exec ls",
            "command ls",
            "eval ls",
            ". ls",
            "time ls",
            "{ ls; }",
            "(ls)",
            "#ls",
            "if ls; then id; fi",
            "LD_PRELOAD=x ls",
            "PATH=/tmp ls -l",
            "IFS=x ls",
            "ls=id",
            "ls() { id; }",
            ">x ls",
            "<x ls",
            "2>&1 ls",
            "id ls",
            "id; ls",
            "id\nls",
        ],
    ),
    // A line without arguments matches only if a blank is before the last star.
    ("df*", &["df", "df-h", "dfx"], &["df -h", "df ", "df;id", "df\nid", "d", "df/../id"]),
    (
        "df -h",
        &["df -h"],
        &[
            "df",
            "df -h ",
            "df -h x",
            "df  -h",
            "df\t-h",
            "df \u{2010}h",
            "df -h\u{fe0f}",
            "df -h\n",
            "DF -H",
        ],
    ),
    (
        "uptime",
        &["uptime"],
        &["uptime ", "uptime -p", "uptime;", "uptime #", "uptime\0", "uptime\u{200b}", "./uptime"],
    ),
    (
        "git * *",
        &["git  ", "git a b", "git ", "git a"],
        &["git", "git;a b", "git a b;c", "git -c 'x' b", "git -c a", "git a -c"],
    ),
    // A comment would remove a mandatory tail. A security report had this case.
    (
        "echo * --dry-run",
        &["echo prod --dry-run", "echo  --dry-run", "echo a b --dry-run"],
        &[
            "echo --x=y --dry-run",
            "echo a --dry-run --dry-run",
            "echo prod # --dry-run",
            "echo prod #--dry-run",
            "echo # --dry-run",
            "echo prod\u{20}#\u{20}x --dry-run",
            "echo prod ' --dry-run",
            "echo prod \" --dry-run",
            "echo prod '' --dry-run",
            "echo prod \\ --dry-run",
            "echo prod\\ --dry-run",
            "echo prod << --dry-run",
            "echo prod > --dry-run",
            "echo prod ; --dry-run",
            "echo prod\n --dry-run",
            "echo prod",
            "echo prod --dry-run x",
            "echo prod --dry-run ",
            "echo prod --dry-ru",
            "echo --dry-run",
            "echo prod --DRY-RUN",
            "echo prod \u{2013}dry-run --dry-ru",
        ],
    ),
    (
        "backup * --dry-run",
        &["backup db --dry-run"],
        &[
            "backup db # --dry-run",
            "backup db '# --dry-run",
            "backup db && true --dry-run",
            "backup db|cat --dry-run",
        ],
    ),
    // Quotes in the line, for a pattern that has quotes too.
    (
        "grep 'a b' * /var/log/x",
        &["grep 'a b' y /var/log/x", "grep 'a b'  /var/log/x"],
        &[
            "grep 'a b' -f /var/log/x",
            "grep 'a b' '' /etc/passwd /var/log/x'",
            "grep 'a b' \"\" /etc/passwd /var/log/x\"",
            "grep 'a b' '/etc/passwd' /var/log/x",
            "grep \"a b\" -c /var/log/x",
            "grep a b -c /var/log/x",
            "grep 'a b' /etc/passwd # /var/log/x",
            "grep 'a b' ~root/x /var/log/x",
        ],
    ),
    // A star in the middle of a word, and paths. A path is just text.
    (
        "systemctl restart *.service",
        &[
            "systemctl restart nginx.service",
            "systemctl restart .service",
            "systemctl restart a?[b]*.service",
        ],
        &[
            "systemctl restart a b.service",
            "systemctl restart a\u{a0}b.service",
            "systemctl restart a\u{3000}b.service",
            "systemctl restart -Hhost.service",
            "systemctl restart -H host x.service",
            "systemctl restart *.service",
            "systemctl restart ?x.service",
            "systemctl restart ../x.service",
            "systemctl restart x;id.service",
            "systemctl restart .service; id",
            "systemctl restart nginx.service ",
            "systemctl restart nginx_service",
            "systemctl restart nginx\u{2024}service",
            "systemctl restart nginx.service.",
            "systemctl restart $(id).service",
            "systemctl restart x #.service",
            "systemctl restart 'x'.service",
            "systemctl stop nginx.service",
        ],
    ),
    (
        "cat /srv/public/*",
        &[
            "cat /srv/public/x",
            "cat /srv/public/",
            "cat /srv/public/.x/a..b/*.[a-z]?",
            "cat /srv/public/-x",
            "cat /srv/public/.",
        ],
        &[
            "cat /srv/public/../../etc/hostname",
            "cat /srv/public/..",
            "cat /srv/public/../",
            "cat /srv/public/x/../../../etc/hostname",
            "cat /srv/public/x/..",
            "cat /srv/public//..",
            "cat /srv/public/./../x",
            // A shell may replace these with `..`.
            "cat /srv/public/.?/x",
            "cat /srv/public/.*/x",
            "cat /srv/public/.[.]/x",
            "cat /srv/public/x/.*",
            // Further words.
            "cat /srv/public/x /etc/passwd",
            "cat /srv/public/ /etc/passwd",
            "cat /srv/public/x ",
            "cat /srv/public",
            "cat /srv/private/x",
            "cat /srv/public/~root",
            "cat /srv/public/{x,/etc/passwd}",
            "cat /srv/public/$HOME",
            "cat /srv/public/x </etc/passwd",
            "cat //srv/public/x",
            "cat /srv/./public/x",
            "cat /SRV/public/x",
            "cat /srv/public\u{2215}x",
        ],
    ),
    // Other characters match themselves, even operators, and a star matches no operator.
    (
        "echo a; echo b",
        &["echo a; echo b"],
        &[
            "echo a",
            "echo a;echo b",
            "echo a\u{37e} echo b",
            "echo a; echo b; id",
            "echo a;  echo b",
        ],
    ),
    (
        "ps | grep *",
        &["ps | grep x", "ps | grep"],
        &[
            "ps",
            "ps | grep x | sh",
            "ps | grep x; id",
            "ps \u{ff5c} grep x",
            "ps | grep 'x'",
            "ps |  grep x",
        ],
    ),
    (
        "cat ?[x].conf",
        &["cat ?[x].conf"],
        &["cat ax.conf", "cat ?x.conf", "cat *[x].conf", "cat [x].conf"],
    ),
    ("echo %_", &["echo %_"], &["echo abc", "echo %a", "echo a_"]),
    ("a.c", &["a.c"], &["abc", "a-c", "a\nc"]),
    (
        "x $*",
        &["x $y", "x $"],
        &["x $(id)", "x ${y}", "x $y$z", "x $'y'", "x $\"y\"", "x $`id`", "x $#"],
    ),
    (
        "su - deploy -c *",
        &["su - deploy -c id"],
        &["su - deploy -c 'id'", "su - deploy -c id; id", "su - root -c id", "su -"],
    ),
    (
        "*",
        &["", "id", "ls l", "a b c"],
        &[
            "ls -l",
            "-l",
            "id; ls",
            "$x",
            "a\nb",
            "(id)",
            "id &",
            "a\u{2028}b",
            "'id'",
            "id # x",
            "~/x",
        ],
    ),
    ("**", &["", "id", "ls -l"], &["id;", "$x", "'"]),
    ("ls **", &["ls", "ls ", "ls -l a", "ls *", "ls ../x"], &["ls; id", "ls 'a'", "ls\tx", "lsof"]),
    (
        "systemctl restart -- app-*",
        &["systemctl restart -- app-web", "systemctl restart -- app-"],
        &[
            "systemctl restart -- app-web sshd",
            "systemctl restart -- app-web -H host",
            "systemctl restart -H host -- app-web",
            "systemctl restart app-web",
            "systemctl restart -- app-/../sshd",
            "systemctl restart -- -H host",
        ],
    ),
    (
        "tail -n * /var/log/*",
        &["tail -n 5 /var/log/x", "tail -n  /var/log/x"],
        &[
            "tail -n 5 /var/log/x /var/log/y",
            "tail -n 5 /etc/x /var/log/../y",
            "tail -n 5 -f /var/log/x",
            "tail -n 5 /var/log/x /etc/passwd",
        ],
    ),
    // `..` that the pattern does not spell.
    ("cat ../a/*", &["cat ../a/b"], &["cat ../a/../b", "cat ../a/.."]),
    (
        "cat /srv/.*",
        &["cat /srv/.a", "cat /srv/."],
        &["cat /srv/..", "cat /srv/../a", "cat /srv/.?"],
    ),
    ("cat /srv/*.", &["cat /srv/a.", "cat /srv/."], &["cat /srv/..", "cat /srv/a/.."]),
    ("cat /srv/..*", &["cat /srv/..", "cat /srv/..a"], &["cat /srv/../../a", "cat /srv/.a"]),
    ("cat /srv/*'.'", &["cat /srv/a'.'"], &["cat /srv/.'.'", "cat /srv/a/.'.'"]),
    ("cat /srv/*\\.", &["cat /srv/a\\."], &["cat /srv/.\\."]),
    ("cat /srv/*; id", &["cat /srv/a; id"], &["cat /srv/..; id", "cat /srv/a/..; id"]),
    ("cat /srv/*$x", &["cat /srv/a$x"], &["cat /srv/..$x", "cat /srv/a/..$x"]),
    (
        "run -v /srv/*:/data",
        &["run -v /srv/a:/data"],
        &["run -v /srv/..:/data", "run -v /srv/a:..:/data"],
    ),
    ("tool --in=*", &["tool --in=/a"], &["tool --in=../a", "tool --in=..", "tool --in=a,../b"]),
    ("ls -*", &["ls -l", "ls -"], &["ls l", "ls -l x", "ls  -l"]),
    ("*-x", &["a-x"], &["-x", "--x", "a -x"]),
    (" *", &["", " x"], &["x", "\u{a0}x", "\tx"]),
    (
        "* --help",
        &["ls --help", " --help"],
        &["--help", "ls;x --help", "ls # --help", "ls --help x"],
    ),
    ("é*", &["é", "éa"], &["e\u{301}", "e\u{301}a", "É", "e", "é;"]),
    ("id", &["id"], &["ID", "id ", " id", "id\n", "i\u{200d}d", "\u{131}d", "id\u{0}", "id;"]),
];

#[test]
fn no_line_bypasses_a_pattern() {
    let mut cases = 0;
    for (pattern, allowed, refused) in TABLE {
        let acl = with(pattern);
        for line in *allowed {
            assert!(acl.allows_line(line), "{pattern:?} should allow {line:?}");
        }
        for line in *refused {
            assert!(!acl.allows_line(line), "{pattern:?} should refuse {line:?}");
        }
        cases += allowed.len() + refused.len();
    }
    assert!(cases >= 250, "{cases}");
}

#[test]
fn patterns_hold_for_very_long_lines() {
    let long = "a ".repeat(8_000);
    for (pattern, line, is_allowed) in [
        ("ls *", format!("ls {long}"), true),
        ("ls *", format!("ls {long}-l"), false),
        ("ls **", format!("ls {long}-l"), true),
        ("ls a*", format!("ls {long}"), false),
        ("ls *", format!("ls {long};id"), false),
        ("ls *", format!("ls {long}\nid"), false),
        ("ls *", format!("ls {long}# x"), false),
        ("ls *", format!("{long}ls"), false),
        ("ls * --dry-run", format!("ls {long} --dry-run"), true),
        ("ls * --dry-run", format!("ls {long}# --dry-run"), false),
        ("ls * --dry-run", format!("ls {long} --dry-run {long}"), false),
    ] {
        assert_eq!(with(pattern).allows_line(&line), is_allowed, "{pattern:?} {line:.40?}");
    }
}

/// A folder with the only programs that a line under test can find, and an empty working directory.
struct Sandbox {
    folder: PathBuf,
}

impl Sandbox {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("farhand-acl-{name}-{}", id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::create_dir_all(folder.join("work")).unwrap();
        let sandbox = Self { folder };
        // `probe` prints its arguments. `canary` leaves a mark if it runs.
        sandbox.program("probe", "printf '<'; printf '%s\\0' \"$@\"; printf '>'");
        sandbox
            .program("canary", &format!("echo ran >> {}", sandbox.folder.join("mark").display()));
        sandbox
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.folder.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a line like an agent, and asserts that it ran `probe` once with the words of the line,
    /// and nothing else.
    fn runs_as_written(&self, line: &str) {
        let (work, bin) = (self.folder.join("work"), self.folder.join("bin"));
        let mut shell = Command::new("/bin/sh");
        let output = shell
            .arg("-c")
            .arg(line)
            .env_clear()
            .env("PATH", bin)
            .current_dir(&work)
            .output()
            .unwrap();
        let words: String = line
            .split(' ')
            .filter(|word| !word.is_empty())
            .skip(1)
            .map(|word| format!("{word}\0"))
            .collect();
        // Without arguments, printf prints its format once.
        let words = if words.is_empty() { "\0".to_owned() } else { words };
        let ran = String::from_utf8_lossy(&output.stdout);
        if line.contains(['*', '?', '[']) {
            // The shell may replace a word with names of files.
            assert!(
                ran.starts_with('<') && ran.ends_with('>') && ran.matches(['<', '>']).count() == 2,
                "{line:?}: {ran:?}"
            );
        } else {
            assert_eq!(ran, format!("<{words}>"), "{line:?}");
        }
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{line:?}");
        assert!(!self.folder.join("mark").exists(), "{line:?} ran another program");
        assert_eq!(fs::read_dir(work).unwrap().count(), 0, "{line:?} wrote a file");
    }
}

impl Sandbox {
    /// Runs a line in each shell that the host has, and asserts that `canary` did not run.
    fn runs_no_canary(&self, line: &str) {
        for shell in ["sh", "bash", "dash"] {
            let run = Command::new(format!("/bin/{shell}"))
                .args(["-c", line])
                .env_clear()
                .env("PATH", self.folder.join("bin"))
                .current_dir(self.folder.join("work"))
                .output();
            assert!(run.is_ok() || shell != "sh", "{line:?}");
            assert!(!self.folder.join("mark").exists(), "{line:?} ran another program in {shell}");
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Texts that an attacker may try.
fn pieces() -> impl Strategy<Value = String> {
    let pieces = vec![
        "canary", "probe", " ", " ", "a", "=", "-x", "/", "..", "*", "?", "[a]", "!", "^", "%",
        "@", "+", ",", ":", ".", "-", "--", "1", "2", "exec", "eval", "if", "then", "fi", "do",
        "done", "é", "\u{ff1b}", "\u{a0}", "\u{200b}", "\u{2003}", "\u{3000}", "\u{301}",
        "\u{ff04}", ";", "&", "|", "<", ">", "<<", ">(", "$(", ")", "`", "${", "}", "{", "(", "\\",
        "'", "\"", "#", "~", "\n", "\r", "\t", "\u{b}", "\u{85}", "\u{2028}", "$", "$IFS",
    ];
    prop::collection::vec(select(pieces), 0..7).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any text may replace the stars: an allowed line runs the pattern's program once, with the
    /// words of the line.
    #[test]
    fn an_allowed_line_is_one_command(
        pattern in select(vec!["probe *", "probe **", "probe * --dry-run", "probe ** -x a*b *", "probe -- *.x **"]),
        stars in (pieces(), pieces()),
    ) {
        let mut stars = [stars.0, stars.1].into_iter();
        let mut line = String::new();
        for (index, part) in pattern.split('*').enumerate() {
            if index > 0 {
                line.push_str(&stars.next().unwrap_or_default());
            }
            line.push_str(part);
        }
        if with(pattern).allows_line(&line) {
            let sandbox = Sandbox::new("property");
            sandbox.runs_as_written(&line);
        }
    }
}

/// Tries each character alone, at the start, in the middle and at the end of the text for the star.
#[test]
fn no_single_character_changes_what_a_line_runs() {
    let sandbox = Sandbox::new("characters");
    let others = [
        '\u{80}', '\u{85}', '\u{a0}', '\u{ad}', '\u{1680}', '\u{2003}', '\u{200b}', '\u{2028}',
        '\u{3000}', '\u{feff}', '😀',
    ];
    let acl = with("probe * --dry-run");
    let mut run = 0;
    for c in (1..=0x7e_u8).map(char::from).chain(others) {
        for line in [
            format!("probe {c}canary --dry-run"),
            format!("probe x {c} canary --dry-run"),
            format!("probe x{c} --dry-run"),
        ] {
            if acl.allows_line(&line) {
                sandbox.runs_as_written(&line);
                run += 1;
            }
        }
    }
    assert!(run > 200, "{run}");
}

/// The forms of the second security report: separators, wrappers, prefixes and arguments, for each
/// kind of pattern. No allowed line runs another program.
#[test]
fn no_form_of_the_second_report_runs_another_program() {
    let sandbox = Sandbox::new("report");
    let separators = [
        ";", " ; ", "&", " & ", "&&", " && ", "|", " | ", "||", "|&", ";;", "\n", "\r", "\r\n",
        "\t", "\u{b}", "\u{c}", "\u{1}", "\u{1b}", "\u{7f}", "\u{85}", "\u{2028}", "\u{2029}",
        "\u{a0}", "\u{1680}", "\u{2003}", "\u{200b}", "\u{202e}", "\u{3000}", "\u{feff}",
        "\u{ff1b}", "\u{37e}", "\u{ff06}", "\u{ff5c}", "\u{2024}", "\\\n", " #\n", " <<<",
        "\u{fdd0}",
    ];
    let wrappers = [
        "$(canary)",
        "`canary`",
        "$((canary))",
        "${x:=$(canary)}",
        "${x:-`canary`}",
        "$[canary]",
        "<(canary)",
        ">(canary)",
        "(canary)",
        "{canary,}",
        "{ canary; }",
        "=(canary)",
        "$'\\ncanary'",
        "<<EOF\n$(canary)\nEOF",
        "<<<$(canary)",
        ">x canary",
        ">|x;canary",
        "2>&1;canary",
        "&>x canary",
        "() { canary; }",
        "$IFS;canary",
    ];
    let around = ["", "'", "\"", "\\"];
    let prefixes = [
        "canary; ",
        "canary & ",
        "exec ",
        "eval ",
        "command ",
        "env ",
        "nohup ",
        "time ",
        "! ",
        ". ",
        "/bin/",
        "\\",
        "'",
        "X=1 ",
        "PATH=/tmp ",
    ];
    let arguments = [
        "-x",
        "--canary",
        "-ocanary",
        "-H canary",
        "-- -x",
        "-",
        "--",
        "?",
        "?canary",
        "*",
        "*.rs",
        "[a-z]*",
        "+x",
        "..",
        "../canary",
        "a/../canary",
        "@canary",
        "%canary",
        "!canary",
        "x=canary",
        "canary",
    ];
    let tails: Vec<String> = (separators.iter().map(|separator| format!("a{separator}canary")))
        .chain(around.iter().flat_map(|quote| {
            wrappers.iter().map(move |wrapper| format!("{quote}{wrapper}{quote}"))
        }))
        .chain(arguments.map(str::to_owned))
        .collect();
    let (mut tried, mut allowed) = (0, 0);
    for pattern in [
        "probe restart *",
        "probe *",
        "probe **",
        "probe /var/log/*",
        "probe * --dry-run",
        "probe -n * /var/log/dpkg.log",
        "cd / && probe *",
    ] {
        let acl = with(pattern);
        let stars = pattern.trim_start_matches(|c| c != '*');
        let fixed = stars.trim_start_matches('*');
        let begin = &pattern[..pattern.len() - stars.len()];
        for prefix in prefixes {
            assert!(!acl.allows_line(&format!("{prefix}{begin}a{fixed}")), "{prefix} {pattern}");
            tried += 1;
        }
        for tail in &tails {
            let line = format!("{begin}{tail}{fixed}");
            tried += 1;
            if acl.allows_line(&line) {
                allowed += 1;
                sandbox.runs_no_canary(&line);
                let may_be_option =
                    tail.split(' ').any(|word| word.starts_with(['-', '?', '*', '[']));
                assert!(pattern.contains("**") || begin.ends_with('/') || !may_be_option, "{line}");
            }
        }
    }
    assert!(tried >= 948 && allowed > 60, "{tried} {allowed}");
}

/// What version 0.2.0 allowed, and the second security report ran on a host.
#[test]
fn patterns_allow_only_what_they_suggest() {
    for (pattern, line) in [
        ("cat /var/log/*", "cat /var/log/x /etc/passwd"),
        ("cat /var/log/*", "cat /var/log/ /etc/passwd"),
        ("cat /var/log/*", "cat /var/log/../../../etc/passwd"),
        ("systemctl restart *", "systemctl restart -H host x"),
        ("systemctl restart *", "systemctl restart x -H host"),
        ("systemctl restart app-*", "systemctl restart app-web sshd"),
    ] {
        assert!(!with(pattern).allows_line(line), "{line}");
    }
    let acl = Acl::read(&json!({"argv": [["cat", "/var/log/*"], ["systemctl", "restart", "*"]]}));
    let acl = acl.unwrap();
    for words in
        [["cat", "/var/log/../../etc/passwd"].as_slice(), &["systemctl", "restart", "-Hhost"]]
    {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        assert!(!acl.allows_words(&words), "{words:?}");
    }
}

/// The lines of a security report. An older rule allowed them.
#[test]
fn lines_of_a_security_report_are_refused() {
    for (pattern, line) in [
        ("echo * --dry-run", "echo prod # --dry-run"),
        ("backup * --dry-run", "backup prod # --dry-run"),
        ("grep * /var/log/dpkg.log", "grep \"root\" /etc/passwd \"\" /var/log/dpkg.log"),
        ("cat *", "cat ~root/.bashrc"),
    ] {
        assert!(!with(pattern).allows_line(line), "{line}");
    }
    let refused =
        Acl::read(&json!({"commands": ["ls", "grep \"*\" /var/log/dpkg.log"]})).unwrap_err();
    assert_eq!(refused.len(), 1);
    assert!(
        refused[0].starts_with("commands[1]: ") && refused[0].contains("between quotes"),
        "{}",
        refused[0]
    );
}
