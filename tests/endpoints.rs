//! Every endpoint with every kind of bad credential; and that this is every endpoint.

use farhand_tests::Workspace;
use farhand_tests::agents::credential;

use crate::routes::{self, Access};

const ID: &str = "01936d3e-7a00-7000-8000-000000000000";

/// All that is served: the method, the path, and whom it is for.
pub const ALL: &[(&str, &str, Access)] = &[
    ("GET", "/healthz", Access::Open),
    ("GET", "/reset-password/", Access::Open),
    ("GET", "/reset-password/page.css", Access::Open),
    ("GET", "/reset-password/page.js", Access::Open),
    ("GET", "/operator/workspaces/", Access::Operator),
    ("POST", "/operator/workspaces/", Access::Operator),
    ("DELETE", "/operator/workspaces/{slug}/", Access::Operator),
    ("GET", "/api/status/", Access::User),
    ("GET", "/api/schema/", Access::Open),
    ("POST", "/api/auth/login/", Access::Open),
    ("GET", "/api/auth/is-authenticated/", Access::Open),
    ("GET", "/api/auth/logout/", Access::User),
    ("POST", "/api/auth/logout/", Access::User),
    ("GET", "/api/auth/sessions/", Access::User),
    ("GET", "/api/auth/sessions/{id}/", Access::User),
    ("DELETE", "/api/auth/sessions/{id}/", Access::User),
    ("GET", "/api/auth/tokens/", Access::User),
    ("POST", "/api/auth/tokens/", Access::User),
    ("GET", "/api/auth/tokens/{id}/", Access::User),
    ("PUT", "/api/auth/tokens/{id}/", Access::User),
    ("PATCH", "/api/auth/tokens/{id}/", Access::User),
    ("DELETE", "/api/auth/tokens/{id}/", Access::User),
    ("POST", "/api/auth/change-password/", Access::User),
    ("POST", "/api/auth/reset-password/", Access::Open),
    ("GET", "/api/auth/reset-password/confirm/{key}/", Access::Open),
    ("POST", "/api/auth/reset-password/confirm/{key}/", Access::Open),
    ("GET", "/api/iam/users/", Access::User),
    ("POST", "/api/iam/users/", Access::User),
    ("GET", "/api/iam/users/-/", Access::User),
    ("PUT", "/api/iam/users/-/", Access::User),
    ("PATCH", "/api/iam/users/-/", Access::User),
    ("DELETE", "/api/iam/users/-/", Access::User),
    ("GET", "/api/iam/users/{id}/", Access::User),
    ("PUT", "/api/iam/users/{id}/", Access::User),
    ("PATCH", "/api/iam/users/{id}/", Access::User),
    ("DELETE", "/api/iam/users/{id}/", Access::User),
    ("GET", "/api/iam/groups/", Access::User),
    ("POST", "/api/iam/groups/", Access::User),
    ("GET", "/api/iam/groups/{id}/", Access::User),
    ("PUT", "/api/iam/groups/{id}/", Access::User),
    ("PATCH", "/api/iam/groups/{id}/", Access::User),
    ("DELETE", "/api/iam/groups/{id}/", Access::User),
    ("GET", "/api/iam/memberships/", Access::User),
    ("POST", "/api/iam/memberships/", Access::User),
    ("GET", "/api/iam/memberships/{id}/", Access::User),
    ("PUT", "/api/iam/memberships/{id}/", Access::User),
    ("PATCH", "/api/iam/memberships/{id}/", Access::User),
    ("DELETE", "/api/iam/memberships/{id}/", Access::User),
    ("GET", "/api/users/users/", Access::User),
    ("POST", "/api/users/users/", Access::User),
    ("GET", "/api/users/users/{username}/", Access::User),
    ("PUT", "/api/users/users/{username}/", Access::User),
    ("PATCH", "/api/users/users/{username}/", Access::User),
    ("DELETE", "/api/users/users/{username}/", Access::User),
    ("GET", "/api/servers/", Access::User),
    ("POST", "/api/servers/", Access::User),
    ("GET", "/api/servers/servers/", Access::User),
    ("POST", "/api/servers/servers/", Access::User),
    ("POST", "/api/servers/servers/register/", Access::Registration),
    ("GET", "/api/servers/servers/{id}/", Access::UserOrAgent),
    ("PUT", "/api/servers/servers/{id}/", Access::UserOrAgent),
    ("PATCH", "/api/servers/servers/{id}/", Access::UserOrAgent),
    ("DELETE", "/api/servers/servers/{id}/", Access::UserOrAgent),
    ("POST", "/api/servers/servers/{id}/rotate-key/", Access::User),
    ("GET", "/api/servers/registration-tokens/", Access::User),
    ("POST", "/api/servers/registration-tokens/", Access::User),
    ("GET", "/api/servers/registration-tokens/{id}/", Access::User),
    ("DELETE", "/api/servers/registration-tokens/{id}/", Access::User),
    ("GET", "/api/events/commands/", Access::User),
    ("POST", "/api/events/commands/", Access::User),
    ("GET", "/api/events/commands/{id}/", Access::User),
    ("DELETE", "/api/events/commands/{id}/", Access::User),
    ("POST", "/api/events/commands/{id}/cancel/", Access::User),
    ("POST", "/api/events/commands/{id}/kill/", Access::User),
    ("GET", "/api/events/commands/{id}/chunks/", Access::User),
    ("GET", "/api/events/commands/{id}/stream/", Access::User),
    ("POST", "/api/events/commands/{id}/ack/", Access::Agent),
    ("POST", "/api/events/commands/{id}/chunk/", Access::Agent),
    ("POST", "/api/events/commands/{id}/fin/", Access::Agent),
    ("POST", "/api/events/commands/{id}/reject/", Access::Agent),
    ("POST", "/api/events/events/", Access::Agent),
    ("PUT", "/api/servers/servers/-/commit/", Access::Agent),
    ("PATCH", "/api/servers/servers/-/sync/", Access::Agent),
    ("POST", "/api/servers/servers/-/sync-check/", Access::Agent),
    ("PATCH", "/api/servers/servers/-/status/", Access::Agent),
    ("DELETE", "/api/servers/servers/{id}/unregister/", Access::Agent),
    ("DELETE", "/api/servers/servers/-/unregister/", Access::Agent),
    ("GET", "/api/metrics/config/", Access::Agent),
    ("GET", "/api/proc/{*rest}", Access::Agent),
    ("POST", "/api/proc/{*rest}", Access::Agent),
    ("PUT", "/api/proc/{*rest}", Access::Agent),
    ("PATCH", "/api/proc/{*rest}", Access::Agent),
    ("DELETE", "/api/proc/{*rest}", Access::Agent),
    ("GET", "/api/history/{*rest}", Access::Agent),
    ("POST", "/api/history/{*rest}", Access::Agent),
    ("PUT", "/api/history/{*rest}", Access::Agent),
    ("PATCH", "/api/history/{*rest}", Access::Agent),
    ("DELETE", "/api/history/{*rest}", Access::Agent),
    ("GET", "/api/metrics/{*rest}", Access::Agent),
    ("POST", "/api/metrics/{*rest}", Access::Agent),
    ("PUT", "/api/metrics/{*rest}", Access::Agent),
    ("PATCH", "/api/metrics/{*rest}", Access::Agent),
    ("DELETE", "/api/metrics/{*rest}", Access::Agent),
    ("GET", "/api/servers/servers/-/{*rest}", Access::Agent),
    ("POST", "/api/servers/servers/-/{*rest}", Access::Agent),
    ("PUT", "/api/servers/servers/-/{*rest}", Access::Agent),
    ("PATCH", "/api/servers/servers/-/{*rest}", Access::Agent),
    ("DELETE", "/api/servers/servers/-/{*rest}", Access::Agent),
    ("GET", "/ws/servers/backhaul/", Access::Agent),
    ("GET", "/ws/servers/control/", Access::Agent),
];

