//! Selectors: conditions on the labels of servers, in the syntax of Kubernetes' label selectors
//! (contract 12.2).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::fleet::labels::{BAD_KEY, BAD_VALUE, Labels, is_key, is_value};

/// Maximum number of terms. This limit and [`MAX_VALUES`] bound the cost of matching servers.
const MAX_TERMS: usize = 20;
/// Maximum number of values in all terms together.
const MAX_VALUES: usize = 100;

/// A selector. A server matches it if it matches every term.
///
/// Its text is the canonical form: the terms are sorted, without duplicates, and equal terms have
/// equal texts. The API shows this form, and D1 stores it.
///
/// ```
/// use farhand_domain::fleet::labels::Labels;
/// use farhand_domain::fleet::selector::Selector;
/// let selector: Selector = "team, env in (staging, prod), !legacy, tier == web".parse().unwrap();
/// assert_eq!(selector.to_string(), "env in (prod,staging),!legacy,team,tier=web");
///
/// let labels = |pairs: &[(&str, &str)]| {
///     pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Labels>()
/// };
/// assert!(selector.matches(&labels(&[("env", "prod"), ("team", ""), ("tier", "web")])));
/// assert!(!selector.matches(&labels(&[("env", "dev"), ("team", ""), ("tier", "web")])));
///
/// // `!=` and `notin` also match servers without the key.
/// let selector: Selector = "env != prod".parse().unwrap();
/// assert!(selector.matches(&labels(&[])) && !selector.matches(&labels(&[("env", "prod")])));
///
/// // Errors have the position of the first character that is wrong.
/// let error = "env=prod,,tier".parse::<Selector>().unwrap_err();
/// assert_eq!(error.to_string(), "At position 10: a term is missing before the comma.");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selector {
    /// At least one term, sorted, without duplicates.
    terms: Vec<Term>,
}

/// A condition on one label.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Term {
    /// The label's key.
    pub key: String,
    /// The accepted values; `None`: any value.
    pub values: Option<BTreeSet<String>>,
    /// Whether the condition is inverted. An inverted term matches servers without the label, and
    /// servers whose label has another value.
    pub is_negated: bool,
}

impl Term {
    fn matches(&self, labels: &Labels) -> bool {
        let fits = |value: &str| self.values.as_ref().is_none_or(|values| values.contains(value));
        labels.get(&self.key).is_some_and(fits) != self.is_negated
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, values, is_negated } = self;
        let not = |text: &'static str| if *is_negated { text } else { "" };
        let Some(values) = values else { return write!(f, "{}{key}", not("!")) };
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        match values[..] {
            [value] => write!(f, "{key}{}={value}", not("!")),
            _ => write!(f, "{key} {}in ({})", not("not"), values.join(",")),
        }
    }
}

impl Selector {
    /// The terms, sorted, without duplicates.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Reads a value of a JSON body, which may be missing or null.
    ///
    /// # Errors
    /// The message for the field.
    pub fn read(value: Option<&Value>) -> Result<Option<Self>, String> {
        match value {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => {
                text.parse().map(Some).map_err(|error: SelectorError| error.to_string())
            }
            Some(_) => Err("Not a valid string.".to_owned()),
        }
    }

    /// Whether a server with these labels matches.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.terms.iter().all(|term| term.matches(labels))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            write!(f, "{}{term}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Why a text is not a selector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelectorError {
    /// The position of the error, in characters from 1. An error at the end has the length of the
    /// text plus 1.
    pub position: usize,
    message: String,
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "At position {}: {}", self.position, self.message)
    }
}

impl std::error::Error for SelectorError {}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    /// A key, a value or a keyword, depending on its place.
    Word(String),
    Not,
    /// `=` or `==`.
    Equal,
    NotEqual,
    /// `<` or `>`. Kubernetes compares numbers with them. They are refused here.
    Order,
    Open,
    Close,
    Comma,
    End,
}

