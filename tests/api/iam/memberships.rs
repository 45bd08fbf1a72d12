//! `/api/iam/memberships/` (contract 5.4).

use farhand_tests::people::{
    GROUPS, MEMBERSHIPS, UNKNOWN_ID, UNKNOWN_UUID, USERS, column, group_path, item_path, keys,
};
use farhand_tests::{Api, Person, Reply, Workspace};
use futures_util::future;
use serde_json::{Value, json};

const DENIED: Option<&str> = Some("PERMISSION_DENIED");
const ROLES: [&str; 3] = ["member", "manager", "owner"];

/// The members of a group with their roles, in the order of the list.
async fn members(workspace: &Workspace, group: &Value) -> Vec<(i64, String)> {
    let path = format!("{MEMBERSHIPS}?group={}&page_size=100", group["id"]);
    let list = workspace.admin.get(&path).await.expect(200);
    let items = list["results"].as_array().unwrap();
    let shown = workspace.admin.get(&group_path(group)).await.expect(200);
    assert_eq!((&list["count"], &shown["num_members"]), (&json!(items.len()), &json!(items.len())));
    items
        .iter()
        .map(|item| (item["user"].as_i64().unwrap(), item["role"].as_str().unwrap().to_owned()))
        .collect()
}

async fn boss(workspace: &Workspace) -> i64 {
    workspace.admin.get("/api/iam/users/-/").await.expect(200)["id"].as_i64().unwrap()
}

#[tokio::test]
async fn a_membership_has_the_requested_role() {
    let workspace = Workspace::new().await;
    let group = workspace.group("ops", &[]).await;
    let boss = boss(&workspace).await;
    let first = workspace.admin.get(MEMBERSHIPS).await.expect(200)["results"][0].clone();
    assert_eq!(
        first,
        json!({"id": first["id"], "group": group["id"], "user": boss, "role": "owner"})
    );
    let mut expected = vec![first];
    for role in [None, Some("member"), Some("manager"), Some("owner")] {
        let person = Person::new(&workspace, &format!("p{}", expected.len())).await;
        let mut body = json!({"group": group["id"], "user": person.id});
        if let Some(role) = role {
            body["role"] = json!(role);
        }
        let made = workspace.admin.post(MEMBERSHIPS, &body).await.expect(201);
        assert_eq!(keys(&made), ["group", "id", "role", "user"]);
        let role = role.unwrap_or("member");
        assert_eq!(
            made,
            json!({"id": made["id"], "group": group["id"], "user": person.id, "role": role})
        );
        for api in [&workspace.admin, &person.api] {
            assert_eq!(api.get(&item_path(MEMBERSHIPS, &made)).await.expect(200), made);
        }
        assert_eq!(
            person.api.get(&group_path(&group)).await.expect(200)["num_members"],
            expected.len() + 1
        );
        expected.push(made);
        let list = person.api.get(MEMBERSHIPS).await.expect(200);
        assert_eq!(list["results"], json!(expected), "memberships are listed oldest first");
        assert_eq!(list["count"], expected.len());
    }
}

