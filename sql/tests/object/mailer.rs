//! The queue of mails, and the counts of notices.

use farhand_sql::object::mailer::{
    count_notice, delete_ended_counts, delete_notice, due, insert_notice, next_due, notice,
    notice_count, postpone, queue, remove, schema,
};
use serde_json::json;

use super::object::{Object, at, id};

#[test]
fn mails_are_due_in_order_and_resets_before_notices() {
    let object = Object::new(schema().into_iter().chain(schema()));
    assert_eq!(object.rows(next_due()), [json!({"due_at": null})]);
    for (number, seconds) in [(1, 3), (2, 2), (3, 1), (4, 9)] {
        assert_eq!(object.run(queue(id(number), at(seconds))), 1);
        assert_eq!(object.run(queue(id(number), at(0))), 0);
    }
    object.run(insert_notice(id(3), "mail".to_owned()));
    let due_at = |seconds, limit| object.column("request", due(at(seconds), limit));
    assert_eq!(due_at(3, 5), [2, 1, 3].map(|number| json!(id(number))));
    assert_eq!(due_at(3, 2), [2, 1].map(|number| json!(id(number))));
    assert_eq!(object.rows(next_due()), [json!({"due_at": at(1)})]);
    object.run(postpone(id(3), 1, at(4)));
    assert_eq!(object.rows(next_due()), [json!({"due_at": at(2)})]);
    object.run(remove(id(1)));
    object.run(remove(id(2)));
    assert_eq!(object.rows(due(at(4), 5)), [json!({"request": id(3), "tries": 1})]);
    assert_eq!(due_at(3, 5), [""; 0]);
    assert_eq!(object.rows(notice(id(3))), [json!({"mail": "mail"})]);
    assert_eq!(object.run(delete_notice(id(3))), 1);
    assert_eq!(object.rows(notice(id(3))), [json!(null); 0]);
    let plan = object.plan(due(at(4), 5));
    assert!(plan.starts_with("SEARCH mails USING INDEX mails_due (due_at<?)"), "{plan}");
    let expected = "SEARCH mails USING COVERING INDEX mails_due";
    assert_eq!(object.plan(next_due()), expected);
}

#[test]
fn notices_are_counted_until_the_window_ends() {
    let object = Object::new(schema());
    object.run(count_notice("a", at(10)));
    object.run(count_notice("a", at(20)));
    object.run(count_notice("b", at(20)));
    let count = |key| object.column("count", notice_count(key));
    assert_eq!((count("a"), count("b"), count("c")), (vec![json!(2)], vec![json!(1)], vec![]));
    assert_eq!(object.run(delete_ended_counts(at(9))), 0);
    assert_eq!(object.run(delete_ended_counts(at(10))), 1);
    assert_eq!((count("a"), count("b")), (vec![], vec![json!(1)]));
    let expected = "SEARCH notice_counts USING INDEX notice_counts_by_end (ends_at<?)";
    assert_eq!(object.plan(delete_ended_counts(at(0))), expected);
}
