//! `GET /api/events/commands/`: filters, search, ordering, pages and counts (contract 7.10), and
//! what they cost (`docs/contributing/performance.md`, What lists cost). Commands are put into the
//! database of an instance of the test's own: by the hundred thousand, and with moments of any kind.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use farhand_tests::client::{encoded, unique};
use farhand_tests::{Api, Dice, Instance, Reply, Workspace, eventually, far_ahead};
use serde_json::{Value, json};

const PATH: &str = "/api/events/commands/";
/// Later than any test runs.
const LATER: &str = "2999-01-01T00:00:00.000000+00:00";

/// SQL for the id of the server with a number, in a workspace.
fn server_id(workspace: i64, number: &str) -> String {
    format!("printf('%08x-0000-7000-8000-%012x', {workspace}, {number})")
}

/// SQL for a moment, some seconds from the beginning of 2026. No test runs in that year's first
/// week.
fn moment(seconds: &str) -> String {
    format!("strftime('%Y-%m-%dT%H:%M:%f000+00:00', '2026-01-01', ({seconds}) || ' seconds')")
}

async fn workspace_id(instance: &Instance, workspace: &Workspace) -> i64 {
    let rows = instance.d1(&format!("SELECT id FROM workspaces WHERE slug = '{}'", workspace.slug));
    rows[0]["id"].as_i64().unwrap()
}

async fn user_id(api: &Api) -> i64 {
    api.get("/api/iam/users/-/").await.expect(200)["id"].as_i64().unwrap()
}

