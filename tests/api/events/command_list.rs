//! `GET /api/events/commands/`: parameters, pages, links and counts (contract 7.10), and that a list
//! reads few rows in D1. `sql/tests/command_list/` compares the lists with a model and measures their
//! cost, natively. The tests insert commands directly into the database.

use farhand_tests::client::{encoded, unique};
use farhand_tests::{Api, Instance, Workspace, eventually, far_ahead};
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

/// Follows the links from the first page to the last page and back. Returns the ids in order.
async fn read_all(api: &Api, query: &str) -> Vec<String> {
    let ids = |page: &Value| {
        let items = page["results"].as_array().unwrap();
        items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let path = |link: &Value| {
        link.as_str().map(|link| format!("{PATH}?{}", link.split_once('?').unwrap().1))
    };
    let (mut pages, mut next) = (Vec::new(), Some(format!("{PATH}?{query}")));
    let mut previous = None;
    while let Some(at) = next {
        let page = api.get(&at).await.expect(200);
        assert_eq!(page["previous"].is_null(), pages.is_empty(), "{at}");
        (next, previous) = (path(&page["next"]), path(&page["previous"]));
        pages.push(ids(&page));
    }
    for page in pages.iter().rev().skip(1) {
        let found = api.get(&previous.unwrap()).await.expect(200);
        assert_eq!(&ids(&found), page);
        previous = path(&found["previous"]);
    }
    assert_eq!(previous, None);
    pages.concat()
}

#[tokio::test]
async fn pages_are_whole_linked_and_cheap() {
    const COMMANDS: u64 = 1_000;
    let (instance, _state) = Instance::new().await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let other = Workspace::create_with(&instance.operator(), "other").await;
    let owner = workspace.user("owner").await;
    for (filled, owner) in [(&workspace, &owner), (&other, &other.admin)] {
        let id = workspace_id(&instance, filled).await;
        fill(&instance, id, user_id(owner).await, COMMANDS as u32).await;
    }
    let id = workspace_id(&instance, &workspace).await;
    // A new event makes the sealer run, which counts the commands.
    workspace.server("another").await;
    let counted =
        format!("SELECT CAST(total AS TEXT) FROM counted_commands WHERE workspace_id = {id}");
    eventually("the counters", || async {
        (instance.read_d1(&counted) == [COMMANDS.to_string()]).then_some(())
    })
    .await;

    let server = format!("{id:08x}-0000-7000-8000-{:012x}", 2);
    let token = json!({"name": "one server", "expires_at": null, "acl": {"servers": [server]}});
    let limited = workspace.admin.post("/api/auth/tokens/", &token).await.expect(201);
    let limited = workspace.admin.with_token(limited["key"].as_str().unwrap());
    // Each list: the caller, the query, its number of items, and the most rows that D1 reads. With
    // full access, that is three for each item of the page. With partial access, it is five for each
    // item and server, as each of the three servers has a page.
    let (all, page) = (3 * 100 + 20, 3 * 15 + 20);
    let partial = 5 * 3 * 100 + 3 * 100 + 4 * 20;
    for (api, query, count, most) in [
        (&workspace.admin, "page_size=100".to_owned(), COMMANDS, all),
        (&workspace.admin, "ordering=scheduled_at&page_size=100".to_owned(), COMMANDS, all),
        (&workspace.admin, format!("server={server}"), COMMANDS / 20, page),
        (
            &workspace.admin,
            "search=seldom".to_owned(),
            COMMANDS / 200,
            10 * COMMANDS / 200 + 60 + 200,
        ),
        (&owner, "page_size=100".to_owned(), COMMANDS * 3 / 20, partial),
        (&limited, "page_size=100".to_owned(), COMMANDS / 20, partial),
    ] {
        let request = unique("cost");
        let first = api.request("GET", &format!("{PATH}?{query}")).header("X-Request-Id", &request);
        assert_eq!(api.send(first).await.expect(200)["count"], count, "{query}");
        let rows = instance.request_log_line(&request).await["rows_read"].as_u64().unwrap();
        assert!(rows <= most, "{query}: {rows} rows");
        let ids = read_all(api, &query).await;
        assert_eq!(ids.len() as u64, count, "{query}");
        let mut distinct = ids.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), ids.len(), "{query}");
    }
    let mut newest_first = read_all(&workspace.admin, "page_size=100").await;
    newest_first.reverse();
    let oldest_first = read_all(&workspace.admin, "ordering=scheduled_at&page_size=100").await;
    assert_eq!(newest_first, oldest_first);
    // A page past the end, and credentials on far pages.
    assert_eq!(workspace.admin.get(&format!("{PATH}?page=5000")).await.status, 404);
    let nobody = workspace.admin.with_token("nobody");
    for query in ["", "page=5000", "ordering=handled_at&page=5000", "search=often&page=5000"] {
        assert_eq!(nobody.get(&format!("{PATH}?{query}")).await.status, 403, "{query}");
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
