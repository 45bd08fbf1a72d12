//! Scripts.

use serde_json::json;

use super::{Farhand, start};

const PARAMS: &str = r#"[{"name": "FOLDER", "type": "string", "required": true},
    {"name": "LEVEL", "type": "integer", "default": 6}, {"name": "DRY", "type": "boolean"}]"#;

#[tokio::test]
async fn a_script_is_stored_run_changed_and_deleted() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let text = "#!/bin/sh -u\necho \"$PARAM_FOLDER|$PARAM_LEVEL|$PARAM_DRY\"\n";
    let create = ["scripts", "create", "backup", "--file", "-", "--params", PARAMS];
    let called = farhand.call_with(&create, text).await;
    assert!(called.err.contains("Created backup, version 1."), "{called:?}");
    let id = called.success();
    let listed = farhand.call(&["scripts", "list", "--search", "back"]).await.success();
    for column in ["/bin/sh -u ", " FOLDER:string,LEVEL?:integer,DRY?:boolean "] {
        assert!(listed.contains(column), "{listed}");
    }
    assert_eq!(farhand.call(&["scripts", "show", "backup"]).await.success(), text);

    let run = ["run", "here", "--script", "backup", "--param"];
    let values = ["FOLDER=/srv/$(id) x", "--param", "LEVEL=9", "--param", "DRY=true"];
    let called = farhand.call(&[&run[..], &values].concat()).await;
    assert_eq!(called.success(), "/srv/$(id) x|9|true\n");
    farhand.call(&[&run[..], &["LEVEL=9"]].concat()).await.failure("FOLDER: ");
    let wrong = ["FOLDER=x", "--param", "LEVEL=high"];
    farhand.call(&[&run[..], &wrong].concat()).await.failure("LEVEL: A valid integer");
    farhand.call(&[&run[..], &["FOLDER"]].concat()).await.failure("Use NAME=VALUE.");
    farhand.call(&["run", "here", "--script", "other"]).await.failure("You have no script");

    let file = farhand.config.path().join("new.sh");
    std::fs::write(&file, "echo \"new $PARAM_FOLDER\"\n").unwrap();
    let update = ["scripts", "update", "backup", "--file", file.to_str().unwrap()];
    let called = farhand.call(&update).await;
    assert!(called.err.contains("Updated backup, version 2."), "{called:?}");
    let called = farhand.call(&[&run[..], &["FOLDER=a"]].concat()).await;
    assert_eq!(called.success(), "new a\n");
    let old = ["FOLDER=a", "--param", "DRY=false", "--script-version", "1"];
    assert_eq!(farhand.call(&[&run[..], &old].concat()).await.success(), "a|6|false\n");
    let shown = farhand.call(&["scripts", "show", "backup", "--version", "1"]).await.success();
    assert_eq!(shown, text);
    farhand.call(&["scripts", "update", "backup"]).await.failure("Name a change");

    let deleted = farhand.call(&["-o", "json", "scripts", "delete", "backup"]).await.json();
    assert_eq!(deleted, json!({"id": id.trim(), "deleted": true}));
    farhand.call(&["scripts", "show", "backup"]).await.failure("You have no script");
}

#[tokio::test]
async fn a_batch_runs_a_script() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    farhand.call_with(&["scripts", "create", "hi", "--file", "-"], "echo hi\n").await.success();
    let called = farhand.call(&["run", "--all", "--script", "hi"]).await;
    assert_eq!(called.success(), "here | hi\n");
}
