//! A naive model of the list of commands: a workspace with all kinds of commands and callers, and
//! what each caller must see.

use std::cmp::Ordering;
use std::collections::HashMap;

use farhand_domain::fleet::labels::Labels;
use farhand_sql::command_counts::next_key;
use rusqlite::{Connection, params};

use crate::data::{Dice, Me, NOW, count, delete};

pub const TIMES: [&str; 5] = ["added_at", "scheduled_at", "delivered_at", "acked_at", "handled_at"];
const STATES: [&str; 8] =
    ["waiting", "sent", "acked", "stuck", "success", "failed", "cancelled", "expired"];
const USERNAMES: [&str; 3] = ["root", "deploy", "Deploy"];
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
pub const WORDS: [&str; 46] = [
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

/// Lines that are longer than the 1,024 characters that the search index stores.
fn long_lines() -> [String; 5] {
    let filler = |characters: usize| "run it ".repeat(400)[..characters].to_owned();
    [
        // One word is within the first 1,024 characters, one crosses their end, and some follow.
        format!("needle {}boundary {} web-1 anna Größe zz", filler(1_013), filler(500)),
        format!("{} needle", filler(1_100)),
        format!("é{} NEEDLE ÄRGER ta", filler(1_200)),
        format!("needle {}", filler(1_200)),
        format!("{} [x] größe 100%_*", filler(2_000)),
    ]
}

/// A command as the database stores it.
#[derive(Clone, Debug)]
pub struct Command {
    pub id: String,
    pub server: String,
    pub batch: Option<String>,
    server_name: String,
    pub requested_by: Option<i64>,
    pub shell: &'static str,
    line: String,
    username: &'static str,
    state: &'static str,
    success: Option<bool>,
    exit_code: Option<i64>,
    times: HashMap<&'static str, Option<String>>,
}

impl Command {
    /// The id of the schedule that created the command's batch.
    fn schedule(&self) -> Option<&'static str> {
        let (_, number) = self.batch.as_ref()?.rsplit_once('-')?;
        let number = usize::from_str_radix(number, 16).unwrap();
        (number < BATCHES / 2).then(|| SCHEDULES[number % 2])
    }

    /// The state as the API shows it.
    fn shown_state(&self) -> &'static str {
        let is_due = self.times["scheduled_at"].as_deref() <= Some(NOW);
        match self.state {
            "waiting" if is_due => "queued",
            "waiting" => "scheduled",
            state => state,
        }
    }

    fn store(&self, database: &Connection, workspace: i64, number: i64) {
        database
            .prepare_cached(
                "INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
                    timeout, added_at, scheduled_at, expires_at, delivered_at, acked_at, handled_at, state, status_message,
                    success, exit_code, batch_id)
                 VALUES ((?1 << 40) + ?2, ?1, ?3, ?4, ?5, ?6, ?7, ?8, ?9, '', 60, ?10, ?11, '2999', ?12, ?13, ?14, ?15, '', ?16, ?17, ?18)",
            )
            .unwrap()
            .execute(params![
                workspace,
                number,
                self.id,
                self.server,
                self.server_name,
                self.requested_by,
                self.shell,
                self.line,
                self.username,
                self.times["added_at"],
                self.times["scheduled_at"],
                self.times["delivered_at"],
                self.times["acked_at"],
                self.times["handled_at"],
                self.state,
                self.success,
                self.exit_code,
                self.batch
            ])
            .unwrap();
    }
}

/// A caller, and the servers that the caller can access.
pub struct Caller {
    pub name: &'static str,
    pub me: Me,
    /// The servers that the caller can access without the limit of an API token. `None` means all
    /// servers.
    servers: Option<Vec<String>>,
}

pub struct Model {
    pub commands: Vec<Command>,
    /// The names of existing servers, by id.
    servers: HashMap<String, &'static str>,
    /// The names of existing users, by id.
    users: HashMap<i64, &'static str>,
    /// The labels of existing servers, by id.
    labels: HashMap<String, Labels>,
    pub callers: Vec<Caller>,
}

