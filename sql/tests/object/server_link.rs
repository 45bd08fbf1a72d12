//! The state of a server, and the responses to requests with an Idempotency-Key.

use farhand_sql::object::server_link::{answers, find_tables, save_server, schema, server};
use serde_json::json;

use super::object::{Object, at, id};

#[test]
fn a_new_object_has_no_tables() {
    let object = Object::new([]);
    assert_eq!(object.rows(find_tables()), [json!(null); 0]);
    for statement in schema() {
        object.run(statement);
    }
    assert_eq!(object.rows(find_tables()), [json!({"name": "server"})]);
}

#[test]
fn an_object_has_one_server() {
    let object = Object::new(schema());
    assert_eq!(object.rows(server()), [json!(null); 0]);
    object.run(save_server("{\"a\":1}".to_owned()));
    object.run(save_server("{\"a\":':document'}".to_owned()));
    assert_eq!(object.table("server"), [json!({"id": 1, "document": "{\"a\":':document'}"})]);
    assert_eq!(object.column("document", server()), ["{\"a\":':document'}"]);
}

#[test]
fn a_key_has_a_response_until_it_expires_or_its_command_is_deleted() {
    let object = Object::new(schema());
    object.run(answers::insert("k1", "b1", id(1), at(10)));
    object.run(answers::insert("k2", "b2", id(2), at(20)));
    object.run(answers::insert("k3", "b3", id(2), at(30)));
    assert_eq!(
        object.rows(answers::find("k1")),
        [json!({"body": "b1", "command": id(1), "answer": null})]
    );
    object.run(answers::set_answer("k1", "{}"));
    assert_eq!(
        object.rows(answers::find("k1")),
        [json!({"body": "b1", "command": id(1), "answer": "{}"})]
    );
    // The key is used again for another request.
    object.run(answers::insert("k1", "b4", id(4), at(10)));
    assert_eq!(
        object.rows(answers::find("k1")),
        [json!({"body": "b4", "command": id(4), "answer": null})]
    );
    assert_eq!(object.run(answers::delete_expired(at(9))), 0);
    assert_eq!(object.run(answers::delete_expired(at(10))), 1);
    assert_eq!(object.run(answers::delete_of_command(id(2))), 2);
    assert_eq!(object.table("answers"), [json!(null); 0]);
}

#[test]
fn responses_are_found_by_indexes() {
    let object = Object::new(schema());
    let expected = "SEARCH answers USING INDEX answers_by_expiry (expires_at<?)";
    assert_eq!(object.plan(answers::delete_expired(at(0))), expected);
    let expected = "SEARCH answers USING INDEX answers_by_command (command=?)";
    assert_eq!(object.plan(answers::delete_of_command(id(1))), expected);
    let expected = "SEARCH answers USING PRIMARY KEY (key=?)";
    assert_eq!(object.plan(answers::find("k")), expected);
    assert_eq!(object.plan(answers::set_answer("k", "")), expected);
}
