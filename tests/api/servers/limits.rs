//! Limits of a fleet: full groups, names without a free number, permissions that end while a change
//! waits, and rows that lists read.

use farhand_tests::agents::credential;
use farhand_tests::client::unique;
use farhand_tests::{Api, Instance, Workspace};
use futures_util::future::{join, join_all};
use serde_json::{Value, json};

const SERVERS: &str = "/api/servers/servers/";
const GROUPS: &str = "/api/iam/groups/";
const MEMBERSHIPS: &str = "/api/iam/memberships/";
const TOKENS: &str = "/api/servers/registration-tokens/";
const REGISTER: &str = "/api/servers/servers/register/";
/// The creation time of rows that tests insert into the database.
const LONG_AGO: &str = "2020-01-01T00:00:00.000000+00:00";

/// SQL for a table `numbers` with the rows 1 to `most` as `n`.
fn numbers(most: u32) -> String {
    format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {most})"
    )
}

async fn workspace_id(instance: &Instance) -> i64 {
    instance.d1("SELECT id FROM workspaces WHERE slug = 'acme'")[0]["id"].as_i64().unwrap()
}

/// A client with a new registration token.
async fn registering_client(workspace: &Workspace, groups: &Value) -> Api {
    let token =
        workspace.admin.post(TOKENS, &json!({"name": "hosts", "groups": groups})).await.expect(201);
    workspace.anonymous.with_token(token["key"].as_str().unwrap())
}

#[tokio::test]
async fn no_request_exceeds_the_limit_of_a_group() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let group = workspace.admin.post(GROUPS, &json!({"name": "all"})).await.expect(201);
    let (group_path, id) = (format!("{GROUPS}{}/", group["id"]), workspace_id(&instance).await);
    let agent = registering_client(&workspace, &json!([group["id"]])).await;
    let one = agent.post(REGISTER, &json!({"name": "first"})).await.expect(201);
    instance.tamper_with_d1(&format!(
        "{} INSERT INTO server_groups (workspace_id, group_id, server_id)
             SELECT {id}, {}, printf('00000000-0000-7000-8000-%012x', n) FROM numbers;",
        numbers(4_999),
        group["id"]
    ));
    assert_eq!(
        workspace.admin.get(&group_path).await.expect(200)["servers"].as_array().unwrap().len(),
        5_000
    );
    let body = json!({"name": "late", "groups": [group["id"]]});
    workspace.admin.post(SERVERS, &body).await.expect_fields(400, &["groups"]);
    let other = workspace.server("other").await;
    let other = format!("{SERVERS}{}/", other["id"].as_str().unwrap());
    workspace
        .admin
        .patch(&other, &json!({"groups": [group["id"]]}))
        .await
        .expect_fields(400, &["groups"]);
    agent.post(REGISTER, &json!({"name": "late"})).await.expect_fields(400, &["non_field_errors"]);
    // A server in the full group can name the group again, and can leave. Then there is room for
    // another one.
    let first = format!("{SERVERS}{}/", one["id"].as_str().unwrap());
    workspace
        .admin
        .put(&first, &json!({"name": "first", "groups": [group["id"]]}))
        .await
        .expect(200);
    workspace.admin.patch(&first, &json!({"groups": []})).await.expect(200);
    workspace.admin.patch(&other, &json!({"groups": [group["id"]]})).await.expect(200);
    workspace.admin.delete(&group_path).await.expect(204);
    agent.post(REGISTER, &json!({"name": "late"})).await.expect(201);
}

#[tokio::test]
async fn a_name_without_a_free_number_is_a_field_error() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let (agent, id) =
        (registering_client(&workspace, &json!([])).await, workspace_id(&instance).await);
    instance.tamper_with_d1(&format!(
        "{} INSERT INTO servers (id, workspace_id, name, agent_key_hash, added_at, updated_at)
             SELECT printf('00000000-0000-7000-8000-%012x', n), {id}, iif(n = 1, 'web', 'web-' || n), '',
                '{LONG_AGO}', '{LONG_AGO}' FROM numbers;",
        numbers(10_000)
    ));
    agent.post(REGISTER, &json!({"name": "web"})).await.expect_fields(400, &["name"]);
    assert_eq!(agent.post(REGISTER, &json!({"name": "web-x"})).await.expect(201)["name"], "web-x");
}

