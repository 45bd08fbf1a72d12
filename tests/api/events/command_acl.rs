//! Attempts to run, end or read commands against the access control list of an API token (contract
//! 4.12 and 7.7). Each test also has allowed commands, so that a service that refuses everything
//! fails.

use farhand_tests::agents::ScriptedAgent;
use farhand_tests::{Api, Reply, Workspace, eventually, far_ahead, now};
use serde_json::{Value, json};

const PATH: &str = "/api/events/commands/";
const REFUSED: Option<&str> = Some("API_TOKEN_ACL_NOT_ALLOWED");
const NOT_FOUND: Option<&str> = Some("COMMAND_NOT_FOUND");

/// A workspace with two servers and their agents.
struct LimitedWorkspace {
    workspace: Workspace,
    servers: [Value; 2],
    agents: [ScriptedAgent; 2],
    /// How many commands have been accepted.
    accepted: u64,
}

impl LimitedWorkspace {
    async fn new() -> Self {
        let workspace = Workspace::new().await;
        let servers = [workspace.server("web-1").await, workspace.server("web-2").await];
        let agents = [
            ScriptedAgent::connect(&workspace, &servers[0]).await,
            ScriptedAgent::connect(&workspace, &servers[1]).await,
        ];
        Self { workspace, servers, agents, accepted: 0 }
    }

    /// Posts an allowed command. It must be the next message of its agent, so no refused command
    /// was delivered before it.
    async fn expect_allowed(&mut self, api: &Api, body: &Value) -> Value {
        let made = api.post(PATH, body).await;
        assert_eq!(made.status, 201, "{body} must be allowed: {}", made.text);
        let made = made.json();
        self.accepted += 1;
        let agent = self.servers.iter().position(|server| server["id"] == made["server"]).unwrap();
        let order = self.agents[agent].next_command().await;
        assert_eq!((&order["id"], &order["line"]), (&made["id"], &made["line"]), "{body}");
        made
    }

    /// Asserts that only accepted commands are stored, and that no other commands were delivered.
    async fn expect_nothing_else(&mut self) {
        let list = self.workspace.admin.get(PATH).await.expect(200);
        assert_eq!(list["count"], self.accepted, "no refused command is stored");
        for agent in &mut self.agents {
            assert!(agent.stays_silent().await, "no refused command was delivered");
        }
    }
}

/// A command body with changes.
fn body_with(changes: &Value) -> Value {
    let mut body = json!({"server": "web-1", "line": "ls", "username": "deploy"});
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    body
}

#[track_caller]
fn expect_refused(reply: &Reply, what: &Value) {
    let code = reply.json()["code"].as_str().map(ToOwned::to_owned);
    assert_eq!(
        (reply.status, code.as_deref()),
        (403, REFUSED),
        "{what} must be refused: {}",
        reply.text
    );
}

fn path_of(command: &Value) -> String {
    format!("{PATH}{}/", command["id"].as_str().unwrap())
}

/// For each list, posts allowed and refused commands with a token that has the list.
async fn check(groups: &[(Value, Vec<Value>, Vec<Value>)], minimum: usize) {
    let mut limited_workspace = LimitedWorkspace::new().await;
    let mut attempts = 0;
    for (acl, allowed, not_allowed) in groups {
        let token = limited_workspace.workspace.limited(acl).await;
        for changes in not_allowed {
            // Immediate, scheduled and waiting requests get the same decision.
            let body = body_with(changes);
            expect_refused(
                &token.post(PATH, &body).await,
                &json!({"acl": acl, "changes": changes}),
            );
            let mut later = body.clone();
            later["scheduled_at"] = json!(far_ahead());
            expect_refused(&token.post(PATH, &later).await, &json!({"acl": acl, "later": changes}));
            attempts += 1;
        }
        for changes in allowed {
            limited_workspace.expect_allowed(&token, &body_with(changes)).await;
        }
    }
    assert!(attempts >= minimum, "{attempts}");
    limited_workspace.expect_nothing_else().await;
}

