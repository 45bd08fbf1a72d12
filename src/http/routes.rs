//! The one table of endpoints: which method of which path is which [`Endpoint`].
//!
//! It knows nothing of the platform, so that the end-to-end tests read the very same file and check that they cover
//! every row.

use std::sync::LazyLock;

use matchit::{Params, Router};

/// What an endpoint asks of the Authorization header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Nothing.
    Open,
    /// A user's login token or API token.
    User,
    /// An agent's id and key.
    Agent,
    /// A user's token or an agent's id and key, each for its own ids.
    UserOrAgent,
    /// A registration token.
    Registration,
    /// The operator's bearer token.
    Operator,
}

/// Everything that can be asked of the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// Liveness, for load balancers.
    Health,
    /// A file of the page for a new password.
    Page,
    /// Creates a workspace.
    WorkspaceCreate,
    /// Lists workspaces.
    WorkspaceList,
    /// Deletes a workspace and all that is in it, after a grace period.
    WorkspaceDelete,
    /// Makes a deleted workspace a live one again.
    WorkspaceUndelete,
    /// Has the objects of a workspace's servers tell D1 everything again.
    WorkspaceResync,
    /// Liveness, for users.
    Status,
    /// The OpenAPI document.
    Schema,
    /// Trades a username and a password for a login token.
    Login,
    /// Tells whether the credential is good.
    IsAuthenticated,
    /// Ends the session of the login token.
    Logout,
    /// Lists the caller's login sessions.
    SessionList,
    /// A login session of the caller's.
    SessionRetrieve,
    /// Ends a login session of the caller's.
    SessionDelete,
    /// Creates an API token.
    TokenCreate,
    /// Lists the caller's API tokens.
    TokenList,
    /// An API token of the caller's.
    TokenRetrieve,
    /// Replaces an API token of the caller's, all but its key.
    TokenReplace,
    /// Changes fields of an API token of the caller's.
    TokenUpdate,
    /// Deletes an API token of the caller's.
    TokenDelete,
    /// Says whether an access control list allows a command.
    AclCheck,
    /// Changes the caller's password.
    PasswordChange,
    /// Sets a user's password, for superusers.
    PasswordSet,
    /// Asks for a link to reset a password.
    ResetRequest,
    /// Opens such a link.
    ResetOpen,
    /// Sets the password that such a link is for.
    ResetConfirm,
    /// Lists users.
    UserList,
    /// Creates a user.
    UserCreate,
    /// A user.
    UserRetrieve,
    /// The calling user.
    CurrentUser,
    /// Replaces a user, all but the password.
    UserReplace,
    /// Changes fields of a user.
    UserUpdate,
    /// Deletes a user.
    UserDelete,
    /// Lists servers.
    ServerList,
    /// Creates a server.
    ServerCreate,
    /// A server; for an agent with the id `-`, its own.
    ServerRetrieve,
    /// Replaces a server's name and groups.
    ServerReplace,
    /// Changes a server's name or groups.
    ServerUpdate,
    /// Deletes a server, and cuts its agent off.
    ServerDelete,
    /// Lets a pending server run commands.
    ServerApprove,
    /// Gives a server's agent another key.
    ServerRotateKey,
    /// Lists registration tokens.
    RegistrationTokenList,
    /// Creates a registration token.
    RegistrationTokenCreate,
    /// A registration token.
    RegistrationTokenRetrieve,
    /// Deletes a registration token.
    RegistrationTokenDelete,
    /// Lists groups.
    GroupList,
    /// Creates a group.
    GroupCreate,
    /// A group.
    GroupRetrieve,
    /// Replaces a group.
    GroupReplace,
    /// Changes fields of a group.
    GroupUpdate,
    /// Deletes a group.
    GroupDelete,
    /// Lists memberships.
    MembershipList,
    /// Brings a user into a group.
    MembershipCreate,
    /// A membership.
    MembershipRetrieve,
    /// Replaces a membership's role.
    MembershipReplace,
    /// Changes a membership's role.
    MembershipUpdate,
    /// Takes a user out of a group.
    MembershipDelete,
    /// Lists commands.
    CommandList,
    /// Runs a command.
    CommandCreate,
    /// A command.
    CommandRetrieve,
    /// Takes a command back.
    CommandCancel,
    /// The same, by DELETE.
    CommandDelete,
    /// Kills a command.
    CommandKill,
    /// A command's output, page by page.
    CommandChunks,
    /// A command's whole output, as plain text.
    CommandOutput,
    /// A command's output while it comes.
    CommandStream,
    /// An agent reports that it took a command.
    AgentAck,
    /// An agent reports output.
    AgentChunk,
    /// An agent reports the end of a command.
    AgentFin,
    /// An agent reports that it does not run a command.
    AgentReject,
    /// An agent reports an event of its own.
    AgentEvent,
    /// An agent reports for the first time what it and its host are.
    AgentCommit,
    /// An agent reports what it and its host are.
    AgentSync,
    /// An agent asks which of its facts the service lacks.
    AgentSyncCheck,
    /// An agent's heartbeat.
    AgentHeartbeat,
    /// What an agent should measure.
    AgentMetricsConfig,
    /// The state that an agent of an older version compares its own with.
    AgentProcSync,
    /// What an agent that is commissioned tells of its host, by category.
    AgentProcReport,
    /// An agent makes a server of its host.
    AgentRegister,
    /// An agent goes for good, and its server with it.
    AgentUnregister,
    /// A report that the service has no use for.
    AgentIgnored,
    /// A question that the service has no answer to.
    AgentUnknown,
    /// The WebSocket on which commands go out.
    AgentBackhaul,
    /// The WebSocket on which nothing goes out.
    AgentControl,
    /// Lists the workspace's audit events.
    AuditList,
    /// Looks along the chain of the workspace's audit events.
    AuditVerify,
    /// Lists the region cell's own audit events.
    CellAuditList,
    /// Looks along their chain.
    CellAuditVerify,
}