#[tokio::test]
async fn a_waiting_key_rotation_rechecks_the_permission() {
    let workspace = Workspace::new().await;
    for round in 0..5 {
        let username = format!("staff{round}");
        let staff = workspace.staff(&username).await;
        let server = workspace.server(&format!("web-{round}")).await;
        let path = format!("{SERVERS}{}/rotate-key/", server["id"].as_str().unwrap());
        let user = staff.get("/api/iam/users/-/").await.expect(200)["id"].clone();
        let rotations = join_all((0..8).map(|_| staff.call("POST", &path)));
        let user = format!("/api/iam/users/{user}/");
        let (rotated, demoted) =
            join(rotations, workspace.admin.patch(&user, &json!({"is_staff": false}))).await;
        demoted.expect(200);
        // Rejected rotations changed nothing, so exactly one returned key is valid, or else the
        // original one.
        let returned: Vec<Value> = rotated
            .iter()
            .filter(|reply| reply.status == 200)
            .map(|reply| reply.json()["key"].clone())
            .collect();
        for refused in rotated.iter().filter(|reply| reply.status != 200) {
            assert!([403, 404].contains(&refused.status), "{}", refused.text);
        }
        let keys = if returned.is_empty() { vec![server["key"].clone()] } else { returned };
        let mut good = 0;
        for key in &keys {
            let agent = workspace
                .anonymous
                .with_authorization(&credential(&json!({"id": server["id"], "key": key})));
            good += usize::from(agent.get("/api/servers/servers/-/").await.status == 200);
        }
        assert_eq!(good, 1, "of {} keys", keys.len());
    }
}

#[tokio::test]
async fn lists_read_only_what_they_show() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let id = workspace_id(&instance).await;
    let member = workspace.user("member").await;
    let user = member.get("/api/iam/users/-/").await.expect(200)["id"].clone();
    let group = workspace.admin.post(GROUPS, &json!({"name": "mine"})).await.expect(201);
    let body = json!({"group": group["id"], "user": user});
    workspace.admin.post(MEMBERSHIPS, &body).await.expect(201);
    // A thousand other rows of each kind, which the lists below do not show.
    instance
        .tamper_with_d1(&format!(
            "{numbers} INSERT INTO groups (workspace_id, id, name, display_name, description, folded_display_name,
                folded_description, added_at, updated_at)
                SELECT {id}, 1000 + n, 'group-' || n, '', '', '', '', '{LONG_AGO}', '{LONG_AGO}' FROM numbers;
             {numbers} INSERT INTO memberships (id, workspace_id, group_id, user_id, role)
                SELECT printf('00000000-0000-7000-8000-%012x', n), {id}, 1000000 + n, 1000000 + n, 'owner' FROM numbers;
             {numbers} INSERT INTO servers (id, workspace_id, name, agent_key_hash, added_at, updated_at)
                SELECT printf('00000000-0000-7000-8000-%012x', n), {id}, 'web-' || n, '', '{LONG_AGO}', '{LONG_AGO}' FROM numbers;",
            numbers = numbers(1_000)
        ));
    let reads = async |api: &Api, path: &str, items: usize| {
        let request = unique("reads");
        let reply =
            api.send(api.request("GET", path).header("X-Request-Id", &request)).await.expect(200);
        assert_eq!(reply["results"].as_array().unwrap().len(), items, "{path}");
        let rows = instance.request_log_line(&request).await["rows_read"].as_u64().unwrap();
        assert!(rows <= 40, "{path}: {rows} rows");
    };
    for (path, items) in [
        (GROUPS, 1),
        (MEMBERSHIPS, 2),
        (SERVERS, 0),
        ("/api/iam/groups/?name=mine", 1),
        ("/api/iam/groups/?search=group", 0),
        ("/api/iam/memberships/?role=member", 1),
        ("/api/servers/?name=web-7", 0),
        ("/api/servers/?ordering=name&search=web", 0),
    ] {
        reads(&member, path, items).await;
    }
    for path in [
        "/api/iam/groups/?name=group-7".to_owned(),
        format!("/api/iam/memberships/?user={user}"),
        "/api/iam/memberships/?group=1000007".to_owned(),
        "/api/servers/?name=web-7".to_owned(),
    ] {
        reads(&workspace.admin, &path, 1).await;
    }
}

#[tokio::test]
async fn concurrent_deletions_also_disable_the_agent() {
    let workspace = Workspace::new().await;
    for round in 0..6 {
        let server = workspace.server(&format!("web-{round}")).await;
        let path = format!("{SERVERS}{}/", server["id"].as_str().unwrap());
        let (rotate, agent) = (
            format!("{path}rotate-key/"),
            workspace.anonymous.with_authorization(&credential(&server)),
        );
        let requests = (0..8).map(|n| match n % 4 {
            0 | 1 => workspace.admin.call("DELETE", &path),
            2 => workspace.admin.call("POST", &rotate),
            _ => agent.call("GET", "/api/servers/servers/-/"),
        });
        let replies: Vec<u16> = join_all(requests).await.iter().map(|reply| reply.status).collect();
        assert!(replies.iter().all(|status| [200, 204, 403, 404].contains(status)), "{replies:?}");
        assert!(replies.contains(&204), "{replies:?}");
        for _ in 0..3 {
            agent.get("/api/servers/servers/-/").await.expect_detail(403, Some("INVALID_TOKEN"));
            workspace.admin.delete(&path).await.expect_detail(404, None);
        }
    }
}
