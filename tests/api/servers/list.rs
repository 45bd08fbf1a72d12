//! The list of servers: filters, search, ordering, pages and counts (contract 6.2), for callers
//! with full and with partial access.

use std::cmp::Ordering;

use farhand_tests::agents::{ScriptedAgent, credential, wait_until_connected};
use farhand_tests::client::encoded;
use farhand_tests::people::{SERVERS, column, group_path, item_path};
use farhand_tests::{Api, Dice, Person, Workspace, eventually};
use serde_json::{Value, json};

const ORDERINGS: [&str; 6] =
    ["name", "added_at", "updated_at", "connected_at", "last_seen_at", "is_connected"];
/// The fields that a search covers.
const SEARCHED_FIELDS: [&str; 6] =
    ["name", "remote_ip", "platform", "os_name", "os_version", "agent_version"];

const NAMES: [&str; 6] = ["web", "db", "cache.eu", "build_x", "web.eu", "a-b"];
const SYSTEMS: [(&str, &str, &str); 6] = [
    ("Ubuntu", "24.04", "ubuntu"),
    ("Debian GNU/Linux", "12 (bookworm)", "debian"),
    ("Ünïx 100%_*", "ÄÖÜ \"x\"", "debian"),
    ("Red Hat", "9.4", "rhel"),
    ("macOS", "15.1", "darwin"),
    ("日本語 OS", "1", "rhel"),
];
const WORDS: [&str; 34] = [
    "web",
    "WEB",
    "web-1",
    "eu",
    ".",
    "-",
    "_",
    "%",
    "*",
    "100%_*",
    "\"x\"",
    "'",
    "ubuntu",
    "UBUNTU",
    "debian",
    "GNU/",
    "linux",
    "24.04",
    "24.",
    "book",
    "(bookworm)",
    "ünïx",
    "ÜNÏX",
    "äö",
    "ÄÖ",
    "rhel",
    "darwin",
    "MACOS",
    "日本",
    "2.1",
    "2.",
    "127.0.0.1",
    "nothing",
    "e",
];

fn ids(list: &Value) -> Vec<String> {
    column(list, "id").into_iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}

/// Compares values: null is lowest, and false is lower than true.
fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        _ => a.as_str().cmp(&b.as_str()),
    }
}

fn directed(order: Ordering, descending: bool) -> Ordering {
    if descending { order.reverse() } else { order }
}

/// The ids of the matching servers, in the expected order. `accessible` has the servers that the
/// caller can access; `None` stands for full access.
fn expected_ids(
    servers: &[Value],
    query: &[(&str, String)],
    accessible: Option<&[String]>,
) -> Vec<String> {
    let of =
        |name: &str| query.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str());
    let id = |server: &Value| server["id"].as_str().unwrap().to_owned();
    let matches = |server: &Value, search: &str| {
        let texts: Vec<String> = SEARCHED_FIELDS
            .iter()
            .map(|field| server[field].as_str().unwrap_or_default().to_lowercase())
            .collect();
        search
            .split_whitespace()
            .all(|word| texts.iter().any(|text| text.contains(&word.to_lowercase())))
    };
    let number = |id: &str| json!(id.parse::<i64>().unwrap());
    let is_found = |server: &&Value| {
        accessible.is_none_or(|ids| ids.contains(&id(server)))
            && of("name").is_none_or(|name| server["name"] == name)
            && of("is_connected").is_none_or(|is| server["is_connected"] == (is == "true"))
            && of("group")
                .is_none_or(|id| server["groups"].as_array().unwrap().contains(&number(id)))
            && of("owner").is_none_or(|id| server["owner"]["id"] == number(id))
            && of("platform").is_none_or(|platform| server["platform"] == platform)
            && of("agent_version").is_none_or(|version| server["agent_version"] == version)
            && of("search").is_none_or(|search| matches(server, search))
    };
    let mut found: Vec<&Value> = servers.iter().filter(is_found).collect();
    // The default is newest first. Ids sort by creation.
    let keys: Vec<(&str, bool)> = match of("ordering") {
        Some(ordering) => ordering
            .split(',')
            .map(|key| (key.trim_start_matches('-'), key.starts_with('-')))
            .collect(),
        None => vec![("id", true)],
    };
    found.sort_by(|a, b| {
        let by_keys = keys
            .iter()
            .map(|(name, descending)| directed(compare(&a[*name], &b[*name]), *descending));
        by_keys
            .into_iter()
            .find(|order| order.is_ne())
            .unwrap_or_else(|| directed(id(a).cmp(&id(b)), keys[0].1))
    });
    found.into_iter().map(id).collect()
}

