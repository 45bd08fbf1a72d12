//! `farhand run` and `farhand logs`.

use std::process::Stdio;

use farhand_tests::PATIENCE;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{Called, Farhand, add_server, start};

#[tokio::test]
async fn output_comes_before_the_end() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let folder = tempfile::tempdir().unwrap();
    let flag = folder.path().join("flag");
    // The command ends only after its first line was read here.
    let line = format!("echo one; until [ -e {} ]; do sleep 0.1; done; echo two", flag.display());
    let mut child = farhand.command(&["run", "here", "--", &line]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap();
    assert_eq!(first.as_deref(), Some("one"));
    std::fs::write(&flag, "").unwrap();
    let second = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap();
    assert_eq!(second.as_deref(), Some("two"));
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn the_exit_code_of_the_command_is_passed_through() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let run = async |words: &[&str]| farhand.call(&[&["run", "here", "--"], words].concat()).await;
    let ended = |called: Called| (called.code, called.out, called.err);
    let own = |code: i32, out: &str| (code, out.to_owned(), String::new());
    assert_eq!(ended(run(&["echo out; echo err >&2; exit 3"]).await), own(3, "out\nerr\n"));
    assert_eq!(ended(run(&["exit 255"]).await), own(255, ""));
    assert_eq!(ended(run(&["true"]).await), own(0, ""));
    // The program receives several words unchanged.
    assert_eq!(
        ended(run(&["printf", "%s|", "a  b", "it's", "$HOME", ""]).await),
        own(0, "a  b|it's|$HOME||")
    );
    let called = farhand.call(&["run", "here", "--no-shell", "--", "printf", "%s|", "$HOME"]).await;
    assert_eq!(ended(called), own(0, "$HOME|"));

    let called = farhand.call(&["run", "here", "--as", "no-such-account", "--", "id"]).await;
    assert_eq!((called.code, called.out.as_str()), (126, ""));
    assert!(called.err.contains("There is no account no-such-account"), "{called:?}");
    let called = farhand.call(&["run", "here", "--timeout", "1s", "--", "sleep 60"]).await;
    assert_eq!(ended(called), own(124, ""));
    // The exit code for wrong usage.
    assert_eq!(farhand.call(&["run", "here", "id"]).await.code, 125);
}

#[tokio::test]
async fn input_folder_and_environment() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let called = farhand.call_with(&["run", "here", "-i", "--", "cat"], "a\nb").await;
    assert_eq!(called.success(), "a\nb");
    let called = farhand.call(&["run", "here", "--cwd", "/tmp", "--", "pwd"]).await;
    assert_eq!(called.success(), "/tmp\n");
    let called = farhand.call(&["run", "here", "-e", "A=b c", "--", "echo $A"]).await;
    assert_eq!(called.success(), "b c\n");
    let mut command = farhand.command(&["run", "here", "-e", "SECRET", "--", "echo $SECRET"]);
    let output = command.env("SECRET", "from here").output().await.unwrap();
    assert_eq!(Called::from(&output).success(), "from here\n");
    let long = "a".repeat(64 * 1024 + 1);
    farhand.call_with(&["run", "here", "-i", "--", "cat"], &long).await.failure("64 KiB");
}

#[tokio::test]
async fn several_servers() {
    let (workspace, _first) = start("web-1").await;
    let _second = add_server(&workspace, "web-22").await;
    let farhand = Farhand::admin(&workspace);
    let line = "echo a; printf b; [ $FARHAND_TEST = 1 ] || exit 4";
    let called = farhand.call(&["run", "web-1,web-22", "-e", "FARHAND_TEST=0", "--", line]).await;
    assert_eq!((called.code, called.err.as_str()), (4, ""), "{called:?}");
    let mut lines: Vec<&str> = called.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["web-1  | a", "web-1  | b", "web-22 | a", "web-22 | b"]);

    // A server that fails does not stop the other servers.
    let called = farhand.call(&["run", "-s", "web-1", "-s", "nowhere", "--", "echo a"]).await;
    assert_eq!(called.code, 125);
    assert_eq!(called.out, "web-1   | a\n");
    assert_eq!(called.err, "farhand: nowhere: server: No such server.\n");

    let commands =
        farhand.call(&["-o", "json", "run", "web-1,web-22", "--", "echo a"]).await.json();
    let names: Vec<&Value> =
        commands.as_array().unwrap().iter().map(|command| &command["server_name"]).collect();
    assert_eq!(names, ["web-1", "web-22"]);
}

#[tokio::test]
async fn json_has_the_command_and_json_lines_have_the_pieces() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let called = farhand.call(&["run", "here", "-o", "json", "--", "echo a; exit 3"]).await;
    assert_eq!(called.code, 3);
    let command: Value = serde_json::from_str(&called.out).unwrap();
    assert_eq!((&command["result"], &command["exit_code"]), (&json!("a\n"), &json!(3)));

    let called = farhand.call(&["run", "here", "-o", "ndjson", "--", "echo a"]).await;
    let events: Vec<Value> =
        called.success().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let pieces: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!((pieces.as_str(), &events[0]["server"]), ("a\n", &json!("here")));
    assert_eq!(events.last().unwrap()["command"]["state"], "success");
}

#[tokio::test]
async fn detached_commands_are_followed_by_their_id() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let id = farhand.call(&["run", "-d", "here", "--", "echo a; sleep 1; exit 3"]).await.success();
    let id = id.trim();
    let called = farhand.call(&["logs", "-f", id]).await;
    assert_eq!((called.code, called.out.as_str()), (3, "a\n"));
    assert_eq!(farhand.call(&["logs", id]).await.success(), "a\n");

    let id = farhand.call(&["run", "here", "--at", "+1h", "--", "id"]).await.success();
    let called = farhand.call(&["cancel", id.trim()]).await;
    assert!(called.err.contains("Cancelled by boss"), "{called:?}");
    let called = farhand.call(&["logs", "-f", id.trim()]).await;
    assert_eq!(called.code, 125, "{called:?}");
    assert!(called.err.contains("Cancelled by boss"), "{called:?}");

    let id = farhand.call(&["run", "-d", "here", "--", "exec sleep 600"]).await.success();
    farhand_tests::eventually("the start", || async {
        let path = format!("/api/events/commands/{}/", id.trim());
        workspace.admin.get(&path).await.expect(200)["acked_at"].is_string().then_some(())
    })
    .await;
    farhand.call(&["kill", id.trim()]).await.success();
    let called = farhand.call(&["logs", "-f", id.trim()]).await;
    assert_eq!(called.code, 143, "{called:?}");
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_farhand_and_not_the_command() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let mut command = farhand.command(&["run", "here", "--", "yes | head -n 100000; sleep 1"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    let called = Called::from(&output);
    assert_eq!(called.code, 141, "{called:?}");
    assert!(called.err.contains("`farhand kill "), "{called:?}");
}
