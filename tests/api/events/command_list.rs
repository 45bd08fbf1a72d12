//! `GET /api/events/commands/`: filters, search, ordering, pages and counts (contract 7.10), and
//! their cost (`docs/contributing/performance.md`, What lists cost). The tests insert commands
//! directly into the database: up to a hundred thousand, and with any timestamps.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use farhand_tests::client::{encoded, unique};
use farhand_tests::{Api, Dice, Instance, Reply, Workspace, eventually, far_ahead};
use serde_json::{Value, json};

const PATH: &str = "/api/events/commands/";
/// A time after every test run.
const FAR_FUTURE: &str = "2999-01-01T00:00:00.000000+00:00";

/// SQL for the id of a workspace's server with a number.
fn server_id(workspace: i64, number: &str) -> String {
    format!("printf('%08x-0000-7000-8000-%012x', {workspace}, {number})")
}

/// SQL for a time some seconds after the beginning of 2026. No test runs in that week.
fn sql_time(seconds: &str) -> String {
    format!("strftime('%Y-%m-%dT%H:%M:%f000+00:00', '2026-01-01', ({seconds}) || ' seconds')")
}

async fn workspace_id(instance: &Instance, workspace: &Workspace) -> i64 {
    let rows = instance.d1(&format!("SELECT id FROM workspaces WHERE slug = '{}'", workspace.slug));
    rows[0]["id"].as_i64().unwrap()
}

async fn user_id(api: &Api) -> i64 {
    api.get("/api/iam/users/-/").await.expect(200)["id"].as_i64().unwrap()
}

/// Sends a query. Returns the response, and how many rows were read.
async fn cost(instance: &Instance, api: &Api, query: &str) -> (Reply, u64) {
    let id = unique("cost");
    let reply =
        api.send(api.request("GET", &format!("{PATH}?{query}")).header("X-Request-Id", &id)).await;
    let line = instance.request_log_line(&id).await;
    (reply, line["rows_read"].as_u64().unwrap())
}

#[tokio::test]
async fn all_malformed_parameters_are_reported() {
    let workspace = Workspace::new().await;
    let get = async |query: &str| workspace.admin.get(&format!("{PATH}?{query}")).await;
    for (name, value) in [
        ("server", "web-1"),
        ("server", ""),
        ("shell", "bash"),
        ("shell", ""),
        ("requested_by", "boss"),
        ("requested_by", "1.0"),
        ("requested_by_isnull", "2"),
        ("is_scheduled", "maybe"),
        ("state", "Failed"),
        ("state", "failed,"),
        ("success", "no"),
        ("exit_code", "x"),
        ("added_at__gte", "2026-01-01"),
        ("added_at__lt", "x"),
        ("search", "a%00b"),
        ("ordering", "line"),
        ("ordering", "added_at,-"),
        ("page", "0"),
        ("page_size", "x"),
    ] {
        get(&format!("{name}={value}")).await.expect_fields(400, &[name]);
    }
    let all = "server=x&shell=x&requested_by=x&requested_by_isnull=x&is_scheduled=x&search=%00&ordering=x&page=x&page_size=x";
    let names = [
        "is_scheduled",
        "ordering",
        "page",
        "page_size",
        "requested_by",
        "requested_by_isnull",
        "search",
        "server",
        "shell",
    ];
    get(all).await.expect_fields(400, &names);
    // The credential is checked before the input.
    workspace.anonymous.get(&format!("{PATH}?{all}")).await.expect_detail(401, None);
    let empty = json!({"count": 0, "next": null, "previous": null, "results": []});
    for query in [
        "unknown=x",
        "server=01936d3e-7a00-7000-8000-000000000000",
        "requested_by=999999",
        "requested_by=-1",
        "requested_by=99999999999999999999",
        "search=nothing",
    ] {
        assert_eq!(get(query).await.expect(200), empty, "{query}");
    }
    // Search text has no special syntax.
    let long = "x".repeat(10_000);
    let many = "a ab abc ä ".repeat(500);
    for text in [
        "\"",
        "\"\"\"",
        "%",
        "_",
        "*",
        "a* OR b",
        "NEAR(a b)",
        "line:abc",
        "' OR 1=1 --",
        "(",
        "\u{fffd}",
        &long,
        &many,
    ] {
        assert_eq!(
            get(&encoded(&[("search", text.to_owned())])).await.expect(200),
            empty,
            "{text}"
        );
    }
    get("search=%FF%C3").await.expect(200);
}

fn sql_text(text: Option<&str>) -> String {
    text.map_or_else(|| "NULL".to_owned(), |text| format!("'{}'", text.replace('\'', "''")))
}

/// A command in the model.
#[derive(Clone, Debug)]
struct ModelCommand {
    id: String,
    server: String,
    server_name: String,
    requested_by: Option<i64>,
    shell: &'static str,
    line: &'static str,
    username: &'static str,
    state: &'static str,
    success: Option<bool>,
    exit_code: Option<i64>,
    times: HashMap<&'static str, Option<String>>,
}

impl ModelCommand {
    /// The state that the API shows.
    fn shown_state(&self) -> &'static str {
        let is_due = self.times["scheduled_at"].as_deref() < Some("2900");
        match self.state {
            "waiting" if is_due => "queued",
            "waiting" => "scheduled",
            state => state,
        }
    }
}

const STATES: [&str; 8] =
    ["waiting", "sent", "acked", "stuck", "success", "failed", "cancelled", "expired"];
const USERNAMES: [&str; 3] = ["root", "deploy", "Deploy"];

