//! The brake of a cell whose database is nearly full (contract 11.7).

use farhand_domain::http::endpoints::{Access, Growth, ROUTES};
use farhand_tests::client::{PASSWORD, new_workspace};
use farhand_tests::people::{COMMANDS, UNKNOWN_UUID};
use farhand_tests::{Api, Instance, Person, Reply, Workspace, eventually, far_ahead, now};
use serde_json::{Value, json};

const TOKENS: &str = "/api/auth/tokens/";
const REGISTER: &str = "/api/servers/servers/register/";

fn token(name: &str) -> Value {
    json!({"name": name, "expires_at": null})
}

fn is_cell_full(reply: &Reply) -> bool {
    let is_full = reply.status == 503 && reply.json()["code"] == "CELL_FULL";
    if is_full {
        assert_eq!(reply.header("Retry-After"), "3600");
    }
    is_full
}

/// Starts the instance again, with a limit of which D1 uses `percent`. The new isolate calls D1.
async fn restart(instance: Instance, percent: i64, admin: &Api) -> Instance {
    let sql = "SELECT page_count * page_size AS bytes FROM pragma_page_count, pragma_page_size";
    let bytes = instance.d1(sql)[0]["bytes"].as_i64().unwrap();
    let state = instance.state.clone();
    instance.stop().await;
    let max = (bytes * 100 / percent).to_string();
    let instance = Instance::restart_with(&state, &[("D1_MAX_BYTES", &max)]).await;
    admin.with_url(&instance.url).get("/api/status/").await.expect(200);
    instance
}

/// Asserts that every request of a user to the table's endpoints is refused if it adds to the
/// database, and no other request.
async fn assert_braked(api: &Api, is_refused: impl Fn(Growth) -> bool) {
    let mut refused = 0;
    for route in
        ROUTES.iter().filter(|route| matches!(route.access, Access::User | Access::UserOrAgent))
    {
        let path = route.path.replace("{username}", "nobody").replace("{id}", UNKNOWN_UUID);
        for (method, endpoint) in &route.methods {
            if *method == "GET" || path.contains('{') {
                continue;
            }
            let reply = api.send_json(method, &path, &json!({})).await;
            let expected = is_refused(endpoint.growth(method));
            assert_eq!(
                is_cell_full(&reply),
                expected,
                "{method} {path}: {} {}",
                reply.status,
                reply.text
            );
            refused += usize::from(expected);
        }
    }
    assert!(refused > 10, "{refused}");
}

#[tokio::test]
async fn a_nearly_full_cell_accepts_only_what_must_work() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let (admin, operator) = (workspace.admin.clone(), instance.operator());
    let server = workspace.server("web-1").await;
    let staff = Person::staff(&workspace, "steve").await;
    let mia = Person::new(&workspace, "mia").await;
    let group = workspace.group("ops", &[&server]).await;
    workspace.add_member(&group, &mia, "member").await;
    // Unlike a login token, an API token does not end with the tested requests.
    let member = mia.with_api_token().await;
    let waiting = json!({"server": "web-1", "line": "id", "scheduled_at": far_ahead()});
    let mut commands = Vec::new();
    for _ in 0..2 {
        commands.push(member.post(COMMANDS, &waiting).await.expect(201));
    }
    let cancel = |command: &Value| format!("{COMMANDS}{}/cancel/", command["id"].as_str().unwrap());
    let registration =
        admin.post("/api/servers/registration-tokens/", &token("hosts")).await.expect(201);
    let host = workspace.anonymous.with_token(registration["key"].as_str().unwrap());
    let yearly =
        json!({"name": "yearly", "cron": "0 0 1 1 *", "targets": {"all": true}, "line": "id"});
    let schedule = mia.api.post("/api/events/schedules/", &yearly).await.expect(201);
    let path = format!("/api/events/schedules/{}/", schedule["id"].as_str().unwrap());
    let storage = async |instance: &Instance| {
        admin.with_url(&instance.url).get("/healthz").await.expect(200)["storage"].clone()
    };
    assert_eq!(storage(&instance).await, "ok");
    instance.d1(&format!("UPDATE schedules SET next_due = '{}', revision = revision + 1", now()));

    let instance = restart(instance, 87, &admin).await;
    let at = |api: &Api| api.with_url(&instance.url);
    assert_eq!(storage(&instance).await, "filling");
    let log = std::fs::read_to_string(instance.state.join("worker.log")).unwrap();
    assert!(log.contains("\"event\":\"cell_filling\""), "{log}");
    assert_braked(&at(&member), |growth| growth != Growth::Allowed).await;
    let register = json!({"name": "web-2"});
    assert!(is_cell_full(&at(&host).post(REGISTER, &register).await));
    // An invalid credential is refused before the database is.
    at(&member).with_token(&"A".repeat(128)).post(TOKENS, &token("x")).await.expect(403);
    at(&staff.api).post(TOKENS, &token("of staff")).await.expect(201);
    at(&member).post(&cancel(&commands[0]), &json!({})).await.expect(200);
    at(&workspace.anonymous).log_in("mia", PASSWORD).await.expect(200);
    // The member's run is passed over. A superuser's change lets the scheduler look at it.
    at(&admin).patch(&path, &json!({"name": "due"})).await.expect(200);
    eventually("the scheduler to pass the run over", || async {
        let due = instance.d1("SELECT next_due FROM schedules")[0]["next_due"].clone();
        (due.as_str().unwrap() > now().to_string().as_str()).then_some(())
    })
    .await;
    let runs = at(&admin).get(&format!("{path}runs/")).await.expect(200);
    let batches = at(&admin).get("/api/events/batches/").await.expect(200);
    assert_eq!((&runs["count"], &batches["count"]), (&json!(0), &json!(0)));

    let instance = restart(instance, 100, &admin).await;
    let at = |api: &Api| api.with_url(&instance.url);
    assert_eq!(storage(&instance).await, "full");
    assert!(is_cell_full(&at(&admin).post(TOKENS, &token("x")).await));
    let renamed = json!({"first_name": "Steve"});
    assert!(is_cell_full(&at(&staff.api).patch("/api/iam/users/-/", &renamed).await));
    at(&admin).patch(&staff.path(), &json!({"is_active": false})).await.expect(200);
    at(&member)
        .patch(&mia.path(), &json!({"first_name": "Mia"}))
        .await
        .expect_detail(503, Some("CELL_FULL"));
    let session = at(&workspace.anonymous).log_in("mia", PASSWORD).await.expect(200);
    let session = at(&workspace.anonymous).with_token(session["token"].as_str().unwrap());
    session.post(&cancel(&commands[1]), &json!({})).await.expect(200);
    let password = json!({"password": PASSWORD, "new_password": "another correct horse 7"});
    session.post("/api/auth/change-password/", &password).await.expect(200);
    at(&admin).delete(&path).await.expect(204);
    at(&operator).post("/operator/workspaces/", &new_workspace("other")).await.expect(201);
    let verified = at(&admin).post("/api/audit/verify/", &json!({})).await.expect(200);
    assert_eq!(verified["valid"], true);
}
