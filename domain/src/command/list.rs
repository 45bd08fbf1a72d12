//! The query of a list of commands: filters, search and ordering (contract 7.10).

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::command::lifecycle::State;
use crate::command::request::Shell;
use crate::error::{Error, FieldErrors};
use crate::http::page::{boolean_parameter, id_parameter, last_value, ordering, uuid_parameter};
use crate::time::Timestamp;

/// Maximum number of words of a search that are looked up in the full-text index of lines. The
/// search compares the other words with the lines that the index finds.
pub const MAX_INDEXED_WORDS: usize = 16;
/// Maximum length of a phrase in a query on the full-text index, in characters.
const MAX_PHRASE: usize = 64;
/// Maximum length of a pattern in D1, in bytes.
const MAX_PATTERN: usize = 50;
/// The length of the index's tokens, in characters: it is a trigram index.
const TOKEN_CHARS: usize = 3;
/// The index covers this number of characters of each line (see `command_texts` in the schema).
pub const INDEXED_CHARACTERS: u64 = 1_024;
/// Maximum number of characters that a search for one short ASCII word reads in lines longer than
/// [`INDEXED_CHARACTERS`].
const READ_CHARACTERS: u64 = 24_000_000;

/// A timestamp column by which a list can be ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeColumn {
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

impl TimeColumn {
    /// All columns.
    pub const ALL: [Self; 5] =
        [Self::Added, Self::Scheduled, Self::Delivered, Self::Acked, Self::Handled];

    /// The name in requests, responses and D1.
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

/// A column of an ordering, with its direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderKey {
    /// The column.
    pub column: TimeColumn,
    /// Whether the latest time comes first.
    pub descending: bool,
}

/// The error message for an unknown `state`.
const STATES: &str = "Use any of scheduled, queued, sent, acked, success, failed, cancelled, expired and stuck, separated \
    by commas.";

/// The order of a list without `ordering`.
const DEFAULT_ORDER: OrderKey = OrderKey { column: TimeColumn::Scheduled, descending: true };

/// A word of a search. Each command of the list has it in its server's name, its line or its
/// requester's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SearchWord(String);

impl SearchWord {
    /// The word in lower case, to compare with names, which are stored in lower case.
    pub fn name(&self) -> String {
        self.0.to_lowercase()
    }

    /// A query on the full-text index that finds every line with the word, in upper and lower case.
    /// Returns `None` if the index cannot find the word. No character is a wildcard. The index has
    /// two columns: `line`, which ends with a line feed, and `wide`, which is `yes` for lines that
    /// are not all ASCII.
    ///
    /// The query has only a part of a long word, in which no three characters repeat. The index
    /// visits every position of each token of a phrase. So a phrase of equal characters, on a line
    /// of thousands of them, would cost the square of their number.
    pub fn query(&self) -> Option<String> {
        let length = self.0.chars().count();
        if length >= TOKEN_CHARS {
            return Some(format!("line:{}", phrase(self.part())));
        }
        if !self.0.is_ascii() {
            return Some("wide:\"yes\"".to_owned());
        }
        // Every character that can follow the word in an ASCII line. The index ignores case.
        let next = (1..=127_u8).filter(|next| !next.is_ascii_uppercase()).map(char::from);
        let phrases: Vec<String> = next.map(|next| phrase(&format!("{}{next}", self.0))).collect();
        (length + 1 == TOKEN_CHARS)
            .then(|| format!("line:({}) OR wide:\"yes\"", phrases.join(" OR ")))
    }

    /// The longest part of at most [`MAX_PHRASE`] characters in which no three characters repeat,
    /// in upper or lower case.
    fn part(&self) -> &str {
        let ends: Vec<usize> =
            self.0.char_indices().map(|(at, _)| at).chain([self.0.len()]).collect();
        let folded: Vec<String> =
            self.0.chars().map(|letter| letter.to_lowercase().collect()).collect();
        let mut seen: HashMap<&[String], usize> = HashMap::new();
        let (mut start, mut longest) = (0, 0..0);
        for (at, token) in folded.windows(TOKEN_CHARS).enumerate() {
            if let Some(before) = seen.insert(token, at) {
                start = start.max(before + 1);
            }
            let end = at + TOKEN_CHARS;
            start = start.max(end.saturating_sub(MAX_PHRASE));
            if end - start > longest.len() {
                longest = start..end;
            }
        }
        &self.0[ends[longest.start]..ends[longest.end]]
    }

    /// Whether [`SearchWord::query`] finds only lines that have the word.
    pub fn is_exact(&self) -> bool {
        self.0.chars().count() >= TOKEN_CHARS && self.part().len() == self.0.len()
    }

    /// Whether the word is all ASCII. Then [`SearchWord::name`] and [`SearchWord::in_line`] are
    /// equal.
    pub fn is_ascii(&self) -> bool {
        self.0.is_ascii()
    }

