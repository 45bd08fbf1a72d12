//! `/api/iam/groups/` (contract 5.4).

use farhand_domain::time::Timestamp;
use farhand_tests::people::{
    GROUPS, MEMBERSHIPS, SERVERS, UNKNOWN_ID, UNKNOWN_UUID, column, group_path, item_path, keys,
};
use farhand_tests::{Api, Instance, Person, Workspace};
use futures_util::future;
use serde_json::{Value, json};

const DENIED: Option<&str> = Some("PERMISSION_DENIED");

/// The names of the groups on a page.
fn names(list: &Value) -> Vec<String> {
    column(list, "name").into_iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// The ids of servers, sorted.
fn sorted(servers: &[&Value]) -> Value {
    let mut ids: Vec<&str> = servers.iter().map(|server| server["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    json!(ids)
}

async fn read_group(workspace: &Workspace, group: &Value) -> Value {
    workspace.admin.get(&group_path(group)).await.expect(200)
}

#[tokio::test]
async fn a_new_group_belongs_to_its_creator() {
    let workspace = Workspace::new().await;
    let staff = Person::staff(&workspace, "steve").await;
    let (one, two) = (workspace.server("web-1").await, workspace.server("web-2").await);
    let plain = workspace.admin.post(GROUPS, &json!({"name": "ops"})).await.expect(201);
    assert_eq!(
        keys(&plain),
        [
            "added_at",
            "description",
            "display_name",
            "id",
            "name",
            "num_members",
            "servers",
            "updated_at"
        ]
    );
    assert!(plain["id"].is_i64(), "{plain}");
    for (field, value) in [
        ("name", json!("ops")),
        ("display_name", json!("")),
        ("description", json!("")),
        ("num_members", json!(1)),
        ("servers", json!([])),
    ] {
        assert_eq!(plain[field], value, "{field}");
    }
    assert!(Timestamp::parse(plain["added_at"].as_str().unwrap()).is_ok());
    assert_eq!(plain["updated_at"], plain["added_at"]);
    assert_eq!(read_group(&workspace, &plain).await, plain);

    let body = json!({"name": "dev_2.x-y", "display_name": "Ärzte & Söhne", "description": "line\nline",
        "servers": [two["id"], one["id"], two["id"]]});
    let full = staff.api.post(GROUPS, &body).await.expect(201);
    for field in ["name", "display_name", "description"] {
        assert_eq!(full[field], body[field], "{field}");
    }
    assert_eq!((&full["servers"], &full["num_members"]), (&sorted(&[&one, &two]), &json!(1)));
    assert_eq!(read_group(&workspace, &full).await, full);
    let list = workspace.admin.get(GROUPS).await.expect(200);
    assert_eq!(
        list,
        json!({"count": 2, "next": null, "previous": null, "results": [plain, full]}),
        "oldest first"
    );
    // The creator becomes the owner.
    let members =
        workspace.admin.get(&format!("{MEMBERSHIPS}?group={}", full["id"])).await.expect(200);
    assert_eq!(
        (column(&members, "user"), column(&members, "role")),
        (vec![json!(staff.id)], vec![json!("owner")])
    );
    // The servers show the same groups.
    for server in [&one, &two] {
        assert_eq!(
            workspace.admin.get(&item_path(SERVERS, server)).await.expect(200)["groups"],
            json!([full["id"]])
        );
    }
}

/// Invalid fields of a group, and the fields that get an error.
fn bad_fields() -> Vec<(Value, &'static [&'static str])> {
    let text = |length: usize| "x".repeat(length);
    vec![
        (json!({"name": null}), &["name"]),
        (json!({"name": ""}), &["name"]),
        (json!({"name": "  "}), &["name"]),
        (json!({"name": 7}), &["name"]),
        (json!({"name": ["a"]}), &["name"]),
        (json!({"name": "Ops"}), &["name"]),
        (json!({"name": "o ps"}), &["name"]),
        (json!({"name": "öps"}), &["name"]),
        (json!({"name": "a/b"}), &["name"]),
        (json!({"name": "ops\n"}), &["name"]),
        (json!({"name": "a\u{0}"}), &["name"]),
        (json!({"name": text(65)}), &["name"]),
        (json!({"display_name": text(151)}), &["display_name"]),
        (json!({"display_name": "ü".repeat(151)}), &["display_name"]),
        (json!({"display_name": 7}), &["display_name"]),
        (json!({"display_name": "a\u{0}"}), &["display_name"]),
        (json!({"description": text(1001)}), &["description"]),
        (json!({"description": {}}), &["description"]),
        (json!({"servers": null}), &["servers"]),
        (json!({"servers": "web-1"}), &["servers"]),
        (json!({"servers": {}}), &["servers"]),
        (json!({"servers": 7}), &["servers"]),
        (json!({"servers": [null]}), &["servers"]),
        (json!({"servers": [7]}), &["servers"]),
        (json!({"servers": ["web-1"]}), &["servers"]),
        (json!({"servers": [""]}), &["servers"]),
        (json!({"servers": [UNKNOWN_UUID]}), &["servers"]),
        (json!({"servers": [[UNKNOWN_UUID]]}), &["servers"]),
        (
            json!({"name": "Ops", "display_name": 7, "description": 7, "servers": 7}),
            &["description", "display_name", "name", "servers"],
        ),
    ]
}

#[tokio::test]
async fn invalid_fields_create_and_change_no_group() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let group = workspace.group("ops", &[&server]).await;
    workspace.group("taken", &[]).await;
    let path = group_path(&group);
    for (bad, fields) in bad_fields() {
        let mut whole = json!({"name": "fine"});
        whole.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        workspace.admin.post(GROUPS, &whole).await.expect_fields(400, fields);
        workspace.admin.put(&path, &whole).await.expect_fields(400, fields);
        workspace.admin.patch(&path, &bad).await.expect_fields(400, fields);
    }
    for missing in [json!({}), json!({"display_name": "x"})] {
        workspace.admin.post(GROUPS, &missing).await.expect_fields(400, &["name"]);
        workspace.admin.put(&path, &missing).await.expect_fields(400, &["name"]);
    }
    let taken = json!({"name": "taken"});
    workspace.admin.post(GROUPS, &taken).await.expect_fields(400, &["name"]);
    workspace.admin.put(&path, &taken).await.expect_fields(400, &["name"]);
    workspace.admin.patch(&path, &taken).await.expect_fields(400, &["name"]);
    // One invalid server makes the whole list invalid, at any position.
    for ids in [json!([server["id"], UNKNOWN_UUID]), json!([UNKNOWN_UUID, server["id"]])] {
        workspace
            .admin
            .patch(&path, &json!({"servers": ids}))
            .await
            .expect_fields(400, &["servers"]);
    }
    for body in ["[]", "7", "{", ""] {
        for (method, path) in [("POST", GROUPS), ("PUT", &path)] {
            let request =
                workspace.admin.request(method, path).header("Content-Type", "application/json");
            let reply = workspace.admin.send(request.body(body)).await;
            assert_eq!(reply.status, 400, "{method} {body:?}: {}", reply.text);
        }
    }
    let request =
        workspace.admin.request("POST", GROUPS).header("Content-Type", "text/plain").body("{}");
    assert_eq!(workspace.admin.send(request).await.status, 415);
    assert_eq!(read_group(&workspace, &group).await, group);
    assert_eq!(names(&workspace.admin.get(GROUPS).await.expect(200)), ["ops", "taken"]);
    // Fields of the maximum length.
    let (name, text, description) = ("a".repeat(64), "ü".repeat(150), "ü".repeat(1000));
    let longest = json!({"name": name, "display_name": text, "description": description});
    let made = workspace.admin.post(GROUPS, &longest).await.expect(201);
    assert_eq!((&made["name"], &made["display_name"]), (&json!(name), &json!(text)));
    // The same name is free in another workspace.
    Workspace::new().await.admin.post(GROUPS, &taken).await.expect(201);
}

#[tokio::test]
async fn servers_of_other_workspaces_look_unknown() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    let theirs = elsewhere.server("web-1").await["id"].as_str().unwrap().to_owned();
    let deleted = workspace.server("gone").await;
    workspace.admin.delete(&item_path(SERVERS, &deleted)).await.expect(204);
    let deleted = deleted["id"].as_str().unwrap();
    let group = workspace.group("ops", &[]).await;
    let mut texts = Vec::new();
    for id in [theirs.as_str(), deleted, UNKNOWN_UUID] {
        let posted = workspace.admin.post(GROUPS, &json!({"name": "new", "servers": [id]})).await;
        let patched = workspace.admin.patch(&group_path(&group), &json!({"servers": [id]})).await;
        for reply in [posted, patched] {
            reply.expect_fields(400, &["servers"]);
            texts.push(reply.text.replace(id, "<id>"));
        }
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert_eq!(workspace.admin.get(GROUPS).await.expect(200)["count"], 1);
    assert_eq!(read_group(&workspace, &group).await, group);
    assert_eq!(
        elsewhere.admin.get("/api/servers/").await.expect(200)["results"][0]["groups"],
        json!([])
    );
}

#[tokio::test]
async fn groups_can_be_filtered_and_searched() {
    let workspace = Workspace::new().await;
    for body in [
        json!({"name": "ops", "display_name": "Ärzte", "description": "night shift"}),
        json!({"name": "dev.ops", "display_name": "Builders 100%_x", "description": "o'clock \"quoted\""}),
        json!({"name": "sales", "description": "ОПЕРАТОРЫ of the day"}),
    ] {
        workspace.admin.post(GROUPS, &body).await.expect(201);
    }
    let found = async |query: &str| {
        let list = workspace.admin.get(&format!("{GROUPS}?{query}")).await.expect(200);
        let found = names(&list);
        assert_eq!(list["count"], found.len(), "{query}");
        found
    };
    let all = ["ops", "dev.ops", "sales"];
    for (query, expected) in [
        ("", &all[..]),
        ("name=ops", &["ops"]),
        ("name=op", &[]),
        ("name=OPS", &[]),
        ("search=ops", &["ops", "dev.ops"]),
        ("search=OPS+Build", &["dev.ops"]),
        ("search=shift+%C3%A4rzte", &["ops"]),
        ("search=%C3%84RZTE", &["ops"]),
        ("search=%D0%BE%D0%BF%D0%B5%D1%80", &["sales"]),
        ("search=day+night", &[]),
        ("search=%25_", &["dev.ops"]),
        ("search=%27", &["dev.ops"]),
        ("search=%22quoted%22", &["dev.ops"]),
        ("search=*", &[]),
        ("search=", &all),
        ("search=o&name=ops", &["ops"]),
        ("unknown=x", &all),
    ] {
        assert_eq!(found(query).await, expected, "{query}");
    }
    assert_eq!(found(&format!("search={}", "x".repeat(3000))).await, [""; 0]);
    let page =
        workspace.admin.get(&format!("{GROUPS}?search=o&page_size=1&page=2")).await.expect(200);
    assert_eq!((names(&page), &page["count"]), (vec!["dev.ops".to_owned()], &json!(3)));
    assert!(page["next"].as_str().unwrap().contains("search=o"), "{page}");
    workspace.admin.get(&format!("{GROUPS}?page=2")).await.expect_detail(404, None);
    for bad in ["page=0", "page=x", "page_size=0", "page_size=-1"] {
        let field = bad.split('=').next().unwrap();
        workspace.admin.get(&format!("{GROUPS}?{bad}")).await.expect_fields(400, &[field]);
    }
    // Changed groups are found by their new values.
    let ops =
        workspace.admin.get(&format!("{GROUPS}?name=ops")).await.expect(200)["results"][0].clone();
    workspace.admin.patch(&group_path(&ops), &json!({"display_name": "Örs"})).await.expect(200);
    assert_eq!(
        (found("search=%C3%96RS").await, found("search=%C3%84RZTE").await),
        (vec!["ops".to_owned()], vec![])
    );
}

#[tokio::test]
async fn put_replaces_a_group_and_patch_changes_fields() {
    let workspace = Workspace::new().await;
    let (one, two) = (workspace.server("web-1").await, workspace.server("web-2").await);
    let body =
        json!({"name": "ops", "display_name": "Ops", "description": "x", "servers": [one["id"]]});
    let made = workspace.admin.post(GROUPS, &body).await.expect(201);
    let path = group_path(&made);
    let differs = |group: &Value, changes: Value| {
        let mut expected = made.clone();
        expected.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        expected["updated_at"] = group["updated_at"].clone();
        assert_eq!(group, &expected);
    };
    // An empty body changes nothing, and read-only fields are ignored.
    for nothing in [json!({}), json!({"id": 7, "num_members": 7, "added_at": "x"})] {
        differs(&workspace.admin.patch(&path, &nothing).await.expect(200), json!({}));
    }
    let changed = workspace.admin.patch(&path, &json!({"description": "y"})).await.expect(200);
    differs(&changed, json!({"description": "y"}));
    let moment = |group: &Value| Timestamp::parse(group["updated_at"].as_str().unwrap()).unwrap();
    assert!(moment(&changed) > moment(&made), "{changed}");
    assert_eq!(read_group(&workspace, &made).await, changed);
    // A group may keep its own name.
    workspace.admin.patch(&path, &json!({"name": "ops"})).await.expect(200);
    let changed =
        workspace.admin.patch(&path, &json!({"servers": [two["id"], one["id"]]})).await.expect(200);
    differs(&changed, json!({"description": "y", "servers": sorted(&[&one, &two])}));
    let changed =
        workspace.admin.patch(&path, &json!({"display_name": "", "servers": []})).await.expect(200);
    differs(&changed, json!({"description": "y", "display_name": "", "servers": []}));
    // PUT resets omitted fields to their defaults.
    workspace
        .admin
        .patch(&path, &json!({"display_name": "z", "servers": [one["id"]]}))
        .await
        .expect(200);
    let replaced = workspace.admin.put(&path, &json!({"name": "ops-2"})).await.expect(200);
    differs(
        &replaced,
        json!({"name": "ops-2", "display_name": "", "description": "", "servers": []}),
    );
    assert_eq!(read_group(&workspace, &made).await, replaced);
    assert_eq!(
        workspace.admin.get(&item_path(SERVERS, &one)).await.expect(200)["groups"],
        json!([])
    );
    // A PUT with the response of a GET changes nothing.
    let again = workspace.admin.put(&path, &replaced).await.expect(200);
    assert_eq!(
        (&again["name"], &again["servers"], &again["num_members"]),
        (&replaced["name"], &replaced["servers"], &replaced["num_members"])
    );
}

#[tokio::test]
async fn owners_change_everything_except_the_servers() {
    let workspace = Workspace::new().await;
    let (one, two) = (workspace.server("web-1").await, workspace.server("web-2").await);
    let group = workspace.group("ops", &[&one, &two]).await;
    let owner = Person::new(&workspace, "olga").await;
    let membership = workspace.add_member(&group, &owner, "owner").await;
    let path = group_path(&group);
    let both = sorted(&[&one, &two]);
    let reversed = json!([both[1], both[0], both[1]]);
    for same in [&both, &reversed] {
        let patched = owner
            .api
            .patch(&path, &json!({"servers": same, "description": "same"}))
            .await
            .expect(200);
        assert_eq!((&patched["servers"], &patched["description"]), (&both, &json!("same")));
        let put = owner.api.put(&path, &json!({"name": "ops", "servers": same})).await.expect(200);
        assert_eq!((&put["servers"], &put["description"]), (&both, &json!("")));
    }
    let put = owner.api.put(&path, &json!({"name": "ops-2", "description": "x"})).await.expect(200);
    assert_eq!((&put["servers"], &put["name"]), (&both, &json!("ops-2")), "left out, they stay");
    let before = read_group(&workspace, &group).await;
    for other in [json!([]), json!([one["id"]]), json!([UNKNOWN_UUID])] {
        for (method, body) in [
            ("PATCH", json!({"servers": other, "description": "other"})),
            ("PUT", json!({"servers": other, "name": "other"})),
        ] {
            owner.api.send_json(method, &path, &body).await.expect_detail(403, DENIED);
        }
    }
    assert_eq!(read_group(&workspace, &group).await, before);
    // With a lower role, the same changes are denied.
    for role in ["manager", "member"] {
        workspace
            .admin
            .patch(&item_path(MEMBERSHIPS, &membership), &json!({"role": role}))
            .await
            .expect(200);
        for body in [json!({"description": "z"}), json!({}), json!({"name": "Not A Name"})] {
            owner.api.patch(&path, &body).await.expect_detail(403, DENIED);
        }
        owner.api.delete(&path).await.expect_detail(403, DENIED);
    }
    let now = read_group(&workspace, &group).await;
    assert_eq!((&now["description"], &now["name"]), (&before["description"], &before["name"]));
    // Owning another group does not help.
    let other = workspace.group("other", &[]).await;
    workspace.add_member(&other, &owner, "owner").await;
    owner.api.patch(&path, &json!({"description": "z"})).await.expect_detail(403, DENIED);
    owner.api.patch(&group_path(&other), &json!({"description": "z"})).await.expect(200);
}

#[tokio::test]
async fn a_deleted_group_loses_its_members_and_servers() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let (group, other) =
        (workspace.group("ops", &[&server]).await, workspace.group("other", &[&server]).await);
    let owner = Person::new(&workspace, "olga").await;
    let membership = workspace.add_member(&group, &owner, "owner").await;
    workspace.add_member(&other, &owner, "member").await;
    let count = async || workspace.admin.get(MEMBERSHIPS).await.expect(200)["count"].clone();
    assert_eq!(count().await, 4);
    assert_eq!(owner.api.delete(&group_path(&group)).await.expect(204), Value::Null);
    assert_eq!(count().await, 2);
    for api in [&owner.api, &workspace.admin] {
        for method in ["GET", "DELETE"] {
            api.call(method, &group_path(&group)).await.expect_detail(404, None);
            api.call(method, &item_path(MEMBERSHIPS, &membership)).await.expect_detail(404, None);
        }
        api.patch(&group_path(&group), &json!({"description": "x"})).await.expect_detail(404, None);
        assert_eq!(names(&api.get(GROUPS).await.expect(200)), ["other"]);
    }
    let shown = workspace.admin.get(&item_path(SERVERS, &server)).await.expect(200);
    assert_eq!(shown["groups"], json!([other["id"]]));
    // No user can join the deleted group. A new group with its name is another group.
    let body = json!({"group": group["id"], "user": owner.id});
    workspace.admin.post(MEMBERSHIPS, &body).await.expect_fields(400, &["group"]);
    let next = workspace.group("ops", &[]).await;
    assert_ne!(next["id"], group["id"]);
    assert_eq!((&next["num_members"], &next["servers"]), (&json!(1), &json!([])));
    owner.api.get(&group_path(&next)).await.expect_detail(404, None);
}