fn lines(lines: &[&str]) -> Vec<Value> {
    lines.iter().map(|line| json!({"line": line})).collect()
}

#[tokio::test]
async fn lines_outside_the_patterns_are_refused() {
    let groups = [
        (
            json!({"commands": ["ls **", "df -h", "systemctl restart *.service"]}),
            lines(&[
                "ls",
                "ls ",
                "ls -l /tmp",
                "ls a b *.rs %y !z [a-c]? a=b",
                // Look-alikes of operators are ordinary characters for a shell. They reach the
                // agent unchanged.
                "ls \u{ff1b}\u{ff06}\u{37e}\u{200b}e\u{301} id",
                "df -h",
                "systemctl restart nginx.service",
            ]),
            lines(&[
                // Operators:
                "ls; id",
                "ls ;id",
                "ls -l; id",
                "ls && id",
                "ls & id",
                "ls &",
                "ls | sh",
                "ls || id",
                "ls |& id",
                "ls > /etc/passwd",
                "ls >> x",
                "ls 2>&1",
                "ls < /etc/shadow",
                "ls << EOF",
                "ls <(id)",
                "ls (id)",
                // Substitution and expansion:
                "ls $(id)",
                "ls `id`",
                "ls $HOME",
                "ls ${IFS}id",
                "ls $'\\x3b'",
                "ls {a,b}",
                "ls \\",
                "ls \\; id",
                // Quotes, comments and other folders:
                "ls 'a b'",
                "ls \"a b\"",
                "ls ''",
                "ls ~",
                "ls ~root/x",
                "ls # x",
                "ls x#y",
                "systemctl restart x # .service",
                "systemctl restart 'x' .service",
                "ls ';' \"$(id)\"",
                // Newlines and other control characters:
                "ls\nid",
                "ls \nid",
                "ls -l\n",
                "ls -l\r\nid",
                "ls -l\rid",
                "ls -l\tid",
                "ls -l\u{b}id",
                "ls -l\u{c}id",
                "ls -l\u{1b}[2Jid",
                "ls -l\u{8}id",
                "ls -l\u{7f}id",
                "ls -l\u{85}id",
                "ls -l\u{2028}id",
                "ls -l\u{2029}id",
                // Text around the pattern:
                " ls",
                "\tls",
                "\u{a0}ls",
                "\u{feff}ls",
                "lsof",
                "l",
                "LS",
                "ls\u{a0}-l",
                "'ls'",
                "\"ls\" -l",
                "l's'",
                "l\\s",
                "./ls",
                "/bin/ls",
                "sudo ls",
                "! ls",
                "exec ls",
                ". ls",
                "#ls",
                "LD_PRELOAD=x ls",
                "PATH=/tmp ls -l",
                "ls=id",
                "id",
                "id ls",
                "df -h ",
                "df -h x",
                "df  -h",
                "df",
                "systemctl restart x;id.service",
                "systemctl restart .service; id",
                "systemctl restart nginx.service ",
                "systemctl restart nginx_service",
                // Look-alikes in literal parts of a pattern:
                "\u{217c}s",
                "l\u{455}",
                "\u{ff4c}\u{ff53}",
                "ls\u{301}",
                "l\u{200b}s",
                "ls\u{200b}",
                "\u{202e}ls",
                "ls\u{3000}-l",
                "df \u{2010}h",
                "df -h\u{fe0f}",
                "systemctl restart nginx\u{2024}service",
            ]),
        ),
        (
            // Everything but `*` is literal in a pattern, operators too.
            json!({"commands": ["echo a; echo b", "ps | grep *", "cat ?[x].conf", "echo %_", "x $*"]}),
            lines(&[
                "echo a; echo b",
                "ps | grep x",
                "ps | grep",
                "cat ?[x].conf",
                "echo %_",
                "x $y",
            ]),
            lines(&[
                "echo a\u{37e} echo b",
                "echo a\u{ff1b} echo b",
                "echo a; echo b; id",
                "echo a;  echo b",
                "ps | grep x | sh",
                "ps | grep x; id",
                "ps \u{ff5c} grep x",
                "ps",
                "cat ax.conf",
                "cat ?x.conf",
                "cat *[x].conf",
                "echo abc",
                "x $(id)",
                "x ${y}",
                "x $y$z",
            ]),
        ),
        (
            json!({"commands": ["systemctl restart *", "cat /var/log/*"]}),
            lines(&["systemctl restart a b", "systemctl restart", "cat /var/log/a"]),
            lines(&[
                "systemctl restart -H host a",
                "systemctl restart a -H host",
                "systemctl restart *",
                "cat /var/log/a /etc/passwd",
                "cat /var/log/../../etc/passwd",
                "cat /var/log/.?/a",
            ]),
        ),
        (
            json!({"commands": ["**"]}),
            lines(&["id", "ls -l"]),
            lines(&["id; ls", "$x", "a\nb", "(id)", "id &", "a\u{2028}b"]),
        ),
        (
            json!({"commands": ["é*"]}),
            lines(&["é", "éa"]),
            lines(&["e\u{301}", "e\u{301}a", "É", "e"]),
        ),
        (json!({"commands": [" *"]}), lines(&[" ls"]), lines(&["ls", "\u{a0}ls", "\u{2003}ls"])),
        (json!({"commands": []}), vec![], lines(&["ls", "*"])),
        (json!({"commands": null}), lines(&["ls; id"]), vec![]),
    ];
    check(&groups, 100).await;
}

