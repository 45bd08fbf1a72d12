//! `/api/iam/users/` (contract 5).

use farhand_domain::time::Timestamp;
use farhand_tests::Workspace;
use serde_json::json;

#[tokio::test]
async fn the_caller_sees_themselves() {
    let workspace = Workspace::new().await;
    let me = workspace.admin.get("/api/iam/users/-/").await.expect(200);
    assert!(me["id"].is_i64(), "{me}");
    assert!(Timestamp::parse(me["date_joined"].as_str().unwrap()).is_ok());
    let mut keys: Vec<&String> = me.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(
        keys,
        [
            "date_joined",
            "email",
            "first_name",
            "id",
            "is_active",
            "is_staff",
            "is_superuser",
            "last_login",
            "last_name",
            "username"
        ]
    );
    assert_eq!(
        (&me["username"], &me["email"], &me["is_active"]),
        (&json!("boss"), &json!("boss@example.com"), &json!(true))
    );
    assert_eq!(workspace.session().get("/api/iam/users/-/").await.expect(200), me);
}