const TIME_FIELDS: [&str; 5] =
    ["added_at", "scheduled_at", "delivered_at", "acked_at", "handled_at"];
const LINES: [&str; 22] = [
    "uptime",
    "ls",
    "w",
    "é",
    "ls -l /var",
    "LS -L",
    "systemctl restart web-1",
    "echo ÄRGER ärger",
    "日本語 テスト",
    "日本",
    "100%_* \"done\"",
    "a_b",
    "a%b",
    "[x] ? ^-]",
    "boss was here",
    "ПРИВЕТ мир",
    "printf 'a\nb'",
    "tail -f /var/log/syslog",
    "x",
    "-- ' OR 1=1",
    "ß STRASSE",
    "db-2 web-1 anna",
];
/// Lines of more than 1,024 characters. Only the first 1,024 characters are indexed.
static LONG_LINES: LazyLock<[String; 5]> = LazyLock::new(|| {
    let filler = |characters: usize| "run it ".repeat(400)[..characters].to_owned();
    [
        // One word at the beginning, one across the limit of the index, and some after it.
        format!("needle {}boundary {} web-1 anna Größe zz", filler(1_013), filler(500)),
        format!("{} needle", filler(1_100)),
        format!("é{} NEEDLE ÄRGER ta", filler(1_200)),
        format!("needle {}", filler(1_200)),
        format!("{} [x] größe 100%_*", filler(2_000)),
    ]
});
const WORDS: [&str; 46] = [
    "uptime",
    "UP",
    "ls",
    "LS",
    "l",
    "w",
    "é",
    "É",
    "ärger",
    "ÄRGER",
    "är",
    "ä",
    "日本",
    "日本語",
    "スト",
    "100%_*",
    "%",
    "_",
    "*",
    "\"done\"",
    "\"",
    "[x]",
    "?",
    "^-",
    "]",
    "web",
    "web-1",
    "WEB-10",
    "db",
    "-2",
    "old",
    "new",
    "boss",
    "Anna",
    "bo",
    "привет",
    "и",
    "1=1",
    "STRASSE",
    "zzz",
    "needle",
    "NEEDLE",
    "boundary",
    "GRÖßE",
    "ta",
    "zz",
];

