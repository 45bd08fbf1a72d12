//! Malformed and hostile requests, most of them sent byte by byte. Each request gets a clear
//! response without a server error, and changes nothing.
//!
//! Responses of the Worker have an `X-Request-Id`. Responses without one come from the runtime in
//! front of it, which rejects some requests itself. For requests that the runtime rejects,
//! the tests check only that they change nothing and block no other request.

use std::time::Duration;

use farhand_domain::http::endpoints::Access;
use farhand_tests::agents::{credential, dial};
use farhand_tests::{Api, PATIENCE, ScriptedAgent, Workspace};
use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::api::endpoints::{all, path_of};

const TOKENS: &str = "/api/auth/tokens/";
/// A body that creates a token.
const NEW_TOKEN: &[u8] = b"{\"name\":\"x\",\"expires_at\":null}";
/// A nesting depth of JSON that is certainly too deep.
const DEEP: usize = 100_000;

/// A raw HTTP response.
#[derive(Debug)]
struct RawResponse {
    status: u16,
    /// True if the response comes from the Worker, and not from the runtime in front of it.
    is_of_worker: bool,
    body: String,
}

impl RawResponse {
    /// Asserts that the response comes from the Worker and has no status of 500 or more.
    #[track_caller]
    fn assert_handled_by_worker(&self, what: &str) {
        assert!(self.status < 500 && self.is_of_worker, "{what}: {self:?}");
    }
}

fn connection(api: &Api) -> impl Future<Output = TcpStream> {
    let address = api.url.strip_prefix("http://").unwrap().to_owned();
    async move { TcpStream::connect(address).await.unwrap() }
}

/// Reads one response, or `None` if the connection ends without one.
async fn read_response(stream: &mut TcpStream) -> Option<RawResponse> {
    let mut read = Vec::new();
    let mut piece = vec![0; 1 << 16];
    let answer = async {
        loop {
            if let Some(answer) = complete_response(&read) {
                return Some(answer);
            }
            match stream.read(&mut piece).await {
                Ok(0) | Err(_) => return None,
                Ok(length) => read.extend(&piece[..length]),
            }
        }
    };
    tokio::time::timeout(PATIENCE, answer).await.expect("no response in time")
}

/// The response at the start of some bytes, or `None` if it is incomplete.
fn complete_response(bytes: &[u8]) -> Option<RawResponse> {
    let head_length = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..head_length]).to_lowercase();
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map(str::to_owned)
    };
    let length = header("content-length").map_or(0, |length| length.parse().unwrap());
    let body = bytes.get(head_length..head_length + length)?;
    let status = head.split(' ').nth(1)?.parse().unwrap();
    // Skips a `100 Continue` before the final response.
    if status == 100 {
        return complete_response(&bytes[head_length..]);
    }
    let is_of_worker = header("x-request-id").is_some();
    Some(RawResponse { status, is_of_worker, body: String::from_utf8_lossy(body).into_owned() })
}

/// Sends bytes on a new connection, and reads one response.
async fn exchange(api: &Api, bytes: &[u8]) -> Option<RawResponse> {
    let mut stream = connection(api).await;
    // The response to a huge request may arrive before all of it is sent.
    let (mut reader, mut writer) = stream.split();
    let mut read = Vec::new();
    let answer = async {
        let mut piece = vec![0; 1 << 16];
        loop {
            if let Some(answer) = complete_response(&read) {
                return Some(answer);
            }
            match reader.read(&mut piece).await {
                Ok(0) | Err(_) => return None,
                Ok(length) => read.extend(&piece[..length]),
            }
        }
    };
    let send = async {
        writer.write_all(bytes).await.ok();
        std::future::pending::<()>().await;
    };
    let exchanged = async {
        tokio::select! {
            answer = answer => answer,
            () = send => None,
        }
    };
    tokio::time::timeout(PATIENCE, exchanged).await.unwrap_or_else(|_| {
        panic!("no response to {}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)]));
    })
}

/// A request in bytes, with any target and headers. A JSON body gets its `Content-Length`.
fn request(api: &Api, method: &str, target: &[u8], headers: &[&[u8]], body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(method.as_bytes());
    bytes.extend(b" ");
    bytes.extend(target);
    bytes.extend(format!(" HTTP/1.1\r\nHost: {}\r\n", api.host).as_bytes());
    if let Some(authorization) = &api.authorization {
        bytes.extend(format!("Authorization: {authorization}\r\n").as_bytes());
    }
    for header in headers {
        bytes.extend(*header);
        bytes.extend(b"\r\n");
    }
    if !body.is_empty() {
        bytes.extend(
            format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len())
                .as_bytes(),
        );
    }
    bytes.extend(b"\r\n");
    bytes.extend(body);
    bytes
}