    /// The word with A to Z in lower case and other letters unchanged, like SQLite's `lower`.
    pub fn in_line(&self) -> String {
        self.0.to_ascii_lowercase()
    }

    /// A GLOB pattern that finds the word in a line, in upper and lower case. No character is a
    /// wildcard. Returns `None` if the pattern is too long for D1.
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

impl SearchWord {
    /// The cost of finding the word in a line, as a multiple of a short ASCII word.
    fn weight(&self) -> u64 {
        let length = 1 + (self.0.len() / MAX_PHRASE) as u64;
        if self.is_ascii() { length } else { 4 * length }
    }
}

/// The number of characters that a search for these words may read in lines longer than
/// [`INDEXED_CHARACTERS`]. It bounds the time of the search.
pub fn max_characters_read(words: &[SearchWord]) -> u64 {
    READ_CHARACTERS / words.iter().map(SearchWord::weight).sum::<u64>().max(1)
}

/// A text as a phrase in an FTS5 query.
fn phrase(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// A character in each case, if that is a single character.
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

/// Which commands a list shows, and in which order. A filter that is `None` is not applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandList {
    /// The server's id.
    pub server: Option<Uuid>,
    /// The id of the command's batch.
    pub batch: Option<Uuid>,
    /// The id of the schedule that created the command's batch.
    pub schedule: Option<Uuid>,
    /// What runs the line.
    pub shell: Option<Shell>,
    /// The requester's id; 0 matches no user.
    pub requested_by: Option<i64>,
    /// Whether the requester of the command was deleted.
    pub requested_by_isnull: Option<bool>,
    /// Whether `scheduled_at` is later than now.
    pub is_scheduled: Option<bool>,
    /// The command has one of these states, by their names in command objects.
    pub states: Option<Vec<&'static str>>,
    /// The outcome.
    pub success: Option<bool>,
    /// The exit code.
    pub exit_code: Option<i64>,
    /// The remote account.
    pub username: Option<String>,
    /// Created at this time or later.
    pub added_from: Option<Timestamp>,
    /// Created before this time.
    pub added_before: Option<Timestamp>,
    /// The words of the search, without duplicates. A command must have all words.
    pub words: Vec<SearchWord>,
    /// At least one column, without duplicates. Commands with equal times are ordered by id, in the
    /// direction of the first column.
    pub order: Vec<OrderKey>,
}

fn read_shell(query: &[(String, String)]) -> Result<Option<Shell>, Error> {
    let read = |text| match text {
        "system" => Ok(Shell::System),
        "internal" => Ok(Shell::Builtin),
        _ => Err(Error::field("shell", "Choose system or internal.")),
    };
    last_value(query, "shell").map(read).transpose()
}

/// Reads `state`: a comma-separated list.
fn read_states(query: &[(String, String)]) -> Result<Option<Vec<&'static str>>, Error> {
    let all = || State::ALL.into_iter().flat_map(|state| [state.shown(false), state.shown(true)]);
    let read = |name| all().find(|known| *known == name);
    let states = last_value(query, "state")
        .map(|text| text.split(',').map(read).collect::<Option<Vec<_>>>());
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
    last_value(query, "exit_code").map(read).transpose()
}

fn read_time(query: &[(String, String)], name: &'static str) -> Result<Option<Timestamp>, Error> {
    let read =
        |text: &str| Timestamp::parse(text).map_err(|error| Error::field(name, error.to_string()));
    last_value(query, name).map(read).transpose()
}

fn read_words(query: &[(String, String)]) -> Result<Vec<SearchWord>, Error> {
    let text = last_value(query, "search").unwrap_or("");
    if text.contains('\0') {
        return Err(Error::field("search", "Null characters are not allowed."));
    }
    let mut seen = HashSet::new();
    Ok(text
        .split_whitespace()
        .filter(|word| seen.insert(*word))
        .map(|word| SearchWord(word.to_owned()))
        .collect())
}

fn read_order(query: &[(String, String)]) -> Result<Vec<OrderKey>, Error> {
    let order = ordering(query, &TimeColumn::ALL, TimeColumn::as_str)?;
    let keys = |order: Vec<_>| {
        order.into_iter().map(|(column, descending)| OrderKey { column, descending }).collect()
    };
    Ok(order.map_or_else(|| vec![DEFAULT_ORDER], keys))
}

