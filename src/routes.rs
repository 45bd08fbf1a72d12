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
    /// The operator's bearer token.
    Operator,
}

/// Everything that can be asked of the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// Liveness, for load balancers.
    Health,
    /// Creates a workspace.
    WorkspaceCreate,
    /// Lists workspaces.
    WorkspaceList,
    /// Deletes a workspace and all that is in it.
    WorkspaceDelete,
    /// Liveness, for users.
    Status,
    /// Trades a username and a password for a login token.
    Login,
    /// Tells whether the credential is good.
    IsAuthenticated,
    /// Ends the session of the login token.
    Logout,
    /// Creates an API token.
    TokenCreate,
    /// Lists the caller's API tokens.
    TokenList,
    /// Deletes an API token of the caller's.
    TokenDelete,
    /// The calling user.
    CurrentUser,
    /// Lists servers.
    ServerList,
    /// Creates a server.
    ServerCreate,
    /// A server; for an agent with the id `-`, its own.
    ServerRetrieve,
    /// Lists commands.
    CommandList,
    /// Runs a command.
    CommandCreate,
    /// A command.
    CommandRetrieve,
    /// An agent reports that it took a command.
    AgentAck,
    /// An agent reports output.
    AgentChunk,
    /// An agent reports the end of a command.
    AgentFin,
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
    /// A report that the service has no use for.
    AgentIgnored,
    /// A question that the service has no answer to.
    AgentUnknown,
    /// The WebSocket on which commands go out.
    AgentBackhaul,
    /// The WebSocket on which nothing goes out.
    AgentControl,
}

/// A path with its methods.
pub struct Route {
    /// The pattern, with parameters in braces.
    pub path: &'static str,
    /// The methods; GET answers HEAD too.
    pub methods: &'static [(&'static str, Endpoint)],
    /// What the endpoints ask of the Authorization header.
    pub access: Access,
    /// Whether spec.md marks the path as on-prem only.
    pub on_prem_only: bool,
}

const fn route(path: &'static str, access: Access, methods: &'static [(&'static str, Endpoint)]) -> Route {
    Route { path, methods, access, on_prem_only: false }
}

const fn on_prem(mut route: Route) -> Route {
    route.on_prem_only = true;
    route
}

/// Every path that is served.
pub const TABLE: &[Route] = &[
    route("/healthz", Access::Open, &[("GET", Endpoint::Health)]),
    route(
        "/operator/workspaces/",
        Access::Operator,
        &[("GET", Endpoint::WorkspaceList), ("POST", Endpoint::WorkspaceCreate)],
    ),
    route("/operator/workspaces/{slug}/", Access::Operator, &[("DELETE", Endpoint::WorkspaceDelete)]),
    route("/api/status/", Access::User, &[("GET", Endpoint::Status)]),
    on_prem(route("/api/auth/login/", Access::Open, &[("POST", Endpoint::Login)])),
    route("/api/auth/is-authenticated/", Access::Open, &[("GET", Endpoint::IsAuthenticated)]),
    route("/api/auth/logout/", Access::User, &[("GET", Endpoint::Logout), ("POST", Endpoint::Logout)]),
    route("/api/auth/tokens/", Access::User, &[("GET", Endpoint::TokenList), ("POST", Endpoint::TokenCreate)]),
    route("/api/auth/tokens/{id}/", Access::User, &[("DELETE", Endpoint::TokenDelete)]),
    route("/api/iam/users/-/", Access::User, &[("GET", Endpoint::CurrentUser)]),
    route("/api/servers/", Access::User, &[("GET", Endpoint::ServerList), ("POST", Endpoint::ServerCreate)]),
    route("/api/servers/servers/", Access::User, &[("GET", Endpoint::ServerList), ("POST", Endpoint::ServerCreate)]),
    route("/api/servers/servers/{id}/", Access::UserOrAgent, &[("GET", Endpoint::ServerRetrieve)]),
    route("/api/events/commands/", Access::User, &[("GET", Endpoint::CommandList), ("POST", Endpoint::CommandCreate)]),
    route("/api/events/commands/{id}/", Access::User, &[("GET", Endpoint::CommandRetrieve)]),
    route("/api/events/commands/{id}/ack/", Access::Agent, &[("POST", Endpoint::AgentAck)]),
    route("/api/events/commands/{id}/chunk/", Access::Agent, &[("POST", Endpoint::AgentChunk)]),
    route("/api/events/commands/{id}/fin/", Access::Agent, &[("POST", Endpoint::AgentFin)]),
    route("/api/events/events/", Access::Agent, &[("POST", Endpoint::AgentEvent)]),
    route("/api/servers/servers/-/commit/", Access::Agent, &[("PUT", Endpoint::AgentCommit)]),
    route("/api/servers/servers/-/sync/", Access::Agent, &[("PATCH", Endpoint::AgentSync)]),
    route("/api/servers/servers/-/sync-check/", Access::Agent, &[("POST", Endpoint::AgentSyncCheck)]),
    route("/api/servers/servers/-/status/", Access::Agent, &[("PATCH", Endpoint::AgentHeartbeat)]),
    route("/api/metrics/config/", Access::Agent, &[("GET", Endpoint::AgentMetricsConfig)]),
    route("/api/proc/{*rest}", Access::Agent, PROC),
    route("/api/history/{*rest}", Access::Agent, IGNORED),
    route("/api/metrics/{*rest}", Access::Agent, IGNORED),
    route("/api/servers/servers/-/{*rest}", Access::Agent, IGNORED),
    route("/ws/servers/backhaul/", Access::Agent, &[("GET", Endpoint::AgentBackhaul)]),
    route("/ws/servers/control/", Access::Agent, &[("GET", Endpoint::AgentControl)]),
];

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
    ("POST", Endpoint::AgentIgnored),
    ("PUT", Endpoint::AgentIgnored),
    ("PATCH", Endpoint::AgentIgnored),
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

impl Route {
    /// The endpoint of a method.
    pub fn endpoint(&self, method: &str) -> Option<Endpoint> {
        let wanted = if method == "HEAD" { "GET" } else { method };
        self.methods.iter().find(|(name, _)| *name == wanted).map(|(_, endpoint)| *endpoint)
    }

    /// The value of the Allow header.
    pub fn allow(&self) -> String {
        let mut names: Vec<&str> = self.methods.iter().map(|(name, _)| *name).collect();
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
        assert_eq!(find("/api/servers/servers/-/").map(|(r, _)| r.path), Some("/api/servers/servers/{id}/"));
        assert_eq!(find("/api/servers/servers/-/sync/").map(|(r, _)| r.path), Some("/api/servers/servers/-/sync/"));
        assert_eq!(
            find("/api/servers/servers/-/other/x/").map(|(r, _)| r.path),
            Some("/api/servers/servers/-/{*rest}")
        );
        assert!(find("/api/servers/servers/01936d3e-7a00-7000-8000-000000000000/sync/").is_none());
    }

    #[test]
    fn get_answers_head() {
        let (route, _) = find("/api/status/").expect("a path of the table");
        assert_eq!(route.endpoint("HEAD"), Some(Endpoint::Status));
        assert_eq!(route.endpoint("POST"), None);
        assert_eq!(route.allow(), "GET, HEAD, OPTIONS");
    }
}
