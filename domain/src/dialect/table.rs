//! The table of the dialect: one row for each endpoint that differs from the native API.

use std::sync::LazyLock;

use matchit::Router;

use super::body::Rule::{
    AllowedGroups, Groupname, Id, Ids, Ignored, IgnoredIfEmpty, Servers as ServerIds,
};
use super::body::Rules;
use super::reply::Shape::{self, AuditEvent, Command, Fixed, Group, Membership, NewCommand};
use super::reply::Shape::{RegistrationToken, Same, Server, User};

/// How the dialect serves an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handling {
    /// One native request, to the same path and method.
    Same,
    /// One native request, to this method and path. The path has no parameters.
    Native(&'static str, &'static str),
    /// Code of its own, in the Worker's `src/dialect/`.
    Steps(Steps),
}

/// Endpoints that need more than one native request, or whose native request depends on the
/// parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steps {
    /// A built-in command of an agent.
    Action,
    /// One command; with `page_size` the commands of a server or a user.
    CommandOrList,
    /// The commands of a user on a server.
    CommandList,
    /// The chunks of a command, up to `seq__lte`.
    Chunks,
    /// Memberships; without `page` all of them, as an array.
    Memberships,
    /// A copy of an API token.
    DuplicateToken,
    /// The allowed commands of API tokens.
    CommandAclList,
    CommandAclAdd,
    CommandAclDelete,
    /// The allowed servers of API tokens.
    ServerAclList,
    ServerAclAdd,
    ServerAclAddMany,
    ServerAclDelete,
    ServerAclDeleteMany,
    /// How to register a host.
    RegistrationGuide,
    /// The audit log, with a cursor instead of page numbers.
    Activity,
    /// Opens a channel for live events.
    OpenChannel,
    /// Subscribes a channel to events.
    Subscribe,
    /// The WebSocket of a channel.
    ChannelSocket,
}

/// A row of the table.
pub struct DialectRow {
    /// The method. A row of GET also serves HEAD.
    pub method: &'static str,
    /// The path, with parameters in braces.
    pub path: &'static str,
    /// What serves the row.
    pub plan: Handling,
    /// What happens to the fields of the body.
    pub body: Rules,
    /// What the response shows.
    pub reply: Shape,
    /// Whether a token with an access control list is refused, even if the native endpoint accepts
    /// it.
    pub refuses_limited_tokens: bool,
}

const fn row(method: &'static str, path: &'static str) -> DialectRow {
    DialectRow {
        method,
        path,
        plan: Handling::Same,
        body: &[],
        reply: Same,
        refuses_limited_tokens: false,
    }
}

impl DialectRow {
    const fn at(self, method: &'static str, path: &'static str) -> Self {
        Self { plan: Handling::Native(method, path), ..self }
    }

    const fn by(self, steps: Steps) -> Self {
        Self { plan: Handling::Steps(steps), ..self }
    }

    const fn body(self, body: Rules) -> Self {
        Self { body, ..self }
    }

    const fn shows(self, reply: Shape) -> Self {
        Self { reply, ..self }
    }

    const fn refusing_limited_tokens(self) -> Self {
        Self { refuses_limited_tokens: true, ..self }
    }
}

const ENVIRONMENT: &str = r#"{"auth0":{"method":"legacy"},"language":"en"}"#;
const SCOPES: &str = r#"{"resources":[],"wildcards":["*"]}"#;
const PREFERENCES: &str = r#"{"language":"en","timezone":"UTC"}"#;
const ACCESS_CONTROL: &str = r#"{"mfa_required":false}"#;
const HAS_USERNAME: &str =
    r#"{"code":"user_username_already_set","detail":"Every user has a username already."}"#;

const USER: Rules = &[
    (Ignored, &["phone", "tags", "description", "shell", "home_directory", "uid", "num_groups"]),
    (IgnoredIfEmpty, &["is_ldap_user"]),
];
const GROUP: Rules = &[
    (Ignored, &["tags", "gid", "members_names"]),
    (IgnoredIfEmpty, &["is_ldap_group"]),
    (ServerIds, &["servers"]),
];
const MEMBERSHIP: Rules = &[(Ignored, &["group_name"]), (Id, &["group", "user"])];
const SERVER: Rules = &[
    (
        Ignored,
        &["status", "commissioned", "starred", "cpu_physical_cores", "cpu_type", "boot_time"],
    ),
    (Id, &["owner"]),
    (Ids, &["groups"]),
];
const TOKEN: Rules = &[(IgnoredIfEmpty, &["scopes"])];
const NEW_COMMAND: Rules = &[
    // A description, and the offer to answer a question about it.
    (Ignored, &["purpose", "purpose_demand_supported"]),
    (IgnoredIfEmpty, &["username", "env", "data", "run_after", "work_session"]),
    (Groupname, &["groupname"]),
];
const NEW_REGISTRATION_TOKEN: Rules =
    &[(Ignored, &["description"]), (AllowedGroups, &["allowed_groups"])];

