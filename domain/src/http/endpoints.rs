//! The table of all endpoints. The Worker routes requests with it, and the end-to-end tests loop
//! over it.
//!
//! `docs/contributing/adding-an-endpoint.md` lists what a new row needs.

use std::sync::LazyLock;

use matchit::{Params, Router};

use crate::http::console;

/// The credential that an endpoint expects in the Authorization header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// No credential.
    Open,
    /// A user's login token or API token.
    User,
    /// An agent's id and key.
    Agent,
    /// A user's token, or an agent's id and key for the agent's own server.
    UserOrAgent,
    /// A registration token.
    Registration,
    /// The operator's bearer token.
    Operator,
}

/// What a request adds to the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// Nothing, or what must always work: sign-in, passwords, sessions, cancelling, killing,
    /// deletions, reports of agents, and the operator's requests.
    Allowed,
    /// It changes something that exists.
    Changes,
    /// It creates something.
    Creates,
}

/// A row of the table.
struct Row {
    endpoint: Endpoint,
    access: Access,
    /// The paths, each after its methods. Path parameters are in braces.
    paths: &'static [(&'static [&'static str], &'static str)],
    options: Options,
}

/// The optional parts of a row.
struct Options {
    /// The action in the audit log (`docs/audit.md`).
    audit_action: Option<&'static str>,
    /// API tokens with an access control list may call the endpoint (contract 4.12). All other
    /// endpoints refuse these tokens, so that a token cannot extend its own access.
    accepts_limited_tokens: bool,
    /// A cloud deployment hides the endpoint (contract 4.15).
    is_on_prem_only: bool,
    /// The endpoint works while D1 is nearly full, although it is no GET and no DELETE (contract
    /// 11.7).
    works_when_full: bool,
    /// PUT and PATCH create something, like POST (contract 11.7).
    creates: bool,
}

impl Options {
    const NONE: Self = Self {
        audit_action: None,
        accepts_limited_tokens: false,
        is_on_prem_only: false,
        works_when_full: false,
        creates: false,
    };
}

