//! The examples in the tutorial and in some guides and how-to pages run unchanged, and print the
//! output that the page shows. Blocks between `~~~` are not run.

use std::path::Path;

use farhand_tests::instance::state_folder;
use farhand_tests::{Api, Instance, PATIENCE, setting};
use serde_json::Value;
use tokio::process::Command;

/// Matches any value in the expected output.
const ANY: &str = "…";
/// The script prints this character after the output of each example.
const SEPARATOR: char = '\u{1e}';

/// The output that a page shows for an example.
enum Answer {
    /// JSON in any form. `…` stands for any value.
    Json(Value),
    /// Text. `…` stands for any characters.
    Text(String),
}

/// Lines for a shell, and the output that the page shows. Without one, they must print nothing.
struct Example {
    lines: String,
    answer: Option<Answer>,
}

fn examples(text: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut blocks = text.split("\n```");
    // Prose and code blocks alternate, and the text before the first fence is prose.
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
        blocks.next().expect("every fence is closed");
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

/// Whether a text matches a pattern in which each `…` stands for any characters.
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

/// Runs the examples of a document against the service as `npm start` runs it, and compares what
/// they print.
///
/// # Panics
/// If the document has fewer examples than `min_count`, or an output differs.
async fn run(document: &str, min_count: usize) {
    let folder = state_folder();
    // The examples expect a checkout with the service's state in its default folder.
    let state = folder.path().join(".wrangler/state");
    let instance = Instance::start(&state, &[]).await;
    // Readers may have other servers, and lists show the newest one first. The examples must
    // choose the right one.
    let demo: Value =
        serde_json::from_str(&std::fs::read_to_string(state.join("demo.json")).unwrap()).unwrap();
    let admin =
        Api::new(&instance.url, "127.0.0.1").with_token(demo["api_token"].as_str().unwrap());
    admin.post("/api/servers/", &serde_json::json!({"name": "newer"})).await.expect(201);
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let examples = examples(&std::fs::read_to_string(docs.join(document)).unwrap());
    assert!(examples.len() >= min_count, "{}", examples.len());
    // All examples run in one shell. The second round shows that they can be repeated.
    for _ in 0..2 {
        let script: String = examples
            .iter()
            .map(|example| format!("{}\nprintf '{SEPARATOR}'\n", example.lines))
            .collect();
        let mut shell = Command::new("bash");
        // The examples start the agent and the command line by their names.
        let folder_of = |program: &str| Path::new(&setting(program)).parent().unwrap().to_owned();
        let path = format!(
            "{}:{}:{}",
            folder_of("FARHAND_AGENT").display(),
            folder_of("FARHAND_CLI").display(),
            std::env::var("PATH").unwrap()
        );
        shell
            .args(["-eu", "-c", &script])
            .current_dir(folder.path())
            .env("PATH", path)
            .kill_on_drop(true);
        // The instance ends all processes whose environment names its state folder. So this
        // variable also ends what a failed example left running.
        shell.env("FARHAND_EXAMPLES", &state).process_group(0);
        // The limit also covers the example that waits for a mail.
        let output = tokio::time::timeout(PATIENCE, shell.output())
            .await
            .expect("the examples end")
            .unwrap();
        let (printed, errors) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
        let answers: Vec<&str> = printed.split(SEPARATOR).collect();
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
async fn the_examples_of_the_command_line_run_as_they_stand() {
    run("cli.md", 19).await;
}

#[tokio::test]
async fn the_tutorial_runs_as_it_stands() {
    run("tutorial.md", 9).await;
}

#[tokio::test]
async fn the_page_about_fleets_runs_as_it_stands() {
    run("fleets.md", 12).await;
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
async fn the_how_to_of_schedules_runs_as_it_stands() {
    run("how-to/schedules.md", 6).await;
}

#[tokio::test]
async fn the_how_to_of_enrolment_runs_as_it_stands() {
    run("how-to/enrol-hosts.md", 3).await;
}

#[tokio::test]
async fn the_how_to_of_scripts_runs_as_it_stands() {
    run("how-to/scripts.md", 6).await;
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