#[tokio::test]
async fn invalid_fields_create_no_membership() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    elsewhere.skip_ids().await;
    let group = workspace.group("ops", &[]).await;
    let theirs = elsewhere.group("ops", &[]).await;
    let (alice, eve) =
        (Person::new(&workspace, "alice").await, Person::new(&elsewhere, "eve").await);
    let (group_id, user) = (&group["id"], alice.id);
    for (body, fields) in [
        (json!({}), &["group", "user"][..]),
        (json!({"group": null, "user": null}), &["group", "user"]),
        (json!({"group": group_id}), &["user"]),
        (json!({"user": user}), &["group"]),
        (json!({"group": group_id, "user": null}), &["user"]),
        (json!({"group": group_id, "user": "alice"}), &["user"]),
        (json!({"group": group_id, "user": user.to_string()}), &["user"]),
        (json!({"group": group_id, "user": 1.5}), &["user"]),
        (json!({"group": group_id, "user": [user]}), &["user"]),
        (json!({"group": group_id, "user": 0}), &["user"]),
        (json!({"group": group_id, "user": -1}), &["user"]),
        (json!({"group": group_id, "user": u64::MAX}), &["user"]),
        (json!({"group": group_id, "user": UNKNOWN_ID}), &["user"]),
        (json!({"group": group_id, "user": eve.id}), &["user"]),
        (json!({"group": "ops", "user": user}), &["group"]),
        (json!({"group": group_id.to_string(), "user": user}), &["group"]),
        (json!({"group": true, "user": user}), &["group"]),
        (json!({"group": 0, "user": user}), &["group"]),
        (json!({"group": u64::MAX, "user": user}), &["group"]),
        (json!({"group": UNKNOWN_ID, "user": user}), &["group"]),
        (json!({"group": theirs["id"], "user": user}), &["group"]),
        (json!({"group": group_id, "user": user, "role": "boss"}), &["role"]),
        (json!({"group": group_id, "user": user, "role": "Member"}), &["role"]),
        (json!({"group": group_id, "user": user, "role": ""}), &["role"]),
        (json!({"group": group_id, "user": user, "role": 7}), &["role"]),
        (json!({"group": group_id, "user": user, "role": ["member"]}), &["role"]),
    ] {
        let reply = workspace.admin.post(MEMBERSHIPS, &body).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text);
        reply.expect_fields(400, fields);
    }
    assert_eq!(members(&workspace, &group).await.len(), 1);
    assert_eq!(members(&elsewhere, &theirs).await.len(), 1);
    // A member cannot be added again with any role.
    workspace.add_member(&group, &alice, "manager").await;
    for role in ROLES {
        let body = json!({"group": group_id, "user": user, "role": role});
        workspace.admin.post(MEMBERSHIPS, &body).await.expect_fields(400, &["user"]);
    }
    assert_eq!(members(&workspace, &group).await[1], (alice.id, "manager".to_owned()));
    // Inactive users can be added.
    let idle = workspace.user_with("idle", &json!({"is_active": false})).await;
    workspace
        .admin
        .post(MEMBERSHIPS, &json!({"group": group_id, "user": idle["id"]}))
        .await
        .expect(201);
}