/// Generates the enum [`Endpoint`] and its [`ROWS`]. Parts in parentheses are optional, a flag is a
/// field of [`Options`]:
///
/// ```text
/// Name: Access, [METHOD METHOD "/path/", METHOD "/other/"] (audits "action") (, flag, flag);
/// ```
macro_rules! endpoints {
    ($(
        $(#[$doc:meta])*
        $name:ident: $access:ident, [$($($method:ident)+ $path:literal),+] $(audits $action:literal)? $(, $flag:ident)*;
    )+) => {
        /// Every endpoint of the service.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Endpoint {
            $($(#[$doc])* $name),+
        }

        /// In the order of the enum.
        const ROWS: &[Row] = &[$(Row {
            endpoint: Endpoint::$name,
            access: Access::$access,
            paths: &[$((&[$(stringify!($method)),+], $path)),+],
            options: Options { $(audit_action: Some($action),)? $($flag: true,)* ..Options::NONE },
        }),+];
    };
}

// The methods of a path are in the order GET, POST, PUT, PATCH, DELETE. The Allow header lists them
// in the order of this table.
endpoints! {
    /// Liveness, for load balancers.
    Health: Open, [GET "/healthz"];
    /// The page of the console, for every path of a console page (`crate::http::console`).
    Console: Open, [GET "/"];
    /// A script or style sheet of the console.
    ConsoleFile: Open, [GET "/console/{file}"];
    /// A file of the page on which a user sets a new password.
    Page: Open, [GET "/reset-password/", GET "/reset-password/page.css", GET "/reset-password/page.js"];
    /// A file of the interactive API reference.
    Docs: Open, [
        GET "/api/docs/", GET "/api/docs/page.css", GET "/api/docs/page.js", GET "/api/docs/swagger-ui.css",
        GET "/api/docs/swagger-ui.js"
    ];
    /// The script that installs an agent.
    InstallScript: Open, [GET "/install.sh"];
    /// An agent for hosts, its SHA-256 or its signature.
    AgentFile: Open, [GET "/agent/{version}/{file}"];

    WorkspaceList: Operator, [GET "/operator/workspaces/"];
    WorkspaceCreate: Operator, [POST "/operator/workspaces/"] audits "workspace.create";
    /// Deletes a workspace with all its contents after a grace period.
    WorkspaceDelete: Operator, [DELETE "/operator/workspaces/{slug}/"] audits "workspace.delete";
    WorkspaceUndelete: Operator, [POST "/operator/workspaces/{slug}/undelete/"] audits "workspace.undelete";
    /// The audit events of the region cell, which belong to no workspace.
    CellAuditList: Operator, [GET "/operator/audit/events/"];
    CellAuditVerify: Operator, [POST "/operator/audit/verify/"];
    /// Lets the objects of the workspace's servers write everything to D1 again.
    WorkspaceResync: Operator, [POST "/operator/workspaces/{slug}/resync/"] audits "workspace.resync";

    /// Liveness, for users.
    Status: User, [GET "/api/status/"], accepts_limited_tokens;
    /// The OpenAPI document.
    Schema: Open, [GET "/api/schema/"];

    /// Exchanges a username and a password for a login token.
    Login: Open, [POST "/api/auth/login/"] audits "session.login", is_on_prem_only;
    /// Whether the credential is valid.
    IsAuthenticated: Open, [GET "/api/auth/is-authenticated/"], accepts_limited_tokens;
    Logout: User, [GET POST "/api/auth/logout/"] audits "session.logout", works_when_full;
    SessionList: User, [GET "/api/auth/sessions/"];
    SessionRetrieve: User, [GET "/api/auth/sessions/{id}/"];
    SessionDelete: User, [DELETE "/api/auth/sessions/{id}/"] audits "session.delete";
    TokenList: User, [GET "/api/auth/tokens/"];
    TokenCreate: User, [POST "/api/auth/tokens/"] audits "api_token.create";
    TokenRetrieve: User, [GET "/api/auth/tokens/{id}/"];
    /// Replaces all fields except the key.
    TokenReplace: User, [PUT "/api/auth/tokens/{id}/"] audits "api_token.update";
    TokenUpdate: User, [PATCH "/api/auth/tokens/{id}/"] audits "api_token.update";
    TokenDelete: User, [DELETE "/api/auth/tokens/{id}/"] audits "api_token.delete";
    /// Whether an access control list allows a command.
    AclCheck: User, [POST "/api/auth/acl-check/"], accepts_limited_tokens, works_when_full;
    /// Changes the caller's own password.
    PasswordChange: User, [POST "/api/auth/change-password/"] audits "user.change_password", is_on_prem_only, works_when_full;
    /// Requests a mail with a link to set a new password.
    ResetRequest: Open, [POST "/api/auth/reset-password/"] audits "user.request_reset";
    /// Whether the link in a mail is valid.
    ResetOpen: Open, [GET "/api/auth/reset-password/confirm/{key}/"];
    /// Sets a new password with a link.
    ResetConfirm: Open, [POST "/api/auth/reset-password/confirm/{key}/"] audits "user.reset_password";

    UserList: User, [GET "/api/iam/users/", GET "/api/users/users/"];
    UserCreate: User, [POST "/api/iam/users/", POST "/api/users/users/"] audits "user.create";
    CurrentUser: User, [GET "/api/iam/users/-/"], accepts_limited_tokens;
    UserRetrieve: User, [GET "/api/iam/users/{id}/", GET "/api/users/users/{username}/"];
    /// Lets a superuser set any user's password.
    PasswordSet: User, [PUT PATCH "/api/users/users/{username}/"] audits "user.set_password", is_on_prem_only, works_when_full;
    /// Replaces all fields except the password.
    UserReplace: User, [PUT "/api/iam/users/-/", PUT "/api/iam/users/{id}/"] audits "user.update";
    UserUpdate: User, [PATCH "/api/iam/users/-/", PATCH "/api/iam/users/{id}/"] audits "user.update";
    UserDelete: User, [
        DELETE "/api/iam/users/-/", DELETE "/api/iam/users/{id}/", DELETE "/api/users/users/{username}/"
    ] audits "user.delete";
    GroupList: User, [GET "/api/iam/groups/"];
    GroupCreate: User, [POST "/api/iam/groups/"] audits "group.create";
    GroupRetrieve: User, [GET "/api/iam/groups/{id}/"];
    GroupReplace: User, [PUT "/api/iam/groups/{id}/"] audits "group.update";
    GroupUpdate: User, [PATCH "/api/iam/groups/{id}/"] audits "group.update";
    GroupDelete: User, [DELETE "/api/iam/groups/{id}/"] audits "group.delete";
    MembershipList: User, [GET "/api/iam/memberships/"];
    MembershipCreate: User, [POST "/api/iam/memberships/"] audits "membership.create";
    MembershipRetrieve: User, [GET "/api/iam/memberships/{id}/"];
    MembershipReplace: User, [PUT "/api/iam/memberships/{id}/"] audits "membership.update";
    MembershipUpdate: User, [PATCH "/api/iam/memberships/{id}/"] audits "membership.update";
    MembershipDelete: User, [DELETE "/api/iam/memberships/{id}/"] audits "membership.delete";

    ServerList: User, [GET "/api/servers/", GET "/api/servers/servers/"], accepts_limited_tokens;
    ServerCreate: User, [POST "/api/servers/", POST "/api/servers/servers/"] audits "server.create";
    /// An agent reads its own server, with the id `-`.
    ServerRetrieve: UserOrAgent, [GET "/api/servers/{id}/", GET "/api/servers/servers/{id}/"], accepts_limited_tokens;
    ServerReplace: UserOrAgent, [PUT "/api/servers/{id}/", PUT "/api/servers/servers/{id}/"] audits "server.update";
    ServerUpdate: UserOrAgent, [PATCH "/api/servers/{id}/", PATCH "/api/servers/servers/{id}/"] audits "server.update";
    ServerDelete: UserOrAgent, [DELETE "/api/servers/{id}/", DELETE "/api/servers/servers/{id}/"] audits "server.delete";
    /// Lets a pending server run commands.
    ServerApprove: User, [POST "/api/servers/servers/{id}/approve/"] audits "server.approve", works_when_full;
    /// Replaces the key of the server's agent.
    ServerRotateKey: User, [POST "/api/servers/servers/{id}/rotate-key/"] audits "server.rotate_key", works_when_full;
    /// Restores a deleted server.
    ServerUndelete: User, [POST "/api/servers/servers/{id}/undelete/"] audits "server.undelete", works_when_full;
    RegistrationTokenList: User, [GET "/api/servers/registration-tokens/"];
    RegistrationTokenCreate: User, [POST "/api/servers/registration-tokens/"] audits "registration_token.create";
    RegistrationTokenRetrieve: User, [GET "/api/servers/registration-tokens/{id}/"];
    RegistrationTokenDelete: User, [DELETE "/api/servers/registration-tokens/{id}/"] audits "registration_token.delete";

    CommandList: User, [GET "/api/events/commands/"], accepts_limited_tokens;
    CommandCreate: User, [POST "/api/events/commands/"] audits "command.create", accepts_limited_tokens;
    CommandRetrieve: User, [GET "/api/events/commands/{id}/"], accepts_limited_tokens;
    /// The same as [`Endpoint::CommandCancel`].
    CommandDelete: User, [DELETE "/api/events/commands/{id}/"] audits "command.cancel", accepts_limited_tokens;
    CommandCancel: User, [POST "/api/events/commands/{id}/cancel/"] audits "command.cancel", accepts_limited_tokens, works_when_full;
    CommandKill: User, [POST "/api/events/commands/{id}/kill/"] audits "command.kill", accepts_limited_tokens, works_when_full;
    /// The output in pages.
    CommandChunks: User, [GET "/api/events/commands/{id}/chunks/"], accepts_limited_tokens;
    /// The whole output as plain text.
    CommandOutput: User, [GET "/api/events/commands/{id}/output/"], accepts_limited_tokens;
    /// The output as it arrives.
    CommandStream: User, [GET "/api/events/commands/{id}/stream/"], accepts_limited_tokens;

    BatchList: User, [GET "/api/events/batches/"], accepts_limited_tokens;
    /// Runs one command on many servers.
    BatchCreate: User, [POST "/api/events/batches/"] audits "batch.create", accepts_limited_tokens;
    BatchRetrieve: User, [GET "/api/events/batches/{id}/"], accepts_limited_tokens;
    BatchCancel: User, [POST "/api/events/batches/{id}/cancel/"] audits "batch.cancel", accepts_limited_tokens, works_when_full;
    /// Cancels the batch, and kills its running commands.
    BatchKill: User, [POST "/api/events/batches/{id}/kill/"] audits "batch.kill", accepts_limited_tokens, works_when_full;
    /// Creates a batch of the targets without success.
    BatchRetry: User, [POST "/api/events/batches/{id}/retry-failed/"] audits "batch.retry", accepts_limited_tokens;
    BatchTargets: User, [GET "/api/events/batches/{id}/targets/"], accepts_limited_tokens;
    /// The targets that ended, grouped by equal output.
    BatchOutputs: User, [GET "/api/events/batches/{id}/outputs/"], accepts_limited_tokens;
    /// The targets' changes of state as they happen.
    BatchStream: User, [GET "/api/events/batches/{id}/stream/"], accepts_limited_tokens;

    ScheduleList: User, [GET "/api/events/schedules/"];
    ScheduleCreate: User, [POST "/api/events/schedules/"] audits "schedule.create";
    ScheduleRetrieve: User, [GET "/api/events/schedules/{id}/"];
    /// Replaces all fields.
    ScheduleReplace: User, [PUT "/api/events/schedules/{id}/"] audits "schedule.update";
    ScheduleUpdate: User, [PATCH "/api/events/schedules/{id}/"] audits "schedule.update";
    ScheduleDelete: User, [DELETE "/api/events/schedules/{id}/"] audits "schedule.delete";
    /// Starts a run now, as a batch of the caller.
    ScheduleRun: User, [POST "/api/events/schedules/{id}/run/"] audits "batch.create";
    /// The run history.
    ScheduleRunList: User, [GET "/api/events/schedules/{id}/runs/"];
    ScriptList: User, [GET "/api/events/scripts/"], accepts_limited_tokens;
    ScriptCreate: User, [POST "/api/events/scripts/"] audits "script.create";
    ScriptRetrieve: User, [GET "/api/events/scripts/{id}/"], accepts_limited_tokens;
    /// Creates a version from the sent fields and defaults.
    ScriptReplace: User, [PUT "/api/events/scripts/{id}/"] audits "script.update", creates;
    /// Creates a version in which the sent fields differ.
    ScriptUpdate: User, [PATCH "/api/events/scripts/{id}/"] audits "script.update", creates;
    /// Hides the script. Its versions stay.
    ScriptDelete: User, [DELETE "/api/events/scripts/{id}/"] audits "script.delete";
    ScriptVersionList: User, [GET "/api/events/scripts/{id}/versions/"], accepts_limited_tokens;
    ScriptVersionRetrieve: User, [GET "/api/events/scripts/{id}/versions/{version}/"], accepts_limited_tokens;

    AuditList: User, [GET "/api/audit/events/"];
    AuditVerify: User, [POST "/api/audit/verify/"], works_when_full;

    /// An agent creates a server for its host.
    AgentRegister: Registration, [POST "/api/servers/servers/register/"] audits "server.register";
    /// The agent has received a command.
    AgentAck: Agent, [POST "/api/events/commands/{id}/ack/"];
    /// Output of a command.
    AgentChunk: Agent, [POST "/api/events/commands/{id}/chunk/"];
    /// A command ended.
    AgentFin: Agent, [POST "/api/events/commands/{id}/fin/"];
    /// The agent does not run a command.
    AgentReject: Agent, [POST "/api/events/commands/{id}/reject/"];
    /// An event of the agent itself.
    AgentEvent: Agent, [POST "/api/events/events/"];
    /// The agent's first report of its facts: the properties of the agent and its host.
    AgentCommit: Agent, [PUT "/api/servers/servers/-/commit/"];
    /// Changed facts.
    AgentSync: Agent, [PATCH "/api/servers/servers/-/sync/"];
    /// Which of the agent's facts the service lacks.
    AgentSyncCheck: Agent, [POST "/api/servers/servers/-/sync-check/"];
    AgentHeartbeat: Agent, [PATCH "/api/servers/servers/-/status/"];
    /// An agent deletes its own server.
    AgentUnregister: Agent, [
        DELETE "/api/servers/servers/{id}/unregister/", DELETE "/api/servers/servers/-/unregister/"
    ] audits "server.unregister";
    /// What the agent should measure.
    AgentMetricsConfig: Agent, [GET "/api/metrics/config/"];
    /// The state that older agents compare with their own. They crash on a 404 here.
    AgentProcSync: Agent, [GET "/api/proc/{*rest}"];
    /// Facts by category, after the first report.
    AgentProcReport: Agent, [POST PUT PATCH "/api/proc/{*rest}"];
    /// Responds 404.
    AgentUnknown: Agent, [
        GET "/api/history/{*rest}", GET "/api/metrics/{*rest}", GET "/api/servers/servers/-/{*rest}"
    ];
    /// Accepts reports that the service does not use, because agents retry a report until it
    /// succeeds (agent-protocol 4.4).
    AgentIgnored: Agent, [
        DELETE "/api/proc/{*rest}",
        POST PUT PATCH DELETE "/api/history/{*rest}",
        POST PUT PATCH DELETE "/api/metrics/{*rest}",
        POST PUT PATCH DELETE "/api/servers/servers/-/{*rest}"
    ];
    /// The WebSocket that delivers commands.
    AgentBackhaul: Agent, [GET "/ws/servers/backhaul/"];
    /// A WebSocket that carries only pings.
    AgentControl: Agent, [GET "/ws/servers/control/"];
}

impl Endpoint {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The credential that the endpoint expects.
    pub fn access(self) -> Access {
        self.row().access
    }

    /// Whether an API token with an access control list may call the endpoint.
    pub fn accepts_limited_tokens(self) -> bool {
        self.row().options.accepts_limited_tokens
    }

    /// Whether a cloud deployment hides the endpoint.
    pub fn is_on_prem_only(self) -> bool {
        self.row().options.is_on_prem_only
    }

    /// What a request with this method adds to the database (contract 11.7).
    pub fn growth(self, method: &str) -> Growth {
        let Options { works_when_full, creates, .. } = self.row().options;
        let is_allowed = match self.access() {
            Access::Open | Access::Agent | Access::Operator => true,
            Access::User | Access::UserOrAgent | Access::Registration => works_when_full,
        };
        match method {
            _ if is_allowed => Growth::Allowed,
            "POST" => Growth::Creates,
            "PUT" | "PATCH" if creates => Growth::Creates,
            "PUT" | "PATCH" => Growth::Changes,
            _ => Growth::Allowed,
        }
    }

    /// The action in the audit log, if the endpoint's changes are logged.
    pub fn audit_action(self) -> Option<&'static str> {
        self.row().options.audit_action
    }
}

/// A path with all its methods.
pub struct Route {
    /// The pattern, with parameters in braces.
    pub path: &'static str,
    /// The access of every endpoint of the path.
    pub access: Access,
    /// The methods, in the order of the Allow header. GET also serves HEAD.
    pub methods: Vec<(&'static str, Endpoint)>,
}

/// Every path of the service, in the order of the table.
pub static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let mut routes: Vec<Route> = Vec::new();
    for row in ROWS {
        for (methods, path) in row.paths {
            let methods = methods.iter().map(|method| (*method, row.endpoint));
            match routes.iter_mut().find(|route| route.path == *path) {
                Some(route) => route.methods.extend(methods),
                None => routes.push(Route { path, access: row.access, methods: methods.collect() }),
            }
        }
    }
    routes
});

