//! The programs in `examples/` run commands on a real service with the real agent, and report
//! errors. Programs that need another service are only parsed.

use std::path::{Path, PathBuf};

use farhand_tests::instance::state_folder;
use farhand_tests::openapi::differences;
use farhand_tests::{Instance, PATIENCE, setting};
use serde_json::{Value, json};
use tokio::process::Command;

const SERVER: &str = "this-machine";
/// The exit code of an example that could not run the command.
const COULD_NOT_RUN: i32 = 125;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// What a program printed, and its exit code.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    output: String,
    errors: String,
}

/// Runs an example with variables and arguments.
async fn run(program: &[String], variables: &[(&str, &str)], arguments: &[&str]) -> Ended {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).args(arguments).kill_on_drop(true);
    for name in ["FARHAND_URL", "FARHAND_TOKEN", "FARHAND_USERNAME", "FARHAND_PASSWORD"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
    Ended {
        code: output.status.code(),
        output: String::from_utf8(output.stdout).unwrap(),
        errors: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn words(of: &[&str]) -> Vec<String> {
    of.iter().map(|&word| word.to_owned()).collect()
}

/// The address and the credentials of the demo.
struct Demo {
    url: String,
    token: String,
    password: String,
    /// The account that the agent can run commands as.
    account: String,
}

impl Demo {
    fn of(state: &Path) -> Self {
        let facts = std::fs::read_to_string(state.join("demo.json")).unwrap();
        let facts: Value = serde_json::from_str(&facts).unwrap();
        let text = |name: &str| facts[name].as_str().unwrap().to_owned();
        let account = std::process::Command::new("id").arg("-un").output().unwrap().stdout;
        Self {
            url: text("url"),
            token: text("api_token"),
            password: text("password"),
            account: String::from_utf8(account).unwrap().trim().to_owned(),
        }
    }

    /// The variables for an example that has an API key.
    fn with_key<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut variables = vec![
            ("FARHAND_URL", self.url.as_str()),
            ("FARHAND_TOKEN", &self.token),
            ("FARHAND_ACCOUNT", &self.account),
        ];
        variables.extend(more);
        variables
    }
}

/// Checks an example that has the exit code of its command.
async fn check_program(demo: &Demo, program: &[String]) {
    let name = program.join(" ");
    let with_key = demo.with_key(&[]);

    let line = "printf 'one\\n'; printf 'a \"b\" \\\\ é\\n' >&2; exit 3";
    let ended = run(program, &with_key, &[SERVER, line]).await;
    assert_eq!(ended.code, Some(3), "{name}: {ended:?}");
    assert_eq!(ended.output, "one\na \"b\" \\ é\n", "{name}");
    assert_eq!(ended.errors, "exit code 3\n", "{name}");

    // The command outlives the first wait.
    let short = demo.with_key(&[("FARHAND_WAIT", "1")]);
    let ended = run(program, &short, &[SERVER, "sleep 2; echo late"]).await;
    assert_eq!((ended.code, ended.output.as_str()), (Some(0), "late\n"), "{name}: {ended:?}");

    let url = ("FARHAND_URL", demo.url.as_str());
    let account = ("FARHAND_ACCOUNT", demo.account.as_str());
    let username = ("FARHAND_USERNAME", "admin");
    let login = [url, account, username, ("FARHAND_PASSWORD", &demo.password)];
    let ended = run(program, &login, &[SERVER, "echo logged in"]).await;
    assert_eq!((ended.code, ended.output.as_str()), (Some(0), "logged in\n"), "{name}: {ended:?}");

    let refused = |ended: Ended, message: &str| {
        assert_eq!((ended.code, ended.output.as_str()), (Some(COULD_NOT_RUN), ""), "{name}");
        assert!(ended.errors.contains(message), "{name}: {message} is not in {}", ended.errors);
    };
    let wrong = [url, username, ("FARHAND_PASSWORD", "wrong")];
    refused(run(program, &wrong, &[SERVER, "id"]).await, "Unable to log in");
    let wrong = [url, ("FARHAND_TOKEN", "wrong")];
    refused(run(program, &wrong, &[SERVER, "id"]).await, "403: Invalid or expired token.");
    refused(run(program, &with_key, &["no-such-server", "id"]).await, "400: server: ");
    let no_account = demo.with_key(&[("FARHAND_ACCOUNT", "no-such-account")]);
    let ended = run(program, &no_account, &[SERVER, "id"]).await;
    assert!(![Some(0), Some(COULD_NOT_RUN)].contains(&ended.code), "{name}: {ended:?}");
    // Nothing listens there.
    let nowhere = [("FARHAND_URL", "http://127.0.0.1:9"), ("FARHAND_TOKEN", "x")];
    let ended = run(program, &nowhere, &[SERVER, "id"]).await;
    assert_eq!(ended.code, Some(COULD_NOT_RUN), "{name}: {ended:?}");
    assert!(!ended.errors.contains("Traceback"), "{name}: {}", ended.errors);
}

/// Checks the playbook.
async fn check_ansible(demo: &Demo) {
    let playbook = folder().join("ansible/run.yml");
    let program = words(&[&setting("FARHAND_ANSIBLE"), playbook.to_str().unwrap()]);
    // Otherwise its messages would be wrapped and coloured.
    let plain = [("ANSIBLE_NOCOLOR", "1"), ("LC_ALL", "C.UTF-8")];
    let variables = demo.with_key(&plain);
    let play = async |server: &str, line: &str| {
        let more = json!({"server": server, "line": line, "account": demo.account}).to_string();
        run(&program, &variables, &["-e", &more]).await
    };
    let ended = play(SERVER, "echo one").await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.output.contains("exit code 0, output: one"), "{}", ended.output);
    let ended = play(SERVER, "exit 4").await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.output.contains("Failed with exit code 4"), "{}", ended.output);
    let ended = play("no-such-server", "id").await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.output.contains("400: "), "{}", ended.output);
    assert!(ended.output.contains("INVALID_COMMAND"), "{}", ended.output);
}

