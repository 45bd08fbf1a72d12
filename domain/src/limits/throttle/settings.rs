//! How a deployment sets the throttles.

/// The settings of a deployment: the lengths of the windows, in seconds, and the limits of networks
/// and workspaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThrottleSettings {
    /// The login window, in seconds: for pairs, addresses, sites and workspaces.
    pub login_seconds: i64,
    /// The length of the "hour" for usernames, successful logins and resets, in seconds. Tests
    /// shorten it.
    pub hour_seconds: i64,
    /// Maximum number of failed logins of an IPv6 site (/48), in a login window.
    pub logins_of_site: u32,
    /// Maximum number of failed logins in a workspace, in a login window. Logins from known
    /// addresses do not count.
    pub logins_of_workspace: u32,
    /// Maximum number of successful logins of a user, in an hour.
    pub logins_of_user: u32,
    /// Maximum number of reset requests of an IPv6 site (/48), in an hour.
    pub resets_of_site: u32,
    /// Maximum number of reset requests in a workspace, in an hour.
    pub resets_of_workspace: u32,
}

impl Default for ThrottleSettings {
    fn default() -> Self {
        Self {
            login_seconds: 300,
            hour_seconds: 3_600,
            logins_of_site: 200,
            logins_of_workspace: 1_000,
            logins_of_user: 600,
            resets_of_site: 200,
            resets_of_workspace: 2_000,
        }
    }
}