static ROUTER: LazyLock<Router<&'static Route>> = LazyLock::new(|| {
    let mut router = Router::new();
    for route in ROUTES.iter() {
        router.insert(route.path, route).expect("the table's patterns are valid and differ");
    }
    router
});

/// The route of a path, and the values of the path's parameters. All pages of the console have the
/// route of `/`.
pub fn find(path: &str) -> Option<(&'static Route, Params<'_, '_>)> {
    let path = if console::is_page(path) { "/" } else { path };
    ROUTER.at(path).ok().map(|found| (*found.value, found.params))
}

/// Paths with these prefixes end with a slash (contract 3.1). Other paths are files and pages.
const SLASHED: [&str; 3] = ["/api/", "/operator/", "/ws/"];

/// Returns the path with a trailing slash, if the path should have a slash and lacks it.
pub fn with_slash(path: &str) -> Option<String> {
    // Some rows have no trailing slash on purpose, and the pages of the console need none.
    if path.ends_with('/')
        || console::is_page(path)
        || ROUTES.iter().any(|route| route.path == path)
    {
        return None;
    }
    let slashed = format!("{path}/");
    let is_slashed =
        SLASHED.iter().any(|prefix| slashed.starts_with(prefix)) || find(&slashed).is_some();
    is_slashed.then_some(slashed)
}