/// The head of a request that creates a token, without the headers that frame the body.
fn head(api: &Api) -> Vec<u8> {
    let mut bytes =
        request(api, "POST", TOKENS.as_bytes(), &[b"Content-Type: application/json"], b"");
    bytes.truncate(bytes.len() - 2);
    bytes
}

/// Sends a body to the endpoint that creates tokens.
async fn post(api: &Api, body: &[u8]) -> RawResponse {
    exchange(api, &request(api, "POST", TOKENS.as_bytes(), &[], body)).await.unwrap()
}

/// The number of tokens. Rejected requests create none.
async fn tokens(workspace: &Workspace) -> Value {
    workspace.admin.get(TOKENS).await.expect(200)["count"].clone()
}

/// Asserts that the service responds, and that nothing was created.
async fn nothing_changed(workspace: &Workspace) {
    workspace.admin.get("/api/status/").await.expect(200);
    assert_eq!(tokens(workspace).await, 1);
    for list in ["/api/iam/groups/", "/api/events/commands/", "/api/servers/registration-tokens/"] {
        assert_eq!(workspace.admin.get(list).await.expect(200)["count"], 0, "{list}");
    }
}

/// JSON that is nested [`DEEP`] levels deep.
fn nested(opening: &str, inner: &str, closing: &str) -> String {
    format!("{}{inner}{}", opening.repeat(DEEP), closing.repeat(DEEP))
}

#[tokio::test]
async fn malformed_request_targets_are_handled() {
    let workspace = Workspace::new().await;
    let api = &workspace.admin;
    let longest = format!("/api/users/users/{}/", "a".repeat(100_000));
    for (target, status) in [
        (&b"/api/status/%00"[..], 308),
        (b"/api/status/%ff/", 404),
        (b"/api/users/users/a%00b/", 404),
        (b"/api/users/users/%ff%fe/", 404),
        (b"/api/iam/users/%00/", 404),
        (b"/api/iam/users/9223372036854775808/", 404),
        (b"/api/iam/users/1e3/", 404),
        (b"/api/iam/users/-1/", 404),
        (b"/api/auth/tokens/\xff/", 404),
        (b"/api/auth/reset-password/confirm/%ff/", 302),
        (b"/api/auth/reset-password/confirm/%00/", 302),
        (b"//evil.example/api/status/", 404),
        (b"/\\evil.example/api/status/", 404),
        (b"/api/status;x=1/", 404),
        (b"/api/%zz/", 404),
        (b"/api/../api/status/", 200),
        (b"/api/status/#fragment", 200),
        (b"/api/status/?x=%FF&%00=%zz&=&&", 200),
        (longest.as_bytes(), 404),
    ] {
        let answer = exchange(api, &request(api, "GET", target, &[], b"")).await.unwrap();
        answer.assert_handled_by_worker(&String::from_utf8_lossy(target));
        assert_eq!(
            answer.status,
            status,
            "{}",
            String::from_utf8_lossy(&target[..target.len().min(80)])
        );
    }
    let moved = exchange(api, &request(api, "GET", b"/api/status\t/x", &[], b"")).await.unwrap();
    assert_eq!(moved.status, 308, "the runtime removes the tab");
    nothing_changed(&workspace).await;
}

#[tokio::test]
async fn requests_that_the_runtime_rejects_change_nothing() {
    let workspace = Workspace::new().await;
    let api = &workspace.admin;
    let get = |target: &[u8], headers: &[&[u8]]| request(api, "GET", target, headers, b"");
    let framed = |headers: &str, body: &[u8]| {
        [&head(api)[..], headers.as_bytes(), b"\r\n\r\n", body].concat()
    };
    let huge = format!("X-Large: {}", "a".repeat(3 << 20));
    let many: Vec<u8> = (0..100_000).flat_map(|n| format!("X-{n}: a\r\n").into_bytes()).collect();
    let refused = [
        get(b"/api/status/\0", &[]),
        get(b"/api/status/?x=\0", &[]),
        get(b"/api/status/", &[b"X-Request-Id: a\0b"]),
        get(b"/api/status/", &[b": no name"]),
        get(b"/api/status/", &[b"no colon"]),
        get(b"/api/status/", &[huge.as_bytes()]),
        get(b"/api/status/", &[&many[..many.len() - 2]]),
        // Two `Host` headers.
        get(b"/api/status/", &[b"Host: evil.example"]),
        // A target that is not a path. Cloudflare's edge accepts the absolute form, and workerd alone
        // does not.
        get(b"http://evil.example/api/status/", &[]),
        get(b"*", &[]),
        get(b"?x", &[]),
        get(b"", &[]),
        request(api, "CONNECT", b"evil.example:443", &[], b""),
        request(api, "BREW", b"/api/status/", &[], b""),
        request(api, "get", b"/api/status/", &[], b""),
        request(api, "G@T", b"/api/status/", &[], b""),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\0\xff\0\xff\r\n\r\n".to_vec(),
        // An invalid length, two lengths, or an encoding other than chunked. The bytes after the
        // body could be taken for another request.
        framed("Content-Length: -1", NEW_TOKEN),
        framed("Content-Length: abc", NEW_TOKEN),
        framed("Content-Length: 0x1d", NEW_TOKEN),
        framed("Content-Length: 29, 29", NEW_TOKEN),
        framed("Content-Length: 29\r\nContent-Length: 5", NEW_TOKEN),
        framed("Transfer-Encoding: xchunked", NEW_TOKEN),
        framed("Transfer-Encoding: gzip, chunked", NEW_TOKEN),
    ];
    for bytes in refused {
        let what = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
        if let Some(answer) = exchange(api, &bytes).await {
            assert!(
                !answer.is_of_worker && (400..=501).contains(&answer.status),
                "{what}: {answer:?}"
            );
        }
        workspace.admin.get("/api/status/").await.expect(200);
    }
    // No workspace has a name that is not a valid host name.
    for host in [&b"a@b"[..], b"$(id).local.localhost", b"[", b"\xff"] {
        let bytes = [b"GET /api/status/ HTTP/1.1\r\nHost: ", host, b"\r\n\r\n"].concat();
        if let Some(answer) = exchange(api, &bytes).await {
            assert!((400..=501).contains(&answer.status), "{host:?}: {answer:?}");
        }
    }
    nothing_changed(&workspace).await;
}

