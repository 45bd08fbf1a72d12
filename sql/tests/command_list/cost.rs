//! Tests how much lists read, in steps of SQLite's virtual machine. One database has a workspace
//! with few commands and a workspace with many commands.

use std::time::Instant;

use rusqlite::Connection;

use crate::data::{Me, Variant, count, database, list_of, run, statement};

const SERVERS: i64 = 20;
/// The user who owns three servers.
const OWNER: i64 = 2;

/// Fills a workspace. It has 20 servers, and [`OWNER`] owns three of them. One command in fifty is
/// internal, one in ten has failed, and five commands are scheduled.
fn fill(database: &Connection, workspace: i64, commands: i64) {
    let numbers = |most: i64| {
        format!(
            "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most}) SELECT i FROM n)"
        )
    };
    let (users, servers, commands) = (numbers(12), numbers(SERVERS), (commands, numbers(commands)));
    let (number, rows) = commands;
    let sql = format!(
        "BEGIN;
         INSERT INTO workspaces (id, slug, name, added_at) VALUES ({workspace}, '{workspace}', '', '');
         INSERT INTO users (workspace_id, id, username, email, password, date_joined)
         SELECT {workspace}, i, 'user' || i, i, '', '' FROM {users};
         INSERT INTO servers (id, workspace_id, name, agent_key_hash, owner_id, added_at, updated_at)
         SELECT format('%08d-0000-7000-8000-%012d', {workspace}, i), {workspace}, 'web-' || i, '', iif(i <= 3, {OWNER}, NULL), '', '' FROM {servers};
         INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname, timeout,
            added_at, scheduled_at, expires_at, delivered_at, acked_at, handled_at, state, status_message, success, exit_code,
            result)
         SELECT ({workspace} << 40) + i, {workspace}, format('{workspace}-%08d', i), format('%08d-0000-7000-8000-%012d', {workspace}, 1 + i % {SERVERS}),
            'web-' || (1 + i % {SERVERS}), iif(i % 4 = 0, NULL, 1 + i % 10), iif(i % 50 = 0, 'internal', 'system'),
            'run job ' || i || iif(i > {number} - 5, ' seldom', ' often'), 'root', '', 60,
            format('2026-01-01T%08d', i), format(iif(i > 5, '2026-01-01T%08d', '2026-12-31T%08d'), i), '2999',
            format('2026-01-01T%08d', i), format('2026-01-01T%08d', i * 7919 % 100003),
            iif(i <= 5, NULL, format('2026-01-01T%08d', i * 7919 % 100003)),
            iif(i <= 5, 'waiting', iif(i % 10 = 1, 'failed', 'success')), '', iif(i <= 5, NULL, i % 10 <> 1),
            iif(i <= 5, NULL, i % 10 = 1), format('%.*c', 200, 'x') FROM {rows};
         COMMIT"
    );
    database.execute_batch(&sql).unwrap();
    count(database, workspace);
}

fn query(text: &str) -> Vec<(&str, String)> {
    text.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name, value.to_owned()))
        .collect()
}

/// Query strings of lists that read a bounded number of rows for callers with full access,
/// including the number of all items.
const BOUNDED: [&str; 9] = [
    "",
    "ordering=scheduled_at",
    "server=00000000-0000-7000-8000-000000000002",
    "requested_by=3",
    "state=scheduled",
    "state=scheduled,queued,sent,acked",
    "is_scheduled=true",
    "search=seldom",
    "search=seldom&ordering=-handled_at,added_at",
];

/// The steps for the first page, with both statements of the list: in the small workspace, and in
/// the large workspace.
fn steps(database: &Connection, text: &str, me: impl Fn(i64) -> Me) -> [[i32; 2]; 2] {
    SIZES.map(|(workspace, _)| {
        let list =
            list_of(&query(&text.replace("server=00000000", &format!("server={workspace:08}"))));
        let me = me(workspace);
        [Variant::ForAll, Variant::FullAccess]
            .map(|variant| run(database, statement(&list, Some(&me), variant, 15, 0)).steps)
    })
}

/// The workspaces and their numbers of commands.
const SIZES: [(i64, i64); 2] = [(1, 1_000), (2, 30_000)];

fn filled() -> Connection {
    let database = database();
    for (workspace, commands) in SIZES {
        fill(&database, workspace, commands);
    }
    database
}

#[test]
fn bounded_lists_read_the_same_in_small_and_large_workspaces() {
    let database = filled();
    for text in BOUNDED {
        let [small, large] = steps(&database, text, Me::superuser);
        for (few, many) in small.into_iter().zip(large) {
            assert!(many < few + few / 5 + 50, "{text}: {few} steps, then {many}");
        }
    }
    // A caller who can access three servers, in the default order.
    for text in ["", "ordering=scheduled_at"] {
        let [[few, _], [many, _]] =
            steps(&database, text, |workspace| Me::ordinary(workspace, OWNER));
        assert!(many < few + few / 5 + 50, "{text}: {few} steps, then {many}");
    }
}

