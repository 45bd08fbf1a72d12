//! Lists of commands: what may be asked of them (contract 7.10).

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::command::Shell;
use crate::error::{Error, FieldErrors};
use crate::id;
use crate::lifecycle::State;
use crate::page::{boolean_parameter, id_parameter, ordering, parameter};
use crate::time::Timestamp;

/// How many words of a search the index of all lines is asked for; the others are looked for in
/// what that finds.
pub const INDEXED_WORDS: usize = 16;
/// The longest phrase that the index is asked for, in characters.
const MAX_PHRASE: usize = 64;
/// The longest pattern that D1 takes, in bytes.
const MAX_PATTERN: usize = 50;
/// How many characters make a token of the index of all lines.
const TOKEN: usize = 3;
/// How many characters of each line the index of all lines has (see the migration).
pub const INDEXED_CHARACTERS: u64 = 1_024;
/// How many characters of longer lines a search of one short word of ASCII reads.
const READ_CHARACTERS: u64 = 24_000_000;

/// A moment of a command's that a list is ordered by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// `added_at`.
    Added,
    /// `scheduled_at`.
    Scheduled,
    /// `delivered_at`.
    Delivered,
    /// `acked_at`.
    Acked,
    /// `handled_at`.
    Handled,
}

impl Moment {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Added, Self::Scheduled, Self::Delivered, Self::Acked, Self::Handled];

    /// The name in requests, answers and D1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added_at",
            Self::Scheduled => "scheduled_at",
            Self::Delivered => "delivered_at",
            Self::Acked => "acked_at",
            Self::Handled => "handled_at",
        }
    }
}

/// One of the fields that a list is ordered by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Which.
    pub moment: Moment,
    /// The latest first.
    pub descending: bool,
}

/// The message for an unknown state.
const STATES: &str = "Use any of scheduled, queued, sent, acked, success, failed, cancelled, expired and stuck, separated \
    by commas.";

/// What a list without `ordering` is ordered by.
const DEFAULT_ORDER: Key = Key { moment: Moment::Scheduled, descending: true };

/// A word that each command of a list has in the name of its server, its line or the name of its
/// requester.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Word(String);

impl Word {
    /// The word in lower case. Names have no other.
    pub fn name(&self) -> String {
        self.0.to_lowercase()
    }

    /// A query on the index of all lines that finds every line with the word, in upper and lower
    /// case; `None` where that is no help. Every character stands for itself. The index has the
    /// column `line`, which ends with a line feed, and `wide`, which is `yes` for lines that are
    /// not all ASCII.
    ///
    /// Of a long word only a part is asked for, in which no three characters come again: the index
    /// steps through every place of each of a phrase's tokens, so a line of one character thousands
    /// of times would cost the square of that.
    pub fn query(&self) -> Option<String> {
        let length = self.0.chars().count();
        if length >= TOKEN {
            return Some(format!("line:{}", phrase(self.part())));
        }
        if !self.0.is_ascii() {
            return Some("wide:\"yes\"".to_owned());
        }
        // Whatever may come after the word in a line of ASCII. The index has no case.
        let next = (1..=127_u8).filter(|next| !next.is_ascii_uppercase()).map(char::from);
        let phrases: Vec<String> = next.map(|next| phrase(&format!("{}{next}", self.0))).collect();
        (length + 1 == TOKEN).then(|| format!("line:({}) OR wide:\"yes\"", phrases.join(" OR ")))
    }

    /// The longest part in which no three characters come again, in upper and lower case, of at
    /// most [`MAX_PHRASE`].
    fn part(&self) -> &str {
        let ends: Vec<usize> =
            self.0.char_indices().map(|(at, _)| at).chain([self.0.len()]).collect();
        let folded: Vec<String> =
            self.0.chars().map(|letter| letter.to_lowercase().collect()).collect();
        let mut seen: HashMap<&[String], usize> = HashMap::new();
        let (mut start, mut longest) = (0, 0..0);
        for (at, token) in folded.windows(TOKEN).enumerate() {
            if let Some(before) = seen.insert(token, at) {
                start = start.max(before + 1);
            }
            let end = at + TOKEN;
            start = start.max(end.saturating_sub(MAX_PHRASE));
            if end - start > longest.len() {
                longest = start..end;
            }
        }
        &self.0[ends[longest.start]..ends[longest.end]]
    }