/// All servers of a workspace, as the API shows them now.
async fn all(workspace: &Workspace) -> Vec<Value> {
    let (mut servers, mut page) = (Vec::new(), 1);
    loop {
        let list =
            workspace.admin.get(&format!("{SERVERS}?page_size=100&page={page}")).await.expect(200);
        servers.extend(list["results"].as_array().unwrap().iter().cloned());
        if list["next"].is_null() {
            return servers;
        }
        page += 1;
    }
}

fn random_query(dice: &mut Dice, servers: &[Value]) -> Vec<(&'static str, String)> {
    let mut query: Vec<(&'static str, String)> = Vec::new();
    if dice.once_in(8) {
        query.push(("name", dice.pick(servers)["name"].as_str().unwrap().to_owned()));
    }
    if dice.once_in(4) {
        query.push(("is_connected", (*dice.pick(&["true", "false"])).to_owned()));
    }
    // A value of a random server, or a value that no server has.
    for (name, pointer) in [
        ("group", "/groups/0"),
        ("owner", "/owner/id"),
        ("platform", "/platform"),
        ("agent_version", "/agent_version"),
    ] {
        if dice.once_in(6) {
            let value = match dice.pick(servers).pointer(pointer) {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Number(number)) => number.to_string(),
                _ => "999999".to_owned(),
            };
            query.push((name, value));
        }
    }
    if dice.once_in(2) {
        let words: Vec<&str> = (0..1 + dice.roll(2)).map(|_| *dice.pick(&WORDS)).collect();
        query.push(("search", words.join(" ")));
    }
    if !dice.once_in(3) {
        let mut names = ORDERINGS.to_vec();
        let keys = (0..1 + dice.roll(3)).map(|_| {
            let name = names.remove(dice.roll(names.len()));
            format!("{}{name}", dice.pick(&["", "-"]))
        });
        query.push(("ordering", keys.collect::<Vec<_>>().join(",")));
    }
    query
}

/// A caller, and the servers that the caller can access. `None` stands for full access.
struct ListCaller {
    name: &'static str,
    api: Api,
    accessible: Option<Vec<String>>,
}

/// Creates varied servers, some with a connected agent, and users with access to some of them.
async fn create_fleet(
    workspace: &Workspace,
    dice: &mut Dice,
) -> (Vec<ListCaller>, Vec<ScriptedAgent>) {
    let mut owner = Person::staff(workspace, "olga").await;
    let (mut made, mut agents, mut owned) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..40 {
        let name = format!("{}-{number}", dice.pick(&NAMES));
        let is_hers = dice.once_in(4);
        let api = if is_hers { &owner.api } else { &workspace.admin };
        let server = api.post(SERVERS, &json!({"name": name})).await.expect(201);
        let id = server["id"].as_str().unwrap().to_owned();
        if is_hers {
            owned.push(id.clone());
        }
        if !dice.once_in(3) {
            let (os, version, platform) = dice.pick(&SYSTEMS);
            let facts = json!({"version": format!("2.{}.0", dice.roll(3)), "load": 0.5,
                "os": {"name": os, "version": version, "platform": platform, "platform_like": platform}});
            let agent = workspace.anonymous.with_authorization(&credential(&server));
            agent.put("/api/servers/servers/-/commit/", &facts).await.expect(200);
            eventually("the facts", || async {
                let shown = workspace.admin.get(&item_path(SERVERS, &server)).await.expect(200);
                (shown["os_name"] == *os).then_some(())
            })
            .await;
        }
        if dice.once_in(5) {
            agents.push(ScriptedAgent::connect(workspace, &server).await);
            wait_until_connected(workspace, &id, true).await;
        }
        made.push(id);
    }
    owner.demote(workspace).await;
    // Renames make the order by `updated_at` differ from the order by `added_at`.
    for number in [31, 7, 19] {
        let path = format!("{SERVERS}{}/", made[number]);
        workspace
            .admin
            .patch(&path, &json!({"name": format!("renamed-{number}")}))
            .await
            .expect(200);
    }
    let (member, group) = (Person::new(workspace, "max").await, workspace.group("some", &[]).await);
    workspace.add_member(&group, &member, "member").await;
    let second = workspace.group("more", &[]).await;
    workspace.add_member(&second, &member, "manager").await;
    let first_some: Vec<String> = made.iter().step_by(3).cloned().collect();
    let more: Vec<String> = made.iter().step_by(5).cloned().collect();
    workspace.admin.patch(&group_path(&group), &json!({"servers": first_some})).await.expect(200);
    workspace.admin.patch(&group_path(&second), &json!({"servers": more})).await.expect(200);
    // Servers in both groups must be listed once.
    let of_groups: Vec<String> =
        made.iter().filter(|id| first_some.contains(id) || more.contains(id)).cloned().collect();
    // The owner is also a member of a group.
    workspace.add_member(&second, &owner, "member").await;
    let of_owner: Vec<String> =
        made.iter().filter(|id| owned.contains(id) || more.contains(id)).cloned().collect();
    let listed: Vec<String> = made.iter().step_by(4).cloned().collect();
    let callers = vec![
        ListCaller { name: "superuser", api: workspace.admin.clone(), accessible: None },
        ListCaller { name: "staff", api: workspace.staff("bob").await, accessible: None },
        ListCaller { name: "owner", api: owner.api, accessible: Some(of_owner) },
        ListCaller { name: "member", api: member.api, accessible: Some(of_groups) },
        ListCaller { name: "outsider", api: workspace.user("eve").await, accessible: Some(vec![]) },
        ListCaller {
            name: "limited token",
            api: workspace.limited(&json!({"servers": listed})).await,
            accessible: Some(listed),
        },
    ];
    (callers, agents)
}

