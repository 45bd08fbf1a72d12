//! Groups, and a cast of people who stand in every way to a server and to a group (contract 5.4).

use serde_json::{Value, json};

use crate::client::{Api, PASSWORD, Workspace, unique};

/// The list of groups.
pub const GROUPS: &str = "/api/iam/groups/";
/// The list of memberships.
pub const MEMBERSHIPS: &str = "/api/iam/memberships/";
/// The list of servers.
pub const SERVERS: &str = "/api/servers/servers/";
/// The list of users.
pub const USERS: &str = "/api/iam/users/";
/// The list of commands.
pub const COMMANDS: &str = "/api/events/commands/";
/// A UUID of nothing.
pub const NO_UUID: &str = "01936d3e-7a00-7000-8000-000000000000";
/// A number of no user and of no group.
pub const NO_NUMBER: i64 = 999_999_999;

/// The path of an object whose id is a UUID.
pub fn at(list: &str, object: &Value) -> String {
    format!("{list}{}/", object["id"].as_str().unwrap_or_else(|| panic!("no UUID: {object}")))
}

/// The path of a group.
pub fn group_path(group: &Value) -> String {
    format!("{GROUPS}{}/", group["id"].as_i64().unwrap_or_else(|| panic!("no number: {group}")))
}

/// The names of an object's fields, sorted.
pub fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// One field of every item of a list's page.
pub fn column(list: &Value, field: &str) -> Vec<Value> {
    list["results"].as_array().unwrap().iter().map(|item| item[field].clone()).collect()
}

/// A user with a login token.
pub struct Person {
    /// A client with the login token.
    pub api: Api,
    /// The user's id.
    pub id: i64,
    /// The user's name.
    pub username: String,
}

impl Person {
    /// Makes an ordinary user.
    pub async fn new(workspace: &Workspace, username: &str) -> Self {
        Self::with(workspace, username, &json!({})).await
    }

    /// Makes a user who is staff.
    pub async fn staff(workspace: &Workspace, username: &str) -> Self {
        Self::with(workspace, username, &json!({"is_staff": true})).await
    }

    async fn with(workspace: &Workspace, username: &str, more: &Value) -> Self {
        let user = workspace.user_with(username, more).await;
        let api = workspace.anonymous.logged_in(username, PASSWORD).await;
        Self { api, id: user["id"].as_i64().unwrap(), username: username.to_owned() }
    }

    /// The path of the user.
    pub fn path(&self) -> String {
        format!("{USERS}{}/", self.id)
    }

    /// A client with a new API token of the user's, which outlives their sessions.
    pub async fn with_api_token(&self) -> Api {
        let body = json!({"name": "test", "expires_at": null});
        let token = self.api.post("/api/auth/tokens/", &body).await.expect(201);
        self.api.with_token(token["key"].as_str().unwrap())
    }

    /// Takes staff rank from the user, who keeps their servers, and logs in again: the session has
    /// ended.
    pub async fn demote(&mut self, workspace: &Workspace) {
        self.set(workspace, json!({"is_staff": false, "keep_servers": true})).await;
        self.api = workspace.anonymous.logged_in(&self.username, PASSWORD).await;
    }

    /// Makes the user the owner of a server, as a superuser.
    pub async fn own(&self, workspace: &Workspace, server: &Value) -> Value {
        workspace.admin.patch(&at(SERVERS, server), &json!({"owner": self.id})).await.expect(200)
    }

    /// Changes the user, as a superuser.
    pub async fn set(&self, workspace: &Workspace, changes: Value) {
        workspace.admin.patch(&self.path(), &changes).await.expect(200);
    }
}

impl Workspace {
    /// Moves the counters of ids on, so that the next users and groups have ids that no other small
    /// workspace has.
    pub async fn count_on(&self) {
        for _ in 0..5 {
            let group = self.group(&unique("spare"), &[]).await;
            self.admin.delete(&group_path(&group)).await.expect(204);
            let user = self.user_with(&unique("spare"), &json!({})).await;
            self.admin.delete(&format!("{USERS}{}/", user["id"])).await.expect(204);
        }
    }