/// For these filters, reading the items takes a bounded number of steps. Counting all items does
/// not: it counts the few commands that match, or do not match, in an index.
#[test]
fn filters_that_match_most_commands_count_the_others_in_an_index() {
    let database = filled();
    for text in ["success=false", "success=true", "shell=system", "shell=internal"] {
        let [small, large] = steps(&database, text, Me::superuser);
        for (few, many) in small.into_iter().zip(large) {
            // The large workspace has 29,000 more commands, and every tenth of them failed.
            // Counting an entry of the index takes three steps.
            assert!(many < few + few / 5 + 3 * 2_900 + 50, "{text}: {few} steps, then {many}");
        }
    }
}

/// Lines beyond the search index are read newest first, up to a number of characters for a search.
#[test]
fn long_lines_are_searched_within_bounds() {
    const LINES: i64 = 200;
    const CHARACTERS: i64 = 16_384;
    let database = database();
    fill(&database, 1, 1_000);
    let search = |words: &str| {
        let list = list_of(&[("search", words.to_owned())]);
        run(&database, statement(&list, Some(&Me::superuser(1)), Variant::ForAll, 15, 0))
    };
    let before = search("nothing").steps;
    // The first and the last line end with a unique word.
    let sql = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {LINES})
         INSERT INTO commands (seq, workspace_id, id, server_id, server_name, shell, line, username, groupname, timeout,
            added_at, scheduled_at, expires_at, state, status_message)
         SELECT (1 << 40) + 1000000 + i, 1, format('long-%08d', i), format('%08d-0000-7000-8000-%012d', 1, 2), 'web-2', 'system',
            substr(replace(format('%.*c', 600, 'x'), 'x', 'abcdefgh ijklmnop qrstuvwx yz '), 1, {CHARACTERS} - 14)
                || iif(i = 1, ' earliest', iif(i = {LINES}, ' latest', '')),
            'root', '', 60, format('2026-02-01T%08d', i), format('2026-02-01T%08d', i), '2999', 'success', 'x' FROM n"
    );
    database.execute_batch(&sql).unwrap();
    count(&database, 1);
    // The steps for a line do not depend on its length.
    let nothing = search("nothing");
    assert_eq!(nothing.total, Some(0));
    assert!(nothing.steps < before + 150 * LINES as i32, "{} after {before}", nothing.steps);
    for (words, found) in [
        ("earliest", 1),
        ("LATEST", 1),
        ("latest earliest", 0),
        ("mnop latest WEB-2", 1),
        ("hgfedcba", 0),
    ] {
        assert_eq!(search(words).total, Some(found), "{words}");
    }
    // With this many words, only some of the newest lines are read.
    let letters = "abcdefghijklmnopqrstuvwxyz";
    let many =
        (0..24).map(|at| &letters[at..at + 2]).filter(|word| !["hi", "pq", "xy"].contains(word));
    let many = many.collect::<Vec<_>>().join(" ");
    assert_eq!(search(&format!("latest {many}")).total, Some(1));
    assert_eq!(search(&format!("earliest {many}")).total, Some(0));
    // The same for partial access, and with other filters.
    let (boss, owner, stranger) = (Me::superuser(1), Me::ordinary(1, OWNER), Me::ordinary(1, 12));
    for (me, filters, found) in [
        (&owner, "", 1),
        (&stranger, "", 0),
        (&boss, "&server=00000001-0000-7000-8000-000000000002", 1),
        (&boss, "&server=00000001-0000-7000-8000-000000000003", 0),
        (&boss, "&shell=internal", 0),
        (&boss, "&requested_by_isnull=true", 1),
        (&boss, "&requested_by=1", 0),
        (&boss, "&state=failed", 0),
        (&boss, "&ordering=-handled_at,added_at", 1),
    ] {
        let list = list_of(&query(&format!("search=latest{filters}")));
        let page = run(&database, statement(&list, Some(me), Variant::ForAll, 15, 0));
        assert_eq!(page.total, Some(found), "{filters}");
    }
}

