//! Conventions and error bodies (contract 3).

use farhand_tests::{Api, PATIENCE, Workspace};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_path_without_its_slash_is_redirected() {
    let workspace = Workspace::new().await;
    let origin = format!("http://{}", workspace.admin.host);
    for (method, path, moved) in [
        ("GET", "/api/status", "/api/status/"),
        ("POST", "/api/auth/tokens", "/api/auth/tokens/"),
        ("GET", "/api/servers?page=2&name=a%20b", "/api/servers/?page=2&name=a%20b"),
        ("GET", "/api/nope", "/api/nope/"),
    ] {
        let reply = workspace.anonymous.call(method, path).await;
        assert_eq!((reply.status, reply.text.as_str()), (308, ""), "{path}");
        assert_eq!(reply.header("Location"), format!("{origin}{moved}"));
    }
    // The rule is for API paths only. Other paths are files.
    for path in ["/nope", "/nope.js", "/apix", "/operatorx", "/healthz2"] {
        workspace.anonymous.get(path).await.expect_detail(404, None);
    }
    workspace.anonymous.get("/healthz").await.expect(200);
    workspace.anonymous.get("/healthz/").await.expect_detail(404, None);
}

#[tokio::test]
async fn unknown_paths_are_404_for_everyone() {
    let workspace = Workspace::new().await;
    for path in [
        "/api/",
        "/api/nope/",
        "/api/auth/tokens/x/y/",
        "/API/status/",
        "/api//status/",
        "/api/status/x/",
    ] {
        workspace.admin.get(path).await.expect_detail(404, None);
        workspace.anonymous.get(path).await.expect_detail(404, None);
        workspace.anonymous.call("PUT", path).await.expect_detail(404, None);
    }
}

#[tokio::test]
async fn a_wrong_method_is_405_before_the_credential_check() {
    let workspace = Workspace::new().await;
    let nowhere = workspace.anonymous.with_authorization("nonsense");
    for (method, path, allow) in [
        ("DELETE", "/api/status/", "GET, HEAD, OPTIONS"),
        ("PROPFIND", "/api/status/", "GET, HEAD, OPTIONS"),
        ("PUT", "/api/auth/tokens/", "GET, POST, HEAD, OPTIONS"),
        ("GET", "/api/auth/login/", "POST, OPTIONS"),
        ("HEAD", "/api/auth/login/", "POST, OPTIONS"),
        ("GET", "/api/events/commands/01936d3e-7a00-7000-8000-000000000000/ack/", "POST, OPTIONS"),
    ] {
        for api in [&workspace.anonymous, &workspace.admin, &nowhere] {
            let reply = api.call(method, path).await;
            assert_eq!((reply.status, reply.header("Allow")), (405, allow), "{method} {path}");
            if method != "HEAD" {
                reply.expect_detail(405, None);
            }
        }
    }
}

#[tokio::test]
async fn head_returns_the_get_response_without_a_body() {
    let workspace = Workspace::new().await;
    for (path, status) in [("/healthz", 200), ("/api/status/", 200), ("/api/nope/", 404)] {
        let head = workspace.admin.call("HEAD", path).await;
        assert_eq!((head.status, head.text.as_str()), (status, ""), "{path}");
        assert_eq!(
            head.header("Content-Type"),
            workspace.admin.get(path).await.header("Content-Type")
        );
    }
    assert_eq!(workspace.anonymous.call("HEAD", "/api/status/").await.status, 401);
}

#[tokio::test]
async fn only_the_web_clients_origin_passes_preflight() {
    let workspace = Workspace::new().await;
    let preflight = |origin: String| {
        let api = workspace.anonymous.clone();
        async move {
            api.send(api.request("OPTIONS", "/api/auth/tokens/").header("Origin", origin)).await
        }
    };
    let own = format!("http://{}", workspace.anonymous.host);
    let allowed = preflight(own.clone()).await;
    allowed.expect(204);
    assert_eq!(allowed.header("Access-Control-Allow-Origin"), own);
    assert!(allowed.header("Access-Control-Allow-Headers").contains("Authorization"));
    assert_eq!(allowed.header("Allow"), "GET, POST, HEAD, OPTIONS");
    for other in ["https://evil.example", "null", "http://other.local.localhost"] {
        let refused = preflight(other.to_owned()).await;
        refused.expect(204);
        assert_eq!(refused.header("Access-Control-Allow-Origin"), "", "{other}");
    }
    let read = workspace
        .admin
        .send(workspace.admin.request("GET", "/api/status/").header("Origin", &own))
        .await;
    assert_eq!(read.header("Access-Control-Allow-Origin"), own);
}

