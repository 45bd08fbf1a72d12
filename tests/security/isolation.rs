//! Isolation of users and workspaces (contract 1, 3, 4 and 5). Each endpoint is called with each
//! kind of credential, and with the ids of another user's or another workspace's resources.
//! `fleet.rs` tests permissions inside one workspace, and `acl.rs` tests tokens with access control
//! lists.

use farhand_domain::http::endpoints::Access;
use farhand_domain::time::Timestamp;
use farhand_tests::agents::credential;
use farhand_tests::alpacon;
use farhand_tests::client::{self, PASSWORD, unique};
use farhand_tests::openapi::DOCUMENT;
use farhand_tests::people::{
    BATCHES, COMMANDS, GROUPS, MEMBERSHIPS, Person, SERVERS, UNKNOWN_ID, UNKNOWN_UUID, USERS,
    group_path, item_path,
};
use farhand_tests::{Api, Instance, Reply, Workspace, now};
use futures_util::future;
use serde_json::{Value, json};

use crate::api::endpoints::{all, path_of};
use crate::security::acl::ALLOWED;

const TOKENS: &str = "/api/auth/tokens/";
const SESSIONS: &str = "/api/auth/sessions/";
const REGISTRATION_TOKENS: &str = "/api/servers/registration-tokens/";
const SCHEDULES: &str = "/api/events/schedules/";
const REGISTER: &str = "/api/servers/servers/register/";

/// How an endpoint responds to a credential.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Outcome {
    /// The credential is accepted. Other tests check the rest of the response.
    Accepted,
    /// Accepted only if a token with a read-only list may call the endpoint.
    AcceptedIfReadOnly,
    /// An error with a status and a code.
    Refused(u16, Option<&'static str>),
}

use Outcome::{Accepted, AcceptedIfReadOnly};

const MISSING: Outcome = Outcome::Refused(401, None);
const MALFORMED: Outcome = Outcome::Refused(403, Some("INVALID_AUTHORIZATION"));
/// For users, the endpoints of agents do not exist.
const HIDDEN: Outcome = Outcome::Refused(404, None);
const INVALID: Outcome = Outcome::Refused(403, Some("INVALID_TOKEN"));
const LIMITED: Outcome = Outcome::Refused(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));

/// For each kind of credential, the expected outcome at endpoints for: users, users and agents,
/// agents, registration, the operator. Open endpoints ignore credentials and are not listed.
#[rustfmt::skip]
const MATRIX: [(&str, [Outcome; 5]); 12] = [
    ("none",                       [MISSING,            MISSING,            MISSING,   MISSING,   MISSING]),
    ("malformed",                  [MALFORMED,          MALFORMED,          MALFORMED, MALFORMED, MALFORMED]),
    ("invalid token",              [INVALID,            INVALID,            HIDDEN,    INVALID,   MALFORMED]),
    ("token",                      [Accepted,           Accepted,           HIDDEN,    INVALID,   MALFORMED]),
    ("token of another network",   [LIMITED,            LIMITED,            HIDDEN,    INVALID,   MALFORMED]),
    ("read-only token",            [AcceptedIfReadOnly, AcceptedIfReadOnly, HIDDEN,    INVALID,   MALFORMED]),
    ("invalid agent",              [MALFORMED,          INVALID,            INVALID,   MALFORMED, MALFORMED]),
    ("agent",                      [MALFORMED,          Accepted,           Accepted,  MALFORMED, MALFORMED]),
    ("invalid registration token", [INVALID,            INVALID,            HIDDEN,    INVALID,   MALFORMED]),
    ("registration token",         [INVALID,            INVALID,            HIDDEN,    Accepted,  MALFORMED]),
    ("wrong operator",             [MALFORMED,          MALFORMED,          MALFORMED, MALFORMED, INVALID]),
    ("operator",                   [MALFORMED,          MALFORMED,          MALFORMED, MALFORMED, Accepted]),
];

/// The expected outcome at an endpoint, or `None` if the endpoint needs no credential.
fn expected_outcome(kind: &str, (method, path, access): (&str, &str, Access)) -> Option<Outcome> {
    let column = match access {
        Access::Open => return None,
        Access::User => 0,
        Access::UserOrAgent => 1,
        Access::Agent => 2,
        Access::Registration => 3,
        Access::Operator => 4,
    };
    let (_, row) = MATRIX.iter().find(|(name, _)| *name == kind).unwrap();
    Some(match row[column] {
        // Contract 4.1: without a credential, logout and change-password return 403.
        MISSING if ["/api/auth/logout/", "/api/auth/change-password/"].contains(&path) => MALFORMED,
        AcceptedIfReadOnly if method == "GET" && ALLOWED.contains(&(method, path)) => Accepted,
        AcceptedIfReadOnly => LIMITED,
        outcome => outcome,
    })
}

/// A client with a credential of a kind.
struct Credential {
    kind: &'static str,
    what: &'static str,
    api: Api,
}

/// Creates an API token, and returns the response.
async fn new_token(api: &Api, more: &Value) -> Value {
    let mut body = json!({"name": "token", "expires_at": null});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    api.post(TOKENS, &body).await.expect(201)
}

fn key(made: &Value) -> &str {
    made["key"].as_str().unwrap()
}