impl Endpoint {
    /// Tells whether an API token with an access control list may call it (contract 4, Token ACL). What is not in this
    /// list is refused to such a token, so that it cannot widen itself.
    pub fn takes_limited_tokens(self) -> bool {
        matches!(
            self,
            Self::Status
                | Self::IsAuthenticated
                | Self::CurrentUser
                | Self::AclCheck
                | Self::ServerList
                | Self::ServerRetrieve
                | Self::CommandList
                | Self::CommandCreate
                | Self::CommandRetrieve
                | Self::CommandCancel
                | Self::CommandDelete
                | Self::CommandKill
                | Self::CommandChunks
                | Self::CommandOutput
                | Self::CommandStream
        )
    }

    /// What the audit log calls it (`docs/audit.md`), where it changes something that the log tells of.
    pub fn action(self) -> Option<&'static str> {
        Some(match self {
            Self::WorkspaceCreate => "workspace.create",
            Self::WorkspaceDelete => "workspace.delete",
            Self::WorkspaceUndelete => "workspace.undelete",
            Self::WorkspaceResync => "workspace.resync",
            Self::Login => "session.login",
            Self::Logout => "session.logout",
            Self::SessionDelete => "session.delete",
            Self::TokenCreate => "api_token.create",
            Self::TokenReplace | Self::TokenUpdate => "api_token.update",
            Self::TokenDelete => "api_token.delete",
            Self::PasswordChange => "user.change_password",
            Self::PasswordSet => "user.set_password",
            Self::ResetRequest => "user.request_reset",
            Self::ResetConfirm => "user.reset_password",
            Self::UserCreate => "user.create",
            Self::UserReplace | Self::UserUpdate => "user.update",
            Self::UserDelete => "user.delete",
            Self::ServerCreate => "server.create",
            Self::ServerReplace | Self::ServerUpdate => "server.update",
            Self::ServerDelete => "server.delete",
            Self::ServerApprove => "server.approve",
            Self::ServerRotateKey => "server.rotate_key",
            Self::AgentRegister => "server.register",
            Self::AgentUnregister => "server.unregister",
            Self::RegistrationTokenCreate => "registration_token.create",
            Self::RegistrationTokenDelete => "registration_token.delete",
            Self::GroupCreate => "group.create",
            Self::GroupReplace | Self::GroupUpdate => "group.update",
            Self::GroupDelete => "group.delete",
            Self::MembershipCreate => "membership.create",
            Self::MembershipReplace | Self::MembershipUpdate => "membership.update",
            Self::MembershipDelete => "membership.delete",
            Self::CommandCreate => "command.create",
            Self::CommandCancel | Self::CommandDelete => "command.cancel",
            Self::CommandKill => "command.kill",
            _ => return None,
        })
    }
}

