//! `/api/iam/users/` (contract 5.1).

use farhand_domain::time::Timestamp;
use farhand_tests::agents::ScriptedAgent;
use farhand_tests::client::PASSWORD;
use farhand_tests::people::GROUPS;
use farhand_tests::{Api, Instance, Workspace, eventually};
use futures_util::future;
use serde_json::{Value, json};

const PATH: &str = "/api/iam/users/";
const ME: &str = "/api/iam/users/-/";

fn path_of(user: &Value) -> String {
    format!("{PATH}{}/", user["id"])
}

async fn path_by_name(workspace: &Workspace, username: &str) -> String {
    path_of(&workspace.admin.get(&format!("/api/users/users/{username}/")).await.expect(200))
}

fn names(list: &Value) -> Vec<&str> {
    list["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|user| user["username"].as_str().unwrap())
        .collect()
}

fn new_user(username: &str) -> Value {
    json!({"username": username, "email": format!("{username}@example.com"), "password": PASSWORD})
}

#[tokio::test]
async fn callers_can_read_themselves() {
    let workspace = Workspace::new().await;
    let me = workspace.admin.get(ME).await.expect(200);
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
    assert_eq!(workspace.session().get(ME).await.expect(200), me);
    assert_eq!(workspace.admin.get(&path_of(&me)).await.expect(200), me);
    assert_eq!(workspace.admin.get("/api/users/users/boss/").await.expect(200), me);
    assert_eq!(
        workspace.admin.get("/api/users/users/BOSS/").await.expect(200),
        me,
        "user names are not case-sensitive"
    );
}

#[tokio::test]
async fn a_new_user_can_log_in() {
    let workspace = Workspace::new().await;
    let mut body = new_user("alice");
    body.as_object_mut()
        .unwrap()
        .extend(json!({"first_name": "Älice", "last_name": "Q"}).as_object().unwrap().clone());
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    assert_eq!(
        (&made["username"], &made["first_name"], &made["last_name"]),
        (&json!("alice"), &json!("Älice"), &json!("Q"))
    );
    assert_eq!(
        (&made["is_active"], &made["is_staff"], &made["is_superuser"], &made["last_login"]),
        (&json!(true), &json!(false), &json!(false), &Value::Null)
    );
    assert!(made.get("password").is_none(), "{made}");
    assert_eq!(workspace.admin.get(&path_of(&made)).await.expect(200), made);
    let alice = workspace.anonymous.logged_in("alice", PASSWORD).await;
    assert!(alice.get(ME).await.expect(200)["last_login"].is_string());
    // The same list has a second path.
    workspace.admin.post("/api/users/users/", &new_user("bob")).await.expect(201);
    for path in [PATH, "/api/users/users/"] {
        assert_eq!(
            names(&alice.get(path).await.expect(200)),
            ["boss", "alice", "bob"],
            "users are listed oldest first"
        );
    }
}

#[tokio::test]
async fn invalid_fields_create_no_user() {
    let workspace = Workspace::new().await;
    let with = |name: &str, value: Value| {
        let mut body = new_user("alice");
        body[name] = value;
        body
    };
    for (body, wrong) in [
        (json!({}), &["email", "password", "username"][..]),
        (with("username", json!("root")), &["username"]),
        (with("username", json!("Alice")), &["username"]),
        (with("username", json!("boss")), &["username"]),
        (with("email", json!("BOSS@example.com")), &["email"]),
        (
            json!({"username": "boss", "email": "boss@example.com", "password": PASSWORD}),
            &["email", "username"],
        ),
        (with("email", json!("nonsense")), &["email"]),
        (with("password", json!("12345")), &["password"]),
        (with("password", json!("alice@example.com")), &["password"]),
        (with("email", json!("é@example.com")), &["email"]),
        (with("email", json!("\"a b\"@example.com")), &["email"]),
        (with("password", json!("aaaaaaaa")), &["password"]),
        (with("password", json!("abcdefgh")), &["password"]),
        (with("first_name", json!("a\r\nb")), &["first_name"]),
        (with("first_name", json!("x".repeat(151))), &["first_name"]),
        (with("is_staff", json!("yes")), &["is_staff"]),
        (with("is_active", Value::Null), &["is_active"]),
    ] {
        workspace.admin.post(PATH, &body).await.expect_fields(400, wrong);
    }
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 1);
    // The same name and address are free in another workspace.
    Workspace::new().await.admin.post(PATH, &new_user("alice")).await.expect(201);
    workspace.admin.post(PATH, &new_user("alice")).await.expect(201);
}