/// All rows. A path that is not in the table is served by the native API as it is.
#[rustfmt::skip]
pub const TABLE: &[DialectRow] = &[
    row("GET", "/api/auth/env/").at("GET", "/api/auth/is-authenticated/").shows(Fixed(200, ENVIRONMENT)),
    row("POST", "/api/auth/login/").body(&[(Ignored, &["workspace_url"])]),
    row("POST", "/api/auth/logout/").shows(Shape::Logout),
    row("GET", "/api/auth/tokens/"),
    row("POST", "/api/auth/tokens/").body(TOKEN),
    row("GET", "/api/auth/tokens/scopes/").at("GET", "/api/auth/tokens/").shows(Fixed(200, SCOPES)),
    row("PUT", "/api/auth/tokens/{id}/").body(TOKEN),
    row("PATCH", "/api/auth/tokens/{id}/").body(TOKEN),
    row("POST", "/api/auth/tokens/{id}/duplicate/").by(Steps::DuplicateToken),
    row("GET", "/api/security/command-acl/").by(Steps::CommandAclList),
    row("POST", "/api/security/command-acl/").by(Steps::CommandAclAdd),
    row("DELETE", "/api/security/command-acl/{id}/").by(Steps::CommandAclDelete),
    row("GET", "/api/security/server-acl/").by(Steps::ServerAclList),
    row("POST", "/api/security/server-acl/").by(Steps::ServerAclAdd),
    row("POST", "/api/security/server-acl/bulk/").by(Steps::ServerAclAddMany),
    row("POST", "/api/security/server-acl/bulk/delete/").by(Steps::ServerAclDeleteMany),
    row("DELETE", "/api/security/server-acl/{id}/").by(Steps::ServerAclDelete),

    row("GET", "/api/iam/users/").shows(User),
    row("POST", "/api/iam/users/").body(USER).shows(User),
    row("GET", "/api/iam/users/{id}/").shows(User),
    row("PUT", "/api/iam/users/{id}/").body(USER).shows(User),
    row("PATCH", "/api/iam/users/{id}/").body(USER).shows(User),
    row("POST", "/api/iam/username/").at("GET", "/api/iam/users/-/").shows(Fixed(400, HAS_USERNAME)),
    row("GET", "/api/iam/groups/").shows(Group),
    row("POST", "/api/iam/groups/").body(GROUP).shows(Group),
    row("GET", "/api/iam/groups/{id}/").shows(Group),
    row("PUT", "/api/iam/groups/{id}/").body(GROUP).shows(Group),
    row("PATCH", "/api/iam/groups/{id}/").body(GROUP).shows(Group),
    row("GET", "/api/iam/memberships/").by(Steps::Memberships).shows(Membership),
    row("POST", "/api/iam/memberships/").body(MEMBERSHIP).shows(Membership),
    row("GET", "/api/iam/memberships/{id}/").shows(Membership),
    row("PUT", "/api/iam/memberships/{id}/").body(MEMBERSHIP).shows(Membership),
    row("PATCH", "/api/iam/memberships/{id}/").body(MEMBERSHIP).shows(Membership),

    row("GET", "/api/servers/servers/").shows(Server),
    row("POST", "/api/servers/servers/").body(SERVER).shows(Server),
    row("GET", "/api/servers/servers/{id}/").shows(Server),
    row("PUT", "/api/servers/servers/{id}/").body(SERVER).shows(Server),
    row("PATCH", "/api/servers/servers/{id}/").body(SERVER).shows(Server),
    row("POST", "/api/servers/servers/{id}/actions/").by(Steps::Action).refusing_limited_tokens(),
    row("GET", "/api/servers/registration-tokens/").shows(RegistrationToken),
    row("POST", "/api/servers/registration-tokens/").body(NEW_REGISTRATION_TOKEN).shows(RegistrationToken),
    row("GET", "/api/servers/registration-tokens/{id}/").shows(RegistrationToken),
    row("POST", "/api/servers/registration-methods/token-install/guide/").by(Steps::RegistrationGuide),

    row("GET", "/api/events/commands/").shows(Command),
    row("POST", "/api/events/commands/").body(NEW_COMMAND).shows(NewCommand),
    row("GET", "/api/events/commands/{id}/").by(Steps::CommandOrList).shows(Command),
    row("GET", "/api/events/commands/{id}/{user}/").by(Steps::CommandList).shows(Command),
    row("GET", "/api/events/commands/{id}/chunks/").by(Steps::Chunks),
    row("POST", "/api/events/sessions/").by(Steps::OpenChannel),
    row("POST", "/api/events/subscriptions/").by(Steps::Subscribe),
    row("GET", "/ws/events/{channel}/{secret}/").by(Steps::ChannelSocket),

    row("GET", "/api/audit/activity/").by(Steps::Activity).shows(AuditEvent),
    row("GET", "/api/workspaces/preferences/-/").at("GET", "/api/status/").shows(Fixed(200, PREFERENCES)),
    row("GET", "/api/workspaces/access-control/-/").at("GET", "/api/status/").shows(Fixed(200, ACCESS_CONTROL)),
];