#[tokio::test]
async fn hidden_and_unknown_groups_get_equal_errors() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    elsewhere.skip_ids().await;
    let (mine, hidden) = (workspace.group("mine", &[]).await, workspace.group("hidden", &[]).await);
    let theirs = elsewhere.group("theirs", &[]).await;
    let owner = Person::new(&workspace, "olga").await;
    let gone = Person::new(&workspace, "gone").await;
    let stranger = Person::new(&elsewhere, "stranger").await;
    workspace.add_member(&mine, &owner, "owner").await;
    workspace.admin.delete(&gone.path()).await.expect(204);
    let mut texts = Vec::new();
    for group in [&hidden["id"], &theirs["id"], &json!(UNKNOWN_ID)] {
        for role in ROLES {
            let body = json!({"group": group, "user": owner.id, "role": role});
            let reply = owner.api.post(MEMBERSHIPS, &body).await;
            reply.expect_fields(400, &["group"]);
            texts.push(reply.text.replace(&group.to_string(), "<id>"));
        }
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    texts.clear();
    for user in [gone.id, stranger.id, UNKNOWN_ID] {
        let body = json!({"group": mine["id"], "user": user});
        let reply = owner.api.post(MEMBERSHIPS, &body).await;
        reply.expect_fields(400, &["user"]);
        texts.push(reply.text.replace(&user.to_string(), "<id>"));
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    texts.clear();
    let of_hidden =
        workspace.admin.get(&format!("{MEMBERSHIPS}?group={}", hidden["id"])).await.expect(200);
    let of_theirs = elsewhere.admin.get(MEMBERSHIPS).await.expect(200);
    let hidden_path = item_path(MEMBERSHIPS, &of_hidden["results"][0]);
    let their_path = item_path(MEMBERSHIPS, &of_theirs["results"][0]);
    let bad = [UNKNOWN_UUID, "nonsense", "1", "-", "%20"].map(|id| format!("{MEMBERSHIPS}{id}/"));
    for path in bad.iter().chain([&hidden_path, &their_path]) {
        let mut replies = vec![owner.api.get(path).await, owner.api.delete(path).await];
        for body in [json!({"role": "member"}), json!({"role": "boss"}), json!({})] {
            replies.push(owner.api.patch(path, &body).await);
            replies.push(owner.api.put(path, &body).await);
        }
        for reply in replies {
            reply.expect_detail(404, None);
            texts.push(reply.text);
        }
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert_eq!(workspace.admin.get(&hidden_path).await.expect(200), of_hidden["results"][0]);
}

#[tokio::test]
async fn filters_find_only_visible_memberships() {
    let workspace = Workspace::new().await;
    let (one, two) = (workspace.group("one", &[]).await, workspace.group("two", &[]).await);
    let boss = boss(&workspace).await;
    let (alice, bob) =
        (Person::new(&workspace, "alice").await, Person::new(&workspace, "bob").await);
    for (group, person, role) in
        [(&one, &alice, "member"), (&two, &alice, "manager"), (&one, &bob, "manager")]
    {
        workspace.add_member(group, person, role).await;
    }
    let found = async |api: &Api, query: &str| {
        let list = api.get(&format!("{MEMBERSHIPS}?{query}")).await.expect(200);
        let found: Vec<(Value, Value)> =
            column(&list, "group").into_iter().zip(column(&list, "user")).collect();
        assert_eq!(list["count"], found.len(), "{query}");
        found
    };
    let pair = |group: &Value, user: i64| (group["id"].clone(), json!(user));
    let (a, b) = (pair(&one, boss), pair(&two, boss));
    let (c, d, e) = (pair(&one, alice.id), pair(&two, alice.id), pair(&one, bob.id));
    let all = [&a, &b, &c, &d, &e];
    for (query, expected) in [
        (String::new(), &all[..]),
        (format!("group={}", one["id"]), &[&a, &c, &e]),
        (format!("user={}", alice.id), &[&c, &d]),
        ("role=manager".to_owned(), &[&d, &e]),
        ("role=owner".to_owned(), &[&a, &b]),
        (format!("group={}&user={}", two["id"], alice.id), &[&d]),
        (format!("group={}&role=member&user={}", one["id"], alice.id), &[&c]),
        (format!("group={UNKNOWN_ID}"), &[]),
        (format!("user={UNKNOWN_ID}"), &[]),
    ] {
        assert_eq!(
            found(&workspace.admin, &query).await.iter().collect::<Vec<_>>(),
            expected,
            "{query}"
        );
        // Bob sees only his own group.
        let of_bob = found(&bob.api, &query).await;
        let seen: Vec<_> =
            expected.iter().filter(|(group, _)| *group == one["id"]).copied().collect();
        assert_eq!(of_bob.iter().collect::<Vec<_>>(), seen, "{query}");
    }
    for bad in
        ["group=x", "group=", "group=1.5", "user=boss", "user=", "role=boss", "role=", "role=Owner"]
    {
        let field = bad.split('=').next().unwrap();
        workspace.admin.get(&format!("{MEMBERSHIPS}?{bad}")).await.expect_fields(400, &[field]);
    }
    let all_bad = format!("{MEMBERSHIPS}?group=x&user=x&role=x&page=0");
    workspace.admin.get(&all_bad).await.expect_fields(400, &["group", "page", "role", "user"]);
    let page = workspace.admin.get(&format!("{MEMBERSHIPS}?page_size=2&page=2&role=owner")).await;
    page.expect_detail(404, None);
    let page = workspace.admin.get(&format!("{MEMBERSHIPS}?page_size=2&page=2")).await.expect(200);
    assert_eq!((column(&page, "group"), &page["count"]), (vec![c.0, d.0], &json!(5)));
}

/// A group with one caller in each role, and with another member in each role.
struct RoleGroup {
    workspace: Workspace,
    group: Value,
    askers: Vec<(&'static str, Person)>,
}

async fn role_group() -> RoleGroup {
    let workspace = Workspace::new().await;
    let group = workspace.group("ops", &[]).await;
    let mut askers = Vec::new();
    for role in ROLES {
        let person = Person::new(&workspace, &format!("a-{role}")).await;
        workspace.add_member(&group, &person, role).await;
        askers.push((role, person));
    }
    askers.push(("staff", Person::staff(&workspace, "steve").await));
    RoleGroup { workspace, group, askers }
}

#[tokio::test]
async fn each_role_adds_only_allowed_roles() {
    let RoleGroup { workspace, group, askers } = role_group().await;
    let target = Person::new(&workspace, "target").await;
    let before = members(&workspace, &group).await;
    for (asker, person) in &askers {
        for role in ROLES {
            let may = matches!((*asker, role), ("owner" | "staff", _) | ("manager", "member"));
            let body = json!({"group": group["id"], "user": target.id, "role": role});
            let reply = person.api.post(MEMBERSHIPS, &body).await;
            assert_eq!(
                reply.status,
                if may { 201 } else { 403 },
                "{asker} adds {role}: {}",
                reply.text
            );
            if may {
                workspace.remove_member(&group, &target).await;
            } else {
                reply.expect_detail(403, DENIED);
            }
            assert_eq!(members(&workspace, &group).await, before, "{asker} adds {role}");
            // The permission is checked before the rest of the input.
            for user in [json!(UNKNOWN_ID), json!("x"), json!(null), json!(person.id)] {
                let reply = person
                    .api
                    .post(MEMBERSHIPS, &json!({"group": group["id"], "user": user, "role": role}))
                    .await;
                if !may {
                    reply.expect_detail(403, DENIED);
                } else if *asker == "staff" && user == json!(person.id) {
                    // Staff, who were not in the group, can add themselves.
                    reply.expect(201);
                    workspace.remove_member(&group, person).await;
                } else {
                    reply.expect_fields(400, &["user"]);
                }
            }
        }
    }
}

#[tokio::test]
async fn each_role_changes_only_allowed_roles() {
    let RoleGroup { workspace, group, askers } = role_group().await;
    for (asker, person) in &askers {
        for from in ROLES {
            for to in ROLES {
                let target = Person::new(&workspace, &format!("t-{asker}-{from}-{to}")).await;
                let membership = workspace.add_member(&group, &target, from).await;
                let path = item_path(MEMBERSHIPS, &membership);
                let may = matches!(*asker, "owner" | "staff");
                let mut whole = membership.clone();
                whole["role"] = json!(to);
                let reply = match from {
                    "manager" => person.api.put(&path, &whole).await,
                    _ => person.api.patch(&path, &json!({"role": to})).await,
                };
                let what = format!("{asker} makes {from} {to}: {}", reply.text);
                let now = workspace.admin.get(&path).await.expect(200);
                let mut expected = membership.clone();
                if may {
                    expected["role"] = json!(to);
                    assert_eq!((reply.status, reply.json()), (200, expected.clone()), "{what}");
                } else {
                    assert_eq!(reply.status, 403, "{what}");
                    reply.expect_detail(403, DENIED);
                    // The permission is checked before the input.
                    person
                        .api
                        .patch(&path, &json!({"role": "boss"}))
                        .await
                        .expect_detail(403, DENIED);
                }
                assert_eq!(now, expected, "{what}");
                workspace.admin.delete(&path).await.expect(204);
            }
        }
    }
}

#[tokio::test]
async fn group_and_user_of_a_membership_cannot_change() {
    let RoleGroup { workspace, group, askers } = role_group().await;
    let other = workspace.group("other", &[]).await;
    let (_, member) = &askers[0];
    let membership = workspace.membership(&group, member).await.unwrap();
    let path = item_path(MEMBERSHIPS, &membership);
    for (body, fields) in [
        (json!({"group": other["id"]}), &["group"][..]),
        (json!({"group": UNKNOWN_ID}), &["group"]),
        (json!({"group": null}), &["group"]),
        (json!({"group": group["id"].to_string()}), &["group"]),
        (json!({"user": askers[1].1.id}), &["user"]),
        (json!({"user": UNKNOWN_ID}), &["user"]),
        (json!({"user": "x"}), &["user"]),
        (json!({"group": other["id"], "user": UNKNOWN_ID}), &["group", "user"]),
        (json!({"role": "boss"}), &["role"]),
        (json!({"role": 7}), &["role"]),
    ] {
        let mut whole = json!({"group": group["id"], "user": member.id, "role": "manager"});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        workspace.admin.patch(&path, &whole).await.expect_fields(400, fields);
        workspace.admin.put(&path, &whole).await.expect_fields(400, fields);
    }
    workspace
        .admin
        .put(&path, &json!({"role": "manager"}))
        .await
        .expect_fields(400, &["group", "user"]);
    assert_eq!(workspace.admin.get(&path).await.expect(200), membership);
    let same =
        json!({"group": group["id"], "user": member.id, "role": "manager", "id": UNKNOWN_UUID});
    let mut expected = membership.clone();
    expected["role"] = json!("manager");
    for method in ["PUT", "PATCH"] {
        assert_eq!(workspace.admin.send_json(method, &path, &same).await.expect(200), expected);
    }
    assert_eq!(
        workspace.admin.patch(&path, &json!({})).await.expect(200),
        expected,
        "an empty body changes nothing"
    );
    assert_eq!(workspace.admin.get(&path).await.expect(200), expected);
}

#[tokio::test]
async fn each_role_removes_allowed_roles_and_may_leave() {
    let RoleGroup { workspace, group, askers } = role_group().await;
    let target = Person::new(&workspace, "target").await;
    for (asker, person) in &askers {
        for role in ROLES {
            let path = item_path(MEMBERSHIPS, &workspace.add_member(&group, &target, role).await);
            let may = matches!((*asker, role), ("owner" | "staff", _) | ("manager", "member"));
            let before = members(&workspace, &group).await;
            let reply = person.api.delete(&path).await;
            assert_eq!(
                reply.status,
                if may { 204 } else { 403 },
                "{asker} removes {role}: {}",
                reply.text
            );
            if may {
                person.api.delete(&path).await.expect_detail(404, None);
                let after = members(&workspace, &group).await;
                assert_eq!(after.len(), before.len() - 1);
                assert!(after.iter().all(|(user, _)| *user != target.id));
            } else {
                reply.expect_detail(403, DENIED);
                assert_eq!(members(&workspace, &group).await, before, "{asker} removes {role}");
                workspace.admin.delete(&path).await.expect(204);
            }
        }
    }
    for role in ROLES {
        let path = item_path(MEMBERSHIPS, &workspace.add_member(&group, &target, role).await);
        assert_eq!(target.api.delete(&path).await.expect(204), Value::Null, "{role}");
        for path in [path, group_path(&group)] {
            target.api.get(&path).await.expect_detail(404, None);
        }
        assert_eq!(target.api.get(MEMBERSHIPS).await.expect(200)["count"], 0);
    }
}

#[tokio::test]
async fn of_concurrent_removals_one_succeeds() {
    let workspace = Workspace::new().await;
    let group = workspace.group("ops", &[]).await;
    let staff = workspace.staff("steve").await;
    for round in 0..8 {
        let person = Person::new(&workspace, &format!("p{round}")).await;
        let path = item_path(MEMBERSHIPS, &workspace.add_member(&group, &person, "manager").await);
        let body = json!({"role": "owner"});
        let (deletes, change) = future::join(
            future::join_all([&workspace.admin, &staff, &person.api].map(|api| api.delete(&path))),
            workspace.admin.patch(&path, &body),
        )
        .await;
        assert_eq!(deletes.iter().filter(|reply| reply.status == 204).count(), 1, "{deletes:?}");
        for reply in deletes.iter().filter(|reply| reply.status != 204) {
            reply.expect_detail(404, None);
        }
        assert!(matches!(change.status, 200 | 404), "{}", change.text);
        assert_eq!(members(&workspace, &group).await.len(), 1, "round {round}");
        let group = workspace.group(&format!("g{round}"), &[]).await;
        let path = group_path(&group);
        let replies = future::join_all((0..4).map(|_| staff.delete(&path))).await;
        assert_eq!(replies.iter().filter(|reply| reply.status == 204).count(), 1, "{replies:?}");
        for reply in replies.iter().filter(|reply| reply.status != 204) {
            reply.expect_detail(404, None);
        }
    }
}

#[track_caller]
fn expect_only_owner_error(reply: &Reply) {
    reply.expect_fields(400, &["non_field_errors"]);
}

#[tokio::test]
async fn the_only_owner_of_a_group_cannot_be_removed() {
    let workspace = Workspace::new().await;
    let (olga, second) =
        (Person::new(&workspace, "olga").await, Person::new(&workspace, "second").await);
    let staff = Person::staff(&workspace, "steve").await;
    let group = workspace.group("ops", &[]).await;
    let owner = workspace.add_member(&group, &olga, "owner").await;
    let other = workspace.add_member(&group, &second, "manager").await;
    let boss = boss(&workspace).await;
    let first =
        workspace.admin.get(&format!("{MEMBERSHIPS}?user={boss}")).await.expect(200)["results"][0]
            .clone();
    workspace.admin.delete(&item_path(MEMBERSHIPS, &first)).await.expect(204);
    let (path, user) = (item_path(MEMBERSHIPS, &owner), olga.path());
    let before = members(&workspace, &group).await;
    for api in [&olga.api, &staff.api, &workspace.admin] {
        expect_only_owner_error(&api.delete(&path).await);
        for role in ["member", "manager"] {
            expect_only_owner_error(&api.patch(&path, &json!({"role": role})).await);
            let whole = json!({"group": group["id"], "user": olga.id, "role": role});
            expect_only_owner_error(&api.put(&path, &whole).await);
        }
        api.patch(&path, &json!({"role": "owner"})).await.expect(200);
        assert_eq!(members(&workspace, &group).await, before);
    }
    for api in [&staff.api, &workspace.admin] {
        for path in [&user, "/api/users/users/olga/"] {
            expect_only_owner_error(&api.delete(path).await);
        }
    }
    // Only callers who could delete the user see this error.
    for api in [&olga.api, &second.api] {
        api.delete(&user).await.expect_detail(403, DENIED);
    }
    second.api.delete(&path).await.expect_detail(403, DENIED);
    assert_eq!(workspace.admin.get(&user).await.expect(200)["is_active"], true);
    olga.api.get("/api/status/").await.expect(200);
    assert_eq!(members(&workspace, &group).await, before);
    // A deactivated user is still an owner.
    workspace.admin.patch(&user, &json!({"is_active": false})).await.expect(200);
    assert_eq!(members(&workspace, &group).await, before);
    expect_only_owner_error(&workspace.admin.delete(&user).await);
    // With a second owner, all of this is allowed.
    workspace
        .admin
        .patch(&item_path(MEMBERSHIPS, &other), &json!({"role": "owner"}))
        .await
        .expect(200);
    workspace.admin.patch(&path, &json!({"role": "member"})).await.expect(200);
    expect_only_owner_error(&second.api.delete(&item_path(MEMBERSHIPS, &other)).await);
    second.api.patch(&path, &json!({"role": "owner"})).await.expect(200);
    second.api.delete(&item_path(MEMBERSHIPS, &other)).await.expect(204);
    workspace.add_member(&group, &second, "owner").await;
    workspace.admin.delete(&user).await.expect(204);
    assert_eq!(members(&workspace, &group).await, [(second.id, "owner".to_owned())]);
    // The group can be deleted with its only owner. Then the user can be deleted too.
    expect_only_owner_error(&workspace.admin.delete(&second.path()).await);
    second.api.delete(&group_path(&group)).await.expect(204);
    workspace.admin.delete(&second.path()).await.expect(204);
}

#[tokio::test]
async fn a_deleted_user_leaves_groups_and_an_inactive_stays() {
    let workspace = Workspace::new().await;
    let (alice, bob) =
        (Person::new(&workspace, "alice").await, Person::new(&workspace, "bob").await);
    let groups = [workspace.group("one", &[]).await, workspace.group("two", &[]).await];
    let mut paths = Vec::new();
    for (group, role) in groups.iter().zip(["owner", "manager"]) {
        paths.push(item_path(MEMBERSHIPS, &workspace.add_member(group, &alice, role).await));
        workspace.add_member(group, &bob, "member").await;
    }
    workspace.admin.patch(&alice.path(), &json!({"is_active": false})).await.expect(200);
    for group in &groups {
        assert_eq!(members(&workspace, group).await.len(), 3);
    }
    workspace.admin.patch(&alice.path(), &json!({"is_active": true})).await.expect(200);
    workspace.admin.delete(&alice.path()).await.expect(204);
    for (group, path) in groups.iter().zip(&paths) {
        assert_eq!(members(&workspace, group).await.len(), 2);
        bob.api.get(path).await.expect_detail(404, None);
    }
    let list = bob.api.get(&format!("{MEMBERSHIPS}?user={}", alice.id)).await.expect(200);
    assert_eq!(list["count"], 0);
    let body = json!({"group": groups[0]["id"], "user": alice.id});
    workspace.admin.post(MEMBERSHIPS, &body).await.expect_fields(400, &["user"]);
    // A new user with the same name is in no group.
    let next = Person::new(&workspace, "alice").await;
    assert_eq!(next.api.get(GROUPS).await.expect(200)["count"], 0);
}

#[tokio::test]
async fn a_user_added_concurrently_is_added_once() {
    let workspace = Workspace::new().await;
    let alice = Person::new(&workspace, "alice").await;
    for round in 0..8 {
        let group = workspace.group(&format!("g{round}"), &[]).await;
        let posts = ROLES.iter().cycle().take(6).map(async |role| {
            let body = json!({"group": group["id"], "user": alice.id, "role": role});
            (role, workspace.admin.post(MEMBERSHIPS, &body).await)
        });
        let replies = future::join_all(posts).await;
        let made: Vec<_> = replies.iter().filter(|(_, reply)| reply.status == 201).collect();
        assert_eq!(made.len(), 1, "{replies:?}");
        for (_, reply) in replies.iter().filter(|(_, reply)| reply.status != 201) {
            reply.expect_fields(400, &["user"]);
        }
        assert_eq!(members(&workspace, &group).await[1], (alice.id, (*made[0].0).to_owned()));
    }
}

/// How two owners remove each other concurrently.
#[derive(Clone, Copy, Debug)]
enum MutualRemoval {
    Remove,
    Demote,
    Leave,
    RemoveAndDemote,
    DeleteUsers,
}

#[tokio::test]
async fn of_two_owners_removing_each_other_one_stays() {
    let workspace = Workspace::new().await;
    let (mut one, mut two) =
        (Person::new(&workspace, "a").await, Person::new(&workspace, "b").await);
    for duel in [
        MutualRemoval::Remove,
        MutualRemoval::Demote,
        MutualRemoval::Leave,
        MutualRemoval::RemoveAndDemote,
        MutualRemoval::DeleteUsers,
    ] {
        for round in 0..10 {
            let name = format!("{duel:?}-{round}").to_lowercase();
            let group = workspace.group(&name, &[]).await;
            // A user who was not deleted is reused in the next round.
            if workspace.admin.get(&one.path()).await.status == 404 {
                one = Person::new(&workspace, &format!("a{name}")).await;
            }
            if workspace.admin.get(&two.path()).await.status == 404 {
                two = Person::new(&workspace, &format!("b{name}")).await;
            }
            let first = item_path(MEMBERSHIPS, &workspace.add_member(&group, &one, "owner").await);
            let second = item_path(MEMBERSHIPS, &workspace.add_member(&group, &two, "owner").await);
            let boss = boss(&workspace).await;
            let own = format!("{MEMBERSHIPS}?group={}&user={boss}", group["id"]);
            let own = workspace.admin.get(&own).await.expect(200);
            workspace.admin.delete(&item_path(MEMBERSHIPS, &own["results"][0])).await.expect(204);
            let member = json!({"role": "member"});
            let whole = json!({"group": group["id"], "user": one.id, "role": "member"});
            let (a, b) = match duel {
                MutualRemoval::Remove => {
                    future::join(one.api.delete(&second), two.api.delete(&first)).await
                }
                MutualRemoval::Demote => {
                    future::join(one.api.patch(&second, &member), two.api.put(&first, &whole)).await
                }
                MutualRemoval::Leave => {
                    future::join(one.api.delete(&first), two.api.delete(&second)).await
                }
                MutualRemoval::RemoveAndDemote => {
                    future::join(one.api.delete(&second), two.api.patch(&first, &member)).await
                }
                MutualRemoval::DeleteUsers => {
                    let (one, two) = (one.path(), two.path());
                    future::join(workspace.admin.delete(&one), workspace.admin.delete(&two)).await
                }
            };
            let what =
                format!("{duel:?} {round}: {} {} / {} {}", a.status, a.text, b.status, b.text);
            let done = [&a, &b].iter().filter(|reply| matches!(reply.status, 200 | 204)).count();
            assert_eq!(done, 1, "{what}");
            // The later request fails: its caller is not an owner any more, or is the only one.
            let refused = if matches!(a.status, 200 | 204) { &b } else { &a };
            assert!(matches!(refused.status, 400 | 403 | 404), "{what}");
            if refused.status == 400 {
                expect_only_owner_error(refused);
            }
            let owners: Vec<_> = members(&workspace, &group)
                .await
                .into_iter()
                .filter(|(_, role)| role == "owner")
                .collect();
            assert_eq!(owners.len(), 1, "{what}");
            workspace.admin.delete(&group_path(&group)).await.expect(204);
        }
    }
}

#[tokio::test]
async fn nobody_can_join_a_deleted_group() {
    let workspace = Workspace::new().await;
    let alice = Person::new(&workspace, "alice").await;
    for round in 0..10 {
        let group = workspace.group(&format!("g{round}"), &[]).await;
        let body = json!({"group": group["id"], "user": alice.id});
        let path = group_path(&group);
        let (added, deleted) =
            future::join(workspace.admin.post(MEMBERSHIPS, &body), workspace.admin.delete(&path))
                .await;
        deleted.expect(204);
        if added.status != 201 {
            added.expect_fields(400, &["group"]);
        }
        assert_eq!(alice.api.get(MEMBERSHIPS).await.expect(200)["count"], 0);
        let left =
            workspace.admin.get(&format!("{MEMBERSHIPS}?group={}", group["id"])).await.expect(200);
        assert_eq!(left["count"], 0, "{left}");
    }
    // A user who is deleted concurrently is in no group either.
    let group = workspace.group("stays", &[]).await;
    for round in 0..10 {
        let person = workspace.user_with(&format!("u{round}"), &json!({})).await;
        let body = json!({"group": group["id"], "user": person["id"], "role": "owner"});
        let path = format!("{USERS}{}/", person["id"]);
        let (added, deleted) =
            future::join(workspace.admin.post(MEMBERSHIPS, &body), workspace.admin.delete(&path))
                .await;
        deleted.expect(204);
        if added.status != 201 {
            added.expect_fields(400, &["user"]);
        }
        assert_eq!(members(&workspace, &group).await.len(), 1, "round {round}");
    }
}