#[tokio::test]
async fn users_can_be_filtered_and_searched() {
    let workspace = Workspace::new().await;
    workspace
        .user_with("alice", &json!({"first_name": "Ärmine", "last_name": "O'Neil 100%_x"}))
        .await;
    workspace.user_with("bob", &json!({"is_active": false, "last_name": "Neilson"})).await;
    let found = async |query: &str| {
        let list = workspace.admin.get(&format!("{PATH}?{query}")).await.expect(200);
        let found: Vec<String> = names(&list).into_iter().map(str::to_owned).collect();
        assert_eq!(list["count"], found.len());
        found
    };
    assert_eq!(found("username=alice").await, ["alice"]);
    assert_eq!(found("username=ali").await, [""; 0]);
    assert_eq!(found("is_active=false").await, ["bob"]);
    assert_eq!(found("is_active=True").await, ["boss", "alice"]);
    assert_eq!(found("search=NEIL").await, ["alice", "bob"]);
    assert_eq!(found("search=neil+alice").await, ["alice"], "every word of the search must match");
    assert_eq!(
        found("search=%C3%84RMINE").await,
        ["alice"],
        "the search ignores case beyond ASCII"
    );
    assert_eq!(found("search=example.com").await, ["boss", "alice", "bob"]);
    assert_eq!(found("search=%25_").await, ["alice"], "`%` and `_` are not wildcards");
    assert_eq!(found("search=%27").await, ["alice"]);
    assert_eq!(found("search=*").await, [""; 0]);
    assert_eq!(found(&format!("search={}", "x".repeat(3000))).await, [""; 0]);
    assert_eq!(found("search=").await.len(), 3);
    assert_eq!(found("search=neil&is_active=true").await, ["alice"]);
    // A renamed user is found by the new name.
    let alice = path_by_name(&workspace, "alice").await;
    workspace.admin.patch(&alice, &json!({"first_name": "Örs"})).await.expect(200);
    assert_eq!(found("search=%C3%96RS+o%27neil").await, ["alice"]);
    assert_eq!(found("search=%C3%84RMINE").await, [""; 0]);
    let page =
        workspace.admin.get(&format!("{PATH}?search=example&page_size=2&page=2")).await.expect(200);
    assert_eq!((names(&page), &page["count"]), (vec!["bob"], &json!(3)));
    assert!(page["previous"].as_str().unwrap().contains("search=example"), "{page}");
    for bad in ["is_active=maybe", "is_active="] {
        workspace.admin.get(&format!("{PATH}?{bad}")).await.expect_fields(400, &["is_active"]);
    }
    workspace
        .admin
        .get(&format!("{PATH}?is_active=x&page=0"))
        .await
        .expect_fields(400, &["is_active", "page"]);
}

