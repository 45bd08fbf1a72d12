//! The caller's address, and plain HTTP (contract 11.2).

use farhand_tests::client::{PASSWORD, Reply};
use farhand_tests::{Api, Instance, Workspace};
use reqwest::RequestBuilder;
use serde_json::{Value, json};

/// Headers with which a caller may try to choose its own address.
const FORGED: [(&str, &str); 12] = [
    ("CF-Connecting-IP", "10.1.1.1"),
    ("X-Forwarded-For", "10.1.1.1"),
    ("X-Real-IP", "10.1.1.1"),
    ("True-Client-IP", "10.1.1.1"),
    ("Forwarded", "for=10.1.1.1"),
    ("Farhand-Peer", "10.1.1.1"),
    ("Farhand-Peer", " 10.1.1.1"),
    ("MF-CF-Blob", "{\"clientIp\": \"10.1.1.1:1\"}"),
    ("MF-Proxy-Shared-Secret", "x"),
    ("MF-Original-Hostname", "10.1.1.1"),
    ("MF-Sec-Fetch-Mode", "cors"),
    ("MF-Disable-Pretty-Error", "true"),
];

fn forged(request: RequestBuilder) -> RequestBuilder {
    FORGED.iter().fold(request, |request, (name, value)| request.header(*name, *value))
}

/// The client addresses of audit events with an action, newest first.
async fn audited_addresses(api: &Api, action: &str) -> Vec<Value> {
    let events = api.get(&format!("/api/audit/events/?action={action}")).await.expect(200);
    events["results"].as_array().unwrap().iter().map(|event| event["remote_ip"].clone()).collect()
}