    /// Tells whether [`Word::query`] finds just the lines with the word, and no others.
    pub fn is_exact(&self) -> bool {
        self.0.chars().count() >= TOKEN && self.part().len() == self.0.len()
    }

    /// Tells whether it is all ASCII: then [`Word::name`] and [`Word::in_line`] are the same.
    pub fn is_ascii(&self) -> bool {
        self.0.is_ascii()
    }

    /// The word with A to Z in lower case, and other letters as they are: what SQLite's `lower`
    /// makes of it.
    pub fn in_line(&self) -> String {
        self.0.to_ascii_lowercase()
    }

    /// A GLOB pattern that finds it in a line, in upper and lower case, and in which every
    /// character stands for itself; `None` where it would be longer than D1 takes.
    pub fn glob(&self) -> Option<String> {
        let mut pattern = String::from("*");
        for letter in self.0.chars() {
            match cases(letter).as_slice() {
                [one] if !matches!(one, '*' | '?' | '[') => pattern.push(*one),
                cases => {
                    pattern.push('[');
                    pattern.extend(cases);
                    pattern.push(']');
                }
            }
        }
        pattern.push('*');
        (pattern.len() <= MAX_PATTERN).then_some(pattern)
    }
}

impl Word {
    /// How long it takes to look for it in a line, as a multiple of a short word of ASCII.
    fn weight(&self) -> u64 {
        let length = 1 + (self.0.len() / MAX_PHRASE) as u64;
        if self.is_ascii() { length } else { 4 * length }
    }
}

/// How many characters of lines that are longer than [`INDEXED_CHARACTERS`] a search for words
/// reads, so that its time is bounded.
pub fn read_characters(words: &[Word]) -> u64 {
    READ_CHARACTERS / words.iter().map(Word::weight).sum::<u64>().max(1)
}

/// A text as a phrase of an FTS5 query.
fn phrase(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// A character, and what it is in the other case where that is one character.
fn cases(letter: char) -> Vec<char> {
    fn single(mut cases: impl Iterator<Item = char>) -> Option<char> {
        cases.next().filter(|_| cases.next().is_none())
    }
    let lower = single(letter.to_lowercase()).unwrap_or(letter);
    let upper = single(lower.to_uppercase()).unwrap_or(letter);
    let mut all = vec![letter, lower, upper];
    all.sort_unstable();
    all.dedup();
    all
}

/// Which commands a list shows, and in which order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandList {
    /// Of this server.
    pub server: Option<Uuid>,
    /// Of this shell.
    pub shell: Option<Shell>,
    /// Asked for by this user.
    pub requested_by: Option<i64>,
    /// Without a requester, or with one.
    pub requested_by_isnull: Option<bool>,
    /// Scheduled for later than now, or not.
    pub is_scheduled: Option<bool>,
    /// In one of these states, as command objects show them.
    pub states: Option<Vec<&'static str>>,
    /// With this outcome.
    pub success: Option<bool>,
    /// With this exit code.
    pub exit_code: Option<i64>,
    /// Running as this remote account.
    pub username: Option<String>,
    /// Created at this moment or later.
    pub added_from: Option<Timestamp>,
    /// Created before this moment.
    pub added_before: Option<Timestamp>,
    /// With each of these words, which differ.
    pub words: Vec<Word>,
    /// Never empty, each field once. Ties are broken by id, in the direction of the first one.
    pub order: Vec<Key>,
}

fn read_server(query: &[(String, String)]) -> Result<Option<Uuid>, Error> {
    let read = |text| id::parse(text).ok_or_else(|| Error::field("server", "Enter a valid UUID."));
    parameter(query, "server").map(read).transpose()
}

fn read_shell(query: &[(String, String)]) -> Result<Option<Shell>, Error> {
    // There are no others, so another one is not a shell at all.
    let read = |text| match text {
        "system" => Ok(Shell::System),
        "internal" => Ok(Shell::Internal),
        _ => Err(Error::field("shell", "Choose system or internal.")),
    };
    parameter(query, "shell").map(read).transpose()
}

