//! Scripts and API tokens with an access control list (contract 4.12 to 4.14, and 14.10).

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::commands::wait_for_status;
use farhand_tests::{Reply, Workspace};
use serde_json::{Value, json};

use super::{COMMANDS, SCRIPTS, call, path_of, script};

const CHECK: &str = "/api/auth/acl-check/";

#[track_caller]
fn expect_refused(reply: &Reply) {
    reply.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
}

/// A list that allows these scripts.
fn scripts(entries: &[&str]) -> Value {
    json!({"scripts": entries})
}

#[tokio::test]
async fn a_limited_token_reads_only_its_scripts() {
    let workspace = Workspace::new().await;
    let (one, two) =
        (script(&workspace, "echo 1", json!({})).await, script(&workspace, "id", json!({})).await);
    let id = one["id"].as_str().unwrap();
    let all = workspace.limited(&scripts(&[id])).await;
    let first = workspace.limited(&scripts(&[&format!("{id}@1")])).await;
    let none = [json!({}), json!({"scripts": []}), json!({"commands": ["id"]})];
    assert_eq!(first.get(&path_of(&one)).await.expect(200), one);
    workspace.admin.patch(&path_of(&one), &json!({"body": "echo 2"})).await.expect(200);
    let path = path_of(&one);
    // A token for the first version reads neither the second one nor the list that shows it.
    for (token, count, versions) in [(&all, 1, json!([2, 1])), (&first, 0, json!([1]))] {
        assert_eq!(token.get(SCRIPTS).await.expect(200)["count"], count);
        let shown = token.get(&format!("{path}versions/")).await.expect(200);
        let numbers: Vec<_> =
            shown["results"].as_array().unwrap().iter().map(|v| v["version"].clone()).collect();
        assert_eq!(json!(numbers), versions);
        token.get(&format!("{path}versions/1/")).await.expect(200);
        token.get(&path_of(&two)).await.expect_detail(404, Some("NOT_FOUND"));
        let other = format!("{}versions/", path_of(&two));
        token.get(&other).await.expect_detail(404, Some("NOT_FOUND"));
    }
    assert_eq!(all.get(&path).await.expect(200)["version"], 2);
    all.get(&format!("{path}versions/2/")).await.expect(200);
    first.get(&path).await.expect_detail(404, Some("NOT_FOUND"));
    first.get(&format!("{path}versions/2/")).await.expect_detail(404, Some("NOT_FOUND"));
    for acl in none {
        let token = workspace.limited(&acl).await;
        assert_eq!(token.get(SCRIPTS).await.expect(200)["count"], 0, "{acl}");
        token.get(&path).await.expect_detail(404, Some("NOT_FOUND"));
        token.get(&format!("{path}versions/")).await.expect_detail(404, Some("NOT_FOUND"));
    }
    // Changes are refused.
    expect_refused(&all.post(SCRIPTS, &json!({"name": "x", "body": "id"})).await);
    expect_refused(&all.put(&path, &json!({"name": "x", "body": "id"})).await);
    expect_refused(&all.patch(&path, &json!({"body": "id"})).await);
    expect_refused(&all.delete(&path).await);
    assert_eq!(workspace.admin.get(SCRIPTS).await.expect(200)["count"], 2);
    assert_eq!(workspace.admin.get(&path).await.expect(200)["body"], "echo 2");
}

#[tokio::test]
async fn a_limited_token_runs_only_its_scripts() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect_with_features(&workspace, &server, "kill, script").await;
    let params = json!([{"name": "A", "type": "string"}]);
    let one = script(&workspace, "echo 1", json!({"params": params})).await;
    let two = script(&workspace, "id", json!({})).await;
    workspace.admin.patch(&path_of(&one), &json!({"body": "echo 2"})).await.expect(200);
    let id = one["id"].as_str().unwrap();
    let all = workspace.limited(&scripts(&[id])).await;
    let first = workspace.limited(&scripts(&[&format!("{id}@1")])).await;
    let by_line = workspace.limited(&json!({"commands": ["*", "script:*"]})).await;
    let by_words = workspace.limited(&json!({"argv": [["..."]]})).await;
    for (token, more) in [
        (&all, json!({"params": {"A": "x"}})),
        (&all, json!({"script_version": 1})),
        (&first, json!({"script_version": 1, "params": {"A": "$(id)"}})),
    ] {
        let made = token.post(COMMANDS, &call(&one, more)).await.expect(201);
        assert_eq!(agent.next_command().await["id"], made["id"]);
        // The token can read and kill what it runs.
        let path = format!("{COMMANDS}{}/", made["id"].as_str().unwrap());
        token.get(&path).await.expect(200);
        assert_eq!(token.post(&format!("{path}kill/"), &json!({})).await.status, 202);
        assert_eq!(agent.next().await.unwrap()["query"], "kill");
        agent.fin(made["id"].as_str().unwrap(), 143, "").await;
    }
    expect_refused(&first.post(COMMANDS, &call(&one, json!({}))).await);
    expect_refused(&first.post(COMMANDS, &call(&one, json!({"script_version": 2}))).await);
    expect_refused(&all.post(COMMANDS, &call(&two, json!({}))).await);
    let unknown = call(&json!({"id": uuid::Uuid::nil()}), json!({}));
    expect_refused(&all.post(COMMANDS, &unknown).await);
    for token in [&by_line, &by_words] {
        expect_refused(&token.post(COMMANDS, &call(&one, json!({}))).await);
    }
    for more in [
        json!({"env": {"B": "c"}}),
        json!({"stdin": ""}),
        json!({"cwd": "/"}),
        json!({"groupname": "www"}),
    ] {
        expect_refused(&all.post(COMMANDS, &call(&one, more)).await);
    }
    // A line that looks like the label is a line.
    let line = format!("script:{}@1", one["name"].as_str().unwrap());
    let line = json!({"server": "web-1", "line": line, "username": "deploy"});
    expect_refused(&all.post(COMMANDS, &line).await);
    let argv = json!({"server": "web-1", "argv": ["id"], "username": "deploy"});
    expect_refused(&all.post(COMMANDS, &argv).await);
    assert!(agent.stays_silent().await);
    assert_eq!(workspace.admin.get(COMMANDS).await.expect(200)["count"], 3);
    // Reads are limited alike.
    let own = workspace.admin.post(COMMANDS, &call(&two, json!({}))).await.expect(201);
    let path = format!("{COMMANDS}{}/", own["id"].as_str().unwrap());
    all.get(&path).await.expect_detail(404, Some("COMMAND_NOT_FOUND"));
    assert_eq!(all.get(COMMANDS).await.expect(200)["count"], 3);
    assert_eq!(first.get(COMMANDS).await.expect(200)["count"], 2);
    for token in [&by_line, &by_words] {
        assert_eq!(token.get(COMMANDS).await.expect(200)["count"], 0);
    }
    let reader = json!({"scripts": [two["id"]], "read_all": true});
    assert_eq!(workspace.limited(&reader).await.get(COMMANDS).await.expect(200)["count"], 4);
}