#[tokio::test]
async fn callers_cannot_choose_their_address_with_headers() {
    let (instance, _folder) = Instance::new_with(&[("TRUSTED_PROXIES", "")]).await;
    let workspace = Workspace::create_with(&instance.operator(), "acme").await;
    let (outside, inside) = (
        workspace.limited(&json!({"networks": ["10.0.0.0/8"]})).await,
        workspace.limited(&json!({"networks": ["127.0.0.1/32"]})).await,
    );
    for (name, value) in FORGED {
        let status = async |api: &Api| {
            api.send(api.request("GET", "/api/status/").header(name, value)).await
        };
        status(&outside).await.expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
        status(&inside).await.expect(200);
    }
    outside
        .send(forged(outside.request("GET", "/api/status/")))
        .await
        .expect_detail(403, Some("API_TOKEN_ACL_NOT_ALLOWED"));
    inside.send(forged(inside.request("GET", "/api/status/"))).await.expect(200);

    // Sessions and audit events record the address of the connection.
    let api = &workspace.anonymous;
    let login = |password: &str, address: String| {
        let request =
            forged(api.request("POST", "/api/auth/login/")).header("CF-Connecting-IP", address);
        api.send(request.json(&json!({"username": "boss", "password": password})))
    };
    let token = login(PASSWORD, "10.1.1.1".to_owned()).await.expect(200)["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let sessions =
        workspace.anonymous.with_token(&token).get("/api/auth/sessions/").await.expect(200);
    assert_eq!(sessions["results"][0]["remote_ip"], "127.0.0.1");
    assert_eq!(audited_addresses(&workspace.admin, "session.login").await[0], "127.0.0.1");

    // Login throttling counts the address of the connection too.
    for number in 0..10 {
        login("wrong", format!("10.1.1.{number}")).await.expect_fields(403, &["non_field_errors"]);
    }
    login("wrong", "10.1.1.99".to_owned()).await.expect_detail(429, Some("THROTTLED"));
}

#[tokio::test]
async fn headers_cannot_lead_to_another_url_or_worker() {
    let workspace = Workspace::new().await;
    let api = &workspace.anonymous;
    let send = async |path: &str, name: &str, value: &str| -> Reply {
        api.send(api.request("GET", path).header(name, value)).await
    };
    let elsewhere = format!("http://{}/api/status/", api.host);
    for (name, value) in [
        ("MF-Original-URL", elsewhere.as_str()),
        ("MF-Route-Override", "clock"),
        ("MF-Route-Override", "edge"),
        ("MF-Custom-Fetch-Service", "farhand"),
        ("MF-Op", "GET"),
    ] {
        assert_eq!(
            send("/healthz", name, value).await.expect(200)["status"],
            "ok",
            "{name}: {value}"
        );
        send("/api/status/", name, value).await.expect_detail(401, None);
    }
    for path in
        ["/cdn-cgi/mf/scheduled", "/cdn-cgi/handler/scheduled", "/cdn-cgi/mf/platform-proxy"]
    {
        send(path, "MF-Op", "GET").await.expect_detail(404, None);
    }
}

#[tokio::test]
async fn a_trusted_proxy_names_the_client() {
    let workspace = Workspace::new().await;
    let token = workspace.limited(&json!({"networks": ["10.0.0.0/8"]})).await;
    for (list, is_inside) in [
        ("10.1.1.1", true),
        ("192.0.2.1, 10.1.1.1", true),
        ("10.1.1.1:443, 127.0.0.1", true),
        ("10.1.1.1, 192.0.2.1", false),
        ("10.1.1.1, unknown", false),
        ("10.1.1.1,", false),
        ("", false),
    ] {
        let reply = token.from_address(list).get("/api/status/").await;
        assert_eq!(reply.status, if is_inside { 200 } else { 403 }, "{list:?}");
        // Only `X-Forwarded-For` of the proxy counts, no other header.
        let reply = token.send(
            token
                .from_address(list)
                .request("GET", "/api/status/")
                .header("CF-Connecting-IP", "10.1.1.1"),
        );
        assert_eq!(reply.await.status, if is_inside { 200 } else { 403 }, "{list:?}");
    }
    // Behind an unreadable list, the address is unknown. All such callers count as one address.
    let unknown = |number: usize| {
        workspace.anonymous.from_address(if number.is_multiple_of(2) { "unknown" } else { "-," })
    };
    for number in 0..10 {
        unknown(number).log_in("boss", "wrong").await.expect_fields(403, &["non_field_errors"]);
    }
    unknown(10).log_in("boss", PASSWORD).await.expect_detail(429, Some("THROTTLED"));
    workspace.anonymous.from_address("192.0.2.1").log_in("boss", PASSWORD).await.expect(200);
}

#[tokio::test]
async fn plain_http_is_accepted_only_from_this_machine() {
    let variables = [("SERVICE_DOMAIN", "farhand.example"), ("REGION", "eu1")];
    let (instance, _folder) = Instance::new_with(&variables).await;
    let operator = instance.operator();
    let made =
        operator.post("/operator/workspaces/", &farhand_tests::client::new_workspace("acme")).await;
    made.expect(201);
    let named = Api::new(&instance.url, "acme.eu1.farhand.example");
    let paths = [
        "/healthz",
        "/api/status/",
        "/api/status",
        "/api/nope/",
        "/reset-password/",
        "/api/docs/",
        "/operator/workspaces/",
    ];
    for path in paths {
        // The response does not depend on whether the host or the workspace exists.
        for host in [
            "acme.eu1.farhand.example",
            "nope.eu1.farhand.example",
            "farhand.example",
            "10.0.0.1",
            "other.example",
        ] {
            let refused = named.with_host(host).get(path).await;
            refused.expect_detail(403, Some("HTTPS_REQUIRED"));
            assert_eq!(refused.header("Strict-Transport-Security"), "");
        }
    }
    let login = named.log_in("boss", PASSWORD).await;
    login.expect_detail(403, Some("HTTPS_REQUIRED"));
    for local in ["localhost:1234", "127.0.0.1", "127.9.9.9", "[::1]:1234", "x.localhost"] {
        named.with_host(local).get("/healthz").await.expect(200);
    }

    // A trusted proxy terminates https, and sends `X-Forwarded-Proto`.
    let https = async |path: &str, scheme: &str| {
        named.send(named.request("GET", path).header("X-Forwarded-Proto", scheme)).await
    };
    let answer = https("/api/status/", "https").await;
    answer.expect_detail(401, None);
    assert_eq!(answer.header("Strict-Transport-Security"), "max-age=31536000");
    assert_eq!(
        https("/api/status", "https").await.header("Location"),
        "https://acme.eu1.farhand.example/api/status/"
    );
    for scheme in ["http", "https, http", "wss", ""] {
        https("/api/status/", scheme).await.expect_detail(403, Some("HTTPS_REQUIRED"));
    }
    instance.stop().await;

    // Untrusted proxies are ignored. `ALLOW_HTTP` allows plain HTTP.
    let (instance, _folder) =
        Instance::new_with(&[&variables[..], &[("TRUSTED_PROXIES", "")]].concat()).await;
    let named = named.with_url(&instance.url);
    let refused =
        named.send(named.request("GET", "/healthz").header("X-Forwarded-Proto", "https")).await;
    refused.expect_detail(403, Some("HTTPS_REQUIRED"));
    instance.stop().await;
    let (instance, _folder) =
        Instance::new_with(&[&variables[..], &[("ALLOW_HTTP", "1")]].concat()).await;
    let named = named.with_url(&instance.url);
    assert_eq!(named.get("/healthz").await.expect(200)["status"], "ok");
    named.get("/api/status/").await.expect_detail(404, None);
}

#[tokio::test]
async fn the_install_text_contains_the_configured_address() {
    let workspace = Workspace::new().await;
    let port = workspace.admin.url.rsplit(':').next().unwrap();
    let evil = workspace.admin.with_host(&format!("{}:666", workspace.admin.host));
    let server = evil.post("/api/servers/", &json!({"name": "web-1"})).await.expect(201);
    let rotated = evil
        .call(
            "POST",
            &format!("/api/servers/servers/{}/rotate-key/", server["id"].as_str().unwrap()),
        )
        .await;
    let rotated = rotated.expect(200);
    let body = json!({"name": "hosts"});
    let token = evil.post("/api/servers/registration-tokens/", &body).await.expect(201);
    let answers = [&server, &rotated]
        .into_iter()
        .flat_map(|answer| [&answer["install"], &answer["install_alpamon"]])
        .chain([&token["install"]]);
    for install in answers {
        let expected = format!("http://{}.local.localhost:{port}", workspace.slug);
        assert!(install.as_str().unwrap().contains(&expected), "{install}");
    }
}