/// Sends a query; returns the answer, and how many rows were read for it.
async fn cost(instance: &Instance, api: &Api, query: &str) -> (Reply, u64) {
    let id = unique("cost");
    let reply =
        api.send(api.request("GET", &format!("{PATH}?{query}")).header("X-Request-Id", &id)).await;
    let line = instance.logged(&id).await;
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
    // Nobody is told what is wrong before they are known.
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
    // Whatever text it is, it is no more than text.
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

/// A command as the model knows it: what the database has.
#[derive(Clone, Debug)]
struct Known {
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
    moments: HashMap<&'static str, Option<String>>,
}

impl Known {
    /// The state as the API shows it.
    fn shown_state(&self) -> &'static str {
        let is_due = self.moments["scheduled_at"].as_deref() < Some("2900");
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

const MOMENTS: [&str; 5] = ["added_at", "scheduled_at", "delivered_at", "acked_at", "handled_at"];
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
/// Lines of more than the 1,024 characters that the index of lines has.
static LONG_LINES: LazyLock<[String; 5]> = LazyLock::new(|| {
    let filler = |characters: usize| "run it ".repeat(400)[..characters].to_owned();
    [
        // A word in the beginning, one across the end of it, and some behind it.
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

/// The same text without case, a character for a character.
fn folded(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

struct Model {
    commands: Vec<Known>,
    /// Names by id, of servers that there are.
    servers: HashMap<String, String>,
    /// Names by id, of users that there are.
    users: HashMap<i64, String>,
}

impl Model {
    /// Whether each word is in the name of the server that is shown, the line, or the name of the
    /// requester that is shown.
    fn matches(&self, command: &Known, search: &str) -> bool {
        let server = self.servers.get(&command.server).unwrap_or(&command.server_name);
        let requester =
            command.requested_by.and_then(|id| self.users.get(&id)).map_or("", String::as_str);
        let texts = [folded(server), folded(command.line), folded(requester)];
        search.split_whitespace().all(|word| texts.iter().any(|text| text.contains(&folded(word))))
    }

    /// The ids of all that a query asks for, in order.
    fn answer(&self, query: &[(&str, String)], caller: &Caller) -> Vec<String> {
        let of = |name: &str| {
            query.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
        };
        let requester =
            |command: &Known| command.requested_by.filter(|id| self.users.contains_key(id));
        let mut found: Vec<&Known> = self
            .commands
            .iter()
            .filter(|command| {
                caller.sees(command, self.servers.contains_key(&command.server))
                    && of("server").is_none_or(|id| command.server == id)
                    && of("shell").is_none_or(|shell| command.shell == shell)
                    && of("requested_by").is_none_or(|id| {
                        requester(command).is_some_and(|own| own.to_string() == id)
                    })
                    && of("requested_by_isnull")
                        .is_none_or(|is| requester(command).is_none() == (is == "true"))
                    && of("is_scheduled").is_none_or(|is| {
                        (command.moments["scheduled_at"].as_deref() > Some("2900"))
                            == (is == "true")
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
                        .is_none_or(|at| command.moments["added_at"].as_deref() >= Some(at))
                    && of("added_at__lt")
                        .is_none_or(|at| command.moments["added_at"].as_deref() < Some(at))
                    && of("search").is_none_or(|search| self.matches(command, search))
            })
            .collect();
        let keys: Vec<(&str, bool)> = of("ordering")
            .unwrap_or("-scheduled_at")
            .split(',')
            .map(|key| (key.trim_start_matches('-'), key.starts_with('-')))
            .collect();
        let turned = |order: Ordering, descending| if descending { order.reverse() } else { order };
        found.sort_by(|a, b| {
            let by_keys = keys
                .iter()
                .map(|(name, descending)| {
                    turned(a.moments[name].cmp(&b.moments[name]), *descending)
                })
                .find(|order| order.is_ne());
            by_keys.unwrap_or_else(|| turned(a.id.cmp(&b.id), keys[0].1))
        });
        found.into_iter().map(|command| command.id.clone()).collect()
    }
}

/// A caller.
struct Caller {
    name: &'static str,
    api: Api,
    /// The servers that they reach, and their id, where they do not reach all.
    reached: Option<(Vec<String>, i64)>,
    /// The servers that their token is for, where it is not for all.
    named: Option<Vec<String>>,
}

impl Caller {
    /// Of a server that is there, all who reach it see a command; of one that is gone, staff and
    /// its requester.
    fn sees(&self, command: &Known, is_there: bool) -> bool {
        let reaches = |(servers, own): &(Vec<String>, i64)| {
            if is_there {
                servers.contains(&command.server)
            } else {
                command.requested_by == Some(*own)
            }
        };
        self.reached.as_ref().is_none_or(reaches)
            && self.named.as_ref().is_none_or(|servers| servers.contains(&command.server))
    }
}

/// A client with a token of a user's for some servers only.
async fn named(user: &Api, servers: &[String]) -> Api {
    let body = json!({"name": "named", "expires_at": null, "acl": {"servers": servers}});
    let token = user.post("/api/auth/tokens/", &body).await.expect(201);
    user.with_token(token["key"].as_str().unwrap())
}

/// Commands of all kinds, in a workspace beside another with the same.
async fn some_hundred_commands(
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
    // The names when the commands are made, and later; an empty one: it is gone.
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
        let mut moments: HashMap<&'static str, Option<String>> = HashMap::new();
        for name in MOMENTS {
            // Few different ones, so that ties are common. A command was handled if it is over.
            let known = match name {
                "added_at" | "scheduled_at" => true,
                "handled_at" => is_over,
                _ => !dice.once_in(3),
            };
            let second = dice.roll(12);
            moments
                .insert(name, known.then(|| format!("2026-01-01T00:00:{second:02}.000000+00:00")));
        }
        if is_planned {
            moments.insert("scheduled_at", Some(LATER.to_owned()));
        } else {
            moments.insert("scheduled_at", moments["added_at"].clone());
        }
        let success = is_over.then_some(state == "success");
        // A server that was renamed had another name for some commands before; some were made under
        // the later one.
        let name = if dice.once_in(4) && !names[server].1.is_empty() {
            names[server].1
        } else {
            names[server].0
        };
        let command = Known {
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
            moments,
        };
        let moment = |name: &str| sql_text(command.moments[name].as_deref());
        sql += &format!(
            "INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
                timeout, added_at, scheduled_at, expires_at, delivered_at, acked_at, handled_at, state, status_message,
                success, exit_code)
             VALUES (({id} << 40) + {}, {id}, '{}', '{}', '{}', {}, '{}', {}, '{}', '', 60, {}, {}, '{LATER}', {}, {}, {}, '{}', 'x', {}, {});\n",
            commands.len() + 1,
            command.id,
            command.server,
            command.server_name,
            command.requested_by.map_or_else(|| "NULL".to_owned(), |id| id.to_string()),
            command.shell,
            sql_text(Some(command.line)),
            command.username,
            moment("added_at"),
            moment("scheduled_at"),
            moment("delivered_at"),
            moment("acked_at"),
            moment("handled_at"),
            command.state,
            command.success.map_or_else(|| "NULL".to_owned(), |success| i32::from(success).to_string()),
            command.exit_code.map_or_else(|| "NULL".to_owned(), |code| code.to_string()),
        );
        commands.push(command);
    }
    // Retention takes some, the janitor takes a name off others, and servers change.
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
    // Two groups with carol in them; what both have, and what is gone, counts once or not at all.
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
    let annas_limited = named(&anna, &for_anna).await;
    let callers = vec![
        Caller { name: "superuser", api: workspace.admin.clone(), reached: None, named: None },
        Caller { name: "staff", api: staff, reached: None, named: None },
        Caller { name: "owner", api: anna, reached: annas.clone(), named: None },
        Caller { name: "member", api: carol, reached: carols, named: None },
        Caller { name: "outsider", api: eve, reached: eves, named: None },
        Caller {
            name: "superuser's limited token",
            api: limited,
            reached: None,
            named: Some(for_boss),
        },
        Caller {
            name: "owner's limited token",
            api: annas_limited,
            reached: annas,
            named: Some(for_anna),
        },
    ];
    (model, callers)
}

/// A query of a few random parameters.
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
        let mut names = MOMENTS.to_vec();
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
    let acme = Workspace::made_by(&instance.operator(), "acme").await;
    // The same in a workspace beside it, of which nothing may ever show.
    let other = Workspace::made_by(&instance.operator(), "other").await;
    some_hundred_commands(&instance, &other, &mut dice).await;
    let (model, callers) = some_hundred_commands(&instance, &acme, &mut dice).await;
    let mut filled = 0;
    for round in 0..1_200 {
        let caller = dice.pick(&callers);
        // Each filter and each word alone, then all together.
        let mut query = match round {
            0..5 => vec![],
            5..51 => vec![("search", WORDS[round - 5].to_owned())],
            _ => random_query(&mut dice, &model),
        };
        let all = model.answer(&query, caller);
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
        filled += usize::from(!ids.is_empty());
        // The links keep all that was asked, and lead on.
        for (link, number) in [("next", page + 1), ("previous", page - 1)] {
            let is_there = if link == "next" { page * size < all.len() } else { page > 1 };
            assert_eq!(found[link].is_string(), is_there, "{what}");
            if let Some(link) = found[link].as_str() {
                let mut pairs: Vec<(String, String)> =
                    reqwest::Url::parse(link).unwrap().query_pairs().into_owned().collect();
                let mut asked: Vec<(String, String)> =
                    query.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
                asked.iter_mut().find(|(name, _)| name == "page").unwrap().1 = number.to_string();
                pairs.sort();
                asked.sort();
                assert_eq!(pairs, asked, "{what}");
            }
        }
    }
    assert!(filled > 300, "most answers say something: {filled}");
}

/// Fills a workspace: twenty servers, of which `owner` has three; ten more users.
async fn fill(instance: &Instance, id: i64, owner: i64, commands: u32) {
    let (server, user) = (server_id(id, "i"), id * 1_000);
    let (its_server, added) = (server_id(id, "1 + i % 20"), moment("i"));
    let (delivered, acked, handled) = (moment("i + 7"), moment("i * 7919 % 100003"), moment("-i"));
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
                {added}, iif(i % 5 = 0, {later}, {added}), '{LATER}', iif(i % 3 = 0, NULL, {delivered}),
                iif(i % 3 = 0, NULL, {acked}), iif(i % 7 = 0, NULL, {handled}),
                iif(i % 7 = 0, 'sent', iif(i % 10 = 1, 'failed', 'success')), 'x', iif(i % 7 = 0, NULL, i % 10 <> 1) FROM n"
        ));
}

#[tokio::test]
async fn a_list_costs_what_it_shows_however_many_commands_there_are() {
    let (instance, _state) = Instance::new().await;
    let mut rows = Vec::new();
    for (slug, commands) in [("small", 1_000), ("large", 100_000)] {
        let workspace = Workspace::made_by(&instance.operator(), slug).await;
        let owner = workspace.user("owner").await;
        let id = workspace_id(&instance, &workspace).await;
        fill(&instance, id, user_id(&owner).await, commands).await;
        // An event has the sealer look, and it counts the commands.
        workspace.server("another").await;
        let counted =
            format!("SELECT CAST(total AS TEXT) FROM counted_commands WHERE workspace_id = {id}");
        eventually("the counters", || async {
            (instance.read_d1(&counted) == [commands.to_string()]).then_some(())
        })
        .await;
        rows.push(costs(&instance, &workspace, &owner, id, u64::from(commands)).await);
    }
    // The small one is a hundredth, and the large one was not there yet; now it is.
    let small = instance
        .operator()
        .anonymous()
        .under("small.local.localhost")
        .logged_in("owner", farhand_tests::client::PASSWORD)
        .await;
    let (_, again) = cost(&instance, &small, "search=often").await;
    // (The end of a range in an index is told by the entry after it, which may be another
    // workspace's.)
    assert!(again <= rows[0] + 20, "{again} {rows:?}");
}

/// Asserts what lists of a workspace cost; returns the cost of one search.
async fn costs(
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
    // What is asked, and how many there are of all and of the owner's.
    let mut asked: Vec<(String, u64, u64)> = vec![
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
    for name in MOMENTS {
        asked.push((format!("ordering={name}"), commands, commands * 3 / 20));
        asked.push((format!("ordering=-{name}"), commands, commands * 3 / 20));
    }
    let mut dear = Vec::new();
    for (query, of_all, of_owner) in &asked {
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
            // What is not promised to be bounded reads what it matches, for `count` or to sort it.
            let more = match query.as_str() {
                // Each command by an index, and its row.
                _ if is_other_order => 2 * commands + size,
                "is_scheduled=true" | "success=false" => *of_all,
                // There are few open ones, as a server has at most 200.
                "state=sent" => *of_all,
                // Those of nobody: each by its index for `count`, and again with its row for the
                // page.
                "requested_by_isnull=true" => 3 * of_all,
                "is_scheduled=false" => commands - of_all,
                "requested_by_isnull=false" => commands - of_all + 2 * size,
                // Those that are open, and those that failed.
                "success=true" => commands - of_all + size,
                // The internal ones, for `count`, and those that the filter leaves out.
                "shell=system" => commands / 50 + size,
                "shell=internal" => *of_all,
                _ => 0,
            };
            if rows > 3 * size + 20 + more {
                dear.push(format!("{paged}: {rows} rows"));
            }
        }
        // Of somebody who can access three servers of twenty: a look at all servers, and a page of
        // each of the three.
        let (reply, rows) = cost(instance, owner, query).await;
        assert_eq!(reply.expect(200)["count"], *of_owner, "{query}");
        let is_bounded = query.is_empty() || query.ends_with("scheduled_at");
        let more = if is_bounded { 0 } else { 3 * commands * 3 / 20 };
        if rows > 4 * 20 + 5 * 3 * 15 + 3 * 15 + more {
            dear.push(format!("{query}: {rows} rows for an owner"));
        }
    }
    assert_eq!(dear, Vec::<String>::new(), "of {commands}");
    let (reply, rows) = cost(instance, &workspace.admin, &format!("requested_by={user}")).await;
    assert_eq!(reply.expect(200)["count"], commands / 10);
    assert!(rows <= 3 * 15 + 20, "{rows} rows for a requester's");
    for (query, of_all, _) in &asked {
        far_pages(workspace, query, *of_all).await;
    }
    // Whoever is nobody is refused, however far they ask.
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
    // Far on, the page is chosen in another way: nothing is left out or shown twice between the
    // two.
    for (query, moment) in
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
            (item[moment].as_str().map(str::to_owned), item["id"].as_str().unwrap().to_owned())
        };
        assert!(items.is_sorted_by(|a, b| key(a) < key(b)), "{query}");
    }
    // A search reads a few rows for each that it finds, and the names.
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
        // If there are very many, each is read in the search index alone, and looked up among
        // those.
        let most = if found >= 10_000 { 6 * found + 10_500 } else { (8 + 2 * number) * found + 60 };
        let words_read = number * names;
        assert!(rows <= most + words_read, "search {words} of {commands}: {rows} rows");
    }
    cost(instance, owner, "search=often").await.1
}

