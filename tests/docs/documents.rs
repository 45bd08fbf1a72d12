//! The examples of the tutorial, of some guides and of some how-to pages run as they stand, and
//! print what stands there. Blocks between `~~~` are not run.

use std::path::Path;

use farhand_tests::instance::state_folder;
use farhand_tests::{Api, Instance, PATIENCE, setting};
use serde_json::Value;
use tokio::process::Command;

/// What stands for any value in an answer.
const ANY: &str = "…";
/// Between the outputs of two examples.
const MARK: char = '\u{1e}';

/// What an example prints.
enum Answer {
    /// JSON, in any form; `…` stands for any value.
    Json(Value),
    /// Text; `…` stands for any characters.
    Text(String),
}

/// An example: lines for a shell, and what they print, or nothing.
struct Example {
    lines: String,
    answer: Option<Answer>,
}

fn examples(text: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut blocks = text.split("\n```");
    // What comes before the first fence is no block; then texts in fences and between them take
    // turns.
    blocks.next();
    while let Some(block) = blocks.next() {
        let (language, lines) = block.split_once('\n').unwrap();
        match language {
            "sh" => found.push(Example { lines: lines.to_owned(), answer: None }),
            "json" | "text" => {
                let answer = match language {
                    "text" => Answer::Text(format!("{lines}\n")),
                    _ => Answer::Json(
                        serde_json::from_str(lines)
                            .unwrap_or_else(|error| panic!("{error}: {lines}")),
                    ),
                };
                let example = found.last_mut().expect("an answer follows its example");
                assert!(example.answer.replace(answer).is_none(), "{lines}");
            }
            other => panic!("a block of {other:?}"),
        }
        blocks.next().expect("a fence is closed");
    }
    found
}

fn matches(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::String(any), _) if any == ANY => true,
        (Value::Array(expected), Value::Array(found)) => {
            expected.len() == found.len()
                && expected.iter().zip(found).all(|(expected, found)| matches(expected, found))
        }
        (Value::Object(expected), Value::Object(found)) => {
            let same = |(name, expected): (&String, &Value)| {
                found.get(name).is_some_and(|found| matches(expected, found))
            };
            expected.len() == found.len() && expected.iter().all(same)
        }
        _ => expected == found,
    }
}

/// Whether a text has the parts of a pattern in their order, with any characters for each `…`.
fn text_matches(pattern: &str, found: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = found.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

/// Runs the examples of a document, at least so many, against `npm start`.
async fn run(document: &str, at_least: usize) {
    let folder = state_folder();
    // The examples are for a checkout in which the service runs with its state where it is by
    // default.
    let state = folder.path().join(".wrangler/state");
    let instance = Instance::start(&state, &[]).await;
    // A reader has other servers too, and the newest comes first in lists.
    let demo: Value =
        serde_json::from_str(&std::fs::read_to_string(state.join("demo.json")).unwrap()).unwrap();
    let admin =
        Api::new(&instance.url, "127.0.0.1").with_token(demo["api_token"].as_str().unwrap());
    admin.post("/api/servers/", &serde_json::json!({"name": "newer"})).await.expect(201);
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let examples = examples(&std::fs::read_to_string(docs.join(document)).unwrap());
    assert!(examples.len() >= at_least, "{}", examples.len());
    // Twice, in one shell each: nothing that they leave keeps the next reader from doing the same.
    for _ in 0..2 {
        let script: String = examples
            .iter()
            .map(|example| format!("{}\nprintf '{MARK}'\n", example.lines))
            .collect();
        let mut shell = Command::new("bash");
        // The agent is to be found by its name.
        let agent = setting("FARHAND_AGENT");
        let path = format!(
            "{}:{}",
            Path::new(&agent).parent().unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        shell
            .args(["-eu", "-c", &script])
            .current_dir(folder.path())
            .env("PATH", path)
            .kill_on_drop(true);
        // What they leave running, where one of them fails, ends with the instance.
        shell.env("FARHAND_EXAMPLES", &state).process_group(0);
        // One example waits for a mail, for as long as it takes.
        let output = tokio::time::timeout(PATIENCE, shell.output())
            .await
            .expect("the examples end")
            .unwrap();
        let (printed, errors) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
        let answers: Vec<&str> = printed.split(MARK).collect();
        assert_eq!(answers.len(), examples.len() + 1, "the shell ended early: {errors}{printed}");
        for (example, printed) in examples.iter().zip(answers) {
            match &example.answer {
                None => assert_eq!(printed, "", "{}", example.lines),
                Some(Answer::Text(expected)) => {
                    let lines = &example.lines;
                    assert!(
                        text_matches(expected, printed),
                        "{lines}\nexpected {expected}\nfound {printed}"
                    );
                }
                Some(Answer::Json(expected)) => {
                    let found =
                        serde_json::from_str(printed).unwrap_or(Value::String(printed.to_owned()));
                    assert!(
                        matches(expected, &found),
                        "{}\nexpected {expected}\nfound {found}",
                        example.lines
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn the_examples_of_authentication_run_as_they_stand() {
    run("authentication.md", 21).await;
}

#[tokio::test]
async fn the_examples_of_commands_run_as_they_stand() {
    run("commands.md", 17).await;
}

#[tokio::test]
async fn the_examples_of_agents_run_as_they_stand() {
    run("agents.md", 6).await;
}

#[tokio::test]
async fn the_tutorial_runs_as_it_stands() {
    run("tutorial.md", 9).await;
}

#[tokio::test]
async fn the_how_to_of_ci_runs_as_it_stands() {
    run("how-to/ci-deploy.md", 4).await;
}

#[tokio::test]
async fn the_how_to_of_restarts_runs_as_it_stands() {
    run("how-to/limited-restart.md", 5).await;
}

#[tokio::test]
async fn the_how_to_of_enrolment_runs_as_it_stands() {
    run("how-to/enrol-hosts.md", 3).await;
}

#[test]
fn a_pattern_matches_its_texts_only() {
    for (pattern, text) in [("a\n", "a\n"), ("a…", "abc"), ("…c…", "abcd"), ("a…b…c", "axbxc")]
    {
        assert!(text_matches(pattern, text), "{pattern}: {text}");
    }
    for (pattern, text) in [("a", "ab"), ("a…c", "ab"), ("…c…", "ab"), ("a…b…c", "axc")] {
        assert!(!text_matches(pattern, text), "{pattern}: {text}");
    }
}