#[tokio::test]
async fn ranks_decide_who_creates_and_changes_whom() {
    let workspace = Workspace::new().await;
    let (staff, alice) = (workspace.staff("steve").await, workspace.user("alice").await);
    workspace.user_with("bob", &json!({})).await;
    let path = async |name: &str| path_by_name(&workspace, name).await;
    let (boss, steve, bob) = (path("boss").await, path("steve").await, path("bob").await);

    // Creation: staff create ordinary users, superusers create any user, and other users create
    // none. The permission is checked before the input.
    for body in [new_user("new"), json!({}), new_user("boss")] {
        alice.post(PATH, &body).await.expect_detail(403, Some("PERMISSION_DENIED"));
    }
    for rank in ["is_staff", "is_superuser"] {
        let mut body = new_user("new");
        body[rank] = json!(true);
        staff.post(PATH, &body).await.expect_detail(403, Some("PERMISSION_DENIED"));
    }
    staff.post(PATH, &new_user("byst")).await.expect(201);
    let mut body = new_user("second");
    body["is_superuser"] = json!(true);
    workspace.admin.post(PATH, &body).await.expect(201);

    // Changes:
    let denied = async |api: &Api, path: &str, body: Value| {
        api.patch(path, &body).await.expect_detail(403, Some("PERMISSION_DENIED"));
    };
    for body in [
        json!({"first_name": "X"}),
        json!({"is_active": false}),
        json!({"email": "nonsense"}),
        json!({}),
    ] {
        denied(&alice, &bob, body.clone()).await;
        denied(&staff, &boss, body.clone()).await;
        denied(&staff, &path("second").await, body).await;
    }
    for body in [json!({"is_staff": true}), json!({"is_superuser": true})] {
        denied(&staff, &bob, body.clone()).await;
        denied(&alice, ME, body).await;
    }
    denied(&staff, &steve, json!({"is_superuser": true})).await;
    denied(&staff, ME, json!({"is_staff": false})).await;
    for body in [json!({"username": "other"}), json!({"is_active": false})] {
        denied(&alice, ME, body.clone()).await;
        denied(&staff, ME, body).await;
    }
    let changed = staff
        .patch(&bob, &json!({"username": "robert", "email": "r@example.com", "last_name": "B"}))
        .await;
    assert_eq!(changed.expect(200)["username"], "robert");
    // An unchanged value needs no permission.
    alice
        .patch(ME, &json!({"is_staff": false, "username": "alice", "first_name": "A"}))
        .await
        .expect(200);
    // Superusers grant and revoke staff rank, which takes effect immediately.
    workspace.admin.patch(&bob, &json!({"is_staff": true})).await.expect(200);
    denied(&staff, &bob, json!({"first_name": "X"})).await;
    workspace.admin.patch(&steve, &json!({"is_staff": false})).await.expect(200);
    staff.post(PATH, &new_user("late")).await.expect_detail(403, Some("INVALID_TOKEN"));
    let staff = workspace.anonymous.logged_in("steve", PASSWORD).await;
    staff.post(PATH, &new_user("late")).await.expect_detail(403, Some("PERMISSION_DENIED"));

    // Deletion:
    for (api, user) in [(&alice, &bob), (&staff, &boss), (&alice, &path("alice").await)] {
        api.delete(user).await.expect_detail(403, Some("PERMISSION_DENIED"));
    }
    alice.delete(ME).await.expect_detail(403, Some("PERMISSION_DENIED"));
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 6);
}

#[tokio::test]
async fn users_change_their_names_and_confirmed_address() {
    let workspace = Workspace::new().await;
    let alice = workspace.user("alice").await;
    let changed =
        alice.patch(ME, &json!({"first_name": "Älice", "last_name": ""})).await.expect(200);
    assert_eq!(changed["first_name"], "Älice");
    let email = json!("new@example.com");
    alice.patch(ME, &json!({"email": email})).await.expect_fields(400, &["password"]);
    alice
        .patch(ME, &json!({"email": email, "password": "wrong"}))
        .await
        .expect_fields(400, &["password"]);
    alice
        .patch(ME, &json!({"email": "nonsense", "password": PASSWORD}))
        .await
        .expect_fields(400, &["email"]);
    let taken = json!({"email": "boss@example.com", "password": PASSWORD});
    alice.patch(ME, &taken).await.expect_fields(400, &["email"]);
    // The password cannot be changed here, and the error says so.
    let other = json!({"password": "an entirely other one"});
    alice.patch(ME, &other).await.expect_fields(400, &["password"]);
    assert_eq!(alice.get(ME).await.expect(200)["email"], "alice@example.com");
    let changed = alice.patch(ME, &json!({"email": email, "password": PASSWORD})).await.expect(200);
    assert_eq!(changed["email"], email);
    // A PUT with the response of a GET and another name.
    let mut whole = alice.get(ME).await.expect(200);
    whole["last_name"] = json!("Quill");
    assert_eq!(alice.put(ME, &whole).await.expect(200), whole);
    alice.put(ME, &json!({"first_name": "x"})).await.expect_fields(400, &["email", "username"]);
    // PUT resets omitted fields to the values of an ordinary user.
    let plain = alice.put(ME, &json!({"username": "alice", "email": email})).await.expect(200);
    assert_eq!((&plain["first_name"], &plain["is_active"]), (&json!(""), &json!(true)));
    // A repetition of the same request, after a lost response, is valid.
    let again = json!({"email": email, "password": PASSWORD});
    assert_eq!(alice.patch(ME, &again).await.expect(200)["email"], email);
    // Superusers need the right password too, for their own address.
    let wrong = json!({"email": "b3@example.com", "password": "wrong"});
    for body in [json!({"email": "b2@example.com"}), wrong] {
        workspace.admin.patch(ME, &body).await.expect_fields(400, &["password"]);
    }
    let right = json!({"email": "b3@example.com", "password": PASSWORD});
    assert_eq!(workspace.admin.patch(ME, &right).await.expect(200)["email"], "b3@example.com");
}