/// A path with its methods.
pub struct Route {
    /// The pattern, with parameters in braces.
    pub path: &'static str,
    /// The methods; GET answers HEAD too.
    pub methods: &'static [(&'static str, Endpoint)],
    /// What the endpoints ask of the Authorization header.
    pub access: Access,
    /// The methods that spec.md marks as on-prem only.
    pub on_prem_only: &'static [&'static str],
}

const fn route(path: &'static str, access: Access, methods: &'static [(&'static str, Endpoint)]) -> Route {
    Route { path, methods, access, on_prem_only: &[] }
}

const fn on_prem(methods: &'static [&'static str], mut route: Route) -> Route {
    route.on_prem_only = methods;
    route
}

/// Every path that is served.
pub const TABLE: &[Route] = &[
    route("/healthz", Access::Open, &[("GET", Endpoint::Health)]),
    route("/reset-password/", Access::Open, PAGE),
    route("/reset-password/page.css", Access::Open, PAGE),
    route("/reset-password/page.js", Access::Open, PAGE),
    route(
        "/operator/workspaces/",
        Access::Operator,
        &[("GET", Endpoint::WorkspaceList), ("POST", Endpoint::WorkspaceCreate)],
    ),
    route("/operator/workspaces/{slug}/", Access::Operator, &[("DELETE", Endpoint::WorkspaceDelete)]),
    route("/operator/workspaces/{slug}/undelete/", Access::Operator, &[("POST", Endpoint::WorkspaceUndelete)]),
    route("/operator/audit/events/", Access::Operator, &[("GET", Endpoint::CellAuditList)]),
    route("/operator/audit/verify/", Access::Operator, &[("POST", Endpoint::CellAuditVerify)]),
    route("/operator/workspaces/{slug}/resync/", Access::Operator, &[("POST", Endpoint::WorkspaceResync)]),
    route("/api/status/", Access::User, &[("GET", Endpoint::Status)]),
    route("/api/schema/", Access::Open, &[("GET", Endpoint::Schema)]),
    on_prem(&["POST"], route("/api/auth/login/", Access::Open, &[("POST", Endpoint::Login)])),
    route("/api/auth/is-authenticated/", Access::Open, &[("GET", Endpoint::IsAuthenticated)]),
    route("/api/auth/logout/", Access::User, &[("GET", Endpoint::Logout), ("POST", Endpoint::Logout)]),
    route("/api/auth/sessions/", Access::User, &[("GET", Endpoint::SessionList)]),
    route(
        "/api/auth/sessions/{id}/",
        Access::User,
        &[("GET", Endpoint::SessionRetrieve), ("DELETE", Endpoint::SessionDelete)],
    ),
    route("/api/auth/tokens/", Access::User, &[("GET", Endpoint::TokenList), ("POST", Endpoint::TokenCreate)]),
    route(
        "/api/auth/tokens/{id}/",
        Access::User,
        &[
            ("GET", Endpoint::TokenRetrieve),
            ("PUT", Endpoint::TokenReplace),
            ("PATCH", Endpoint::TokenUpdate),
            ("DELETE", Endpoint::TokenDelete),
        ],
    ),
    route("/api/auth/acl-check/", Access::User, &[("POST", Endpoint::AclCheck)]),
    on_prem(&["POST"], route("/api/auth/change-password/", Access::User, &[("POST", Endpoint::PasswordChange)])),
    route("/api/auth/reset-password/", Access::Open, &[("POST", Endpoint::ResetRequest)]),
    route(
        "/api/auth/reset-password/confirm/{key}/",
        Access::Open,
        &[("GET", Endpoint::ResetOpen), ("POST", Endpoint::ResetConfirm)],
    ),
    route("/api/iam/users/", Access::User, USERS),
    route(
        "/api/iam/users/-/",
        Access::User,
        &[
            ("GET", Endpoint::CurrentUser),
            ("PUT", Endpoint::UserReplace),
            ("PATCH", Endpoint::UserUpdate),
            ("DELETE", Endpoint::UserDelete),
        ],
    ),
    route(
        "/api/iam/users/{id}/",
        Access::User,
        &[
            ("GET", Endpoint::UserRetrieve),
            ("PUT", Endpoint::UserReplace),
            ("PATCH", Endpoint::UserUpdate),
            ("DELETE", Endpoint::UserDelete),
        ],
    ),
    route("/api/iam/groups/", Access::User, &[("GET", Endpoint::GroupList), ("POST", Endpoint::GroupCreate)]),
    route(
        "/api/iam/groups/{id}/",
        Access::User,
        &[
            ("GET", Endpoint::GroupRetrieve),
            ("PUT", Endpoint::GroupReplace),
            ("PATCH", Endpoint::GroupUpdate),
            ("DELETE", Endpoint::GroupDelete),
        ],
    ),
    route(
        "/api/iam/memberships/",
        Access::User,
        &[("GET", Endpoint::MembershipList), ("POST", Endpoint::MembershipCreate)],
    ),
    route(
        "/api/iam/memberships/{id}/",
        Access::User,
        &[
            ("GET", Endpoint::MembershipRetrieve),
            ("PUT", Endpoint::MembershipReplace),
            ("PATCH", Endpoint::MembershipUpdate),
            ("DELETE", Endpoint::MembershipDelete),
        ],
    ),
    route("/api/users/users/", Access::User, USERS),
    on_prem(
        &["PUT", "PATCH"],
        route(
            "/api/users/users/{username}/",
            Access::User,
            &[
                ("GET", Endpoint::UserRetrieve),
                ("PUT", Endpoint::PasswordSet),
                ("PATCH", Endpoint::PasswordSet),
                ("DELETE", Endpoint::UserDelete),
            ],
        ),
    ),
    route("/api/servers/", Access::User, &[("GET", Endpoint::ServerList), ("POST", Endpoint::ServerCreate)]),
    route("/api/servers/servers/", Access::User, &[("GET", Endpoint::ServerList), ("POST", Endpoint::ServerCreate)]),
    route("/api/servers/servers/register/", Access::Registration, &[("POST", Endpoint::AgentRegister)]),
    route("/api/servers/{id}/", Access::UserOrAgent, SERVER),
    route("/api/servers/servers/{id}/", Access::UserOrAgent, SERVER),
    route("/api/servers/servers/{id}/approve/", Access::User, &[("POST", Endpoint::ServerApprove)]),
    route("/api/servers/servers/{id}/rotate-key/", Access::User, &[("POST", Endpoint::ServerRotateKey)]),
    route(
        "/api/servers/registration-tokens/",
        Access::User,
        &[("GET", Endpoint::RegistrationTokenList), ("POST", Endpoint::RegistrationTokenCreate)],
    ),
    route(
        "/api/servers/registration-tokens/{id}/",
        Access::User,
        &[("GET", Endpoint::RegistrationTokenRetrieve), ("DELETE", Endpoint::RegistrationTokenDelete)],
    ),
    route("/api/events/commands/", Access::User, &[("GET", Endpoint::CommandList), ("POST", Endpoint::CommandCreate)]),
    route(
        "/api/events/commands/{id}/",
        Access::User,
        &[("GET", Endpoint::CommandRetrieve), ("DELETE", Endpoint::CommandDelete)],
    ),
    route("/api/events/commands/{id}/cancel/", Access::User, &[("POST", Endpoint::CommandCancel)]),
    route("/api/events/commands/{id}/kill/", Access::User, &[("POST", Endpoint::CommandKill)]),
    route("/api/events/commands/{id}/chunks/", Access::User, &[("GET", Endpoint::CommandChunks)]),
    route("/api/events/commands/{id}/output/", Access::User, &[("GET", Endpoint::CommandOutput)]),
    route("/api/events/commands/{id}/stream/", Access::User, &[("GET", Endpoint::CommandStream)]),
    route("/api/audit/events/", Access::User, &[("GET", Endpoint::AuditList)]),
    route("/api/audit/verify/", Access::User, &[("POST", Endpoint::AuditVerify)]),
    route("/api/events/commands/{id}/ack/", Access::Agent, &[("POST", Endpoint::AgentAck)]),
    route("/api/events/commands/{id}/chunk/", Access::Agent, &[("POST", Endpoint::AgentChunk)]),
    route("/api/events/commands/{id}/fin/", Access::Agent, &[("POST", Endpoint::AgentFin)]),
    route("/api/events/commands/{id}/reject/", Access::Agent, &[("POST", Endpoint::AgentReject)]),
    route("/api/events/events/", Access::Agent, &[("POST", Endpoint::AgentEvent)]),
    route("/api/servers/servers/-/commit/", Access::Agent, &[("PUT", Endpoint::AgentCommit)]),
    route("/api/servers/servers/-/sync/", Access::Agent, &[("PATCH", Endpoint::AgentSync)]),
    route("/api/servers/servers/-/sync-check/", Access::Agent, &[("POST", Endpoint::AgentSyncCheck)]),
    route("/api/servers/servers/-/status/", Access::Agent, &[("PATCH", Endpoint::AgentHeartbeat)]),
    route("/api/servers/servers/{id}/unregister/", Access::Agent, UNREGISTER),
    route("/api/servers/servers/-/unregister/", Access::Agent, UNREGISTER),
    route("/api/metrics/config/", Access::Agent, &[("GET", Endpoint::AgentMetricsConfig)]),
    route("/api/proc/{*rest}", Access::Agent, PROC),
    route("/api/history/{*rest}", Access::Agent, IGNORED),
    route("/api/metrics/{*rest}", Access::Agent, IGNORED),
    route("/api/servers/servers/-/{*rest}", Access::Agent, IGNORED),
    route("/ws/servers/backhaul/", Access::Agent, &[("GET", Endpoint::AgentBackhaul)]),
    route("/ws/servers/control/", Access::Agent, &[("GET", Endpoint::AgentControl)]),
];

/// The list of users has two paths (spec.md, What the service does, 6).
const USERS: &[(&str, Endpoint)] = &[("GET", Endpoint::UserList), ("POST", Endpoint::UserCreate)];

const PAGE: &[(&str, Endpoint)] = &[("GET", Endpoint::Page)];

/// A server, under either of its addresses.
const SERVER: &[(&str, Endpoint)] = &[
    ("GET", Endpoint::ServerRetrieve),
    ("PUT", Endpoint::ServerReplace),
    ("PATCH", Endpoint::ServerUpdate),
    ("DELETE", Endpoint::ServerDelete),
];

/// Agents name their own server in either way.
const UNREGISTER: &[(&str, Endpoint)] = &[("DELETE", Endpoint::AgentUnregister)];

/// Agents retry a report until it is answered with success, so what is of no use here is taken (agent-protocol 4).
const IGNORED: &[(&str, Endpoint)] = &[
    ("GET", Endpoint::AgentUnknown),
    ("POST", Endpoint::AgentIgnored),
    ("PUT", Endpoint::AgentIgnored),
    ("PATCH", Endpoint::AgentIgnored),
    ("DELETE", Endpoint::AgentIgnored),
];

/// The same, but older agents crash on a 404 to what they read here.
const PROC: &[(&str, Endpoint)] = &[
    ("GET", Endpoint::AgentProcSync),
    ("POST", Endpoint::AgentProcReport),
    ("PUT", Endpoint::AgentProcReport),
    ("PATCH", Endpoint::AgentProcReport),
    ("DELETE", Endpoint::AgentIgnored),
];

static ROUTER: LazyLock<Router<&'static Route>> = LazyLock::new(|| {
    let mut router = Router::new();
    for route in TABLE {
        router.insert(route.path, route).expect("the table's patterns are valid and differ");
    }
    router
});