impl Route {
    /// The endpoint of a method.
    pub fn endpoint(&self, method: &str) -> Option<Endpoint> {
        let method = if method == "HEAD" { "GET" } else { method };
        self.methods.iter().find(|(name, _)| *name == method).map(|(_, endpoint)| *endpoint)
    }

    /// The methods that a deployment serves.
    fn served(&self, on_prem: bool) -> impl Iterator<Item = &'static str> {
        let served =
            self.methods.iter().filter(move |(_, endpoint)| on_prem || !endpoint.is_on_prem_only());
        served.map(|(name, _)| *name)
    }

    /// Whether a deployment hides the method of this path. A hidden method gets 404. An unknown
    /// method gets 405, or 404 if the deployment hides all methods of the path.
    pub fn is_hidden(&self, method: &str, on_prem: bool) -> bool {
        match self.endpoint(method) {
            Some(endpoint) => !on_prem && endpoint.is_on_prem_only(),
            None => self.served(on_prem).next().is_none(),
        }
    }

    /// The value of the Allow header.
    pub fn allow(&self, on_prem: bool) -> String {
        let mut names: Vec<&str> = self.served(on_prem).collect();
        if names.contains(&"GET") {
            names.push("HEAD");
        }
        names.push("OPTIONS");
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn route(path: &str) -> &'static Route {
        find(path).unwrap_or_else(|| panic!("{path}")).0
    }

    #[test]
    fn each_endpoint_has_its_row() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.endpoint as usize, index, "{:?}", row.endpoint);
        }
        assert_eq!(Endpoint::CommandKill.audit_action(), Some("command.kill"));
        assert_eq!(Endpoint::CommandList.audit_action(), None);
    }

    /// The whole table: a new endpoint is refused while D1 is nearly full, unless it is listed here.
    #[test]
    fn only_these_changes_work_while_the_database_is_nearly_full() {
        let (mut allowed, mut changes, mut creates) = (BTreeSet::new(), 0, 0);
        for route in ROUTES.iter() {
            for (method, endpoint) in &route.methods {
                let growth = endpoint.growth(method);
                match *method {
                    "GET" | "DELETE" => assert_eq!(growth, Growth::Allowed, "{endpoint:?}"),
                    _ if growth == Growth::Allowed => {
                        allowed.insert(format!("{endpoint:?}"));
                    }
                    _ if growth == Growth::Creates => creates += 1,
                    _ => changes += 1,
                }
            }
        }
        let expected = [
            "AclCheck",
            "AgentAck",
            "AgentChunk",
            "AgentCommit",
            "AgentEvent",
            "AgentFin",
            "AgentHeartbeat",
            "AgentIgnored",
            "AgentProcReport",
            "AgentReject",
            "AgentSync",
            "AgentSyncCheck",
            "AuditVerify",
            "BatchCancel",
            "BatchKill",
            "CellAuditVerify",
            "CommandCancel",
            "CommandKill",
            "Login",
            "Logout",
            "PasswordChange",
            "PasswordSet",
            "ResetConfirm",
            "ResetRequest",
            "ServerApprove",
            "ServerRotateKey",
            "ServerUndelete",
            "WorkspaceCreate",
            "WorkspaceResync",
            "WorkspaceUndelete",
        ];
        assert_eq!(allowed.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        assert!(changes > 10 && creates > 10, "{changes} {creates}");
        assert_eq!(Endpoint::ScriptUpdate.growth("PATCH"), Growth::Creates);
        assert_eq!(Endpoint::AgentRegister.growth("POST"), Growth::Creates);
        assert_eq!(Endpoint::UserUpdate.growth("PATCH"), Growth::Changes);
    }

    #[test]
    fn every_audit_action_is_documented() {
        // A name that begins with a dot continues the resource before it: `group.create`,
        // `.update`.
        let (mut documented, mut resource) = (BTreeSet::new(), "");
        for name in include_str!("../../../docs/audit.md").split('`').skip(1).step_by(2) {
            resource = name
                .split_once('.')
                .map_or(resource, |(start, _)| if start.is_empty() { resource } else { start });
            documented.insert(if name.starts_with('.') {
                format!("{resource}{name}")
            } else {
                name.to_owned()
            });
        }
        let actions: Vec<_> = ROWS.iter().filter_map(|row| row.endpoint.audit_action()).collect();
        let missing: Vec<_> =
            actions.iter().filter(|action| !documented.contains(**action)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(actions.len() > 30, "{actions:?}");
    }

    #[test]
    fn methods_of_a_path_share_an_access_and_are_in_order() {
        let order = ["GET", "POST", "PUT", "PATCH", "DELETE"];
        for route in ROUTES.iter() {
            let positions = route.methods.iter().map(|(method, endpoint)| {
                assert_eq!(endpoint.access(), route.access, "{method} {}", route.path);
                order
                    .iter()
                    .position(|name| name == method)
                    .unwrap_or_else(|| panic!("{method} {}", route.path))
            });
            assert!(positions.is_sorted_by(|a, b| a < b), "{}", route.path);
        }
    }

    #[test]
    fn every_pattern_finds_itself() {
        for row in ROUTES.iter() {
            let path = row.path.replace("{*rest}", "some/where/").replace(['{', '}'], "");
            assert_eq!(route(&path).path, row.path);
        }
    }

    #[test]
    fn a_fixed_segment_comes_before_a_parameter() {
        for fixed in [
            "/api/servers/servers/",
            "/api/servers/registration-tokens/",
            "/api/servers/servers/register/",
        ] {
            assert_eq!(route(fixed).path, fixed);
        }
        assert_eq!(route("/api/servers/web-1/").path, "/api/servers/{id}/");
        assert_eq!(route("/api/servers/servers/-/").path, "/api/servers/servers/{id}/");
        assert_eq!(route("/api/servers/servers/-/sync/").path, "/api/servers/servers/-/sync/");
        assert_eq!(route("/api/servers/servers/-/other/x/").path, "/api/servers/servers/-/{*rest}");
        assert!(find("/api/servers/servers/01936d3e-7a00-7000-8000-000000000000/sync/").is_none());
    }

    #[test]
    fn parameters_have_their_values() {
        let (_, parameters) = find("/api/events/commands/7/kill/").expect("a path of the table");
        assert_eq!(parameters.iter().collect::<Vec<_>>(), [("id", "7")]);
    }

    #[test]
    fn a_missing_slash_is_added() {
        for path in [
            "/healthz",
            "/reset-password/page.css",
            "/reset-password/page.js",
            "/api/docs/page.js",
            "/install.sh",
            "/agent/0.2.0/farhand-agent-x86_64",
            "/api/status/",
            "/",
            "/x",
        ] {
            assert_eq!(with_slash(path), None, "{path}");
        }
        for path in [
            "/reset-password",
            "/api/status",
            "/api/unknown",
            "/api/docs",
            "/api/docs/unknown.js",
            "/api",
            "/operator",
            "/ws",
            "/api/proc/{*rest}/x",
        ] {
            assert_eq!(with_slash(path), Some(format!("{path}/")));
        }
    }

    #[test]
    fn get_answers_head() {
        let route = route("/api/status/");
        assert_eq!(route.endpoint("HEAD"), Some(Endpoint::Status));
        assert_eq!(route.endpoint("POST"), None);
        assert_eq!(route.allow(true), "GET, HEAD, OPTIONS");
    }

    #[test]
    fn a_cloud_deployment_hides_on_prem_endpoints() {
        let by_name = route("/api/users/users/boss/");
        assert_eq!(by_name.allow(false), "GET, DELETE, HEAD, OPTIONS");
        assert_eq!(by_name.allow(true), "GET, PUT, PATCH, DELETE, HEAD, OPTIONS");
        let hidden = |route: &Route, on_prem| {
            let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"];
            methods
                .into_iter()
                .filter(|method| route.is_hidden(method, on_prem))
                .collect::<Vec<_>>()
        };
        assert_eq!(hidden(by_name, false), ["PUT"]);
        assert_eq!(
            hidden(route("/api/auth/login/"), false),
            ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]
        );
        assert!(
            hidden(by_name, true).is_empty() && hidden(route("/api/auth/login/"), true).is_empty()
        );
    }
}