/// The text in lower case, character by character.
fn lower_case(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

struct Model {
    commands: Vec<ModelCommand>,
    /// Names of existing servers by id.
    servers: HashMap<String, String>,
    /// Names of existing users by id.
    users: HashMap<i64, String>,
}

impl Model {
    /// True if each word occurs in the shown server name, in the line, or in the shown requester's
    /// name.
    fn matches(&self, command: &ModelCommand, search: &str) -> bool {
        let server = self.servers.get(&command.server).unwrap_or(&command.server_name);
        let requester =
            command.requested_by.and_then(|id| self.users.get(&id)).map_or("", String::as_str);
        let texts = [lower_case(server), lower_case(command.line), lower_case(requester)];
        search
            .split_whitespace()
            .all(|word| texts.iter().any(|text| text.contains(&lower_case(word))))
    }

    /// The expected result of a query: ids, in order.
    fn expected_ids(&self, query: &[(&str, String)], caller: &Caller) -> Vec<String> {
        let of = |name: &str| {
            query.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
        };
        let requester =
            |command: &ModelCommand| command.requested_by.filter(|id| self.users.contains_key(id));
        let mut found: Vec<&ModelCommand> = self
            .commands
            .iter()
            .filter(|command| {
                caller.can_see(command, self.servers.contains_key(&command.server))
                    && of("server").is_none_or(|id| command.server == id)
                    && of("shell").is_none_or(|shell| command.shell == shell)
                    && of("requested_by").is_none_or(|id| {
                        requester(command).is_some_and(|own| own.to_string() == id)
                    })
                    && of("requested_by_isnull")
                        .is_none_or(|is| requester(command).is_none() == (is == "true"))
                    && of("is_scheduled").is_none_or(|is| {
                        (command.times["scheduled_at"].as_deref() > Some("2900")) == (is == "true")
                    })
                    && of("state").is_none_or(|states| {
                        states.split(',').any(|state| state == command.shown_state())
                    })
                    && of("success").is_none_or(|success| {
                        command.success.is_some_and(|is| is.to_string() == success)
                    })
                    && of("exit_code").is_none_or(|code| {
                        command.exit_code.is_some_and(|is| is.to_string() == code)
                    })
                    && of("username").is_none_or(|name| command.username == name)
                    && of("added_at__gte")
                        .is_none_or(|at| command.times["added_at"].as_deref() >= Some(at))
                    && of("added_at__lt")
                        .is_none_or(|at| command.times["added_at"].as_deref() < Some(at))
                    && of("search").is_none_or(|search| self.matches(command, search))
            })
            .collect();
        let keys: Vec<(&str, bool)> = of("ordering")
            .unwrap_or("-scheduled_at")
            .split(',')
            .map(|key| (key.trim_start_matches('-'), key.starts_with('-')))
            .collect();
        let directed =
            |order: Ordering, descending| if descending { order.reverse() } else { order };
        found.sort_by(|a, b| {
            let by_keys = keys
                .iter()
                .map(|(name, descending)| directed(a.times[name].cmp(&b.times[name]), *descending))
                .find(|order| order.is_ne());
            by_keys.unwrap_or_else(|| directed(a.id.cmp(&b.id), keys[0].1))
        });
        found.into_iter().map(|command| command.id.clone()).collect()
    }
}

struct Caller {
    name: &'static str,
    api: Api,
    /// The servers that the caller can access, and the caller's id. `None` stands for full access.
    accessible: Option<(Vec<String>, i64)>,
    /// The servers that the token is limited to, or `None`.
    limited_to: Option<Vec<String>>,
}

impl Caller {
    /// Commands of an existing server are visible to callers with access to it. Those of a deleted
    /// server are visible to staff and their requester.
    fn can_see(&self, command: &ModelCommand, is_there: bool) -> bool {
        let can_access = |(servers, own): &(Vec<String>, i64)| {
            if is_there {
                servers.contains(&command.server)
            } else {
                command.requested_by == Some(*own)
            }
        };
        self.accessible.as_ref().is_none_or(can_access)
            && self.limited_to.as_ref().is_none_or(|servers| servers.contains(&command.server))
    }
}

/// A client with an API token that is limited to some servers.
async fn limited_to(user: &Api, servers: &[String]) -> Api {
    let body = json!({"name": "named", "expires_at": null, "acl": {"servers": servers}});
    let token = user.post("/api/auth/tokens/", &body).await.expect(201);
    user.with_token(token["key"].as_str().unwrap())
}

/// Creates varied commands, servers and callers in a workspace, and a model of them.
async fn create_commands(
    instance: &Instance,
    workspace: &Workspace,
    dice: &mut Dice,
) -> (Model, Vec<Caller>) {
    let id = workspace_id(instance, workspace).await;
    let anna = workspace.user("anna").await;
    let carol = workspace.user("carol").await;
    let staff = workspace.staff("bob").await;
    let (anna_id, carol_id) = (user_id(&anna).await, user_id(&carol).await);
    let users = HashMap::from([
        (user_id(&workspace.admin).await, "boss".to_owned()),
        (anna_id, "anna".to_owned()),
        (carol_id, "carol".to_owned()),
        (user_id(&staff).await, "bob".to_owned()),
    ]);
    // Server names when commands are created, and later. An empty name stands for a deleted server.
    let names = [
        ("web-1", "web-1"),
        ("web-10", "web-10"),
        ("old-2", "new-2"),
        ("db-2", ""),
        ("Üb-3", "x"),
        ("old-9", ""),
    ];
    let servers: Vec<String> =
        (0..names.len()).map(|n| format!("{id:08x}-0000-7000-8000-{n:012x}")).collect();
    let mut sql = String::new();
    for (n, server) in servers.iter().enumerate() {
        let owner = if n % 2 == 0 { user_id(&anna).await } else { user_id(&workspace.admin).await };
        sql += &format!(
            "INSERT INTO servers (id, workspace_id, name, agent_key_hash, owner_id, added_at, updated_at)
             VALUES ('{server}', {id}, '{}', '', {owner}, '', '');\n",
            names[n].0
        );
    }
    let requesters: Vec<Option<i64>> = users
        .keys()
        .copied()
        .map(Some)
        .chain([None, None, Some(9_000_001), Some(9_000_002)])
        .collect();
    let mut commands = Vec::new();
    for number in 0..400 {
        let server = dice.roll(names.len());
        let is_planned = dice.once_in(6);
        let state = *dice.pick(&STATES);
        let is_over = !matches!(state, "waiting" | "sent" | "acked");
        let mut times: HashMap<&'static str, Option<String>> = HashMap::new();
        for name in TIME_FIELDS {
            // Few different values, so that many are equal. Only an ended command has `handled_at`.
            let is_known = match name {
                "added_at" | "scheduled_at" => true,
                "handled_at" => is_over,
                _ => !dice.once_in(3),
            };
            let second = dice.roll(12);
            times.insert(
                name,
                is_known.then(|| format!("2026-01-01T00:00:{second:02}.000000+00:00")),
            );
        }
        if is_planned {
            times.insert("scheduled_at", Some(FAR_FUTURE.to_owned()));
        } else {
            times.insert("scheduled_at", times["added_at"].clone());
        }
        let success = is_over.then_some(state == "success");
        // Commands from before a renaming have the old name, and later ones the new name.
        let name = if dice.once_in(4) && !names[server].1.is_empty() {
            names[server].1
        } else {
            names[server].0
        };
        let command = ModelCommand {
            id: format!("{:08x}-0000-7000-8000-{number:012x}", dice.roll(1 << 32)),
            server: servers[server].clone(),
            server_name: name.to_owned(),
            requested_by: *dice.pick(&requesters),
            shell: if dice.once_in(5) { "internal" } else { "system" },
            line: if dice.once_in(4) {
                dice.pick::<String>(&*LONG_LINES)
            } else {
                LINES[dice.roll(LINES.len())]
            },
            username: dice.pick::<&str>(&USERNAMES),
            state,
            success,
            exit_code: success.filter(|_| !dice.once_in(3)).map(|_| dice.roll(4) as i64 - 1),
            times,
        };
        let sql_value = |name: &str| sql_text(command.times[name].as_deref());
        sql += &format!(
            "INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
                timeout, added_at, scheduled_at, expires_at, delivered_at, acked_at, handled_at, state, status_message,
                success, exit_code)
             VALUES (({id} << 40) + {}, {id}, '{}', '{}', '{}', {}, '{}', {}, '{}', '', 60, {}, {}, '{FAR_FUTURE}', {}, {}, {}, '{}', 'x', {}, {});\n",
            commands.len() + 1,
            command.id,
            command.server,
            command.server_name,
            command.requested_by.map_or_else(|| "NULL".to_owned(), |id| id.to_string()),
            command.shell,
            sql_text(Some(command.line)),
            command.username,
            sql_value("added_at"),
            sql_value("scheduled_at"),
            sql_value("delivered_at"),
            sql_value("acked_at"),
            sql_value("handled_at"),
            command.state,
            command.success.map_or_else(|| "NULL".to_owned(), |success| i32::from(success).to_string()),
            command.exit_code.map_or_else(|| "NULL".to_owned(), |code| code.to_string()),
        );
        commands.push(command);
    }
    // Simulates retention, the deletion of a user, and changes of servers.
    for command in commands.split_off(380) {
        sql +=
            &format!("DELETE FROM commands WHERE workspace_id = {id} AND id = '{}';\n", command.id);
    }
    for command in
        commands.iter_mut().filter(|command| command.requested_by == Some(9_000_002)).take(20)
    {
        sql += &format!(
            "UPDATE commands SET requested_by = NULL WHERE workspace_id = {id} AND id = '{}';\n",
            command.id
        );
        command.requested_by = None;
    }
    for (server, (_, later)) in servers.iter().zip(names) {
        sql += &match later {
            "" => format!(
                "DELETE FROM servers WHERE id = '{server}';
                 INSERT INTO gone_servers (workspace_id, id) VALUES ({id}, '{server}');\n"
            ),
            later => format!("UPDATE servers SET name = '{later}' WHERE id = '{server}';\n"),
        };
    }
    instance.tamper_with_d1(&sql);
    // Carol is in two groups. Servers in both count once, and deleted servers do not count.
    for (name, members, of) in
        [("one", [carol_id, anna_id], [0, 1]), ("two", [carol_id, carol_id], [1, 4])]
    {
        let of = of.map(|n| &servers[n]);
        let group = workspace
            .admin
            .post("/api/iam/groups/", &json!({"name": name, "servers": of}))
            .await
            .expect(201);
        for user in members.iter().collect::<HashSet<_>>() {
            let body = json!({"group": group["id"], "user": user});
            workspace.admin.post("/api/iam/memberships/", &body).await.expect(201);
        }
    }
    let there = servers.iter().zip(names).filter(|(_, (_, later))| !later.is_empty());
    let model = Model {
        commands,
        servers: there.map(|(server, (_, later))| (server.clone(), later.to_owned())).collect(),
        users,
    };
    let these = |numbers: &[usize]| -> Vec<String> {
        numbers.iter().map(|n| servers[*n].clone()).collect()
    };
    let (annas, carols) =
        (Some((these(&[0, 1, 2, 4]), anna_id)), Some((these(&[0, 1, 4]), carol_id)));
    let eve = workspace.user("eve").await;
    let eves = Some((vec![], user_id(&eve).await));
    let (for_boss, for_anna) = (these(&[1, 3]), these(&[0, 3, 5]));
    let limited = workspace.limited(&json!({"servers": for_boss})).await;
    let annas_limited = limited_to(&anna, &for_anna).await;
    let callers = vec![
        Caller {
            name: "superuser",
            api: workspace.admin.clone(),
            accessible: None,
            limited_to: None,
        },
        Caller { name: "staff", api: staff, accessible: None, limited_to: None },
        Caller { name: "owner", api: anna, accessible: annas.clone(), limited_to: None },
        Caller { name: "member", api: carol, accessible: carols, limited_to: None },
        Caller { name: "outsider", api: eve, accessible: eves, limited_to: None },
        Caller {
            name: "superuser's limited token",
            api: limited,
            accessible: None,
            limited_to: Some(for_boss),
        },
        Caller {
            name: "owner's limited token",
            api: annas_limited,
            accessible: annas,
            limited_to: Some(for_anna),
        },
    ];
    (model, callers)
}

