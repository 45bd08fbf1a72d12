//! Compares selectors with a naive reading, and what they match with a naive matcher. The input is
//! a selector, then `|`, then labels such as `env=prod,tier=web`.

use std::collections::{BTreeMap, BTreeSet};

use farhand_domain::fleet::labels::Labels;
use farhand_domain::fleet::selector::Selector;

/// A term: the key, the accepted values or `None` for any value, and whether it is inverted.
type Term = (String, Option<BTreeSet<String>>, bool);

const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (text, labels) = text.split_once('|').unwrap_or((&text, ""));
    let selector = match text.parse::<Selector>() {
        Ok(selector) => selector,
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.position), "{error}");
            assert_eq!(read(text), None, "refused: {error}");
            return;
        }
    };
    let terms = read(text).expect("the naive reading accepts it, too");
    let own = selector.terms().iter().map(|term| (term.key.clone(), term.values.clone(), term.is_negated));
    assert_eq!(own.collect::<BTreeSet<_>>(), terms);

    let canonical = selector.to_string();
    assert_eq!(canonical.parse::<Selector>().as_ref(), Ok(&selector), "{canonical}");
    let stored = serde_json::to_string(&selector).expect("a selector is JSON");
    assert_eq!(serde_json::from_str::<Selector>(&stored).expect("what is stored can be read"), selector);

    let labels: BTreeMap<String, String> = labels
        .split(',')
        .filter_map(|label| label.split_once('='))
        .filter(|(key, value)| is_key(key) && is_value(value))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let expected = terms.iter().all(|term| matches(term, &labels));
    assert_eq!(selector.matches(&labels.into_iter().collect::<Labels>()), expected, "{canonical}");
}

fn matches((key, values, is_negated): &Term, labels: &BTreeMap<String, String>) -> bool {
    let is_accepted = match (labels.get(key), values) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(value), Some(values)) => values.contains(value),
    };
    is_accepted != *is_negated
}

/// Reads a selector (contract 12.2) by splitting its text. `None`: it is not valid.
fn read(text: &str) -> Option<BTreeSet<Term>> {
    let mut parts = vec![String::new()];
    let mut is_in_list = false;
    for c in text.chars() {
        is_in_list = if is_in_list { c != ')' } else { c == '(' };
        if c == ',' && !is_in_list {
            parts.push(String::new());
        } else {
            parts.last_mut()?.push(c);
        }
    }
    let terms: Vec<(Term, usize)> = parts.iter().map(|part| read_term(part)).collect::<Option<_>>()?;
    let values: usize = terms.iter().map(|(_, values)| values).sum();
    let is_short = terms.len() <= 20 && values <= 100;
    is_short.then(|| terms.into_iter().map(|(term, _)| term).collect())
}

/// Reads a term, and counts its values.
fn read_term(text: &str) -> Option<(Term, usize)> {
    let text = text.trim_matches(BLANKS);
    let key = |text: &str| {
        let key = text.trim_matches(BLANKS);
        is_key(key).then(|| key.to_owned())
    };
    let value = |text: &str| {
        let value = text.trim_matches(BLANKS);
        is_value(value).then(|| value.to_owned())
    };
    if let Some(rest) = text.strip_prefix('!') {
        return Some(((key(rest)?, None, true), 0));
    }
    if let Some((before, after)) = text.split_once('=') {
        let negated = before.strip_suffix('!');
        let after = if negated.is_some() { after } else { after.strip_prefix('=').unwrap_or(after) };
        let values = BTreeSet::from([value(after)?]);
        return Some(((key(negated.unwrap_or(before))?, Some(values), negated.is_some()), 1));
    }
    let Some((before, list)) = text.split_once('(') else { return Some(((key(text)?, None, false), 0)) };
    let list = list.strip_suffix(')')?;
    let (name, operator) = before.trim_matches(BLANKS).rsplit_once(BLANKS)?;
    let is_negated = match operator {
        "in" => false,
        "notin" => true,
        _ => return None,
    };
    if list.trim_matches(BLANKS).is_empty() {
        return None;
    }
    let values: Vec<String> = list.split(',').map(value).collect::<Option<_>>()?;
    let count = values.len();
    Some(((key(name)?, Some(values.into_iter().collect()), is_negated), count))
}

fn is_key(text: &str) -> bool {
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_inner = |c: char| is_edge(c) || "-_./".contains(c);
    (1..=63).contains(&text.len()) && text.starts_with(is_edge) && text.ends_with(is_edge) && text.chars().all(is_inner)
}

fn is_value(text: &str) -> bool {
    text.len() <= 63 && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}
