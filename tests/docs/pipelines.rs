//! The workflows of this repository, its code owners, the action for GitHub, and the pipelines that
//! use the command line. GitHub and GitLab are not here: the files are parsed, their scripts are
//! checked by bash, and the step of the action that runs a command is run with a program in place of
//! `farhand`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../");
const ACTION: &str = ".github/actions/run/action.yml";

fn document(path: &str) -> Value {
    let text = std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All values of a key, at any depth.
fn values_of<'a>(key: &str, value: &'a Value) -> Vec<&'a Value> {
    let below = |values: Vec<&'a Value>| {
        values.into_iter().flat_map(|value| values_of(key, value)).collect()
    };
    match value {
        Value::Object(members) => members
            .get(key)
            .into_iter()
            .chain(below(members.values().collect::<Vec<_>>()))
            .collect(),
        Value::Array(items) => below(items.iter().collect()),
        _ => Vec::new(),
    }
}

#[test]
fn scripts_of_workflows_parse_and_foreign_actions_are_pinned() {
    for path in [".github/workflows/ci.yml", ".github/workflows/release.yml", ACTION] {
        let document = document(path);
        let scripts = values_of("run", &document);
        assert!(!scripts.is_empty(), "{path}");
        for script in scripts {
            let checked = Command::new("bash").args(["-nc", script.as_str().unwrap()]).output();
            assert!(checked.unwrap().status.success(), "{path}: {script}");
        }
        for uses in values_of("uses", &document) {
            let commit = uses.as_str().unwrap().split_once('@').unwrap().1;
            assert!(commit.len() == 40, "{path}: {uses} is not pinned by its commit");
        }
    }
}

#[test]
fn paths_with_code_owners_exist() {
    let text = std::fs::read_to_string(Path::new(ROOT).join(".github/CODEOWNERS")).unwrap();
    for rule in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (path, owners) = rule.split_once(" @").unwrap();
        assert!(!owners.is_empty(), "{rule}");
        let exists = |path| Path::new(ROOT).join(path).exists();
        assert!(path == "*" || path.strip_prefix('/').is_some_and(exists), "{rule}");
    }
}

/// Runs the step of the action that runs a command, with inputs. `farhand` prints its arguments.
fn run_action(inputs: &[(&str, &str)]) -> Output {
    let bin = TempDir::new().unwrap();
    let farhand = bin.path().join("farhand");
    std::fs::write(&farhand, "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&farhand, std::fs::Permissions::from_mode(0o755)).unwrap();
    let action = document(ACTION);
    let step = &action["runs"]["steps"][1];
    let mut command = Command::new("bash");
    command.args(["-c", step["run"].as_str().unwrap()]);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", bin.path().display()));
    for (variable, expression) in step["env"].as_object().unwrap() {
        let expression = expression.as_str().unwrap();
        let name = expression.trim_start_matches("${{ inputs.").trim_end_matches(" }}");
        let default = action["inputs"][name]["default"].as_str().unwrap_or("");
        let given = inputs.iter().find(|(input, _)| *input == name).map(|(_, value)| *value);
        command.env(variable, given.unwrap_or(default));
    }
    command.output().unwrap()
}

/// The inputs of the action, and the arguments that `farhand` must get.
type Case = (&'static [(&'static str, &'static str)], &'static [&'static str]);

#[test]
fn the_action_passes_its_inputs_to_the_command_line() {
    let cases: [Case; 3] = [
        (
            &[("servers", "web-1,web-2"), ("command", "echo \"$HOME\"; exit 1")],
            &["run", "web-1,web-2", "--", "echo \"$HOME\"; exit 1"],
        ),
        (
            &[("selector", "env=prod"), ("argv", "systemctl\nrestart\nmy app\n"), ("as", "root")],
            &[
                "run",
                "-l",
                "env=prod",
                "--as",
                "root",
                "--no-shell",
                "--",
                "systemctl",
                "restart",
                "my app",
            ],
        ),
        (
            &[("servers", "a"), ("command", "true"), ("timeout", "2m")],
            &["run", "a", "--timeout", "2m", "--", "true"],
        ),
    ];
    for (inputs, arguments) in cases {
        let output = run_action(inputs);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed.lines().collect::<Vec<_>>(), arguments);
        // The step fails as the command does.
        assert_eq!(output.status.code(), Some(7));
    }
}

#[test]
fn the_action_refuses_inputs_that_contradict() {
    for inputs in [
        &[("command", "true")][..],
        &[("servers", "a")],
        &[("servers", "a"), ("selector", "b"), ("command", "true")],
        &[("servers", "a"), ("command", "true"), ("argv", "true")],
    ] {
        let output = run_action(inputs);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.starts_with("::error::set ") && printed.lines().count() == 1, "{printed}");
        assert_eq!(output.status.code(), Some(125), "{inputs:?}");
    }
}

#[test]
fn the_pipelines_use_existing_inputs_and_options() {
    let github = document("examples/github-actions/command-line.yml");
    let step = &github["jobs"]["deploy"]["steps"][0];
    assert!(step["uses"].as_str().unwrap().contains("/farhand/.github/actions/run@v"));
    let inputs = document(ACTION)["inputs"].clone();
    for name in step["with"].as_object().unwrap().keys() {
        assert!(inputs[name].is_object(), "the action has no input {name}");
    }
    let gitlab = document("examples/gitlab/command-line.gitlab-ci.yml");
    let version = gitlab[".farhand"]["variables"]["FARHAND_VERSION"].as_str().unwrap();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let scripts = [&gitlab[".farhand"]["before_script"], &gitlab["deploy"]["script"]];
    for line in scripts.into_iter().flat_map(|lines| lines.as_array().unwrap()) {
        let checked = Command::new("bash").args(["-nc", line.as_str().unwrap()]).output().unwrap();
        assert!(checked.status.success(), "{line}");
    }
    // The command line accepts the options: it fails only because it has no workspace.
    let line = gitlab["deploy"]["script"][0].as_str().unwrap().strip_prefix("farhand ").unwrap();
    let output = Command::new(farhand_tests::setting("FARHAND_CLI"))
        .args(line.split(' '))
        .env_clear()
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(125) && error.contains("farhand login"), "{error}");
}
