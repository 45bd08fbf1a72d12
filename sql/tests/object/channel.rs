//! The channel of a client.

use farhand_sql::object::channel::{NewChannel, find, find_table, insert, schema, use_secret};
use serde_json::json;

use super::object::{Object, at};

#[test]
fn the_secret_of_a_channel_connects_once() {
    let object = Object::new([]);
    assert_eq!(object.rows(find_table()), [json!(null); 0]);
    object.run(schema());
    object.run(schema());
    assert_eq!(object.rows(find_table()), [json!({"name": "channel"})]);
    assert_eq!(object.rows(find()), [json!(null); 0]);
    object.run(insert(NewChannel {
        workspace: "main",
        token_hash: "token",
        remote_ip: "192.0.2.1",
        secret_hash: "secret",
        opened_at: at(10),
    }));
    let stored = |is_used| {
        [json!({"workspace": "main", "token_hash": "token", "remote_ip": "192.0.2.1",
            "secret_hash": "secret", "opened_at": at(10), "is_used": is_used})]
    };
    for (workspace, secret_hash, since) in
        [("other", "secret", at(9)), ("main", "guess", at(9)), ("main", "secret", at(10))]
    {
        assert_eq!(object.rows(use_secret(workspace, secret_hash, since)), [json!(null); 0]);
    }
    assert_eq!(object.rows(find()), stored(0));
    assert_eq!(object.rows(use_secret("main", "secret", at(9))), [json!({"is_used": 1})]);
    assert_eq!(object.rows(find()), stored(1));
    assert_eq!(object.rows(use_secret("main", "secret", at(9))), [json!(null); 0]);
}
