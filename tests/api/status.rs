//! `/api/status/` (contract 9).

use farhand_tests::Workspace;
use serde_json::json;

#[tokio::test]
async fn the_status_is_ok_for_every_user() {
    let workspace = Workspace::new().await;
    for api in [&workspace.admin, &workspace.session()] {
        assert_eq!(api.get("/api/status/").await.expect(200), json!({"status": "ok"}));
    }
}