fn folded(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

/// One of the first twelve seconds of a day, so that ties are common.
fn random_time(day: &str, dice: &mut Dice) -> String {
    format!("{day}T00:00:{:02}.000000+00:00", dice.roll(12))
}

/// The number of batches in a workspace. Schedules created the first half of them.
const BATCHES: usize = 20;
pub const SCHEDULES: [&str; 2] =
    ["0000000a-0000-7000-8000-000000000000", "0000000b-0000-7000-8000-000000000000"];

fn batch_id(workspace: i64, number: usize) -> String {
    format!("{workspace:08x}-0000-7000-9000-{number:012x}")
}

const SUPERUSER: i64 = 1;
const ANNA: i64 = 2;
const CAROL: i64 = 3;
const STAFF: i64 = 4;
const EVE: i64 = 5;

impl Model {
    /// Fills a workspace with a few hundred commands.
    pub fn fill(database: &Connection, workspace: i64, dice: &mut Dice) -> Self {
        let users = HashMap::from([
            (SUPERUSER, "boss"),
            (ANNA, "anna"),
            (CAROL, "carol"),
            (STAFF, "bob"),
            (EVE, "eve"),
        ]);
        let sql = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
            database.prepare_cached(sql).unwrap().execute(values).unwrap();
        };
        sql(
            "INSERT INTO workspaces (id, slug, name, added_at) VALUES (?1, ?1, '', '')",
            &[&workspace],
        );
        for (id, name) in &users {
            sql(
                "INSERT INTO users (workspace_id, id, username, email, password, date_joined) VALUES (?, ?, ?3, ?3, '', '')",
                &[&workspace, id, name],
            );
        }
        // The names when the commands are created, and the later names. A server whose later name
        // is empty was deleted.
        let names = [
            ("web-1", "web-1"),
            ("web-10", "web-10"),
            ("old-2", "new-2"),
            ("db-2", ""),
            ("Üb-3", "x"),
            ("old-9", ""),
        ];
        let servers: Vec<String> =
            (0..names.len()).map(|n| format!("{workspace:08x}-0000-7000-8000-{n:012x}")).collect();
        for (n, server) in servers.iter().enumerate() {
            let owner = if n % 2 == 0 { ANNA } else { SUPERUSER };
            sql(
                "INSERT INTO servers (id, workspace_id, name, agent_key_hash, owner_id, added_at, updated_at)
                 VALUES (?, ?, ?, '', ?, '', '')",
                &[&server, &workspace, &names[n].0, &owner],
            );
        }
        let requesters: Vec<Option<i64>> = users
            .keys()
            .copied()
            .map(Some)
            .chain([None, None, Some(9_000_001), Some(9_000_002)])
            .collect();
        let batches: Vec<String> = (0..BATCHES).map(|n| batch_id(workspace, n)).collect();
        for (n, batch) in batches.iter().enumerate() {
            let schedule = (n < BATCHES / 2).then(|| SCHEDULES[n % 2]);
            sql(
                "INSERT INTO batches (id, workspace_id, name, shell, line, groupname, timeout, max_concurrency, on_offline,
                    added_at, scheduled_at, expires_at, state, total, pending, schedule_id)
                 VALUES (?, ?, '', 'system', 'id', '', 60, 1, 'skip', '', '', '', 'finished', 1, 0, ?)",
                &[&batch, &workspace, &schedule],
            );
        }
        let long_lines = long_lines();
        let mut commands: Vec<Command> = Vec::new();
        for number in 0..400 {
            let server = dice.roll(names.len());
            let state = *dice.pick(&STATES);
            let has_ended = !matches!(state, "waiting" | "sent" | "acked");
            let added = random_time("2026-01-01", dice);
            let scheduled = match dice.roll(6) {
                0 => random_time("2026-12-31", dice),
                1 => random_time("2026-01-02", dice),
                _ => added.clone(),
            };
            let delivered =
                (state != "waiting" && !dice.once_in(4)).then(|| random_time("2026-01-03", dice));
            let acked = delivered
                .clone()
                .filter(|_| state != "sent")
                .map(|_| random_time("2026-01-03", dice));
            let handled = has_ended.then(|| random_time("2026-01-03", dice));
            let success = has_ended.then_some(state == "success");
            // Some commands of a renamed server are older than the renaming, and some are newer.
            let later = !names[server].1.is_empty() && dice.once_in(4);
            // A batch has one command for each server.
            let batch = Some(dice.pick(&batches).clone()).filter(|batch| {
                !commands.iter().any(|other| {
                    other.batch.as_ref() == Some(batch) && other.server == servers[server]
                })
            });
            let command = Command {
                batch,
                id: format!("{:08x}-0000-7000-8000-{number:012x}", dice.roll(1 << 32)),
                server: servers[server].clone(),
                server_name: if later { names[server].1 } else { names[server].0 }.to_owned(),
                requested_by: *dice.pick(&requesters),
                shell: if dice.once_in(5) { "internal" } else { "system" },
                line: if dice.once_in(4) {
                    dice.pick(&long_lines).clone()
                } else {
                    (*dice.pick(&LINES)).to_owned()
                },
                username: dice.pick::<&str>(&USERNAMES),
                state,
                success,
                exit_code: success.filter(|_| !dice.once_in(3)).map(|_| dice.roll(4) as i64 - 1),
                times: TIMES
                    .into_iter()
                    .zip([Some(added), Some(scheduled), delivered, acked, handled])
                    .collect(),
            };
            command.store(database, workspace, number + 1);
            commands.push(command);
            if number == 250 {
                count(database, workspace);
            }
        }
        // Retention deletes counted and uncounted commands. The janitor removes a deleted user from
        // commands. Servers are renamed and deleted.
        for command in commands.split_off(380).into_iter().chain(commands.drain(100..120)) {
            delete(database, workspace, &command.id);
        }
        for command in
            commands.iter_mut().filter(|command| command.requested_by == Some(9_000_002)).take(20)
        {
            sql(
                "UPDATE commands SET requested_by = NULL WHERE workspace_id = ? AND id = ?",
                &[&workspace, &command.id],
            );
            command.requested_by = None;
        }
        let mut labels = HashMap::new();
        for (server, (_, later)) in servers.iter().zip(names) {
            if later.is_empty() {
                sql("DELETE FROM servers WHERE id = ?", &[&server]);
                sql(
                    "INSERT INTO deleted_servers_with_commands (workspace_id, id) VALUES (?, ?)",
                    &[&workspace, &server],
                );
            } else {
                // Some servers have no labels.
                let number = labels.len();
                let of = [("env", ["prod", "test"][number % 2]), ("tier", "web")];
                let of = of.into_iter().take(number % 3);
                let of: Labels = of.map(|(key, value)| (key.into(), value.into())).collect();
                sql(
                    "UPDATE servers SET name = ?, labels = ? WHERE id = ?",
                    &[&later, &of.json(), &server],
                );
                labels.insert(server.clone(), of);
            }
        }
        // Server 1 is in both groups, and must count once.
        for (group, members, of) in [(1, vec![CAROL, ANNA], [0, 1]), (2, vec![CAROL], [1, 4])] {
            for server in of {
                sql(
                    "INSERT INTO server_groups (workspace_id, group_id, server_id) VALUES (?, ?, ?)",
                    &[&workspace, &group, &servers[server]],
                );
            }
            for user in members {
                sql(
                    "INSERT INTO memberships (id, workspace_id, group_id, user_id, role)
                     VALUES (?1 || '-' || ?2 || '-' || ?3, ?1, ?2, ?3, 'member')",
                    &[&workspace, &group, &user],
                );
            }
        }
        let ids = |numbers: &[usize]| {
            Some(numbers.iter().map(|n| servers[*n].clone()).collect::<Vec<_>>())
        };
        let superuser = Me::superuser(workspace);
        let staff = Me { user: STAFF, is_staff: true, is_superuser: false, ..superuser.clone() };
        let (anna, carol) = (Me::ordinary(workspace, ANNA), Me::ordinary(workspace, CAROL));
        let limited = Me { acl_servers: ids(&[1, 3]), ..superuser.clone() };
        let annas_limited = Me { acl_servers: ids(&[0, 3, 5]), ..anna.clone() };
        let annas = ids(&[0, 1, 2, 4]);
        let by_labels =
            |me: &Me, selector: &str| Me { selector: selector.parse().ok(), ..me.clone() };
        let limited_by_labels = [
            ("superuser's token with a selector", by_labels(&superuser, "env=prod"), None),
            ("superuser's token with both", by_labels(&limited, "env"), None),
            ("superuser's token without a label", by_labels(&superuser, "!env"), None),
            ("superuser's token of no server", by_labels(&superuser, "env=none"), None),
            ("owner's token with a selector", by_labels(&anna, "env notin (prod)"), annas.clone()),
            ("owner's token with both", by_labels(&annas_limited, "tier"), annas.clone()),
        ];
        let callers = [
            ("superuser", superuser, None),
            ("staff", staff, None),
            ("owner", anna, annas.clone()),
            ("member", carol, ids(&[0, 1, 4])),
            ("outsider", Me::ordinary(workspace, EVE), ids(&[])),
            ("superuser's limited token", limited, None),
            ("owner's limited token", annas_limited, annas),
        ];
        Self {
            commands,
            servers: servers
                .into_iter()
                .zip(names)
                .map(|(id, (_, name))| (id, name))
                .filter(|(_, name)| !name.is_empty())
                .collect(),
            users,
            labels,
            callers: callers
                .into_iter()
                .chain(limited_by_labels)
                .map(|(name, me, servers)| Caller { name, me, servers })
                .collect(),
        }
    }

    /// Adds a copy of a command. Its id begins with `id`.
    pub fn add(&mut self, database: &Connection, workspace: i64, mut command: Command, id: &str) {
        let sql = format!("SELECT ({}) - (?1 << 40)", next_key("?1"));
        let number = database.query_row(&sql, [workspace], |row| row.get(0)).unwrap();
        command.id = format!("{id}{}", &command.id[8..]);
        command.batch = None;
        command.store(database, workspace, number);
        self.commands.push(command);
    }

    /// Every caller who can access a server can read its commands. Staff and the requester can read
    /// a command of a deleted server.
    fn can_read(&self, caller: &Caller, command: &Command) -> bool {
        let exists = self.servers.contains_key(&command.server);
        let can_access = |servers: &Vec<String>| match exists {
            true => servers.contains(&command.server),
            false => command.requested_by == Some(caller.me.user),
        };
        caller.servers.as_ref().is_none_or(can_access)
            && caller
                .me
                .acl_servers
                .as_ref()
                .is_none_or(|servers| servers.contains(&command.server))
            && caller.me.selector.as_ref().is_none_or(|selector| {
                let labels = self.labels.get(&command.server);
                labels.is_some_and(|labels| selector.matches(labels))
            })
    }

    /// Whether each word is in the server's name, the line or the requester's name, as the API
    /// shows them.
    fn matches(&self, command: &Command, search: &str) -> bool {
        let server =
            self.servers.get(&command.server).map_or(command.server_name.as_str(), |name| name);
        let requester =
            command.requested_by.and_then(|id| self.users.get(&id)).map_or("", |name| name);
        let texts = [folded(server), folded(&command.line), folded(requester)];
        search.split_whitespace().all(|word| texts.iter().any(|text| text.contains(&folded(word))))
    }

    /// The ids of all commands that match a query, in order.
    pub fn answer(&self, query: &[(&str, String)], caller: &Caller) -> Vec<String> {
        let of = |name: &str| {
            query.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
        };
        let requester =
            |command: &Command| command.requested_by.filter(|id| self.users.contains_key(id));
        let mut found: Vec<&Command> = self
            .commands
            .iter()
            .filter(|command| {
                let time = |name: &str| command.times[name].as_deref();
                self.can_read(caller, command)
                    && of("server").is_none_or(|id| command.server == id)
                    && of("batch").is_none_or(|id| command.batch.as_deref() == Some(id))
                    && of("schedule").is_none_or(|id| command.schedule() == Some(id))
                    && of("shell").is_none_or(|shell| command.shell == shell)
                    && of("requested_by").is_none_or(|id| {
                        requester(command).is_some_and(|own| own.to_string() == id)
                    })
                    && of("requested_by_isnull")
                        .is_none_or(|is| requester(command).is_none() == (is == "true"))
                    && of("is_scheduled")
                        .is_none_or(|is| (time("scheduled_at") > Some(NOW)) == (is == "true"))
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
                    && of("added_at__gte").is_none_or(|at| time("added_at") >= Some(at))
                    && of("added_at__lt").is_none_or(|at| time("added_at") < Some(at))
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