/// A query with random parameters.
fn random_query(dice: &mut Dice, model: &Model) -> Vec<(&'static str, String)> {
    let mut query: Vec<(&'static str, String)> = Vec::new();
    let command = dice.pick(&model.commands).clone();
    if dice.once_in(4) {
        query.push(("server", command.server));
    }
    if dice.once_in(4) {
        query.push(("shell", command.shell.to_owned()));
    }
    if dice.once_in(4) {
        query.push(("requested_by", command.requested_by.unwrap_or(77).to_string()));
    }
    if dice.once_in(4) {
        query.push(("requested_by_isnull", dice.pick(&["true", "false"]).to_string()));
    }
    if dice.once_in(4) {
        query.push(("is_scheduled", dice.pick(&["true", "false"]).to_string()));
    }
    if dice.once_in(4) {
        let states = [
            "scheduled",
            "queued",
            "sent",
            "acked",
            "success",
            "failed",
            "cancelled",
            "expired",
            "stuck",
        ];
        let some: Vec<&str> = (0..1 + dice.roll(4)).map(|_| *dice.pick(&states)).collect();
        query.push(("state", some.join(",")));
    }
    if dice.once_in(6) {
        query.push(("success", dice.pick(&["true", "false"]).to_string()));
    }
    if dice.once_in(8) {
        query.push(("exit_code", dice.pick(&["-1", "0", "1", "7"]).to_string()));
    }
    if dice.once_in(6) {
        query.push(("username", dice.pick(&["root", "Deploy", "nobody"]).to_string()));
    }
    for name in ["added_at__gte", "added_at__lt"] {
        if dice.once_in(8) {
            query.push((name, format!("2026-01-01T00:00:{:02}.000000+00:00", dice.roll(13))));
        }
    }
    if dice.once_in(2) {
        let words: Vec<&str> = (0..1 + dice.roll(3)).map(|_| *dice.pick(&WORDS)).collect();
        query.push(("search", words.join(" ")));
    }
    if !dice.once_in(3) {
        let mut names = TIME_FIELDS.to_vec();
        let keys = (0..1 + dice.roll(3)).map(|_| {
            let name = names.remove(dice.roll(names.len()));
            format!("{}{name}", dice.pick(&["", "-"]))
        });
        query.push(("ordering", keys.collect::<Vec<_>>().join(",")));
    }
    query
}

#[tokio::test]
async fn lists_equal_those_of_a_naive_model() {
    let (instance, _state) = Instance::new().await;
    let mut dice = Dice(20261121);
    let acme = Workspace::create_with(&instance.operator(), "acme").await;
    // A second workspace with equal data. Nothing of it may ever be shown.
    let other = Workspace::create_with(&instance.operator(), "other").await;
    create_commands(&instance, &other, &mut dice).await;
    let (model, callers) = create_commands(&instance, &acme, &mut dice).await;
    let mut non_empty = 0;
    for round in 0..1_200 {
        let caller = dice.pick(&callers);
        // Each word alone, then random combinations.
        let mut query = match round {
            0..5 => vec![],
            5..51 => vec![("search", WORDS[round - 5].to_owned())],
            _ => random_query(&mut dice, &model),
        };
        let all = model.expected_ids(&query, caller);
        let size = 1 + dice.roll(30);
        let page = 1 + dice.roll(3).min(all.len() / size);
        query.extend([("page", page.to_string()), ("page_size", size.to_string())]);
        let what = format!("round {round}, {}: {query:?}", caller.name);
        let reply = caller.api.get(&format!("{PATH}?{}", encoded(&query))).await;
        if page > 1 && (page - 1) * size >= all.len() {
            assert_eq!(reply.status, 404, "{what}");
            continue;
        }
        assert_eq!(reply.status, 200, "{what}: {}", reply.text);
        let found = reply.json();
        let ids: Vec<&str> = found["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["id"].as_str().unwrap())
            .collect();
        let expected: Vec<&String> = all.iter().skip((page - 1) * size).take(size).collect();
        assert_eq!(ids, expected, "{what}");
        assert_eq!(found["count"], all.len(), "{what}");
        non_empty += usize::from(!ids.is_empty());
        // Links keep all parameters, and differ only in the page.
        for (link, number) in [("next", page + 1), ("previous", page - 1)] {
            let is_there = if link == "next" { page * size < all.len() } else { page > 1 };
            assert_eq!(found[link].is_string(), is_there, "{what}");
            if let Some(link) = found[link].as_str() {
                let mut pairs: Vec<(String, String)> =
                    reqwest::Url::parse(link).unwrap().query_pairs().into_owned().collect();
                let mut queries: Vec<(String, String)> =
                    query.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
                queries.iter_mut().find(|(name, _)| name == "page").unwrap().1 = number.to_string();
                pairs.sort();
                queries.sort();
                assert_eq!(pairs, queries, "{what}");
            }
        }
    }
    assert!(non_empty > 300, "too many empty pages; only {non_empty} had items");
}

/// Fills a workspace with twenty servers, three of them owned by `owner`, ten more users, and
/// commands.
async fn fill(instance: &Instance, id: i64, owner: i64, commands: u32) {
    let (server, user) = (server_id(id, "i"), id * 1_000);
    let (its_server, added) = (server_id(id, "1 + i % 20"), sql_time("i"));
    let (delivered, acked, handled) =
        (sql_time("i + 7"), sql_time("i * 7919 % 100003"), sql_time("-i"));
    let later = "strftime('%Y-%m-%dT%H:%M:%f000+00:00', '2999-01-01', i || ' seconds')";
    instance
        .d1(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
             INSERT INTO servers (id, workspace_id, name, agent_key_hash, owner_id, added_at, updated_at)
             SELECT {server}, {id}, 'web-' || i, '', iif(i <= 3, {owner}, NULL), '', '' FROM n;
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10)
             INSERT INTO users (id, workspace_id, username, email, password, date_joined)
             SELECT {user} + i, {id}, 'user' || i, 'user' || i || '@example.com', '', '' FROM n;
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {commands})
             INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
                timeout, added_at, scheduled_at, expires_at, delivered_at, acked_at, handled_at, state, status_message, success)
             SELECT ({id} << 40) + i, {id}, printf('%08x-0000-7000-8000-%012x', i * 2654435761 % 4294967296, i),
                {its_server}, 'web-' || (1 + i % 20), iif(i % 4 = 0, NULL, {user} + 1 + i % 10), iif(i % 50 = 0, 'internal', 'system'),
                iif(i % 100 = 7, 'ls', 'run') || ' job ' || i || iif(i % 200 = 9, ' seldom', ' often'), 'root', '', 60,
                {added}, iif(i % 5 = 0, {later}, {added}), '{FAR_FUTURE}', iif(i % 3 = 0, NULL, {delivered}),
                iif(i % 3 = 0, NULL, {acked}), iif(i % 7 = 0, NULL, {handled}),
                iif(i % 7 = 0, 'sent', iif(i % 10 = 1, 'failed', 'success')), 'x', iif(i % 7 = 0, NULL, i % 10 <> 1) FROM n"
        ));
}