#[tokio::test]
async fn concurrent_changes_of_a_user_all_take_effect() {
    let workspace = Workspace::new().await;
    workspace.user_with("alice", &json!({})).await;
    let path = path_by_name(&workspace, "alice").await;
    let changes: Vec<_> = (0..20)
        .map(|number| {
            let (api, path) = (workspace.admin.clone(), path.clone());
            let field = ["first_name", "last_name"][number % 2];
            tokio::spawn(async move {
                api.patch(&path, &json!({field: format!("N{number}")})).await.status
            })
        })
        .collect();
    for change in changes {
        assert_eq!(change.await.unwrap(), 200);
    }
    let user = workspace.admin.get(&path).await.expect(200);
    let name = |field: &str| user[field].as_str().unwrap().to_lowercase();
    for word in [name("first_name"), name("last_name")] {
        let found = workspace.admin.get(&format!("{PATH}?search={word}")).await.expect(200);
        assert_eq!(names(&found), ["alice"], "the user is found by the current names: {word}");
    }
}

#[tokio::test]
async fn deactivation_is_immediate_and_disables_tokens() {
    let workspace = Workspace::new().await;
    let alice = workspace.user("alice").await;
    let made = alice
        .post("/api/auth/tokens/", &json!({"name": "x", "expires_at": null}))
        .await
        .expect(201);
    let token = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    let path = path_by_name(&workspace, "alice").await;
    assert_eq!(
        workspace.admin.patch(&path, &json!({"is_active": false})).await.expect(200)["is_active"],
        false
    );
    for dead in [&alice, &token] {
        dead.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
        dead.patch(ME, &json!({"first_name": "x"})).await.expect_detail(403, Some("INVALID_TOKEN"));
    }
    workspace.anonymous.log_in("alice", PASSWORD).await.expect_fields(403, &["non_field_errors"]);
    workspace.admin.patch(&path, &json!({"is_active": true})).await.expect(200);
    for dead in [&alice, &token] {
        dead.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    }
    let again = workspace.anonymous.logged_in("alice", PASSWORD).await;
    let list = again.get("/api/auth/tokens/").await.expect(200);
    assert_eq!(
        (&list["results"][0]["name"], &list["results"][0]["enabled"]),
        (&json!("x"), &json!(false))
    );
    let enable = format!("/api/auth/tokens/{}/", made["id"].as_str().unwrap());
    again.patch(&enable, &json!({"enabled": true})).await.expect(200);
    token.get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn a_deleted_user_loses_credentials_but_commands_stay() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let alice = workspace.staff("alice").await;
    let made = alice
        .post("/api/auth/tokens/", &json!({"name": "x", "expires_at": null}))
        .await
        .expect(201);
    let token = workspace.anonymous.with_token(made["key"].as_str().unwrap());
    let server = alice.post("/api/servers/", &json!({"name": "web-1"})).await.expect(201);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    // More commands than one step detaches from the user.
    for _ in 0..3 {
        alice
            .post("/api/events/commands/", &json!({"server": "web-1", "line": "id"}))
            .await
            .expect(201);
        agent.next_command().await;
    }
    let id = workspace.admin.get("/api/users/users/alice/").await.expect(200)["id"].clone();
    instance
        .d1("INSERT INTO commands (seq, id, workspace_id, server_id, server_name, requested_by, shell, line, username, groupname,
                timeout, added_at, scheduled_at, expires_at, state, status_message)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 450)
             SELECT c.seq + 10 + n.i, printf('%s%s%03d', substr(c.id, 1, 32), iif(substr(c.id, 33, 1) = 'f', 'e', 'f'), n.i), workspace_id,
                server_id, server_name, requested_by, shell, line, username, groupname, timeout, added_at, scheduled_at, expires_at, state, status_message
             FROM n, (SELECT * FROM commands LIMIT 1) c");
    let deleted = workspace.admin.delete(&format!("{PATH}{id}/")).await;
    assert_eq!((deleted.status, deleted.text.as_str()), (204, ""));
    for dead in [&alice, &token] {
        dead.get("/api/status/").await.expect_detail(403, Some("INVALID_TOKEN"));
    }
    workspace.anonymous.log_in("alice", PASSWORD).await.expect_fields(403, &["non_field_errors"]);
    for path in [format!("{PATH}{id}/"), "/api/users/users/alice/".to_owned()] {
        for method in ["GET", "DELETE"] {
            workspace.admin.call(method, &path).await.expect_detail(404, None);
        }
        let patch =
            workspace.admin.patch(&path, &json!({"password": "an entirely other one"})).await;
        patch.expect_detail(404, None);
    }
    let list = workspace.admin.get("/api/events/commands/?page_size=100").await.expect(200);
    assert_eq!(list["count"], 453);
    assert!(
        list["results"].as_array().unwrap().iter().all(|command| command["requested_by"].is_null()),
        "{list}"
    );
    let one = list["results"][0]["id"].as_str().unwrap();
    let one = workspace.admin.get(&format!("/api/events/commands/{one}/")).await.expect(200);
    assert_eq!(one["requested_by"], Value::Null);
    let server = workspace.admin.get("/api/servers/").await.expect(200)["results"][0].clone();
    assert_eq!((&server["name"], &server["owner"]), (&json!("web-1"), &Value::Null));
    // In the background, the user is removed from every command.
    eventually("the user to be removed from the last command", || async {
        let left = instance.d1(&format!(
            "SELECT (SELECT count(*) FROM commands WHERE requested_by = {id})
                    + (SELECT count(*) FROM deleted_users) + (SELECT count(*) FROM sessions WHERE user_id = {id})
                    + (SELECT count(*) FROM api_tokens WHERE user_id = {id}) AS n"
        ));
        (left[0]["n"] == 0).then_some(())
    })
    .await;
    // The name and the address are free. A new user with them is another user.
    let next = workspace.user_with("alice", &json!({})).await;
    assert_ne!(next["id"], id);
}