#[tokio::test]
async fn a_deleted_server_leaves_its_groups() {
    let workspace = Workspace::new().await;
    let (one, two) = (workspace.server("web-1").await, workspace.server("web-2").await);
    let group = workspace.group("ops", &[&one, &two]).await;
    workspace.admin.delete(&item_path(SERVERS, &one)).await.expect(204);
    assert_eq!(read_group(&workspace, &group).await["servers"], json!([two["id"]]));
    // The same holds if the server joins the group during its deletion.
    for _ in 0..8 {
        let server = workspace.server("gone").await;
        let body = json!({"servers": [server["id"], two["id"]]});
        let path = group_path(&group);
        let (set, deleted) = future::join(
            workspace.admin.patch(&path, &body),
            workspace.admin.delete(&item_path(SERVERS, &server)),
        )
        .await;
        deleted.expect(204);
        if set.status != 200 {
            set.expect_fields(400, &["servers"]);
        }
        assert_eq!(read_group(&workspace, &group).await["servers"], json!([two["id"]]));
    }
}

#[tokio::test]
async fn servers_and_tokens_cannot_join_a_deleted_group() {
    const TOKENS: &str = "/api/servers/registration-tokens/";
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    for round in 0..8 {
        let group = workspace.group("gone", &[]).await;
        let in_it = |more: Value| {
            let mut body = json!({"groups": [group["id"]]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let (changed, made) = (in_it(json!({})), in_it(json!({"name": format!("new-{round}")})));
        let (path, own) = (item_path(SERVERS, &server), group_path(&group));
        let (replies, deleted) = future::join(
            future::join3(
                workspace.admin.patch(&path, &changed),
                workspace.admin.post(SERVERS, &made),
                workspace.admin.post(TOKENS, &made),
            ),
            workspace.admin.delete(&own),
        )
        .await;
        deleted.expect(204);
        for reply in [replies.0, replies.1, replies.2] {
            if !matches!(reply.status, 200 | 201) {
                reply.expect_fields(400, &["groups"]);
            }
        }
        for list in [SERVERS, TOKENS] {
            let list = workspace.admin.get(&format!("{list}?page_size=100")).await.expect(200);
            assert!(
                column(&list, "groups").iter().all(|groups| *groups == json!([])),
                "round {round}: {list}"
            );
        }
    }
}

#[tokio::test]
async fn other_and_unknown_groups_get_equal_404s() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    elsewhere.skip_ids().await;
    let theirs = elsewhere.group("ops", &[]).await;
    let mine = workspace.group("ops", &[]).await;
    let outsider = Person::new(&workspace, "eve").await;
    let bad = [
        "0",
        "-1",
        "01",
        "1.0",
        "+1",
        "-",
        "nonsense",
        "99999999999999999999",
        "9007199254740993",
        "%20",
        UNKNOWN_UUID,
    ];
    let mut paths: Vec<String> = bad.iter().map(|bad| format!("{GROUPS}{bad}/")).collect();
    paths.extend([group_path(&theirs), format!("{GROUPS}{UNKNOWN_ID}/")]);
    let mut texts = Vec::new();
    let collect = async |api: &Api, path: &str, texts: &mut Vec<String>| {
        let bodies = [json!({"name": "x"}), json!({"name": "Not A Name"}), json!({})];
        let mut replies = vec![api.get(path).await, api.delete(path).await];
        for body in bodies {
            replies.push(api.patch(path, &body).await);
            replies.push(api.put(path, &body).await);
        }
        for reply in replies {
            reply.expect_detail(404, None);
            texts.push(reply.text);
        }
    };
    for path in &paths {
        collect(&workspace.admin, path, &mut texts).await;
    }
    collect(&outsider.api, &group_path(&mine), &mut texts).await;
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    for (workspace, group) in [(&workspace, &mine), (&elsewhere, &theirs)] {
        assert_eq!(&read_group(workspace, group).await, group);
    }
}

#[tokio::test]
async fn concurrent_requests_keep_group_names_unique() {
    let workspace = Workspace::new().await;
    let body = json!({"name": "ops"});
    let replies = future::join_all((0..8).map(|_| workspace.admin.post(GROUPS, &body))).await;
    let made = replies.iter().filter(|reply| reply.status == 201).count();
    assert_eq!(made, 1, "{replies:?}");
    for reply in replies.iter().filter(|reply| reply.status != 201) {
        reply.expect_fields(400, &["name"]);
    }
    // Rejected groups leave no memberships.
    assert_eq!(workspace.admin.get(MEMBERSHIPS).await.expect(200)["count"], 1);
    let mut groups = Vec::new();
    for number in 0..6 {
        groups.push(workspace.group(&format!("g{number}"), &[]).await);
    }
    let body = json!({"name": "same"});
    let paths: Vec<String> = groups.iter().map(group_path).collect();
    let replies =
        future::join_all(paths.iter().map(|path| workspace.admin.patch(path, &body))).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 200).count(), 1, "{replies:?}");
    let list = names(&workspace.admin.get(GROUPS).await.expect(200));
    assert_eq!(list.iter().filter(|name| *name == "same").count(), 1, "{list:?}");
}