#[tokio::test]
async fn the_cost_of_a_list_depends_only_on_its_results() {
    let (instance, _state) = Instance::new().await;
    let mut rows = Vec::new();
    for (slug, commands) in [("small", 1_000), ("large", 100_000)] {
        let workspace = Workspace::create_with(&instance.operator(), slug).await;
        let owner = workspace.user("owner").await;
        let id = workspace_id(&instance, &workspace).await;
        fill(&instance, id, user_id(&owner).await, commands).await;
        // A new event makes the sealer run, which counts the commands.
        workspace.server("another").await;
        let counted =
            format!("SELECT CAST(total AS TEXT) FROM counted_commands WHERE workspace_id = {id}");
        eventually("the counters", || async {
            (instance.read_d1(&counted) == [commands.to_string()]).then_some(())
        })
        .await;
        rows.push(assert_costs(&instance, &workspace, &owner, id, u64::from(commands)).await);
    }
    // The small workspace is measured again, now that the large one exists.
    let small = instance
        .operator()
        .anonymous()
        .with_host("small.local.localhost")
        .logged_in("owner", farhand_tests::client::PASSWORD)
        .await;
    let (_, again) = cost(&instance, &small, "search=often").await;
    // SQLite notices the end of an index range at the next entry, which may belong to the other
    // workspace.
    assert!(again <= rows[0] + 20, "{again} {rows:?}");
}

