//! Ctrl-C in a terminal.

use super::terminal::Terminal;
use super::{Farhand, start};

#[tokio::test]
async fn ctrl_c_kills_the_command() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let mut terminal =
        Terminal::start(farhand.in_terminal("run here -- 'echo begun; exec sleep 600'"));
    terminal.wait_for("begun").await;
    terminal.type_text("\x03").await;
    let (code, shown) = terminal.end().await;
    assert_eq!(code, 143, "{shown}");
    assert!(shown.contains("Press Ctrl-C again to leave it running."), "{shown}");
    assert!(shown.contains("killed by boss"), "{shown}");
}

#[tokio::test]
async fn a_second_ctrl_c_leaves() {
    let (workspace, _agent) = start("here").await;
    let farhand = Farhand::admin(&workspace);
    let line = "run here -- 'trap \"\" TERM; echo begun; while :; do sleep 1; done'";
    let mut terminal = Terminal::start(farhand.in_terminal(line));
    terminal.wait_for("begun").await;
    terminal.type_text("\x03").await;
    terminal.wait_for("Killing what runs.").await;
    terminal.type_text("\x03").await;
    let (code, shown) = terminal.end().await;
    assert_eq!(code, 130, "{shown}");
    assert!(shown.contains("Follow it with `farhand logs -f"), "{shown}");
}