    /// Makes a group with servers, of which the superuser is the owner.
    pub async fn group(&self, name: &str, servers: &[&Value]) -> Value {
        let ids: Vec<&Value> = servers.iter().map(|server| &server["id"]).collect();
        self.admin.post(GROUPS, &json!({"name": name, "servers": ids})).await.expect(201)
    }

    /// Takes somebody into a group; returns the membership.
    pub async fn enroll(&self, group: &Value, person: &Person, role: &str) -> Value {
        let body = json!({"group": group["id"], "user": person.id, "role": role});
        self.admin.post(MEMBERSHIPS, &body).await.expect(201)
    }

    /// The membership of somebody in a group.
    pub async fn membership(&self, group: &Value, person: &Person) -> Option<Value> {
        let query = format!("{MEMBERSHIPS}?group={}&user={}", group["id"], person.id);
        let list = self.admin.get(&query).await.expect(200);
        list["results"].as_array().unwrap().first().cloned()
    }

    /// Ends the membership of somebody in a group.
    pub async fn expel(&self, group: &Value, person: &Person) {
        let membership = self.membership(group, person).await.expect("a membership");
        self.admin.delete(&at(MEMBERSHIPS, &membership)).await.expect(204);
    }
}

/// How many stand in different ways to things of a workspace.
pub const CALLERS: usize = 9;

/// A workspace with people who stand in every way to the servers and groups that are made with it.
pub struct Cast {
    /// Their workspace; its superuser is the first of them.
    pub workspace: Workspace,
    /// Another one, whose superuser is the last of them.
    pub elsewhere: Workspace,
    /// Staff.
    pub staff: Person,
    /// The owner of the servers, who is in no group.
    pub owner: Person,
    /// An owner of the groups.
    pub group_owner: Person,
    /// A manager of the groups.
    pub manager: Person,
    /// A plain member of the groups.
    pub member: Person,
    /// Somebody who has nothing to do with any of it.
    pub outsider: Person,
    /// Another manager of the groups, who does nothing.
    pub deputy: Person,
    /// Another member of the groups, who does nothing.
    pub bystander: Person,
    /// The group that the servers are in.
    pub group: Value,
}

/// A group of a [`Cast`], with the memberships of those in it who do nothing.
pub struct CastGroup {
    /// The group.
    pub group: Value,
    /// The membership of the deputy, a manager.
    pub deputy: Value,
    /// The membership of the bystander, a member.
    pub bystander: Value,
}

impl Cast {
    /// Brings them together.
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

    /// All who ask, by what they are. The last one is the superuser of the other workspace once
    /// more, who asks here.
    pub fn callers(&self) -> [(&'static str, Api); CALLERS] {
        let intruder = self.elsewhere.admin.under(&self.workspace.anonymous.host);
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

    /// Makes a server of the owner's that is in the group; returns it with its key.
    pub async fn server(&self) -> Value {
        let body = json!({"name": unique("web"), "groups": [self.group["id"]]});
        let made = self.workspace.admin.post(SERVERS, &body).await.expect(201);
        let mut server = self.owner.own(&self.workspace, &made).await;
        for field in ["key", "install", "install_alpamon"] {
            server[field] = made[field].clone();
        }
        server
    }

    /// Makes a group that everybody is in as what they are.
    pub async fn group(&self) -> CastGroup {
        let workspace = &self.workspace;
        let group = workspace.group(&unique("group"), &[]).await;
        for (person, role) in
            [(&self.group_owner, "owner"), (&self.manager, "manager"), (&self.member, "member")]
        {
            workspace.enroll(&group, person, role).await;
        }
        let deputy = workspace.enroll(&group, &self.deputy, "manager").await;
        let bystander = workspace.enroll(&group, &self.bystander, "member").await;
        // Whoever makes a group owns it; a superuser needs that for nothing.
        let made = workspace
            .admin
            .get(&format!("{MEMBERSHIPS}?group={}&role=owner", group["id"]))
            .await
            .expect(200);
        workspace.admin.delete(&at(MEMBERSHIPS, &made["results"][0])).await.expect(204);
        let group = workspace.admin.get(&group_path(&group)).await.expect(200);
        CastGroup { group, deputy, bystander }
    }
}