/// Asserts the cost of a workspace's lists. Returns the cost of one search.
async fn assert_costs(
    instance: &Instance,
    workspace: &Workspace,
    owner: &Api,
    id: i64,
    commands: u64,
) -> u64 {
    let server = format!("{id:08x}-0000-7000-8000-{:012x}", 2);
    let user = id * 1_000 + 2;
    let of = |is: &dyn Fn(u64) -> bool| (1..=commands).filter(|i| is(*i)).count() as u64;
    let of_owner = |is: &dyn Fn(u64) -> bool| of(&|i| i % 20 < 3 && is(i));
    // Each query, with its number of results for full access and for the owner.
    let mut queries: Vec<(String, u64, u64)> = vec![
        (String::new(), commands, commands * 3 / 20),
        (format!("server={server}"), commands / 20, commands / 20),
        ("shell=system".to_owned(), commands * 49 / 50, commands * 14 / 100),
        ("shell=internal".to_owned(), commands / 50, commands / 100),
        ("requested_by_isnull=true".to_owned(), commands / 4, commands / 20),
        ("requested_by_isnull=false".to_owned(), commands * 3 / 4, commands / 10),
        ("is_scheduled=true".to_owned(), commands / 5, commands / 20),
        ("is_scheduled=false".to_owned(), commands * 4 / 5, commands / 10),
        (
            "success=false".to_owned(),
            of(&|i| i % 7 != 0 && i % 10 == 1),
            of_owner(&|i| i % 7 != 0 && i % 10 == 1),
        ),
        (
            "success=true".to_owned(),
            of(&|i| i % 7 != 0 && i % 10 != 1),
            of_owner(&|i| i % 7 != 0 && i % 10 != 1),
        ),
        ("state=sent".to_owned(), of(&|i| i % 7 == 0), of_owner(&|i| i % 7 == 0)),
    ];
    for name in TIME_FIELDS {
        queries.push((format!("ordering={name}"), commands, commands * 3 / 20));
        queries.push((format!("ordering=-{name}"), commands, commands * 3 / 20));
    }
    let mut too_expensive = Vec::new();
    for (query, of_all, of_owner) in &queries {
        let is_other_order = query.starts_with("ordering") && !query.ends_with("scheduled_at");
        for size in [1, 15, 100] {
            let paged = format!("{query}&page_size={size}");
            let (reply, rows) = cost(instance, &workspace.admin, &paged).await;
            let found = reply.expect(200);
            assert_eq!(found["count"], *of_all, "{paged}");
            assert_eq!(
                found["results"].as_array().unwrap().len() as u64,
                (*of_all).min(size),
                "{paged}"
            );
            // Other lists read all matching rows, for `count` or for sorting.
            let more = match query.as_str() {
                // Each command in an index, and its row.
                _ if is_other_order => 2 * commands + size,
                "is_scheduled=true" | "success=false" => *of_all,
                // There are few open commands in practice: a server has at most 200.
                "state=sent" => *of_all,
                // Commands without a requester: each in an index for `count`, and again with its
                // row for the page.
                "requested_by_isnull=true" => 3 * of_all,
                "is_scheduled=false" => commands - of_all,
                "requested_by_isnull=false" => commands - of_all + 2 * size,
                // Commands that are open or failed.
                "success=true" => commands - of_all + size,
                // The internal commands, for `count`, and those that the filter skips.
                "shell=system" => commands / 50 + size,
                "shell=internal" => *of_all,
                _ => 0,
            };
            if rows > 3 * size + 20 + more {
                too_expensive.push(format!("{paged}: {rows} rows"));
            }
        }
        // The owner can access three of twenty servers. The query looks at all servers, and reads a
        // page of each of the three.
        let (reply, rows) = cost(instance, owner, query).await;
        assert_eq!(reply.expect(200)["count"], *of_owner, "{query}");
        let is_bounded = query.is_empty() || query.ends_with("scheduled_at");
        let more = if is_bounded { 0 } else { 3 * commands * 3 / 20 };
        if rows > 4 * 20 + 5 * 3 * 15 + 3 * 15 + more {
            too_expensive.push(format!("{query}: {rows} rows for an owner"));
        }
    }
    assert_eq!(too_expensive, Vec::<String>::new(), "too many rows read, with {commands} commands");
    let (reply, rows) = cost(instance, &workspace.admin, &format!("requested_by={user}")).await;
    assert_eq!(reply.expect(200)["count"], commands / 10);
    assert!(rows <= 3 * 15 + 20, "{rows} rows for the commands of a requester");
    for (query, of_all, _) in &queries {
        assert_equal_from_both_ends(workspace, query, *of_all).await;
    }
    // Invalid credentials are refused on any page.
    let nobody = workspace.admin.with_token("nobody");
    for query in [
        "",
        "page=2",
        "page=5000",
        "ordering=handled_at&page=5000",
        "search=often",
        "search=often&page=5000",
    ] {
        assert_eq!(nobody.get(&format!("{PATH}?{query}")).await.status, 403, "{query}");
    }
    let (reply, rows) = cost(instance, &workspace.admin, &format!("page={}", commands + 1)).await;
    assert_eq!(reply.status, 404);
    assert!(rows <= commands + 40, "{rows} rows for a page past the end");
    // Far pages are read in another way. No item may be lost or repeated where the two ways meet.
    for (query, field) in
        [("ordering=scheduled_at", "scheduled_at"), ("ordering=handled_at", "handled_at")]
    {
        let mut items = Vec::new();
        for page in [200, 201].into_iter().filter(|page| page * 50 <= commands * 3 / 20) {
            let reply =
                owner.get(&format!("{PATH}?{query}&page_size=50&page={page}")).await.expect(200);
            items.extend(reply["results"].as_array().unwrap().clone());
        }
        assert_eq!(items.len(), if commands > 1_000 { 100 } else { 0 }, "{query}");
        let key = |item: &Value| {
            (item[field].as_str().map(str::to_owned), item["id"].as_str().unwrap().to_owned())
        };
        assert!(items.is_sorted_by(|a, b| key(a) < key(b)), "{query}");
    }
    // A search reads the names, and a few rows for each result.
    let names = 200;
    for (words, found) in [
        ("seldom", commands / 200),
        ("often", commands - commands / 200),
        ("ls", commands / 100),
        ("LS job", commands / 100),
        ("user3 seldom", 0),
        ("web-3 seldom", 0),
        ("web-10 SELDOM", commands / 200),
        ("nothing", 0),
        ("é", 0),
    ] {
        let number = words.split(' ').count() as u64;
        let (reply, rows) =
            cost(instance, &workspace.admin, &encoded(&[("search", words.to_owned())])).await;
        assert_eq!(reply.expect(200)["count"], found, "{words}");
        // With very many results, each is read in the search index only and looked up in that set.
        let most = if found >= 10_000 { 6 * found + 10_500 } else { (8 + 2 * number) * found + 60 };
        let words_read = number * names;
        assert!(rows <= most + words_read, "search {words} of {commands}: {rows} rows");
    }
    cost(instance, owner, "search=often").await.1
}