#[tokio::test]
async fn lists_equal_those_of_a_naive_model() {
    let mut dice = Dice(20261122);
    let (workspace, elsewhere) = (Workspace::new().await, Workspace::new().await);
    for name in ["web-1", "db-2"] {
        elsewhere.server(name).await;
    }
    let (callers, _agents) = create_fleet(&workspace, &mut dice).await;
    let mut servers = all(&workspace).await;
    let mut non_empty = 0;
    for round in 0..480 {
        let caller = dice.pick(&callers);
        // Each word and each ordering alone, then random combinations.
        let query = match round {
            0..6 => vec![],
            6..40 => vec![("search", WORDS[round - 6].to_owned())],
            40..52 => {
                let name = ORDERINGS[(round - 40) % 6];
                vec![("ordering", if round < 46 { name.to_owned() } else { format!("-{name}") })]
            }
            52..92 => {
                let wanted = [
                    ("group", json!(servers.iter().find_map(|server| server["groups"].get(0)))),
                    (
                        "owner",
                        servers
                            .iter()
                            .map(|server| &server["owner"]["id"])
                            .max_by_key(|id| id.as_i64())
                            .unwrap()
                            .clone(),
                    ),
                    ("platform", json!("debian")),
                    ("agent_version", json!("2.1.0")),
                ];
                let (name, value) = &wanted[round % 4];
                vec![(*name, value.as_str().map_or_else(|| value.to_string(), str::to_owned))]
            }
            _ => random_query(&mut dice, &servers),
        };
        let size = 1 + dice.roll(15);
        let page = 1 + dice.roll(3);
        let path = *dice.pick(&["/api/servers/", SERVERS]);
        let mut tries = 0;
        loop {
            let all_found = expected_ids(&servers, &query, caller.accessible.as_deref());
            // Request a page that exists.
            let page = if (page - 1) * size < all_found.len() { page } else { 1 };
            let mut parameters = query.clone();
            parameters.extend([("page", page.to_string()), ("page_size", size.to_string())]);
            let found =
                caller.api.get(&format!("{path}?{}", encoded(&parameters))).await.expect(200);
            let expected: Vec<String> =
                all_found.iter().skip((page - 1) * size).take(size).cloned().collect();
            let is_equal = ids(&found) == expected && found["count"] == all_found.len();
            // `last_seen_at` of a connected agent may have changed since `servers` was read. Then
            // read the servers again and repeat the comparison.
            let before = std::mem::replace(
                &mut servers,
                if is_equal { vec![] } else { all(&workspace).await },
            );
            if is_equal {
                servers = before;
                non_empty += usize::from(!expected.is_empty());
                let has_next = page * size < all_found.len();
                assert_eq!(
                    (found["next"].is_string(), found["previous"].is_string()),
                    (has_next, page > 1)
                );
                break;
            }
            tries += 1;
            let what = format!("round {round}, {}: {path}?{}", caller.name, encoded(&parameters));
            assert!(
                servers != before && tries < 3,
                "{what}: {found}, expected {expected:?} of {}",
                all_found.len()
            );
        }
    }
    assert!(non_empty > 150, "too many empty pages; only {non_empty} had items");
    // List items equal the responses to a GET of the single servers.
    for caller in &callers {
        let list = caller.api.get("/api/servers/?page_size=3").await.expect(200);
        for item in list["results"].as_array().unwrap() {
            let one = caller.api.get(&item_path(SERVERS, item)).await.expect(200);
            assert_eq!(
                (&one["name"], &one["os_name"], &one["groups"]),
                (&item["name"], &item["os_name"], &item["groups"])
            );
        }
    }
}