#[tokio::test]
async fn other_fields_are_checked_against_their_lists() {
    let elsewhere = "01936d3e-7a00-7000-8000-000000000000";
    let commands = json!({"commands": ["ls *"]});
    let groups = [
        (
            commands.clone(),
            vec![
                json!({"env": null}),
                json!({"command": "ls"}),
                json!({"line": null, "command": "ls"}),
                json!({"command": null}),
                json!({"shell": null}),
                json!({"shell": "system"}),
                json!({"username": "root"}),
                json!({"groupname": ""}),
            ],
            vec![
                // The alias is checked like the field.
                json!({"line": null, "command": "id"}),
                json!({"line": "id", "command": "id"}),
                json!({"line": "ls; id", "command": "ls; id"}),
                json!({"shell": "internal"}),
                json!({"shell": "internal", "line": "ls -l"}),
                // An environment can change the effect of a line, so even an empty one is refused.
                json!({"env": {"LD_PRELOAD": "/tmp/x.so"}}),
                json!({"env": {"PATH": "/tmp"}}),
                json!({"env": {"IFS": "l"}}),
                json!({"env": {}}),
                json!({"groupname": "root"}),
            ],
        ),
        (
            json!({"usernames": ["deploy", "*", "d?", "Ops"]}),
            vec![
                json!({"line": "id; ls", "env": {"A": "b"}}),
                json!({"username": "*"}),
                json!({"username": "Ops"}),
                json!({"groupname": ""}),
                json!({"groupname": null}),
            ],
            vec![
                // Built-ins run as the agent's own account, whatever account the request names.
                json!({"shell": "internal"}),
                json!({"shell": "internal", "line": "reboot"}),
                json!({"username": "root"}),
                json!({"username": "Deploy"}),
                json!({"username": "DEPLOY"}),
                json!({"username": "deploy2"}),
                json!({"username": "deplo"}),
                json!({"username": "d\u{435}ploy"}),
                json!({"username": "deploy\u{200b}"}),
                json!({"username": "dx"}),
                json!({"username": "ops"}),
                json!({"username": "0"}),
                json!({"username": "boss"}),
                // The default is the caller's own name, which is not in the list.
                json!({"username": null}),
                json!({"groupname": "root"}),
                json!({"groupname": "deploy"}),
                json!({"username": "root", "groupname": "deploy"}),
            ],
        ),
        (
            json!({"usernames": ["boss"]}),
            vec![json!({"username": null}), json!({"username": "boss"})],
            vec![
                json!({"username": "Boss"}),
                json!({"username": null, "groupname": "wheel"}),
                json!({}),
            ],
        ),
        (
            json!({"usernames": []}),
            vec![],
            vec![json!({}), json!({"username": null}), json!({"username": "boss"})],
        ),
        (
            json!({"servers": [elsewhere]}),
            vec![],
            vec![
                json!({}),
                json!({"server": "web-2"}),
                json!({"server": "WEB-1"}),
                json!({"server": "nowhere"}),
                json!({"server": elsewhere}),
                json!({"server": "*"}),
            ],
        ),
        (
            json!({"servers": []}),
            vec![],
            vec![json!({}), json!({"server": "web-2"}), json!({"server": "nowhere"})],
        ),
        (
            json!({"read_only": true}),
            vec![],
            vec![json!({}), json!({"shell": "internal"}), json!({"server": "web-2"})],
        ),
        (json!({"networks": []}), vec![], vec![json!({})]),
        // Each list is checked on its own.
        (
            json!({"commands": ["ls"], "usernames": ["deploy"], "read_only": false}),
            vec![json!({})],
            vec![json!({"line": "id"}), json!({"username": "root"}), json!({"line": "ls -l"})],
        ),
        (json!({"commands": ["*"], "read_only": true}), vec![], vec![json!({})]),
        (
            json!({}),
            vec![json!({"line": "id; ls", "env": {}, "username": "root", "groupname": "root"})],
            vec![],
        ),
    ];
    check(&groups, 45).await;
}