/// Asserts that pages are the same from either end.
async fn far_pages(workspace: &Workspace, query: &str, count: u64) {
    // Pages of one size, so that the last one is full from either end.
    let size = (2..=15).rev().find(|size| count.is_multiple_of(*size)).unwrap_or(1);
    let (filter, moment) = query.split_once("ordering=").unwrap_or((query, "scheduled_at"));
    let moment = moment.trim_start_matches('-');
    let pages = count / size;
    let some = [1, pages / 2 - 1, pages / 2, pages / 2 + 1, pages / 2 + 2, pages - 1, pages];
    for page in some.into_iter().filter(|page| (1..=pages).contains(page)) {
        let mut found = Vec::new();
        for (ordering, page) in
            [(moment.to_owned(), page), (format!("-{moment}"), pages + 1 - page)]
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
async fn words_of_any_length_and_number_are_found() {
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

/// Long lines are read themselves, the newest ones, and as many as a search has time for.
#[tokio::test]
async fn long_lines_are_searched_within_bounds() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "acme").await;
    let owner = workspace.user("owner").await;
    let id = workspace_id(&instance, &workspace).await;
    fill(&instance, id, user_id(&owner).await, 1_000).await;
    let search = async |words: &str| {
        let (reply, rows) =
            cost(&instance, &workspace.admin, &encoded(&[("search", words.to_owned())])).await;
        (reply.expect(200)["count"].as_u64().unwrap(), rows)
    };
    let before = search("nothing").await.1;
    // 200 lines of 16,384 characters; the first and the last have a word of their own at their end,
    // all have some others.
    instance.d1(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
             INSERT INTO commands (seq, workspace_id, id, server_id, server_name, shell, line, username, groupname, timeout,
                added_at, scheduled_at, expires_at, state, status_message)
             SELECT ({id} << 40) + 1000000 + i, {id}, printf('ffffffff-0000-7000-8000-%012x', i), {}, 'web-1', 'system',
                substr(replace(printf('%.*c', 600, 'x'), 'x', 'abcdefgh ijklmnop qrstuvwx yz '), 1, 16370)
                    || iif(i = 1, ' earliest', iif(i = 200, ' latest', '')),
                'root', '', 60, {}, {}, '{LATER}', 'success', 'x' FROM n",
        server_id(id, "2"),
        moment("i"),
        moment("i"),
    ));
    let (found, rows) = search("nothing").await;
    assert_eq!(found, 0);
    // For each: its length (thrice, as the sum goes by), itself, and whether its server or
    // requester has the word.
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
    // With as many words as these, only some of the newest are read.
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
    // Those who reach some servers, and other filters.
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
async fn pages_of_the_longest_commands_are_answered() {
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::made_by(&instance.operator(), "long").await;
    workspace.server("web-1").await;
    // JSON writes each of these characters as six.
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