/// Splits a text into tokens, each with its position. The last token is [`Token::End`].
fn tokens(text: &str) -> Vec<(usize, Token)> {
    let is_special = |c: char| "!=<>(),".contains(c);
    let is_blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let mut characters = text.chars().zip(1..).peekable();
    let mut tokens = Vec::new();
    while let Some((c, position)) = characters.next() {
        let is_before_equal = characters.peek().is_some_and(|(next, _)| *next == '=');
        let token = match c {
            c if is_blank(c) => continue,
            '!' | '=' if is_before_equal => {
                characters.next();
                if c == '!' { Token::NotEqual } else { Token::Equal }
            }
            '!' => Token::Not,
            '=' => Token::Equal,
            '<' | '>' => Token::Order,
            '(' => Token::Open,
            ')' => Token::Close,
            ',' => Token::Comma,
            c => {
                let mut word = String::from(c);
                let goes_on = |(c, _): &(char, usize)| !is_special(*c) && !is_blank(*c);
                while let Some((c, _)) = characters.next_if(goes_on) {
                    word.push(c);
                }
                Token::Word(word)
            }
        };
        tokens.push((position, token));
    }
    tokens.push((text.chars().count() + 1, Token::End));
    tokens
}

/// Reads tokens from left to right.
struct Parser {
    tokens: std::iter::Peekable<std::vec::IntoIter<(usize, Token)>>,
    /// The number of values that were read so far.
    values: usize,
}

impl Parser {
    fn peek(&mut self) -> Token {
        self.tokens.peek().map_or(Token::End, |(_, token)| token.clone())
    }

    /// Takes the next token and its position. [`Token::End`] is never removed.
    fn next(&mut self) -> (usize, Token) {
        let next = self.tokens.next_if(|(_, token)| *token != Token::End);
        next.or_else(|| self.tokens.peek().cloned()).unwrap_or((1, Token::End))
    }

    /// Returns an error at the next token.
    fn expected<T>(&mut self, message: impl Into<String>) -> Result<T, SelectorError> {
        let position = self.next().0;
        Err(SelectorError { position, message: message.into() })
    }

    fn term(&mut self) -> Result<Term, SelectorError> {
        let is_not = self.peek() == Token::Not;
        if is_not {
            self.next();
        }
        match self.peek() {
            Token::Word(word) if !is_key(&word) => return self.expected(BAD_KEY),
            Token::Word(_) => {}
            Token::Comma if !is_not => {
                return self.expected("a term is missing before the comma.");
            }
            Token::End if !is_not => return self.expected("a term is missing at the end."),
            _ => return self.expected("expected the key of a label."),
        }
        let (_, Token::Word(key)) = self.next() else { return self.expected("expected a key.") };
        if is_not {
            return Ok(Term { key, values: None, is_negated: true });
        }
        let (values, is_negated) = match self.peek() {
            Token::Comma | Token::End => (None, false),
            Token::Equal => (Some(self.one_value()?), false),
            Token::NotEqual => (Some(self.one_value()?), true),
            Token::Word(word) if word == "in" => (Some(self.list()?), false),
            Token::Word(word) if word == "notin" => (Some(self.list()?), true),
            Token::Order => return self.expected("< and > are not supported."),
            _ => {
                return self.expected("expected =, ==, !=, in, notin, a comma or the end.");
            }
        };
        Ok(Term { key, values, is_negated })
    }

    /// Reads the value after `=` or `!=`, which may be empty.
    fn one_value(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        self.next();
        let value = match self.peek() {
            Token::Comma | Token::End => {
                self.count_value()?;
                String::new()
            }
            _ => self.value()?,
        };
        Ok(BTreeSet::from([value]))
    }

    fn count_value(&mut self) -> Result<(), SelectorError> {
        if self.values == MAX_VALUES {
            return self.expected(format!("a selector has no more than {MAX_VALUES} values."));
        }
        self.values += 1;
        Ok(())
    }

    fn value(&mut self) -> Result<String, SelectorError> {
        match self.peek() {
            Token::Word(word) if is_value(&word) => {
                self.count_value()?;
                self.next();
                Ok(word)
            }
            Token::Word(_) => self.expected(BAD_VALUE),
            _ => self.expected("expected a value."),
        }
    }