#[tokio::test]
async fn all_malformed_parameters_are_reported() {
    let workspace = Workspace::new().await;
    workspace.server("web-1").await;
    let outsider = workspace.user("eve").await;
    for (query, field) in [
        ("is_connected=maybe", "is_connected"),
        ("is_connected=", "is_connected"),
        ("is_connected=2", "is_connected"),
        ("group=", "group"),
        ("group=ops", "group"),
        ("group=1.0", "group"),
        ("owner=boss", "owner"),
        ("owner=+1", "owner"),
        ("owner=null", "owner"),
        ("ordering=", "ordering"),
        ("ordering=id", "ordering"),
        ("ordering=load", "ordering"),
        ("ordering=NAME", "ordering"),
        ("ordering=--name", "ordering"),
        ("ordering=name,", "ordering"),
        ("ordering=name,-", "ordering"),
        ("ordering=name;added_at", "ordering"),
        ("search=a%00b", "search"),
        ("page=0", "page"),
        ("page=-1", "page"),
        ("page=x", "page"),
        ("page_size=0", "page_size"),
        ("page_size=x", "page_size"),
    ] {
        for path in ["/api/servers/", SERVERS] {
            for api in [&workspace.admin, &outsider] {
                let reply = api.get(&format!("{path}?{query}")).await;
                assert_eq!(reply.status, 400, "{query}: {}", reply.text);
                reply.expect_fields(400, &[field]);
            }
        }
    }
    let everything = "is_connected=x&group=x&owner=x&ordering=x&search=%00&page=x&page_size=x";
    let fields = ["group", "is_connected", "ordering", "owner", "page", "page_size", "search"];
    workspace.admin.get(&format!("{SERVERS}?{everything}")).await.expect_fields(400, &fields);
    // The credential is checked before the input.
    workspace.anonymous.get(&format!("{SERVERS}?{everything}")).await.expect_detail(401, None);
    let count = async |query: &str| {
        workspace.admin.get(&format!("{SERVERS}?{query}")).await.expect(200)["count"].clone()
    };
    for (query, expected) in [
        ("unknown=x", 1),
        ("name=web-1", 1),
        ("name=WEB-1", 0),
        ("name=web", 0),
        ("name=", 0),
        ("search=", 1),
        ("search=+++", 1),
        ("search=WEB-1", 1),
        ("search=' OR 1=1 --", 0),
        ("search=%22", 0),
        ("search=%25", 0),
        ("search=_", 0),
        ("search=web+boss", 0),
        ("group=7", 0),
        ("group=0", 0),
        ("group=99999999999999999999", 0),
        ("owner=99999999999999999999", 0),
        ("owner=0", 0),
        ("owner=1", 1),
        ("platform=debian", 0),
        ("platform=", 0),
        ("agent_version=a%00b", 0),
        ("policy=none", 0),
        ("is_connected=true", 0),
        ("is_connected=False", 1),
        ("page_size=1000", 1),
    ] {
        assert_eq!(count(query).await, expected, "{query}");
    }
    for long in ["x".repeat(10_000), "web ".repeat(1_000)] {
        let found = count(&encoded(&[("search", long.clone())])).await;
        assert_eq!(found, i32::from(long.starts_with("web")));
    }
    workspace.admin.get(&format!("{SERVERS}?page=2")).await.expect_detail(404, None);
    let empty = json!({"count": 0, "next": null, "previous": null, "results": []});
    assert_eq!(
        outsider.get("/api/servers/?ordering=-name,added_at&search=web").await.expect(200),
        empty
    );
}
