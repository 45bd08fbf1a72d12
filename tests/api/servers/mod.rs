//! `/api/servers/` (contract 6).

mod approval;
mod change;
mod cut_off;
mod labels;
mod limits;
mod list;
mod registration;
mod undelete;

use farhand_tests::Workspace;
use farhand_tests::agents::credential;
use farhand_tests::client::unique;
use serde_json::json;

/// Runs the commands for Alpamon in a folder of the test, and returns the configuration that they
/// write. Starting the host's service is replaced.
fn alpamon_configuration(commands: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let etc = folder.path().join("etc");
    let commands = commands.replace("/etc/alpamon", etc.to_str().unwrap());
    let commands = commands.strip_suffix("systemctl restart alpamon").unwrap();
    assert!(std::process::Command::new("sh").args(["-c", commands]).status().unwrap().success());
    let file = etc.join("alpamon.conf");
    assert_eq!(
        std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap()) & 0o777,
        0o600
    );
    std::fs::read_to_string(file).unwrap()
}

#[tokio::test]
async fn a_new_server_shows_its_key_once() {
    let workspace = Workspace::new().await;
    for path in ["/api/servers/", "/api/servers/servers/"] {
        let name = format!("web{}.example_1", path.len());
        let made =
            workspace.admin.post(path, &json!({"name": name, "groups": []})).await.expect(201);
        let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
        assert!(key.len() == 128 && key.bytes().all(|b| b.is_ascii_alphanumeric()));
        let install = made["install"].as_str().unwrap();
        // The URL comes from the configuration, with the port of `npm start`.
        let port = workspace.admin.url.rsplit(':').next().unwrap();
        let url = format!("http://{}:{port}/install.sh", workspace.admin.host);
        assert_eq!(
            install,
            format!(" curl -fsSL {url} | FARHAND_SERVER={id} FARHAND_KEY={key} sh")
        );
        let alpamon = made["install_alpamon"].as_str().unwrap();
        assert_eq!(
            alpamon_configuration(alpamon),
            format!(
                "[server]\nurl = http://{}:{port}\nid = {id}\nkey = {key}\n\n[ssl]\nverify = true\n",
                workspace.admin.host
            )
        );
        assert_eq!((&made["is_connected"], &made["groups"]), (&json!(false), &json!([])));
        assert_eq!(made["owner"]["username"], "boss");

        let mut shown = made.clone();
        shown
            .as_object_mut()
            .unwrap()
            .retain(|name, _| name != "key" && !name.starts_with("install"));
        assert_eq!(
            workspace.admin.get(&format!("/api/servers/servers/{id}/")).await.expect(200),
            shown
        );
        assert_eq!(
            workspace.admin.get(&format!("/api/servers/{id}/")).await.expect(200),
            shown,
            "the list also has a shorter path"
        );
        assert_eq!(
            workspace.admin.get(path).await.expect(200)["results"][0],
            shown,
            "newest first"
        );
        let mut keys: Vec<&String> = shown.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(
            keys,
            [
                "added_at",
                "agent_version",
                "connected_at",
                "cpu_logical_cores",
                "default_username",
                "fingerprint",
                "groups",
                "id",
                "identity_conflict_at",
                "is_connected",
                "labels",
                "last_seen_at",
                "load",
                "name",
                "os_name",
                "os_version",
                "owner",
                "physical_memory",
                "platform",
                "policy",
                "registration",
                "remote_ip",
                "updated_at"
            ]
        );
    }
    let both = ["/api/servers/", "/api/servers/servers/"].map(|path| workspace.admin.get(path));
    let [one, other] = futures_util::future::join_all(both).await.try_into().unwrap();
    assert_eq!(
        one.expect(200)["results"],
        other.expect(200)["results"],
        "both paths are the same list"
    );
}