/// Prints how long lists of 1,000,000 commands take. Run it with
/// `cargo test -p farhand-sql --test command_list -- --ignored --nocapture million`.
#[test]
#[ignore = "takes minutes"]
fn times_at_a_million() {
    let database = database();
    fill(&database, 1, 1_000_000);
    let callers =
        [("full access", Me::superuser(1)), ("three servers of 20", Me::ordinary(1, OWNER))];
    for text in BOUNDED.into_iter().chain([
        "shell=system",
        "shell=internal",
        "requested_by_isnull=false",
        "success=false",
        "success=true",
        "requested_by_isnull=true",
        "is_scheduled=false",
        "state=failed",
        "exit_code=1",
        "exit_code=7",
        "username=nobody",
        "added_at__gte=2026-01-01T00:00:00Z",
        "ordering=added_at",
        "ordering=-added_at",
        "ordering=-delivered_at",
        "ordering=handled_at",
        "ordering=-handled_at",
        "server=00000000-0000-7000-8000-000000000002&ordering=-handled_at",
        "search=often",
        "search=web",
        "search=often&state=failed",
        "search=often&ordering=-handled_at",
        "search=job%20777",
        "search=x",
        "search=é",
    ]) {
        let list = list_of(&query(&text.replace("server=00000000", "server=00000001")));
        for (name, me) in &callers {
            let variant = if me.has_full_access() { Variant::FullAccess } else { Variant::ForAll };
            let built = statement(&list, Some(me), variant, 15, 0);
            #[allow(clippy::disallowed_methods, reason = "this test does not run in wasm")]
            let start = Instant::now();
            let page = run(&database, built);
            println!(
                "{text:70} {name:20} {:8.1} ms, {:9} steps, {:?}",
                start.elapsed().as_secs_f64() * 1e3,
                page.steps,
                page.total
            );
        }
    }
}

/// Prints how many bytes 100,000 commands and their audit events take in each table and index. Run
/// it with `cargo test -p farhand-sql --test command_list -- --ignored --nocapture sizes`.
#[test]
#[ignore = "takes a minute"]
fn sizes() {
    let database = database();
    let commands = 100_000;
    // Workspace 2 is filled first, so that the rows of workspace 1 are inserted in the middle of
    // tables and indexes.
    fill(&database, 2, 1_000);
    // Each command has a line of 56 characters, 200 bytes of output, and two audit events. Events
    // are sealed 200 at a time.
    let (numbers, id) = (
        format!("SELECT value AS i FROM generated WHERE value <= {commands}"),
        "format('019f0000-%04x-7000-8000-%012x', i % 65536, i)",
    );
    let (server, at) = (
        "format('019e0000-0000-7000-8000-%012x', i % 20)",
        "format('2026-01-01T00:%02d:%02d.%06d+00:00', i / 60 % 60, i % 60, i)",
    );
    let event = |number: i64, who: &str, action: &str, details: u32| {
        format!(
            "INSERT INTO audit_events (seq, id, workspace_id, occurred_at, actor_type, actor_id, actor_name, credential_type,
                credential_id, action, object_type, object_id, outcome, remote_ip, request_id, details)
             SELECT (1 << 40) + 2 * i - {number}, {id}, 1, {at}, {who}, {server}, '{action}', 'command', {id}, 'success',
                '192.0.2.100', {id}, format('%.*c', {details}, 'x') FROM ({numbers});"
        )
    };
    let (user, agent) = (
        "'user', '17', 'anna', 'api_token'",
        format!("'agent', {server}, 'web-' || i % 20, 'agent_key'"),
    );
    database
        .execute_batch(&format!(
            "CREATE TEMP TABLE generated AS
             WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < {commands}) SELECT value FROM n;
             INSERT INTO workspaces (id, slug, name, added_at) VALUES (1, 'one', '', '');
             INSERT INTO commands (seq, workspace_id, id, server_id, server_name, requested_by, shell, line, username, groupname,
                timeout, added_at, scheduled_at, expires_at, delivered_at, acked_at, handled_at, state, status_message, success,
                exit_code, response_delay, elapsed_time, output_bytes, stored_bytes, result)
             SELECT (1 << 40) + i, 1, {id}, {server}, 'web-' || i % 20, 1 + i % 10, 'system',
                format('%-56s', 'systemctl restart app-' || i % 977 || ' && tail /var/log/' || i), 'deploy', '', 1800,
                {at}, {at}, {at}, {at}, {at}, {at}, 'success', 'Success', 1, 0, 0.125, 1.5, 200, 56, format('%.*c', 200, 'x')
             FROM ({numbers});
             {}
             {}
             INSERT INTO audit_seals
             SELECT (1 << 40) + 200 * i, 1, (1 << 40) + 200 * i - 199, '2026-01-01T00:00:00.000000+00:00',
                '2026-01-01T00:00:00.000000+00:00', format('%.*c', 12800, 'x') FROM ({numbers}) WHERE i <= {commands} / 100",
            event(1, user, "command.create", 320),
            event(0, &agent, "command.finish", 205),
        ))
        .unwrap();
    let sql = "SELECT name, sum(pgsize) AS bytes FROM dbstat GROUP BY name HAVING bytes > 100000 ORDER BY bytes DESC";
    let mut prepared = database.prepare(sql).unwrap();
    let mut rows = prepared.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (name, bytes): (String, i64) = (row.get(0).unwrap(), row.get(1).unwrap());
        println!("{name:30} {:7.1} bytes of each command", bytes as f64 / commands as f64);
    }
}
