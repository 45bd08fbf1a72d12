//! Host names, workspaces and regions (contract 1).

use farhand_tests::client::{PASSWORD, new_workspace};
use farhand_tests::{Api, Workspace};
use serde_json::json;

#[tokio::test]
async fn a_workspace_responds_under_its_own_name() {
    let workspace = Workspace::new().await;
    workspace.admin.get("/api/status/").await.expect(200);
    let upper = format!("{}.LOCAL.LocalHost:1234", workspace.slug.to_uppercase());
    workspace.admin.with_host(&upper).get("/api/status/").await.expect(200);
    assert_eq!(
        workspace.admin.get("/api/nope/").await.expect(404)["detail"],
        "There is no such path."
    );
}

#[tokio::test]
async fn unknown_hosts_are_404_before_the_credential_check() {
    let workspace = Workspace::new().await;
    let slug = &workspace.slug;
    let names = [
        format!("{slug}.elsewhere.localhost"),
        format!("deeper.{slug}.local.localhost"),
        format!("{slug}.localhost"),
        format!("{slug}x.local.localhost"),
        format!("{slug}.local.localhost.example.com"),
        "local.localhost".to_owned(),
        "example.com".to_owned(),
    ];
    for name in names {
        let elsewhere = workspace.admin.with_host(&name);
        for api in
            [elsewhere.clone(), elsewhere.anonymous(), elsewhere.with_authorization("nonsense")]
        {
            let refused = api.get("/api/status/").await;
            refused.expect_detail(404, None);
            assert_eq!(refused.json()["detail"], "No workspace has this host name.");
            api.get("/api/status").await.expect_detail(404, None);
            api.get("/api/nope/").await.expect_detail(404, None);
            api.call("PATCH", "/api/status/").await.expect_detail(404, None);
            api.call("OPTIONS", "/api/status/").await.expect_detail(404, None);
            api.get("/api/auth/is-authenticated/").await.expect_detail(404, None);
        }
        let login = elsewhere
            .post("/api/auth/login/", &json!({"username": "boss", "password": PASSWORD}))
            .await;
        login.expect_detail(404, None);
        let agent =
            elsewhere.with_authorization("id=\"01936d3e-7a00-7000-8000-000000000000\", key=\"k\"");
        agent.call("POST", "/api/events/events/").await.expect_detail(404, None);
    }
}

#[tokio::test]
async fn the_bare_domain_reaches_the_default_workspace() {
    let operator = Api::operator();
    // All tests share this workspace, so an earlier test may have created it.
    let made = operator.post("/operator/workspaces/", &new_workspace("demo")).await;
    assert!(made.status == 201 || made.status == 400, "{}", made.text);
    let login = json!({"username": "boss", "password": PASSWORD});
    let named = Api::at("demo.local.localhost");
    let token = named.post("/api/auth/login/", &login).await.expect(200)["token"]
        .as_str()
        .unwrap()
        .to_owned();
    for bare in ["127.0.0.1", "localhost", "LOCALHOST:8787", "[::1]:8787"] {
        named.with_token(&token).with_host(bare).get("/api/status/").await.expect(200);
    }
}

#[tokio::test]
async fn credentials_and_ids_work_only_in_their_workspace() {
    let (one, two) = (Workspace::new().await, Workspace::new().await);
    let server = one.server("web-1").await;
    let id = server["id"].as_str().unwrap();
    for api in [one.admin.clone(), one.session()] {
        api.with_host(&two.anonymous.host)
            .get("/api/status/")
            .await
            .expect_detail(403, Some("INVALID_TOKEN"));
        api.with_host(&two.anonymous.host)
            .get("/api/servers/")
            .await
            .expect_detail(403, Some("INVALID_TOKEN"));
        api.get("/api/status/").await.expect(200);
    }
    two.admin.get(&format!("/api/servers/servers/{id}/")).await.expect_detail(404, None);
    for named in [id, "web-1"] {
        let command = json!({"server": named, "line": "id"});
        two.admin.post("/api/events/commands/", &command).await.expect_fields(400, &["server"]);
    }
    // The same name is free in another workspace.
    two.server("web-1").await;
    assert_eq!(one.admin.get("/api/servers/").await.expect(200)["count"], 1);
    // An agent's key is valid only in its own workspace.
    let agent = one.anonymous.with_authorization(&farhand_tests::agents::credential(&server));
    agent.get("/api/servers/servers/-/").await.expect(200);
    agent
        .with_host(&two.anonymous.host)
        .get("/api/servers/servers/-/")
        .await
        .expect_detail(403, Some("INVALID_TOKEN"));
}
