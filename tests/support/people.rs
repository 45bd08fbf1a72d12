//! Groups, memberships, and a cast of users who cover every relation to a server and to a group
//! (contract 5.4).

use serde_json::{Value, json};

use crate::client::{Api, PASSWORD, Workspace, unique};

pub const GROUPS: &str = "/api/iam/groups/";
pub const MEMBERSHIPS: &str = "/api/iam/memberships/";
pub const SERVERS: &str = "/api/servers/servers/";
pub const USERS: &str = "/api/iam/users/";
pub const COMMANDS: &str = "/api/events/commands/";
pub const BATCHES: &str = "/api/events/batches/";
/// A UUID that no resource has.
pub const UNKNOWN_UUID: &str = "01936d3e-7a00-7000-8000-000000000000";
/// A number that no user and no group has.
pub const UNKNOWN_ID: i64 = 999_999_999;

/// The path of a resource whose id is a UUID.
pub fn item_path(list: &str, object: &Value) -> String {
    format!(
        "{list}{}/",
        object["id"].as_str().unwrap_or_else(|| panic!("the id is no UUID: {object}"))
    )
}

/// The path of a group.
pub fn group_path(group: &Value) -> String {
    format!(
        "{GROUPS}{}/",
        group["id"].as_i64().unwrap_or_else(|| panic!("the id is not a number: {group}"))
    )
}

/// The names of an object's fields, sorted.
pub fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// One field of every item on a page of a list.
pub fn column(list: &Value, field: &str) -> Vec<Value> {
    list["results"].as_array().unwrap().iter().map(|item| item[field].clone()).collect()
}

/// A user and a client for them.
pub struct Person {
    /// A client with the user's login token.
    pub api: Api,
    pub id: i64,
    pub username: String,
}

impl Person {
    /// Creates an ordinary user.
    pub async fn new(workspace: &Workspace, username: &str) -> Self {
        Self::with(workspace, username, &json!({})).await
    }

    /// Creates a staff user.
    pub async fn staff(workspace: &Workspace, username: &str) -> Self {
        Self::with(workspace, username, &json!({"is_staff": true})).await
    }

    async fn with(workspace: &Workspace, username: &str, more: &Value) -> Self {
        let user = workspace.user_with(username, more).await;
        let api = workspace.anonymous.logged_in(username, PASSWORD).await;
        Self { api, id: user["id"].as_i64().unwrap(), username: username.to_owned() }
    }

    pub fn path(&self) -> String {
        format!("{USERS}{}/", self.id)
    }

    /// A client with a new API token. Unlike a login token, it does not end with the session.
    pub async fn with_api_token(&self) -> Api {
        let body = json!({"name": "test", "expires_at": null});
        let token = self.api.post("/api/auth/tokens/", &body).await.expect(201);
        self.api.with_token(token["key"].as_str().unwrap())
    }

    /// Removes staff rank from the user, who keeps their servers. Then logs in again, because a
    /// demotion ends the sessions.
    pub async fn demote(&mut self, workspace: &Workspace) {
        self.set(workspace, json!({"is_staff": false, "keep_servers": true})).await;
        self.api = workspace.anonymous.logged_in(&self.username, PASSWORD).await;
    }

    /// Makes the user the owner of a server. The superuser sends the request.
    pub async fn own(&self, workspace: &Workspace, server: &Value) -> Value {
        workspace
            .admin
            .patch(&item_path(SERVERS, server), &json!({"owner": self.id}))
            .await
            .expect(200)
    }

    /// Updates the user. The superuser sends the request.
    pub async fn set(&self, workspace: &Workspace, changes: Value) {
        workspace.admin.patch(&self.path(), &changes).await.expect(200);
    }
}

impl Workspace {
    /// Uses up some ids, so that the next users and groups have ids that no other small workspace
    /// has.
    pub async fn skip_ids(&self) {
        for _ in 0..5 {
            let group = self.group(&unique("spare"), &[]).await;
            self.admin.delete(&group_path(&group)).await.expect(204);
            let user = self.user_with(&unique("spare"), &json!({})).await;
            self.admin.delete(&format!("{USERS}{}/", user["id"])).await.expect(204);
        }
    }

    /// Creates a group with servers. Its owner is the superuser.
    pub async fn group(&self, name: &str, servers: &[&Value]) -> Value {
        let ids: Vec<&Value> = servers.iter().map(|server| &server["id"]).collect();
        self.admin.post(GROUPS, &json!({"name": name, "servers": ids})).await.expect(201)
    }

    /// Adds a user to a group, and returns the membership.
    pub async fn add_member(&self, group: &Value, person: &Person, role: &str) -> Value {
        let body = json!({"group": group["id"], "user": person.id, "role": role});
        self.admin.post(MEMBERSHIPS, &body).await.expect(201)
    }