#[tokio::test]
async fn malformed_headers_are_handled() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let agent = workspace.anonymous.with_authorization(&credential(&server));
    let large = format!("X-Large: {}", "a".repeat(100_000));
    let address = format!("X-Forwarded-For: {}", "a".repeat(5_000));
    let headers: [&[u8]; 18] = [
        large.as_bytes(),
        address.as_bytes(),
        b"X-Request-Id: \xff",
        b"X-Forwarded-For: \xff\xfe",
        b"X-Forwarded-For: \xe2\x82\xac\xf0\x9f\x98\x80",
        b"User-Agent: \xff\xf0\x9f\x98\x80",
        b"Origin: \xff",
        b"Origin: null\t\"",
        b"Prefer: wait=99999999999999999999",
        b"Prefer: \xff, wait=\"",
        b"Last-Event-ID: \xff",
        b"Last-Event-ID: 99999999999999999999999",
        b"Idempotency-Key: \xff",
        b"X-Agent-Features: \xff,,,kill",
        b"X-Farhand-Agent: {\"server\":1}",
        b"X-Farhand-Cost: nonsense",
        b"X-HTTP-Method-Override: DELETE",
        b"Expect: nonsense",
    ];
    let login = json!({"username": "nobody", "password": "x"}).to_string();
    let requests: [(&Api, &str, &str, &[u8]); 7] = [
        (&workspace.admin, "GET", "/api/status/", b""),
        (&workspace.admin, "GET", "/api/events/commands/", b""),
        (&workspace.admin, "POST", TOKENS, b"{\"name\":7}"),
        (&workspace.admin, "POST", "/api/events/commands/", b"{\"line\":7}"),
        (&workspace.anonymous, "POST", "/api/auth/login/", login.as_bytes()),
        (&agent, "GET", "/api/servers/servers/-/", b""),
        (&agent, "GET", "/ws/servers/backhaul/", b""),
    ];
    for header in headers {
        for (api, method, path, body) in requests {
            let what = format!(
                "{method} {path} {}",
                String::from_utf8_lossy(&header[..header.len().min(60)])
            );
            // Changes the address, so that wrong passwords do not reach the limit of one address.
            let address: &[u8] = if header.starts_with(b"X-Forwarded-For") {
                b"X-A: a"
            } else {
                b"X-Forwarded-For: 192.0.2.1"
            };
            let bytes = request(api, method, path.as_bytes(), &[header, address], body);
            exchange(api, &bytes).await.unwrap().assert_handled_by_worker(&what);
        }
    }
    for value in [
        &b"token=\"\xff\""[..],
        b"token=\"\xc3\xa4\"",
        b"id=\"\xff\", key=\"\xff\"",
        b"Bearer \xff",
        b"=",
        b"\"",
    ] {
        for (api, method, path, _) in requests {
            let header = [b"Authorization: ", value].concat();
            let bytes = request(&api.anonymous(), method, path.as_bytes(), &[&header], b"");
            exchange(api, &bytes)
                .await
                .unwrap()
                .assert_handled_by_worker(&format!("{method} {path} {value:?}"));
        }
    }
    nothing_changed(&workspace).await;
}

