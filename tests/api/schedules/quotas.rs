//! The quotas of schedules (contract 11.4).

use farhand_tests::{Instance, Workspace};
use serde_json::json;

use super::{SCHEDULES, create, yearly};
use farhand_tests::people::item_path;

#[tokio::test]
async fn a_user_and_a_workspace_have_a_limited_number_of_schedules() {
    let variables = [("QUOTA_SCHEDULES_PER_USER", "2"), ("QUOTA_SCHEDULES_PER_WORKSPACE", "3")];
    let (instance, _folder) = Instance::new_with(&variables).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let (alice, bob) = (workspace.user("alice").await, workspace.user("bob").await);
    let first = create(&alice, json!({})).await;
    create(&alice, json!({"enabled": false})).await;
    let refuse = async |api: &farhand_tests::Api| {
        let reply = api.post(SCHEDULES, &yearly(json!({}))).await;
        reply.expect_detail(429, Some("QUOTA_EXCEEDED"));
        assert!(reply.header("Retry-After").parse::<u32>().unwrap() > 0);
    };
    refuse(&alice).await;
    create(&bob, json!({})).await;
    refuse(&bob).await;
    alice.delete(&item_path(SCHEDULES, &first)).await.expect(204);
    create(&bob, json!({})).await;
    refuse(&alice).await;
    instance.stop().await;
}