#[tokio::test]
async fn every_response_has_the_common_headers() {
    let workspace = Workspace::new().await;
    let replies = [
        workspace.admin.get("/api/status/").await,
        workspace.anonymous.get("/api/status/").await,
        workspace.admin.get("/api/status").await,
        workspace.admin.get("/api/nope/").await,
        workspace.admin.call("PATCH", "/api/status/").await,
        workspace.admin.call("OPTIONS", "/api/status/").await,
        workspace.anonymous.get("/healthz").await,
        Api::operator().get("/operator/workspaces/").await,
    ];
    for reply in replies {
        assert_eq!(reply.header("Cache-Control"), "no-store");
        assert_eq!(reply.header("X-Content-Type-Options"), "nosniff");
        assert!(!reply.header("X-Request-Id").is_empty());
    }
}

#[tokio::test]
async fn a_plain_request_id_of_the_caller_is_kept() {
    let api = Workspace::new().await.anonymous;
    let longest = "a".repeat(64);
    for kept in ["abc_DEF-123", &longest] {
        let reply = api.send(api.request("GET", "/healthz").header("X-Request-Id", kept)).await;
        assert_eq!(reply.header("X-Request-Id"), kept);
    }
    let too_long = "a".repeat(65);
    for replaced in ["", "a b", "a.b", "<x>", &too_long] {
        let reply = api.send(api.request("GET", "/healthz").header("X-Request-Id", replaced)).await;
        let id = reply.header("X-Request-Id");
        assert!(id != replaced && !id.is_empty(), "{replaced}");
    }
}

#[tokio::test]
async fn bodies_must_be_json_objects() {
    let workspace = Workspace::new().await;
    let send = |body: Vec<u8>, media_type: &'static str| {
        let request = workspace
            .admin
            .request("POST", "/api/auth/tokens/")
            .header("Content-Type", media_type)
            .body(body);
        workspace.admin.send(request)
    };
    let deep = format!("{{\"name\":{}1{}}}", "[".repeat(2_000), "]".repeat(2_000));
    for bad in ["[]", "7", "null", "\"x\"", "{", "{\"name\":}", "name=x", &deep] {
        send(bad.into(), "application/json").await.expect_fields(400, &["non_field_errors"]);
    }
    send(b"{\"name\":\"\xff\xfe\"}".to_vec(), "application/json")
        .await
        .expect_fields(400, &["non_field_errors"]);
    for media_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
    ] {
        send(b"{\"name\":\"x\",\"expires_at\":null}".to_vec(), media_type)
            .await
            .expect_detail(415, None);
    }
    // An empty body counts as an object without fields, whatever its media type.
    send(Vec::new(), "text/plain").await.expect_fields(400, &["expires_at", "name"]);
    let good = b"{\"name\":\"x\",\"expires_at\":null}".to_vec();
    send(good, "Application/JSON; charset=utf-8").await.expect(201);
    assert_eq!(
        workspace.admin.get("/api/auth/tokens/").await.expect(200)["count"],
        2,
        "bad input changes nothing"
    );
}

#[tokio::test]
async fn bodies_over_a_mebibyte_are_413() {
    let workspace = Workspace::new().await;
    let body = |length: usize| {
        let around = json!({"name": "", "expires_at": null}).to_string().len();
        json!({"name": "x".repeat(length - around), "expires_at": null}).to_string()
    };
    let post = |api: &Api, body: reqwest::Body| {
        let request = api
            .request("POST", "/api/auth/tokens/")
            .header("Content-Type", "application/json")
            .body(body);
        let api = api.clone();
        async move { api.send(request).await }
    };
    post(&workspace.admin, body(1 << 20).into()).await.expect_fields(400, &["name"]);
    post(&workspace.admin, body((1 << 20) + 1).into()).await.expect_detail(413, None);
    // Sent in chunks, without a length.
    let pieces = (0..40).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 16]));
    let streamed = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    post(&workspace.admin, streamed).await.expect_detail(413, None);
    // The credential is checked before the size.
    post(&workspace.anonymous, body((1 << 20) + 1).into()).await.expect_detail(401, None);
    let stranger = workspace
        .anonymous
        .with_authorization("id=\"01936d3e-7a00-7000-8000-000000000000\", key=\"x\"");
    let nobody =
        [(workspace.anonymous.clone(), 401), (stranger, 403), (workspace.admin.clone(), 404)];
    for (api, status) in nobody {
        let report = api
            .request("PUT", "/api/servers/servers/-/commit/")
            .header("Content-Type", "application/json");
        let reply = api.send(report.body("[".repeat(17 << 20))).await;
        assert_eq!(reply.status, status, "{}", reply.text);
    }
    workspace.admin.get("/api/status/").await.expect(200);
}