#[test]
fn the_table_is_the_workers_own() {
    let served = routes::TABLE
        .iter()
        .flat_map(|route| route.methods.iter().map(|(method, _)| (*method, route.path, route.access)));
    assert_eq!(served.collect::<Vec<_>>(), ALL);
}

pub fn path_of(pattern: &str, slug: &str) -> String {
    let is_numbered = ["/api/iam/users/", "/api/iam/groups/"].iter().any(|path| pattern.starts_with(path));
    let id = if is_numbered { "1" } else { ID };
    let values =
        [("{id}", id), ("{slug}", slug), ("{*rest}", "some/where/"), ("{key}", "unknown"), ("{username}", "boss")];
    values.into_iter().fold(pattern.to_owned(), |path, (name, value)| path.replace(name, value))
}

#[tokio::test]
async fn every_endpoint_refuses_every_bad_credential() {
    let (workspace, other) = (Workspace::new().await, Workspace::new().await);
    let other_user = other.admin.authorization.clone().unwrap();
    let other_session = other.session().authorization.unwrap();
    let other_agent = credential(&other.server("web-1").await);
    let own_agent = credential(&workspace.server("web-1").await);
    let own_user = workspace.admin.authorization.clone().unwrap();
    let unknown_user = format!("token=\"{}\"", "A".repeat(128));
    let unknown_agent = format!("id=\"{ID}\", key=\"{}\"", "A".repeat(128));
    let wrong_key = format!("{}, key=\"{}\"", own_agent.split(',').next().unwrap(), "A".repeat(128));
    let (dead, malformed) = (Some("INVALID_TOKEN"), Some("INVALID_AUTHORIZATION"));

    for (method, pattern, access) in ALL {
        let path = path_of(pattern, &other.slug);
        let api = match access {
            Access::Operator => workspace.anonymous.under("127.0.0.1"),
            _ => workspace.anonymous.clone(),
        };
        let refused = async |authorization: &str, code: Option<&str>| {
            let reply = api.with(authorization).call(method, &path).await;
            assert_eq!(reply.status, 403, "{method} {path} with {authorization}: {}", reply.text);
            assert_eq!(reply.json()["code"].as_str(), code, "{method} {path} with {authorization}");
        };
        let anonymous = api.call(method, &path).await;
        match access {
            Access::Open => {
                // Nothing is asked of the header, so a bad one changes nothing.
                for bad in ["nonsense", unknown_user.as_str(), own_agent.as_str()] {
                    let reply = api.with(bad).call(method, &path).await;
                    assert_eq!((reply.status, &reply.text), (anonymous.status, &anonymous.text), "{method} {path}");
                }
                continue;
            }
            // spec.md: logout and change-password are 403 where it is not authenticated.
            _ if ["/api/auth/logout/", "/api/auth/change-password/"].contains(&path.as_str()) => {
                anonymous.expect_detail(403, malformed);
            }
            _ => {
                anonymous.expect_detail(401, None);
                let scheme = match access {
                    Access::Operator => "Bearer ",
                    Access::Agent => "id ",
                    _ => "token ",
                };
                assert!(anonymous.header("WWW-Authenticate").starts_with(scheme), "{method} {path}");
            }
        }
        // An empty header does not get here: workerd drops it, and the request has none.
        for bad in ["nonsense", "token=unquoted", "Basic eDp5", "id=\"x\", key=\"y\""] {
            refused(bad, malformed).await;
        }
        let is_user = matches!(access, Access::User | Access::UserOrAgent | Access::Registration);
        let is_agent = matches!(access, Access::Agent | Access::UserOrAgent);
        for user in [&unknown_user, &other_user, &other_session] {
            refused(user, if is_user { dead } else { malformed }).await;
        }
        for agent in [&unknown_agent, &other_agent, &wrong_key] {
            refused(agent, if is_agent { dead } else { malformed }).await;
        }
        if !is_user {
            refused(&own_user, malformed).await;
        } else if *access == Access::Registration {
            refused(&own_user, dead).await;
        }
        if !is_agent {
            refused(&own_agent, malformed).await;
        }
        let wrong_operator = if *access == Access::Operator { dead } else { malformed };
        refused("Bearer wrong", wrong_operator).await;
    }
    // None of it did anything: nothing was made, and the workspace that was to be deleted is there.
    assert_eq!(workspace.admin.get("/api/servers/").await.expect(200)["count"], 1);
    other.session().get("/api/status/").await.expect(200);
}