#[tokio::test]
async fn invalid_names_create_no_server() {
    let workspace = Workspace::new().await;
    let too_long = "a".repeat(65);
    for bad in [
        "",
        " ",
        "Web",
        "a b",
        "a/b",
        "ä",
        "a\n",
        "01936d3e-7a00-7000-8000-000000000000",
        &too_long,
    ] {
        workspace
            .admin
            .post("/api/servers/", &json!({"name": bad}))
            .await
            .expect_fields(400, &["name"]);
    }
    for bad in [json!({}), json!({"name": null}), json!({"name": 7}), json!({"name": ["a"]})] {
        workspace.admin.post("/api/servers/", &bad).await.expect_fields(400, &["name"]);
    }
    for bad in [json!([999_999_999]), json!(["1"]), json!(1), json!(null)] {
        let body = json!({"name": "a", "groups": bad});
        workspace.admin.post("/api/servers/", &body).await.expect_fields(400, &["groups"]);
    }
    assert_eq!(workspace.admin.get("/api/servers/").await.expect(200)["count"], 0);
    workspace.server(&"a".repeat(64)).await;
}

#[tokio::test]
async fn a_new_server_is_in_the_requested_groups() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    elsewhere.skip_ids().await;
    let (one, two) = (workspace.group("one", &[]).await, workspace.group("two", &[]).await);
    let theirs = elsewhere.group("one", &[]).await;
    let (one, two) = (&one["id"], &two["id"]);
    for (groups, shown) in [
        (json!([two, one]), json!([one, two])),
        (json!([two, two]), json!([two])),
        (json!([]), json!([])),
    ] {
        let body = json!({"name": unique("web"), "groups": groups});
        let made = workspace.admin.post("/api/servers/", &body).await.expect(201);
        assert_eq!(made["groups"], shown);
        let path = format!("/api/servers/servers/{}/", made["id"].as_str().unwrap());
        assert_eq!(workspace.admin.get(&path).await.expect(200)["groups"], shown);
        assert_eq!(
            workspace.admin.get("/api/servers/").await.expect(200)["results"][0]["groups"],
            shown
        );
    }
    for bad in [
        json!([theirs["id"]]),
        json!([one, 999_999_999]),
        json!(["one"]),
        json!([null]),
        json!(7),
        json!({}),
    ] {
        let body = json!({"name": unique("web"), "groups": bad});
        workspace.admin.post("/api/servers/", &body).await.expect_fields(400, &["groups"]);
    }
    let everything = json!({"name": "Web", "groups": 7});
    workspace
        .admin
        .post("/api/servers/", &everything)
        .await
        .expect_fields(400, &["groups", "name"]);
    assert_eq!(workspace.admin.get("/api/servers/").await.expect(200)["count"], 3);
    assert_eq!(elsewhere.admin.get("/api/servers/").await.expect(200)["count"], 0);
}

#[tokio::test]
async fn concurrent_requests_keep_server_names_unique() {
    let workspace = Workspace::new().await;
    let body = json!({"name": "web-1"});
    let posts = (0..8).map(|_| workspace.admin.post("/api/servers/", &body));
    let replies = futures_util::future::join_all(posts).await;
    let (made, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 201);
    assert_eq!(made.len(), 1);
    for reply in refused {
        reply.expect_fields(400, &["name"]);
    }
    // The created server is complete: its key is accepted.
    let agent = workspace.anonymous.with_authorization(&credential(&made[0].json()));
    agent.get("/api/servers/servers/-/").await.expect(200);
}

#[tokio::test]
async fn unknown_ids_of_servers_are_404() {
    let workspace = Workspace::new().await;
    let id = workspace.server("web-1").await["id"].as_str().unwrap().to_owned();
    for missing in
        ["01936d3e-7a00-7000-8000-000000000000", "nonsense", "-", "web-1", &id.replace('-', "")]
    {
        workspace
            .admin
            .get(&format!("/api/servers/servers/{missing}/"))
            .await
            .expect_detail(404, None);
    }
}