#[tokio::test]
async fn unusual_body_framing_is_handled() {
    let workspace = Workspace::new().await;
    let api = &workspace.admin;
    let framed = |headers: &str, body: &[u8]| {
        [&head(api)[..], headers.as_bytes(), b"\r\n\r\n", body].concat()
    };
    let pieces =
        |text: &[u8]| [format!("{:x}\r\n", text.len()).as_bytes(), text, b"\r\n0\r\n\r\n"].concat();
    let compressed = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0";
    for (bytes, status) in [
        // Shorter than the length says.
        (framed("Content-Length: 10", NEW_TOKEN), 400),
        (framed("Content-Length: 0", NEW_TOKEN), 400),
        (
            framed(
                &format!("Content-Encoding: gzip\r\nContent-Length: {}", compressed.len()),
                compressed,
            ),
            400,
        ),
        // Data after the empty chunk does not belong to the body.
        (
            framed(
                "Content-Length: 4\r\nTransfer-Encoding: chunked",
                b"0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n",
            ),
            400,
        ),
    ] {
        let answer = exchange(api, &bytes).await.unwrap();
        answer.assert_handled_by_worker("a body");
        assert_eq!(answer.status, status, "{answer:?}");
    }
    for pieces in ["zz\r\n", "-1\r\n", "ffffffffffffffffff\r\n"] {
        // workerd may close the connection instead of responding.
        if let Some(answer) =
            exchange(api, &framed("Transfer-Encoding: chunked", pieces.as_bytes())).await
        {
            assert_eq!(answer.status, 400, "{answer:?}");
        }
    }
    nothing_changed(&workspace).await;

    let old = String::from_utf8(framed(&format!("Content-Length: {}", NEW_TOKEN.len()), NEW_TOKEN))
        .unwrap();
    for (made, bytes) in [
        framed("Transfer-Encoding: chunked", &pieces(NEW_TOKEN)),
        framed(&format!("Expect: 100-continue\r\nContent-Length: {}", NEW_TOKEN.len()), NEW_TOKEN),
        old.replace("HTTP/1.1", "HTTP/1.0").into_bytes(),
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(exchange(api, bytes).await.unwrap().status, 201);
        assert_eq!(tokens(&workspace).await, 2 + made);
    }
}