    /// The membership of a user in a group.
    pub async fn membership(&self, group: &Value, person: &Person) -> Option<Value> {
        let query = format!("{MEMBERSHIPS}?group={}&user={}", group["id"], person.id);
        let list = self.admin.get(&query).await.expect(200);
        list["results"].as_array().unwrap().first().cloned()
    }

    /// Deletes the membership of a user in a group.
    pub async fn remove_member(&self, group: &Value, person: &Person) {
        let membership = self.membership(group, person).await.expect("a membership");
        self.admin.delete(&item_path(MEMBERSHIPS, &membership)).await.expect(204);
    }
}

/// The number of clients that [`Cast::callers`] returns.
pub const CALLERS: usize = 9;

/// A workspace and users with every relation to its servers and groups.
pub struct Cast {
    /// The workspace. Its superuser is the first caller.
    pub workspace: Workspace,
    /// Another workspace. Its superuser is the last two callers.
    pub elsewhere: Workspace,
    /// A staff user.
    pub staff: Person,
    /// The owner of the servers, who is in no group.
    pub owner: Person,
    /// An owner of the groups.
    pub group_owner: Person,
    /// A manager of the groups.
    pub manager: Person,
    /// A plain member of the groups.
    pub member: Person,
    /// A user with no relation to the servers and groups.
    pub outsider: Person,
    /// Another manager of the groups, who sends no requests.
    pub deputy: Person,
    /// Another member of the groups, who sends no requests.
    pub bystander: Person,
    /// The group that the servers are in.
    pub group: Value,
}

/// A group of a [`Cast`], with the memberships that tests change.
pub struct CastGroup {
    pub group: Value,
    /// The membership of the deputy, a manager.
    pub deputy: Value,
    /// The membership of the bystander, a member.
    pub bystander: Value,
}

impl Cast {
    /// Creates both workspaces, the users and the group.
    pub async fn new() -> Self {
        let workspace = Workspace::new().await;
        let mut cast = Self {
            elsewhere: Workspace::new().await,
            staff: Person::staff(&workspace, "staff").await,
            owner: Person::new(&workspace, "owner").await,
            group_owner: Person::new(&workspace, "group-owner").await,
            manager: Person::new(&workspace, "manager").await,
            member: Person::new(&workspace, "member").await,
            outsider: Person::new(&workspace, "outsider").await,
            deputy: Person::new(&workspace, "deputy").await,
            bystander: Person::new(&workspace, "bystander").await,
            group: Value::Null,
            workspace,
        };
        cast.group = cast.group().await.group;
        cast
    }

    /// One client for each relation, with its name. `intruder` is the superuser of the other
    /// workspace, who sends requests to this one.
    pub fn callers(&self) -> [(&'static str, Api); CALLERS] {
        let intruder = self.elsewhere.admin.with_host(&self.workspace.anonymous.host);
        [
            ("superuser", self.workspace.admin.clone()),
            ("staff", self.staff.api.clone()),
            ("owner", self.owner.api.clone()),
            ("group owner", self.group_owner.api.clone()),
            ("manager", self.manager.api.clone()),
            ("member", self.member.api.clone()),
            ("outsider", self.outsider.api.clone()),
            ("elsewhere", self.elsewhere.admin.clone()),
            ("intruder", intruder),
        ]
    }

    /// Creates a server in the group, and makes the owner its owner. Returns it with its key.
    pub async fn server(&self) -> Value {
        let body = json!({"name": unique("web"), "groups": [self.group["id"]]});
        let made = self.workspace.admin.post(SERVERS, &body).await.expect(201);
        let mut server = self.owner.own(&self.workspace, &made).await;
        for field in ["key", "install", "install_alpamon"] {
            server[field] = made[field].clone();
        }
        server
    }

    /// Creates a group with all users of the cast in their roles.
    pub async fn group(&self) -> CastGroup {
        let workspace = &self.workspace;
        let group = workspace.group(&unique("group"), &[]).await;
        for (person, role) in
            [(&self.group_owner, "owner"), (&self.manager, "manager"), (&self.member, "member")]
        {
            workspace.add_member(&group, person, role).await;
        }
        let deputy = workspace.add_member(&group, &self.deputy, "manager").await;
        let bystander = workspace.add_member(&group, &self.bystander, "member").await;
        // The creator of a group becomes its owner. The cast's superuser must have no membership.
        let made = workspace
            .admin
            .get(&format!("{MEMBERSHIPS}?group={}&role=owner", group["id"]))
            .await
            .expect(200);
        workspace.admin.delete(&item_path(MEMBERSHIPS, &made["results"][0])).await.expect(204);
        let group = workspace.admin.get(&group_path(&group)).await.expect(200);
        CastGroup { group, deputy, bystander }
    }
}
