//! `user`, `group` and `group member` of the command line.

use farhand_tests::Workspace;
use farhand_tests::alpacon::{Alpacon, Group, Membership, User};
use serde_json::{Value, json};

const USERS: &str = "/api/iam/users/";
const GROUPS: &str = "/api/iam/groups/";
const MEMBERSHIPS: &str = "/api/iam/memberships/";

fn new_user(name: &str) -> Value {
    json!({
        "username": name, "password": "an entirely other one", "first_name": "A", "last_name": "B",
        "email": format!("{name}@example.com"), "phone": "+49", "tags": "", "description": "", "shell": "/bin/bash",
        "is_active": true, "is_staff": false, "is_superuser": false, "is_ldap_user": false,
    })
}

#[tokio::test]
async fn users_are_created_listed_updated_and_deleted() {
    let workspace = Workspace::new().await;
    let cli = Alpacon::cli(&workspace.admin);
    let user: User = cli.post(USERS, &new_user("ann")).await;
    assert_eq!(cli.user_id("ann").await, user.id);
    let all: Vec<User> = cli.list(USERS, "").await;
    assert_eq!(all.len(), 2);
    let path = format!("{USERS}{}/", user.id);
    let mut whole: Value = cli.get(&path).await;
    for (name, value) in [
        ("first_name", json!("Anna")),
        ("tags", json!("x")),
        ("uid", json!(1000)),
        ("num_groups", json!(0)),
        ("is_ldap_user", json!(false)),
    ] {
        whole[name] = value;
    }
    let changed: User = cli.patch(&path, &whole).await;
    assert_eq!((changed.first_name.as_deref(), changed.id), (Some("Anna"), user.id));
    whole["is_ldap_user"] = json!(true);
    cli.api.patch(&path, &whole).await.expect_fields(400, &["is_ldap_user"]);
    let mut ldap = new_user("bob");
    ldap["is_ldap_user"] = json!(true);
    cli.api.post(USERS, &ldap).await.expect_fields(400, &["is_ldap_user"]);
    let me: User = cli.get("/api/iam/users/-/").await;
    assert_ne!(me.id, cli.user_id("ann").await);
    assert_eq!(cli.api.delete(&path).await.status, 204);
}

#[tokio::test]
async fn groups_have_summaries_of_their_servers() {
    let workspace = Workspace::new().await;
    let (web, db) = (workspace.server("web").await, workspace.server("db").await);
    let cli = Alpacon::cli(&workspace.admin);
    let body = json!({"name": "ops", "display_name": "Ops", "tags": "", "description": "d",
        "is_ldap_group": false, "servers": [web["id"]]});
    let group: Group = cli.post(GROUPS, &body).await;
    assert_eq!(cli.group_id("ops").await, group.id);
    let servers = group.servers.unwrap();
    assert_eq!(servers[0].name.as_deref(), Some("web"));
    assert_eq!(servers[0].is_connected, Some(false));
    let path = format!("{GROUPS}{}/", group.id);
    let mut whole: Value = cli.get(&path).await;
    whole["servers"].as_array_mut().unwrap().push(db["id"].clone());
    whole["tags"] = json!("x");
    let changed: Group = cli.patch(&path, &whole).await;
    assert_eq!(changed.servers.unwrap().len(), 2);
    let mut ldap = body.clone();
    ldap["is_ldap_group"] = json!(true);
    cli.api.post(GROUPS, &ldap).await.expect_fields(400, &["is_ldap_group"]);
    let groups: Vec<Group> = cli.list(GROUPS, "").await;
    assert_eq!((groups.len(), groups[0].num_members), (1, Some(1)));
    assert_eq!(cli.api.delete(&path).await.status, 204);
}

#[tokio::test]
async fn many_servers_of_a_group_keep_their_names() {
    let workspace = Workspace::new().await;
    let mut servers = Vec::new();
    for number in 0..5 {
        servers.push(workspace.server(&format!("web-{number}")).await);
    }
    workspace.group("ops", &servers.iter().collect::<Vec<_>>()).await;
    let cli = Alpacon::cli(&workspace.admin);
    let groups: Vec<Group> = cli.list(GROUPS, "").await;
    let summaries = groups[0].servers.clone().unwrap();
    let mut names: Vec<_> = summaries.iter().map(|server| server.name.clone().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["web-0", "web-1", "web-2", "web-3", "web-4"]);
}

#[tokio::test]
async fn members_are_added_and_removed_with_text_ids() {
    let workspace = Workspace::new().await;
    workspace.user_with("ann", &json!({})).await;
    workspace.group("ops", &[]).await;
    let cli = Alpacon::cli(&workspace.admin);
    let (group, user) = (cli.group_id("ops").await, cli.user_id("ann").await);
    let selected = format!("{MEMBERSHIPS}?group={group}&user={user}");
    // The client would crash on an empty array.
    cli.api.get(&selected).await.expect_detail(404, None);
    let body = json!({"group": group, "user": user, "role": "member"});
    let added: Membership = cli.post(MEMBERSHIPS, &body).await;
    assert_eq!((added.group.as_ref(), added.group_name.as_deref()), (Some(&group), Some("ops")));
    let found: Vec<Membership> = cli.get(&selected).await;
    assert_eq!((found.len(), &found[0].id), (1, &added.id));
    let summary = found[0].user.as_ref().unwrap();
    assert_eq!((summary.id.as_ref(), summary.name.as_deref()), (Some(&user), Some("ann")));
    // Without a page, all memberships are in the array.
    let all: Vec<Membership> = cli.get(&format!("{MEMBERSHIPS}?group={group}")).await;
    assert_eq!(all.len(), 2);
    assert_eq!(cli.api.delete(&format!("{MEMBERSHIPS}{}/", added.id)).await.status, 204);
    for (field, bad) in [("group", json!("x")), ("user", json!("07")), ("extra", json!(1))] {
        let mut body = body.clone();
        body[field] = bad;
        cli.api.post(MEMBERSHIPS, &body).await.expect_fields(400, &[field]);
    }
}