#[tokio::test]
async fn the_examples_run_a_command_and_report_errors() {
    let state = state_folder();
    let instance = Instance::start(state.path(), &[]).await;
    let demo = Demo::of(&instance.state);
    let file = |path: &str| folder().join(path).to_str().unwrap().to_owned();

    let binaries = tempfile::tempdir().unwrap();
    let binary = binaries.path().join("run").to_str().unwrap().to_owned();
    let mut build = Command::new(setting("FARHAND_GO"));
    build.args(["build", "-o", &binary, "."]).current_dir(folder().join("go"));
    // The example has no dependencies, so the build must not use the network.
    build.envs([("GOPROXY", "off"), ("GOTOOLCHAIN", "local"), ("GOFLAGS", "-mod=readonly")]);
    let built = build.output().await.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    for program in [
        words(&["sh", &file("shell/run.sh")]),
        words(&[&setting("FARHAND_PYTHON"), &file("python/run.py")]),
        words(&["node", &file("javascript/run.mjs")]),
        words(&[&binary]),
    ] {
        check_program(&demo, &program).await;
    }
    check_ansible(&demo).await;
}

fn text_of(path: &str) -> String {
    std::fs::read_to_string(folder().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The body that a script of curl sends.
fn data_of(script: &str) -> Value {
    let (_, rest) = script.split_once("--data '").expect("it sends a body");
    serde_json::from_str(rest.split_once('\'').unwrap().0).unwrap()
}

#[test]
fn the_pipelines_are_yaml_and_send_what_the_api_takes() {
    for path in ["github-actions/deploy.yml", "gitlab/deploy.gitlab-ci.yml"] {
        let text = text_of(path);
        assert!(text.starts_with("# Not run by our tests"), "{path}");
        let document: Value =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        let deploy = document.pointer("/jobs/deploy").unwrap_or(&document["deploy"]);
        let script = deploy.pointer("/steps/0/run").unwrap_or(&deploy["script"][0]);
        let body = data_of(script.as_str().unwrap());
        let problems = differences("/components/schemas/CommandCreation", &body);
        assert!(problems.is_empty(), "{path}: {problems:?}");
    }
}

/// Whether brackets and texts are closed. There is no parser of HCL among the tests' crates.
fn is_closed(hcl: &str) -> bool {
    let mut open = Vec::new();
    for line in hcl.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let mut letters = line.chars();
        // In a text, `${` opens an expression.
        while let Some(letter) = letters.next() {
            let in_text = open.last() == Some(&'"');
            match letter {
                '\\' if in_text => drop(letters.next()),
                '"' if in_text => drop(open.pop()),
                '$' if in_text && letters.as_str().starts_with('{') => {
                    letters.next();
                    open.push('}');
                }
                _ if in_text => {}
                '"' => open.push('"'),
                '{' => open.push('}'),
                '[' => open.push(']'),
                '(' => open.push(')'),
                '}' | ']' | ')' if open.pop() != Some(letter) => return false,
                _ => {}
            }
        }
        if open.last() == Some(&'"') {
            return false;
        }
    }
    open.is_empty()
}

#[test]
fn the_terraform_example_is_closed() {
    let text = text_of("terraform/main.tf");
    assert!(text.starts_with("# Not run by our tests"));
    assert!(is_closed(&text));
    for broken in ["a {", "a = \"b", "a = [)]", "a = \"${b\"", "}"] {
        assert!(!is_closed(broken), "{broken}");
    }
}
