//! Counters of attempts, and known addresses.

use farhand_domain::limits::throttle::{Counter, KnownAddress};
use farhand_sql::object::throttle::{
    any_address, any_counter, counter, delete_counter, delete_expired_addresses,
    delete_expired_counters, delete_surplus_addresses, last_login, schema, store_counter,
    store_login,
};
use serde_json::json;

use super::object::{Object, at};

fn address(user: &str, address: &str) -> KnownAddress {
    KnownAddress { user: user.to_owned(), address: address.to_owned() }
}

#[test]
fn counters_are_stored_until_they_expire() {
    let object = Object::new(schema().into_iter().chain(schema()));
    assert_eq!(object.rows(any_counter()), [json!(null); 0]);
    for (key, count, ends_at) in [("a", 1, at(10)), ("b", 1, at(20)), ("b", 2, at(30))] {
        object.run(store_counter(Counter { key: key.to_owned(), count, ends_at }));
    }
    assert_eq!(object.rows(any_counter()), [json!({"one": 1})]);
    let stored: Counter = object.row(counter("b")).unwrap();
    assert_eq!((stored.key.as_str(), stored.count, stored.ends_at), ("b", 2, at(30)));
    assert_eq!(object.run(delete_expired_counters(at(9))), 0);
    assert_eq!(object.run(delete_expired_counters(at(10))), 1);
    assert_eq!(object.rows(counter("a")), [json!(null); 0]);
    assert_eq!(object.run(delete_counter("a")), 0);
    assert_eq!(object.run(delete_counter("b")), 1);
    let expected = "SEARCH counters USING INDEX counters_by_end (ends_at<?)";
    assert_eq!(object.plan(delete_expired_counters(at(0))), expected);
    let expected = "SEARCH counters USING PRIMARY KEY (key=?)";
    assert_eq!(object.plan(counter("a")), expected);
}

#[test]
fn the_latest_addresses_of_a_user_are_known() {
    let object = Object::new(schema());
    assert_eq!(object.rows(any_address()), [json!(null); 0]);
    for (user, of, seconds) in
        [("u", "a", 1), ("u", "b", 2), ("u", "c", 3), ("u", "a", 4), ("v", "a", 0)]
    {
        object.run(store_login(&address(user, of), at(seconds)));
    }
    assert_eq!(object.rows(any_address()), [json!({"one": 1})]);
    let known = |user, of, since| object.rows(last_login(&address(user, of), at(since)));
    assert_eq!(known("u", "a", 3), [json!({"logged_in_at": at(4)})]);
    assert_eq!(known("u", "a", 4), [json!(null); 0]);
    assert_eq!(known("v", "b", 0), [json!(null); 0]);
    assert_eq!(object.run(delete_surplus_addresses("u", 3)), 0);
    assert_eq!(object.run(delete_surplus_addresses("u", 2)), 1);
    assert_eq!(known("u", "b", 0), [json!(null); 0]);
    assert_eq!(object.run(delete_expired_addresses(at(0))), 1);
    assert_eq!(object.run(delete_expired_addresses(at(3))), 1);
    assert_eq!(known("u", "a", 0), [json!({"logged_in_at": at(4)})]);
    let expected =
        "SEARCH known_addresses USING COVERING INDEX known_addresses_by_time (logged_in_at<?)";
    assert_eq!(object.plan(delete_expired_addresses(at(0))), expected);
    let plan = object.plan(delete_surplus_addresses("u", 2));
    assert!(!plan.contains("SCAN known_addresses"), "{plan}");
}