/// The id of the session that a client uses.
async fn session_of(api: &Api) -> Value {
    let list = api.get(SESSIONS).await.expect(200);
    list["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|session| session["current"] == true)
        .unwrap()
        .clone()
}

/// One user token for each way to become invalid.
async fn invalid_tokens(
    instance: &Instance,
    here: &Workspace,
    elsewhere: &Workspace,
) -> Vec<(&'static str, String)> {
    let token = |api: &Api| api.authorization.clone().unwrap();
    let quoted = |key: &str| format!("token=\"{key}\"");
    let boss = here.session();
    let (disabled, deleted) =
        (new_token(&boss, &json!({})).await, new_token(&boss, &json!({})).await);
    let soon = now().plus_seconds(3600);
    let expired = new_token(&boss, &json!({"expires_at": soon})).await;
    boss.patch(&item_path(TOKENS, &disabled), &json!({"enabled": false})).await.expect(200);
    boss.delete(&item_path(TOKENS, &deleted)).await.expect(204);
    let log_in = async || here.anonymous.logged_in("boss", PASSWORD).await;
    let (revoked, logged_out, forgotten) = (log_in().await, log_in().await, log_in().await);
    revoked.delete(&item_path(SESSIONS, &session_of(&revoked).await)).await.expect(204);
    logged_out.call("POST", "/api/auth/logout/").await.expect(200);
    let aged = session_of(&forgotten).await;
    let then = now().plus_seconds(-15 * 24 * 3600);
    instance.tamper_with_d1(&format!(
        "UPDATE sessions SET expires_at = '{then}' WHERE id = {};
             UPDATE api_tokens SET expires_at = '{then}' WHERE id = {};",
        aged["id"].to_string().replace('"', "'"),
        expired["id"].to_string().replace('"', "'"),
    ));
    let (off, gone) = (Person::new(here, "off").await, Person::new(here, "gone").await);
    let (off_token, gone_token) =
        (new_token(&off.api, &json!({})).await, new_token(&gone.api, &json!({})).await);
    off.set(here, json!({"is_active": false})).await;
    here.admin.delete(&gone.path()).await.expect(204);
    let changed = here.user("changed").await;
    let path = "/api/users/users/changed/";
    here.admin.put(path, &json!({"password": "an entirely other one"})).await.expect(200);
    vec![
        ("unknown", quoted(&"A".repeat(128))),
        ("short", quoted("x")),
        ("expired API token", quoted(key(&expired))),
        ("disabled API token", quoted(key(&disabled))),
        ("deleted API token", quoted(key(&deleted))),
        ("expired session", token(&forgotten)),
        ("revoked session", token(&revoked)),
        ("session after logout", token(&logged_out)),
        ("session from before a new password", token(&changed)),
        ("deactivated user's session", token(&off.api)),
        ("deactivated user's API token", quoted(key(&off_token))),
        ("deleted user's session", token(&gone.api)),
        ("deleted user's API token", quoted(key(&gone_token))),
        ("API token of another workspace", token(&elsewhere.admin)),
        ("session of another workspace", token(&elsewhere.session())),
    ]
}

/// One agent key for each way to become invalid.
async fn invalid_agent_keys(
    here: &Workspace,
    elsewhere: &Workspace,
    own: &Value,
) -> Vec<(&'static str, String)> {
    let with = |id: &Value, key: &Value| credential(&json!({"id": id, "key": key}));
    let (rotated, deleted) = (here.server("rotated").await, here.server("deleted").await);
    here.admin
        .post(&format!("{}rotate-key/", item_path(SERVERS, &rotated)), &json!({"now": true}))
        .await
        .expect(200);
    here.admin.delete(&item_path(SERVERS, &deleted)).await.expect(204);
    let (other, strange) = (here.server("other").await, elsewhere.server("strange").await);
    let wrong = json!("A".repeat(128));
    vec![
        ("unknown agent", with(&json!(UNKNOWN_UUID), &wrong)),
        ("wrong key", with(&own["id"], &wrong)),
        ("key of another server", with(&other["id"], &own["key"])),
        ("key from before a rotation", credential(&rotated)),
        ("agent of a deleted server", credential(&deleted)),
        ("agent of another workspace", credential(&strange)),
        ("another workspace's key with an id from here", with(&own["id"], &strange["key"])),
    ]
}

/// One registration token for each way to become invalid.
async fn invalid_registration_tokens(
    instance: &Instance,
    here: &Workspace,
    elsewhere: &Workspace,
) -> Vec<(&'static str, String)> {
    let make = async |api: &Api, more: Value| {
        let mut body = json!({"name": "hosts"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        api.post(REGISTRATION_TOKENS, &body).await.expect(201)
    };
    let quoted = |made: &Value| format!("token=\"{}\"", key(made));
    let soon = now().plus_seconds(3600);
    let expired = make(&here.admin, json!({"expires_at": soon})).await;
    let then: Timestamp = now().plus_seconds(-3600);
    let id = expired["id"].to_string().replace('"', "'");
    instance.tamper_with_d1(&format!(
        "UPDATE registration_tokens SET expires_at = '{then}' WHERE id = {id};"
    ));
    let (used, deleted) =
        (make(&here.admin, json!({"uses": 1})).await, make(&here.admin, json!({})).await);
    let body = json!({"name": "registered", "platform": "debian"});
    here.anonymous.with_authorization(&quoted(&used)).post(REGISTER, &body).await.expect(201);
    here.admin.delete(&item_path(REGISTRATION_TOKENS, &deleted)).await.expect(204);
    let demoted = Person::staff(here, "demoted").await;
    let by_demoted = make(&demoted.api, json!({})).await;
    demoted.set(here, json!({"is_staff": false})).await;
    let strange = make(&elsewhere.admin, json!({})).await;
    vec![
        ("expired registration token", quoted(&expired)),
        ("registration token that was used up", quoted(&used)),
        ("deleted registration token", quoted(&deleted)),
        ("registration token of a demoted user", quoted(&by_demoted)),
        ("registration token of another workspace", quoted(&strange)),
    ]
}

/// Everything that a superuser can read in a workspace, except when tokens were last used.
async fn everything_in(workspace: &Workspace) -> Vec<String> {
    let lists = [
        USERS,
        GROUPS,
        MEMBERSHIPS,
        SERVERS,
        REGISTRATION_TOKENS,
        COMMANDS,
        SCHEDULES,
        TOKENS,
        SESSIONS,
    ];
    let seen = lists.map(|list| {
        let session = workspace.session();
        async move {
            let mut list = session.get(&format!("{list}?page_size=100")).await.expect(200);
            for item in list["results"].as_array_mut().unwrap() {
                for noted in ["last_used_at", "expires_at", "last_seen_at"] {
                    item.as_object_mut().unwrap().remove(noted);
                }
            }
            list.to_string()
        }
    });
    future::join_all(seen).await
}

#[tokio::test]
async fn each_endpoint_rejects_credentials_of_other_kinds() {
    let (instance, _folder) = Instance::new().await;
    let operator = instance.operator();
    let here = Workspace::create_with(&operator, &unique("t")).await;
    let elsewhere = Workspace::create_with(&operator, &unique("t")).await;
    let (own, leaving) = (here.server("own").await, here.server("leaving").await);
    let registration =
        here.admin.post(REGISTRATION_TOKENS, &json!({"name": "hosts"})).await.expect(201);
    let limited = async |acl: Value| new_token(&here.session(), &json!({"acl": acl})).await;
    let (networked, reading) = (
        limited(json!({"networks": ["192.0.2.0/24"]})).await,
        limited(json!({"read_only": true})).await,
    );

    let mut sent = vec![Credential { kind: "none", what: "none", api: here.anonymous.clone() }];
    let mut add = |kind, credentials: Vec<(&'static str, String)>| {
        sent.extend(credentials.into_iter().map(|(what, header)| Credential {
            kind,
            what,
            api: here.anonymous.with_authorization(&header),
        }));
    };
    let quoted = |key: &str| format!("token=\"{key}\"");
    let bare = here.login_token.clone();
    add(
        "malformed",
        vec![
            ("nonsense", "nonsense".to_owned()),
            ("unquoted", format!("token={bare}")),
            ("in the wrong quotes", format!("token='{bare}'")),
            ("without a scheme", format!("\"{bare}\"")),
            ("empty", quoted("")),
            ("too long", quoted(&"A".repeat(600))),
            ("of another scheme", format!("Basic {bare}")),
            ("agent with an invalid id", "id=\"x\", key=\"y\"".to_owned()),
            ("agent without a key", format!("id={}", own["id"])),
        ],
    );
    add("invalid token", invalid_tokens(&instance, &here, &elsewhere).await);
    add(
        "token of another network",
        vec![("API token of another network", quoted(key(&networked)))],
    );
    add("read-only token", vec![("API token that only reads", quoted(key(&reading)))]);
    add("invalid agent", invalid_agent_keys(&here, &elsewhere, &own).await);
    add(
        "invalid registration token",
        invalid_registration_tokens(&instance, &here, &elsewhere).await,
    );
    add("registration token", vec![("registration token", quoted(key(&registration)))]);
    add(
        "token",
        vec![(
            "API token",
            quoted(here.admin.authorization.as_deref().unwrap().split('"').nth(1).unwrap()),
        )],
    );
    add("agent", vec![("agent", credential(&own))]);
    add("wrong operator", vec![("wrong operator", "Bearer wrong".to_owned())]);
    add("operator", vec![("operator", operator.authorization.clone().unwrap())]);
    for (kind, _) in MATRIX {
        assert!(sent.iter().any(|sent| sent.kind == kind), "{kind}");
    }

    let before = (everything_in(&here).await, everything_in(&elsewhere).await);
    let mut invalid_token_text = None;
    for endpoint @ (method, pattern, access) in all() {
        let is_accepted =
            |sent: &&Credential| expected_outcome(sent.kind, endpoint) == Some(Accepted);
        let request = |sent: &Credential| {
            let path = path_of(pattern, &elsewhere.slug);
            let api = if access == Access::Operator {
                sent.api.with_host("127.0.0.1")
            } else {
                sent.api.clone()
            };
            async move { api.call(method, &path).await }
        };
        if access == Access::Open {
            // Open endpoints ignore the header, so every credential gets the response of an
            // anonymous request. Only valid tokens are left out: a few open endpoints accept them.
            let plain = request(&sent[0]).await;
            let others =
                sent.iter().filter(|sent| !["token", "read-only token"].contains(&sent.kind));
            let others = others.enumerate().map(|(number, sent)| {
                // Password resets are limited per address, so each request has its own.
                let api = sent.api.from_address(&format!("198.51.100.{number}"));
                Credential { api, ..*sent }
            });
            let others: Vec<Credential> = others.collect();
            let replies =
                future::join_all(others.iter().map(async |sent| (sent.what, request(sent).await)))
                    .await;
            for (what, reply) in replies {
                assert_eq!(
                    (reply.status, &reply.text),
                    (plain.status, &plain.text),
                    "{method} {pattern} with {what}"
                );
            }
            continue;
        }
        let refused = sent.iter().filter(|sent| !is_accepted(sent));
        for (sent, reply) in
            future::join_all(refused.map(async |sent| (sent, request(sent).await))).await
        {
            let Some(Outcome::Refused(status, code)) = expected_outcome(sent.kind, endpoint) else {
                unreachable!("every other outcome is an error")
            };
            let what = format!("{method} {pattern} with {}: {}", sent.what, reply.text);
            let code = code.or_else(|| client::code_of(status));
            assert_eq!((reply.status, reply.json()["code"].as_str()), (status, code), "{what}");
            if status == 401 {
                let scheme = match access {
                    Access::Operator => "Bearer ",
                    Access::Agent => "id ",
                    _ => "token ",
                };
                assert!(reply.header("WWW-Authenticate").starts_with(scheme), "{what}");
            }
            if code == Some("INVALID_TOKEN") {
                // The response does not say why the token is invalid, or whether it was ever valid.
                assert_eq!(
                    invalid_token_text.get_or_insert_with(|| reply.text.clone()),
                    &reply.text,
                    "{what}"
                );
            }
        }
    }
    assert_eq!(
        (everything_in(&here).await, everything_in(&elsewhere).await),
        before,
        "a rejected request changed something"
    );

    // Every credential for the endpoint is accepted. Other tests check what the caller may do.
    for endpoint @ (method, pattern, access) in all() {
        for sent in
            sent.iter().filter(|sent| expected_outcome(sent.kind, endpoint) == Some(Accepted))
        {
            let path = path_of(pattern, "nowhere");
            let api = match (sent.kind, pattern) {
                // Logging out would end the token that all other calls use.
                ("token", "/api/auth/logout/") => continue,
                ("agent", "/api/servers/servers/-/unregister/") => {
                    here.anonymous.with_authorization(&credential(&leaving))
                }
                ("operator", _) => sent.api.with_host("127.0.0.1"),
                // The superuser must not change or delete their own account.
                ("token", _)
                    if path.contains("/boss/") || path.contains("/-/") || path.contains("/1/") =>
                {
                    if method != "GET" {
                        continue;
                    }
                    sent.api.clone()
                }
                _ => sent.api.clone(),
            };
            let reply = api.call(method, &path).await;
            let code = serde_json::from_str::<Value>(&reply.text)
                .ok()
                .and_then(|body| body["code"].as_str().map(str::to_owned));
            let refusals = ["INVALID_AUTHORIZATION", "INVALID_TOKEN", "API_TOKEN_ACL_NOT_ALLOWED"];
            let is_refused =
                reply.status == 401 || code.is_some_and(|code| refusals.contains(&code.as_str()));
            assert!(
                !is_refused && reply.status < 500,
                "{method} {path} with {}: {} {}",
                sent.what,
                reply.status,
                reply.text
            );
        }
        // The operator API does not exist under a workspace's host name.
        if access == Access::Operator {
            let api = operator.with_host(&here.anonymous.host);
            api.call(method, &path_of(pattern, &elsewhere.slug)).await.expect_detail(404, None);
        }
    }
    elsewhere.session().get("/api/status/").await.expect(200);
}

/// Method, path, and the expected status for two callers without access to the resource in the
/// path: an ordinary user of the workspace, and a superuser of another workspace, who calls that
/// workspace. The second status is `None` if the path has no id.
type StrangerCase = (&'static str, &'static str, u16, Option<u16>);

#[rustfmt::skip]
const STRANGERS: &[StrangerCase] = &[
    ("GET", "/api/status/", 200, None),
    // These requests use an API token, which cannot log out.
    ("GET", "/api/auth/logout/", 403, None),
    ("POST", "/api/auth/logout/", 403, None),
    ("GET", "/api/auth/sessions/", 200, None),
    ("GET", "/api/auth/sessions/{id}/", 404, Some(404)),
    ("DELETE", "/api/auth/sessions/{id}/", 404, Some(404)),
    ("GET", "/api/auth/tokens/", 200, None),
    ("POST", "/api/auth/tokens/", 201, None),
    ("GET", "/api/auth/tokens/{id}/", 404, Some(404)),
    ("PUT", "/api/auth/tokens/{id}/", 404, Some(404)),
    ("PATCH", "/api/auth/tokens/{id}/", 404, Some(404)),
    ("DELETE", "/api/auth/tokens/{id}/", 404, Some(404)),
    ("POST", "/api/auth/acl-check/", 400, None),
    // The current password in the body is wrong.
    ("POST", "/api/auth/change-password/", 400, None),
    ("GET", "/api/iam/users/", 200, None),
    ("POST", "/api/iam/users/", 403, None),
    // Users cannot change the fields of their own account that are reserved for staff.
    ("GET", "/api/iam/users/-/", 200, None),
    ("PUT", "/api/iam/users/-/", 403, None),
    ("PATCH", "/api/iam/users/-/", 403, None),
    ("DELETE", "/api/iam/users/-/", 403, None),
    ("GET", "/api/iam/users/{id}/", 200, Some(404)),
    ("PUT", "/api/iam/users/{id}/", 403, Some(404)),
    ("PATCH", "/api/iam/users/{id}/", 403, Some(404)),
    ("DELETE", "/api/iam/users/{id}/", 403, Some(404)),
    ("GET", "/api/iam/groups/", 200, None),
    ("POST", "/api/iam/groups/", 403, None),
    ("GET", "/api/iam/groups/{id}/", 404, Some(404)),
    ("PUT", "/api/iam/groups/{id}/", 404, Some(404)),
    ("PATCH", "/api/iam/groups/{id}/", 404, Some(404)),
    ("DELETE", "/api/iam/groups/{id}/", 404, Some(404)),
    ("GET", "/api/iam/memberships/", 200, None),
    ("POST", "/api/iam/memberships/", 400, None),
    ("GET", "/api/iam/memberships/{id}/", 404, Some(404)),
    ("PUT", "/api/iam/memberships/{id}/", 404, Some(404)),
    ("PATCH", "/api/iam/memberships/{id}/", 404, Some(404)),
    ("DELETE", "/api/iam/memberships/{id}/", 404, Some(404)),
    ("GET", "/api/users/users/", 200, None),
    ("POST", "/api/users/users/", 403, None),
    ("GET", "/api/users/users/{username}/", 200, Some(404)),
    ("PUT", "/api/users/users/{username}/", 403, Some(404)),
    ("PATCH", "/api/users/users/{username}/", 403, Some(404)),
    ("DELETE", "/api/users/users/{username}/", 403, Some(404)),
    ("GET", "/api/servers/", 200, None),
    ("POST", "/api/servers/", 403, None),
    ("GET", "/api/servers/servers/", 200, None),
    ("POST", "/api/servers/servers/", 403, None),
    ("GET", "/api/servers/{id}/", 404, Some(404)),
    ("PUT", "/api/servers/{id}/", 404, Some(404)),
    ("PATCH", "/api/servers/{id}/", 404, Some(404)),
    ("DELETE", "/api/servers/{id}/", 404, Some(404)),
    ("GET", "/api/servers/servers/{id}/", 404, Some(404)),
    ("PUT", "/api/servers/servers/{id}/", 404, Some(404)),
    ("PATCH", "/api/servers/servers/{id}/", 404, Some(404)),
    ("DELETE", "/api/servers/servers/{id}/", 404, Some(404)),
    ("POST", "/api/servers/servers/{id}/approve/", 404, Some(404)),
    ("POST", "/api/servers/servers/{id}/rotate-key/", 404, Some(404)),
    ("POST", "/api/servers/servers/{id}/undelete/", 404, Some(404)),
    ("GET", "/api/servers/registration-tokens/", 403, None),
    ("POST", "/api/servers/registration-tokens/", 403, None),
    ("GET", "/api/servers/registration-tokens/{id}/", 403, Some(404)),
    ("DELETE", "/api/servers/registration-tokens/{id}/", 403, Some(404)),
    ("GET", "/api/events/commands/", 200, None),
    ("POST", "/api/events/commands/", 400, None),
    ("GET", "/api/events/commands/{id}/", 404, Some(404)),
    ("DELETE", "/api/events/commands/{id}/", 404, Some(404)),
    ("POST", "/api/events/commands/{id}/cancel/", 404, Some(404)),
    ("POST", "/api/events/commands/{id}/kill/", 404, Some(404)),
    ("GET", "/api/events/commands/{id}/chunks/", 404, Some(404)),
    ("GET", "/api/events/commands/{id}/output/", 404, Some(404)),
    ("GET", "/api/events/commands/{id}/stream/", 404, Some(404)),
    ("GET", "/api/events/batches/", 200, None),
    ("POST", "/api/events/batches/", 400, None),
    ("GET", "/api/events/batches/{id}/", 404, Some(404)),
    ("POST", "/api/events/batches/{id}/cancel/", 404, Some(404)),
    ("POST", "/api/events/batches/{id}/kill/", 404, Some(404)),
    ("POST", "/api/events/batches/{id}/retry-failed/", 404, Some(404)),
    ("GET", "/api/events/batches/{id}/targets/", 404, Some(404)),
    ("GET", "/api/events/batches/{id}/outputs/", 404, Some(404)),
    ("GET", "/api/events/batches/{id}/stream/", 404, Some(404)),
    ("GET", "/api/events/schedules/", 200, None),
    ("POST", "/api/events/schedules/", 400, None),
    ("GET", "/api/events/schedules/{id}/", 404, Some(404)),
    ("PUT", "/api/events/schedules/{id}/", 404, Some(404)),
    ("PATCH", "/api/events/schedules/{id}/", 404, Some(404)),
    ("DELETE", "/api/events/schedules/{id}/", 404, Some(404)),
    ("POST", "/api/events/schedules/{id}/run/", 404, Some(404)),
    ("GET", "/api/events/schedules/{id}/runs/", 404, Some(404)),
    // Every user can read the scripts of the workspace.
    ("GET", "/api/events/scripts/", 200, None),
    ("POST", "/api/events/scripts/", 403, None),
    ("GET", "/api/events/scripts/{id}/", 200, Some(404)),
    ("PUT", "/api/events/scripts/{id}/", 403, Some(404)),
    ("PATCH", "/api/events/scripts/{id}/", 403, Some(404)),
    ("DELETE", "/api/events/scripts/{id}/", 403, Some(404)),
    ("GET", "/api/events/scripts/{id}/versions/", 200, Some(404)),
    ("GET", "/api/events/scripts/{id}/versions/{version}/", 200, Some(404)),
    ("GET", "/api/audit/events/", 403, None),
    ("POST", "/api/audit/verify/", 403, None),
];

/// The ids of one resource of each type, or ids that do not exist.
struct ResourceIds {
    session: Value,
    token: Value,
    user: i64,
    username: String,
    group: i64,
    group_name: String,
    membership: Value,
    server: Value,
    server_name: String,
    registration_token: Value,
    command: Value,
    batch: Value,
    schedule: Value,
    script: Value,
}

impl ResourceIds {
    /// Creates one resource of each type, owned by the superuser.
    async fn of(workspace: &Workspace) -> Self {
        let session = session_of(&workspace.session()).await;
        let token = new_token(&workspace.session(), &json!({})).await;
        // Not the superuser, who has the same name in each workspace.
        let user = Person::new(workspace, &unique("u")).await;
        let server = workspace.server(&unique("web")).await;
        let group = workspace.group(&unique("group"), &[&server]).await;
        let membership = workspace.add_member(&group, &user, "member").await;
        let token_for_hosts =
            workspace.admin.post(REGISTRATION_TOKENS, &json!({"name": "hosts"})).await.expect(201);
        let body = json!({"server": server["id"], "line": "secret", "on_offline": "queue"});
        let command = workspace.admin.post(COMMANDS, &body).await.expect(201);
        let body = json!({"targets": {"servers": [server["id"]]}, "line": "secret", "on_offline": "queue"});
        let batch = workspace.admin.post(BATCHES, &body).await.expect(201);
        let body = json!({"name": "yearly", "cron": "@yearly", "targets": {"all": true}, "line": "secret"});
        let schedule = workspace.admin.post(SCHEDULES, &body).await.expect(201);
        let script = json!({"name": unique("script"), "body": "id"});
        let script = workspace.admin.post("/api/events/scripts/", &script).await.expect(201);
        Self {
            session: session["id"].clone(),
            token: token["id"].clone(),
            user: user.id,
            username: user.username,
            group: group["id"].as_i64().unwrap(),
            group_name: group["name"].as_str().unwrap().to_owned(),
            membership: membership["id"].clone(),
            server: server["id"].clone(),
            server_name: server["name"].as_str().unwrap().to_owned(),
            registration_token: token_for_hosts["id"].clone(),
            command: command["id"].clone(),
            batch: batch["id"].clone(),
            schedule: schedule["id"].clone(),
            script: script["id"].clone(),
        }
    }

    fn nothing() -> Self {
        let none = json!(UNKNOWN_UUID);
        Self {
            session: none.clone(),
            token: none.clone(),
            user: UNKNOWN_ID,
            username: "nobody-here".to_owned(),
            group: UNKNOWN_ID,
            group_name: "no-such-group".to_owned(),
            membership: none.clone(),
            server: none.clone(),
            server_name: "no-such-server".to_owned(),
            registration_token: none.clone(),
            command: none.clone(),
            batch: none.clone(),
            schedule: none.clone(),
            script: none,
        }
    }

    /// A response without the ids that it repeats from the request.
    fn masked(&self, text: &str) -> String {
        text.replace(self.server.as_str().unwrap(), "<server>")
            .replace(&self.server_name, "<name>")
            .replace(&format!(": {}.", self.group), ": <group>.")
    }

    /// Replaces the placeholder in a path with the id of the right type.
    fn in_path(&self, pattern: &str) -> String {
        let uuid = |id: &Value| id.as_str().unwrap().to_owned();
        let id = match pattern.split('/').collect::<Vec<_>>()[2..4] {
            ["auth", "sessions"] => uuid(&self.session),
            ["auth", "tokens"] => uuid(&self.token),
            ["iam", "users"] => self.user.to_string(),
            ["iam", "groups"] => self.group.to_string(),
            ["iam", "memberships"] => uuid(&self.membership),
            ["servers", "servers" | "{id}"] => uuid(&self.server),
            ["servers", "registration-tokens"] => uuid(&self.registration_token),
            ["events", "commands"] => uuid(&self.command),
            ["events", "batches"] => uuid(&self.batch),
            ["events", "schedules"] => uuid(&self.schedule),
            ["events", "scripts"] => uuid(&self.script),
            _ if !pattern.contains("{id}") => String::new(),
            _ => panic!("{pattern} has an id of an unknown type"),
        };
        let path = pattern.replace("{id}", &id).replace("{username}", &self.username);
        path.replace("{version}", "1")
    }

    /// A body that the endpoint would accept from a caller with the permission. It contains only
    /// fields that the endpoint knows.
    fn body(&self, method: &str, pattern: &str) -> Value {
        let name = unique("n").replace('-', "");
        let operation = &DOCUMENT["paths"][pattern][method.to_lowercase()];
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let pointer = schema["$ref"].as_str().map_or("", |reference| &reference[1..]);
        let known = DOCUMENT.pointer(pointer).map_or(&Value::Null, |schema| &schema["properties"]);
        let mut body = json!({
            "name": name, "expires_at": null, "enabled": true, "role": "member", "line": "id", "on_offline": "queue",
            "username": name, "email": format!("{name}@example.com"), "password": "an entirely other one",
            "new_password": "an entirely new one", "body": "id", "server": self.server, "group": self.group, "user": self.user,
            "targets": {"servers": [self.server]},
        });
        body.as_object_mut().unwrap().retain(|field, _| known.get(field).is_some());
        body
    }
}

/// The code of the error that callers without access get with a status.
fn code_of(pattern: &str, status: u16) -> Option<&'static str> {
    match status {
        403 => Some("PERMISSION_DENIED"),
        404 if pattern.starts_with(COMMANDS) => Some("COMMAND_NOT_FOUND"),
        400 if pattern.starts_with(COMMANDS) => Some("INVALID_COMMAND"),
        _ => client::code_of(status),
    }
}

#[tokio::test]
async fn an_id_without_access_looks_like_an_unknown_id() {
    let (here, elsewhere) = (Workspace::new().await, Workspace::new().await);
    here.skip_ids().await;
    let (things, nothing) = (ResourceIds::of(&here).await, ResourceIds::nothing());
    let ordinary = Person::new(&here, "ordinary").await;
    let ordinary = here.anonymous.with_token(key(&new_token(&ordinary.api, &json!({})).await));
    let stranger = elsewhere.admin.clone();
    let for_users =
        all().filter(|(_, _, access)| matches!(access, Access::User | Access::UserOrAgent));
    let mut for_users: Vec<_> = for_users.map(|(method, pattern, _)| (method, pattern)).collect();
    let mut covered: Vec<_> =
        STRANGERS.iter().map(|(method, pattern, ..)| (*method, *pattern)).collect();
    for_users.sort_unstable();
    covered.sort_unstable();
    assert_eq!(for_users, covered);

    let before = (everything_in(&here).await, everything_in(&elsewhere).await);
    let clients = [None, Some(alpacon::CLI), Some(alpacon::MCP)];
    let cases = STRANGERS.iter().flat_map(|case| clients.map(|client| (*case, client)));
    for ((method, pattern, of_ordinary, of_stranger), user_agent) in cases {
        // In the dialect, the client may forget an API token, which stays valid.
        let is_logout = (method, pattern) == ("POST", "/api/auth/logout/");
        let of_ordinary = if is_logout && user_agent.is_some() { 200 } else { of_ordinary };
        let ordinary = ordinary.with_user_agent(user_agent);
        let stranger = stranger.with_user_agent(user_agent);
        assert_eq!(pattern.contains('{'), of_stranger.is_some(), "{method} {pattern}");
        let send = async |api: &Api, things: &ResourceIds| {
            let path = things.in_path(pattern);
            if method == "GET" {
                api.get(&path).await
            } else {
                api.send_json(method, &path, &things.body(method, pattern)).await
            }
        };
        for (who, api, status) in
            [("ordinary", &ordinary, Some(of_ordinary)), ("stranger", &stranger, of_stranger)]
        {
            let Some(status) = status else { continue };
            let reply = send(api, &things).await;
            let what = format!("{who} with {user_agent:?}: {method} {pattern}: {}", reply.text);
            assert_eq!(reply.status, status, "{what}");
            if status >= 400 {
                assert_eq!(reply.json()["code"].as_str(), code_of(pattern, status), "{what}");
            }
            // Every user may know which users and scripts exist in their workspace.
            let is_public = pattern.contains("/users/") || pattern.contains("/scripts/");
            let is_seen = who == "ordinary" && is_public;
            if status >= 400 && !is_seen {
                let of_nothing = send(api, &nothing).await;
                let text_of_nothing = nothing.masked(&of_nothing.text);
                let text = things.masked(&reply.text);
                assert_eq!((of_nothing.status, text_of_nothing), (status, text), "{what}");
            }
        }
    }
    assert_eq!((everything_in(&here).await, everything_in(&elsewhere).await), before);
}

/// A request with an id outside its path: a description, the expected status, and the request.
type BodyOrQueryCase<'a> =
    (&'a str, u16, Box<dyn Fn(&ResourceIds) -> (&'static str, String, Value) + 'a>);

fn case<'a>(
    what: &'a str,
    status: u16,
    request: impl Fn(&ResourceIds) -> (&'static str, String, Value) + 'a,
) -> BodyOrQueryCase<'a> {
    (what, status, Box::new(request))
}

/// Asserts that requests with real ids and with unknown ids get equal responses with the expected
/// status, and that lists are empty.
async fn assert_ids_reveal_nothing(
    who: &str,
    api: &Api,
    things: &ResourceIds,
    rows: &[BodyOrQueryCase<'_>],
) {
    let send = async |things: &ResourceIds,
                      request: &dyn Fn(&ResourceIds) -> (&'static str, String, Value)|
           -> Reply {
        let (method, path, body) = request(things);
        if body.is_null() {
            api.call(method, &path).await
        } else {
            api.send_json(method, &path, &body).await
        }
    };
    for (what, status, request) in rows {
        let (reply, of_nothing) =
            (send(things, request).await, send(&ResourceIds::nothing(), request).await);
        let what = format!("{who}: {what}: {}", reply.text);
        assert_eq!((reply.status, of_nothing.status), (*status, *status), "{what}");
        let text_of_nothing = ResourceIds::nothing().masked(&of_nothing.text);
        assert_eq!(things.masked(&reply.text), text_of_nothing, "{what}");
        if *status == 200 {
            assert_eq!(reply.json()["count"], 0, "{what}");
        }
    }
}

/// Requests with ids of servers, groups and commands that the caller has no access to.
fn cases_of_any_caller<'a>() -> Vec<BodyOrQueryCase<'a>> {
    let get = |path: String| ("GET", path, Value::Null);
    let text = |id: &Value| id.as_str().unwrap().to_owned();
    vec![
        case("a command for its id", 400, |it| {
            (
                "POST",
                COMMANDS.to_owned(),
                json!({"server": it.server, "line": "id", "on_offline": "queue"}),
            )
        }),
        case("a command for its name", 400, |it| {
            (
                "POST",
                COMMANDS.to_owned(),
                json!({"server": it.server_name, "line": "id", "on_offline": "queue"}),
            )
        }),
        case("a batch for its id", 400, |it| {
            let targets = json!({"servers": [it.server]});
            ("POST", BATCHES.to_owned(), json!({"targets": targets, "line": "id"}))
        }),
        case("a batch for its name", 400, |it| {
            let targets = json!({"servers": [it.server_name]});
            ("POST", BATCHES.to_owned(), json!({"targets": targets, "line": "id"}))
        }),
        case("a batch for its group", 400, |it| {
            let targets = json!({"groups": [it.group]});
            ("POST", BATCHES.to_owned(), json!({"targets": targets, "line": "id"}))
        }),
        case("commands of its batch", 200, move |it| {
            get(format!("{COMMANDS}?batch={}", text(&it.batch)))
        }),
        case("a membership in its group", 400, |it| {
            (
                "POST",
                MEMBERSHIPS.to_owned(),
                json!({"group": it.group, "user": 1, "role": "member"}),
            )
        }),
        case("commands of its server", 200, move |it| {
            get(format!("{COMMANDS}?server={}", text(&it.server)))
        }),
        case("commands that name it", 200, move |it| {
            get(format!("{COMMANDS}?search={}", it.server_name))
        }),
        case("memberships of its group", 200, move |it| {
            get(format!("{MEMBERSHIPS}?group={}", it.group))
        }),
        case("memberships of its user", 200, move |it| {
            get(format!("{MEMBERSHIPS}?user={}", it.user))
        }),
        case("servers of its name", 200, move |it| {
            get(format!("{SERVERS}?name={}", it.server_name))
        }),
        case("servers like it", 200, move |it| {
            get(format!("/api/servers/?search={}", it.server_name))
        }),
        case("groups of its name", 200, move |it| get(format!("{GROUPS}?name={}", it.group_name))),
        case("groups like it", 200, move |it| get(format!("{GROUPS}?search={}", it.group_name))),
    ]
}

#[tokio::test]
async fn ids_in_bodies_and_queries_reveal_nothing() {
    let (here, elsewhere) = (Workspace::new().await, Workspace::new().await);
    here.skip_ids().await;
    let (things, own) = (ResourceIds::of(&here).await, ResourceIds::of(&elsewhere).await);
    let ordinary = Person::new(&here, "ordinary").await;
    let stranger = &elsewhere.admin;
    let before = (everything_in(&here).await, everything_in(&elsewhere).await);
    let anybody = cases_of_any_caller();
    assert_ids_reveal_nothing("ordinary", &ordinary.api, &things, &anybody).await;
    assert_ids_reveal_nothing("stranger", stranger, &things, &anybody).await;

    let own_server = format!("{SERVERS}{}/", own.server.as_str().unwrap());
    let own_group = group_path(&json!({"id": own.group}));
    let get = |path: String| ("GET", path, Value::Null);
    let of_another_workspace = [
        case("a server in its group", 400, |it| {
            ("POST", SERVERS.to_owned(), json!({"name": "x", "groups": [it.group]}))
        }),
        case("a server into its group", 400, |it| {
            ("PATCH", own_server.clone(), json!({"groups": [it.group]}))
        }),
        case("a server replaced in its group", 400, |it| {
            ("PUT", own_server.clone(), json!({"name": "x", "groups": [own.group, it.group]}))
        }),
        case("a group with its server", 400, |it| {
            ("POST", GROUPS.to_owned(), json!({"name": "x", "servers": [it.server]}))
        }),
        case("its server into a group", 400, |it| {
            ("PATCH", own_group.clone(), json!({"servers": [it.server]}))
        }),
        case("a group replaced with its server", 400, |it| {
            ("PUT", own_group.clone(), json!({"name": "x", "servers": [own.server, it.server]}))
        }),
        case("its user into a group", 400, |it| {
            (
                "POST",
                MEMBERSHIPS.to_owned(),
                json!({"group": own.group, "user": it.user, "role": "member"}),
            )
        }),
        case("its hosts", 400, |it| {
            ("POST", REGISTRATION_TOKENS.to_owned(), json!({"name": "x", "groups": [it.group]}))
        }),
        case("commands of its user", 200, |it| get(format!("{COMMANDS}?requested_by={}", it.user))),
        case("users of its name", 200, |it| get(format!("{USERS}?username={}", it.username))),
        case("users like it", 200, |it| get(format!("/api/users/users/?search={}", it.username))),
    ];
    assert_ids_reveal_nothing("stranger", stranger, &things, &of_another_workspace).await;
    assert_eq!((everything_in(&here).await, everything_in(&elsewhere).await), before);

    // Naming a server in a token's list gives no access to it.
    for (who, owner, anonymous) in [
        ("ordinary", &ordinary.api, &here.anonymous),
        ("stranger", &elsewhere.session(), &elsewhere.anonymous),
    ] {
        let listed = async |server: &Value| {
            let made = new_token(owner, &json!({"acl": {"servers": [server]}})).await;
            let token = anonymous.with_token(key(&made));
            let run = json!({"server": server, "line": "id", "on_offline": "queue"});
            let path = format!("{SERVERS}{}/", server.as_str().unwrap());
            let lists = [SERVERS.to_owned(), COMMANDS.to_owned(), path];
            let mut replies = future::join_all(lists.iter().map(|list| token.get(list))).await;
            replies.push(token.post(COMMANDS, &run).await);
            replies.into_iter().map(|reply| (reply.status, reply.text)).collect::<Vec<_>>()
        };
        let (of_thing, of_nothing) =
            (listed(&things.server).await, listed(&json!(UNKNOWN_UUID)).await);
        assert_eq!(
            of_thing.iter().map(|(status, _)| *status).collect::<Vec<_>>(),
            [200, 200, 404, 403],
            "{who}"
        );
        assert_eq!(of_thing, of_nothing, "{who}");
    }
}

/// Creates a user, a group that they own with a server in it, and a queued command of the user.
/// Both workspaces use the same names.
async fn create_twin(workspace: &Workspace) -> (Person, Value) {
    let person = Person::new(workspace, "twin").await;
    let group = workspace.group("twins", &[&workspace.server("web-1").await]).await;
    workspace.add_member(&group, &person, "owner").await;
    let body = json!({"server": "web-1", "line": "true", "on_offline": "queue"});
    person.api.post(COMMANDS, &body).await.expect(201);
    (person, group)
}

#[tokio::test]
async fn equal_numbers_in_two_workspaces_are_independent() {
    let (here, elsewhere) = (Workspace::new().await, Workspace::new().await);
    let ((person, group), (twin, twins)) =
        (create_twin(&here).await, create_twin(&elsewhere).await);
    assert_eq!(
        (&person.id, &group["id"]),
        (&twin.id, &twins["id"]),
        "both workspaces use the same numbers"
    );
    let token = new_token(&twin.api, &json!({})).await;
    let twin_by_token = elsewhere.anonymous.with_token(key(&token));
    let before = everything_in(&elsewhere).await;

    // Every change to a user and a group that addresses them by number.
    let path = group_path(&group);
    here.admin.patch(&path, &json!({"display_name": "Other", "servers": []})).await.expect(200);
    person
        .set(&here, json!({"email": "other@example.com", "first_name": "Other", "is_staff": true}))
        .await;
    here.admin
        .put("/api/users/users/twin/", &json!({"password": "an entirely other one"}))
        .await
        .expect(200);
    person.set(&here, json!({"is_active": false})).await;
    here.admin.delete(&path).await.expect(204);
    here.admin.delete(&person.path()).await.expect(204);

    assert_eq!(everything_in(&elsewhere).await, before);
    for api in [&twin.api, &twin_by_token] {
        api.get("/api/status/").await.expect(200);
        assert_eq!(api.get(COMMANDS).await.expect(200)["count"], 1);
    }
    elsewhere.anonymous.logged_in("twin", PASSWORD).await.get(SERVERS).await.expect(200);
    let mine = format!("{COMMANDS}?requested_by={}", twin.id);
    assert_eq!(elsewhere.admin.get(&mine).await.expect(200)["count"], 1);
}
