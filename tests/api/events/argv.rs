//! Commands without a shell, with standard input, and with a working directory (contract 7.3;
//! agent-protocol 7.1).

use farhand_tests::agents::{ScriptedAgent, own_account};
use farhand_tests::commands::wait_until_ended;
use farhand_tests::{Api, RealAgent, Reply, Workspace, far_ahead};
use serde_json::{Value, json};

use super::commands::{PATH, assert_status, id_of, path_of};

const ALL: &str = "kill, replay, argv, script, stdin, cwd";
const CANNOT: Option<&str> = Some("AGENT_CANNOT");
const REFUSED: Option<&str> = Some("API_TOKEN_ACL_NOT_ALLOWED");

/// A command body with additional fields.
fn command_body(fields: &Value) -> Value {
    let mut body = json!({"server": "web-1", "username": "deploy"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[track_caller]
fn expect_refused(reply: &Reply, what: &Value) {
    assert_eq!(
        (reply.status, reply.json()["code"].as_str()),
        (403, REFUSED),
        "{what} must be refused: {}",
        reply.text
    );
}

#[tokio::test]
async fn argv_stdin_and_cwd_reach_the_agent() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect_with_features(&workspace, &server, ALL).await;
    let words = json!(["printf", "a b", "", "it's", "$(id)", "x\ny", "--é=*"]);
    let body = command_body(
        &json!({"argv": words, "stdin": "in\u{0}put\n", "cwd": "/srv/a b", "env": {"A": "b"}}),
    );
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    assert_eq!(made["line"], "printf 'a b' '' 'it'\\''s' '$(id)' 'x\ny' '--é=*'");
    let order = agent.next_command().await;
    assert_eq!(
        (&order["id"], &order["argv"], &order["allow_sh"]),
        (&made["id"], &words, &json!(false))
    );
    assert_eq!((&order["stdin"], &order["cwd"]), (&json!("in\u{0}put\n"), &json!("/srv/a b")));
    assert_eq!(
        (&order["line"], &order["shell"]),
        (&json!("printf a b  it's $(id) x\ny --é=*"), &json!("system"))
    );
    agent.fin(id_of(&made), 0, "ok").await;
    // Neither the input nor the directory is shown anywhere.
    let one = workspace.admin.get(&path_of(&made)).await.expect(200);
    assert_eq!((&one["line"], &one["status"]["text"]), (&made["line"], &json!("Success")));
    for field in ["argv", "stdin", "cwd", "env"] {
        assert!(one.get(field).is_none() && made.get(field).is_none(), "{field}");
    }
    // A command with a line has none of these fields.
    let made =
        workspace.admin.post(PATH, &command_body(&json!({"line": "echo $HOME"}))).await.expect(201);
    let order = agent.next_command().await;
    assert_eq!(
        (&order["id"], &order["line"], &order["allow_sh"]),
        (&made["id"], &json!("echo $HOME"), &json!(true))
    );
    for field in ["argv", "stdin", "cwd"] {
        assert!(order.get(field).is_none(), "{field}: {order}");
    }
    // A waiting command keeps its fields until it is delivered.
    agent.close().await;
    farhand_tests::agents::wait_until_connected(&workspace, server["id"].as_str().unwrap(), false)
        .await;
    let body = command_body(
        &json!({"argv": ["cat", "a b"], "stdin": "later", "cwd": "/", "on_offline": "queue"}),
    );
    let made = workspace.admin.post(PATH, &body).await.expect(201);
    assert_status(&made, "Queued", "warning", true);
    let mut agent = ScriptedAgent::connect_with_features(&workspace, &server, ALL).await;
    let order = agent.next_command().await;
    assert_eq!((&order["id"], &order["argv"]), (&made["id"], &json!(["cat", "a b"])));
    assert_eq!((&order["stdin"], &order["cwd"]), (&json!("later"), &json!("/")));
}

#[tokio::test]
async fn commands_wait_or_fail_without_the_agents_features() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect_with_kill(&workspace, &server).await;
    let admin = &workspace.admin;
    let needing = [
        json!({"argv": ["echo", "a b"]}),
        json!({"argv": ["echo", "x", "&&", "reboot"]}),
        json!({"argv": ["echo", "x", "|", "sh"]}),
        json!({"argv": ["echo", "x;"]}),
        json!({"argv": ["echo", ""]}),
        json!({"argv": ["echo", "a\tb"]}),
        json!({"argv": ["echo", "a\nb"]}),
        json!({"argv": ["echo", "a\u{a0}b"]}),
        json!({"line": "cat", "stdin": ""}),
        json!({"line": "cat", "stdin": "x"}),
        json!({"line": "ls", "cwd": "/"}),
        json!({"argv": ["ls"], "cwd": "/srv"}),
    ];
    for fields in &needing {
        let mut body = command_body(fields);
        admin.post(PATH, &body).await.expect_detail(409, CANNOT);
        body["scheduled_at"] = json!(far_ahead());
        admin.post(PATH, &body).await.expect_detail(409, CANNOT);
    }
    assert_eq!(admin.get(PATH).await.expect(200)["count"], 0, "no refused command is stored");
    // For an agent without the feature, simple words become a line that the agent splits again. No
    // shell is started.
    let made = admin
        .post(PATH, &command_body(&json!({"argv": ["env", "A=b", "ls", "/srv/x-1"]})))
        .await
        .expect(201);
    assert_eq!(made["line"], "env 'A=b' ls /srv/x-1");
    let order = agent.next_command().await;
    assert_eq!(
        (&order["line"], &order["allow_sh"]),
        (&json!("env A=b ls /srv/x-1"), &json!(false))
    );
    assert!(order.get("argv").is_none(), "{order}");
    agent.close().await;
    farhand_tests::agents::wait_until_connected(&workspace, server["id"].as_str().unwrap(), false)
        .await;
    // While no agent is connected, commands wait. They fail when an agent connects that cannot run
    // them.
    let mut waiting = Vec::new();
    for fields in &needing {
        let mut body = command_body(fields);
        body["on_offline"] = json!("queue");
        waiting.push(admin.post(PATH, &body).await.expect(201));
    }
    let last = admin
        .post(PATH, &command_body(&json!({"line": "id", "on_offline": "queue"})))
        .await
        .expect(201);
    let mut agent = ScriptedAgent::connect_with_kill(&workspace, &server).await;
    assert_eq!(
        agent.next_command().await["id"],
        last["id"],
        "only commands that the agent can run are delivered"
    );
    for command in &waiting {
        let path = path_of(command);
        let ended = wait_until_ended(admin, id_of(command)).await;
        assert_status(&ended, "Failed", "danger", false);
        assert!(
            ended["status"]["message"].as_str().unwrap().contains("its agent cannot "),
            "{ended}"
        );
        assert_eq!((&ended["success"], &ended["delivered_at"]), (&json!(false), &json!(null)));
        admin.delete(&path).await.expect_detail(409, Some("COMMAND_ALREADY_HANDLED"));
        admin
            .call("POST", &format!("{path}kill/"))
            .await
            .expect_detail(409, Some("COMMAND_ALREADY_HANDLED"));
    }
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn access_control_lists_check_words() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web-1").await;
    let mut agent = ScriptedAgent::connect_with_features(&workspace, &server, ALL).await;
    let acl = json!({"argv": [["grep", "*", "/var/log/dpkg.log"], ["systemctl", "restart", "web-*"], ["ls", "..."]]});
    let token = workspace.limited(&acl).await;
    let run = async |api: &Api, fields: &Value| api.post(PATH, &command_body(fields)).await;
    for words in [
        json!(["grep", "root\" /etc/passwd \"", "/etc/passwd"]),
        json!(["grep", "root", "/etc/passwd", "/var/log/dpkg.log"]),
        json!(["grep", "root", "/var/log/dpkg.log", "/etc/passwd"]),
        json!(["sh", "-c", "grep x /var/log/dpkg.log"]),
        json!(["grep x /var/log/dpkg.log"]),
        json!(["systemctl", "restart"]),
        json!(["systemctl", "restart", "db-1"]),
        json!(["systemctl restart web-1"]),
        json!(["/bin/ls"]),
        json!(["lsof"]),
    ] {
        expect_refused(&run(&token, &json!({"argv": words})).await, &words);
    }
    for fields in [
        json!({"line": "ls"}),
        json!({"line": "grep x /var/log/dpkg.log"}),
        json!({"argv": ["ls"], "env": {"A": "b"}}),
        json!({"argv": ["ls"], "env": {}}),
        json!({"argv": ["ls"], "stdin": ""}),
        json!({"argv": ["ls"], "cwd": "/"}),
        json!({"argv": ["ls"], "groupname": "www"}),
    ] {
        expect_refused(&run(&token, &fields).await, &fields);
    }
    for words in [
        json!(["grep", "a b; $(id) 'x' # \"\n", "/var/log/dpkg.log"]),
        json!(["grep", "", "/var/log/dpkg.log"]),
        json!(["systemctl", "restart", "web-1 ; x"]),
        json!(["ls"]),
        json!(["ls", "-l", "/root/../x"]),
    ] {
        let made = run(&token, &json!({"argv": words})).await.expect(201);
        let order = agent.next_command().await;
        assert_eq!(
            (&order["id"], &order["argv"], &order["allow_sh"]),
            (&made["id"], &words, &json!(false))
        );
    }
    // Patterns for lines do not allow words.
    let lines = workspace.limited(&json!({"commands": ["ls *", "*"]})).await;
    expect_refused(&run(&lines, &json!({"argv": ["ls"]})).await, &json!("ls"));
    run(&lines, &json!({"line": "ls"})).await.expect(201);
    assert_eq!(agent.next_command().await["line"], "ls");
    // A list with accounts only allows lines and words, with all their fields.
    let accounts = workspace.limited(&json!({"usernames": ["deploy"]})).await;
    run(&accounts, &json!({"argv": ["id"], "stdin": "x", "cwd": "/", "env": {"A": "b"}}))
        .await
        .expect(201);
    assert_eq!(agent.next_command().await["argv"], json!(["id"]));
    assert!(agent.stays_silent().await);
}

#[tokio::test]
async fn a_real_process_gets_argv_stdin_and_cwd() {
    let workspace = Workspace::new().await;
    let server = workspace.server("here").await;
    let _agent = RealAgent::start(&workspace, &server).await;
    let run = async |fields: Value| {
        let mut body = json!({"server": "here", "username": own_account()});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let request = workspace.admin.request("POST", PATH).header("Prefer", "wait=30").json(&body);
        let done = workspace.admin.send(request).await.expect(201);
        assert_eq!(
            (&done["exit_code"], done["handled_at"].is_string()),
            (&json!(0), true),
            "{done}"
        );
        done["result"].as_str().unwrap().to_owned()
    };
    let odd = [
        "a b", "", "it's", "\"", "$(id)", "`id`", "$HOME", "x\ny", "\t", "*", "~", "#", "; id",
        "\\", "é 名",
    ];
    let mut words = vec!["printf", "<%s>"];
    words.extend(odd);
    let expected: String = odd.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(run(json!({"argv": words})).await, expected);
    assert_eq!(run(json!({"argv": ["cat"], "stdin": "one\ntwo é"})).await, "one\ntwo é");
    assert_eq!(run(json!({"line": "cat; echo end", "stdin": "in "})).await, "in end\n");
    assert_eq!(
        run(json!({"argv": ["pwd"], "cwd": "/usr/bin/.."})).await.trim_end_matches('\n'),
        "/usr"
    );
    assert_eq!(run(json!({"line": "pwd", "cwd": "/"})).await, "/\n");
}