/// `state`: a comma-separated list.
fn read_states(query: &[(String, String)]) -> Result<Option<Vec<&'static str>>, Error> {
    let all = || State::ALL.into_iter().flat_map(|state| [state.shown(false), state.shown(true)]);
    let read = |name| all().find(|known| *known == name);
    let states =
        parameter(query, "state").map(|text| text.split(',').map(read).collect::<Option<Vec<_>>>());
    states.map(|states| states.ok_or_else(|| Error::field("state", STATES))).transpose()
}

fn read_exit_code(query: &[(String, String)]) -> Result<Option<i64>, Error> {
    let read = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_whole = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        let number = is_whole.then(|| text.parse().ok()).flatten();
        number
            .filter(|number: &i64| number.unsigned_abs() < 1 << 53)
            .ok_or_else(|| Error::field("exit_code", "Enter a whole number."))
    };
    parameter(query, "exit_code").map(read).transpose()
}

fn read_moment(query: &[(String, String)], name: &'static str) -> Result<Option<Timestamp>, Error> {
    let read =
        |text: &str| Timestamp::parse(text).map_err(|error| Error::field(name, error.to_string()));
    parameter(query, name).map(read).transpose()
}

fn read_words(query: &[(String, String)]) -> Result<Vec<Word>, Error> {
    let text = parameter(query, "search").unwrap_or("");
    if text.contains('\0') {
        return Err(Error::field("search", "Null characters are not allowed."));
    }
    let mut known = HashSet::new();
    Ok(text
        .split_whitespace()
        .filter(|word| known.insert(*word))
        .map(|word| Word(word.to_owned()))
        .collect())
}

fn read_order(query: &[(String, String)]) -> Result<Vec<Key>, Error> {
    let order = ordering(query, &Moment::ALL, Moment::as_str)?;
    let keys = |order: Vec<_>| {
        order.into_iter().map(|(moment, descending)| Key { moment, descending }).collect()
    };
    Ok(order.map_or_else(|| vec![DEFAULT_ORDER], keys))
}