#[tokio::test]
async fn the_list_is_checked_again_at_delivery() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let one = script(&workspace, "echo 1", json!({})).await;
    let body = json!({"name": "ci", "expires_at": null, "acl": {"scripts": [one["id"]]}});
    let session = workspace.session();
    let token = session.post("/api/auth/tokens/", &body).await.expect(201);
    let api = workspace.anonymous.with_token(token["key"].as_str().unwrap());
    let queued = call(&one, json!({"on_offline": "queue"}));
    let command = api.post(COMMANDS, &queued).await.expect(201);
    let path = format!("/api/auth/tokens/{}/", token["id"].as_str().unwrap());
    session.patch(&path, &json!({"acl": {"scripts": []}})).await.expect(200);
    let mut agent = ScriptedAgent::connect_with_features(&workspace, &server, "script").await;
    wait_for_status(&workspace.admin, command["id"].as_str().unwrap(), "Cancelled").await;
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn a_list_of_scripts_can_be_checked() {
    let workspace = Workspace::new().await;
    workspace.server("web-1").await;
    let one = script(&workspace, "echo 1", json!({})).await;
    workspace.admin.patch(&path_of(&one), &json!({"body": "echo 2"})).await.expect(200);
    let id = one["id"].as_str().unwrap();
    let check = async |acl: Value, more: Value| {
        let mut body = json!({"server": "web-1", "script": id, "acl": acl});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        workspace.session().post(CHECK, &body).await
    };
    let is_allowed =
        async |acl: Value, more: Value| check(acl, more).await.expect(200)["allowed"].clone();
    let first = format!("{id}@1");
    assert_eq!(is_allowed(json!({"scripts": [id]}), json!({})).await, true);
    assert_eq!(is_allowed(json!({"scripts": [first]}), json!({"script_version": 1})).await, true);
    assert_eq!(is_allowed(json!({}), json!({})).await, true);
    assert_eq!(is_allowed(json!({"scripts": [first]}), json!({})).await, false);
    assert_eq!(is_allowed(json!({"scripts": []}), json!({})).await, false);
    assert_eq!(is_allowed(json!({"commands": ["*"]}), json!({})).await, false);
    let reason = check(json!({"scripts": []}), json!({})).await.expect(200)["reason"].clone();
    assert!(reason.as_str().unwrap().contains("scripts"), "{reason}");
    let unknown = check(json!({}), json!({"script_version": 3})).await.expect(200);
    assert_eq!(unknown["allowed"], false);
    assert!(unknown["reason"].as_str().unwrap().contains("no such script"), "{unknown}");
    check(json!({}), json!({"params": {}})).await.expect_fields(400, &["params"]);
    check(json!({}), json!({"line": "id"})).await.expect_fields(400, &["script"]);
    check(json!({}), json!({"script": "x"})).await.expect_fields(400, &["script"]);
    // A limited token asks about itself.
    let token = workspace.limited(&json!({"scripts": [first]})).await;
    let body = json!({"server": "web-1", "script": id, "script_version": 1});
    assert_eq!(token.post(CHECK, &body).await.expect(200)["allowed"], true);
    // The answer does not tell whether a script outside of the list exists.
    let other = script(&workspace, "id", json!({})).await;
    for (known, unknown) in [
        (json!({"script": other["id"]}), json!({"script": uuid::Uuid::nil()})),
        (json!({"script": id, "script_version": 2}), json!({"script": id, "script_version": 3})),
    ] {
        let answer = async |mut body: Value| {
            body["server"] = json!("web-1");
            token.post(CHECK, &body).await.expect(200)
        };
        let (known, unknown) = (answer(known).await, answer(unknown).await);
        assert_eq!(known, unknown);
        assert!(known["reason"].as_str().unwrap().contains("scripts"), "{known}");
    }
    for bad in [
        json!(["x"]),
        json!([format!("{id}@0")]),
        json!([format!("{id}@")]),
        json!("x"),
        json!([1]),
    ] {
        check(json!({"scripts": bad}), json!({})).await.expect_fields(400, &["acl"]);
    }
}