/// Asserts that pages are equal when they are read from either end.
async fn assert_equal_from_both_ends(workspace: &Workspace, query: &str, count: u64) {
    // The page size divides the count, so that all pages are full from either end.
    let size = (2..=15).rev().find(|size| count.is_multiple_of(*size)).unwrap_or(1);
    let (filter, field) = query.split_once("ordering=").unwrap_or((query, "scheduled_at"));
    let field = field.trim_start_matches('-');
    let pages = count / size;
    let some = [1, pages / 2 - 1, pages / 2, pages / 2 + 1, pages / 2 + 2, pages - 1, pages];
    for page in some.into_iter().filter(|page| (1..=pages).contains(page)) {
        let mut found = Vec::new();
        for (ordering, page) in [(field.to_owned(), page), (format!("-{field}"), pages + 1 - page)]
        {
            let paged = format!("{filter}&ordering={ordering}&page={page}&page_size={size}");
            let reply = workspace.admin.get(&format!("{PATH}?{paged}")).await.expect(200);
            let items = reply["results"].as_array().unwrap();
            found.push(
                items
                    .iter()
                    .map(|item| item["id"].as_str().unwrap().to_owned())
                    .collect::<Vec<_>>(),
            );
        }
        found[1].reverse();
        assert_eq!(found[0], found[1], "{query}, page {page} of {count}");
        assert_eq!(found[0].len() as u64, size, "{query}, page {page} of {count}");
    }
}

#[tokio::test]
async fn words_of_any_length_and_any_number_are_found() {
    let workspace = Workspace::new().await;
    workspace.server("web-1").await;
    let long = "w".repeat(16_384);
    let many: Vec<String> = (10..60).map(|number| format!("w{number}")).collect();
    let path = "/opt/farhand/bin/rotate-logs-of-every-tenant-and-every-region-there-is-before-the-day-ends --now";
    let mixed = "ÄÖÜ-äöü-ÄÖÜ-äöü-ÄÖÜ";
    for line in [&long, &long, &many.join(" "), path, mixed] {
        let body = json!({"server": "web-1", "line": line, "on_offline": "queue"});
        workspace.admin.post(PATH, &body).await.expect(201);
    }
    let found = async |words: &str| {
        let list = workspace
            .admin
            .get(&format!("{PATH}?{}", encoded(&[("search", words.to_owned())])))
            .await;
        list.expect(200)["count"].clone()
    };
    for (words, count) in [
        (&long[..300], 2),
        (&long[..8_000].to_uppercase(), 2),
        (&format!("{}x", &long[..8_000]), 0),
        (&format!("{} WEB-1 boss", &long[..100]), 2),
        (&many.join(" "), 1),
        (&many.join(" ").to_uppercase(), 1),
        (&format!("{} web-1 boss", many.join(" ")), 1),
        (&format!("{} w60", many.join(" ")), 0),
        (&format!("{} nobody", many.join(" ")), 0),
        (&path[..80].to_uppercase(), 1),
        (&path[5..75], 1),
        ("rotate-logs-of-every-tenant-and-every-city", 0),
        ("äöü-ÄÖÜ", 1),
        ("äöü-ÄÖÜ-äöü-ÄÖÜ", 1),
        ("äöü-ÄÖÜ-äöü-ÄÖÜ-äöü-äöü", 0),
    ] {
        assert_eq!(found(words).await, count, "{}", &words[..words.len().min(60)]);
    }
}

