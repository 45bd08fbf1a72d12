//! Tests that a selector in SQL matches the same labels as in Rust.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use farhand_domain::fleet::labels::Labels;
use farhand_domain::fleet::selector::Selector;
use farhand_sql::labels_match;
use farhand_sql::selector::terms;
use proptest::prelude::*;
use rusqlite::{Connection, params};

fn in_sql(database: &Connection, labels: &Labels, selector: Option<&Selector>) -> bool {
    let sql = concat!("SELECT ", labels_match!("?1", "?2"));
    let mut statement = database.prepare_cached(sql).unwrap();
    let values = params![labels.json(), selector.map(terms)];
    statement.query_row(values, |row| row.get(0)).unwrap()
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn keys_that_look_like_paths_and_values_that_look_like_numbers() {
    let database = Connection::open_in_memory().unwrap();
    let labels = labels(&[("a.b/c", "1"), ("0", "true"), ("a", ""), ("n", "null"), ("7-7", "07")]);
    for (text, matches) in [
        ("a.b/c", true),
        ("a.b/c=1", true),
        ("a.b/c in (1,2)", true),
        ("a.b/c=01", false),
        ("a.b", false),
        ("!a.b", true),
        ("0=true", true),
        ("0!=true", false),
        ("7-7=07", true),
        ("7-7=7", false),
        ("a=", true),
        ("a!=", false),
        ("n=null", true),
        ("!n", false),
        ("x!=", true),
        ("x notin (a,b)", true),
        ("x in (a,)", false),
        ("a.b/c=1,0=true,!x", true),
        ("a.b/c=1,0=true,x", false),
    ] {
        let selector: Selector = text.parse().unwrap();
        assert_eq!(selector.matches(&labels), matches, "{text}");
        assert_eq!(in_sql(&database, &labels, Some(&selector)), matches, "{text} in SQL");
    }
    assert!(in_sql(&database, &labels, None), "no selector limits nothing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn sql_and_rust_agree(
        terms in proptest::collection::vec(
            ("a|b|c[.]d/e|0|1-1", "|!=|=|==| in | notin ", proptest::collection::vec("|x|0|1|-[.]_|true", 1..4)),
            1..5,
        ),
        absent in proptest::collection::vec("a|b|c[.]d/e|0", 0..2),
        labels in proptest::collection::vec(("a|b|c[.]d/e|0|1-1", "|x|0|1|-[.]_|true"), 0..5),
    ) {
        let written = terms.iter().map(|(key, operator, values)| match operator.as_str() {
            "" => key.clone(),
            "=" | "==" | "!=" => format!("{key}{operator}{}", values[0]),
            _ if values.concat().is_empty() => format!("{key}{operator}(x)"),
            _ => format!("{key}{operator}({})", values.join(",")),
        });
        let text = written.chain(absent.iter().map(|key| format!("!{key}"))).collect::<Vec<_>>().join(",");
        let selector: Selector = text.parse().unwrap();
        let labels: Labels = labels.into_iter().collect();
        let database = Connection::open_in_memory().unwrap();
        prop_assert_eq!(in_sql(&database, &labels, Some(&selector)), selector.matches(&labels), "{} on {:?}", text, labels);
    }
}