#[tokio::test]
async fn the_last_active_superuser_cannot_be_removed() {
    let workspace = Workspace::new().await;
    let (me, session) = (path_by_name(&workspace, "boss").await, workspace.session());
    let refused = async |reply: farhand_tests::Reply| {
        reply.expect_fields(400, &["non_field_errors"]);
    };
    for path in [ME, &me] {
        refused(session.patch(path, &json!({"is_superuser": false})).await).await;
        refused(session.patch(path, &json!({"is_active": false})).await).await;
        refused(session.put(path, &json!({"username": "boss", "email": "boss@example.com"})).await)
            .await;
        refused(session.delete(path).await).await;
    }
    // An inactive superuser does not count.
    workspace.user_with("second", &json!({"is_superuser": true, "is_active": false})).await;
    refused(session.delete(ME).await).await;
    let second = path_by_name(&workspace, "second").await;
    workspace.admin.patch(&second, &json!({"is_active": true})).await.expect(200);
    let other = workspace.anonymous.logged_in("second", PASSWORD).await;
    // Of two superusers who demote each other concurrently, one keeps the rank.
    let (a, b) = tokio::join!(
        async { session.patch(&second, &json!({"is_superuser": false})).await },
        async { other.delete(&me).await },
    );
    let done = [a.status, b.status].iter().filter(|status| (200..300).contains(*status)).count();
    assert_eq!(done, 1, "{} {} / {} {}", a.status, a.text, b.status, b.text);
    let left = if a.status == 200 { &session } else { &other };
    assert_eq!(left.get(ME).await.expect(200)["is_superuser"], true);
    refused(left.delete(ME).await).await;
}