    /// Reads the list after `in` or `notin`. As in Kubernetes, an omitted value before or after a
    /// comma is the empty value.
    fn list(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        self.next();
        if self.peek() != Token::Open {
            return self.expected("expected a list of values, such as (a,b).");
        }
        self.next();
        if self.peek() == Token::Close {
            return self.expected("the list has no value.");
        }
        let mut values = BTreeSet::new();
        loop {
            let value = match self.peek() {
                Token::Comma | Token::Close => {
                    self.count_value()?;
                    String::new()
                }
                _ => self.value()?,
            };
            values.insert(value);
            match self.peek() {
                Token::Comma => drop(self.next()),
                Token::Close => break,
                _ => return self.expected("expected a comma or a closing parenthesis."),
            }
        }
        self.next();
        Ok(values)
    }

    fn selector(&mut self) -> Result<Selector, SelectorError> {
        if self.peek() == Token::End {
            return Err(SelectorError {
                position: 1,
                message: "the selector is empty. Name a label, such as env or env=prod.".to_owned(),
            });
        }
        let mut terms = Vec::new();
        loop {
            if terms.len() == MAX_TERMS {
                return self.expected(format!("a selector has no more than {MAX_TERMS} terms."));
            }
            terms.push(self.term()?);
            match self.peek() {
                Token::Comma => drop(self.next()),
                Token::End => break,
                _ => return self.expected("expected a comma or the end."),
            }
        }
        terms.sort();
        terms.dedup();
        Ok(Selector { terms })
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    /// Reads a selector.
    ///
    /// # Errors
    /// The first error, with its position.
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Parser { tokens: tokens(text).into_iter().peekable(), values: 0 }.selector()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn read(text: &str) -> Selector {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn canonical_forms() {
        for (text, canonical) in [
            ("env", "env"),
            ("!env", "!env"),
            (" ! env ", "!env"),
            ("env=prod", "env=prod"),
            ("env==prod", "env=prod"),
            ("env = prod", "env=prod"),
            ("env!=prod", "env!=prod"),
            ("env\t!=\r\nprod", "env!=prod"),
            ("env=", "env="),
            ("env=,b", "b,env="),
            ("env!=", "env!="),
            ("env in (b,a)", "env in (a,b)"),
            ("env in(b , a , b)", "env in (a,b)"),
            ("env in (a)", "env=a"),
            ("env notin (a)", "env!=a"),
            ("env notin (b,a)", "env notin (a,b)"),
            // As in Kubernetes, an omitted value in a list is the empty value.
            ("env in (,)", "env="),
            ("env in (a,)", "env in (,a)"),
            ("env in (,a)", "env in (,a)"),
            ("env in (a,,b)", "env in (,a,b)"),
            // Keywords can also be keys and values.
            ("in in (in,notin)", "in in (in,notin)"),
            ("notin notin (in)", "notin!=in"),
            ("in", "in"),
            ("a=in", "a=in"),
            ("z,a,m=1,m=1", "a,m=1,z"),
            ("a=1,a=2", "a=1,a=2"),
            ("app.kubernetes.io/name=web-1", "app.kubernetes.io/name=web-1"),
        ] {
            assert_eq!(read(text).to_string(), canonical, "{text}");
            assert_eq!(read(canonical), read(text), "{text}");
            let json = serde_json::to_string(&read(text)).unwrap();
            assert_eq!(serde_json::from_str::<Selector>(&json).unwrap(), read(text));
        }
        assert!(serde_json::from_str::<Selector>("\"a,\"").is_err());
    }

    #[test]
    fn errors_have_positions() {
        let list = "expected a list of values, such as (a,b).";
        let operator = "expected =, ==, !=, in, notin, a comma or the end.";
        let empty = "the selector is empty. Name a label, such as env or env=prod.";
        for (text, position, message) in [
            ("", 1, empty),
            ("  ", 1, empty),
            (",", 1, "a term is missing before the comma."),
            (",a", 1, "a term is missing before the comma."),
            ("a,,b", 3, "a term is missing before the comma."),
            ("a, ,b", 4, "a term is missing before the comma."),
            ("a,", 3, "a term is missing at the end."),
            ("a, ", 4, "a term is missing at the end."),
            ("!", 2, "expected the key of a label."),
            ("!!a", 2, "expected the key of a label."),
            ("!,a", 2, "expected the key of a label."),
            ("=a", 1, "expected the key of a label."),
            ("(a)", 1, "expected the key of a label."),
            ("a b", 3, operator),
            ("a (b)", 3, operator),
            ("a !b", 3, operator),
            ("a IN (b)", 3, operator),
            ("!a=b", 3, "expected a comma or the end."),
            ("!a in (b)", 4, "expected a comma or the end."),
            ("a=b c", 5, "expected a comma or the end."),
            ("a=b=c", 4, "expected a comma or the end."),
            ("a in (b) c", 10, "expected a comma or the end."),
            ("a===b", 4, "expected a value."),
            ("a=!b", 3, "expected a value."),
            ("a!==b", 4, "expected a value."),
            ("a=(b)", 3, "expected a value."),
            ("a>1", 2, "< and > are not supported."),
            ("a < 1", 3, "< and > are not supported."),
            ("a in", 5, list),
            ("a in b", 6, list),
            ("a notin ,b", 9, list),
            ("a in ()", 7, "the list has no value."),
            ("a in (", 7, "expected a value."),
            ("a in (b", 8, "expected a comma or a closing parenthesis."),
            ("a in (b c)", 9, "expected a comma or a closing parenthesis."),
            ("a in ((b))", 7, "expected a value."),
            ("Env=prod", 1, BAD_KEY),
            ("é=1", 1, BAD_KEY),
            ("a=1, -b", 6, BAD_KEY),
            ("a=é,b", 3, BAD_VALUE),
            ("a in (x,y/z)", 9, BAD_VALUE),
            ("a='x'", 3, BAD_VALUE),
        ] {
            let error = text.parse::<Selector>().expect_err(text);
            assert_eq!((error.position, error.message.as_str()), (position, message), "{text}");
        }
    }

    #[test]
    fn terms_and_values_are_bounded() {
        let terms = |number| vec!["a"; number].join(",");
        assert!(terms(20).parse::<Selector>().is_ok());
        let error = terms(21).parse::<Selector>().unwrap_err();
        assert_eq!(error.to_string(), "At position 41: a selector has no more than 20 terms.");
        let values = |number| format!("k=x,a in ({})", vec!["v"; number].join(","));
        assert!(values(99).parse::<Selector>().is_ok());
        let error = values(100).parse::<Selector>().unwrap_err();
        assert_eq!(error.to_string(), "At position 209: a selector has no more than 100 values.");
        let error = format!("a in ({})", ",".repeat(100)).parse::<Selector>().unwrap_err();
        assert!(error.message.contains("100 values"), "{error}");
        let longest = format!("{}={}", "k".repeat(63), "v".repeat(63));
        assert!(longest.parse::<Selector>().is_ok());
        assert!(format!("{longest}v").parse::<Selector>().is_err());
    }

    #[test]
    fn what_a_term_matches() {
        let (none, prod) = (labels(&[]), labels(&[("env", "prod")]));
        let (dev, empty) = (labels(&[("env", "dev")]), labels(&[("env", "")]));
        for (text, matched) in [
            ("env", [false, true, true, true]),
            ("!env", [true, false, false, false]),
            ("env=prod", [false, true, false, false]),
            ("env=", [false, false, false, true]),
            ("env!=prod", [true, false, true, true]),
            ("env!=", [true, true, true, false]),
            ("env in (prod,dev)", [false, true, true, false]),
            ("env in (prod,)", [false, true, false, true]),
            ("env notin (prod,dev)", [true, false, false, true]),
            ("env,env!=prod", [false, false, true, true]),
            ("env=prod,env=dev", [false; 4]),
            ("env=PROD", [false; 4]),
            ("en", [false; 4]),
        ] {
            let selector = read(text);
            let found = [&none, &prod, &dev, &empty].map(|labels| selector.matches(labels));
            assert_eq!(found, matched, "{text}");
        }
    }

    /// The meaning of a term, and one way to write it.
    #[derive(Clone, Debug)]
    enum ExpectedTerm {
        Has(String),
        Lacks(String),
        Is(String, String, bool),
        IsNot(String, String),
        OneOf(String, Vec<String>),
        NoneOf(String, Vec<String>),
    }

    impl ExpectedTerm {
        fn written(&self, gap: &str) -> String {
            match self {
                Self::Has(key) => format!("{gap}{key}{gap}"),
                Self::Lacks(key) => format!("{gap}!{gap}{key}"),
                Self::Is(key, value, false) => format!("{key}{gap}={gap}{value}"),
                Self::Is(key, value, true) => format!("{key}{gap}=={gap}{value}"),
                Self::IsNot(key, value) => format!("{key}{gap}!={gap}{value}{gap}"),
                Self::OneOf(key, values) => {
                    format!("{key} in{gap}({gap}{}{gap})", values.join(&format!("{gap},{gap}")))
                }
                Self::NoneOf(key, values) => {
                    format!("{key} notin ({})", values.join(&format!(",{gap}")))
                }
            }
        }

        fn holds(&self, labels: &[(String, String)]) -> bool {
            let of = |key: &String| {
                labels.iter().rev().find(|(own, _)| own == key).map(|(_, value)| value)
            };
            match self {
                Self::Has(key) => of(key).is_some(),
                Self::Lacks(key) => of(key).is_none(),
                Self::Is(key, value, _) => of(key) == Some(value),
                Self::IsNot(key, value) => of(key) != Some(value),
                Self::OneOf(key, values) => values.iter().any(|value| of(key) == Some(value)),
                Self::NoneOf(key, values) => values.iter().all(|value| of(key) != Some(value)),
            }
        }
    }

    fn meant() -> impl Strategy<Value = ExpectedTerm> {
        let key = || "a|b|c[.]d/e|in|notin|0";
        // An empty value alone in a list cannot be written: `()` has no value.
        let values = || {
            proptest::collection::vec("x|y|Z_1|-|in", 1..4).prop_flat_map(|values| {
                proptest::collection::vec(Just(String::new()), 0..2)
                    .prop_map(move |empty| [values.clone(), empty].concat())
            })
        };
        prop_oneof![
            key().prop_map(ExpectedTerm::Has),
            key().prop_map(ExpectedTerm::Lacks),
            (key(), "|x|y|Z_1|notin", any::<bool>())
                .prop_map(|(key, value, double)| ExpectedTerm::Is(key, value, double)),
            (key(), "|x|y|Z_1").prop_map(|(key, value)| ExpectedTerm::IsNot(key, value)),
            (key(), values()).prop_map(|(key, values)| ExpectedTerm::OneOf(key, values)),
            (key(), values()).prop_map(|(key, values)| ExpectedTerm::NoneOf(key, values)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_selector_means_what_its_terms_mean(
            meant in proptest::collection::vec(meant(), 1..6),
            gap in "[ \t\n]{0,2}",
            labels in proptest::collection::vec(("a|b|c[.]d/e|in|notin|0", "|x|y|Z_1|-|in"), 0..5),
        ) {
            let text = meant.iter().map(|term| term.written(&gap)).collect::<Vec<_>>().join(",");
            let selector = text.parse::<Selector>().map_err(|error| TestCaseError::fail(format!("{text:?}: {error}")))?;
            let expected = meant.iter().all(|term| term.holds(&labels));
            let labels: Labels = labels.into_iter().collect();
            prop_assert_eq!(selector.matches(&labels), expected, "{} on {:?}", text, labels);
            let canonical = selector.to_string();
            prop_assert_eq!(canonical.parse::<Selector>().unwrap(), selector, "{}", canonical);
        }

        /// The order in which terms are written does not change the canonical form.
        #[test]
        fn the_canonical_form_is_one(meant in proptest::collection::vec(meant(), 1..6)) {
            let written: Vec<_> = meant.iter().map(|term| term.written(" ")).collect();
            let turned: Vec<_> = meant.iter().rev().map(|term| term.written("")).collect();
            prop_assert_eq!(read(&written.join(",")).to_string(), read(&turned.join(",")).to_string());
        }

        /// Any text is accepted, or refused with a position in it or at its end.
        #[test]
        fn any_text(text in "[ab!=<>(), é]{0,12}|(a|b|in|notin|=|!=|!|,|\\(|\\)| ){0,8}|\\PC{0,20}") {
            match text.parse::<Selector>() {
                Ok(selector) => prop_assert_eq!(selector.to_string().parse::<Selector>(), Ok(selector)),
                Err(error) => prop_assert!((1..=text.chars().count() + 1).contains(&error.position), "{}", error),
            }
        }
    }
}