static ROUTER: LazyLock<Router<Vec<&'static DialectRow>>> = LazyLock::new(|| {
    let mut paths: Vec<(&str, Vec<&DialectRow>)> = Vec::new();
    for row in TABLE {
        match paths.iter_mut().find(|(path, _)| *path == row.path) {
            Some((_, rows)) => rows.push(row),
            None => paths.push((row.path, vec![row])),
        }
    }
    let mut router = Router::new();
    for (path, rows) in paths {
        router.insert(path, rows).expect("the table's patterns are valid and differ");
    }
    router
});

/// The row of a request, and the values of the path's parameters.
pub fn find(method: &str, path: &str) -> Option<(&'static DialectRow, Vec<(String, String)>)> {
    let method = if method == "HEAD" { "GET" } else { method };
    let found = ROUTER.at(path).ok()?;
    let row = found.value.iter().find(|row| row.method == method)?;
    let parameters = found.params.iter();
    Some((row, parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
}

/// The built-in command of an agent that an action stands for.
pub fn built_in(action: &str) -> Option<&'static str> {
    Some(match action {
        "update_information" => "commit",
        "reboot_system" => "reboot",
        "shutdown_system" => "shutdown",
        "upgrade_system" => "update",
        "restart_agent" => "restart",
        "shutdown_agent" => "quit",
        "upgrade_agent" => "upgrade",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::endpoints;

    #[test]
    fn each_row_finds_itself_once() {
        let mut seen = BTreeSet::new();
        for row in TABLE {
            assert!(seen.insert((row.method, row.path)), "{} {}", row.method, row.path);
            let path = row.path.replace(['{', '}'], "");
            let (found, _) = find(row.method, &path).unwrap();
            assert_eq!((found.method, found.path), (row.method, row.path));
        }
        assert!(find("HEAD", "/api/iam/users/").is_some());
        assert!(find("DELETE", "/api/iam/users/").is_none());
        assert!(find("GET", "/api/status/").is_none());
    }

    #[test]
    fn the_native_endpoints_exist() {
        let has_endpoint = |method: &str, path: &str| {
            endpoints::find(path).is_some_and(|(route, _)| route.endpoint(method).is_some())
        };
        for row in TABLE {
            match row.plan {
                Handling::Same => {
                    let path = row.path.replace(['{', '}'], "");
                    assert!(has_endpoint(row.method, &path), "{} {path}", row.method);
                }
                Handling::Native(method, path) => assert!(has_endpoint(method, path), "{path}"),
                Handling::Steps(_) => {}
            }
        }
    }

    #[test]
    fn a_fixed_reply_is_json() {
        for row in TABLE {
            if let Fixed(_, text) = row.reply {
                assert!(serde_json::from_str::<serde_json::Value>(text).unwrap().is_object());
            }
        }
    }

    #[test]
    fn parameters_have_their_values() {
        let (row, parameters) = find("GET", "/api/events/commands/a/7/").unwrap();
        assert_eq!(row.plan, Handling::Steps(Steps::CommandList));
        assert_eq!(parameters, [("id".into(), "a".into()), ("user".into(), "7".into())]);
        let (row, _) = find("GET", "/api/events/commands/a/chunks/").unwrap();
        assert_eq!(row.plan, Handling::Steps(Steps::Chunks));
    }

    #[test]
    fn actions_are_built_in_commands() {
        assert_eq!(built_in("reboot_system"), Some("reboot"));
        assert_eq!(built_in("rm -rf /"), None);
    }
}