#[tokio::test]
async fn slow_and_incomplete_bodies_block_nothing() {
    let workspace = Workspace::new().await;
    let api = &workspace.admin;
    let content_length = |length: usize| format!("Content-Length: {length}\r\n\r\n").into_bytes();
    let mut hanging = Vec::new();
    for count in 0..60 {
        let mut stream = connection(api).await;
        let body = match count % 4 {
            0 => [content_length(NEW_TOKEN.len()), NEW_TOKEN[..7].to_vec()].concat(),
            1 => content_length(1 << 20),
            2 => b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n".to_vec(),
            // An incomplete head.
            _ => Vec::new(),
        };
        stream.write_all(&[head(api), body].concat()).await.unwrap();
        hanging.push(stream);
    }
    // A body that arrives byte by byte is valid.
    let mut slow = connection(api).await;
    slow.write_all(&[head(api), content_length(NEW_TOKEN.len())].concat()).await.unwrap();
    for byte in NEW_TOKEN {
        slow.write_all(&[*byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(read_response(&mut slow).await.unwrap().status, 201);
    // Open requests block no other request, and change nothing when they end.
    for stream in hanging {
        workspace.admin.get("/api/status/").await.expect(200);
        drop(stream);
    }
    workspace.admin.get("/api/status/").await.expect(200);
    assert_eq!(tokens(&workspace).await, 2);
    // A body that ends early gets a 400, if the connection can still return it.
    let mut cut = connection(api).await;
    cut.write_all(&[head(api), content_length(NEW_TOKEN.len()), NEW_TOKEN[..7].to_vec()].concat())
        .await
        .unwrap();
    cut.shutdown().await.unwrap();
    assert!(read_response(&mut cut).await.is_none_or(|answer| answer.status == 400));
    assert_eq!(tokens(&workspace).await, 2);
}

#[tokio::test]
async fn malformed_json_is_rejected() {
    let workspace = Workspace::new().await;
    let api = &workspace.admin;
    let with_name = |name: &[u8]| [b"{\"expires_at\":null,\"name\":\"", name, b"\"}"].concat();
    let long = "x".repeat(1_000_000);
    let refused = [
        with_name(b"\xff"),
        with_name(b"\xc0\x80"),
        with_name(b"\xed\xa0\x80"),
        with_name(b"\\ud800"),
        with_name(b"\\ud800x"),
        with_name(b"\\udc00\\ud800"),
        with_name(b"a\\u0000b"),
        with_name(b"a\0b"),
        with_name(long.as_bytes()),
        [b"\xef\xbb\xbf", NEW_TOKEN].concat(),
        [b"\0", NEW_TOKEN].concat(),
        NEW_TOKEN.iter().flat_map(|byte| [*byte, 0]).collect(),
        [NEW_TOKEN, NEW_TOKEN].concat(),
        [NEW_TOKEN, b"x"].concat(),
        b"{'name':'x'}".to_vec(),
        b"{\"name\":NaN}".to_vec(),
        b"{\"name\":\"x\",}".to_vec(),
        b"{\"expires_at\":1e999,\"name\":\"x\"}".to_vec(),
        b"{\"expires_at\":null,\"name\":\"x\",\"other\":-1e999}".to_vec(),
        format!("{{\"expires_at\":null,\"name\":\"x\",\"other\":{}}}", "9".repeat(10_000))
            .into_bytes(),
        format!("{{\"{long}\":1}}").into_bytes(),
        format!("{{{}}}", (0..60_000).map(|n| format!("\"k{n}\":1")).collect::<Vec<_>>().join(","))
            .into_bytes(),
        // If a key is repeated, its last value counts.
        b"{\"name\":\"x\",\"expires_at\":null,\"name\":7}".to_vec(),
    ];
    for body in refused {
        let answer = post(api, &body).await;
        answer.assert_handled_by_worker(&String::from_utf8_lossy(&body[..body.len().min(80)]));
        assert_eq!(
            answer.status,
            400,
            "{}: {answer:?}",
            String::from_utf8_lossy(&body[..body.len().min(80)])
        );
    }
    nothing_changed(&workspace).await;

    let commands = |field: &str, value: &str| {
        format!("{{\"server\":\"x\",\"line\":\"ls\",\"{field}\":{value}}}")
    };
    for (field, value) in [
        ("timeout", "1.5"),
        ("timeout", "1e12"),
        ("timeout", "-0"),
        ("timeout", "9223372036854775808"),
        ("env", "[]"),
    ] {
        let body = commands(field, value);
        let answer =
            exchange(api, &request(api, "POST", b"/api/events/commands/", &[], body.as_bytes()))
                .await
                .unwrap();
        assert!(answer.status == 400 && answer.body.contains(field), "{body}: {answer:?}");
    }
    // Allowed characters are stored unchanged.
    for name in [
        "\u{1}\u{1b}[31m",
        "\u{202e}\u{feff}",
        "\u{10ffff}\u{e000}",
        "😀",
        "\" \\ / \u{2028}",
        "𐍈'; DROP TABLE users; --",
    ] {
        let made = api.post(TOKENS, &json!({"name": name, "expires_at": null})).await.expect(201);
        let path = format!("{TOKENS}{}/", made["id"].as_str().unwrap());
        assert_eq!(api.get(&path).await.expect(200)["name"], name);
    }
    let all = api.get(TOKENS).await.expect(200);
    assert_eq!(all["count"], 7);
}

#[tokio::test]
async fn json_nested_too_deeply_is_rejected_everywhere() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let registration = json!({"name": "hosts", "expires_at": null, "uses": null});
    let registration =
        workspace.admin.post("/api/servers/registration-tokens/", &registration).await.expect(201);
    let fields = [
        "name",
        "acl",
        "expires_at",
        "enabled",
        "username",
        "password",
        "email",
        "servers",
        "groups",
        "group",
        "server",
        "line",
        "env",
        "slug",
        "admin",
        "info",
        "os",
        "version",
        "load",
        "hashes",
        "record",
        "reason",
        "seq",
        "content",
        "success",
        "result",
    ];
    let bodies = [
        nested("[", "", "]"),
        nested("{\"a\":", "1", "}"),
        // Only opening brackets.
        "[{\"a\":".repeat(DEEP),
        format!(
            "{{{}}}",
            fields
                .map(|field| format!("\"{field}\":{}", "[".repeat(120) + &"]".repeat(120)))
                .join(",")
        ),
        format!("{{\"acl\":{}}}", nested("[", "", "]")),
        format!("{{\"other\":{}}}", nested("{\"a\":", "[]", "}")),
    ];
    let mut count = 0;
    for (method, pattern, access) in
        all().filter(|(method, ..)| ["POST", "PUT", "PATCH"].contains(method))
    {
        let api = match access {
            Access::Operator => Api::operator(),
            Access::Agent => workspace.anonymous.with_authorization(&credential(&server)),
            Access::Registration => {
                workspace.anonymous.with_token(registration["key"].as_str().unwrap())
            }
            Access::Open | Access::User | Access::UserOrAgent => workspace.admin.clone(),
        };
        let path = path_of(pattern, &workspace.slug);
        let answers = join_all(bodies.iter().enumerate().map(async |(number, body)| {
            let address = format!("X-Forwarded-For: 192.0.2.{count}");
            let bytes =
                request(&api, method, path.as_bytes(), &[address.as_bytes()], body.as_bytes());
            (number, exchange(&api, &bytes).await.unwrap())
        }));
        for (number, answer) in answers.await {
            answer.assert_handled_by_worker(&format!("{method} {path}, body {number}"));
        }
        count += 1;
    }
    assert!(count > 30, "{count}");
    workspace.admin.get("/api/status/").await.expect(200);
    assert_eq!(tokens(&workspace).await, 1);
    assert_eq!(workspace.admin.get("/api/servers/").await.expect(200)["count"], 1);
}

#[tokio::test]
async fn malformed_queries_are_rejected() {
    let workspace = Workspace::new().await;
    let api = &workspace.admin;
    // These resources have two paths.
    let again = ["/api/status/", "/api/users/users/", "/api/servers/servers/"];
    let lists = all().filter(|(method, path, access)| {
        *method == "GET"
            && *access == Access::User
            && path.ends_with("s/")
            && !path.contains("{id}")
            && !again.contains(path)
    });
    let lists: Vec<&str> = lists.map(|(_, path, _)| path).collect();
    assert!(lists.len() >= 7, "{lists:?}");
    let names = [
        "name",
        "enabled",
        "username",
        "is_active",
        "search",
        "group",
        "user",
        "role",
        "is_connected",
        "ordering",
        "page",
        "page_size",
        "server",
        "shell",
        "requested_by",
        "requested_by_isnull",
        "is_scheduled",
    ];
    let values = [
        "%FF",
        "%00",
        "a%00b",
        "%",
        "%zz",
        "",
        "1e999",
        "-0",
        "1.0",
        "99999999999999999999999",
        "9007199254740993",
        "%F0%9F%98%80",
        "%ED%A0%80",
        "%22%27%3B--",
        "*%5B%5B%5D",
        "%EF%BB%BF",
        "NEAR(a",
        "%C4%B0%C3%9F",
    ]
    .map(str::to_owned);
    let long = [
        "x".repeat(50_000),
        "%22*".repeat(1_000),
        "a+".repeat(2_000),
        "%C3%9F".repeat(500),
        ",".repeat(5_000),
    ];
    for list in &lists {
        for name in names {
            let is_text = ["name", "search", "ordering"].contains(&name);
            let values = values.iter().chain(long.iter().filter(|_| is_text));
            let queries = values.map(|value| format!("{list}?{name}={value}"));
            let answers = join_all(queries.map(async |target| {
                let answer =
                    exchange(api, &request(api, "GET", target.as_bytes(), &[], b"")).await.unwrap();
                (target, answer)
            }));
            for (target, answer) in answers.await {
                let what = &target[..target.len().min(100)];
                assert!(
                    answer.is_of_worker && [200, 400, 404].contains(&answer.status),
                    "{what}: {answer:?}"
                );
            }
        }
        let all: Vec<String> = (0..10_000).map(|n| format!("p{n}={n}")).collect();
        let repeated = "search=a&".repeat(9_999) + "page=2&page=1&search=";
        for (query, status) in [
            (all.join("&"), 200),
            (repeated, 200),
            ("&".repeat(50_000), 200),
            ("=&".repeat(10_000), 200),
        ] {
            let answer =
                exchange(api, &request(api, "GET", format!("{list}?{query}").as_bytes(), &[], b""))
                    .await
                    .unwrap();
            assert_eq!(answer.status, status, "{list}: {}", answer.body);
        }
    }
    nothing_changed(&workspace).await;
}

#[tokio::test]
async fn malformed_login_forms_are_rejected() {
    let workspace = Workspace::new().await;
    let api = &workspace.anonymous;
    let part = |boundary: &str, name: &str, value: &[u8]| {
        let head =
            format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
        [head.as_bytes(), value, b"\r\n"].concat()
    };
    let form = |boundary: &str, username: &[u8], password: &[u8]| {
        let end = format!("--{boundary}--\r\n");
        [
            part(boundary, "username", username),
            part(boundary, "password", password),
            end.into_bytes(),
        ]
        .concat()
    };
    let wrong = |boundary| form(boundary, b"boss", b"wrong");
    let whole = wrong("x");
    let long = "b".repeat(5_000);
    let many: Vec<u8> =
        (0..5_000).flat_map(|n| part("x", &format!("f{n}"), b"v")).chain(*b"--x--\r\n").collect();
    let large_head =
        [b"--x\r\nX: ".to_vec(), vec![b'a'; 100_000], b"\r\n\r\nv\r\n--x--\r\n".to_vec()].concat();
    let multipart = |parameters: &str| format!("multipart/form-data{parameters}");
    let urlencoded = || "application/x-www-form-urlencoded".to_owned();
    let tries = [
        (multipart(""), whole.clone(), 400),
        (multipart("; boundary="), whole.clone(), 400),
        (multipart("; boundary=y"), whole.clone(), 400),
        (multipart("; boundary=a%0d%0ab"), whole.clone(), 400),
        (multipart("; boundary=x"), whole[..40].to_vec(), 400),
        (multipart("; boundary=x"), whole[..whole.len() - 6].to_vec(), 400),
        (
            multipart("; boundary=x"),
            b"--x\r\nContent-Disposition: form-data\r\n\r\nv\r\n--x--\r\n".to_vec(),
            400,
        ),
        (multipart("; boundary=x"), vec![0xff; 5_000], 400),
        (multipart("; boundary=x"), large_head, 400),
        (multipart("; boundary=x"), many, 400),
        (multipart("; boundary=x"), form("x", b"a\0b", b"\0"), 403),
        (multipart("; boundary=x"), form("x", b"\xff\xfe", b"\xff"), 403),
        (multipart("; boundary=\"x y\""), wrong("x y"), 403),
        (multipart(&format!("; boundary={long}")), wrong(&long), 403),
        ("multipart/mixed; boundary=x".to_owned(), whole.clone(), 415),
        (urlencoded(), b"username=%ff&password=%00".to_vec(), 403),
        (urlencoded(), b"username=boss&password=wrong&username=nobody".to_vec(), 403),
        (urlencoded(), b"username[]=boss&password[a]=b".to_vec(), 400),
        (urlencoded(), b"&=%&".repeat(100_000), 400),
        (urlencoded(), b"\xff\xfe=\0".to_vec(), 400),
        (urlencoded(), [b"username=", &[b'x'; 1_000_000][..]].concat(), 403),
    ];
    for (number, (media_type, body, status)) in tries.into_iter().enumerate() {
        let address = format!("192.0.2.{number}");
        let api = api.from_address(&address);
        let request =
            api.request("POST", "/api/auth/login/").header("Content-Type", &media_type).body(body);
        let reply = api.send(request).await;
        assert_eq!(reply.status, status, "{number}: {media_type:.60}");
    }
    workspace.session().get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn malformed_reports_of_an_agent_are_rejected() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let new = json!({"server": "web", "line": "ls", "username": "boss"});
    let made = workspace.admin.post("/api/events/commands/", &new).await.expect(201);
    let id = made["id"].as_str().unwrap();
    agent.next_command().await;
    let command = format!("/api/events/commands/{id}/");
    let report = async |method: &str, path: &str, body: &[u8]| {
        exchange(&agent.api, &request(&agent.api, method, path.as_bytes(), &[], body))
            .await
            .unwrap()
    };
    let of_size =
        |size: usize| format!("{{\"seq\":3,\"content\":\"{}\"}}", "x".repeat(size)).into_bytes();
    let [chunk, fin, ack] = ["chunk", "fin", "ack"].map(|kind| format!("{command}{kind}/"));
    for (path, body, status) in [
        (&chunk, &b"{\"seq\":-1,\"content\":\"x\"}"[..], 400),
        (&chunk, b"{\"seq\":1.5,\"content\":\"x\"}", 400),
        (&chunk, b"{\"seq\":4294967296,\"content\":\"x\"}", 400),
        (&chunk, b"{\"seq\":1e999,\"content\":\"x\"}", 400),
        (&chunk, b"{\"seq\":1,\"seq\":2,\"content\":\"x\"}", 400),
        (&chunk, b"{\"seq\":1,\"content\":null}", 400),
        (&chunk, b"{\"seq\":1,\"content\":\"\\ud800\"}", 400),
        (&chunk, b"{\"seq\":1,\"content\":\"\xff\"}", 400),
        (&chunk, b"[1,\"x\"]", 400),
        (&chunk, b"\0\xff", 400),
        (&chunk, b"", 400),
        (&chunk, &of_size(17 << 20), 413),
        (&fin, b"", 400),
        (&fin, b"{}", 400),
        (&fin, b"[true]", 400),
        (&fin, b"{\"success\":\"true\"}", 400),
        (&fin, b"{\"success\":true,\"success\":false}", 400),
        (&fin, b"{\"success\":true,\"elapsed_time\":1e999}", 400),
        (&fin, b"{\"success\":true,\"exit_code\":1.5}", 400),
        (&fin, b"{\"success\":true,\"chunks\":-1}", 400),
    ] {
        let answer = report("POST", path, body).await;
        let what = String::from_utf8_lossy(&body[..body.len().min(80)]);
        answer.assert_handled_by_worker(&what);
        assert_eq!(answer.status, status, "{what}: {answer:?}");
    }
    let shown = workspace.admin.get(&command).await.expect(200);
    assert_eq!((&shown["status"]["text"], &shown["acked_at"]), (&json!("Sent"), &json!(null)));
    assert_eq!(workspace.admin.get(&format!("{command}chunks/")).await.expect(200)["count"], 0);

    // Unusual, but valid for an agent.
    for (path, body) in [
        (&ack, &b"\0\xff"[..]),
        (&chunk, b"{\"seq\":4294967295,\"content\":\"\"}"),
        // A number without a fraction is an integer (JSON Schema).
        (&chunk, b"{\"seq\":0.0,\"content\":\"a\\u0000\\ufffd\\ud83d\\ude00\"}"),
        (&chunk, &of_size(15 << 20)),
        (
            &fin,
            b"{\"success\":true,\"elapsed_time\":1e308,\"exit_code\":9223372036854775807,\"chunks\":4294967295,\
              \"output_bytes\":18446744073709551615,\"result\":\"\\u0000\\ufffd\",\"other\":[[{}]]}",
        ),
    ] {
        assert_eq!(report("POST", path, body).await.status, 204, "{path}");
    }
    let shown = workspace.admin.get(&command).await.expect(200);
    assert_eq!((&shown["status"]["text"], &shown["exit_code"]), (&json!("Success"), &json!(null)));
    let chunks = workspace.admin.get(&format!("{command}chunks/?page_size=1")).await.expect(200);
    assert_eq!(chunks["results"], json!([{"seq": 0, "content": "a\0\u{fffd}😀"}]));

    let sync = "/api/servers/servers/-/sync/";
    let long = format!(
        "{{\"version\":\"{}\",\"os\":{{\"name\":\"{}\"}}}}",
        "v".repeat(5 << 20),
        "😀".repeat(300)
    );
    for (method, path, body, status) in [
        ("PATCH", sync, &b"[]"[..], 400),
        ("PATCH", sync, b"7", 400),
        ("PATCH", sync, b"\xff", 400),
        ("PATCH", sync, long.as_bytes(), 200),
        (
            "PATCH",
            sync,
            b"{\"load\":1e999,\"os\":{\"name\":\"a\"},\"os\":{\"name\":\"\\u0000b\"},\"info\":[]}",
            200,
        ),
        (
            "PATCH",
            sync,
            b"{\"load\":5e-324,\"info\":{\"cpu_logical_cores\":1e30,\"physical_memory\":-1}}",
            200,
        ),
        ("POST", "/api/servers/servers/-/sync-check/", b"[]", 200),
        ("PATCH", "/api/servers/servers/-/status/", b"\xff", 204),
        ("POST", "/api/events/events/", b"{\"record\":7}", 204),
        ("PUT", "/api/proc/info/%00/%ff/", b"[]", 204),
    ] {
        let answer = report(method, path, body).await;
        answer.assert_handled_by_worker(path);
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
    }
    let path = format!("/api/servers/servers/{}/", server["id"].as_str().unwrap());
    farhand_tests::eventually("the reported host facts", || async {
        let shown = workspace.admin.get(&path).await.expect(200);
        (shown["os_name"] == "b"
            && shown["agent_version"].as_str().is_some_and(|version| version.len() == 200))
        .then_some(())
    })
    .await;
}

#[tokio::test]
async fn malformed_socket_messages_are_ignored() {
    let workspace = Workspace::new().await;
    let server = workspace.server("web").await;
    let api = workspace.anonymous.with_authorization(&credential(&server));
    let messages = [
        Message::binary(vec![0, 0xff]),
        Message::text(""),
        Message::text("nonsense"),
        Message::text("{\"query\":7}"),
        Message::text("{\"query\":\"dance\",\"command\":{}}"),
        Message::text("{\"query\":\"pong\",\"query\":\"pong\"}"),
        Message::text("{\"query\":".repeat(DEEP)),
        Message::text(format!("{{\"query\":\"pong\",\"other\":{}}}", nested("[", "", "]"))),
        Message::text("x".repeat(1 << 20)),
        Message::Ping(vec![b'x'; 125].into()),
        Message::Pong(Vec::new().into()),
    ];
    for path in ["/ws/servers/backhaul/", "/ws/servers/control/"] {
        let mut socket = dial(&api, path).await.unwrap();
        for message in &messages {
            socket.send(message.clone()).await.unwrap();
        }
        // The service handles messages in order, so the pong arrives after all of them were
        // handled.
        socket.send(Message::Ping(b"last".as_slice().into())).await.unwrap();
        loop {
            let message = tokio::time::timeout(PATIENCE, socket.next())
                .await
                .expect("no pong for the last ping");
            match message {
                Some(Ok(Message::Pong(payload))) if payload.as_ref() == b"last" => break,
                Some(Ok(_)) => {}
                other => panic!("{path}: {other:?}"),
            }
        }
    }
    // Invalid frames end the connection. Afterwards the server accepts another one.
    let odd_frames: [&[u8]; 6] = [
        b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0x",
        b"\x83\x81\0\0\0\0x",
        b"\xc1\x81\0\0\0\0x",
        b"\x80\x81\0\0\0\0x",
        b"\x88\x81\0\0\0\0x",
        b"\x88\x82\0\0\0\0\0\0",
    ];
    for frame in odd_frames {
        let mut stream = dial(&api, "/ws/servers/backhaul/").await.unwrap().into_inner();
        stream.write_all(frame).await.unwrap();
    }
    let mut agent = ScriptedAgent::connect(&workspace, &server).await;
    let made = json!({"server": "web", "line": "ls", "username": "boss"});
    let made = workspace.admin.post("/api/events/commands/", &made).await.expect(201);
    assert_eq!(agent.next_command().await["id"], made["id"]);
}