/// Long lines are read in full, newest first, up to a limit per search.
#[tokio::test]
async fn long_lines_are_searched_within_bounds() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let owner = workspace.user("owner").await;
    let id = workspace_id(&instance, &workspace).await;
    fill(&instance, id, user_id(&owner).await, 1_000).await;
    let search = async |words: &str| {
        let (reply, rows) =
            cost(&instance, &workspace.admin, &encoded(&[("search", words.to_owned())])).await;
        (reply.expect(200)["count"].as_u64().unwrap(), rows)
    };
    let before = search("nothing").await.1;
    // Inserts 200 lines of 16,384 characters. The first and the last line end with a unique word.
    instance.d1(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
             INSERT INTO commands (seq, workspace_id, id, server_id, server_name, shell, line, username, groupname, timeout,
                added_at, scheduled_at, expires_at, state, status_message)
             SELECT ({id} << 40) + 1000000 + i, {id}, printf('ffffffff-0000-7000-8000-%012x', i), {}, 'web-1', 'system',
                substr(replace(printf('%.*c', 600, 'x'), 'x', 'abcdefgh ijklmnop qrstuvwx yz '), 1, 16370)
                    || iif(i = 1, ' earliest', iif(i = 200, ' latest', '')),
                'root', '', 60, {}, {}, '{FAR_FUTURE}', 'success', 'x' FROM n",
        server_id(id, "2"),
        sql_time("i"),
        sql_time("i"),
    ));
    let (found, rows) = search("nothing").await;
    assert_eq!(found, 0);
    // For each line: its length three times, for the running sum, the line itself, and whether its
    // server or requester contains the word.
    assert!(rows <= before + 8 * 200 + 20, "{rows} after {before}");
    for (words, found) in [
        ("earliest", 1),
        ("LATEST", 1),
        ("latest earliest", 0),
        ("mnop latest WEB-2", 1),
        ("hgfedcba", 0),
    ] {
        assert_eq!(search(words).await.0, found, "{words}");
    }
    // With this many words, only some of the newest lines are read.
    let many: Vec<String> =
        (0..24).map(|at| "abcdefghijklmnopqrstuvwxyz"[at % 24..at % 24 + 2].to_owned()).collect();
    let many = many
        .into_iter()
        .filter(|word| !["hi", "pq", "xy"].contains(&word.as_str()))
        .collect::<Vec<_>>()
        .join(" ");
    assert_eq!(search(&format!("latest {many}")).await.0, 1);
    let (found, rows) = search(&format!("earliest {many}")).await;
    assert_eq!(found, 0);
    let read = 24_000_000 / 22 / 16_384;
    assert!(rows <= before + 3 * 200 + 22 * 200 + 6 * read, "{rows} after {before}");
    // The same for partial access, and with other filters.
    let of = async |api: &Api, query: &str| {
        api.get(&format!("{PATH}?{query}")).await.expect(200)["count"].clone()
    };
    for (api, query, found) in [
        (&owner, "search=latest", 1),
        (&workspace.user("eve").await, "search=latest", 0),
        (&workspace.admin, &format!("search=latest&server={id:08x}-0000-7000-8000-{:012x}", 2), 1),
        (&workspace.admin, &format!("search=latest&server={id:08x}-0000-7000-8000-{:012x}", 3), 0),
        (&workspace.admin, "search=latest&shell=internal", 0),
        (&workspace.admin, "search=latest&requested_by_isnull=true", 1),
        (&workspace.admin, "search=latest&requested_by=1", 0),
        (&workspace.admin, "search=latest&state=failed", 0),
        (&workspace.admin, "search=latest&ordering=-handled_at,added_at", 1),
    ] {
        assert_eq!(of(api, query).await, found, "{query}");
    }
}

#[tokio::test]
async fn pages_of_the_longest_commands_are_returned() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "long").await;
    workspace.server("web-1").await;
    // JSON needs six characters for each of these.
    let line = "\u{1}".repeat(16_384);
    for _ in 0..16 {
        let body = json!({"server": "web-1", "line": line, "scheduled_at": far_ahead()});
        workspace.admin.post(PATH, &body).await.expect(201);
    }
    instance.d1("UPDATE commands SET result = replace(hex(zeroblob(2048)), '0', char(1))");
    for (query, expected) in
        [("", 15), ("?page_size=15", 15), ("?page_size=16", 16), ("?page_size=100", 16)]
    {
        let list = workspace.admin.get(&format!("{PATH}{query}")).await.expect(200);
        let results = list["results"].as_array().unwrap();
        assert_eq!(results.len(), expected, "{query}");
        assert!(
            results
                .iter()
                .all(|one| one["line"] == line && one["result"].as_str().unwrap().len() == 4_096)
        );
    }
}