/// Finds the path's row, and the values of its parameters.
pub fn find(path: &str) -> Option<(&'static Route, Params<'_, '_>)> {
    ROUTER.at(path).ok().map(|found| (*found.value, found.params))
}

/// Tells whether a path has no slash at its end on purpose: a row of the table says so.
pub fn ends_without_slash(path: &str) -> bool {
    !path.ends_with('/') && TABLE.iter().any(|route| route.path == path)
}

impl Route {
    /// The methods that a deployment serves.
    pub fn served(&self, on_prem: bool) -> impl Iterator<Item = &'static (&'static str, Endpoint)> {
        let hidden = if on_prem { &[] } else { self.on_prem_only };
        self.methods.iter().filter(move |(name, _)| !hidden.contains(name))
    }

    /// The endpoint of a method.
    pub fn endpoint(&self, method: &str) -> Option<Endpoint> {
        let wanted = if method == "HEAD" { "GET" } else { method };
        self.methods.iter().find(|(name, _)| *name == wanted).map(|(_, endpoint)| *endpoint)
    }

    /// The value of the Allow header.
    pub fn allow(&self, on_prem: bool) -> String {
        let mut names: Vec<&str> = self.served(on_prem).map(|(name, _)| *name).collect();
        if names.contains(&"GET") {
            names.push("HEAD");
        }
        names.push("OPTIONS");
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_finds_itself() {
        for route in TABLE {
            let path = route.path.replace("{*rest}", "some/where/").replace(['{', '}'], "");
            let (found, _) = find(&path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(found.path, route.path);
        }
    }

    #[test]
    fn a_fixed_segment_comes_before_a_parameter() {
        for fixed in ["/api/servers/servers/", "/api/servers/registration-tokens/", "/api/servers/servers/register/"] {
            assert_eq!(find(fixed).map(|(r, _)| r.path), Some(fixed));
        }
        assert_eq!(find("/api/servers/web-1/").map(|(r, _)| r.path), Some("/api/servers/{id}/"));
        assert_eq!(find("/api/servers/servers/-/").map(|(r, _)| r.path), Some("/api/servers/servers/{id}/"));
        assert_eq!(find("/api/servers/servers/-/sync/").map(|(r, _)| r.path), Some("/api/servers/servers/-/sync/"));
        assert_eq!(
            find("/api/servers/servers/-/other/x/").map(|(r, _)| r.path),
            Some("/api/servers/servers/-/{*rest}")
        );
        assert!(find("/api/servers/servers/01936d3e-7a00-7000-8000-000000000000/sync/").is_none());
    }

    #[test]
    fn only_the_tables_own_paths_end_without_a_slash() {
        for path in ["/healthz", "/reset-password/page.css", "/reset-password/page.js"] {
            assert!(ends_without_slash(path), "{path}");
        }
        for path in ["", "/", "/healthz/", "/reset-password", "/reset-password/", "/api/status", "/api/proc/{*rest}/x"]
        {
            assert!(!ends_without_slash(path), "{path}");
        }
    }

    #[test]
    fn get_answers_head() {
        let (route, _) = find("/api/status/").expect("a path of the table");
        assert_eq!(route.endpoint("HEAD"), Some(Endpoint::Status));
        assert_eq!(route.endpoint("POST"), None);
        assert_eq!(route.allow(true), "GET, HEAD, OPTIONS");
    }

    #[test]
    fn a_cloud_deployment_hides_what_is_on_prem_only() {
        let (route, _) = find("/api/users/users/boss/").expect("a path of the table");
        assert_eq!(route.allow(false), "GET, DELETE, HEAD, OPTIONS");
        let (login, _) = find("/api/auth/login/").expect("a path of the table");
        assert_eq!(login.served(false).count(), 0);
    }
}
