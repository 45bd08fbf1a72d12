//! The identity and the events of a batch.

use farhand_sql::object::batch::{
    events_after, find_tables, identity, insert_events, save_identity, schema,
};
use serde_json::json;

use super::object::Object;

#[test]
fn an_object_has_one_batch() {
    let object = Object::new([]);
    assert_eq!(object.rows(find_tables()), [json!(null); 0]);
    for statement in schema().into_iter().chain(schema()) {
        object.run(statement);
    }
    assert_eq!(object.rows(find_tables()), [json!({"name": "batch"})]);
    assert_eq!(object.rows(identity()), [json!(null); 0]);
    object.run(save_identity("one".to_owned()));
    object.run(save_identity("two".to_owned()));
    assert_eq!(object.rows(identity()), [json!({"document": "two"})]);
}

#[test]
fn events_are_read_in_order_from_any_number() {
    let object = Object::new(schema());
    for (last, events) in [(7, "c"), (2, "a"), (5, "b"), (5, "B")] {
        object.run(insert_events(last, events.to_owned()));
    }
    let after = |number| object.column("events", events_after(number));
    assert_eq!(after(0), ["a", "B", "c"]);
    assert_eq!(after(1), ["a", "B", "c"]);
    assert_eq!(after(2), ["B", "c"]);
    assert_eq!(after(7), [""; 0]);
    let expected = "SEARCH log USING INTEGER PRIMARY KEY (rowid>?)";
    assert_eq!(object.plan(events_after(2)), expected);
}