#[tokio::test]
async fn concurrent_changes_of_a_group_all_take_effect() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let group = workspace.group("ops", &[]).await;
    let path = group_path(&group);
    for round in 0..8 {
        let changes = [
            json!({"display_name": format!("d{round}")}),
            json!({"description": format!("x{round}")}),
            json!({"servers": if round % 2 == 0 { json!([server["id"]]) } else { json!([]) }}),
        ];
        for reply in
            future::join_all(changes.iter().map(|body| workspace.admin.patch(&path, body))).await
        {
            reply.expect(200);
        }
        let group = read_group(&workspace, &group).await;
        for change in &changes {
            for (field, value) in change.as_object().unwrap() {
                assert_eq!(&group[field], value, "round {round}: {group}");
            }
        }
        let word = format!("search=d{round}+x{round}");
        assert_eq!(
            workspace.admin.get(&format!("{GROUPS}?{word}")).await.expect(200)["count"],
            1,
            "{word}"
        );
    }
}

#[tokio::test]
async fn a_group_may_have_five_thousand_servers() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    workspace.server("first").await;
    instance.d1("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
             INSERT INTO servers (id, workspace_id, name, agent_key_hash, added_at, updated_at)
             SELECT printf('%08x-0000-7000-8000-%012x', i, i), workspace_id, 'web-' || i, '', added_at, added_at
             FROM n, (SELECT * FROM servers LIMIT 1)");
    let ids = |range: std::ops::RangeInclusive<u32>| -> Vec<String> {
        range.map(|i| format!("{i:08x}-0000-7000-8000-{i:012x}")).collect()
    };
    let group = workspace
        .admin
        .post(GROUPS, &json!({"name": "all", "servers": ids(1..=5000)}))
        .await
        .expect(201);
    assert_eq!(group["servers"], json!(ids(1..=5000)));
    let member = Person::new(&workspace, "anna").await;
    workspace.add_member(&group, &member, "member").await;
    let list = member.api.get("/api/servers/?page_size=1&ordering=name").await.expect(200);
    assert_eq!(list["count"], 5000);
    // With one server more, the request is rejected and nothing changes.
    let mut more = ids(1..=5000);
    more.push(
        workspace.admin.get("/api/servers/?name=first").await.expect(200)["results"][0]["id"]
            .as_str()
            .unwrap()
            .to_owned(),
    );
    let path = group_path(&group);
    workspace.admin.patch(&path, &json!({"servers": more})).await.expect_fields(400, &["servers"]);
    let mut unknown = ids(1..=4999);
    unknown.push(UNKNOWN_UUID.to_owned());
    workspace
        .admin
        .patch(&path, &json!({"servers": unknown}))
        .await
        .expect_fields(400, &["servers"]);
    assert_eq!(read_group(&workspace, &group).await["servers"], json!(ids(1..=5000)));
    let half = ids(2001..=4500);
    let changed = workspace.admin.patch(&path, &json!({"servers": half})).await.expect(200);
    assert_eq!(changed["servers"], json!(half));
    assert_eq!(member.api.get("/api/servers/?page_size=1").await.expect(200)["count"], 2500);
}