#[tokio::test]
async fn other_and_unknown_users_are_404() {
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    elsewhere.skip_ids().await;
    elsewhere.user("stranger").await;
    let theirs = path_by_name(&elsewhere, "stranger").await;
    let mut paths = vec![theirs.clone()];
    for bad in [
        "0",
        "-1",
        "01",
        "1.0",
        "+1",
        "nonsense",
        "99999999999999999999",
        "9007199254740993",
        "%20",
        "1%00",
    ] {
        paths.push(format!("{PATH}{bad}/"));
    }
    for path in &paths {
        workspace.admin.get(path).await.expect_detail(404, None);
        workspace.admin.patch(path, &json!({"first_name": "x"})).await.expect_detail(404, None);
        workspace.admin.put(path, &json!({})).await.expect_detail(404, None);
        workspace.admin.delete(path).await.expect_detail(404, None);
    }
    for name in ["nobody-here", "%00", "a'b", "%F0%9F%A6%80"] {
        workspace.admin.get(&format!("/api/users/users/{name}/")).await.expect_detail(404, None);
    }
    assert_eq!(elsewhere.admin.get(&theirs).await.expect(200)["first_name"], "");
}

#[tokio::test]
async fn ids_are_per_workspace_and_never_used_again() {
    let (one, two) = (Workspace::new().await, Workspace::new().await);
    for workspace in [&one, &two] {
        assert_eq!(
            workspace.admin.get(ME).await.expect(200)["id"],
            1,
            "the first user has the id 1"
        );
        for expected in [2, 3] {
            let user = workspace.user_with(&format!("user{expected}"), &json!({})).await;
            assert_eq!(user["id"], expected);
            // The audit log names the new user by that id.
            let log = workspace
                .admin
                .get("/api/audit/events/?action=user.create&page_size=1")
                .await
                .expect(200);
            assert_eq!(log["results"][0]["object"]["id"], expected.to_string());
            let name = format!("group{}", expected - 1);
            let group = workspace.admin.post(GROUPS, &json!({"name": name})).await.expect(201);
            assert_eq!(group["id"], expected - 1);
            let log = workspace
                .admin
                .get("/api/audit/events/?action=group.create&page_size=1")
                .await
                .expect(200);
            assert_eq!(log["results"][0]["object"]["id"], (expected - 1).to_string());
        }
    }
    // Ids are never used again, neither the highest nor one in between. Failed requests use up no
    // id.
    for path in
        [format!("{PATH}3/"), format!("{GROUPS}2/"), format!("{PATH}2/"), format!("{GROUPS}1/")]
    {
        one.admin.delete(&path).await.expect(204);
    }
    one.admin.post(PATH, &new_user("boss")).await.expect_fields(400, &["email", "username"]);
    assert_eq!(one.user_with("user4", &json!({})).await["id"], 4);
    assert_eq!(one.admin.post(GROUPS, &json!({"name": "group3"})).await.expect(201)["id"], 3);
    one.admin.post(GROUPS, &json!({"name": "group3"})).await.expect_fields(400, &["name"]);

    // Users created concurrently have consecutive ids.
    let users =
        future::join_all(
            (0..8).map(|n| {
                let one = &one;
                async move {
                    one.user_with(&format!("many{n}"), &json!({})).await["id"].as_i64().unwrap()
                }
            }),
        );
    let groups = future::join_all((0..8).map(|n| {
        let one = &one;
        async move {
            one.admin.post(GROUPS, &json!({"name": format!("many{n}")})).await.expect(201)["id"]
                .as_i64()
                .unwrap()
        }
    }));
    let (mut users, mut groups) = future::join(users, groups).await;
    users.sort_unstable();
    groups.sort_unstable();
    assert_eq!(users, (5..13).collect::<Vec<_>>());
    assert_eq!(groups, (4..12).collect::<Vec<_>>());
    assert_eq!(
        two.user_with("next", &json!({})).await["id"],
        4,
        "each workspace counts its own ids"
    );
}