#[tokio::test]
async fn servers_are_checked_by_name_and_by_id() {
    let mut limited_workspace = LimitedWorkspace::new().await;
    let [one, two] =
        limited_workspace.servers.clone().map(|server| server["id"].as_str().unwrap().to_owned());
    let token =
        limited_workspace.workspace.limited(&json!({"servers": [two.to_uppercase()]})).await;
    for server in
        [&one, &one.to_uppercase(), "web-1", &format!("{{{two}}}"), &two.replace('-', ""), "web-2 "]
    {
        let body = body_with(&json!({"server": server}));
        expect_refused(&token.post(PATH, &body).await, &body);
    }
    for server in [&two, &two.to_uppercase(), "web-2"] {
        limited_workspace.expect_allowed(&token, &body_with(&json!({"server": server}))).await;
    }
    limited_workspace.expect_nothing_else().await;
}

#[tokio::test]
async fn the_check_and_the_agent_see_the_same_value() {
    let mut limited_workspace = LimitedWorkspace::new().await;
    let token = limited_workspace
        .workspace
        .limited(&json!({"commands": ["ls *"], "usernames": ["deploy"]}))
        .await;
    let post = |body: &'static str, headers: &'static [(&'static str, &'static str)]| {
        let request =
            token.request("POST", PATH).header("Content-Type", "application/json").body(body);
        token.send(
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)),
        )
    };
    for body in [
        // If a field is repeated, the last value counts, for the check and for the agent.
        r#"{"server":"web-1","username":"deploy","line":"ls","line":"id"}"#,
        r#"{"server":"web-1","username":"deploy","line":"ls","username":"root"}"#,
        r#"{"server":"web-1","username":"deploy","line":"ls","shell":"system","shell":"internal"}"#,
        r#"{"server":"web-1","username":"deploy","line":"ls","env":null,"env":{}}"#,
        r#"{"server":"web-1","username":"deploy","line":"ls \u003b id"}"#,
        r#"{"server":"web-1","username":"deploy","li\u006ee":"ls \u000a id"}"#,
        r#"{"server":"web-1","username":"dep\u006coy2","line":"ls"}"#,
    ] {
        expect_refused(&post(body, &[]).await, &json!(body));
    }
    // Unreadable bodies run nothing either.
    for (body, status) in [
        (r#"{"server":"web-1","username":"deploy","line":"ls","command":"id"}"#, 400),
        (r#"{"server":"web-1","username":"deploy","line":"ls \ud800 id"}"#, 400),
        (r#"{"server":"web-1","username":"deploy","line":"ls\u0000; id"}"#, 400),
        (r#"{"server":"web-1","username":"deploy","line":["ls","id"]}"#, 400),
        (r#"{"server":"web-1","username":"deploy","line":"ls","shell":"INTERNAL"}"#, 400),
        (r#"{"server":"web-1","username":"deploy","line":"ls","shell":"Internal"}"#, 400),
        (r#"{"server":"web-1","username":"deploy","line":"ls","shell":"internal "}"#, 400),
        (r#"{"server":"web-1","username":"deploy ","line":"ls"}"#, 400),
        (r#"{"server":"web-1","username":" deploy","line":"ls"}"#, 400),
        (r#"{"server":"web-1","username":"deploy\n","line":"ls"}"#, 400),
        (r#"{"server":"web-1","username":"","line":"ls"}"#, 400),
        (r#"{"server":"web-1","username":["deploy"],"line":"ls"}"#, 400),
        (r#"{"server":"web-1","username":"deploy","line":"ls","groupname":" "}"#, 400),
        (r#"{"server":"web-1","username":"deploy","line":"ls"}{"line":"id"}"#, 400),
    ] {
        assert_eq!(post(body, &[]).await.status, status, "{body}");
    }
    let read_only = limited_workspace.workspace.limited(&json!({"read_only": true})).await;
    for name in ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"] {
        let request =
            read_only.request("POST", PATH).header(name, "GET").json(&body_with(&json!({})));
        expect_refused(&read_only.send(request).await, &json!(name));
    }
    let allowed = r#"{"server":"web-1","username":"root","line":"id","line":"ls a\u002dl","username":"deploy"}"#;
    let made = post(allowed, &[("Prefer", "wait=0")]).await.expect(201);
    limited_workspace.accepted += 1;
    let order = limited_workspace.agents[0].next_command().await;
    assert_eq!(
        (&order["id"], &order["line"], &order["user"]),
        (&made["id"], &json!("ls a-l"), &json!("deploy"))
    );
    limited_workspace.expect_nothing_else().await;
}

#[tokio::test]
async fn addresses_outside_the_networks_are_refused() {
    let mut limited_workspace = LimitedWorkspace::new().await;
    let acl = json!({"networks": ["10.1.0.0/16", "2001:db8::/32", "192.0.2.7/32", "::ffff:198.51.100.0/120"]});
    let token = limited_workspace.workspace.limited(&acl).await;
    let other = limited_workspace
        .workspace
        .admin
        .post(PATH, &body_with(&json!({"scheduled_at": far_ahead()})))
        .await
        .expect(201);
    limited_workspace.accepted += 1;
    for outside in [
        "10.2.0.1",
        "11.1.0.1",
        "192.0.2.8",
        "198.51.101.1",
        "::ffff:10.2.0.1",
        "::10.1.0.1",
        "64:ff9b::10.1.0.1",
        "2002:0a01:0001::1",
        "2001:db9::1",
        "::1",
        "127.0.0.1",
        "0.0.0.0",
        "10.1",
        "010.1.0.1",
        "10.1.0.1/16",
        "10.1.0.1, 10.2.0.1",
        "10.1.0.1, 10.2.0.1, 127.0.0.1",
        "10.1.0.1,",
        "2001:db8::1%eth0",
        "167837697",
        "0x0a010001",
        "localhost",
        "-",
    ] {
        let from = token.from_address(outside);
        expect_refused(&from.post(PATH, &body_with(&json!({}))).await, &json!(outside));
        let spoof = from.request("POST", PATH).json(&body_with(&json!({})));
        let spoof = [
            "CF-Connecting-IP",
            "Farhand-Peer",
            "X-Real-IP",
            "True-Client-IP",
            "Forwarded",
            "CF-Connecting-IPv6",
        ]
        .iter()
        .fold(spoof, |request, name| request.header(*name, "10.1.0.1"));
        expect_refused(&from.send(spoof).await, &json!(outside));
        for path in [PATH.to_owned(), path_of(&other), format!("{}chunks/", path_of(&other))] {
            expect_refused(&from.get(&path).await, &json!([outside, path]));
        }
        expect_refused(&from.delete(&path_of(&other)).await, &json!(outside));
    }
    for inside in [
        "10.1.255.255",
        "10.1.0.1:443",
        "10.2.0.1, 10.1.0.1",
        "[2001:db8::1]",
        "::ffff:10.1.0.1",
        "::ffff:a01:1",
        "2001:DB8::1",
        "192.0.2.7",
        "198.51.100.9",
        "::ffff:198.51.100.9",
    ] {
        limited_workspace.expect_allowed(&token.from_address(inside), &body_with(&json!({}))).await;
    }
    token.from_address("10.1.0.1").get(&path_of(&other)).await.expect(200);
    limited_workspace.expect_nothing_else().await;
}

#[tokio::test]
async fn a_read_only_token_reads_all_and_ends_nothing() {
    let mut limited_workspace = LimitedWorkspace::new().await;
    let admin = limited_workspace.workspace.admin.clone();
    let running = limited_workspace.expect_allowed(&admin, &body_with(&json!({}))).await;
    let waiting =
        admin.post(PATH, &body_with(&json!({"scheduled_at": far_ahead()}))).await.expect(201);
    limited_workspace.accepted += 1;
    let token = limited_workspace.workspace.limited(&json!({"read_only": true})).await;
    for command in [&running, &waiting] {
        let path = path_of(command);
        for (method, path) in [
            ("POST", format!("{path}cancel/")),
            ("POST", format!("{path}kill/")),
            ("DELETE", path.clone()),
        ] {
            expect_refused(&token.call(method, &path).await, &json!([method, path]));
        }
        assert_eq!(
            token.get(&path).await.expect(200)["status"],
            admin.get(&path).await.expect(200)["status"]
        );
        token.get(&format!("{path}?wait=0")).await.expect(200);
        token.get(&format!("{path}chunks/")).await.expect(200);
    }
    expect_refused(
        &token.post(PATH, &body_with(&json!({"on_offline": "queue"}))).await,
        &json!("queue"),
    );
    assert_eq!(token.get(PATH).await.expect(200)["count"], 2);
    // A read-only token can also read a stream to its end.
    limited_workspace.agents[0].fin(running["id"].as_str().unwrap(), 0, "").await;
    let events = token.get(&format!("{}stream/", path_of(&running))).await;
    assert!(events.status == 200 && events.text.contains("event: end"), "{}", events.text);
    limited_workspace.expect_nothing_else().await;
    assert_eq!(admin.get(&path_of(&waiting)).await.expect(200)["status"]["text"], "Scheduled");
}

#[tokio::test]
async fn commands_of_other_servers_look_unknown() {
    let mut limited_workspace = LimitedWorkspace::new().await;
    let admin = limited_workspace.workspace.admin.clone();
    let hidden =
        limited_workspace.expect_allowed(&admin, &body_with(&json!({"server": "web-2"}))).await;
    let hidden_later = admin
        .post(PATH, &body_with(&json!({"server": "web-2", "scheduled_at": far_ahead()})))
        .await
        .expect(201);
    let shown_later =
        admin.post(PATH, &body_with(&json!({"scheduled_at": far_ahead()}))).await.expect(201);
    limited_workspace.accepted += 2;
    let token = limited_workspace
        .workspace
        .limited(&json!({"servers": [limited_workspace.servers[0]["id"]]}))
        .await;
    let shown = limited_workspace.expect_allowed(&token, &body_with(&json!({}))).await;
    let ways = |command: &Value| {
        let path = path_of(command);
        ["", "?wait=30", "chunks/", "stream/", "cancel/", "kill/"].map(|end| format!("{path}{end}"))
    };
    for command in [&hidden, &hidden_later] {
        let [get, wait, chunks, stream, cancel, kill] = ways(command);
        for path in [&get, &wait, &chunks, &stream] {
            token.get(path).await.expect_detail(404, NOT_FOUND);
        }
        for path in [&cancel, &kill] {
            token.call("POST", path).await.expect_detail(404, NOT_FOUND);
        }
        token.delete(&get).await.expect_detail(404, NOT_FOUND);
        let expected = if *command == hidden { "Sent" } else { "Scheduled" };
        assert_eq!(admin.get(&get).await.expect(200)["status"]["text"], expected);
    }
    let list = token.get(PATH).await.expect(200);
    let listed: Vec<&Value> =
        list["results"].as_array().unwrap().iter().map(|item| &item["id"]).collect();
    assert_eq!((listed, &list["count"]), (vec![&shown_later["id"], &shown["id"]], &json!(2)));
    limited_workspace.agents[0].chunk(shown["id"].as_str().unwrap(), 0, "x").await;
    limited_workspace.agents[0].fin(shown["id"].as_str().unwrap(), 0, "x").await;
    let [get, wait, chunks, stream, cancel, _] = ways(&shown);
    for path in [&get, &wait] {
        assert_eq!(token.get(path).await.expect(200)["status"]["text"], "Success");
    }
    assert_eq!(token.get(&chunks).await.expect(200)["count"], 1);
    assert!(token.get(&stream).await.text.contains("event: end"));
    token.call("POST", &cancel).await.expect_detail(409, Some("EVENT_COMMAND_ALREADY_SENT"));
    token.delete(&path_of(&shown_later)).await.expect(204);
    limited_workspace.expect_nothing_else().await;
}

#[tokio::test]
async fn a_token_ends_only_commands_it_could_create() {
    let mut limited_workspace = LimitedWorkspace::new().await;
    let admin = limited_workspace.workspace.admin.clone();
    let mut acl = json!({"commands": ["ls **", "df"], "usernames": ["deploy"]});
    let token = limited_workspace.workspace.limited(&acl).await;
    acl["read_all"] = json!(true);
    let reader = limited_workspace.workspace.limited(&acl).await;
    let others = [
        json!({"line": "id"}),
        json!({"line": "ls; id"}),
        json!({"username": "root"}),
        json!({"username": "Deploy"}),
        json!({"username": null}),
        json!({"groupname": "deploy"}),
        json!({"shell": "internal"}),
        json!({"env": {}}),
        json!({"argv": ["ls"], "line": null}),
    ];
    for changes in others {
        let mut later = body_with(&changes);
        later["scheduled_at"] = json!(far_ahead());
        let waiting = admin.post(PATH, &later).await.expect(201);
        limited_workspace.accepted += 1;
        let running = limited_workspace.expect_allowed(&admin, &body_with(&changes)).await;
        for command in [&waiting, &running] {
            let path = path_of(command);
            for (method, path) in [
                ("POST", format!("{path}cancel/")),
                ("POST", format!("{path}kill/")),
                ("DELETE", path.clone()),
            ] {
                // Commands that the token cannot read look unknown. It cannot end commands that it
                // can read, but could not have created.
                token.call(method, &path).await.expect_detail(404, NOT_FOUND);
                expect_refused(&reader.call(method, &path).await, &json!([changes, method, path]));
            }
            let expected = if *command == waiting { "Scheduled" } else { "Sent" };
            assert_eq!(admin.get(&path).await.expect(200)["status"]["text"], expected, "{changes}");
        }
    }
    // The token can end its own commands, and other commands that it could have created.
    for (api, end) in [(&token, "cancel/"), (&admin, "cancel/"), (&admin, "kill/")] {
        let body = body_with(&json!({"line": "ls -l", "scheduled_at": far_ahead()}));
        let made = api.post(PATH, &body).await.expect(201);
        limited_workspace.accepted += 1;
        let ended = token.call("POST", &format!("{}{end}", path_of(&made))).await.expect(200);
        assert_eq!(ended["status"]["text"], "Cancelled");
    }
    let made = limited_workspace.expect_allowed(&admin, &body_with(&json!({"line": "df"}))).await;
    let path = path_of(&made);
    token.delete(&path).await.expect_detail(409, Some("EVENT_COMMAND_ALREADY_SENT"));
    token.call("POST", &format!("{path}kill/")).await.expect_detail(409, Some("AGENT_CANNOT_KILL"));
    limited_workspace.expect_nothing_else().await;
}

#[tokio::test]
async fn an_idempotency_key_bypasses_no_list() {
    let mut limited_workspace = LimitedWorkspace::new().await;
    let admin = limited_workspace.workspace.admin.clone();
    let post = async |api: &Api, key: &str, body: &Value| {
        api.send(api.request("POST", PATH).header("Idempotency-Key", key).json(body)).await
    };
    let bodies = [
        body_with(&json!({"line": "id"})),
        body_with(&json!({"env": {"A": "b"}})),
        body_with(&json!({"username": "root"})),
        body_with(&json!({"server": "web-2"})),
    ];
    let acl = json!({"commands": ["ls"], "usernames": ["deploy"], "servers": [limited_workspace.servers[0]["id"]],
        "networks": ["10.1.0.0/16"]});
    let token = limited_workspace.workspace.limited(&acl).await.from_address("10.1.0.1");
    for (number, body) in bodies.iter().enumerate() {
        let key = format!("key-{number}");
        let made = post(&admin, &key, body).await.expect(201);
        limited_workspace.accepted += 1;
        let agent = usize::from(made["server"] != limited_workspace.servers[0]["id"]);
        assert_eq!(limited_workspace.agents[agent].next_command().await["id"], made["id"]);
        let replayed = post(&admin, &key, body).await;
        assert_eq!((replayed.status, replayed.header("Idempotent-Replayed")), (201, "true"));
        // The response reveals neither the earlier command nor the use of the key, and no command
        // is created.
        for body in [body, &body_with(&json!({"line": "other"}))] {
            let reply = post(&token, &key, body).await;
            expect_refused(&reply, body);
            assert_eq!(reply.header("Idempotent-Replayed"), "");
        }
    }
    // If both tokens could create the command, the key replays it for both.
    let body = body_with(&json!({}));
    let made = post(&admin, "shared", &body).await.expect(201);
    limited_workspace.accepted += 1;
    limited_workspace.agents[0].next_command().await;
    let replayed = post(&token, "shared", &body).await;
    assert_eq!(
        (replayed.expect(201)["id"].clone(), replayed.header("Idempotent-Replayed")),
        (made["id"].clone(), "true")
    );
    expect_refused(&post(&token.from_address("10.2.0.1"), "shared", &body).await, &body);
    limited_workspace.expect_nothing_else().await;
}

#[tokio::test]
async fn waiting_commands_are_checked_like_others() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let token = workspace.limited(&json!({"commands": ["ls *"], "usernames": ["deploy"]})).await;
    let soon = now().plus_seconds(1);
    let ways = [
        json!({"on_offline": "queue"}),
        json!({"scheduled_at": soon}),
        json!({"scheduled_at": "2020-01-01T00:00:00Z", "on_offline": "queue"}),
    ];
    for way in &ways {
        for changes in [
            json!({"line": "id"}),
            json!({"line": "ls; id"}),
            json!({"username": "root"}),
            json!({"shell": "internal"}),
            json!({"env": {"A": "b"}}),
        ] {
            let mut body = body_with(&changes);
            body.as_object_mut().unwrap().extend(way.as_object().unwrap().clone());
            expect_refused(&token.post(PATH, &body).await, &body);
        }
    }
    // Whether the server is offline is shown only if the command is allowed.
    expect_refused(&token.post(PATH, &body_with(&json!({"line": "id"}))).await, &json!("offline"));
    token.post(PATH, &body_with(&json!({}))).await.expect_detail(503, Some("SERVER_NOT_CONNECTED"));
    let queued = token.post(PATH, &body_with(&json!({"on_offline": "queue"}))).await.expect(201);
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    assert_eq!(agent.next_command().await["id"], queued["id"]);
    eventually("the time of what was refused to be past", || async {
        (now() > soon).then_some(())
    })
    .await;
    assert!(agent.stays_silent().await);
    assert_eq!(workspace.admin.get(PATH).await.expect(200)["count"], 1);
}
