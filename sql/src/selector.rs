//! Selectors in SQL, for lists and for reads of limited API tokens (contract 12.2). They have the
//! same rule as [`Selector::matches`]. `sql/tests/selector.rs` compares the two.

use farhand_domain::fleet::selector::Selector;
use serde_json::json;

/// The terms of a selector as the JSON that [`labels_match`](crate::labels_match) compares with.
/// Keys have no quotes and no backslashes, so they need no escape in a JSON path.
pub fn terms(selector: &Selector) -> String {
    let term = |term: &farhand_domain::fleet::selector::Term| {
        let path = format!("$.\"{}\"", term.key);
        json!({"path": path, "values": term.values, "is_negated": term.is_negated})
    };
    json!(selector.terms().iter().map(term).collect::<Vec<_>>()).to_string()
}

/// SQL for the condition that labels match a selector. The first literal is SQL for the labels as
/// JSON. The second is SQL for the [`terms`] of the selector. Null terms match all labels.
#[macro_export]
macro_rules! labels_match {
    ($labels:literal, $terms:literal) => {
        concat!(
            "NOT EXISTS (SELECT 1 FROM json_each(",
            $terms,
            ") term WHERE coalesce(CASE WHEN term.value ->> '$.values' IS NULL
                THEN ",
            $labels,
            " ->> (term.value ->> '$.path') IS NOT NULL
                ELSE ",
            $labels,
            " ->> (term.value ->> '$.path') IN (SELECT fit.value FROM json_each(term.value, '$.values') fit) END, 0)
                = (term.value ->> '$.is_negated'))"
        )
    };
}