impl CommandList {
    /// Reads the filters, `search` and `ordering`.
    ///
    /// # Errors
    /// All invalid parameters together.
    pub fn from_query(query: &[(String, String)]) -> Result<Self, Error> {
        fn take<T>(read: Result<T, Error>, errors: &mut FieldErrors) -> Option<T> {
            read.map_err(|error| errors.extend(error.fields)).ok()
        }
        let mut errors = FieldErrors::new();
        let server = take(uuid_parameter(query, "server"), &mut errors);
        let batch = take(uuid_parameter(query, "batch"), &mut errors);
        let schedule = take(uuid_parameter(query, "schedule"), &mut errors);
        let shell = take(read_shell(query), &mut errors);
        let requested_by = take(id_parameter(query, "requested_by"), &mut errors);
        let requested_by_isnull =
            take(boolean_parameter(query, "requested_by_isnull"), &mut errors);
        let is_scheduled = take(boolean_parameter(query, "is_scheduled"), &mut errors);
        let states = take(read_states(query), &mut errors);
        let success = take(boolean_parameter(query, "success"), &mut errors);
        let exit_code = take(read_exit_code(query), &mut errors);
        let username = last_value(query, "username").map(str::to_owned);
        let added_from = take(read_time(query, "added_at__gte"), &mut errors);
        let added_before = take(read_time(query, "added_at__lt"), &mut errors);
        let words = take(read_words(query), &mut errors);
        let order = take(read_order(query), &mut errors);
        let read = || {
            Some(Self {
                server: server?,
                batch: batch?,
                schedule: schedule?,
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
    use crate::id;

    fn of(text: &str) -> Result<CommandList, Error> {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        CommandList::from_query(
            &pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>(),
        )
    }

    #[track_caller]
    fn refused(text: &str, wrong: &[&str]) {
        let error = of(text).unwrap_err();
        assert_eq!(error.fields.keys().map(AsRef::as_ref).collect::<Vec<_>>(), wrong, "{text}");
    }

    fn key(column: TimeColumn, descending: bool) -> OrderKey {
        OrderKey { column, descending }
    }

    #[test]
    fn a_query_without_parameters_lists_all_latest_first() {
        let list = of("page=2&other=x").unwrap();
        let all = CommandList {
            server: None,
            batch: None,
            schedule: None,
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
            order: vec![key(TimeColumn::Scheduled, true)],
        };
        assert_eq!(list, all);
    }

    #[test]
    fn filters_by_server_shell_and_requester() {
        let list = of("server=01936D3E-7A00-7000-8000-000000000000&shell=internal&requested_by=7&\
            requested_by_isnull=False&is_scheduled=1&batch=01936d3e-7a00-7000-8000-000000000001&\
            schedule=01936d3e-7a00-7000-8000-000000000002")
        .unwrap();
        assert_eq!(list.batch, id::parse("01936d3e-7a00-7000-8000-000000000001"));
        assert_eq!(list.schedule, id::parse("01936d3e-7a00-7000-8000-000000000002"));
        assert_eq!(list.server, id::parse("01936d3e-7a00-7000-8000-000000000000"));
        assert_eq!((list.shell, list.requested_by), (Some(Shell::Builtin), Some(7)));
        assert_eq!((list.requested_by_isnull, list.is_scheduled), (Some(false), Some(true)));
        for unknown in ["0", "-1", "9007199254740992", "99999999999999999999"] {
            assert_eq!(
                of(&format!("requested_by={unknown}")).unwrap().requested_by,
                Some(0),
                "{unknown}"
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
    fn malformed_parameters_are_reported_together() {
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
    fn ordering_names_each_column_once() {
        for column in TimeColumn::ALL {
            assert_eq!(
                of(&format!("ordering={}", column.as_str())).unwrap().order,
                [key(column, false)]
            );
            assert_eq!(
                of(&format!("ordering=-{}", column.as_str())).unwrap().order,
                [key(column, true)]
            );
        }
        let several = of("ordering=-acked_at,added_at,acked_at,-added_at").unwrap().order;
        assert_eq!(several, [key(TimeColumn::Acked, true), key(TimeColumn::Added, false)]);
    }

    #[test]
    fn a_search_is_split_into_distinct_words() {
        let words = |text: &str| of(&format!("search={text}")).unwrap().words;
        assert_eq!(words("  a \t Bc\u{a0}a "), [SearchWord("a".into()), SearchWord("Bc".into())]);
        assert_eq!(words(" "), []);
        let many: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        assert_eq!(words(&many.join(" ")).len(), 40);
    }

    #[test]
    fn every_character_of_a_word_stands_for_itself() {
        let word = |text: &str| SearchWord(text.to_owned());
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
    fn the_index_query_has_a_part_of_a_long_word() {
        let word = |text: &str| SearchWord(text.to_owned());
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
    fn a_search_for_more_words_reads_fewer_characters() {
        let words = |texts: &[&str]| {
            texts.iter().map(|text| SearchWord((*text).to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(max_characters_read(&words(&["deploy"])), 24_000_000);
        assert_eq!(max_characters_read(&words(&["deploy", "web-1"])), 12_000_000);
        assert_eq!(max_characters_read(&words(&["größe"])), 6_000_000);
        assert_eq!(max_characters_read(&words(&[&"w".repeat(640)])), 24_000_000 / 11);
        let many: Vec<_> = (0..5_000).map(|number| SearchWord(number.to_string())).collect();
        assert_eq!(max_characters_read(&many), 4_800);
    }

    #[test]
    fn a_short_word_is_found_with_its_next_character() {
        let word = |text: &str| SearchWord(text.to_owned());
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