#[tokio::test]
async fn the_length_of_a_chunked_body_is_ignored() {
    let workspace = Workspace::new().await;
    let status_of = async |length: usize, body: String| {
        let address = workspace.admin.url.strip_prefix("http://").unwrap();
        let (host, authorization) =
            (&workspace.admin.host, workspace.admin.authorization.as_deref().unwrap());
        let head = format!(
            "POST /api/auth/tokens/ HTTP/1.1\r\nHost: {host}\r\nAuthorization: {authorization}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        let piece = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        stream.write_all(piece.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(status_of(10, " ".repeat((1 << 20) + 1)).await, "413");
    assert_eq!(status_of(0, json!({"name": "x", "expires_at": null}).to_string()).await, "201");
}

#[tokio::test]
async fn lists_are_paginated() {
    let workspace = Workspace::new().await;
    for number in 0..16 {
        workspace.server(&format!("s{number:02}")).await;
    }
    let names = |body: &serde_json::Value| -> Vec<String> {
        body["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let first = workspace.admin.get("/api/servers/?x=a%20b%26c").await.expect(200);
    assert_eq!(
        (&first["count"], &first["previous"], names(&first).len()),
        (&json!(16), &json!(null), 15)
    );
    let next = first["next"].as_str().unwrap();
    assert_eq!(next, format!("http://{}/api/servers/?x=a+b%26c&page=2", workspace.admin.host));

    let second =
        workspace.admin.get(next.split_once(&workspace.admin.host).unwrap().1).await.expect(200);
    assert_eq!((names(&second), &second["next"]), (vec!["s00".to_owned()], &json!(null)));
    let previous = second["previous"].as_str().unwrap();
    assert_eq!(previous, format!("http://{}/api/servers/?x=a+b%26c&page=1", workspace.admin.host));

    let middle = workspace.admin.get("/api/servers/?page=2&page_size=5").await.expect(200);
    assert_eq!(names(&middle), ["s10", "s09", "s08", "s07", "s06"]);
    assert!(middle["next"].as_str().unwrap().ends_with("?page_size=5&page=3"), "{middle}");
    let clamped = workspace.admin.get("/api/servers/?page_size=1000").await.expect(200);
    assert_eq!(names(&clamped).len(), 16);
    for past in ["3", "99999999999999999999999"] {
        let reply = workspace.admin.get(&format!("/api/servers/?page={past}")).await;
        assert_eq!(reply.expect(404), json!({"code": "NOT_FOUND", "detail": "Invalid page."}));
    }
    for bad in ["0", "-1", "x", "1.5", ""] {
        workspace
            .admin
            .get(&format!("/api/servers/?page={bad}"))
            .await
            .expect_fields(400, &["page"]);
        workspace
            .admin
            .get(&format!("/api/servers/?page_size={bad}"))
            .await
            .expect_fields(400, &["page_size"]);
    }
    // An empty first page is valid.
    let empty = Workspace::new().await.admin.get("/api/events/commands/").await.expect(200);
    assert_eq!(empty, json!({"count": 0, "next": null, "previous": null, "results": []}));
}

#[tokio::test]
async fn the_health_check_needs_no_host_and_no_credential() {
    let reply = Api::at("nowhere.example").get("/healthz").await.expect(200);
    assert_eq!(reply["status"], "ok");
    assert!(reply["version"].is_string());
    // The instances of the tests run from a checkout.
    let commit = reply["commit"].as_str().unwrap();
    assert!(commit.trim_end_matches("-dirty").len() >= 10, "{commit}");
}