impl CommandList {
    /// Reads the filters, `search` and `ordering`.
    ///
    /// # Errors
    /// All bad parameters together.
    pub fn of(query: &[(String, String)]) -> Result<Self, Error> {
        fn take<T>(read: Result<T, Error>, errors: &mut FieldErrors) -> Option<T> {
            read.map_err(|error| errors.extend(error.fields)).ok()
        }
        let mut errors = FieldErrors::new();
        let server = take(read_server(query), &mut errors);
        let shell = take(read_shell(query), &mut errors);
        let requested_by = take(id_parameter(query, "requested_by"), &mut errors);
        let requested_by_isnull =
            take(boolean_parameter(query, "requested_by_isnull"), &mut errors);
        let is_scheduled = take(boolean_parameter(query, "is_scheduled"), &mut errors);
        let states = take(read_states(query), &mut errors);
        let success = take(boolean_parameter(query, "success"), &mut errors);
        let exit_code = take(read_exit_code(query), &mut errors);
        let username = parameter(query, "username").map(str::to_owned);
        let added_from = take(read_moment(query, "added_at__gte"), &mut errors);
        let added_before = take(read_moment(query, "added_at__lt"), &mut errors);
        let words = take(read_words(query), &mut errors);
        let order = take(read_order(query), &mut errors);
        let read = || {
            Some(Self {
                server: server?,
                shell: shell?,
                requested_by: requested_by?,
                requested_by_isnull: requested_by_isnull?,
                is_scheduled: is_scheduled?,
                states: states?,
                success: success?,
                exit_code: exit_code?,
                username,
                added_from: added_from?,
                added_before: added_before?,
                words: words?,
                order: order?,
            })
        };
        read().ok_or_else(|| Error::fields(errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<CommandList, Error> {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        CommandList::of(
            &pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>(),
        )
    }

    #[track_caller]
    fn refused(text: &str, wrong: &[&str]) {
        let error = of(text).unwrap_err();
        assert_eq!(error.fields.keys().map(AsRef::as_ref).collect::<Vec<_>>(), wrong, "{text}");
    }

    fn key(moment: Moment, descending: bool) -> Key {
        Key { moment, descending }
    }

    #[test]
    fn without_parameters_all_commands_the_latest_first() {
        let list = of("page=2&other=x").unwrap();
        let all = CommandList {
            server: None,
            shell: None,
            requested_by: None,
            requested_by_isnull: None,
            is_scheduled: None,
            states: None,
            success: None,
            exit_code: None,
            username: None,
            added_from: None,
            added_before: None,
            words: vec![],
            order: vec![key(Moment::Scheduled, true)],
        };
        assert_eq!(list, all);
    }

    #[test]
    fn filters() {
        let list = of("server=01936D3E-7A00-7000-8000-000000000000&shell=internal&requested_by=7&\
            requested_by_isnull=False&is_scheduled=1")
        .unwrap();
        assert_eq!(list.server, id::parse("01936d3e-7a00-7000-8000-000000000000"));
        assert_eq!((list.shell, list.requested_by), (Some(Shell::Internal), Some(7)));
        assert_eq!((list.requested_by_isnull, list.is_scheduled), (Some(false), Some(true)));
        for nobody in ["0", "-1", "9007199254740992", "99999999999999999999"] {
            assert_eq!(
                of(&format!("requested_by={nobody}")).unwrap().requested_by,
                Some(0),
                "{nobody}"
            );
        }
    }

    #[test]
    fn filters_by_outcome() {
        let list = of("state=scheduled,queued,stuck&success=false&exit_code=-1&username=root&\
            added_at__gte=2026-01-01T00:00:00Z&added_at__lt=2026-01-01T02:00:00Z")
        .unwrap();
        assert_eq!(list.states, Some(vec!["scheduled", "queued", "stuck"]));
        assert_eq!(
            (list.success, list.exit_code, list.username.as_deref()),
            (Some(false), Some(-1), Some("root"))
        );
        assert_eq!(list.added_from, Timestamp::parse("2026-01-01T00:00:00Z").ok());
        assert_eq!(list.added_before, Timestamp::parse("2026-01-01T02:00:00Z").ok());
        for state in ["sent", "acked", "success", "failed", "cancelled", "expired"] {
            assert_eq!(of(&format!("state={state}")).unwrap().states, Some(vec![state]));
        }
    }

    #[test]
    fn malformed_parameters_are_told_together() {
        for (name, bad) in [
            ("server", "web-1"),
            ("server", ""),
            ("server", "01936d3e7a0070008000000000000000"),
            ("shell", "bash"),
            ("shell", "System"),
            ("shell", ""),
            ("requested_by", ""),
            ("requested_by", "-"),
            ("requested_by", "+1"),
            ("requested_by", "1.0"),
            ("requested_by", "boss"),
            ("requested_by_isnull", "maybe"),
            ("is_scheduled", ""),
            ("state", ""),
            ("state", "Failed"),
            ("state", "failed,"),
            ("state", "waiting"),
            ("success", "yes"),
            ("exit_code", "1.0"),
            ("exit_code", "-"),
            ("exit_code", "99999999999999999999"),
            ("exit_code", "-9223372036854775808"),
            ("added_at__gte", "2026-01-01"),
            ("added_at__lt", "yesterday"),
            ("search", "a\0b"),
            ("ordering", ""),
            ("ordering", "line"),
            ("ordering", "--added_at"),
            ("ordering", "added_at,"),
            ("ordering", "added_at, acked_at"),
            ("ordering", "Added_at"),
        ] {
            refused(&format!("{name}={bad}"), &[name]);
        }
        refused(
            "server=x&shell=x&requested_by=x&requested_by_isnull=x&is_scheduled=x&search=\0&ordering=x",
            &[
                "is_scheduled",
                "ordering",
                "requested_by",
                "requested_by_isnull",
                "search",
                "server",
                "shell",
            ],
        );
    }

    #[test]
    fn orderings() {
        for moment in Moment::ALL {
            assert_eq!(
                of(&format!("ordering={}", moment.as_str())).unwrap().order,
                [key(moment, false)]
            );
            assert_eq!(
                of(&format!("ordering=-{}", moment.as_str())).unwrap().order,
                [key(moment, true)]
            );
        }
        let several = of("ordering=-acked_at,added_at,acked_at,-added_at").unwrap().order;
        assert_eq!(several, [key(Moment::Acked, true), key(Moment::Added, false)]);
    }

    #[test]
    fn words() {
        let words = |text: &str| of(&format!("search={text}")).unwrap().words;
        assert_eq!(words("  a \t Bc\u{a0}a "), [Word("a".into()), Word("Bc".into())]);
        assert_eq!(words(" "), []);
        let many: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        assert_eq!(words(&many.join(" ")).len(), 40);
    }

    #[test]
    fn a_word_stands_for_itself() {
        let word = |text: &str| Word(text.to_owned());
        assert_eq!(word(r#"a"B*"#).query().unwrap(), r#"line:"a""B*""#);
        assert_eq!(word("ÄrGer").name(), "ärger");
        for (text, pattern) in [
            ("a", "*[Aa]*"),
            ("7", "*7*"),
            ("É", "*[Éé]*"),
            ("*?", "*[*][?]*"),
            ("[]", "*[[]]*"),
            ("^-", "*^-*"),
            ("ß", "*ß*"),
            ("%_", "*%_*"),
        ] {
            assert_eq!(word(text).glob().as_deref(), Some(pattern));
        }
        assert!(word("ǅǆ").glob().is_some() && word("abcdefghijkl").glob().is_some());
        assert_eq!(word("abcdefghijklm").glob(), None);
        assert_eq!(word("ÄbC").in_line(), "Äbc");
    }

    #[test]
    fn of_a_long_word_a_part_is_asked_for() {
        let word = |text: &str| Word(text.to_owned());
        let long: String = (0x4E00..0x4E64).filter_map(char::from_u32).collect();
        let beginning: String = long.chars().take(64).collect();
        for (text, part) in [
            ("abc", "abc"),
            ("systemctl-restart", "systemctl-restart"),
            (&"w".repeat(9_000), "www"),
            ("ababababab", "abab"),
            ("aaaaXYZ-aAa-xyZ", "aaXYZ-aAa-xy"),
            ("ääÄÄäb", "ÄÄäb"),
            (&long, &beginning),
        ] {
            assert_eq!(word(text).query(), Some(format!("line:{}", phrase(part))), "{text}");
            assert_eq!(word(text).is_exact(), part == text, "{text}");
        }
    }

    #[test]
    fn the_more_there_is_to_look_for_the_less_is_read() {
        let words =
            |texts: &[&str]| texts.iter().map(|text| Word((*text).to_owned())).collect::<Vec<_>>();
        assert_eq!(read_characters(&words(&["deploy"])), 24_000_000);
        assert_eq!(read_characters(&words(&["deploy", "web-1"])), 12_000_000);
        assert_eq!(read_characters(&words(&["größe"])), 6_000_000);
        assert_eq!(read_characters(&words(&[&"w".repeat(640)])), 24_000_000 / 11);
        let many: Vec<_> = (0..5_000).map(|number| Word(number.to_string())).collect();
        assert_eq!(read_characters(&many), 4_800);
    }

    #[test]
    fn short_words_are_looked_up_by_what_may_follow_them() {
        let word = |text: &str| Word(text.to_owned());
        assert!(word("日本語").is_exact() && !word("日本").is_exact() && !word("ls").is_exact());
        for wide in ["ä", "日本", "aß"] {
            assert_eq!(word(wide).query().unwrap(), "wide:\"yes\"");
        }
        assert_eq!(word("l").query(), None);
        let query = word("L\"").query().unwrap();
        for next in ["\n", " ", "a", "\"\"", "\u{7f}"] {
            assert!(query.contains(&format!(" OR \"L\"\"{next}\"")), "{next:?}");
        }
        assert!(query.ends_with(" OR wide:\"yes\"") && !query.contains("\"L\"\"A\""));
    }
}
