//! Other accounts of the machine: a local instance has no port beside the Worker's that takes a
//! request without a credential (`scripts/private-miniflare.mjs`).

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use farhand_tests::Instance;
use farhand_tests::agents::own_account;
use farhand_tests::instance::state_folder;
use farhand_tests::listeners::Listener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

/// Sends a request as another account, if this one is root. Returns the status of the answer, and
/// `None` without an answer.
async fn attempt(listener: &Listener, path: &str, headers: &[&str]) -> Option<u16> {
    let mut command = Command::new("curl");
    if own_account() == "root" {
        command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "curl"]);
    }
    command.args(["--silent", "--path-as-is", "--noproxy", "*", "--max-time", "5"]);
    command.args(["--output", "/dev/null", "--write-out", "%{http_code}", "--data-binary", "x"]);
    for header in headers {
        command.args(["--header", header]);
    }
    match listener {
        Listener::Tcp(host, port) => command.arg(format!("http://{host}:{port}{path}")),
        Listener::Unix(file) => {
            command.arg("--unix-socket").arg(file).arg(format!("http://127.0.0.1{path}"))
        }
    };
    let output = command.output().await.unwrap();
    let status: u16 = String::from_utf8(output.stdout).unwrap().parse().unwrap();
    (status != 0).then_some(status)
}

/// Asserts that the Worker's port refuses the host name for which Miniflare configures a Cap'n Proto
/// session with the Worker.
async fn expect_no_session(instance: &Instance) {
    let miniflare =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../node_modules/miniflare/dist/src/index.js");
    let source = std::fs::read_to_string(miniflare).unwrap();
    let (_, rest) = source.split_once("HOST_CAPNP_CONNECT = \"").unwrap();
    let (host, _) = rest.split_once('"').unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", instance.port())).await.unwrap();
    let request = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status = [0; "HTTP/1.1 500".len()];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 500");
}

#[tokio::test]
async fn only_the_workers_port_answers_another_account() {
    let folder = state_folder();
    let instance = Instance::start(&folder.path().join("state"), &[]).await;
    let workers = Listener::Tcp("127.0.0.1", instance.port());
    // Miniflare's loopback server writes the body of this request into the named file.
    let target = tempfile::tempdir().unwrap();
    let file = target.path().join("written");
    let write =
        format!("/core/store-temp-file?prefix=x&extension=d{}{}", "/..".repeat(20), file.display());
    let original_url = format!("MF-Original-URL: http://localhost{write}");
    let origin = "Origin: https://evil.example";
    let headers: [&[&str]; 4] =
        [&[], &[origin], &["MF-Route-Override: farhand"], &[&original_url, origin]];
    let paths = [
        write.as_str(),
        "/",
        "/core/public-url",
        "/cdn-cgi/handler/scheduled",
        "/cdn-cgi/platform-proxy",
    ];

    let listeners = instance.listeners();
    for listener in &listeners {
        if let Listener::Unix(path) = listener {
            let folder = path.parent().unwrap();
            let mode = std::fs::metadata(folder).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", folder.display());
            if own_account() != "root" {
                continue;
            }
        }
        for path in paths {
            for headers in headers {
                let status = attempt(listener, path, headers).await;
                let is_refused = status.is_none_or(|status| status >= 400);
                assert!(is_refused, "{listener:?} {path} {headers:?}: {status:?}");
                assert!(!file.exists(), "{listener:?} {path} {headers:?} wrote a file");
            }
        }
    }
    let is_tcp = |listener: &&Listener| matches!(listener, Listener::Tcp(..));
    let ports: BTreeSet<&Listener> = listeners.iter().filter(is_tcp).collect();
    assert_eq!(ports, BTreeSet::from([&workers]));
    assert!(attempt(&workers, "/", &[]).await.is_some());
    expect_no_session(&instance).await;
    // Without the sockets of Miniflare and workerd, the list would not be complete.
    assert!(listeners.len() > 2, "{listeners:?}");
    instance.stop().await;
}
