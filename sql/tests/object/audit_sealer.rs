//! The state of an audit chain.

use farhand_sql::object::audit_sealer::{
    anchors, begin_deletion, chain, delete_anchors_before, end_deletion, find_tables,
    insert_anchor, insert_chain, schema, set_expired, set_head,
};
use farhand_sql::statement::Statement;
use serde_json::json;

use super::object::Object;

#[test]
fn an_object_has_one_chain() {
    let object = Object::new([]);
    assert_eq!(object.rows(find_tables()), [json!(null); 0]);
    for statement in schema().into_iter().chain(schema()) {
        object.run(statement);
    }
    assert_eq!(object.rows(find_tables()), [json!({"name": "chains"})]);
    assert_eq!(object.rows(chain()), [json!(null); 0]);
    assert_eq!(object.run(insert_chain(7, "none".to_owned())), 1);
    let stored = |head, pending, base, is_deleting, expired| {
        [json!({"workspace": 7, "head": head, "pending": pending, "base": base,
            "is_deleting": is_deleting, "expired": expired})]
    };
    assert_eq!(object.rows(chain()), stored("none", "null", "none", 0, 0));
    object.run(set_head("ten".to_owned(), "seals".to_owned()));
    assert_eq!(object.rows(chain()), stored("ten", "seals", "none", 0, 0));
    assert_eq!(object.run(insert_chain(7, "again".to_owned())), 0);
    object.run(begin_deletion("two".to_owned()));
    assert_eq!(object.rows(chain()), stored("ten", "seals", "two", 1, 0));
    object.run(end_deletion());
    object.run(set_expired(4));
    assert_eq!(object.rows(chain()), stored("ten", "seals", "two", 0, 4));
}

#[test]
fn a_chain_of_an_earlier_version_is_read() {
    let before = Statement::new(
        "CREATE TABLE chains (workspace INTEGER PRIMARY KEY, head TEXT NOT NULL, pending TEXT NOT NULL,
            base TEXT NOT NULL, is_deleting INTEGER NOT NULL, expired INTEGER NOT NULL DEFAULT 0)",
    );
    let object = Object::new([before, insert_chain(1, "a".to_owned())]);
    for statement in schema() {
        object.run(statement);
    }
    assert_eq!(object.column("head", chain()), ["a"]);
}

#[test]
fn the_hash_of_an_entry_never_changes() {
    let object = Object::new(schema());
    for (link, hash) in [(100, "a"), (200, "b"), (300, "c")] {
        assert_eq!(object.run(insert_anchor(link, hash)), 1);
        assert_eq!(object.run(insert_anchor(link, "other")), 0);
    }
    let from_to = |first, last| object.column("hash", anchors(first, last));
    assert_eq!(from_to(100, 200), ["a", "b"]);
    assert_eq!(from_to(101, 299), ["b"]);
    assert_eq!(object.run(delete_anchors_before(200)), 1);
    assert_eq!(object.rows(anchors(0, 250)), [json!({"link": 200, "hash": "b"})]);
    let expected = "SEARCH anchors USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)";
    assert_eq!(object.plan(anchors(1, 2)), expected);
}
